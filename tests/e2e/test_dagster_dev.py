"""A real ``dagster dev`` with its daemon, on PostgreSQL, driven in Debian's Chromium and over GraphQL.

The tests share it and run in this order, because the numbers of checkpoints continue.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import make_url

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from tests.e2e.chromium import (
    CHROMIUM,
    appears,
    fill_launchpad,
    launch_backfill,
    node,
    open_page,
    rest,
    switch_of,
    terminate,
)
from tests.e2e.deployment import Deployment, dagster_dev
from tests.e2e.location import expected_visits, write_clicks
from tests.e2e.storage import OneConnection

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),  # the first test also waits for the deployment
    pytest.mark.spark,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]

WIDTH, HEIGHT = 1420, 860

# A checkpoint of the stream, and a partition of the partitioned job.
PREPARE = """
from dagster import DagsterInstance
from assets.demo.runner import Demo
from tests.e2e.location import defs, visits, write_visits
write_visits()
with DagsterInstance.get() as instance:
    demo = Demo(instance)
    demo.materialize_input()
    demo.checkpoint()
    defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=list(visits[0].keys),
        partition_key="2024-03-01",
    )
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> Iterator[Deployment]:
    """Starts the flights after one of four days, and the jobs of `tests.e2e.location`."""
    home = tmp_path_factory.mktemp("home")
    locations = {"flights": "assets.definitions", "small": "tests.e2e.location"}
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE DATABASE dagster")
    # dagster-postgres installs psycopg2, but SQLAlchemy 2.1 looks for psycopg 3 by default.
    url = make_url(postgres).set(drivername="postgresql+psycopg2", database="dagster")
    storage = {
        "custom": {
            "module": OneConnection.__module__,
            "class": OneConnection.__name__,
            "config": {"postgres_url": url.render_as_string(hide_password=False)},
        }
    }
    with dagster_dev(home, locations, prepare=PREPARE, variables={"FLINKPY_DAYS": "4"}, storage=storage) as running:
        yield running


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    """One page for all tests: the browser then keeps what it has loaded and compiled."""
    with open_page(WIDTH, HEIGHT) as page:
        yield page


@pytest.fixture
def page(deployment: Deployment, browser_page: Page) -> Iterator[Page]:
    browser_page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    browser_page.goto(f"{deployment.url}/server_info")
    browser_page.evaluate("localStorage.clear()")
    yield browser_page
    rest(browser_page)


def test_materialize_from_the_page(deployment: Deployment, page: Page) -> None:
    lineage = f"{deployment.url}/locations/flights/asset-groups/flights/lineage"
    page.goto(lineage)
    page.get_by_text("Hide navigation").click()
    page.goto(lineage)  # so that the graph fits the wider page
    for name in ("flights_raw_files", "departed", "weather_join", "rotations_table", "never_departed_table"):
        expect(node(page, name)).to_be_visible()
    expect(page.get_by_text("Flink")).to_have_count(10)

    before = len(deployment.runs())
    page.get_by_role("button", name="Materialize all").click()
    deployment.until("a run", lambda: len(deployment.runs()) > before)
    rest(page)
    (run, *_) = deployment.runs()
    deployment.until("its end", lambda: deployment.runs(runIds=[run["runId"]], statuses=["SUCCESS"]))
    page.set_viewport_size({"width": 1980, "height": HEIGHT})
    page.goto(lineage)
    node(page, "rotations").click()
    expect(page.get_by_role("row", name="flink/checkpoint_id 2")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^flink.watermark [A-Z]"))).to_be_visible()

    page.goto(f"{deployment.url}/assets/flights/rotations?view=events")
    expect(page.get_by_role("cell", name="64..127", exact=True)).to_be_visible()  # the table of subtasks
    picture = page.get_by_role("img", name="Rows by key group")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") == 384, "64 bars, drawn by the browser"


def test_restore_job_asks_for_its_savepoint(deployment: Deployment, page: Page) -> None:
    page.goto(f"{deployment.url}/locations/flights/jobs/flights_restore/playground")
    expect(page.get_by_text("Launch run").first).to_be_visible()
    expect(page.get_by_text("savepoint_path").first).to_be_visible()


def test_checkpoint_sensor_takes_two_checkpoints(deployment: Deployment, page: Page) -> None:
    before = deployment.latest_checkpoint("flights")["checkpoint_id"]
    wanted = [before + 1, before + 2]
    page.goto(f"{deployment.url}/automation")
    sensor = "flights_checkpoint_sensor"
    switch_of(page, sensor).click()
    deployment.until("it is on", lambda: deployment.sensor("flights", sensor)["status"] == "RUNNING")
    rest(page)
    by_sensor = {"statuses": ["SUCCESS"], "tags": [{"key": "dagster/sensor_name", "value": sensor}]}

    def taken() -> list[int]:
        runs = deployment.runs(**by_sensor)
        return sorted(checkpoint for run in runs if (checkpoint := int(run["tags"]["flink/checkpoint"])) > before)

    deployment.until("two checkpoints", lambda: taken() == wanted)
    deployment.until("no third one", lambda: deployment.said("flights", sensor, "holds the end of its input"))
    assert deployment.latest_checkpoint("flights")["retained"] == [before, *wanted]
    for checkpoint in wanted:
        assert (deployment.home / "checkpoints" / "flights" / f"chk-{checkpoint}" / "_metadata").exists()

    page.goto(f"{deployment.url}/locations/flights/sensors/{sensor}")
    page.get_by_role("button", name="Runs", exact=True).click()
    for checkpoint in wanted:
        expect(page.get_by_text(f"flink/checkpoint: {checkpoint}")).to_be_visible()
    deployment.switch_off("flights", sensor)
    page.goto(f"{deployment.url}/assets/flights/rotations?view=events")
    expect(page.get_by_role("row", name=f"flink/checkpoint_id {wanted[-1]}")).to_be_visible()
    expect(page.get_by_role("row", name="flink/watermark end of input")).to_be_visible()


def test_job_that_fails_is_restarted(deployment: Deployment) -> None:
    """Its status switches the checkpoint sensor on and off. The restart sensor starts it from its checkpoint."""
    on, off = "words_checkpoint_sensor_on_when_started", "words_checkpoint_sensor_off_when_failure"
    for sensor in (on, off):
        deployment.switch_on("small", sensor)
    for sensor in (on, off):  # the first tick of a run-status sensor only notes where it begins
        deployment.until(sensor, lambda sensor=sensor: deployment.sensor("small", sensor)["ticks"])

    def checkpoint_sensor() -> str:
        return str(deployment.sensor("small", "words_checkpoint_sensor")["status"])

    def runs(*statuses: str) -> list[str]:
        return [run["runId"] for run in deployment.runs(statuses=list(statuses), tags=[tag])]

    tag = {"key": "flink/job", "value": "words"}
    assert checkpoint_sensor() == "STOPPED"
    deployment.launch("small", "words_checkpoint")
    deployment.until("the periodic trigger is active", lambda: checkpoint_sensor() == "RUNNING")
    deployment.until("the first checkpoint", lambda: runs("SUCCESS"))
    failed = deployment.launch("small", "words_checkpoint")
    deployment.until("the periodic trigger is off", lambda: checkpoint_sensor() == "STOPPED")
    assert runs("FAILURE") == [failed]
    assert deployment.latest_checkpoint("words")["checkpoint_id"] == 1

    (deployment.home / "repaired").touch()
    deployment.switch_on("small", "words_restart_sensor")
    restarted = {"statuses": ["SUCCESS"], "tags": [{"key": "flink/restart_of", "value": failed}]}
    (restart,) = deployment.until("the restart", lambda: deployment.runs(**restarted))
    assert "checkpoint 3: words: 2-4" in deployment.log(
        restart["runId"]
    )  # number 2 failed, so it continues after the first
    deployment.until("the periodic trigger is active again", lambda: checkpoint_sensor() == "RUNNING")
    assert deployment.latest_checkpoint("words")["checkpoint_id"] == 3
    files = (deployment.home / "tables" / "words").glob("*.parquet")
    rows = [tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(rows) == [("be", 1), ("not", 1), ("or", 1), ("to", 1)]
    deployment.switch_off("small", on, off, "words_restart_sensor", "words_checkpoint_sensor")


def test_upkeep_of_the_job(deployment: Deployment) -> None:
    """The savepoint sensor keeps the last checkpoint once, and the retention sensor sweeps."""
    for sensor in ("words_savepoint_sensor", "words_retention_sensor"):
        deployment.switch_on("small", sensor)
    for job in ("words_savepoint", "words_sweep"):
        deployment.until(f"a run of {job}", lambda job=job: deployment.runs(pipelineName=job, statuses=["SUCCESS"]))
    said = "a savepoint of checkpoint 3, the last one, has already been requested"
    deployment.until("no second one", lambda: deployment.said("small", "words_savepoint_sensor", said))
    (savepoint,) = (deployment.home / "checkpoints").rglob("savepoint-words-*/_metadata")
    assert CheckpointMetadata.from_bytes(savepoint.read_bytes(), "savepoint").checkpoint_id == 3
    deployment.until("not yet again", lambda: deployment.said("small", "words_retention_sensor", "due in"))
    deployment.switch_off("small", "words_savepoint_sensor", "words_retention_sensor")


def test_a_job_that_runs_on(deployment: Deployment, page: Page) -> None:
    """It takes a savepoint and is rescaled; it is terminated, exceeds its time and is stopped, and loses nothing."""
    clicks = Clicks(deployment, page)
    sensor = "clicks_supervising_sensor"
    clicks.write("a", "b")
    deployment.switch_on("small", sensor)
    (first,) = deployment.until("the job is started", clicks.at_work)
    clicks.await_rows()

    deployment.launch("small", "clicks_savepoint")
    assert f"Asks Dagster run {first}" in clicks.asked("savepoint")
    assert len(clicks.savepoints()) == 1
    clicks.launch_from_page("rescale", "ops: {rescale_clicks: {config: {parallelism: 3}}}")
    assert "rescaled to parallelism 3 while it runs" in clicks.asked("rescale")
    clicks.write("a")
    clicks.await_rows()
    assert clicks.at_work() == [first]
    parallelism = page.get_by_role("row", name="flink/parallelism 3")
    appears(page, f"{deployment.url}/assets/clicks/click_counts?view=events", parallelism)  # while the run goes on

    terminate(page, f"{deployment.url}/runs/{first}")
    clicks.await_end(first, "CANCELED")
    deployment.until("it stays canceled", lambda: deployment.said("small", sensor, f"run {first} was canceled"))
    deployment.switch_off("small", sensor)

    second = clicks.start()
    clicks.write("b")
    clicks.await_rows()
    deployment.add_tags(second, {"dagster/max_runtime": "1"})
    clicks.await_end(second, "FAILURE")
    assert "Exceeded maximum runtime" in deployment.log(second)

    third = clicks.start()
    clicks.write("a", "b")
    clicks.await_rows()
    clicks.launch_from_page("stop")
    assert f"Asks Dagster run {third}" in clicks.asked("stop")
    clicks.await_end(third, "SUCCESS")
    assert len(clicks.savepoints()) == 2
    clicks.await_rows()  # nothing was counted twice
    deployment.switch_on("small", sensor)
    deployment.until("it stays stopped", lambda: deployment.said("small", sensor, "was stopped with a savepoint"))
    deployment.switch_off("small", sensor)


class Clicks:
    """The job that runs on, and its input and output."""

    def __init__(self, deployment: Deployment, page: Page) -> None:
        self._deployment, self._page = deployment, page
        self._written: list[list[str]] = []

    def write(self, *sites: str) -> None:
        """Writes another file of clicks."""
        self._written.append(list(sites))
        write_clicks(self._deployment.home, len(self._written), list(sites))

    def start(self) -> str:
        """Starts a run that goes on, and returns its id."""
        rest(self._page)
        config = {"ops": {"clicks": {"config": {"epochs": 0}}}}
        run = self._deployment.launch("small", "clicks_restart", config)
        return str(self._deployment.until("the job is started", lambda: run in self.at_work() and run))

    def at_work(self) -> list[str]:
        """Returns the runs that have begun and not ended."""
        runs = self._deployment.runs(pipelineName="clicks_restart", statuses=["STARTED"])
        return [run["runId"] for run in runs]

    def await_rows(self) -> None:
        """Waits until each click is in the table, with its number."""
        counts: Counter[str] = Counter()
        expected = []
        for site in (site for sites in self._written for site in sites):
            counts[site] += 1
            expected.append((site, counts[site]))

        def rows() -> list[tuple[str, int]]:
            files = (self._deployment.home / "tables" / "clicks").glob("*.parquet")
            return sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())

        self._deployment.until("the rows", lambda: rows() == sorted(expected))

    def await_end(self, run: str, status: str) -> None:
        """Waits until a run has ended."""
        self._deployment.until(f"the run is {status}", lambda: self._deployment.runs(runIds=[run], statuses=[status]))

    def launch_from_page(self, job: str, config: str | None = None) -> None:
        """Launches a run of one of the jobs around the job, with the button of the launchpad."""
        launchpad = f"{self._deployment.url}/locations/small/jobs/clicks_{job}/playground"
        if config is None:
            self._page.goto(launchpad)
        else:
            fill_launchpad(self._page, launchpad, config)
        self._page.get_by_role("button", name=re.compile("Launch run", re.IGNORECASE)).click()
        self._page.wait_for_url(re.compile("/runs/"))
        rest(self._page)

    def asked(self, job: str) -> str:
        """Waits for a run of one of the jobs around the job to succeed, and returns its log."""
        name = f"clicks_{job}"
        runs = self._deployment.until(name, lambda: self._deployment.runs(pipelineName=name, statuses=["SUCCESS"]))
        return self._deployment.log(runs[0]["runId"])

    def savepoints(self) -> list[Path]:
        """Returns the savepoints of the job."""
        return list((self._deployment.home / "checkpoints" / "clicks").glob("savepoint-clicks-*/_metadata"))


def test_backfill_of_some_days_from_the_page(deployment: Deployment, page: Page) -> None:
    launch_backfill(page, f"{deployment.url}/locations/small/asset-groups/visits/lineage", "2024-03-02", "2024-03-04")
    backfill = deployment.until("the backfill", deployment.backfills)[0]["id"]
    rest(page)
    (run,) = deployment.until(
        "its run", lambda: deployment.runs(statuses=["SUCCESS"], tags=[{"key": "dagster/backfill", "value": backfill}])
    )
    start = "Partition 2024-03-02 starts from the end state of 2024-03-01: checkpoint 1"
    assert start in deployment.log(run["runId"])
    page.goto(f"{deployment.url}/runs/{run['runId']}?logs=2024-03-01")
    expect(page.get_by_text(start)).to_be_visible()
    deployment.until("its end", lambda: deployment.backfills()[0]["status"] == "COMPLETED_SUCCESS")
    page.goto(f"{deployment.url}/runs/b/{backfill}")
    expect(page.get_by_text("100% completed")).to_have_count(4)
    rows = Counter(
        (file.parent.name.removeprefix("partition="), *row.values())
        for file in (deployment.home / "tables" / "visits").glob("partition=*/*.parquet")
        for row in pq.read_table(file, partitioning=None).to_pylist()
    )
    assert rows == expected_visits(deployment.home, 4)
