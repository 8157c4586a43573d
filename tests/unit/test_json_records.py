"""Records are read back as they were written, and anything else is rejected."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from driftline.storage.json_records import (
    MAX_CURSOR_CHARACTERS,
    as_dict,
    decode_cursor,
    encode_cursor,
    from_json,
    to_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A part of a record."""

    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record with a field of each type."""

    at: datetime
    state: Literal["held", "released"] = "held"
    seconds: float = 0.0
    note: str | None = None
    inner: Inner | None = None
    versions: dict[str, tuple[int, str]] = field(default_factory=dict)
    parts: Mapping[str, Inner] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    is_done: bool = False


AT = datetime(2026, 11, 26, 5, 4, 3, 21, UTC)
FULL = Record(
    at=AT,
    state="released",
    seconds=1.5,
    note="é ☃",
    inner=Inner(name="a", sizes=(1, 2)),
    versions={"f": (3, "v")},
    parts={"p": Inner(name="b")},
    report={"any": [1, {"thing": None}]},
    is_done=True,
)


@pytest.mark.parametrize("record", [Record(at=AT), FULL], ids=["defaults", "full"])
@pytest.mark.parametrize("compact", [True, False])
def test_a_record_is_read_as_it_was_written(record: Record, *, compact: bool) -> None:
    assert from_json(Record, to_json(record, compact=compact)) == record


class Moment(datetime):
    """A time on a shifted clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dated:
    """A record declared while the clock was shifted."""

    at: Moment


def test_times_of_a_shifted_clock_are_written_and_read() -> None:
    moment = Moment.fromisoformat(AT.isoformat())
    assert from_json(Dated, to_json(Dated(at=moment))) == Dated(at=moment)
    assert from_json(Record, to_json(Dated(at=moment))) == Record(at=AT)
    with pytest.raises(ValueError, match="isoformat"):
        from_json(Dated, b'{"at": "yesterday"}')


def test_numbers_text_and_paths_of_other_types_are_written_as_plain_ones() -> None:
    class Text(str): ...

    report = {"share": np.float64(0.5), "count": np.int64(3), "of": Text("a"), "at": Path("b"), "done": np.bool_(True)}
    read = from_json(Record, to_json(Record(at=AT, report=report)))
    assert read.report == {"share": 0.5, "count": 3, "of": "a", "at": "b", "done": True}


def test_other_spellings_of_a_record_are_read() -> None:
    written = b'{"at": "2026-11-26T05:04:03.000021Z", "seconds": 2, "of a later version": [1]}'
    assert from_json(Record, written) == Record(at=AT, seconds=2.0)


@pytest.mark.parametrize(
    "data",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"at": 5}',
        '{"at": "yesterday"}',
        '{"at": "2026-11-26T05:04:03Z", "state": "lost"}',
        '{"at": "2026-11-26T05:04:03Z", "seconds": "1"}',
        '{"at": "2026-11-26T05:04:03Z", "note": 5}',
        '{"at": "2026-11-26T05:04:03Z", "inner": {}}',
        '{"at": "2026-11-26T05:04:03Z", "inner": {"name": "a", "sizes": [true]}}',
        '{"at": "2026-11-26T05:04:03Z", "inner": {"name": "a", "sizes": 1}}',
        '{"at": "2026-11-26T05:04:03Z", "versions": {"f": [1]}}',
        '{"at": "2026-11-26T05:04:03Z", "parts": [1]}',
        '{"at": "2026-11-26T05:04:03Z", "is_done": 1}',
        '{"at": NaN}',
        "\udcff",
        '{"at": ' + "[" * 5_000 + "]" * 5_000 + "}",
    ],
    ids=lambda data: ascii(data[:50]),
)
def test_anything_else_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(Record, data.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("parts", [(5, "a"), (0, "\N{GRINNING FACE}" * 1_024), (-1, "?/\x01"), (2**62, "")], ids=str)
def test_a_cursor_is_short_safe_text_that_holds_its_parts(parts: tuple[int, str]) -> None:
    cursor = encode_cursor(*parts)
    assert re.fullmatch("[A-Za-z0-9_-]+", cursor)
    assert len(cursor) <= MAX_CURSOR_CHARACTERS
    assert decode_cursor(tuple[int, str], cursor) == parts
    with pytest.raises(ValueError, match="Expected `int`"):
        decode_cursor(tuple[int], encode_cursor("a"))


class State(StrEnum):
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Part:
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Own:
    name: str

    def to_dict(self) -> dict[str, Any]:
        return {"called": self.name}


@dataclass(frozen=True, slots=True)
class Report:
    state: State
    at: datetime | None
    lag_seconds: float | None
    parts: tuple[Part, ...]
    named: dict[State, Own]


def test_a_report_becomes_the_dictionary_of_its_json() -> None:
    at = datetime(2026, 11, 26, tzinfo=UTC)
    report = Report(State.OPEN, at, 0.12345, (Part(1.00049, 0.12345),), {State.OPEN: Own("a")})
    expected = {
        "state": "open",
        "at": "2026-11-26T00:00:00+00:00",
        "lag_seconds": 0.123,
        "parts": [{"seconds": 1.0, "share": 0.12345}],
        "named": {"open": {"called": "a"}},
    }
    assert as_dict(report) == json.loads(json.dumps(as_dict(report))) == expected
    assert as_dict(Report(State.OPEN, None, None, (), {}))["at"] is None
