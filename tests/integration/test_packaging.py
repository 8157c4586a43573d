"""An editable install, a wheel and a source distribution, each in a fresh environment and used from another folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from tests.support.type_checkers import assert_checks, mypy, outside_of_the_checkout

pytestmark = pytest.mark.xdist_group("type checkers")

ROOT = Path(__file__).parents[2]
CONTENT = ("pyproject.toml", "README.md", "LICENSE", "driftline", "flows", "tasks", "storage", "deployments")
INSTALLS = ("editable", "wheel", "sdist")
USED = ("wheel",)
"""The fully tested installs, whose modules are all imported. A source distribution installs the same files, and all
other tests use an editable install.
"""
PACKAGE_DATA = (
    "py.typed",
    "deployments/prefect.yaml",
    "flows/output/report.html.j2",
    "tasks/search/sample_lines.txt",
)

# Every install must run this program, in the fresh environment and an empty folder; with an argument, it imports all.
PROBE = f"""
import importlib, importlib.metadata, importlib.resources, importlib.util, json, pkgutil, sys, driftline

modules = [module.name for module in pkgutil.walk_packages(driftline.__path__, "driftline.")]
for name in modules if sys.argv[1:] else []:
    importlib.import_module(name)
files = importlib.resources.files("driftline")
print(json.dumps({{
    "location": driftline.__file__,
    "version": driftline.__version__,
    "modules": modules,
    "top_level": [name for name in ("flows", "tasks", "storage", "deployments") if importlib.util.find_spec(name)],
    "files": [str(path) for path in importlib.metadata.files("driftline") if path.parts[0] == "driftline"],
    "data": [name for name in {PACKAGE_DATA!r} if files.joinpath(name).is_file()],
}}))
"""
ENTRY_POINTS = """
from importlib.resources import files
from prefect.flows import load_flow_from_entrypoint
import yaml

declared = yaml.safe_load(files("driftline").joinpath("deployments/prefect.yaml").read_text())["deployments"]
print(sorted({load_flow_from_entrypoint(each["entrypoint"]).name for each in declared}))
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with only Driftline installed; dependencies come from the tests' environment."""

    folder: Path
    elsewhere: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def run(self, *command: object) -> str:
        """Run a program of this environment in an empty folder, and return its output."""
        program, *arguments = map(str, command)
        ended = subprocess.run(
            [self.folder / "bin" / program, *arguments],
            check=False,
            cwd=self.elsewhere,
            env=outside_of_the_checkout(),
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packaged files, since a build writes next to them."""
    location = tmp_path_factory.mktemp("checkout")
    for name in CONTENT:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, location / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, location)
    return location


@pytest.fixture(scope="module")
def distributions(checkout: Path) -> Path:
    """The folder of the wheel and the source distribution."""
    uv("build", "--wheel", "--sdist", "--out-dir", checkout / "dist", checkout)
    return checkout / "dist"


@pytest.fixture(scope="module")
def environments(
    checkout: Path, distributions: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Environment]:
    """Return the environment for each kind of install; it is created once."""

    @cache
    def environment(kind: str) -> Environment:
        requested = {
            "editable": ["--editable", checkout],
            "wheel": distributions.glob("*.whl"),
            "sdist": distributions.glob("*.tar.gz"),
        }
        folder = tmp_path_factory.mktemp(kind)
        venv.create(folder, symlinks=True)
        paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
        # Python ignores .pth files in paths that a .pth file adds, so an editable install for the tests has no effect.
        Path(paths["purelib"], "dependencies.pth").write_text(sysconfig.get_path("purelib"))
        uv("pip", "install", "--python", folder / "bin" / "python", "--no-deps", *requested[kind])
        return Environment(folder, tmp_path_factory.mktemp("elsewhere"))

    return environment


@pytest.fixture(params=INSTALLS)
def environment(request: pytest.FixtureRequest, environments: Callable[[str], Environment]) -> Environment:
    """An environment for each kind of install, shared by all tests of that kind."""
    return environments(request.param)


@pytest.fixture
def probe(request: pytest.FixtureRequest, environment: Environment) -> dict[str, Any]:
    """The installation's report about itself."""
    return probed(environment, is_used=request.node.callspec.params["environment"] in USED)


@cache
def probed(environment: Environment, is_used: bool) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(environment.run("python", "-c", PROBE, *(["all"] if is_used else [])))
    return answer


def uv(*arguments: object) -> None:
    """Run uv without the network; builds use the setuptools of the tests."""
    command = [find_uv_bin(), *map(str, arguments), "--no-build-isolation", "--offline", "--quiet"]
    environ = outside_of_the_checkout() | {"VIRTUAL_ENV": sys.prefix}
    ended = subprocess.run(command, check=False, env=environ, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def names_in_the_wheel(distributions: Path) -> list[str]:
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as wheel:
        return wheel.namelist()


def test_each_install_contains_every_module_and_the_package_data(probe: dict[str, Any], checkout: Path) -> None:
    assert not Path(probe["location"]).is_relative_to(ROOT)
    sources = [path.relative_to(checkout) for package in CONTENT[4:] for path in (checkout / package).rglob("*.py")]
    modules = {".".join(("driftline", *path.with_suffix("").parts)).removesuffix(".__init__") for path in sources}
    modules |= {f"driftline.{path.stem}" for path in (checkout / "driftline").glob("*.py")} - {"driftline.__init__"}
    assert set(probe["modules"]) == modules
    assert probe["data"] == list(PACKAGE_DATA)


@pytest.mark.parametrize("environment", ["wheel", "sdist"], indirect=True)
def test_the_packages_are_not_top_level_names(probe: dict[str, Any]) -> None:
    assert probe["top_level"] == []


@pytest.mark.parametrize("environment", ["sdist"], indirect=True)
def test_a_source_distribution_installs_the_files_of_the_wheel(probe: dict[str, Any], distributions: Path) -> None:
    assert set(probe["files"]) == {name for name in names_in_the_wheel(distributions) if name.startswith("driftline/")}


def test_each_install_knows_its_version(environment: Environment, probe: dict[str, Any]) -> None:
    assert environment.run("driftline", "--version") == f"driftline {probe['version']}\n"


@pytest.mark.parametrize("environment", USED, indirect=True)
def test_prefect_loads_the_entry_points(environment: Environment) -> None:
    printed = environment.run("python", "-c", ENTRY_POINTS)
    names = ("cleanup", "compact", "fleet", "index", "prune", "verify")
    assert printed.strip() == str([f"driftline-{name}" for name in names])


@pytest.mark.parametrize("environment", USED, indirect=True)
def test_spawned_workers_import_the_install(environment: Environment, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "notes.md").write_text("a parser\n")
    command = ("index", tmp_path / "tree", "--model", tiny_model, "--executor", "local", "--workers", 1, "--json")
    report = json.loads(environment.run("driftline", *command))
    assert report["sources"][0]["new"] == 1


@pytest.mark.parametrize("environment", USED, indirect=True)
def test_mypy_accepts_a_program_and_refuses_mistakes(environment: Environment, tmp_path: Path) -> None:
    assert_checks(mypy, tmp_path, environment.python)


def test_distributions_contain_only_the_package(distributions: Path) -> None:
    names = names_in_the_wheel(distributions)
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"driftline"}
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as sdist:
        parts = [Path(member.name).parts for member in sdist.getmembers()]
        assert not [member.name for member in sdist.getmembers() if member.issym()]
    modules = {each[1] for each in parts if each[-1].endswith(".py")}
    assert modules <= {"driftline", "setup.py"}
