"""The stages of a run, which a front door may show one by one, such as Prefect as tasks in its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Stage:
    """What a run does next: ``work``. ``said`` tells counts of its result; a ``repeatable`` one may be retried.

    It comes ``after`` the stages of these names, as far as they have begun, or else is the first one of its run.
    """

    name: str
    work: Callable[[], Any]
    said: Callable[[Any], str]
    repeatable: bool
    after: tuple[str, ...] = ()


class StageRunner(Protocol):
    """Runs a stage and returns what its work returns."""

    def __call__(self, stage: Stage) -> Any: ...


_RUNNER: ContextVar[StageRunner | None] = ContextVar("stage runner", default=None)


def run_stage(
    name: str,
    work: Callable[[], _Result],
    said: Callable[[_Result], str],
    *,
    repeatable: bool = False,
    after: Iterable[str] = (),
) -> _Result:
    """Do ``work``, shown as a stage where somebody watches. Raises what it raises."""
    runner = _RUNNER.get()
    if runner is None:
        return work()
    result: _Result = runner(Stage(name, work, said, repeatable, tuple(after)))
    return result


@contextmanager
def stages_run_by(runner: StageRunner) -> Iterator[None]:
    """Have ``runner`` run the stages of this context and of those that are copied from it."""
    token = _RUNNER.set(runner)
    try:
        yield
    finally:
        _RUNNER.reset(token)
