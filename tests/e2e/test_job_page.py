"""The page of ``flinkpy job ui`` in Debian's Chromium: it is served by the command, and nobody loads it again."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from dagster_flinkpy.datastream import MapFunction
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.e2e.busy_job import program, running
from tests.e2e.chromium import CHROMIUM, open_page
from tests.e2e.job_page import card, served, share
from tests.runtime.harness import HarnessAttempt
from tests.runtime.master.test_open_epochs import Run, World
from tests.runtime.master.test_restarts import FailsAt
from tests.runtime.master.test_restarts import program as failing
from tests.waiting import LIMIT, until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]

MOSTLY = 50
"""Percent of the time: more than half of it."""


class Raises(MapFunction):
    def map(self, value: Any) -> Any:
        raise ValueError("<img src=x onerror=alert(1)>")


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    with open_page(1400, 900) as page:
        yield page


@pytest.fixture
def page(browser_page: Page) -> Iterator[Page]:
    """A page on which no script fails and nothing is refused."""
    complaints = list[str]()

    def hear(message: Any) -> None:
        complaint = str(getattr(message, "text", message))
        if "ERR_CONNECTION_REFUSED" not in complaint:  # the server has ended, and the page still asks
            complaints.append(complaint)

    browser_page.on("pageerror", hear)
    browser_page.on("console", hear)
    yield browser_page
    browser_page.goto("about:blank")
    browser_page.remove_listener("pageerror", hear)
    browser_page.remove_listener("console", hear)
    assert complaints == []


@pytest.mark.spark
def test_a_source_before_a_slow_sink_is_back_pressured(
    page: Page, spark_settings: SparkSettings, tmp_path: Path
) -> None:
    storage = StorageLocation(str(tmp_path / "checkpoints"))
    job = storage.child("visits")
    with running(program(tmp_path / "out"), storage, spark_settings, "visits"):
        until(lambda: (tmp_path / "checkpoints" / "visits" / "execution").exists(), "the run says nothing")
        with served(job) as address:
            page.goto(address)
            expect(page.locator("#status")).to_have_text("RUNNING")
            page.evaluate("window.sameAsBefore = true")
            until(lambda: share(page, "clicks", "back-pressured") > MOSTLY, "the source is not back-pressured")
            until(lambda: share(page, "warehouse", "busy") > MOSTLY, "the sink is not busy")
            assert share(page, "clicks", "busy") < share(page, "clicks", "back-pressured")
            assert share(page, "warehouse", "back-pressured") < share(page, "warehouse", "busy")
            expect(page.locator("#event-time tr", has_text="visitors").first.locator(".held").first).to_have_text(
                "campaigns"
            )
            card(page, "visitors").click()
            expect(page.locator("#operator tbody tr")).to_have_count(2)
            expect(page.locator("#checkpoints .dot.completed").nth(2)).to_be_visible()
            assert page.evaluate("window.sameAsBefore"), "it was loaded again"
    with served(job) as address:
        page.goto(address)
        expect(page.locator("#status")).to_have_text("CANCELED")


@pytest.mark.smoke
def test_a_job_that_has_failed(page: Page, tmp_path: Path) -> None:
    graph, _ = failing(tmp_path, FailsAt(9, tmp_path, executions=9))
    with pytest.raises(Exception, match="boom"), HarnessAttempt(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    with served(StorageLocation(str(tmp_path / "job"))) as address:
        page.goto(address)
        expect(page.locator("#status")).to_have_text("FAILED")
        expect(card(page, "map").locator(".dot.failed")).to_be_visible()
        expect(page.locator("#failures .error")).to_contain_text("UserFunctionError: map() of operator 'map'")
        expect(page.locator("#runs tbody tr")).to_contain_text("UserFunctionError")
        expect(page.locator("#checkpoints tr.failed")).to_contain_text("CHECKPOINT_DECLINED")


def test_a_job_before_its_first_checkpoint(page: Page, tmp_path: Path) -> None:
    world = World()
    with Run(world, tmp_path) as run:
        until(lambda: (tmp_path / "job" / "execution").exists(), "the run says nothing")
        with served(StorageLocation(str(tmp_path / "job"))) as address:
            page.goto(address)
            expect(page.locator("#status")).to_have_text("RUNNING")
            expect(card(page, "count")).to_contain_text("no numbers yet")
            expect(page.locator("#measured")).to_contain_text("as soon as the first checkpoint is complete")
            expect(page.locator("#checkpoints")).to_contain_text("No checkpoint has ended yet.")
            world.records.append(7)
            world.wait_for(7)
            world.ended = True
            expect(page.locator("#status")).to_have_text("FINISHED")
            expect(card(page, "count")).to_contain_text("in ")
    assert run.checkpoints == [1]


def test_names_are_text(page: Page, tmp_path: Path) -> None:
    graph, _ = failing(tmp_path, Raises())
    with pytest.raises(Exception, match="img"), HarnessAttempt(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    with served(StorageLocation(str(tmp_path / "job"))) as address:
        page.goto(address)
        expect(page.locator("#failures .error")).to_contain_text("<img src=x onerror=alert(1)>")
        expect(page.locator("img")).to_have_count(0)


def test_a_job_on_s3(page: Page, s3_location: StorageLocation, tmp_path: Path) -> None:
    graph, _ = failing(tmp_path)
    with HarnessAttempt(graph, s3_location) as attempt:
        attempt.run_epoch()
    with served(s3_location.child("job")) as address:
        page.goto(address)
        expect(page.locator("#job")).to_have_text("job")
        expect(page.locator("#facts")).to_contain_text(s3_location.url)
        expect(card(page, "counts")).to_contain_text("busy")


def test_without_the_token_and_after_the_end(browser_page: Page, tmp_path: Path) -> None:
    graph, _ = failing(tmp_path)
    with HarnessAttempt(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    with served(StorageLocation(str(tmp_path / "job"))) as address:
        answer = browser_page.goto(address.partition("?")[0] + "?token=wrong")
        assert answer is not None and answer.status == 403
        expect(browser_page.locator("body")).to_contain_text("lacks the token")
        browser_page.goto(address)
        expect(browser_page.locator("#status")).to_have_text("FINISHED")
        expect(browser_page.locator("#problem")).to_be_hidden()
    expect(browser_page.locator("#problem")).to_contain_text("does not answer any more")
    browser_page.goto("about:blank")


def test_the_page_is_in_the_wheel(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, timeout=LIMIT, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    folder = Path("dagster_flinkpy/cli/page")
    files = {Path(name).name for name in zipfile.ZipFile(wheel).namelist() if Path(name).parent == folder}
    assert files == {each.name for each in (root / folder).iterdir()}
