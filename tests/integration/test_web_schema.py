"""The HTTP API against its own OpenAPI document: schemathesis sends requests that the document allows, and invalid
ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from schemathesis.specs.openapi.checks import positive_data_acceptance

import driftline as dl
from driftline.flows.web.api import Reader
from driftline.flows.web.server import web_server
from driftline.storage.workspace.workspace import Workspace
from tests.support.effort import examples
from tests.support.web import serving

EXAMPLES = examples(15)
"""Requests per route; hundreds of times as many found nothing more."""

NAMES = {"path", "dir", "glob", "ext", "source", "branch", "entity", "within"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("web-schema")
    (folder / "tree/sub").mkdir(parents=True)
    (folder / "tree/lease.py").write_text("def renew(lease):\n    return lease.renew()\n")
    (folder / "tree/sub/notes.md").write_text("# Leases\n\nA run renews its lease.\n")
    dl.index(str(folder / "tree"), workspace=str(folder / "ws"), model=str(tiny_model), executor="inline")
    reader = Reader(Workspace.open(str(folder / "ws")).reread)
    with serving(web_server(reader, "127.0.0.1", 0)) as address:
        yield address


@pytest.fixture(scope="module")
def document(address: str) -> Any:
    return schemathesis.openapi.from_url(f"http://{address}/api/v1/openapi.json")


schema = schemathesis.pytest.from_fixture("document")


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[HypothesisPhase.explicit, HypothesisPhase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_api_keeps_what_its_document_promises(case: Any) -> None:
    # Queries have a syntax, and some options require exact terms: no schema can tell which queries are rejected.
    requested = case.query or {}
    exact = {"fixed", "regex", "count", "files"} & requested.keys()
    query = str(requested.get("q", ""))  # required without exact terms
    is_language = case.path == "/api/v1/search" and (exact or not query.strip() or re.search(r'["/:]', query))
    named = NAMES & requested.keys()  # no schema can tell which names of files and entities are valid
    beyond_schema = [positive_data_acceptance] if is_language or named or case.path == "/api/v1/sql" else []
    case.call_and_validate(excluded_checks=beyond_schema)
