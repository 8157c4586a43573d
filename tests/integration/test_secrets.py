"""Credentials never appear in the run history, reports, logs, errors or responses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from driftline.flows.config.secret_references import resolve_options
from driftline.storage.errors import UsageError
from tests.servers.prefect_server import PrefectServer
from tests.servers.s3_server import S3Server

Driftline = Callable[..., Any]
SECRET = "s3cr3t-never-to-be-seen"


def files_of(server: S3Server, prefix: str) -> dict[str, bytes]:
    client = server.client()
    listed = client.list_objects_v2(Bucket=server.bucket, Prefix=prefix).get("Contents", [])
    return {one["Key"]: client.get_object(Bucket=server.bucket, Key=one["Key"])["Body"].read() for one in listed}


def test_options_by_reference_are_used_and_never_shown(
    driftline: Driftline, s3_bucket: str, s3_server: S3Server, tiny_model: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in [name for name in os.environ if name.startswith(("AWS_", "DRIFTLINE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TEAM_KEY", s3_server.access_key)
    monkeypatch.setenv("TEAM_SECRET", s3_server.secret_key)
    monkeypatch.chdir(tmp_path)
    prefix = s3_bucket.removeprefix(f"s3://{s3_server.bucket}/")
    for folder in ("docs", "more"):
        s3_server.client().put_object(Bucket=s3_server.bucket, Key=f"{prefix}/{folder}/a.txt", Body=b"hello\n")
    (tmp_path / "driftline.toml").write_text(
        f"""
workspace = "{s3_bucket}/index"
model = "{tiny_model}"

[[sources]]
uri = "{s3_bucket}/docs"

[[sources]]
uri = "{s3_bucket}/more"
entity = "source:more"

[[sources]]
uri = "ftp://nobody@127.0.0.1:1/x"

[storage_options]
aws_access_key_id = "${{TEAM_KEY}}"
aws_secret_access_key = "${{TEAM_SECRET}}"
aws_endpoint_url = "{s3_server.endpoint}"
aws_region = "us-east-1"
"""
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert "${TEAM_SECRET}" in driftline("trust").out
    reported = [driftline("--log-json", "index", "--all", "--json"), driftline("runs"), driftline("report", "--json")]
    assert reported[0].code == 3, reported[0].err
    assert [source["documents_total"] for source in reported[0].json["sources"]] == [1, 1]
    assert all(json.loads(line)["level"] for line in reported[0].err.splitlines())
    reported += [driftline("compact"), driftline("cleanup", "--delete"), driftline("verify"), driftline("status")]
    reported += [driftline("remove", "source:more")]
    assert [outcome.code for outcome in reported[1:]] == [0] * 7
    monkeypatch.setenv("TEAM_SECRET", SECRET)
    reported += [driftline("--log-json", "index", "--all"), driftline("runs", "--json"), driftline("ci", "docs")]
    assert all(outcome.code in (2, 3) for outcome in reported[8:])
    written = files_of(s3_server, f"{prefix}/index")
    assert any("_runs/" in name for name in written)
    everything = [*written.values(), (tmp_path / "driftline-report.html").read_bytes()]
    everything += [f"{outcome.out}{outcome.err}".encode() for outcome in reported]
    for secret in (SECRET, s3_server.secret_key):
        assert not [data for data in everything if secret.encode() in data]


@pytest.mark.xdist_group("prefect")
def test_a_secret_block_of_prefect_is_read_when_it_is_used(prefect_server: PrefectServer) -> None:
    from prefect.blocks.system import Secret
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: prefect_server.url}):
        Secret(value=SecretStr(SECRET)).save("team-secret", overwrite=True, _sync=True)  # type: ignore[call-arg]
        assert resolve_options({"password": "block:team-secret"}) == {"password": SECRET}
        with pytest.raises(UsageError, match="'password' requires the Secret block 'no-such-block'"):
            resolve_options({"password": "block:no-such-block"})


@pytest.mark.parametrize("command", ["index", "ci"])
def test_answers_show_no_password_of_a_uri(
    command: str, driftline: Driftline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for location in (f"ftp://me:{SECRET}@127.0.0.1:1/x", f"s3://me:{SECRET}@"):
        for workspace in (tmp_path / "index", f"s3://me:{SECRET}@bucket/index"):
            summary = tmp_path / "summary.md"
            options = ("--summary", summary) if command == "ci" else ()
            done = driftline("--log-json", command, location, "--workspace", workspace, "--json", *options)
            assert done.code in (2, 3)
            assert SECRET not in done.out + done.err
            if summary.exists():
                assert SECRET not in summary.read_text()
