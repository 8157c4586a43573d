"""Source code in other languages, from pinned npm, PyPI and Debian packages that are unpacked but never installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corpus import CACHE

Registry = Literal["npm", "pypi", "debian"]


@dataclass(frozen=True, slots=True)
class Package:
    """A package and the folders to read in it, relative to the folder it unpacks to."""

    registry: Registry
    name: str
    version: str
    folders: tuple[str, ...] = ("",)


def unpacked(package: Package) -> Path:
    """Return the folder of a package's files. Raises CalledProcessError if its registry cannot be reached."""
    target = CACHE / "packages" / f"{package.name}-{package.version}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        whole = Path(scratch, "whole")
        whole.mkdir()
        _unpack(_download(package, Path(scratch)), whole)
        shutil.move(whole, target)
    return target


def _download(package: Package, folder: Path) -> Path:
    if package.registry == "npm":
        command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    elif package.registry == "pypi":
        options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
        command = [sys.executable, "-m", "pip", "download", *options, f"{package.name}=={package.version}"]
    else:
        command = ["apt-get", "download", f"{package.name}={package.version}"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return next(path for path in folder.iterdir() if path.is_file())


def _unpack(archive: Path, target: Path) -> None:
    if archive.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", str(archive), str(target)], check=True)
        for inner in [*target.rglob("src.zip")]:
            with zipfile.ZipFile(inner) as files:
                files.extractall(inner.parent)
            inner.unlink()
        return
    with tarfile.open(archive) as files:
        files.extractall(target, filter="data")


def sources(package: Package, extensions: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the path and text of files with one of ``extensions``, sorted."""
    root = unpacked(package)
    inside = root if package.registry == "debian" else next(path for path in sorted(root.iterdir()) if path.is_dir())
    for folder in package.folders:
        for path in sorted((inside / folder).rglob("*")):
            if path.is_file() and not path.is_symlink() and path.suffix in extensions:
                try:
                    yield f"{package.name}/{path.relative_to(inside).as_posix()}", path.read_text("utf-8")
                except UnicodeDecodeError:
                    continue
