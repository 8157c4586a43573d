"""Driftline: a semantic index of every line in your repositories and buckets, kept up to date.

``__init__.pyi`` lists the public names. A name's module is imported on first use, so ``import driftline`` is fast.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


@cache
def _modules() -> dict[str, str]:
    """Return the modules of the public names, as the stub imports them."""
    import ast
    from importlib.resources import files

    tree = ast.parse(files(__name__).joinpath("__init__.pyi").read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version(__name__)
    elif name == "__all__":
        value = sorted([*_modules(), "__version__"])
    elif name.startswith("_") or (module := _modules().get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
