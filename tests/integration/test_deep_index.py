"""``driftline index --deep``: definition embeddings, and searches that combine them with words and lines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import driftline as dl
from driftline.flows.runs.cleanup import CleanupRequest, clean_workspace
from driftline.flows.runs.compact import CompactRequest, compact_workspace
from driftline.flows.runs.remove import remove_source
from driftline.flows.runs.verify_and_repair import VerifyRequest, verify_workspace
from driftline.storage.embedding import DeepModel
from driftline.storage.entities import Entity
from driftline.storage.errors import MissingExtra, UsageError
from driftline.storage.lines.definition_table import DeepTable, schema
from driftline.storage.objects.store import ObjectStore
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding import transformer
from tests.faults.faults import Crash, Faults, Mode, injected

Driftline = Callable[..., Any]
ENTITY = Entity.parse("source:tree")
REFUND = ("shop/orders.py", "refund")
QUESTION = "how do customers get their money back?"
FILES = {
    "shop/orders.py": "def refund(order):\n    # Reimburses the buyer.\n    ledger.reverse(order.payment)\n",
    "shop/columns.py": "def width(rows):\n    # Aligns back and front of a table.\n    return max(map(len, rows))\n",
    "shop/names.txt": "get their names back\n",
    "food/soup.md": "# Soup\n\nBoil the carrots, add salt and serve.\n",
    "net/retry.py": "def retry(call, times):\n    for _ in range(times):\n        call()\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    return tmp_path / "tree"


@pytest.fixture
def workspace(tmp_path: Path) -> str:
    return str(tmp_path / "ws")


def index(tree: Path, workspace: str, **options: Any) -> int:
    """Index ``tree`` and return the number of definitions embedded."""
    return dl.index(str(tree), workspace=workspace, **options).definitions_embedded


def _model(workspace: str) -> DeepModel:
    model = Workspace.open(workspace).deep_model
    assert model is not None
    return model


def deep_documents(workspace: str) -> set[str]:
    return set(Workspace.open(workspace).deep(ENTITY, _model(workspace)).documents(ENTITY)["path"].to_pylist())


def rows(workspace: str, path: str) -> list[dict[str, Any]]:
    """Return the rows of a document's definitions."""
    opened = Workspace.open(workspace)
    model = opened.deep_model
    assert model is not None
    found: list[dict[str, Any]] = opened.deep(ENTITY, model).open().to_table(filter=f"path = '{path}'").to_pylist()
    return found


def found(workspace: str, **options: Any) -> list[tuple[str, str | None]]:
    return [(hit.path, hit.symbol) for hit in dl.search(workspace, QUESTION, **options).results]


def test_a_question_finds_a_definition_without_a_common_word(tree: Path, workspace: str, driftline: Driftline) -> None:
    assert driftline("index", tree, "--workspace", workspace, "--deep", "--json").json["definitions_embedded"] == 4
    answer = driftline("search", QUESTION, "--workspace", workspace, "--explain", "--json").json
    assert answer["explanation"]["seconds"]["deep"] > 0
    locations = [(hit["path"], hit["line"], hit["symbol"]) for hit in answer["results"][:2]]
    assert ("shop/orders.py", 1, "refund") in locations
    assert [hit["rank"] for hit in answer["results"]] == [*range(1, len(answer["results"]) + 1)]
    without = found(workspace, deep=False)
    assert REFUND not in without or without.index(REFUND) > found(workspace).index(REFUND)
    assert "deep" not in dl.search(workspace, QUESTION, mode="text", explain=True).explanation.seconds  # type: ignore[union-attr]
    assert REFUND not in found(workspace, where=dl.LineFilter(exts=("md",)))
    assert ("food/soup.md", "Soup") in found(workspace, kinds=["section"])


@pytest.mark.usefixtures("forked_workers")
def test_a_run_embeds_the_definitions_of_what_has_changed(tree: Path, workspace: str) -> None:
    assert index(tree, workspace, deep=True) == 4
    assert index(tree, workspace) == 0
    (tree / "net/retry.py").write_text("def again(call):\n    return call()\n\n\ndef once(call):\n    return call()\n")
    (tree / "shop/columns.py").unlink()
    assert index(tree, workspace) == 2
    assert deep_documents(workspace) == {name for name in FILES if name != "shop/columns.py"}
    assert index(tree, workspace, executor="local", workers=1, full=True) == 0  # the content is the same
    assert REFUND in found(workspace)[:2]


def test_only_rows_of_deleted_documents_are_removed(tmp_path: Path) -> None:
    table = DeepTable(ObjectStore.open(str(tmp_path)), ENTITY.tenant, "f" * 20)
    table.create(4)

    def row(path: str, digest: str) -> pa.Table:
        values = {"entity": str(ENTITY), "path": path, "hash": digest, "parent_dirs": [], "vector": [1.0] * 4}
        numbers = {"line": 0, "first": 0, "last": 1}
        texts = dict.fromkeys(("ext", "kind", "name", "text_hash"), "x")
        return pa.Table.from_pylist([texts | numbers | values], schema=schema(4))

    table.commit(ENTITY, table.write_fragments(pa.concat_tables([row("a.py", "1"), row("b.py", "2")])))
    table.commit(ENTITY, table.write_fragments(row("b.py", "1")))  # "mv a.py b.py"
    table.commit(ENTITY, [], [("a.py", "1"), ("b.py", "2")])
    assert [(each["path"], each["hash"]) for each in table.documents(ENTITY).to_pylist()] == [("b.py", "1")]


def test_an_unchanged_definition_keeps_its_vector_in_a_changed_document(tree: Path, workspace: str) -> None:
    orders = tree / "shop/orders.py"
    orders.write_text(FILES["shop/orders.py"] + "\n\ndef ship(order):\n    post.send(order.parcel)\n")
    assert index(tree, workspace, deep=True) == 5
    before = rows(workspace, "shop/orders.py")
    orders.write_text("\n\n" + orders.read_text().replace("post.send", "courier.send"))
    assert index(tree, workspace) == 1
    after = rows(workspace, "shop/orders.py")
    assert sorted((row["name"], row["line"]) for row in after) == [("refund", 2), ("ship", 7)]
    kept = {row["name"]: row["vector"] for row in after if row["vector"] in [each["vector"] for each in before]}
    assert set(kept) == {"refund"}


def test_definitions_of_documents_that_have_changed_since_are_left_out(
    tree: Path, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(tree, workspace, deep=True)
    (tree / "shop/orders.py").write_text("def cook(order):\n    # Boils the carrots.\n    kitchen.boil(order)\n")
    with monkeypatch.context() as patch:
        patch.setattr("driftline.flows.runs.index.deepen", lambda *arguments: None)
        index(tree, workspace)
    assert REFUND not in found(workspace)
    index(tree, workspace)
    assert REFUND not in found(workspace)


def test_a_run_that_is_interrupted_anywhere_is_completed_by_the_next(tree: Path, tmp_path: Path) -> None:
    with injected(Faults()) as undisturbed:
        index(tree, str(tmp_path / "undisturbed"), deep=True, indexes="none")
    first = next(at for at, name in enumerate(undisturbed.log) if "deep" in name)
    for at in range(first, len(undisturbed.log)):
        for mode in (Mode.CRASH_AFTER, Mode.FAIL):
            workspace = str(tmp_path / f"{mode}-{at}")
            with injected(Faults(mode, at)), suppress(Crash, dl.DriftlineError, OSError):
                index(tree, workspace, deep=True, indexes="none")
            index(tree, workspace, indexes="none")
            assert deep_documents(workspace) == set(FILES), (mode, undisturbed.log[at])
            assert REFUND in found(workspace)[:2]


def test_definitions_are_compacted_cleaned_and_verified_with_the_rest(tree: Path, workspace: str) -> None:
    index(tree, workspace, deep=True)
    other = tree.parent / "other"
    other.mkdir()
    (other / "pay.py").write_text(FILES["shop/orders.py"])
    index(other, workspace)
    remove_source(workspace, "source:other")
    compact_workspace(CompactRequest(workspace, max_deltas=0, retention_seconds=0.0, workers=1))
    table = DeepTable(ObjectStore.open(workspace), ENTITY.tenant, _model(workspace).fingerprint).open()
    assert (len(table.get_fragments()), len(table.versions())) == (1, 1)
    assert {*table.to_table(columns=["entity"])["entity"].to_pylist()} == {str(ENTITY)}
    report = clean_workspace(CleanupRequest(workspace, 0.0, dry_run=False))
    assert (report.skipped, report.foreign) == ([], ())
    assert verify_workspace(VerifyRequest(workspace)).findings == []
    assert REFUND in found(workspace)[:2]
    index(tree, workspace, deep=False)
    clean_workspace(CleanupRequest(workspace, 0.0, dry_run=False))
    assert not [info for info in Workspace.open(workspace).objects.list() if "deep_embeddings" in info.path]
    with pytest.raises(UsageError, match="no definition embeddings"):
        found(workspace, deep=True)


def test_a_branch_has_its_own_definitions(tree: Path, workspace: str) -> None:
    index(tree, workspace, deep=True)
    (tree / "shop/orders.py").write_text("def cook(order):\n    # Boils the carrots.\n    kitchen.boil(order)\n")
    (tree / "shop/returns.py").write_text("def pay_back(buyer):\n    # Reimburses a customer.\n    bank.send(buyer)\n")
    assert index(tree, workspace, branch="topic") == 2
    on_main, on_topic = found(workspace), found(workspace, branch="topic")
    assert REFUND in on_main[:2]
    assert ("shop/returns.py", "pay_back") in on_topic[:2]
    assert REFUND not in on_topic
    assert ("shop/returns.py", "pay_back") not in on_main
    (tree / "shop/returns.py").unlink()
    (tree / "shop/orders.py").write_text(FILES["shop/orders.py"])
    (tree / "net/retry.py").write_text("def again(call):\n    # Calls it.\n    return call()\n")
    index(tree, workspace)
    assert sorted(row["name"] for row in rows(workspace, "net/retry.py")) == ["again", "retry"], (
        "the branch has the old one"
    )
    (tree / "food/soup.md").write_text("# Stew\n\nBoil the carrots.\n")
    index(tree, workspace)
    (tree / "food/soup.md").write_text("# Broth\n\nBoil the carrots.\n")
    index(tree, workspace)
    assert sorted(row["name"] for row in rows(workspace, "food/soup.md")) == ["Broth", "Soup"]


def test_lines_are_indexed_and_searched_without_the_extra(
    tree: Path, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(tree, workspace, deep=True)

    def missing() -> None:
        raise MissingExtra(
            "Definition embeddings need optional dependencies", "onnx", "Run: pip install 'driftline[deep]'"
        )

    monkeypatch.setattr(transformer, "require_extra", missing)
    (tree / "new.py").write_text("def added():\n    pass\n")
    assert index(tree, workspace) == 0
    assert found(workspace)
    with pytest.raises(MissingExtra):
        found(workspace, deep=True)
    with pytest.raises(MissingExtra):
        index(tree, workspace, deep=True)
    monkeypatch.undo()
    assert index(tree, workspace) == 1
