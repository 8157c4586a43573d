from __future__ import annotations

import random
import subprocess
from pathlib import Path
from unicodedata import normalize

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driftline.storage.errors import UsageError
from driftline.tasks.scanning.ignore import Matcher, PatternList, Rules, read_ignore_file
from driftline.tasks.scanning.walk import Subtree, Walk

NAMES = ("a", "b", "foo", "bar.py", "x.log", "build", "données", "two words")


def files_kept(root: Path, rules: Rules | None = None) -> list[str]:
    return sorted(Walk(str(root), rules or Rules()).run([Subtree()]).paths)


def files_kept_by_git(root: Path) -> list[str]:
    command = ["git", "-c", "core.excludesFile=/dev/null", "ls-files", "--others", "--exclude-standard", "-z"]
    output = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    return sorted(output.decode().split("\0")[:-1])


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    generator = random.Random(7)
    for _ in range(150):
        parts = [generator.choice(NAMES) + str(depth) * generator.randint(0, 1) for depth in range(4)]
        path = root.joinpath(*parts[: generator.randint(1, 4)])
        if not path.exists() and not any(parent.is_file() for parent in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
    return root


SEGMENT = st.sampled_from(["*", "**", "foo", "a", "b", "b*", "*.py", "?", "[ab]", "[!a]", "build", "x.*", "données"])
PATTERN = st.builds(
    lambda negated, rooted, segments, folder: "!" * negated + "/" * rooted + "/".join(segments) + "/" * folder,
    st.booleans(),
    st.booleans(),
    st.lists(SEGMENT, min_size=1, max_size=3),
    st.booleans(),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(top=st.lists(PATTERN, max_size=5), nested=st.lists(PATTERN, max_size=3), data=st.data())
def test_a_walk_keeps_the_files_that_git_keeps(
    repository: Path, top: list[str], nested: list[str], data: st.DataObject
) -> None:
    folders = sorted(path for path in repository.iterdir() if path.is_dir() and path.name != ".git")
    inner = data.draw(st.sampled_from(folders)) / ".gitignore"
    (repository / ".gitignore").write_text("\n".join(top))
    inner.write_text("\n".join(nested))
    try:
        assert files_kept(repository) == files_kept_by_git(repository)
    finally:
        inner.unlink()


@pytest.mark.parametrize(
    "patterns",
    [
        ["*", "!*/", "!*.py"],
        ["/*", "!/foo", "/foo/*", "!/foo/bar.py"],
        ["build/**", "!build/a"],
        ["# a comment", "", "   ", "foo   ", "\\#no"],
        ["[[:alpha:]]", "!a"],
        ["*.py", "!bar.py", "[", "a\\"],
        ["\N{LATIN SMALL LETTER D}onn*"],
        ["/"],
        ["two words"],
    ],
)
def test_odd_patterns_mean_what_they_mean_to_git(repository: Path, patterns: list[str]) -> None:
    for end in ("\n", "\r\n"):
        (repository / ".gitignore").write_bytes("".join(line + end for line in patterns).encode())
        assert files_kept(repository) == files_kept_by_git(repository)


def test_driftlineignore_has_the_last_word_in_its_folder_and_folders_are_reported_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "*.log\nbuild/\n",
            ".driftlineignore": "!keep.log\ndocs/*.md\n",
            "keep.log": "",
            "drop.log": "",
            "build/a.py": "",
            "build/deep/b.py": "",
            "docs/a.md": "",
            "docs/sub/.driftlineignore": "*.py",
            "docs/sub/a.md": "",
            "docs/sub/a.py": "",
        },
    )
    listing = Walk(str(tmp_path), Rules()).run([Subtree()])
    assert set(listing.paths) == {
        ".gitignore",
        ".driftlineignore",
        "keep.log",
        "docs/sub/.driftlineignore",
        "docs/sub/a.md",
    }
    assert sorted(listing.skipped_paths) == ["build/", "docs/a.md", "docs/sub/a.py", "drop.log"]
    assert set(listing.skipped_reasons) == {"excluded"}


def test_include_limits_the_files_and_exclude_wins(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "", "b.md": "", "src/c.py": "", "src/d.md": "", "src/gen/e.py": ""})
    assert files_kept(tmp_path, Rules(include=("*.py",))) == ["a.py", "src/c.py", "src/gen/e.py"]
    assert files_kept(tmp_path, Rules(include=("src/",), exclude=("gen/", "*.md"))) == ["src/c.py"]
    assert files_kept(tmp_path, Rules(include=("/src/*.py",))) == ["src/c.py"]


def test_keys_of_an_object_store_match_by_the_folders_above_them() -> None:
    matcher = Matcher(Rules(include=("logs/",), exclude=("tmp", "*.bin")))
    keys = ["logs/a.txt", "logs/tmp/a.txt", "a/logs/b.txt", "other/a.txt", "logs/a.bin/x", "logs/a\nb"]
    assert matcher.excluded(pa.array(keys)).tolist() == [False, True, False, True, True, False]


def test_files_named_like_secrets_are_recognized() -> None:
    secret = [".env", "a/.env.local", "x/server.PEM", "id_rsa", "home/.aws/credentials", "svc/service-account-1.json"]
    plain = [".env.example", "a/.env.template", "id_rsa.pub", "environment.py", "credentials/readme.md", "monkey"]
    assert Matcher(Rules()).secret(pa.array(secret)).all()
    assert not Matcher(Rules()).secret(pa.array(plain)).any()
    assert not Matcher(Rules(skip_secrets=False)).secret(pa.array(secret)).any()


def test_many_patterns_are_split_without_losing_their_order() -> None:
    lines = [f"*.x{i}" for i in range(250)] + ["!keep.x7", *(f"*.y{i}" for i in range(150)), "gone.x7"]
    paths = pa.array(["a.x0", "a.x249", "keep.x7", "gone.x7", "a.y149", "a.z"])
    assert PatternList(lines).matches(paths).tolist() == [True, True, False, True, True, False]


REFUSED = {
    "": "'*'", "# x": r"\\# x", "!a": "--include 'a'", "[": r"\\[", "a\\": "'a'", "./src/*.py": "'/src/*.py'",
    "a//b": "'a/b'", "../x": "", "~/x": "", "s3://bucket/x": "", "*.{ts,tsx": "'*.{ts,tsx}'",
    "*.{ts, tsx}": "'*.{ts,tsx}'", "/home/me/project/src/*.py": "'/src/*.py'", "gr\udcf6": "",
}  # fmt: skip


@pytest.mark.parametrize("glob", REFUSED)
def test_a_pattern_that_can_match_nothing_is_refused_with_the_nearest_that_can(glob: str) -> None:
    with pytest.raises(UsageError) as refused:
        Rules(exclude=(glob,)).check("/home/me/project")
    assert REFUSED[glob] in str(refused.value)


@pytest.mark.parametrize("glob", ["*.py", "src/**", "[ab]?", "*.{ts,tsx}", "{{x}}/a", "/src", r"\{a,b}", "{id}.tsx"])
def test_a_pattern_that_can_match_is_accepted(glob: str) -> None:
    Rules(include=(glob,), exclude=(glob,)).check("/home/me/project")


def test_patterns_have_braces_and_accents_of_either_form() -> None:
    paths = pa.array(["a.ts", "b.tsx", "c.py", normalize("NFD", "résumé.md"), normalize("NFC", "übung.md")])
    for pattern, kept in {
        "*.{ts,tsx}": [0, 1],
        "{a,c}.*": [0, 2],
        "r\u00e9sum\u00e9.*": [3],
        "u\u0308bung.*": [4],
    }.items():
        excluded = Matcher(Rules(include=(pattern,))).excluded(paths).tolist()
        assert [at for at, is_out in enumerate(excluded) if not is_out] == kept, pattern


def test_an_ignore_file_may_start_with_a_byte_order_mark_and_hold_odd_bytes() -> None:
    assert read_ignore_file(b"\xef\xbb\xbf*.py\r\n\xff\n") == [b"*.py", b"\xff", b""]
