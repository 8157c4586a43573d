"""Invalid input and unusual files: one clear line and exit code 2 before any write, or a run history entry."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.registry import _registry

from driftline.storage.environment import install_command
from driftline.storage.sources.access import SafeFolder
from tests.support.oracle import WORDS

NOBODY = 65_534
OLD_NS = 1_600_000_000_000_000_000

Cli = Callable[..., Any]
Damage = Callable[[Path], None]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path / "tree", {"a.txt": "word1 word2\n", "sub/b.txt": "word3\n"})
    return tmp_path / "tree"


@pytest.fixture
def workspace(tmp_path: Path, tree: Path, model: Path, driftline: Cli) -> Path:
    """A workspace with one indexed source, ``source:tree``."""
    folder = tmp_path / "workspace"
    done = driftline("index", tree, "--workspace", folder, "--model", model)
    assert done.code == 0, done.err
    return folder


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        os.utime(root / path, ns=(OLD_NS, OLD_NS))


@contextmanager
def as_nobody(tmp_path: Path, model: Path, workspace: Path) -> Iterator[None]:
    """Become a user who owns the workspace but may otherwise only read world-readable files."""
    above = takewhile(lambda path: path != Path(tempfile.gettempdir()), tmp_path.parents)
    for path in (*above, tmp_path, model, *model.iterdir()):
        path.chmod(0o755)
    for path in (workspace, *workspace.rglob("*")):
        os.chown(path, NOBODY, -1)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def listing(root: Path) -> dict[str, bytes | None]:
    """Return every file under ``root`` and its content."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))}


def assert_refused(driftline: Cli, kind: str, watched: Path, *arguments: object, says: str = "", code: int = 2) -> None:
    """Assert that the command fails with ``kind`` in one line that contains ``says``, and does not change
    ``watched``.
    """
    before = listing(watched)
    outcome = driftline(*arguments)
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("driftline: ")
    assert outcome.err.count("\n") == 1, outcome.err
    assert says in outcome.err
    assert listing(watched) == before
    as_json = driftline(*arguments, "--json")
    assert as_json.code == code
    assert as_json.json.keys() == {"error", "message", "where", "fix"}
    assert as_json.json["error"] == kind
    assert says in as_json.json["message"]
    assert listing(watched) == before


# -- arguments -------------------------------------------------------------------------------

WRONG_USE = {
    "a missing source": ("source_not_found", ["index", "{tmp}/missing"], "missing"),
    "a source that is a file": ("source_not_found", ["index", "{tree}/a.txt"], "a.txt"),
    "an unknown scheme of a source": ("unknown_scheme", ["index", "gopher://host/x"], "gopher"),
    "an unknown scheme of a workspace": ("unknown_scheme", ["index", "{tree}", "--workspace", "ftp://h/x"], "ftp"),
    "a model that is not there": ("model_not_found", ["index", "{tree}", "--model", "{tmp}/no-model"], "no-model"),
    "a model that is none": ("model_not_found", ["index", "{tree}", "--model", "{tree}"], "tree"),
    "an entity of the wrong shape": ("bad_entity", ["index", "{tree}", "--entity", "web"], "web"),
    "an entity of an unknown level": ("bad_entity", ["index", "{tree}", "--entity", "team:x/source:y"], "team"),
    "an entity that leaves its directory": ("bad_entity", ["index", "{tree}", "--entity", "source:.."], ".."),
    "an entity that is no source": ("usage", ["index", "{tree}", "--entity", "org:acme"], "org:acme"),
    "an executor that is unknown": ("usage", ["index", "{tree}", "--executor", "cloud"], "cloud"),
    "a scheduler that does not answer": ("usage", ["index", "{tree}", "--executor", "tcp://127.0.0.1:1"], "scheduler"),
    "a fraction above 1": ("usage", ["index", "{tree}", "--max-delete-fraction", "2"], "max-delete-fraction"),
    "no source": ("usage", ["index"], "SOURCE"),
    "one source twice": ("usage", ["index", "{tree}", "{tree}/."], "Duplicate source"),
    "a search without a workspace": ("workspace_not_found", ["search", "x"], "workspace"),
    "the status of nothing": ("workspace_not_found", ["status"], "workspace"),
}


@pytest.mark.parametrize(("kind", "arguments", "says"), WRONG_USE.values(), ids=WRONG_USE.keys())
def test_a_usage_error_is_one_line_and_creates_no_workspace(
    tmp_path: Path, tree: Path, driftline: Cli, monkeypatch: pytest.MonkeyPatch, kind: str, arguments: list[str],
    says: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("driftline.flows.runs.executors.CONNECT_TIMEOUT_SECONDS", 1)
    given = [text.format(tmp=tmp_path, tree=tree) for text in arguments]
    if "--workspace" not in given:
        given[1:1] = ["--workspace", str(tmp_path / "workspace")]
    assert_refused(driftline, kind, tmp_path, *given, says=says)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("search", "heron", "--workspace", "{file}"), "A workspace is a folder, not a file"),
        (("index", "{tree}", "--workspace", "{file}"), "A workspace is a folder, not a file"),
        (("memory", "get", "key", "--workspace", "{file}"), "A workspace is a folder, not a file"),
        (("index", "htps://host/repository"), "Unknown scheme 'htps'"),
        (("index", "s3a1://bucket/folder"), "Unknown scheme 's3a1'"),
        (("index", "s3://bucket/folder"), "A remote source has no default workspace"),
        (("index", "{tree}", "--include", "["), "'['. It matches nothing: use '\\['."),
    ],
)
def test_a_message_names_the_mistake_itself(
    tmp_path: Path, tree: Path, driftline: Cli, command: tuple[str, ...], message: str
) -> None:
    (tmp_path / "file").write_text("the heron lands\n")
    done = driftline(*(part.format(file=tmp_path / "file", tree=tree) for part in command))
    assert (done.code, done.err.count("\n"), message in done.err) == (2, 1, True), done.err


@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        ("usage", ["search", "word1", "--top-k", "-1"], "top-k"),
        ("usage", ["search", "word1", "--n-lines", "-1"], "n-lines"),
        ("usage", ["search", "word1", "--max-distance", "3"], "max-distance"),
        ("usage", ["search", "word1", "--path", "../x"], "../x"),
        ("bad_entity", ["remove", "source:nobody"], "nobody"),
        ("fingerprint_mismatch", ["index", "{tree}", "--model", "wordllama:l2_supercat_256"], "--reembed"),
        ("source_conflict", ["index", "{tree}/sub", "--entity", "source:tree", "--model", "{model}"], "--rebind"),
    ],
    ids=lambda value: value if isinstance(value, str) else "_".join(value[:1]),
)
def test_a_usage_error_does_not_change_the_workspace(
    tree: Path, workspace: Path, model: Path, driftline: Cli, kind: str, arguments: list[str], says: str
) -> None:
    given = [text.format(tree=tree, model=model) for text in arguments]
    assert_refused(driftline, kind, workspace, given[0], "--workspace", workspace, *given[1:], says=says)


def test_a_missing_extra_is_reported(
    tmp_path: Path, model: Path, driftline: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for scheme in ("gcs", "gs"):
        monkeypatch.delitem(_registry, scheme, raising=False)  # fsspec keeps what an earlier test imported
    workspace = tmp_path / "workspace"
    says = install_command("gcs")
    assert_refused(driftline, "missing_extra", tmp_path, "index", "gs://bucket/x", "--workspace", workspace, says=says)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else: run the tests as root")
def test_unreadable_sources_and_workspaces_are_refused(
    tmp_path: Path, tree: Path, workspace: Path, model: Path, driftline: Cli
) -> None:
    index = ["index", tree, "--workspace", workspace, "--model", model]
    own = ["index", tree, "--model", model]
    for command in (index, own, ["search", "word1", "--workspace", workspace]):
        assert driftline(*command).code == 0  # and everything must be imported before the user changes
    tree.chmod(0o700)
    before = listing(workspace)
    with as_nobody(tmp_path, model, workspace):
        outcome = [driftline(*index), driftline(*own), driftline("index", tmp_path, "--model", tree / "model")]
        workspace.chmod(0)
        outcome += [driftline(*index), driftline("search", "word1", "--workspace", workspace)]
        workspace.chmod(0o700)
    assert [(answer.code, answer.err.count("\n")) for answer in outcome] == [(2, 1)] * 5, outcome
    for location, answer in zip((tree, tree, tree, workspace, workspace), outcome, strict=True):
        assert str(location) in answer.err
        assert location == tree or "permission" in answer.err
    assert listing(workspace) == before


def test_wrong_s3_credentials_are_an_access_error(
    tmp_path: Path, tree: Path, driftline: Cli, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    workspace = tmp_path / "workspace"
    assert_refused(
        driftline, "access_denied", tmp_path, "index", s3_bucket, "--workspace", workspace, says="redentials"
    )
    assert_refused(driftline, "access_denied", tmp_path, "index", tree, "--workspace", s3_bucket, says="AWS_")
    assert_refused(driftline, "access_denied", tmp_path, "search", "x", "--workspace", s3_bucket, says="AWS_")


# -- damaged workspaces ----------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def make_foreign(path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), path)


def of_a_newer_format(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))


DAMAGES = {
    "a cut _workspace.json": ("corrupt_file", "_workspace.json", truncate, "search"),
    "an empty _workspace.json": ("corrupt_file", "_workspace.json", make_empty, "search"),
    "a _workspace.json of a newer format": ("workspace_too_new", "_workspace.json", of_a_newer_format, "search"),
    "a cut delta": ("corrupt_file", "**/_index_delta_*.parquet", truncate, "status"),
    "an empty delta": ("corrupt_file", "**/_index_delta_*.parquet", make_empty, "status"),
    "a foreign delta": ("corrupt_file", "**/_index_delta_*.parquet", make_foreign, "status"),
    "a cut lease": ("corrupt_file", "**/_leases/source*.json", truncate, None),
    "a lease of a newer format": ("workspace_too_new", "**/_leases/source*.json", of_a_newer_format, None),
}


@pytest.mark.parametrize(("kind", "pattern", "damage", "reader"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_is_reported_and_nothing_is_written(
    tree: Path, workspace: Path, model: Path, driftline: Cli, kind: str, pattern: str, damage: Damage,
    reader: str | None,
) -> None:  # fmt: skip
    (victim,) = workspace.glob(pattern)
    damage(victim)
    write(tree, {"new.txt": "word9\n"})
    index = ["index", tree, "--workspace", workspace, "--model", model]
    assert_refused(driftline, kind, workspace, *index, says=victim.name)
    if reader:
        query = ["word1"] if reader == "search" else []
        assert_refused(driftline, kind, workspace, reader, *query, "--workspace", workspace, says=victim.name)


@pytest.mark.parametrize("damage", [truncate, make_empty, make_foreign])
def test_a_damaged_base_is_reported_and_nothing_is_written(
    tree: Path, workspace: Path, model: Path, driftline: Cli, damage: Damage
) -> None:
    from driftline.storage.entities import Entity
    from driftline.storage.workspace.workspace import Workspace

    Workspace.open(str(workspace)).manifest(Entity.parse("source:tree")).compact()
    (victim,) = workspace.glob("**/_index.parquet")
    damage(victim)
    index = ["index", tree, "--workspace", workspace, "--model", model]
    assert_refused(driftline, "corrupt_file", workspace, *index, says=victim.name)


def test_a_damaged_table_is_reported(tree: Path, workspace: Path, model: Path, driftline: Cli) -> None:
    for manifest in workspace.glob("**/_versions/*"):
        make_empty(manifest)
    for command in (["search", "word1"], ["status"]):
        assert_refused(driftline, "corrupt_file", workspace, *command, "--workspace", workspace, says=".lance")


# -- unusual files -----------------------------------------------------------------------------

ODD_NAMES = (
    "with space.txt", " edges ", "quote's.txt", 'double".txt', "new\nline.txt", "tab\t.txt", "100%.txt", "%41.txt",
    "under_score.txt", "star*.txt", "[x].txt", "back\\slash.txt", "caf\u00e9.txt", "cafe\u0301.txt", "\U0001f600.txt",
    "-n.txt", "#hash.txt", "~tilde.txt", "a;b.txt", "?.txt", "...", "--path",
)  # fmt: skip


def test_files_of_any_name_are_indexed_and_found_by_it(tmp_path: Path, model: Path, driftline: Cli) -> None:
    tree, workspace = tmp_path / "tree", tmp_path / "workspace"
    paths = [f"{folder}{name}" for name in ODD_NAMES for folder in ("", f"dir {name}/")]
    write(tree, {path: f"{WORDS[number]}\n" for number, path in enumerate(paths)})
    report = driftline("index", tree, "--workspace", workspace, "--model", model, "--json").json
    assert report["sources"][0]["skipped"] == []
    assert report["sources"][0]["new"] == len(paths)
    for number, path in enumerate(paths):
        options = ["--workspace", workspace, "--json", "-n", "0"]
        hits = driftline("search", WORDS[number], f"--path={path}", *options).json["results"]
        same = [other for other in paths if normalize("NFC", other) == normalize("NFC", path)]
        assert sorted(hit["path"] for hit in hits) == sorted(same)
        assert {hit["path"]: hit["text"] for hit in hits}[path] == WORDS[number]
        if "/" in path:
            hits = driftline("search", WORDS[number], f"--dir={path.partition('/')[0]}", *options).json["results"]
            assert sorted(hit["path"] for hit in hits) == sorted(same)
    again = driftline("index", tree, "--workspace", workspace, "--json").json["sources"][0]
    assert (again["unchanged"], again["lines_embedded"]) == (len(paths), 0)


def test_a_name_that_is_not_utf8_is_in_the_run_history(tmp_path: Path, tree: Path, model: Path, driftline: Cli) -> None:
    Path(os.fsdecode(bytes(tree) + b"/bad\xff.txt")).write_text("word5\n")
    workspace = tmp_path / "workspace"
    for _ in range(2):
        outcome = driftline("index", tree, "--workspace", workspace, "--model", model, "--json").json
        (entry,) = outcome["sources"][0]["skipped"]
        assert entry["reason"] == "undecodable name"
        assert "bad" in entry["path"]
    outcome = driftline("index", tree, "--workspace", workspace)
    assert outcome.code == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else: run the tests as root")
def test_files_without_permission_are_in_the_run_history_and_stay_indexed(
    tmp_path: Path, tree: Path, workspace: Path, model: Path, driftline: Cli
) -> None:
    write(tree, {"locked.txt": "word5\n", "closed/c.txt": "word6\n"})
    command = ["index", tree, "--workspace", workspace, "--model", model, "--json"]
    assert driftline(*command).code == 0
    write(tree, {"locked.txt": "word7 word8\n", "locked-new.txt": "word9\n"})
    for name, mode in {"locked.txt": 0, "locked-new.txt": 0, "closed": 0}.items():
        (tree / name).chmod(mode)
    with as_nobody(tmp_path, model, workspace):
        outcome = driftline(*command)
    assert outcome.code == 0, outcome
    (source,) = outcome.json["sources"]
    reasons = {entry["path"]: entry["reason"] for entry in source["skipped"]}
    assert reasons == dict.fromkeys(["closed/", "locked-new.txt", "locked.txt"], "unreadable")
    assert source["deleted"] == 0
    for word, path in {"word5": "locked.txt", "word6": "closed/c.txt"}.items():
        (hit, *_) = driftline("search", word, "--workspace", workspace, "--json").json["results"]
        assert hit["path"] == path
    for name in ("locked.txt", "locked-new.txt", "closed"):
        (tree / name).chmod(0o755)
    (source,) = driftline(*command).json["sources"]
    assert (source["new"], source["changed"], source["skipped"]) == (1, 1, [])


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Callable[[Path], None]]]:
    """Callbacks, keyed by path in the source, that are called right after the file is read."""
    events: dict[str, Callable[[Path], None]] = {}
    read = SafeFolder.read

    def disturbed(self: SafeFolder, path: str, *limit: int) -> bytes | None:
        data = read(self, path, *limit)
        if path in events:
            events[path](Path(self.root, path))
        return data

    monkeypatch.setattr(SafeFolder, "read", disturbed)
    yield events
    events.clear()


def test_a_file_that_vanishes_during_the_read_is_in_the_run_history(
    tree: Path, workspace: Path, driftline: Cli, reading: dict[str, Callable[[Path], None]]
) -> None:
    write(tree, {"gone.txt": "word5\n", "a.txt": "word6 word7 word8\n"})
    reading["gone.txt"] = Path.unlink
    reading["a.txt"] = Path.unlink
    command = ["index", tree, "--workspace", workspace, "--json"]
    outcome = driftline(*command)
    assert outcome.code == 0
    (source,) = outcome.json["sources"]
    assert [entry["path"] for entry in source["skipped"]] == ["a.txt", "gone.txt"]
    reading.clear()
    (source,) = driftline(*command).json["sources"]
    assert (source["deleted"], source["unchanged"], source["skipped"]) == (1, 1, [])


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tree: Path, workspace: Path, driftline: Cli, reading: dict[str, Callable[[Path], None]]
) -> None:
    def change_once(path: Path) -> None:
        path.write_text("word9\nword10\n")
        reading.clear()

    write(tree, {"a.txt": "word8\n"})
    reading["a.txt"] = change_once
    command = ["index", tree, "--workspace", workspace, "--json"]
    (source,) = driftline(*command).json["sources"]
    assert (source["changed"], source["lines_embedded"], source["skipped"]) == (1, 2, [])


def test_a_file_that_keeps_changing_is_left_for_the_next_run(
    tree: Path, workspace: Path, driftline: Cli, reading: dict[str, Callable[[Path], None]]
) -> None:
    reading["a.txt"] = lambda path: path.write_text(path.read_text() + "word9\n")  # type: ignore[assignment]
    write(tree, {"a.txt": "word8\n"})
    command = ["index", tree, "--workspace", workspace, "--json"]
    (source,) = driftline(*command).json["sources"]
    assert [entry["reason"] for entry in source["skipped"]] == ["changed while it was read"]
    reading.clear()
    (source,) = driftline(*command).json["sources"]
    assert (source["changed"], source["skipped"]) == (1, [])


# -- mass deletions --------------------------------------------------------------------------


def test_a_mass_deletion_is_refused_until_it_is_confirmed(tmp_path: Path, model: Path, driftline: Cli) -> None:
    tree, workspace = tmp_path / "tree", tmp_path / "workspace"
    write(tree, {f"old/{number}.txt": WORDS[number] for number in range(150)} | {"kept.txt": "word200"})
    command = ["index", tree, "--workspace", workspace, "--model", model, "--json"]
    assert driftline(*command).code == 0
    shutil.rmtree(tree / "old")
    write(tree, {"new.txt": "word201\n"})
    for _ in range(2):
        outcome = driftline(*command)
        assert (outcome.code, outcome.json["error"]) == (3, "deletion_refused")
        assert "--max-delete-fraction 1" in outcome.json["fix"]
        status = driftline("status", "--workspace", workspace, "--json").json
        assert (status["total_documents"], status["total_lines"]) == (152, 152)
        assert (
            driftline("search", "word201", "--workspace", workspace, "--json").json["results"][0]["path"] == "new.txt"
        )
    (source,) = driftline(*command, "--max-delete-fraction", "1").json["sources"]
    assert (source["deleted"], source["lines_total"]) == (150, 2)


def test_renames_do_not_count_as_deletions(tmp_path: Path, model: Path, driftline: Cli) -> None:
    tree, workspace = tmp_path / "tree", tmp_path / "workspace"
    write(tree, {f"old/{number}.txt": WORDS[number] for number in range(150)})
    command = ["index", tree, "--workspace", workspace, "--model", model, "--json"]
    assert driftline(*command).code == 0
    (tree / "old").rename(tree / "renamed")
    outcome = driftline(*command)
    assert outcome.code == 0, outcome
    (source,) = outcome.json["sources"]
    assert (source["new"], source["deleted"], source["lines_total"]) == (150, 150, 150)
