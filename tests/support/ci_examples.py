"""The jobs in the CI examples: their shell steps (without installation) and their variables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "deployments" / "ci"


@dataclass(frozen=True)
class Job:
    """A job in an example. ``script`` is a shell program without the ``installs`` lines; references to secrets are left
    unresolved.
    """

    name: str
    script: str
    installs: tuple[str, ...]
    variables: dict[str, str]


def github_jobs() -> dict[str, Job]:
    """Return the jobs in ``github-actions.yml``."""
    file = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())
    jobs = {}
    for name, job in file["jobs"].items():
        steps = [step["run"] for step in job["steps"] if "run" in step]
        jobs[name] = _job(name, steps, file.get("env", {}) | job.get("env", {}))
    return jobs


def gitlab_jobs() -> dict[str, Job]:
    """Return the jobs in ``gitlab-ci.yml``, with ``extends`` resolved."""
    file = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())
    jobs = {}
    for name, job in file.items():
        if not name.startswith("."):
            whole: dict[str, Any] = file[job["extends"]] | job if "extends" in job else job
            jobs[name] = _job(name, [*whole.get("before_script", []), *whole["script"]], whole.get("variables", {}))
    return jobs


def _job(name: str, steps: list[str], variables: dict[str, str]) -> Job:
    installs = tuple(step for step in steps if step.startswith("pip install "))
    script = "\n".join(step for step in steps if step not in installs)
    return Job(name, script, installs, {key: str(value) for key, value in variables.items()})
