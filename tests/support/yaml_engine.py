"""A small engine that runs YAML agents like real engines do, with templates over the state and keyword arguments."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, MutableMapping
from itertools import pairwise
from typing import Any

import yaml
from jinja2 import Environment

_WHOLE = re.compile(r"\{\{((?:(?!\}\}).)*)\}\}", re.DOTALL)
_MAX_NODES = 100

Action = Callable[..., Any]


class YamlEngine:
    """Runs the ``nodes`` of a document from the first, along ``edges`` if there are any, else in order.

    A node has ``uses`` and ``with``, or ``run``: the body of a Python function of ``state`` that returns a dictionary,
    which is merged into the state. An action's result is stored in the state under ``output`` if that is given, else
    under the node's name. If ``keeps_types`` is set, a template that makes up a whole value keeps its type; otherwise
    every template renders to text, and missing values and None render to "". Each action receives ``engine``, ``node``,
    ``graph``, ``config`` and ``checkpoint_dir`` in addition to its own arguments. A host resolves names in
    ``actions_registry``.
    """

    def __init__(self, registry: Mapping[str, Action] | None = None, *, keeps_types: bool = True) -> None:
        self.actions_registry: MutableMapping[str, Action] = dict(registry or {})
        self.keeps_types = keeps_types
        self.settings: dict[str, Any] = {}
        self.visited: list[str] = []
        self._jinja = Environment(finalize=lambda value: "" if value is None else value)
        self._to_close: list[Callable[[], None]] = []

    def on_close(self, function: Callable[[], None]) -> None:
        """Call ``function`` when the engine closes."""
        self._to_close.append(function)

    def close(self) -> None:
        for function in self._to_close:
            function()

    def load_actions(self, register_actions: Callable[..., None], namespace: str = "", **options: Any) -> None:
        """Import actions as engines do: into an empty registry that is then merged into the engine's own."""
        found: dict[str, Action] = {}
        register_actions(found, self, **options)
        for name, function in found.items():
            self.actions_registry[f"{namespace}.{name}" if namespace else name] = function

    def run(self, document: str, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the state after the last node. ``visited`` lists the nodes that ran."""
        agent = yaml.safe_load(document)
        self.settings = agent.get("settings", {})
        self.visited = []
        nodes = {node["name"]: node for node in agent["nodes"]}
        edges = agent.get("edges")
        if edges is None:
            names = list(nodes)
            edges = [{"from": one, "to": other} for one, other in pairwise(names)]
        current = dict(state or {})
        name: str | None = next(iter(nodes))
        while name is not None:
            assert len(self.visited) < _MAX_NODES, f"the agent runs in a circle: {self.visited}"
            self.visited.append(name)
            self._run_node(nodes[name], current)
            name = next((edge["to"] for edge in edges if edge["from"] == name and self._is_taken(edge, current)), None)
        return current

    def _run_node(self, node: Mapping[str, Any], state: dict[str, Any]) -> None:
        if "run" in node:
            namespace: dict[str, Any] = {}
            exec(f"def run(state):\n{textwrap.indent(node['run'], '    ')}", namespace)
            state.update(namespace["run"](state) or {})
        elif "uses" in node:
            own = {"engine": self, "node": node["name"], "graph": object(), "config": {}, "checkpoint_dir": None}
            arguments = {**own, **self._rendered(node.get("with", {}), state)}
            state[node.get("output", node["name"])] = self.actions_registry[node["uses"]](state=state, **arguments)

    def _is_taken(self, edge: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
        return "when" not in edge or bool(eval(edge["when"], {"state": state}))

    def _rendered(self, value: Any, state: Mapping[str, Any]) -> Any:
        if isinstance(value, dict):
            return {key: self._rendered(each, state) for key, each in value.items()}
        if isinstance(value, list):
            return [self._rendered(each, state) for each in value]
        if not isinstance(value, str) or "{{" not in value:
            return value
        names = {**state, "state": state}
        whole = _WHOLE.fullmatch(value.strip())
        if whole and self.keeps_types:
            return self._jinja.compile_expression(whole[1])(**names)
        return self._jinja.from_string(value).render(**names)


def run_yaml(
    document: str, registry: Mapping[str, Action], state: Mapping[str, Any], *, keeps_types: bool = True
) -> dict[str, Any]:
    """Return the state after running the nodes of ``document``."""
    return YamlEngine(registry, keeps_types=keeps_types).run(document, state)
