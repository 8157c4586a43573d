"""``driftline index``, ``status``, ``sources`` and ``remove`` on local trees, and the same from Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import driftline as dl
from driftline.flows.config.index_request import IndexRequest
from driftline.flows.output.progress import NullProgress
from driftline.flows.runs.index import index_sources
from driftline.storage.deltas.manifest import Manifest
from driftline.storage.entities import Entity
from driftline.storage.errors import BadEntity, UsageError
from driftline.storage.sources.source import Source
from driftline.storage.workspace.records import SourceRecord
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.search.documents import DocumentCursor, document_page
from tests.support.waiting import until

Driftline = Callable[..., Any]
_AFTERWARDS = {"phases", "worker_phases", "documents_total", "lines_total", "revision", "deltas"}
"""Report keys that are unknown in a dry run."""

FILES = {
    "src/parser.py": "import argparse\n\nparser = argparse.ArgumentParser()\n",
    "src/deep/actions.py": "class StoreAction:\n    pass\n",
    "docs/usage.md": "# Usage\n\nThe help of a subcommand.\n",
    "empty.txt": "",
}


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write files that are a minute old, so none is racy."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        minute_ago = time.time() - 60
        os.utime(root / path, (minute_ago, minute_ago))
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write(tmp_path / "web", FILES)


@pytest.fixture
def driftline(driftline: Driftline, tiny_model: Path) -> Driftline:
    """The command line; ``index`` uses the tiny model."""

    def run(command: str, *arguments: object) -> Any:
        return driftline(command, *arguments, *(("--model", tiny_model) if command == "index" else ()))

    return run


def states(outcome: Any) -> dict[str, int]:
    assert outcome.code == 0, outcome.out + outcome.err
    (source,) = outcome.json["sources"]
    names = ("new", "changed", "touched", "unchanged", "deleted", "lines_embedded", "lines_total")
    return {name: source[name] for name in names if source[name]}


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Followed(NullProgress):
    """Records each advance."""

    def __init__(self) -> None:
        self.reported: list[tuple[int, int]] = []

    def advance(self, documents: int = 1, lines: int = 0) -> None:
        self.reported.append((documents, lines))


# Output.


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("executor", ["inline", "local"])
def test_the_progress_moves_while_the_only_batch_is_read_and_embedded(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    monkeypatch.setattr("driftline.flows.runs.executors.REPORT_SECONDS", 0.0)
    monkeypatch.setattr("driftline.flows.runs.executors.MAX_COUNTS_PER_SECOND", 1e9)
    tree = write(tmp_path / "tree", {f"{number}.txt": "one\ntwo\n" for number in range(20)})
    followed = Followed()
    request = IndexRequest((str(tree),), str(tmp_path / "w"), model=str(tiny_model), executor=executor, workers=1)
    index_sources(request, followed)
    assert followed.reported == [(1, 0)] * 20 + [(0, 40)]


def test_index_prints_one_object_of_the_documented_shape(tree: Path, driftline: Driftline) -> None:
    (tree / ".env").write_text("TOKEN=1\n")
    report = driftline("index", tree, "--json").json
    assert set(report) >= {"run_id", "workspace", "sources", "seconds"}
    assert report["workspace"] == str(tree / ".driftline")
    assert report["seconds"] > 0
    (source,) = report["sources"]
    assert set(source["phases"]) >= {"lease", "scan", "batches", "commit"}
    assert set(source["worker_phases"]) == {"scan", "read", "split", "redact", "embed", "outline", "write"}
    expected = {
        "entity": "org:default/project:default/source:web",
        "uri": str(tree),
        "new": 4,
        "changed": 0,
        "touched": 0,
        "unchanged": 0,
        "deleted": 0,
        "skipped": [{"path": ".env", "reason": "secret"}],
        "lines_embedded": 6,
        "lines_total": 6,
        "bytes_read": sum(map(len, FILES.values())),
    }
    assert {name: source[name] for name in expected} == expected


def test_status_sources_and_remove_print_objects_of_the_documented_shape(tree: Path, driftline: Driftline) -> None:
    report = driftline("index", tree, "--json").json
    at = ("--workspace", tree / ".driftline", "--json")
    source = {"entity": "org:default/project:default/source:web", "uri": str(tree), "documents": 4, "lines": 6}
    status = driftline("status", *at).json
    last_run = status.pop("last_run")
    assert status == {
        "workspace": str(tree / ".driftline"),
        "total_documents": 4,
        "total_lines": 6,
        "has_index": False,
        "index_type": None,
        "model": status["model"],
        "sources": [source],
        "deltas": 1,
    }
    assert (last_run["run_id"], last_run["kind"], last_run["outcome"]) == (report["run_id"], "index", "done")
    assert last_run["report"]["sources"] == report["sources"]
    assert driftline("sources", *at).json == {"workspace": str(tree / ".driftline"), "sources": [source]}
    removed = driftline("remove", source["entity"], *at).json
    assert removed == {"run_id": removed["run_id"], "entity": source["entity"], "documents": 4, "lines": 6}
    assert driftline("sources", *at).json["sources"] == []
    after = driftline("status", *at).json
    assert (after["total_documents"], after["total_lines"]) == (0, 0)
    assert driftline("search", "parser", *at).code == 1
    assert states(driftline("index", tree, "--json"))["new"] == 4


def test_text_output_shows_the_same_figures(tree: Path, driftline: Driftline) -> None:
    assert "4 new" in driftline("index", tree).out
    at = ("--workspace", tree / ".driftline")
    assert str(tree) in driftline("status", *at).out
    assert "source:web" in driftline("sources", *at).out
    assert "4 documents" in driftline("remove", "source:web", *at).out


def test_quiet_prints_only_problems_and_verbose_each_phase(
    tree: Path, driftline: Driftline, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = driftline("index", tree, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert "4 unchanged" in driftline("index", tree, "-q", "--dry-run").out  # the requested output
    assert not caplog.records
    verbose = driftline("index", tree, "--full", "-v")
    assert "4 changed" in verbose.out
    assert any(record.getMessage().startswith("index run") for record in caplog.records)
    assert driftline("search", "parser", "-q", "--color", "always", "--workspace", tree / ".driftline").out[0] == "\x1b"
    (tree / "picture.bin").write_bytes(bytes(9))
    heading, reason = driftline("index", tree, "-q").out.splitlines()
    assert (heading.split()[-1], reason) == (str(tree), "  not indexed: 1 binary")
    assert driftline("remove", "source:web", "-q", "--workspace", tree / ".driftline").out == ""


def test_a_folder_after_the_words_is_said_to_be_part_of_the_query(
    tree: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    driftline("index", ".")
    for folder in ("src/", "./src", str(tree / "src")):
        said = driftline("search", "parser", folder).err.splitlines()[-1]
        assert "is part of the query" in said
        narrower = driftline("search", "parser", *said.split()[-2:], "--json")
        assert narrower.json["results"], said
    assert "is part of the query" not in driftline("search", "parser", "src").err


def test_removing_an_unknown_source_is_a_usage_error(tree: Path, driftline: Driftline) -> None:
    driftline("index", tree)
    for entity in ("source:other", "org:acme/project:x/source:web", "nonsense", "source:..", "org:default"):
        outcome = driftline("remove", entity, "--workspace", tree / ".driftline")
        assert (outcome.code, outcome.out) == (2, ""), (entity, outcome)
        assert outcome.err.count("\n") == 1
    assert driftline("status", "--workspace", tree / ".driftline", "--json").json["total_documents"] == 4


# Location of the workspace.


def test_the_default_workspace_is_at_the_root_of_the_source_and_ignored(
    tree: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    assert states(driftline("index", tree, "--json"))["new"] == 4
    assert (tree / ".driftline" / ".gitignore").read_text() == "*\n"
    assert states(driftline("index", tree, "--json")) == {"unchanged": 4, "lines_total": 6}
    listed = subprocess.run(["git", "-C", tree, "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert ".driftline" not in listed.stdout
    monkeypatch.chdir(tree / "src" / "deep")
    assert driftline("search", "class StoreAction", "--json").json["results"][0]["path"] == "src/deep/actions.py"
    assert driftline("status", "--json").json["workspace"] == str(tree / ".driftline")
    assert driftline("index", ".", "--json").json["workspace"] == str(tree / ".driftline")


def test_a_workspace_of_any_name_inside_the_source_is_not_indexed(tree: Path, driftline: Driftline) -> None:
    for _ in range(2):
        outcome = driftline("index", tree, "--workspace", tree / "src" / "the index", "--json")
        assert states(outcome)["lines_total"] == 6


def test_the_environment_names_the_workspace(
    tree: Path, tmp_path: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTLINE_WORKSPACE", str(tmp_path / "elsewhere"))
    assert driftline("index", tree, "--json").json["workspace"] == str(tmp_path / "elsewhere")
    assert not (tree / ".driftline").exists()
    assert driftline("search", "parser", "--json").code == 0


# Entities.


def test_several_sources_are_indexed_and_searched_together(tree: Path, tmp_path: Path, driftline: Driftline) -> None:
    other = write(tmp_path / "api", {"main.go": "func ListenAndServe() error\n"})
    at = ("--workspace", tmp_path / "workspace", "--json")
    report = driftline("index", tree, other, *at).json
    assert [(s["entity"].rpartition("/")[2], s["new"]) for s in report["sources"]] == [
        ("source:web", 4),
        ("source:api", 1),
    ]
    assert driftline("search", "func ListenAndServe", *at).json["results"][0]["source"].endswith("source:api")
    for arguments in ((tree, tree), (tree, f"{tree}/./"), (tree, other, "--entity", "source:both"), (tree, "gone")):
        assert driftline("index", *arguments, *at).code == 2, arguments
    assert driftline("status", *at).json["total_documents"] == 5


def test_a_taken_default_name_gets_a_permanent_hash_suffix(tree: Path, tmp_path: Path, driftline: Driftline) -> None:
    namesake = write(tmp_path / "other" / "web", {"index.html": "<title>namesake</title>\n"})
    at = ("--workspace", tmp_path / "workspace", "--json")
    names = [
        driftline("index", source, *at).json["sources"][0]["entity"] for source in (tree, namesake, namesake, tree)
    ]
    assert names[0] == names[3] == "org:default/project:default/source:web"
    assert names[1] == names[2]
    assert names[1].startswith(names[0] + "-")
    both = driftline("index", tree, namesake, "--workspace", tmp_path / "at once", "--json").json["sources"]
    assert [source["entity"] for source in both] == [names[0], names[1]]


def test_an_entity_keeps_its_uri_unless_it_is_rebound(tree: Path, tmp_path: Path, driftline: Driftline) -> None:
    moved = write(tmp_path / "moved", FILES | {"more.txt": "one more line\n"})
    at = ("--workspace", tmp_path / "workspace", "--entity", "org:acme/project:alpha/source:web", "--json")
    assert states(driftline("index", tree, *at))["new"] == 4
    refused = driftline("index", moved, *at)
    assert (refused.code, refused.json["error"]) == (2, "source_conflict")
    assert "--rebind" in refused.json["message"]
    assert states(driftline("index", tree, *at)) == {"unchanged": 4, "lines_total": 6}
    after = states(driftline("index", moved, "--rebind", *at))
    assert (after["new"], after["lines_embedded"], after["lines_total"]) == (1, 1, 7)
    assert states(driftline("index", moved, *at)) == {"unchanged": 5, "lines_total": 7}


@pytest.mark.parametrize(
    "entity", ["web", "source:", "source:..", "project:x", "org:a/source:b/project:c", "user:me", "source:a\nb"]
)
def test_a_bad_entity_is_refused_before_anything_is_written(tree: Path, driftline: Driftline, entity: str) -> None:
    outcome = driftline("index", tree, "--entity", entity)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert not (tree / ".driftline").exists()


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)


def test_a_clone_of_the_same_origin_elsewhere_is_the_same_source_and_nothing_is_embedded(
    tree: Path, tmp_path: Path, driftline: Driftline
) -> None:
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "all")
    for name in ("first", "second"):
        git(tmp_path, "clone", "-q", str(tree), f"{name}/clone")
    at = ("--workspace", tmp_path / "workspace", "--json")
    first = driftline("index", tmp_path / "first" / "clone", *at).json["sources"][0]
    second = driftline("index", tmp_path / "second" / "clone", *at).json["sources"][0]
    assert first["entity"] == second["entity"] == "org:default/project:default/source:clone"
    assert (second["touched"] + second["unchanged"], second["lines_embedded"]) == (4, 0)
    below = driftline("index", tmp_path / "second" / "clone" / "src", *at).json["sources"][0]
    assert (below["entity"].endswith("source:src"), below["new"]) == (True, 2)


# Filters.


def test_filters_are_recorded_and_used_again_until_others_are_given(tree: Path, driftline: Driftline) -> None:
    first = driftline("index", tree, "--include", "src/", "--exclude", "deep/", "--json")
    assert states(first)["new"] == 1
    reasons = {skip["path"]: skip["reason"] for skip in first.json["sources"][0]["skipped"]}
    assert reasons["empty.txt"] == "excluded"
    write(tree, {"src/deep/late.py": "print('late')\n", "late.md": "late\n"})
    assert "instead of" not in first.err + first.out
    kept = driftline("index", tree, "--json")
    assert states(kept) == {"unchanged": 1, "lines_total": 2}
    assert "keeps the filters of its last run, --include src/ --exclude deep/" in kept.err
    replaced = driftline("index", tree, "--include", "*.md", "--json")
    assert "are now --include '*.md', instead of --include src/ --exclude deep/" in replaced.err
    other = states(replaced)
    assert other == {"new": 2, "deleted": 1, "lines_embedded": 3, "lines_total": 3}
    assert states(driftline("index", tree, "--json")) == {"unchanged": 2, "lines_total": 3}
    assert driftline("index", tree, "--include", "!*.md").code == 2
    removed = driftline("index", tree, "--include", "*", "--json")
    assert "are now none, instead of --include '*.md'" in removed.err
    assert states(removed)["unchanged"] == 2 < states(removed)["new"]
    assert "filters" not in driftline("index", tree).err


@pytest.mark.parametrize(
    "filters", [("--include", "*.mdd"), ("--exclude", "*"), ("--include", "*.md", "--exclude", "*.md")]
)
def test_filters_that_match_no_file_are_refused_before_anything_is_written(
    tree: Path, driftline: Driftline, filters: tuple[str, ...]
) -> None:
    outcome = driftline("index", tree, *filters)
    assert (outcome.code, "The filters match no files" in outcome.err) == (2, True)
    assert not (tree / ".driftline").exists()
    before = states(driftline("index", tree, "--json"))["lines_total"]
    assert driftline("index", tree, *filters).code == driftline("index", tree, "--dry-run", *filters).code == 2
    again = driftline("index", tree, "--json")
    assert (states(again)["lines_total"], "filters" in again.err) == (before, False)


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        ("*.ts,*.tsx", "'{*.ts,*.tsx}'"),
        ("@(*.md|*.tsx)", "'{*.md,*.tsx}'"),
        ("src\\*.md", "'src/*.md'"),
        ('"*.md"', ""),
        ("^.*md", ""),
        ("*.m{x..z}", ""),
    ],
)
def test_an_exclude_pattern_that_matches_no_file_is_reported(
    pattern: str, advice: str, tree: Path, driftline: Driftline
) -> None:
    outcome = driftline("index", tree, "--exclude", pattern, "--exclude", "deep/", "--json")
    assert outcome.code == 0
    assert f"--exclude {pattern!r} matches no file" in outcome.err
    assert advice in outcome.err
    assert "'deep/'" not in outcome.err
    assert outcome.json["sources"][0]["unmatched_excludes"] == [pattern]
    assert driftline("index", tree, "--json").json["sources"][0]["unmatched_excludes"] == []


def test_a_configured_pattern_that_matches_no_file_is_reported_once(
    tree: Path, tmp_path: Path, tiny_model: Path, driftline: Driftline
) -> None:
    config = tmp_path / "driftline.toml"

    def run(filters: str) -> Any:
        source = f'[[sources]]\nuri = "{tree}"\nentity = "source:a"\n{filters}'
        config.write_text(f'workspace = "{tmp_path}/w"\nmodel = "{tiny_model}"\n{source}')
        return driftline("index", "--all", "--config", config, "--json")

    first = run('exclude = ["*.ts,*.tsx", "deep/"]')
    assert first.code == 0
    assert "source:a: '*.ts,*.tsx' matches no file" in first.err
    assert "'deep/'" not in first.err
    assert first.json["sources"][0]["unmatched_excludes"] == ["*.ts,*.tsx"]
    assert "matches no file" not in run('exclude = ["*.ts,*.tsx", "deep/"]').err
    nothing = run('include = ["*.egret"]')
    assert nothing.code == 2
    assert "The filters match no files" in nothing.err + nothing.out, nothing
    assert driftline("status", "--workspace", tmp_path / "w", "--json").json["total_documents"] > 0


def test_a_pattern_is_not_said_to_match_no_file_of_an_excluded_folder(tmp_path: Path, driftline: Driftline) -> None:
    for name in ("a.py", "vendor/k.js", "vendor/deep/x.py"):
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / name).write_text("x = 1\n")
    filters = ("--exclude", "*.js", "--exclude", "deep/")
    outcome = driftline("index", tmp_path / "app", *filters, "--exclude", "vendor/", "--dry-run")
    for pattern in ("*.js", "deep/"):
        assert f"--exclude {pattern!r} matches no file outside excluded folders." in outcome.err
    outcome = driftline("index", tmp_path / "app", *filters, "--exclude", "*.ts", "--exclude", "k.js", "--dry-run")
    assert "--exclude '*.ts' matches no file outside excluded folders." in outcome.err
    outcome = driftline("index", tmp_path / "app", "--exclude", "*.js", "--exclude", "*.ts", "--dry-run")
    assert "--exclude '*.ts' matches no file." in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "word", "--glob", "z" * 100_000),
        ("search", "word", "--mode", "z" * 100_000),
        ("index", "z" * 100_000),
    ],
)
def test_errors_do_not_repeat_long_arguments(arguments: tuple[str, ...], tree: Path, driftline: Driftline) -> None:
    assert driftline("index", tree).code == 0
    where = ("--workspace", tree / ".driftline") if arguments[0] == "search" else ()
    outcome = driftline(*arguments, *where)
    assert outcome.code != 0
    assert "zzz ... zzz" in outcome.err
    assert len(outcome.err) < 2_000


def test_skipped_files_are_in_the_run_history_with_their_reason(tree: Path, driftline: Driftline) -> None:
    write(
        tree,
        {
            ".env": "TOKEN=1\n",
            "keys/server.pem": "-----BEGIN PRIVATE KEY-----\n",
            "src/large.txt": "word\n" * 300,
            "src/.gitignore": "generated/\n*.log\n",
            "src/generated/code.py": "x = 1\n",
            "src/run.log": "started\n",
            ".driftlineignore": "docs/\n",
        },
    )
    for name, data in {
        "logo.png": b"\x89PNG\r\n\x1a\n\0\0\0",
        "latin.txt": "Ein schöner Tag, und süße Träume\n".encode("latin-1"),
    }.items():
        (tree / name).write_bytes(data)
        os.utime(tree / name, (1_000_000_000, 1_000_000_000))
    outcome = driftline("index", tree, "--max-file-bytes", 1000, "--json")
    reasons = {skip["path"]: skip["reason"] for skip in outcome.json["sources"][0]["skipped"]}
    assert reasons == {
        ".env": "secret",
        "keys/server.pem": "secret",
        "src/large.txt": "too large",
        "logo.png": "binary",
    } | {path: reason for path, reason in reasons.items() if reason == "excluded"}
    at = ("--workspace", tree / ".driftline", "--json")
    skipped = driftline("status", *at).json["last_run"]["report"]["sources"][0]["skipped"]
    assert {skip["path"]: skip["reason"] for skip in skipped} == reasons
    found = {hit["path"] for hit in driftline("search", "x", "--top-k", 100, "-n", 0, *at).json["results"]}
    found |= {hit["path"] for hit in driftline("search", "print parser", "--top-k", 100, "-n", 0, *at).json["results"]}
    assert not found & {"src/generated/code.py", "src/run.log", "docs/usage.md", *reasons}
    assert "latin.txt" in found

    def read_again() -> int:
        again = driftline("index", tree, "--max-file-bytes", 1000, "--json").json["sources"][0]
        assert {skip["path"]: skip["reason"] for skip in again["skipped"]} == reasons
        return int(again["bytes_read"])

    until(lambda: read_again() == 0, "the changes to be older than a tick of the clock")


# Runs.


def test_a_dry_run_predicts_the_next_run_and_writes_nothing(tree: Path, driftline: Driftline) -> None:
    def predicted_and_done() -> tuple[Any, Any]:
        reports = []
        for dry in (("--dry-run",), ()):
            before = files_below(tree)
            (source,) = driftline("index", tree, *dry, "--json").json["sources"]
            assert not dry or files_below(tree) == before
            kept = {name for name in source if name not in _AFTERWARDS}
            reports.append({name: source[name] for name in kept})
        return reports[0], reports[1]

    (tree / ".env").write_text("TOKEN=1\n")
    (tree / "logo.bin").write_bytes(b"\0\0")
    predicted, done = predicted_and_done()
    assert predicted == done
    assert done["new"] == 4
    write(tree, {"src/parser.py": "import sys\n", "src/new.py": "a = 1\n", "logo.bin": "now it is text\n"})
    os.utime(tree / "docs" / "usage.md", (1, 1))
    (tree / "empty.txt").unlink()
    predicted, done = predicted_and_done()
    assert predicted == done
    assert (done["new"], done["changed"], done["touched"], done["deleted"]) == (2, 1, 1, 1)
    predicted, done = predicted_and_done()
    assert predicted == done


def test_a_dry_run_predicts_a_refused_deletion(tmp_path: Path, driftline: Driftline) -> None:
    many = write(tmp_path / "many", {f"f{i}.txt": f"line {i}\n" for i in range(120)})
    assert states(driftline("index", many, "--json"))["new"] == 120
    for i in range(110):
        (many / f"f{i}.txt").unlink()
    for dry in (("--dry-run",), ()):
        refused = driftline("index", many, *dry, "--json")
        assert (refused.code, refused.json["error"]) == (3, "deletion_refused"), dry
        assert "--max-delete-fraction" in refused.json["message"]
    allowed = ("index", many, "--max-delete-fraction", 1, "--json")
    assert driftline(*allowed, "--dry-run").json["sources"][0]["deleted"] == 110
    assert states(driftline(*allowed)) == {"unchanged": 10, "deleted": 110, "lines_total": 10}


def test_an_empty_folder_in_place_of_the_indexed_one_deletes_nothing(
    tree: Path, tmp_path: Path, driftline: Driftline
) -> None:
    at = ("--workspace", tmp_path / "index")
    assert driftline("index", tree, *at).code == 0
    known = driftline("status", *at, "--json").json["total_documents"]
    disk = tree.rename(tree.with_name("disk"))
    tree.mkdir()  # where a disk was mounted
    for options in (("--dry-run",), (), ()):
        refused = driftline("index", tree, *at, *options, "--json")
        assert (refused.code, refused.json["error"]) == (3, "deletion_refused"), options
        assert driftline("status", *at, "--json").json["total_documents"] == known
    config = tmp_path / "driftline.toml"
    config.write_text(f'workspace = "{tmp_path}/index"\n[[sources]]\nuri = "{tree}"\n')
    (tree / ".driftlineignore").write_text("*\n")
    refused = driftline("index", "--all", "--config", config)
    assert refused.code == 3
    assert "their folder has no files to index" in refused.out
    assert "is indexed:" not in refused.err, "the index still has its documents"
    (tree / ".driftlineignore").unlink()
    tree.rmdir()
    disk.rename(tree)
    assert states(driftline("index", tree, *at, "--json")).get("deleted", 0) == 0
    for path in [each for each in tree.rglob("*") if each.is_file()]:
        path.unlink()
    assert states(driftline("index", tree, *at, "--json"))["deleted"] == known  # the same folder, emptied
    (tree / "a.txt").write_text("heron\n")
    assert driftline("index", tree, *at).code == 0
    tree.rename(tree.with_name("old"))
    tree.mkdir()
    (tree / "b.txt").write_text("egret\n")  # another folder, but not an empty one
    assert states(driftline("index", tree, *at, "--json"))["deleted"] == 1
    tree.rename(tree.with_name("older"))
    tree.mkdir()
    assert states(driftline("index", tree, *at, "--max-delete-fraction", 1, "--json"))["deleted"] == 1


def test_a_full_run_embeds_everything_again(tree: Path, driftline: Driftline) -> None:
    driftline("index", tree)
    assert states(driftline("index", tree, "--full", "--json")) == {
        "changed": 4,
        "lines_embedded": 6,
        "lines_total": 6,
    }
    assert states(driftline("index", tree, "--json")) == {"unchanged": 4, "lines_total": 6}


def test_unusual_names_are_indexed_and_found(tmp_path: Path, driftline: Driftline) -> None:
    names = ["with space.py", "quo'te\".py", "100%.py", "under_score.py", "emoji 🚀.py", "new\nline.py", "-dash.py"]
    tree = write(tmp_path / "odd 'tree' 100%", {name: f"value_{i} = {i}\n" for i, name in enumerate(names)})
    os.close(os.open(os.fsencode(tree) + b"/bad\xff.py", os.O_CREAT))
    outcome = driftline("index", tree, "--json")
    assert states(outcome)["new"] == len(names)
    assert [skip["reason"] for skip in outcome.json["sources"][0]["skipped"]] == ["undecodable name"]
    at = ("--workspace", tree / ".driftline", "--top-k", 100, "--json")
    assert {hit["path"] for hit in driftline("search", "value_1", *at).json["results"]} == set(names)
    for name in names:
        assert [hit["path"] for hit in driftline("search", "value_1", "--path", name, *at).json["results"]] == [name]
    assert driftline("index", tree).code == 0


@pytest.mark.parametrize(
    "source",
    ["missing", "web/src/parser.py", "nonsense://x/y", "s3://", ""],
    ids=["missing", "file", "scheme", "s3", "empty"],
)
def test_a_source_that_cannot_be_indexed_is_one_line_and_exit_code_2(
    tree: Path, tmp_path: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = driftline("index", source, "--workspace", tmp_path / "workspace")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1, outcome.err
    assert not (tmp_path / "workspace").exists()


def test_a_damaged_or_newer_workspace_and_another_model_are_refused(tree: Path, driftline: Driftline) -> None:
    driftline("index", tree)
    config = tree / ".driftline" / "_workspace.json"
    kept = config.read_text()
    at = ("--workspace", tree / ".driftline")
    for text, kind in (
        ("{", "corrupt_file"),
        ("[]", "corrupt_file"),
        (json.dumps(json.loads(kept) | {"format_version": 99}), "workspace_too_new"),
    ):
        config.write_text(text)
        for command in (("index", tree), ("status",), ("search", "x")):
            outcome = driftline(*command, *at, "--json")
            assert (outcome.code, outcome.json["error"]) == (2, kind), command
    config.write_text(json.dumps(json.loads(kept) | {"fingerprint": "0" * 20}))
    outcome = driftline("index", tree, *at, "--json")
    assert (outcome.code, outcome.json["error"]) == (2, "fingerprint_mismatch")
    assert "--reembed" in outcome.json["message"]
    config.write_text(kept)
    assert states(driftline("index", tree, *at, "--json")) == {"unchanged": 4, "lines_total": 6}


@pytest.mark.parametrize("model", ["no-such-model", "", "."])
def test_a_wrong_model_is_refused_before_anything_is_written(
    tree: Path, driftline: Driftline, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    from driftline.flows.commands.main import main

    monkeypatch.chdir(tree)
    assert main(["index", str(tree), "--model", model]) == 2
    assert not (tree / ".driftline").exists()


# Python API.


def test_the_python_api_does_what_the_command_line_does(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    workspace = str(tmp_path / "workspace")
    report = dl.index(str(tree), workspace=workspace, model=str(tiny_model))
    assert report.to_dict()["sources"][0]["new"] == 4
    opened = dl.open(workspace).storage
    stats = opened.stats()
    assert isinstance(stats, dl.WorkspaceStats)
    assert (stats.total_documents, stats.total_lines, stats.has_index) == (4, 6, False)
    assert isinstance(opened.config, dl.WorkspaceConfig)
    (hit,) = dl.search(opened, "class StoreAction:", top_k=1, n_lines=0).results
    assert (hit.path, hit.line, hit.context) == ("src/deep/actions.py", 1, ("class StoreAction:",))
    assert dl.search(workspace, "class StoreAction:", top_k=1).to_dict()["results"][0]["path"] == hit.path
    with pytest.raises(dl.DriftlineError):
        dl.open(str(tmp_path / "nothing"))


def test_document_states_are_reported_without_indexing(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    workspace = str(tmp_path / "workspace")
    write(tree, {"same.txt": "the same\n"})
    dl.index(str(tree), workspace=workspace, model=str(tiny_model))
    write(tree, {"src/parser.py": "import sys\n", "new.py": "a = 1\n"})
    os.utime(tree / "docs" / "usage.md", (1, 1))
    (tree / "src" / "deep" / "actions.py").unlink()
    requested = ["new.py", "src/parser.py", "docs/usage.md", "same.txt", "src/deep/actions.py", "never/was.py"]
    before = files_below(tmp_path / "workspace")
    assert dl.analyze_document_states(workspace, "source:web", requested) == [
        ("new.py", dl.DocumentState.NEW),
        ("src/parser.py", dl.DocumentState.CHANGED),
        ("docs/usage.md", dl.DocumentState.TOUCHED),
        ("same.txt", dl.DocumentState.UNCHANGED),
        ("src/deep/actions.py", dl.DocumentState.DELETED),
    ]
    assert files_below(tmp_path / "workspace") == before
    with pytest.raises(BadEntity):
        dl.analyze_document_states(workspace, "source:none", requested)


def test_a_source_keeps_the_limits_of_its_runs(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    write(tree, {"large.txt": "word\n" * 300, "large.csv": "word\n" * 300})
    workspace, model = str(tmp_path / "workspace"), str(tiny_model)

    def indexed(**options: Any) -> int:
        return dl.index(str(tree), workspace=workspace, model=model, **options).sources[0].documents_total

    def found() -> list[str]:
        names = ["large.txt", "large.csv"]
        return [path for path, _ in dl.analyze_document_states(workspace, "source:web", names)]

    assert indexed(max_file_bytes=1_000) == len(FILES) + 1
    assert found() == ["large.csv"]
    assert indexed() == indexed(branch="side") == len(FILES) + 1
    table = dl.open(workspace).storage.lines(dl.open(workspace).storage.entities()[0])
    table.open().delete("path = 'docs/usage.md'")
    report = dl.open(workspace).verify(repair=True)
    assert (report.findings, report.documents) == ([], len(FILES) + 1)
    assert indexed(max_file_bytes=2_000) == len(FILES) + 2
    assert indexed() == len(FILES) + 2
    assert found() == ["large.txt", "large.csv"]


def test_a_joined_source_keeps_its_limits(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    write(tree, {"src/large.txt": "word\n" * 300})
    workspace, model = str(tmp_path / "workspace"), str(tiny_model)
    (part,) = dl.index(str(tree / "src"), workspace=workspace, model=model, max_file_bytes=1_000).sources
    report = dl.index(str(tree), workspace=workspace, model=model, max_file_bytes=5_000)
    assert sorted(source.documents_total for source in report.sources) == [2, 2]
    assert part.documents_total == 2


def test_a_record_without_limits_has_the_default_ones(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    workspace = str(tmp_path / "workspace")
    dl.index(str(tree), workspace=workspace, model=str(tiny_model), max_file_bytes=1)
    (path,) = Path(workspace).rglob("_source.json")
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in fields.items() if not name.startswith("max_")}))
    (source,) = dl.index(str(tree), workspace=workspace, model=str(tiny_model)).sources
    assert source.documents_total == len(FILES)


def test_the_states_of_files_read_each_record_once(
    tree: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [write(tmp_path / f"part{number}", {"a/b.txt": "word\n"}) for number in range(4)]
    workspace = str(tmp_path / "workspace")
    dl.index([str(tmp_path / "web"), *map(str, folders)], workspace=workspace, model=str(tiny_model))
    opened, reads, closed = dl.open(workspace), list[object](), list[object]()
    read, close = Workspace.source, Source.close

    def counted(self: Workspace, entity: Entity) -> SourceRecord | None:
        reads.append(entity)
        return read(self, entity)

    def noted(self: Source) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(Workspace, "source", counted)
    monkeypatch.setattr(Source, "close", noted)
    found = dl.analyze_document_states([folder / "a/b.txt" for folder in folders], opened)
    assert [state for _, state in found] == [dl.DocumentState.UNCHANGED] * 4
    assert len(reads) == len(set(reads)) == 5
    assert len(closed) == 4


def test_a_program_stores_its_own_lines(tree: Path, tmp_path: Path, tiny_model: Path) -> None:
    dl.index(str(tree), workspace=str(tmp_path / "workspace"), model=str(tiny_model))
    workspace = dl.open(str(tmp_path / "workspace")).storage
    store = dl.LineStore(workspace, "source:notes")
    vectors = np.eye(4, 24, dtype=np.float32) * 5
    lines = [dl.LineEmbedding(f"note{i // 2}", i % 2, vectors[i], f"text {i}") for i in range(4)]
    assert store.upsert_line_embeddings(lines, [dl.DocMeta("note0", 10, 20), dl.DocMeta("bare", 1, 1)]) == 4
    found = store.search_line_embeddings(vectors[2])
    assert found["path"][0].as_py() == "note1"
    assert found["distance"][0].as_py() == pytest.approx(0, abs=1e-6)
    assert len(found) == 4
    assert len(store.search_line_embeddings(vectors[2], top_k=2)) == 2
    assert len(store.search_line_embeddings(vectors[2], top_k=0)) == 0
    assert set(store.search_line_embeddings(vectors[2], paths=["note0"])["path"].to_pylist()) == {"note0"}
    assert len(store.search_line_embeddings(vectors[2], paths=[])) == 0
    assert len(store.search_line_embeddings(vectors[2], max_distance=0.5)) == 1
    assert dl.search(workspace, "parser").results  # the files' lines still exist
    assert store.upsert_line_embeddings([dl.LineEmbedding("note1", 7, vectors[3], "replaced")]) == 1
    assert sorted(store.search_line_embeddings(vectors[3])["text"].to_pylist()) == ["replaced", "text 0", "text 1"]
    assert workspace.stats().total_lines == 6 + 3
    assert store.delete_documents(["note0", "unknown"]) == 1
    assert store.search_line_embeddings(vectors[3])["text"].to_pylist() == ["replaced"]
    assert store.delete_documents([]) == 0
    assert dl.search(workspace, "replaced", n_lines=3, top_k=100).results
    with pytest.raises(UsageError, match=r"shape \(3,\)"):
        store.upsert_line_embeddings([dl.LineEmbedding("x", 0, np.ones(3, np.float32), "x")])
    with pytest.raises(UsageError, match=r"shape \(3,\)"):
        store.search_line_embeddings(np.ones(3, np.float32))
    with pytest.raises(UsageError):
        store.search_line_embeddings(vectors[0], top_k=-1)


@pytest.mark.parametrize(("locale", "coerced"), [("C", True), ("C", False), ("POSIX", False), ("C.UTF-8", False)])
def test_a_run_under_any_locale_keeps_every_document(
    tmp_path: Path, driftline: Driftline, tiny_model: Path, locale: str, coerced: bool
) -> None:
    tree = tmp_path / "grün"
    tree.mkdir()
    for name in ("grüße.txt", "日本.txt", "a.txt"):
        (tree / name).write_text("the heron lands\n")
    environment = dict(os.environ) | {"LC_ALL": locale}
    if not coerced:
        environment |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = ["index", str(tree), "--workspace", str(tmp_path / "ws"), "--indexes", "none", "--json"]
    assert driftline(*command).json["sources"][0]["new"] == 3
    program = [sys.executable, "-m", "driftline", *command, "--model", str(tiny_model)]
    run = subprocess.run(program, env=environment, capture_output=True, check=True)
    (source,) = json.loads(run.stdout)["sources"]
    assert (source["new"], source["unchanged"] + source["touched"], source["deleted"]) == (0, 3, 0)


def test_a_process_with_another_encoding_of_names_indexes_nothing(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    program = "import sys, driftline as dl; dl.index(sys.argv[1], workspace=sys.argv[1] + '/ws')"
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert "UsageError: This process decodes file names as ascii" in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_joining_an_index_above_is_reported(driftline: Driftline, tree: Path) -> None:
    """The index above may have been forgotten; a project's folders and named workspaces are expected."""
    clone = tree.parent / "clone"
    subprocess.run(["git", "init", "-q", clone], check=True)
    (clone / ".gitignore").write_text("*.pyc\n")
    (clone / "inner").mkdir()
    (clone / "inner/note.md").write_text("a note\n")
    assert driftline("index", tree, "--workspace", tree.parent / ".driftline").err == ""
    told = driftline("index", clone).err
    assert str(tree.parent / ".driftline") in told
    assert f"--workspace {clone}/.driftline" in told
    assert driftline("index", clone).err == ""
    assert driftline("index", tree / "docs").err == ""
    assert driftline("index", clone, "--workspace", clone / ".driftline").err == ""
    assert driftline("index", clone / "inner").err == ""


def test_pages_of_documents_read_only_their_part_of_the_manifests(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a/b/1.py", "a/b/2.md", "a/c.py", "a.py", "b/1.py", "é.py"]
    trees = [write(tmp_path / name, dict.fromkeys(names, "word\n")) for name in ("one", "two", "zero")]
    workspace = str(tmp_path / "workspace")
    dl.index([*map(str, trees)], workspace=workspace, model=str(tiny_model))
    storage, records, lows = dl.open(workspace).storage, list[object](), list[str]()
    read, reduce = Workspace.readable_source, Manifest.reduce

    def counted(self: Workspace, entity: Entity) -> SourceRecord | None:
        records.append(entity.id)
        return read(self, entity)

    def noted(self: Manifest, work: Any, low: str = "", high: str | None = None, **options: Any) -> Any:
        lows.append(low)
        return reduce(self, work, low, high, **options)

    monkeypatch.setattr(Workspace, "readable_source", counted)
    monkeypatch.setattr(Manifest, "reduce", noted)
    for dirs, exts in ([], []), (["a"], []), (["a/b", "a", "b"], []), ([], ["py"]), (["a", "b"], [".PY"]):
        whole = document_page(storage, dirs=dirs, exts=exts, limit=100)
        assert whole.next is None
        kept = [name for name in sorted(names) if not dirs or name.startswith(("a/", "b/" if "b" in dirs else "a/"))]
        kept = [name for name in kept if not exts or name.endswith(".py")]
        assert [each.path for each in whole.documents] == kept * 3
        found, after = list[object](), None
        for _ in range(20):
            page = document_page(storage, dirs=dirs, exts=exts, limit=2, after=after)
            found, after = [*found, *page.documents], page.next
            if after is None:
                break
        assert found == [*whole.documents]
    records.clear()
    lows.clear()
    page = document_page(storage, limit=2, after=DocumentCursor("org:default/project:default/source:two", "a.py"))
    assert [each.path for each in page.documents] == ["a/b/1.py", "a/b/2.md"]
    assert (records, lows) == (["two"], ["a.py\0"])
