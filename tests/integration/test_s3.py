"""Sources and workspaces on a real S3 server, via the command line, configured only by the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import driftline as driftline_api
from driftline.flows.config.memory_settings import find_memory, load_memory_configuration, open_memory
from driftline.storage.documents import DocumentState
from tests.support.processes import forked_command

FILES = {
    "a/apple.py": "import argparse\nparser = argparse.ArgumentParser()\n",
    "a/banana.txt": "convert the option strings to a namespace\n",
    "b/odd name %41 ü.md": "help for a subcommand\n\nusage of the program\n",
    "root.py": "print('mutually exclusive group')\n",
}


@dataclass(frozen=True)
class Tree:
    """A source that tests can change, on disk or in a bucket."""

    uri: str
    server: Any

    def write(self, files: Mapping[str, str]) -> Tree:
        for path, text in files.items():
            if self.uri.startswith("s3://"):
                self.server.client().put_object(Bucket=self.server.bucket, Key=self._key(path), Body=text.encode())
            else:
                Path(self.uri, path).parent.mkdir(parents=True, exist_ok=True)
                Path(self.uri, path).write_text(text)
        return self

    def remove(self, path: str) -> None:
        if self.uri.startswith("s3://"):
            self.server.client().delete_object(Bucket=self.server.bucket, Key=self._key(path))
        else:
            Path(self.uri, path).unlink()

    def _key(self, path: str) -> str:
        return f"{self.uri.removeprefix(f's3://{self.server.bucket}/')}/{path}"


@pytest.fixture
def fresh_prefix(s3_environment: Any) -> Callable[[], str]:
    return lambda: f"s3://{s3_environment.bucket}/{uuid.uuid4().hex}"


def counts(report: Mapping[str, Any]) -> dict[str, int]:
    (source,) = report["sources"]
    names = ("new", "changed", "touched", "unchanged", "deleted", "lines_embedded", "lines_total")
    return {name: source[name] for name in names if source[name]}


@pytest.mark.parametrize(
    ("source_kind", "workspace_kind"), [("local", "s3"), ("s3", "local"), ("s3", "s3")], ids="{0[0]}-{0[1]}".format
)
def test_a_source_is_indexed_wherever_it_and_its_index_are(
    source_kind: str,
    workspace_kind: str,
    tmp_path: Path,
    s3_environment: Any,
    fresh_prefix: Callable[[], str],
    tiny_model: Path,
    driftline: Callable[..., Any],
) -> None:
    locations = {"local": str(tmp_path / "{}"), "s3": fresh_prefix() + "-{}"}
    tree = Tree(locations[source_kind].format("tree"), s3_environment).write(FILES)
    at = ["--workspace", locations[workspace_kind].format("workspace"), "--json"]

    def index() -> dict[str, int]:
        outcome = driftline("index", tree.uri, "--model", tiny_model, *at)
        assert outcome.code == 0, outcome.out
        return counts(outcome.json)

    def best(query: str) -> str:
        found = driftline("search", query, *at).json["results"]
        return f"{found[0]['path']}:{found[0]['line']}"

    assert index() == {"new": 4, "lines_embedded": 6, "lines_total": 6}
    assert best("usage of the program") == "b/odd name %41 ü.md:3"
    assert index() == {"unchanged": 4, "lines_total": 6}

    tree.write({"root.py": "import sys\nprint('the parent parsers')\n", "b/new.txt": "prefix characters\n"})
    tree.remove("a/apple.py")
    assert index() == {
        "new": 1,
        "changed": 1,
        "unchanged": 2,
        "deleted": 1,
        "lines_embedded": 3,
        "lines_total": 6,
    }
    assert best("print('the parent parsers')") == "root.py:2"
    assert best("prefix characters") == "b/new.txt:1"
    lines = ("--mode", "vector", "--top-k", 100, "-n", 0)
    everything = driftline("search", "parser = argparse.ArgumentParser()", *lines, *at).json["results"]
    assert {hit["path"] for hit in everything} == {"a/banana.txt", "b/odd name %41 ü.md", "b/new.txt", "root.py"}
    assert len(everything) == 6

    status = driftline("status", *at).json
    assert (status["total_documents"], status["total_lines"]) == (4, 6)
    assert [source["uri"] for source in status["sources"]] == [tree.uri]
    (source,) = status["sources"]
    assert driftline("remove", source["entity"], *at).json["documents"] == 4
    assert driftline("search", "prefix characters", *at).code == 1


def test_processes_work_with_the_environment_alone(
    s3_environment: Any, fresh_prefix: Callable[[], str], tiny_model: Path
) -> None:
    """Runs coordinator and workers in new processes, in the environment that a user would set."""
    tree, workspace = Tree(fresh_prefix(), s3_environment).write(FILES), fresh_prefix()
    kept = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "PATH", "HOME")
    environment = {name: os.environ[name] for name in kept if name in os.environ} | {"DRIFTLINE_WORKSPACE": workspace}

    def run(*arguments: str) -> Any:
        program = Path(sys.executable).parent / "driftline" if arguments[0] == "index" else forked_command()
        command = [str(program), *arguments, "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    report = run("index", tree.uri, "--model", str(tiny_model), "--executor", "local", "--workers", "1")
    assert counts(report) == {"new": 4, "lines_embedded": 6, "lines_total": 6}
    assert run("search", "mutually exclusive group")["results"][0]["path"] == "root.py"
    assert s3_environment.secret_key not in json.dumps(run("status"))


def test_an_unchanged_run_reads_no_document_and_writes_no_table(
    s3_environment: Any,
    fresh_prefix: Callable[[], str],
    proxy: Any,
    tiny_model: Path,
    driftline: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, workspace = Tree(fresh_prefix(), s3_environment).write(FILES), fresh_prefix()
    command = ("index", tree.uri, "--workspace", workspace, "--model", tiny_model, "--json")
    assert driftline(*command).code == 0
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    assert counts(driftline(*command).json) == {"unchanged": 4, "lines_total": 6}
    bucket = f"/{s3_environment.bucket}/"
    prefix = tree.uri.removeprefix("s3:/")
    reads = [path for method, path in proxy.requests if method == "GET" and path.startswith(prefix)]
    assert reads == []
    writes = [path.removeprefix(bucket) for method, path in proxy.requests if method == "PUT"]
    assert not [path for path in writes if "/_tables/" in path or "_index" in path or "_staged" in path]
    assert len(proxy.requests) <= 40, "\n".join(map(str, proxy.requests))


@pytest.mark.parametrize("wrong", ["source", "workspace"])
def test_wrong_credentials_are_one_line_and_exit_code_2(
    wrong: str,
    tmp_path: Path,
    s3_environment: Any,
    fresh_prefix: Callable[[], str],
    tiny_model: Path,
    driftline: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = Tree(str(tmp_path / "tree"), s3_environment).write(FILES)
    remote = fresh_prefix()
    source, workspace = (remote, str(tmp_path / "workspace")) if wrong == "source" else (local.uri, remote)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-key")
    outcome = driftline("index", source, "--workspace", workspace, "--model", tiny_model)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1, outcome.err
    assert remote in outcome.err
    assert "not-the-secret-key" not in outcome.err
    assert not (tmp_path / "workspace").exists()


def test_a_missing_bucket_is_one_line_and_exit_code_2(
    tmp_path: Path, s3_environment: Any, tiny_model: Path, driftline: Callable[..., Any]
) -> None:
    Tree(str(tmp_path / "tree"), s3_environment).write(FILES)
    for arguments in (
        ("index", "s3://no-such-bucket-here/x", "--workspace", tmp_path / "workspace", "--model", tiny_model),
        ("index", tmp_path / "tree", "--workspace", "s3://no-such-bucket-here/x", "--model", tiny_model),
        ("search", "anything", "--workspace", "s3://no-such-bucket-here/x"),
        ("status", "--workspace", "s3://no-such-bucket-here/x"),
    ):
        outcome = driftline(*arguments)
        assert (outcome.code, outcome.out) == (2, ""), outcome
        assert outcome.err.count("\n") == 1, outcome.err
        assert "no-such-bucket-here" in outcome.err


@pytest.mark.parametrize("proxy", [{"strip": "If-None-Match"}], indirect=True)
def test_a_store_that_ignores_conditional_writes_is_refused_and_left_empty(
    tmp_path: Path,
    s3_environment: Any,
    fresh_prefix: Callable[[], str],
    proxy: Any,
    tiny_model: Path,
    driftline: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, workspace = Tree(str(tmp_path / "tree"), s3_environment).write(FILES), fresh_prefix()
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    outcome = driftline("index", tree.uri, "--workspace", workspace, "--model", tiny_model, "--json")
    assert (outcome.code, outcome.json["error"]) == (2, "unsafe_store")
    left = s3_environment.client().list_objects_v2(
        Bucket=s3_environment.bucket, Prefix=workspace.removeprefix(f"s3://{s3_environment.bucket}/")
    )
    assert left["KeyCount"] == 0


def test_explicit_storage_options_serve_workspace_and_source_alike(
    s3_environment: Any, fresh_prefix: Callable[[], str], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, workspace = Tree(fresh_prefix(), s3_environment).write(FILES), fresh_prefix()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name)
    options = {
        "aws_access_key_id": s3_environment.access_key,
        "aws_secret_access_key": s3_environment.secret_key,
        "aws_endpoint": s3_environment.endpoint,
    }
    report = driftline_api.index(tree.uri, workspace=workspace, storage_options=options, model=str(tiny_model))
    opened = driftline_api.open(workspace, options)
    assert opened.status().total_documents == len(FILES)
    states = driftline_api.analyze_document_states(opened, report.sources[0].entity, sorted(FILES))
    assert {state for _, state in states} == {DocumentState.UNCHANGED}
    assert s3_environment.secret_key not in repr(opened)


def test_memory_in_a_bucket_uses_the_options_of_its_workspace(
    s3_environment: Any,
    fresh_prefix: Callable[[], str],
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name)
    options = {
        "aws_access_key_id": s3_environment.access_key,
        "aws_secret_access_key": s3_environment.secret_key,
        "aws_endpoint": s3_environment.endpoint,
    }
    catalog = {"DATABASE_URL": f"sqlite:///{tmp_path / 'catalog.sqlite'}"}
    configuration = load_memory_configuration(environ=catalog, embedding={"model": str(tiny_model)})
    workspace = fresh_prefix()
    with open_memory(configuration, workspace, options) as store:
        store.store("note", "a plan", "org:acme")
    found = find_memory(configuration, driftline_api.open(workspace, options).storage)
    assert found is not None
    with found() as store:
        entry = store.retrieve("note", "org:acme")
    assert entry is not None
    assert entry.value == "a plan"
