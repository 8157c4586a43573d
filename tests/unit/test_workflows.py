"""Requirements for the repository's workflows that `make workflows` does not check."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps(workflow: str) -> list[dict[str, Any]]:
    return [step for job in WORKFLOWS[workflow]["jobs"].values() for step in job["steps"]]


def test_ci_and_release_are_there() -> None:
    assert set(WORKFLOWS) == {"ci", "release"}


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_target_of_a_workflow_exists(workflow: str) -> None:
    commands = " ".join(step.get("run", "") for step in steps(workflow))
    assert set(re.findall(r"make ([a-z]+)", commands)) <= TARGETS
    for job in WORKFLOWS[workflow]["jobs"].values():
        assert set(job.get("strategy", {}).get("matrix", {}).get("target", ())) <= TARGETS


def test_every_step_of_the_local_run_exists() -> None:
    wanted = re.findall(r"^step ([a-z]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert wanted
    assert set(wanted) <= TARGETS


def test_ci_and_the_local_run_check_the_same() -> None:
    local = set(re.findall(r"^step ([a-z]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)) - {"setup"}
    remote = set(WORKFLOWS["ci"]["jobs"]["checks"]["strategy"]["matrix"]["target"])
    assert local == remote | {"test"}


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_actions_are_pinned_and_rights_are_read_only(workflow: str) -> None:
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}
    for name, job in WORKFLOWS[workflow]["jobs"].items():
        assert job["timeout-minutes"] <= 90
        assert "permissions" not in job, name


def test_a_release_tests_the_wheel_and_the_source_distribution_and_publishes_nothing() -> None:
    commands = " ".join(step.get("run", "") for step in steps("release"))
    for words in ("make dist", "dist/*.whl dist/*.tar.gz", 'driftline" search', "tests/integration/test_packaging.py"):
        assert words in commands
    actions = [step.get("uses", "") for step in steps("release")]
    assert not re.search("publish|twine", " ".join([commands, *actions]))


def test_ci_tests_each_version_of_python_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tested = WORKFLOWS["ci"]["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert tested == ["3.11", "3.12", "3.13", "3.14"]
    assert project["requires-python"] == f">={tested[0]}"
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert named == tested
