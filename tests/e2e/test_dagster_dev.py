"""A real ``dagster dev`` with its daemon, on PostgreSQL, driven in Debian's Chromium and over GraphQL.

The tests run in this order, because the numbers of checkpoints continue.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import make_url

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.storage import StorageLocation
from tests.docs.test_snippets import IN_DG, PAGES, TYPED, snippets_of
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
from tests.e2e.clicks import Clicks
from tests.e2e.deployment import ROOT, Deployment, dagster_dev
from tests.e2e.job_page import served
from tests.e2e.location import expected_visits
from tests.e2e.newcomer import DAYS, NOON, write_input
from tests.e2e.storage import OneConnection

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),  # the first test also waits for the deployment
    pytest.mark.spark,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]

SIZE = (1420, 860)

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
DEPLOYED = "from tests.e2e.newcomer import definitions\ndefs = definitions()\n"


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tutorial's files, as its page says, and what the other jobs of a newcomer read.

    Only the name of job and group is another, because the demo's job is called flights, too.
    """
    folder = tmp_path_factory.mktemp("flights")
    for snippet in snippets_of(PAGES[TYPED].read_text().partition(IN_DG)[0]):
        if snippet.file is not None:
            with (folder / snippet.file).open("a") as file:
                file.write(snippet.code.replace('name="flights"', 'name="tutorial"'))
    (folder / "deployed.py").write_text(DEPLOYED)
    subprocess.run([sys.executable, "prepare.py"], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    write_input(folder)
    return folder


@pytest.fixture(scope="module")
def deployment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tutorial: Path, postgres: str
) -> Iterator[Deployment]:
    """Starts the flights after one of four days, the jobs of `tests.e2e.location`, and those of a newcomer.

    The test that is marked `smoke` is about the newcomer: if no other one is to run, it starts only the newcomer's.
    """
    of_this_file = [item for item in request.session.items if item.path == request.path]
    prepare, locations = "", {"newcomer": ("deployed", tutorial)}
    if not all(item.get_closest_marker("smoke") for item in of_this_file):
        prepare = PREPARE
        locations |= {"flights": ("assets.definitions", ROOT), "small": ("tests.e2e.location", ROOT)}
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
    home = tmp_path_factory.mktemp("home")
    variables = {"FLINKPY_DAYS": "4", "PYTHONWARNINGS": "ignore,default::UserWarning"}
    with dagster_dev(
        home, locations, prepare=prepare, variables=variables, folder=tutorial, storage=storage
    ) as running:
        yield running


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    """One page for all tests: the browser then keeps what it has loaded and compiled."""
    with open_page(*SIZE) as page:
        yield page


@pytest.fixture
def page(deployment: Deployment, browser_page: Page) -> Iterator[Page]:
    browser_page.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})
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
    page.set_viewport_size({"width": 1980, "height": 860})
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


# --- the first hours of a newcomer: the tutorial, three jobs more, and what a terminal and a browser show of them ---

_MATERIALIZATIONS = """query($k: AssetKeyInput!) { assetOrError(assetKey: $k) {
  ... on Asset { assetMaterializations { runId } } } }"""


def test_a_new_version_is_proved_switched_to_and_taken_back_and_another_one_recomputes(
    deployment: Deployment, page: Page
) -> None:
    """A run loads the code as it begins, so the version that it belongs to is the one that is deployed then."""

    def run(job: str, config: str | None = None) -> str:
        """Launches a job from its page, and returns the id of its run."""
        launchpad = f"{deployment.url}/locations/small/jobs/tickets_{job}/playground"
        if config is None:
            page.goto(launchpad)
        else:
            fill_launchpad(page, launchpad, config)
        page.get_by_role("button", name=re.compile("Launch run", re.IGNORECASE)).click()
        page.wait_for_url(re.compile("/runs/"))
        launched = page.url.rpartition("/runs/")[2].partition("?")[0]
        rest_after_success(deployment, page, runIds=[launched])
        return launched

    def run_epochs(number: int) -> None:
        config = {"ops": {"tickets": {"config": {"epochs": number}}}}
        rest_after_success(deployment, page, runIds=[deployment.launch("small", "tickets_checkpoint", config)])

    run_epochs(2)
    (deployment.home / "deployed").write_text("after")
    old = "tests.e2e.location:tickets_env"
    proof = run("upgrade", f"ops: {{prove_upgrade_of_tickets: {{config: {{from_program: '{old}'}}}}}}")
    appears(page, f"{deployment.url}/runs/{proof}", page.get_by_text("same rows", exact=True).first)
    run("switch")
    run_epochs(1)
    (deployment.home / "deployed").write_text("before")
    run("rollback")
    run_epochs(2)
    sold = [("louvre", n) for n in (1, 2, 3)] + [("met", n) for n in (1, 2)]
    assert rows(deployment.home / "tables" / "tickets") == sold
    (deployment.home / "deployed").write_text("twice")
    assert deployment.unsynced("small", "tickets") == set()
    deployment.reload("small")
    lineage = f"{deployment.url}/locations/small/asset-groups/tickets/lineage"
    appears(page, lineage, page.get_by_text("Unsynced").first)
    assert deployment.unsynced("small", "tickets") == {"sold"}
    run("switch", "ops: {switch_tickets: {config: {recompute_changed: true}}}")
    run_epochs(5)
    assert rows(deployment.home / "tables" / "tickets") == [(museum, 2 * n) for museum, n in sold]
    assert deployment.unsynced("small", "tickets") == set()


GOES_ON = {"ops": {"orders": {"config": {"epochs": 0}}}}


def typed(deployment: Deployment, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in the folder, as in a terminal."""
    home = str(deployment.home / "dagster_home")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "DAGSTER_HOME": home}
    return subprocess.run([sys.executable, *words], cwd=folder, env=variables, capture_output=True, text=True)


def rows(folder: Path) -> list[tuple[object, ...]]:
    """Returns the committed rows of a table of files."""
    files = folder.rglob("*.parquet")
    return sorted(tuple(row.values()) for file in files for row in pq.read_table(file, partitioning=None).to_pylist())


def lineage(deployment: Deployment, group: str) -> str:
    return f"{deployment.url}/locations/newcomer/asset-groups/{group}/lineage"


def rest_after_success(deployment: Deployment, page: Page, **filters: Any) -> None:
    """Waits for the end of a run."""
    deployment.until("a run", lambda: deployment.runs(**filters))
    rest(page)
    (run,) = deployment.until("its end", lambda: deployment.runs(statuses=["SUCCESS", "FAILURE"], **filters))
    assert run["status"] == "SUCCESS", deployment.log(run["runId"])


def check(page: Page, deployment: Deployment, asset: str, name: str, said: str) -> None:
    """Waits until the page of an asset shows what its last check said."""
    page.goto(f"{deployment.url}/assets/{asset}?view=checks&checkDetail={name}")
    expect(page.get_by_text(said).first).to_be_visible()
    rest(page)


@pytest.mark.smoke
def test_the_table_of_the_tutorial_is_committed_from_the_page(
    deployment: Deployment, tutorial: Path, page: Page
) -> None:
    page.goto(f"{deployment.url}/locations/newcomer/jobs/tutorial_checkpoint/playground")
    expect(page.get_by_text("Launch run").first).to_be_visible()
    page.goto(lineage(deployment, "tutorial"))
    before = len(deployment.runs())
    page.get_by_role("button", name="Materialize all").click()
    deployment.until("a run", lambda: len(deployment.runs()) > before)
    rest_after_success(deployment, page, runIds=[deployment.runs()[0]["runId"]])
    assert len(rows(tutorial / "tables" / "legs")) == 911
    check(page, deployment, "tutorial/legs", "snapshot_integrity", "all checksums match")


def test_a_range_of_days_is_joined_with_a_table_that_has_no_days(deployment: Deployment, tutorial: Path) -> None:
    select = ["--select", 'key:"days/*"', "--partition-range", "...".join(DAYS)]
    run = typed(deployment, tutorial, "-m", "dagster", "asset", "materialize", "-m", "deployed", *select)
    assert run.returncode == 0, run.stderr
    assert rows(tutorial / "tables" / "days") == [("Bern", 1), ("Bern", 2), ("Rome", 10), ("Rome", 20)]


def test_event_time_that_stands_still_is_said_and_fails_a_check(
    deployment: Deployment, tutorial: Path, page: Page
) -> None:
    said = "event time never passes operator 'in_cities': source 'shops' gives no watermarks"
    assert said in (deployment.home / "dagster-dev.log").read_text()
    rest_after_success(deployment, page, runIds=[deployment.launch("newcomer", "hours_checkpoint")])
    check(page, deployment, "hours/hours", "event_time", "Event time has not begun: the other inputs wait for")


def test_the_sensor_runs_the_job_when_there_is_input_and_only_then(deployment: Deployment, page: Page) -> None:
    sensor = "orders_checkpoint_sensor"
    page.goto(f"{deployment.url}/automation")
    switch_of(page, sensor).click()
    by_sensor = {"tags": [{"key": "dagster/sensor_name", "value": sensor}]}
    rest_after_success(deployment, page, **by_sensor)
    deployment.until("why there is no other", lambda: deployment.said("newcomer", sensor, "no source has input"))
    deployment.switch_off("newcomer", sensor)
    assert len(deployment.runs(**by_sensor)) == 1
    check(page, deployment, "orders/highest", "restore_drill", "2 rows of keyed state and timers, the same at")


def test_a_second_run_from_another_terminal_waits_for_the_one_at_work(
    deployment: Deployment, tutorial: Path, page: Page
) -> None:
    first = deployment.launch("newcomer", "orders_checkpoint", GOES_ON)
    with served(StorageLocation(str(tutorial / "checkpoints" / "orders"))) as address:
        deployment.until("it waits for input", lambda: "nothing to read" in deployment.log(first))
        page.goto(address)
        expect(page.locator("#status")).to_have_text("RUNNING")
    rest(page)
    console = "from deployed import defs; defs.resolve_job_def('orders_checkpoint').execute_in_process()"
    with subprocess.Popen(
        [sys.executable, "-c", console],
        cwd=tutorial,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as second:
        assert second.stderr is not None
        said = list[str]()
        for line in second.stderr:
            said.append(line)
            if "waiting for the end of" in line and not any("waiting for the end of" in each for each in said[:-1]):
                assert first in line
                terminate(page, f"{deployment.url}/runs/{first}")
        assert second.wait() == 0, "".join(said)
    assert deployment.runs(runIds=[first])[0]["status"] == "CANCELED"
    assert any("nothing to read" in line for line in said)
    assert rows(tutorial / "tables" / "orders") == [("ann", 5, NOON), ("bob", 3, NOON)]


def test_empty_checkpoints_have_not_updated_the_table(deployment: Deployment) -> None:
    key = {"path": ["orders", "orders_table"]}
    assert len(deployment.graphql(_MATERIALIZATIONS, k=key)["assetOrError"]["assetMaterializations"]) == 1


def test_a_plan_says_before_the_run_that_it_would_fail(deployment: Deployment, tutorial: Path) -> None:
    """A list of LONG becomes a list of STRING."""
    command = "from dagster_flinkpy.cli import main; main()"
    program = "tests.e2e.newcomer:changed_orders_env"
    planned = typed(
        deployment, tutorial, "-c", command, "savepoint", "plan", "checkpoints/orders", "--program", program
    )
    assert planned.returncode == 1, planned.stderr
    assert re.search("highest +changed +does not fit +2 ", planned.stdout)
    assert "'amounts' was LIST of Types.LIST(Types.LONG())" in planned.stderr.splitlines()[-1]
