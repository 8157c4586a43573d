"""Every command of README.md works, in its order, each block in the same temporary copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
FENCE = re.compile(r"^```(?P<language>sh|python)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(match["language"], match["code"], id=f"line {README[: match.start()].count(chr(10)) + 1}")
    for match in FENCE.finditer(README)
]

IDENTITY = ("-c", "user.name=reader", "-c", "user.email=reader@localhost", "-c", "commit.gpgSign=false")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git tracks or would track."""
    copy = tmp_path_factory.mktemp("readme") / "clone"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    for command in ("init -q -b main", "add -A", "commit -q -m all"):  # a person has a clone
        subprocess.run(["git", *IDENTITY, *command.split()], cwd=copy, check=True, capture_output=True)
    return copy


@pytest.fixture(scope="module")
def environment(tree: Path, s3_server: Any) -> dict[str, str]:
    """What a person has who installed Driftline: its commands on the path, and the variables of an S3 store."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("DRIFTLINE_", "AWS_"))}
    bin_directory = Path(sys.executable).parent
    s3_server.client().create_bucket(Bucket="my-bucket")
    return {
        **variables,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_REGION": "us-east-1",
        "PATH": f"{bin_directory}{os.pathsep}{variables['PATH']}",
        "PREFECT_HOME": str(tree.parent / "prefect"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # 20 by default, too few on a busy machine
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        **{f"GIT_{who}_{what}": "reader" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }


@pytest.mark.parametrize(("language", "code"), BLOCKS)
def test_the_commands_of_the_readme_work(language: str, code: str, tree: Path, environment: Mapping[str, str]) -> None:
    if language == "python":
        script = tree.parent / "readme_example.py"
        script.write_text(code)
        run([sys.executable, str(script)], tree, environment)
    elif re.match(r"make ", code):
        # In the repository itself, whose environment is there already; whoever runs these tests runs `make test`, too.
        commands = [line for line in code.splitlines() if not line.startswith("make test")]
        run(["bash", "-euo", "pipefail", "-c", "\n".join(commands)], ROOT, environment)
    else:
        run(["bash", "-euo", "pipefail", "-c", code], tree, environment)


def test_the_readme_has_commands() -> None:
    assert len(BLOCKS) >= 8


def run(command: list[str], cwd: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
