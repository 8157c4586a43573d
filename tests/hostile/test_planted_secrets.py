"""Credentials planted in documents are neither stored nor shown by any interface, but their lines are found."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import lance
import pyarrow.parquet as pq
import pytest
from mcp import Client

import driftline as dl
from driftline.flows.web.api import Reader
from driftline.flows.web.server import web_server
from driftline.storage.redaction import KNOWN, STRICT
from driftline.storage.workspace.workspace import Workspace
from driftline.tasks.embedding.embedder import WordTableEmbedder
from driftline.tasks.search.documents import read_excerpt
from tests.support.documents import archive, docx, paragraph, pdf
from tests.support.mcp import make_server
from tests.support.planted import line_of, planted
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.web import ask, serving

Driftline = Callable[..., Any]
LINES = [line_of(rule.name) for rule in STRICT]
ALL = [secret for _, secret in planted().values()]
SECRETS = [secret for rule, (_, secret) in planted().items() if rule != "random-value"]
"""The credentials replaced in mode ``known``."""
SOURCE = "org:default/project:default/source:tree"


def plant(root: Path, lines: list[str] = LINES) -> Path:
    """Write a tree that contains each credential in several formats."""
    root.mkdir()
    code = "\n".join(f"value = {line!r}" for line in lines)
    files: dict[str, str | bytes] = {
        "notes.md": "# Notes\n\n" + "\n".join(lines) + "\n",
        "settings.py": f"def connect():\n    return 1\n\n{code}\n",
        "minified.js": ";".join(lines) + "\n",
        "heron.1.gz": gzip.compress("\n".join(lines).encode()),
        "egret.8.gz": gzip.compress(".TH EGRET 8\n.SH {}\n{}\n".format(lines[0], "\n.PP\n".join(lines)).encode()),
        "nb.ipynb": printing(lines),
        "page.html": "<html><body>" + "".join(f'<h2 id="{line[13:]}">{line}</h2>' for line in lines) + "</body>",
        "chart.pdf": pdf(*(tuple(lines[at : at + 9]) for at in range(0, len(lines), 9)), bookmarks=((lines[0], 0),)),
        "bundle.zip": archive({"inner/notes.txt": "\n".join(lines)}),
        "report.docx": docx("".join(paragraph(escape(line)) for line in lines)),
        "mail.eml": f"From: a@b.c\nTo: d@e.f\nSubject: {lines[0]}\nMessage-ID: <1@x>\n\n" + "\n".join(lines),
    }
    minute_ago = time.time() - 60
    for name, data in files.items():
        (root / name).write_bytes(data.encode() if isinstance(data, str) else data)
        os.utime(root / name, (minute_ago, minute_ago))
    return root


def printing(lines: list[str]) -> bytes:
    """Return a notebook whose cells print lines."""
    cells = [{"cell_type": "code", "source": "show()", "outputs": [{"text": line}]} for line in lines]
    return json.dumps({"nbformat": 4, "cells": cells}).encode()


def stored(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield everything in a workspace: the bytes of each file, and the values of each table (tables may be
    compressed).
    """
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            yield str(path), data.decode("latin-1")
            if data.startswith(b"\x1f\x8b"):
                yield str(path), gzip.decompress(data).decode("latin-1")
            if data.startswith(b"PAR1"):
                yield str(path), repr(pq.read_table(path).to_pydict())
        elif path.name.endswith(".lance") or (path / "_versions").is_dir():
            dataset = lance.dataset(str(path))
            for version in dataset.versions():
                yield str(path), repr(dataset.checkout_version(version["version"]).to_table().to_pydict())


def leaked(text: str, secrets: list[str]) -> list[str]:
    """Return the secrets in a text, plain or encoded as in JSON or a URL."""
    return [s for s in secrets if s in text or json.dumps(s)[1:-1] in text or quote(s, safe="") in text]


def check_stored(folder: Path, secrets: list[str]) -> None:
    seen = [*stored(folder)]
    assert sum("heron" in text for _, text in seen) > 1, "the lines themselves are there"
    assert {path: found for path, text in seen if (found := leaked(text, secrets))} == {}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("planted") / "tree")


@pytest.fixture(scope="module")
def workspace(tree: Path, tiny_model: Path) -> Path:
    location = tree.parent / "ws"
    run = dl.index(str(tree), workspace=str(location), model=str(tiny_model), archives=True, notebook_outputs=True)
    (report,) = run.sources
    assert set(report.redacted) == {rule.name for rule in KNOWN}
    assert all(count >= 11 for count in report.redacted.values())  # in each file
    return location


def test_credentials_are_not_stored(workspace: Path) -> None:
    check_stored(workspace, SECRETS)


def test_the_command_line_shows_no_credentials(tree: Path, workspace: Path, driftline: Driftline) -> None:
    at = ("--workspace", workspace)
    shown = [
        driftline("search", "deploy heron egret", "--top-k", 60, *at, *more)
        for more in ((), ("--json",), ("-n", "30"), ("--mode", "text"), ("-F", "heron"), ("-E", "redacted:"))
    ]
    shown += [
        driftline("sql", f"SELECT * FROM {name}", "--limit", "5000", "--json", *at) for name in ("lines", "documents")
    ]
    shown += [driftline("grep", "deploy heron", tree, "-n", "9", "--top-k", 60), driftline("status", *at)]
    shown += [driftline("runs", "--json", *at), driftline("verify", *at)]
    for each in shown:
        assert each.out
        assert leaked(each.out + each.err, SECRETS) == []
    assert "[redacted:github]" in "".join(each.out for each in shown)
    for secret in SECRETS[:5]:
        assert driftline("search", "-F", secret, "--json", *at).json["results"] == []


def test_their_lines_are_found_by_their_words_and_the_name_of_the_rule(workspace: Path) -> None:
    opened = dl.open(str(workspace))
    (hit, *_) = opened.search("fixed", fixed=("[redacted:github]",), paths=("notes.md",)).results
    assert hit.text == "deploy heron [redacted:github] # of the egret"
    assert (hit.freshness, hit.line_now) == ("fresh", hit.line)
    excerpt = read_excerpt(Workspace.open(str(workspace)), "notes.md", hit.line, n_lines=2)
    assert excerpt.current
    assert hit.text in excerpt.lines


def test_sources_that_share_a_batch_are_redacted_and_counted_one_by_one(tmp_path: Path, tiny_model: Path) -> None:
    (line, secret) = next((line_of(rule.name), planted()[rule.name][1]) for rule in KNOWN if rule.name == "github")
    texts = {
        "clean.md": "nothing to hide\n",
        "lines.md": f"{line}\n{line}\n",
        "anchor.html": f'<h2 id="{line}">one</h2>',
    }
    for name, text in texts.items():
        (tmp_path / name / "docs").mkdir(parents=True)
        (tmp_path / name / "docs" / name).write_text(text + "\nsome heron lines\n" * 400)
    report = dl.index(
        [str(tmp_path / name) for name in texts], workspace=str(tmp_path / "ws"), model=str(tiny_model), workers=1
    )
    counts = {Path(source.uri).name: source.redacted for source in report.sources}
    assert (counts["clean.md"], counts["lines.md"]) == ({}, {"github": 2})
    assert counts["anchor.html"]["github"] >= 1
    assert secret not in "".join(hit.text for hit in dl.search(str(tmp_path / "ws"), "github", mode="text").results)


def test_a_changed_document_is_judged_by_its_redacted_lines(tmp_path: Path, tiny_model: Path) -> None:
    root = plant(tmp_path / "tree")
    dl.index(str(root), workspace=str(tmp_path / "ws"), model=str(tiny_model))
    changed = (root / "notes.md").read_text().replace("# Notes\n", "# Notes\n\nmore\n")
    (root / "notes.md").write_text(changed)
    opened = dl.open(str(tmp_path / "ws"))
    (hit, *_) = opened.search("fixed", fixed=("[redacted:github]",), paths=("notes.md",)).results
    assert (hit.freshness, hit.line_now) == ("moved", hit.line + 2)
    report = opened.search("deploy heron", top_k=100, n_lines=9)
    assert leaked(json.dumps(report.to_dict()), SECRETS) == []


def test_the_server_shows_no_credentials(workspace: Path) -> None:
    reader = Reader(Workspace.open(str(workspace)).reread)
    reader.warm()
    with serving(web_server(reader, "127.0.0.1", 0)) as location:
        names = ("notes.md", "settings.py", "heron.1.gz", "nb.ipynb", "chart.pdf", "bundle.zip!/inner/notes.txt")
        targets = [f"/d/{SOURCE}/{name}" for name in names]
        targets += ["/?q=deploy+heron", "/?q=heron&fixed=heron", "/index", "/metrics"]
        targets += ["/api/v1/search?q=deploy+heron&top_k=50&n_lines=9", "/api/v1/search?q=x&fixed=heron&top_k=50"]
        targets += [f"/api/v1/excerpt?path=notes.md&line={line}&n_lines=30&source={SOURCE}" for line in (20, 50)]
        answers = {target: ask(location, target) for target in targets}
    assert {target: answer.body[:300] for target, answer in answers.items() if answer.status != 200} == {}
    assert {
        target: leaked(answer.body, SECRETS) for target, answer in answers.items() if leaked(answer.body, SECRETS)
    } == {}
    assert sum("[redacted:" in answer.body for answer in answers.values()) >= 8


def test_the_tools_of_agents_show_no_credentials(workspace: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search_lines", {"query": "deploy heron", "top_k": 50, "n_lines": 9}),
        ("grep_lines", {"pattern": "heron"}),
        *(("read_context", {"path": name, "line": 30, "n_lines": 40}) for name in ("notes.md", "settings.py")),
        ("read_context", {"path": "nb.ipynb", "line": 30, "n_lines": 40}),
    ]

    async def talk() -> list[Any]:
        async with Client(make_server(Workspace.open(str(workspace))), read_timeout_seconds=PATIENCE_SECONDS) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    for outcome in asyncio.run(talk()):
        assert not outcome.is_error, outcome
        text = repr(outcome)
        assert "[redacted:" in text
        assert leaked(text, SECRETS) == []


def test_another_mode_reads_the_documents_again_and_only_once(
    tmp_path: Path, tiny_model: Path, driftline: Driftline, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="driftline")
    root, location = plant(tmp_path / "tree"), tmp_path / "ws"

    def run(*options: str) -> dict[str, Any]:
        more = ("--model", tiny_model, "--archives", "--notebook-outputs") if not location.exists() else ()
        report = driftline("index", root, "--workspace", location, "--json", *more, *options).json
        source: dict[str, Any] = report["sources"][0]
        return source

    assert run("--redact", "off")["redacted"] == {}
    with pytest.raises(AssertionError):
        check_stored(location, SECRETS)
    assert run()["changed"] == 0  # a source keeps its mode
    known = run("--redact", "known")
    assert (known["changed"], len(known["redacted"])) == (11, len(KNOWN))
    strict = run("--redact", "strict")
    assert (strict["changed"], set(strict["redacted"])) == (11, {rule.name for rule in STRICT})
    again = run()
    assert (again["changed"], again["bytes_read"], again["redacted"]) == (0, 0, {})
    # Superseded versions keep the text from earlier modes until maintenance removes them.
    assert driftline("compact", "--workspace", location, "--retention-seconds", "0", "--max-deltas", "0").code == 0
    assert driftline("cleanup", "--workspace", location, "--max-age-seconds", "0", "--delete").code == 0
    check_stored(location, ALL)
    assert leaked(caplog.text, ALL) == []


def test_a_wrong_mode_is_refused_before_anything_is_written(
    tmp_path: Path, tiny_model: Path, driftline: Driftline
) -> None:
    (tmp_path / "a.txt").write_text("a line\n")
    outcome = driftline("index", tmp_path, "--workspace", tmp_path / "ws", "--redact", "all")
    assert outcome.code == 2
    with pytest.raises(dl.UsageError, match="Unknown redact: all"):
        dl.index(str(tmp_path), workspace=str(tmp_path / "ws"), model=str(tiny_model), redact="all")  # type: ignore[arg-type]
    assert not (tmp_path / "ws").exists()


KEY = f"-----BEGIN RSA {'PRIVATE'} KEY-----\n{'MIIEowIBAAKCAQEA' * 4}\n-----END RSA {'PRIVATE'} KEY-----"


def test_credentials_are_not_stored_in_memory(tmp_path: Path, tiny_model: Path, driftline: Driftline) -> None:
    location, embedder = tmp_path / "ws", WordTableEmbedder.open(str(tiny_model))
    with dl.MemoryStore(str(location), embedder=lambda: embedder) as store:
        for at, line in enumerate(LINES):
            store.store(f"small-{at}", line, "org:acme", {"note": line, "heron": [line]})
            store.store(f"large-{at}", {"text": [line, {line: 1}, "egret " * 500]}, "org:acme/project:web")
        store.store("small-0", {"again": LINES[1]}, "org:acme", MappingProxyType({"note": LINES[1]}))
        store.store("key", f"heron\n{KEY}\negret", "org:acme")
        shown = [repr(store.search_memory("heron egret", top_k=200))]
    check_stored(location, [*SECRETS, "MIIEowIBAAKCAQEA"])
    where = ("--workspace", location, "--json")
    shown += [driftline("memory", "get", key, *where).out for key in ("small-3", "large-3", "key")]
    assert all("[redacted:" in each for each in shown)
    assert "heron\\n[redacted:private-key]\\negret" in shown[3]
    assert leaked("".join([*shown, driftline("sql", "SELECT * FROM memory", *where).out]), SECRETS) == []


def test_a_program_or_its_settings_choose_what_memory_redacts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (line,) = (line for line, rule in zip(LINES, STRICT, strict=True) if rule.name == "random-value")
    for mode in ("off", "known", "strict"):
        backend = dl.create_ltm_backend(
            storage_uri=str(tmp_path / mode), settings={"redact": mode, "embedding": {"enabled": False}}
        )
        with backend:
            assert backend.store("a", [line, LINES[20]])["success"]
            (strict, known) = backend.retrieve("a")["value"]
        assert ("[redacted:" in strict, "[redacted:" in known) == (mode == "strict", mode != "off")
    assert leaked(caplog.text, ALL) == []
    assert f"1 {STRICT[20].name}" in caplog.text


def test_a_key_of_memory_with_a_credential_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with dl.MemoryStore(str(tmp_path / "ws")) as store, pytest.raises(dl.BadEntry, match="credential") as refused:
        store.store(LINES[20], "x", "org:acme")
    assert leaked(str(refused.value), SECRETS) == []
    with pytest.raises(dl.UsageError, match="Unknown redaction mode 'all'"):
        dl.MemoryStore(str(tmp_path / "ws"), redact="all")  # type: ignore[arg-type]


def test_a_search_without_an_index_redacts_as_configured(tmp_path: Path, driftline: Driftline) -> None:
    (tmp_path / "a.txt").write_text("\n".join(LINES))
    shown = {
        mode: driftline("grep", "deploy heron", tmp_path / "a.txt", "--redact", mode, "--top-k", 200, "-n", 0).out
        for mode in ("off", "known", "strict")
    }
    assert (leaked(shown["known"], SECRETS), leaked(shown["strict"], ALL)) == ([], [])
    assert leaked(shown["off"], SECRETS)
