"""Every command of README.md and docs/ works: in order, each page in its own clone, pasted into one shell."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.servers.ports import free_port
from tests.support.documents import HERONS
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^```(?P<language>sh|python)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
INCLUDED = re.compile(r'^--8<-- "README\.md:(?P<part>\w+)"$', re.MULTILINE)
NUMBERED = re.compile(r"^ +\d+[:-] .*")
LOCATED = re.compile(r"^(?P<location>\S+:\d+)(?P<rest>[: ].*)?")
SERVED = "http://127.0.0.1:8030"
IDENTITY = ("-c", "user.name=reader", "-c", "user.email=reader@localhost", "-c", "commit.gpgSign=false")


def blocks() -> list[Any]:
    """Return the blocks of all pages; a page's blocks run in order, in one process."""
    found = []
    for page in PAGES:
        name, text = page.relative_to(ROOT).as_posix(), INCLUDED.sub(part_of_readme, page.read_text())
        for match in FENCE.finditer(text):
            if match["code"].startswith("make install") or (name == "README.md" and "driftline" in match["code"]):
                continue  # test_the_readme_pasted_whole_into_a_shell_installs_and_searches
            line = text[: match.start()].count("\n") + 1
            group = pytest.mark.xdist_group(name)
            found.append(pytest.param(name, match["language"], match["code"], id=f"{name}:{line}", marks=group))
    return found


def part_of_readme(include: re.Match[str]) -> str:
    """Return the part of README.md that a page includes."""
    start, end = (f"<!-- --8<-- [{edge}:{include['part']}] -->" for edge in ("start", "end"))
    return (ROOT / "README.md").read_text().partition(start)[2].partition(end)[0]


BLOCKS = blocks()


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the tracked files and the untracked files that are not ignored."""
    copy = tmp_path_factory.mktemp("docs") / "origin"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    for command in ("init -q -b main", "add -A", "commit -q -m all"):
        subprocess.run(["git", *IDENTITY, *command.split()], cwd=copy, check=True, capture_output=True)
    return copy


@pytest.fixture(scope="session")
def clone(origin: Path) -> Callable[[str], Path]:
    """The clone in which a page's commands run; the page's first block creates it."""
    clones: dict[str, Path] = {}

    def clone_of(page: str) -> Path:
        if page not in clones:
            clones[page] = origin.parent / re.sub(r"\W+", "-", page) / "clone"
            subprocess.run(["git", "clone", "-q", str(origin), str(clones[page])], check=True, capture_output=True)
        return clones[page]

    return clone_of


@pytest.fixture(scope="session")
def environment(origin: Path, s3_server: Any) -> dict[str, str]:
    """The environment of a user who has installed Driftline: commands on the PATH, and variables for an S3 store."""
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
        "PREFECT_HOME": str(origin.parent / "prefect"),
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        **{f"GIT_{who}_{what}": "reader" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }


@pytest.fixture(scope="session")
def served(origin: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """The address of a server of a small workspace, which replaces SERVED: that port may be in use."""
    workspace = str(origin.parent / "served")
    command = [sys.executable, "-m", "driftline"]
    run([*command, "index", str(origin / "storage"), "--workspace", workspace], origin, environment)
    address = f"http://127.0.0.1:{(port := free_port())}"
    web = [*command, "web", "--workspace", workspace, "--port", str(port)]
    with subprocess.Popen(web, cwd=origin, env=dict(environment), stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            printed = ""
            while "serving" not in printed and (line := server.stderr.readline()):
                printed += line
            assert "serving" in printed, printed
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                f"{address}/readyz", timeout=PATIENCE_SECONDS
            ).close()
            yield address
        finally:
            server.kill()


@pytest.fixture(scope="session")
def folders() -> dict[str, str]:
    """Where the shell of each page is, after the blocks that ran."""
    return {}


@pytest.mark.parametrize(("page", "language", "code"), BLOCKS)
def test_the_commands_of_a_page_work(
    page: str,
    language: str,
    code: str,
    clone: Callable[[str], Path],
    folders: dict[str, str],
    environment: Mapping[str, str],
    request: pytest.FixtureRequest,
) -> None:
    folder = clone(page)
    if SERVED in code:
        code = code.replace(SERVED, request.getfixturevalue("served"))
    if language == "python":
        script = folder.parent / "example.py"
        script.write_text(code)
        run([sys.executable, str(script)], folder, environment)
    elif re.match(r"make ", code):
        # Runs in the repository itself, which has its environment; anyone who runs these tests also runs `make test`.
        commands = [line for line in code.splitlines() if not line.startswith("make test")]
        run(["bash", "-euo", "pipefail", "-c", "\n".join(commands)], ROOT, environment)
    else:
        here = folder.parent / "pwd"
        pasted = f"cd {shlex.quote(folders.get(page, str(folder)))}\n{code}\npwd > {shlex.quote(str(here))}"
        run(["bash", "-euo", "pipefail", "-c", pasted], folder, environment)
        folders[page] = here.read_text().strip()
        if page.startswith("docs/start/") and code == [each.values[2] for each in BLOCKS if each.values[0] == page][-1]:
            assert changes_in(folder) == ""


def changes_in(clone: Path) -> str:
    return subprocess.run(["git", "status", "--short"], cwd=clone, check=True, capture_output=True, text=True).stdout


def test_the_readme_pasted_whole_into_a_shell_installs_and_searches(origin: Path, tmp_path: Path) -> None:
    """In a new clone, with only Python and make installed."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(origin), str(clone)], check=True, capture_output=True)
    text = (ROOT / "README.md").read_text()
    steps = text[text.index("## Install") : text.index("## How it works")]
    pasted = "".join(match["code"] for match in FENCE.finditer(steps))
    assert pasted.startswith("make install")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("make", "bash", "sh", "uname", "touch", "grep", "python3"):
        found = Path(sys.base_prefix, "bin", "python3") if name == "python3" else shutil.which(name)
        assert found, name
        (tools / name).symlink_to(found)
    hidden = ("DRIFTLINE_", "VIRTUAL_ENV", "PYTHON")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    shell = subprocess.run(
        ["bash"],
        cwd=clone,
        env={**variables, "PATH": str(tools), "SHELL": str(tools / "bash")},
        input=f"set -e\n{pasted}",
        capture_output=True,
        text=True,
        check=False,
    )
    assert shell.returncode == 0, shell.stdout[-3000:] + shell.stderr[-3000:]
    assert "make: installing" in shell.stdout
    assert re.search(r"^errors\.py:\d+ .*class LeaseLost$", shell.stdout, re.MULTILINE)
    assert changes_in(clone) == ""


def test_the_session_in_the_readme_is_what_the_commands_print() -> None:
    """Other numbers than those of lines may differ. ``python docs/record_session.py`` updates the session."""
    recorder = the_recorder()
    written = recorder.BLOCK.search((ROOT / "README.md").read_text())
    assert written is not None
    assert comparable(written[0]) == comparable(recorder.transcript(recorder.README_COMMANDS))


def test_the_session_shows_the_commands_of_the_snippet() -> None:
    block = next(block for block in BLOCKS if block.values[0] == "docs/start/first-search.md")
    assert tuple(str(block.values[2]).splitlines()) == the_recorder().README_COMMANDS


def test_the_recorded_session_is_what_the_commands_print() -> None:
    """Other numbers than those of lines may differ. ``python docs/record_session.py`` updates the picture."""
    recorder = the_recorder()
    shown = recorder.lines_of(recorder.SESSION.read_text())
    assert comparable(shown) == comparable(recorder.lines_of(recorder.drawn()))


def test_each_question_in_sql_has_its_answer() -> None:
    """Compares the columns and checks for rows: values change with every file in the packages."""
    recorder = the_recorder()
    page = recorder.SQL.read_text()
    shown, now = (re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S) for text in (page, recorder.answered(page)))
    assert len(shown) == 10
    for before, after in zip(shown, now, strict=True):
        _, _, answer = before.rpartition('"\n')
        assert len(answer.splitlines()) > 1, before
        assert answer.split("\n")[0].split() == after.rpartition('"\n')[2].split("\n")[0].split(), before


def test_each_exact_search_of_the_guide_prints_what_it_shows() -> None:
    """Other numbers than those of lines may differ. ``python docs/record_session.py`` updates them."""
    recorder = the_recorder()
    page = recorder.EXACT.read_text()
    assert comparable(page) == comparable(recorder.searched(page))


def test_the_search_that_is_explained_prints_what_the_page_shows() -> None:
    """Other numbers than those of lines may differ. ``python docs/record_session.py`` updates it."""
    recorder = the_recorder()
    page = recorder.EXPLAINED.read_text()
    assert comparable(page) == comparable(recorder.searched(page, "storage"))


def test_the_guide_on_documents_shows_each_format_with_its_anchor(
    tmp_path: Path, driftline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python docs/record_session.py`` updates the guide."""
    recorder = the_recorder()
    recorder.write_herons(tmp_path / "birds")
    monkeypatch.chdir(tmp_path / "birds")
    driftline("index", ".", "--archives")
    page = recorder.DOCUMENTS.read_text()
    now = recorder.with_results(page, lambda command: driftline(*shlex.split(command)[1:]).out)
    assert now == page
    assert all(f"\n{name}" in page for name in HERONS)


def the_recorder() -> Any:
    """``docs/record_session.py``."""
    spec = importlib.util.spec_from_file_location("record_session", ROOT / "docs" / "record_session.py")
    assert spec is not None
    assert spec.loader is not None
    recorder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recorder)
    return recorder


def comparable(text: str) -> str:
    """Return ``text`` with only the numbers that locate lines: those are what a search is for."""
    lines = []
    for line in text.splitlines():
        located = LOCATED.match(line)
        if NUMBERED.match(line):
            lines.append(line.rstrip())
        elif located:
            lines.append(located["location"] + without_numbers(located["rest"] or ""))
        else:
            lines.append(without_numbers(line))
    return "\n".join(lines)


def without_numbers(text: str) -> str:
    """Return ``text`` without the parts that differ between runs or code versions."""
    text = re.sub(r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "ID", text)
    return re.sub(r"[ \t]+", " ", re.sub(r"-?\d[\d.,]*", "N", text))


def test_the_readme_and_most_guides_have_commands() -> None:
    pages = {block.values[0] for block in BLOCKS}
    assert "README.md" in pages
    assert len([page for page in pages if str(page).startswith("docs/guides/")]) >= 10
    assert len(BLOCKS) >= 30


def run(command: list[str], cwd: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
