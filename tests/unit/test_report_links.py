"""The link from a flow run's report to the web server's page."""

from __future__ import annotations

import pytest

from driftline.flows.output.artifacts import page_of_run


@pytest.mark.parametrize(
    ("server", "link"),
    [
        ("https://search.example.com", "https://search.example.com/index#01RUN"),
        ("http://127.0.0.1:8030/", "http://127.0.0.1:8030/index#01RUN"),
        ("https://example.com/drift line/", "https://example.com/drift%20line/index#01RUN"),
        ("", None),
        ("ftp://example.com", None),
        ("https://user:hunter2@example.com", None),
        ("javascript:alert(1)", None),
        ("https://[", None),
    ],
)
def test_a_report_leads_to_the_run_on_the_page(server: str, link: str | None) -> None:
    assert page_of_run("01RUN", {"DRIFTLINE_SERVER": server}) == link
