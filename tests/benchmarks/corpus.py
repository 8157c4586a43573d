"""The trees that the benchmarks index: created once, then cached outside the repository.

Source code comes from the packages installed in this environment, so nothing is downloaded. Figures from two hosts are
comparable only if their packages are the same.
"""

from __future__ import annotations

import json
import keyword
import os
import random
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

CACHE = Path(tempfile.gettempdir()) / "driftline-bench"

FILES_PER_FOLDER = 100
MAX_FILE_BYTES = 1_000_000
"""semble skips larger files, so the comparison does too."""
_NEVER = {"__pycache__", "node_modules", "dist", "build", "venv", "site-packages"}
"""Folders that semble never enters."""
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{3,}")
_SEED = 20261101
_WORDS = ("read", "write", "open", "close", "table", "row", "batch", "commit", "lease", "token", "vector", "line")


@dataclass(frozen=True, slots=True)
class Corpus:
    """A tree and its size; ``lines`` counts newlines, including blank lines."""

    path: Path
    files: int
    lines: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.lines:,} lines in {self.files:,} files, {self.bytes / 1e6:.0f} MB"


def packages(lines: int) -> Corpus:
    """Return at least ``lines`` lines of Python from installed packages, sorted by name. If there are too few, packages
    are repeated with their identifiers exchanged, so that searches do not fold the repetitions as copies.
    """

    def make(root: Path) -> tuple[int, int, int]:
        files = found = size = 0
        identifiers: list[bytes] = []
        for copy in count():
            if copy == 1:
                identifiers = _identifiers()
            others = dict(zip(identifiers, identifiers[copy:] + identifiers[:copy], strict=True)) if copy else {}
            for path in _sources():
                data = path.read_bytes()
                if others:
                    data = _exchanged(data, others)
                target = root / (f"copy_{copy}" if copy else "") / path.relative_to(_site())
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                files, found, size = files + 1, found + data.count(b"\n"), size + len(data)
                if found >= lines:
                    return files, found, size
        raise AssertionError("never reached")

    return cached(f"packages-{lines}", make)


def small_files(files: int) -> Corpus:
    """Create ``files`` modules of 3 to 8 lines each: 100 per folder, 10 folders per parent folder."""

    def make(root: Path) -> tuple[int, int, int]:
        dice = random.Random(_SEED)
        lines = size = 0
        for number in range(files):
            folder, name = divmod(number, FILES_PER_FOLDER)
            target = root / f"part_{folder // 10:03}" / f"module_{folder % 10}" / f"file_{name:02}.py"
            target.parent.mkdir(parents=True, exist_ok=True)
            body = [f"def {'_'.join(dice.sample(_WORDS, 2))}_{number}():", '    """Made up."""']
            sums = (f"{dice.choice(_WORDS)} = {' + '.join(dice.sample(_WORDS, 3))}" for _ in range(dice.randint(1, 6)))
            body += [f"    {line}" for line in sums]
            text = "\n".join(body) + "\n"
            target.write_text(text)
            lines, size = lines + len(body), size + len(text)
        return files, lines, size

    return cached(f"small-{files}", make)


def git_tree(files: int) -> Corpus:
    """Return the tree of ``small_files`` as a git work tree with one commit and an origin."""

    def make(root: Path) -> tuple[int, int, int]:
        plain = small_files(files)
        shutil.copytree(plain.path, root, dirs_exist_ok=True)
        git(root, "init", "-q", "-b", "main")
        git(root, "config", "gc.auto", "0")
        git(root, "remote", "add", "origin", _origin(files))
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", "All of it")
        return plain.files, plain.lines, plain.bytes

    return cached(f"git-{files}", make)


def fresh_clone(tree: Corpus, parent: Path) -> Path:
    """Clone ``tree`` into ``parent``, keeping its origin and name."""
    clone = parent / tree.path.name
    shutil.rmtree(clone, ignore_errors=True)
    git(parent, "clone", "-q", "--shared", str(tree.path), str(clone))
    git(clone, "remote", "set-url", "origin", _origin(tree.files))
    return clone


def model() -> Path:
    """Return the default embedding model as a model2vec directory that every contender can load."""
    target = CACHE / "model"
    if not (target / "config.json").is_file():
        from driftline.tasks.embedding.models import load, resolve_model

        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            load(resolve_model()).save_pretrained(Path(scratch) / "model")
            os.replace(Path(scratch) / "model", target)
    return target


def cached(name: str, make: Callable[[Path], tuple[int, int, int]]) -> Corpus:
    """Return the tree called ``name``; create it unless it is already complete."""
    root, record = CACHE / name / "tree", CACHE / name / "corpus.json"
    if not record.is_file():
        shutil.rmtree(CACHE / name, ignore_errors=True)
        root.mkdir(parents=True)
        files, lines, size = make(root)
        record.write_text(json.dumps({"files": files, "lines": lines, "bytes": size}))
    return Corpus(root, **json.loads(record.read_text()))


def _site() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _sources() -> Iterator[Path]:
    for folder, subfolders, names in os.walk(_site()):
        subfolders[:] = sorted(name for name in subfolders if name not in _NEVER and not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(".py") and not path.is_symlink() and 0 < path.stat().st_size <= MAX_FILE_BYTES:
                yield path


def _identifiers() -> list[bytes]:
    """Return the identifiers of all sources by their frequency: neighbours occur about equally often."""
    counts = Counter(name for path in _sources() for name in _IDENTIFIER.findall(path.read_bytes()))
    return [name for name, _ in counts.most_common() if not keyword.iskeyword(name.decode())]


def _exchanged(data: bytes, others: dict[bytes, bytes]) -> bytes:
    return _IDENTIFIER.sub(lambda found: others.get(found[0], found[0]), data)


def _origin(files: int) -> str:
    return f"https://git.invalid/bench/small-{files}.git"


def git(folder: Path, *arguments: str) -> None:
    """Run git in ``folder`` under a fixed identity."""
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)
