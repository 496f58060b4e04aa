"""What is launched by hand, in a deployment that keeps its runs in PostgreSQL."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.e2e.conftest import Deployment
from tests.e2e.test_ui import CHROMIUM, FLAGS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.spark,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


def test_rescale_from_the_launchpad(deployment: Deployment) -> None:
    before = deployment.latest_checkpoint("flights")["checkpoint_id"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        page = browser.new_page(viewport={"width": 1420, "height": 860})
        page.set_default_timeout(60_000)
        _launch(page, f"{deployment.url}/locations/flights/jobs/flights_rescale/playground")
        browser.close()
    done = {"pipelineName": "flights_rescale", "statuses": ["SUCCESS"]}
    (run,) = deployment.until("the rescale", lambda: deployment.runs(**done))
    assert f"now its checkpoint {before + 1}" in deployment.log(run["runId"])
    assert deployment.latest_checkpoint("flights")["checkpoint_id"] == before + 1


def _launch(page: Page, launchpad: str) -> None:
    page.goto(launchpad)
    page.get_by_text("master:").first.wait_for()  # the config that there is
    page.locator(".CodeMirror").first.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text("ops: {rescale_flights: {config: {parallelism: 3}}}")
    page.get_by_role("button", name=re.compile("Launch run", re.IGNORECASE)).click()
    page.wait_for_url(re.compile("/runs/"))
