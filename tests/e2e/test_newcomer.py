"""The first hours of a newcomer: the tutorial, three jobs more, and what a terminal and a browser show of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect

from dagster_flinkpy.storage import StorageLocation
from tests.docs.test_snippets import IN_DG, PAGES, TYPED, snippets_of
from tests.e2e.chromium import CHROMIUM, open_page, rest, switch_of, terminate
from tests.e2e.deployment import ROOT, Deployment, dagster_dev
from tests.e2e.job_page import served
from tests.e2e.newcomer import DAYS, NOON, write_input

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.spark,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]

DEPLOYED = "from tests.e2e.newcomer import definitions\ndefs = definitions()\n"
_MATERIALIZATIONS = """query($k: AssetKeyInput!) { assetOrError(assetKey: $k) {
  ... on Asset { assetMaterializations { runId } } } }"""
GOES_ON = {"ops": {"orders": {"config": {"epochs": 0}}}}


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in the folder, as in a terminal."""
    home = str(folder / "home" / "dagster_home")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "DAGSTER_HOME": home}
    return subprocess.run([sys.executable, *words], cwd=folder, env=variables, capture_output=True, text=True)


def rows(folder: Path) -> list[tuple[object, ...]]:
    """Returns the committed rows of a table of files."""
    files = folder.rglob("*.parquet")
    return sorted(tuple(row.values()) for file in files for row in pq.read_table(file, partitioning=None).to_pylist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tutorial's files, as its page says, and what the other jobs read."""
    folder = tmp_path_factory.mktemp("flights")
    for snippet in snippets_of(PAGES[TYPED].read_text().partition(IN_DG)[0]):
        if snippet.file is not None:
            with (folder / snippet.file).open("a") as file:
                file.write(snippet.code)
    (folder / "deployed.py").write_text(DEPLOYED)
    prepared = typed(folder, "prepare.py")
    assert prepared.returncode == 0, prepared.stderr
    write_input(folder)
    return folder


@pytest.fixture(scope="module")
def deployment(folder: Path) -> Iterator[Deployment]:
    (folder / "home").mkdir()
    warn = {"PYTHONWARNINGS": "ignore,default::UserWarning"}
    with dagster_dev(folder / "home", {"newcomer": "deployed"}, prepare="", variables=warn, folder=folder) as running:
        yield running


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with open_page(1420, 860) as page:
        yield page


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


def test_the_table_of_the_tutorial_is_committed_from_the_page(deployment: Deployment, folder: Path, page: Page) -> None:
    page.goto(f"{deployment.url}/locations/newcomer/jobs/flights_checkpoint/playground")
    expect(page.get_by_text("Launch run").first).to_be_visible()
    page.goto(lineage(deployment, "flights"))
    page.get_by_role("button", name="Materialize all").click()
    rest_after_success(deployment, page)
    assert len(rows(folder / "tables" / "legs")) == 911
    check(page, deployment, "flights/legs", "snapshot_integrity", "all checksums match")


def test_a_range_of_days_is_joined_with_a_table_that_has_no_days(deployment: Deployment, folder: Path) -> None:
    select = ["--select", 'key:"days/*"', "--partition-range", "...".join(DAYS)]
    run = typed(folder, "-m", "dagster", "asset", "materialize", "-m", "deployed", *select)
    assert run.returncode == 0, run.stderr
    assert rows(folder / "tables" / "days") == [("Bern", 1), ("Bern", 2), ("Rome", 10), ("Rome", 20)]


def test_event_time_that_stands_still_is_said_and_fails_a_check(
    deployment: Deployment, folder: Path, page: Page
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
    deployment: Deployment, folder: Path, page: Page
) -> None:
    first = deployment.launch("newcomer", "orders_checkpoint", GOES_ON)
    with served(StorageLocation(str(folder / "checkpoints" / "orders"))) as address:
        deployment.until("it waits for input", lambda: "nothing to read" in deployment.log(first))
        page.goto(address)
        expect(page.locator("#status")).to_have_text("RUNNING")
    rest(page)
    console = "from deployed import defs; defs.resolve_job_def('orders_checkpoint').execute_in_process()"
    with subprocess.Popen(
        [sys.executable, "-c", console],
        cwd=folder,
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
    assert rows(folder / "tables" / "orders") == [("ann", 5, NOON), ("bob", 3, NOON)]


def test_empty_checkpoints_have_not_updated_the_table(deployment: Deployment) -> None:
    key = {"path": ["orders", "orders_table"]}
    assert len(deployment.graphql(_MATERIALIZATIONS, k=key)["assetOrError"]["assetMaterializations"]) == 1


def test_a_plan_says_before_the_run_that_it_would_fail(folder: Path) -> None:
    """A list of LONG becomes a list of STRING."""
    command = "from dagster_flinkpy.cli import main; main()"
    program = "tests.e2e.newcomer:changed_orders_env"
    planned = typed(folder, "-c", command, "savepoint", "plan", "checkpoints/orders", "--program", program)
    assert planned.returncode == 1, planned.stderr
    assert re.search("highest +changed +does not fit +2 ", planned.stdout)
    assert "'amounts' was LIST of Types.LIST(Types.LONG())" in planned.stderr.splitlines()[-1]
