"""Says what the page showed when a browser test failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Adds address and text of the page to the report."""
    report = yield
    page = getattr(item, "funcargs", {}).get("page")
    if report.when == "call" and report.failed and isinstance(page, Page):
        report.sections.append(("page", f"{page.url}\n{page.inner_text('body')[:8000]}"))
    return report
