"""``make screenshots``: takes the pictures of Dagster, and of the page of a job, in ``docs/img`` again."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect

from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.e2e.busy_job import program, running
from tests.e2e.chromium import fill_launchpad, launch_backfill, open_page, switch_of, terminate
from tests.e2e.deployment import ROOT, Deployment, dagster_dev
from tests.e2e.job_page import served, share
from tests.e2e.location import write_clicks
from tests.waiting import until

SIZE = (1280, 800)
FOLDER = ROOT / "docs" / "img"
BYTES = 150_000
"""Maximum size of a picture."""

PREPARE = """
from dagster import DagsterInstance
from assets.definitions import daily_assets, defs
from assets.demo.runner import Demo
with DagsterInstance.get() as instance:
    demo = Demo(instance)
    demo.materialize_input()
    for _ in range(8):
        demo.checkpoint()
    defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=list(daily_assets[0].keys),
        tags={"dagster/asset_partition_range_start": "2013-01-01", "dagster/asset_partition_range_end": "2013-01-07"},
    )
"""


def save(page: Page, name: str, height: int = SIZE[1]) -> None:
    """Takes a picture of what the browser shows."""
    page.mouse.move(0, 0)
    picture = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    picture.thumbnail(SIZE, Image.Resampling.LANCZOS)
    picture = picture.crop((0, 0, SIZE[0], height))
    file = FOLDER / f"{name}.png"
    picture.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
    size = file.stat().st_size
    print(f"{file.relative_to(ROOT)}: {size:,} bytes")
    assert size <= BYTES, f"{file} is too large"


def job_page(page: Page) -> None:
    """Takes a picture of the page of a running job, whose sink is slow."""
    settings = SparkSettings(master="local[3]")
    with tempfile.TemporaryDirectory(prefix="visits-") as folder:
        storage = StorageLocation(f"{folder}/checkpoints")
        with running(program(Path(folder) / "out"), storage, settings, "visits"):
            until(lambda: (Path(folder) / "checkpoints" / "visits" / "execution").exists(), "the run says nothing")
            with served(storage.child("visits")) as address:
                page.goto(address)
                page.locator("#checkpoints .dot.completed").nth(2).wait_for()
                until(lambda: share(page, "clicks", "back-pressured") > 50, "the source is not back-pressured")
                save(page, "job-page", height=620)
                page.goto("about:blank")


class Pictures:
    """Takes the pictures.

    Args:
        deployment: The flights, with some checkpoints and a week of partitions.
        page: The page of the browser.
    """

    def __init__(self, deployment: Deployment, page: Page) -> None:
        self._deployment, self._page, self._url = deployment, page, deployment.url

    def take(self) -> None:
        """Takes all pictures."""
        self.running_job()
        self._asset_graph()
        self._checks()  # before the sensor is on, because newer checkpoints are not checked
        self._backfill()
        self._plots()
        self._checkpoint()
        self._rescale()
        self._sensor()

    def running_job(self) -> None:
        """A job that runs on, with a savepoint and a rescale beside it."""
        page, home = self._page, self._deployment.home
        write_clicks(home, 1, ["docs", "blog", "docs"])
        run = self._deployment.launch("small", "clicks_restart", {"ops": {"clicks": {"config": {"epochs": 0}}}})
        self._await_line(run, "Checkpoint 1 of job clicks completed")
        for job, config in (
            ("savepoint", {}),
            ("rescale", {"ops": {"rescale_clicks": {"config": {"parallelism": 3}}}}),
        ):
            self._deployment.launch("small", f"clicks_{job}", config)
            done = {"pipelineName": f"clicks_{job}", "statuses": ["SUCCESS"]}
            self._deployment.until(job, lambda done=done: self._deployment.runs(**done))
        write_clicks(home, 2, ["blog"])
        self._await_line(run, "1 records read")
        page.goto(f"{self._url}/runs/{run}?logs=asks%20for")
        page.get_by_text("asks for a rescale").first.wait_for()
        page.wait_for_timeout(3000)  # the steps are drawn a moment later, without any event
        self._save("running-job", height=480)
        page.goto(f"{self._url}/runs")
        page.get_by_text("clicks_rescale").first.wait_for()
        self._save("running-job-runs", height=420)
        terminate(page, f"{self._url}/runs/{run}")
        self._deployment.until("its end", lambda: self._deployment.runs(runIds=[run], statuses=["CANCELED"]))

    def _await_line(self, run: str, line: str) -> None:
        self._deployment.until(line, lambda: line in self._deployment.log(run))

    def _save(self, name: str, height: int = SIZE[1]) -> None:
        save(self._page, name, height)

    def _backfill(self) -> None:
        page = self._page
        launch_backfill(
            page, f"{self._url}/locations/flights/asset-groups/flights_daily/lineage", "2013-01-08", "2013-01-14"
        )
        self._deployment.until("backfill", lambda: self._deployment.backfills()[:1])
        (backfill,) = self._deployment.backfills()
        self._deployment.until("its end", lambda: self._deployment.backfills()[0]["status"] == "COMPLETED_SUCCESS")
        page.goto(f"{self._url}/runs/b/{backfill['id']}")
        expect(page.get_by_text("100% completed")).to_have_count(6)
        self._save("backfill")
        (run,) = self._deployment.runs(tags=[{"key": "dagster/backfill", "value": backfill["id"]}])
        page.goto(f"{self._url}/runs/{run['runId']}?logs=Partition%202013")
        expect(page.get_by_text("starts from the end state of 2013-01-07")).to_be_visible()
        page.wait_for_timeout(3000)  # the steps are drawn a moment later, without any event
        self._save("backfill-run")

    def _asset_graph(self) -> None:
        page = self._page
        page.set_viewport_size({"width": 1760, "height": 1100})
        lineage = f"{self._url}/locations/flights/asset-groups/flights/lineage"
        page.goto(lineage)
        page.get_by_text("Hide navigation").click()
        page.goto(lineage)  # reload, so that the graph fits the wider page
        expect(page.get_by_text("Flink")).to_have_count(10)
        expect(page.get_by_text("Loading")).to_have_count(0)
        self._save("asset-graph")
        page.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})

    def _checks(self) -> None:
        page = self._page
        page.goto(f"{self._url}/assets/flights/rotations?view=checks")
        page.get_by_role("button", name="Execute all").click()
        expect(page.get_by_text("Succeeded")).to_have_count(4)
        page.goto(f"{self._url}/assets/flights/rotations?view=checks&checkDetail=restore_drill")
        expect(page.get_by_text("the same at parallelism")).to_be_visible()
        self._save("checks")

    def _plots(self) -> None:
        page = self._page
        page.goto(f"{self._url}/assets/flights/rotations")
        page.get_by_role("button", name="Plots").click()
        page.get_by_text("flink/key_count").scroll_into_view_if_needed()
        expect(page.locator("canvas").first).to_be_visible()
        self._save("plots")

    def _checkpoint(self) -> None:
        page = self._page
        page.set_viewport_size({"width": 1600, "height": 1000})
        page.goto(f"{self._url}/assets/flights/rotations?view=events")
        page.get_by_role("row", name="flink/delta_bytes").evaluate("row => row.scrollIntoView()")
        expect(page.get_by_role("img", name="Rows by key group").first).to_be_visible()
        self._save("checkpoint")
        page.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})

    def _sensor(self) -> None:
        page, sensor = self._page, "flights_checkpoint_sensor"
        page.goto(f"{self._url}/automation")
        switch_of(page, sensor).click()
        self._deployment.until("some runs", lambda: len(self._runs_of(sensor)) >= 3)
        self._deployment.until("a skip", lambda: self._deployment.said("flights", sensor, "still working"))
        page.goto(f"{self._url}/locations/flights/sensors/{sensor}")
        page.get_by_role("button", name="View logs").first.wait_for()  # the table of ticks has been loaded
        self._save("sensor")
        page.get_by_text("0 runs requested").last.click()
        expect(page.get_by_text("Skip reason")).to_be_visible()
        self._save("sensor-skip", height=280)

    def _runs_of(self, sensor: str) -> list[str]:
        return [run for tick in self._deployment.sensor("flights", sensor)["ticks"] for run in tick["runIds"]]

    def _rescale(self) -> None:
        fill_launchpad(
            self._page,
            f"{self._url}/locations/flights/jobs/flights_rescale/playground",
            "ops:\n  rescale_flights:\n    config:\n      parallelism: 3",
        )
        expect(self._page.get_by_role("button", name="Launch Run")).to_be_enabled()
        self._save("rescale")


def main() -> None:
    """Takes the pictures, which needs a few minutes."""
    with open_page(*SIZE) as page:
        job_page(page)
    with (
        tempfile.TemporaryDirectory(prefix="flights-", ignore_cleanup_errors=True) as home,  # a run may be active
        dagster_dev(
            Path(home),
            {"flights": ("assets.definitions", ROOT), "small": ("tests.e2e.location", ROOT)},
            prepare=PREPARE,
            variables={"FLINKPY_DAYS": "28"},
        ) as deployment,
        open_page(*SIZE) as page,
    ):
        Pictures(deployment, page).take()


if __name__ == "__main__":
    main()
