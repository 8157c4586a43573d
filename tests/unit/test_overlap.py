"""A file selected by several sources belongs to one of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from driftline.storage.entities import Entity
from driftline.storage.workspace.records import SourceRecord
from driftline.tasks.scanning.overlap import Claim, SourcesByFolder, below, claimed
from driftline.tasks.scanning.path_patterns import Rules

PATHS = ["a.py", "src/a.py", "src/a.md", "src/deep/b.py", "srcs/c.py"]


def entity(name: str, org: str = "acme") -> Entity:
    return Entity.parse(f"org:{org}/project:alpha/source:{name}")


def record(uri: str, *include: str) -> SourceRecord:
    return SourceRecord(entity="", uri=uri, include=include)


def claims_on(entity: Entity, record: SourceRecord, others: list[tuple[Entity, SourceRecord]]) -> tuple[Claim, ...]:
    return SourcesByFolder({**dict(others), entity: record}).claims_on(entity, record)


def taken(*claims: Claim) -> list[str]:
    return [path for path, mine in zip(PATHS, claimed(pa.array(PATHS), claims), strict=True) if mine]


def test_a_nested_source_takes_over_its_folder() -> None:
    (claim,) = claims_on(entity("all"), record("/p"), [(entity("src"), record("/p/src"))])
    assert claim == Claim("src/", Rules())
    assert taken(claim) == ["src/a.py", "src/a.md", "src/deep/b.py"]


def test_a_nested_source_takes_over_only_files_that_its_filters_admit() -> None:
    claims = claims_on(entity("all"), record("/p"), [(entity("src"), record("/p/src", "*.md", "/deep/"))])
    assert taken(*claims) == ["src/a.md", "src/deep/b.py"]


def test_a_source_leaves_a_nested_source_its_files() -> None:
    assert claims_on(entity("src"), record("/p/src"), [(entity("all"), record("/p"))]) == ()


def test_the_first_of_two_sources_over_one_folder_takes_their_common_files() -> None:
    one, other = (entity("one"), record("/p", "*.py")), (entity("other"), record("/p"))
    assert taken(*claims_on(*other, [one])) == ["a.py", "src/a.py", "src/deep/b.py", "srcs/c.py"]
    assert claims_on(*one, [other]) == ()


def test_other_tenants_and_locations_do_not_claim_files() -> None:
    others = [
        (entity("src", org="other"), record("/p/src")),
        (entity("far"), record("/q")),
        (entity("x"), record("/pp")),
    ]
    assert claims_on(entity("all"), record("/p"), others) == ()
    assert taken() == []


@pytest.mark.parametrize(
    ("folder", "path", "inside"),
    [
        ("/p", "/p", ""),
        ("/p", "/p/a", "a"),
        ("/", "/p", "p"),
        ("/p", "/pq", None),
        ("/p/a", "/p", None),
        ("s3://b/t", "s3://b/t/x", "x"),
    ],
)
def test_documents_below_a_folder(folder: str, path: str, inside: str | None) -> None:
    assert below(folder, path) == inside


def test_neighbours_contain_a_folder_or_are_inside_it() -> None:
    uris = ["/", "/p", "/p/a", "/p/a/b", "/p/ab", "/p-x", "/q", "s3://b/p", "s3://b/p/a"]
    known = SourcesByFolder({entity(f"s{at}"): record(uri) for at, uri in enumerate(uris)})

    def found(entities: list[Entity]) -> list[str]:
        return sorted(known.records[each].uri for each in entities)

    assert found(known.at_or_below("/p")) == ["/p", "/p/a", "/p/a/b", "/p/ab"]
    assert found(known.at_or_above("/p/a")) == ["/", "/p", "/p/a"]
    assert found(known.at_or_below("/")) == uris[:1] + sorted(uris[1:7])
    assert found(known.at_or_above("s3://b/p/a/c")) == ["s3://b/p", "s3://b/p/a"]
    assert (found(known.at_or_below("/none")), found(known.at_or_above("t"))) == ([], [])
