"""Debian's Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Locator, Page, TimeoutError, expect, sync_playwright

from tests.waiting import LIMIT

__all__ = [
    "CHROMIUM",
    "appears",
    "fill_launchpad",
    "launch_backfill",
    "node",
    "open_page",
    "rest",
    "switch_of",
    "terminate",
]

CHROMIUM = shutil.which("chromium")
"""Path of the browser, or None if it is not installed."""
_RELOAD_MILLIS = 15_000
_FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@contextmanager
def open_page(width: int, height: int) -> Iterator[Page]:
    """Opens an empty page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS.split())
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(LIMIT * 1000)
        expect.set_options(timeout=LIMIT * 1000)
        yield page
        browser.close()


def rest(page: Page) -> None:
    """Leaves Dagster's pages, which ask the server for news and draw it all the time."""
    page.goto("about:blank")


def appears(page: Page, url: str, what: Locator) -> None:
    """Waits for something on a page. It is loaded again and again, because Dagster's pages do not show all that is new.

    Raises:
        AssertionError: It does not appear. The error has the text of the page.
    """
    for _ in range(LIMIT * 1000 // _RELOAD_MILLIS):
        page.goto(url)
        try:
            what.wait_for(timeout=_RELOAD_MILLIS)
        except TimeoutError:
            continue
        return
    raise AssertionError(f"{what} is not on {url}, which shows:\n{page.inner_text('body')}")


def terminate(page: Page, run: str) -> None:
    """Terminates a run with the button on its page.

    Args:
        page: A page of the browser.
        run: The address of the page of the run.
    """
    page.goto(run)
    page.get_by_text("Terminate", exact=True).click()
    page.get_by_text("Terminate 1 run", exact=True).click()
    # The dialog disappears when the run has ended.


def node(page: Page, name: str) -> Locator:
    """Returns the node of an asset in the graph."""
    return page.get_by_text(name, exact=True).first


def switch_of(page: Page, sensor: str) -> Locator:
    """Returns the switch of a sensor on Dagster's page of automations.

    Each row has two boxes, selection and switch. The switch comes later, so rows side by side can have two boxes, too.
    """
    row = page.get_by_text(sensor, exact=True).locator("xpath=ancestor::div[count(.//label/input)=2][1]")
    return row.locator("label[class*=formatSwitch]")


def fill_launchpad(page: Page, launchpad: str, config: str) -> None:
    """Replaces the config of a run in the launchpad."""
    page.goto(launchpad)
    page.locator(".CodeMirror-line").filter(has_text="ops:").first.wait_for()  # the existing config
    page.locator(".CodeMirror").first.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(config)


def launch_backfill(page: Page, group: str, first: str, last: str) -> None:
    """Launches a backfill of all assets of a group, from the dialog on the page of the group."""
    page.goto(group)
    page.get_by_role("button", name="Materialize all").click()
    partitions = page.get_by_placeholder("ex: 20")
    partitions.fill(f"[{first}...{last}]")
    partitions.press("Enter")
    page.get_by_role("button", name="Launch backfill").click()
