"""A real ``dagster dev`` in Debian's Chromium.

With ``FLINKPY_SCREENSHOTS=docs/img`` the pictures of the documentation are made anew.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
RUN_MS = 240_000
"""For a run with a Spark server of its own, on a busy machine."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.spark,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]

PREPARE = """
from assets.demo import Demo, fresh_instance
with fresh_instance() as instance:
    demo = Demo(instance)
    demo.materialize_input()
    for _ in range(2):
        demo.checkpoint()
"""


@pytest.fixture(scope="module")
def dagster_dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The flights deployment after two checkpoints; the address of its page."""
    home = tmp_path_factory.mktemp("home")
    environment = {
        **os.environ,
        "FLINKPY_HOME": str(home),
        "FLINKPY_DAYS": "4",
        "DAGSTER_HOME": str(home / "dagster_home"),
    }
    subprocess.run([sys.executable, "-c", PREPARE], cwd=ROOT, env=environment, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = home / "dagster-dev.log"
    dagster = str(Path(sys.executable).with_name("dagster"))
    with log.open("w") as output:
        server = subprocess.Popen(
            [dagster, "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 120
        while not _answers(url):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=5):
            return True
    except OSError:
        return False


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        page = browser.new_page(viewport={"width": 1420, "height": 860})
        page.set_default_timeout(60_000)
        yield page
        browser.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("FLINKPY_SCREENSHOTS", tmp_path)).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def node(page: Page, name: str) -> Locator:
    return page.get_by_text(name, exact=True).first


def test_asset_graph_and_a_checkpoint_from_the_page(dagster_dev: str, page: Page, pictures: Path) -> None:
    lineage = f"{dagster_dev}/locations/flights/asset-groups/flights/lineage"
    page.goto(lineage)
    page.get_by_text("Hide navigation").click()
    page.goto(lineage)  # so that the graph fits the wider page
    for name in ("flights_raw_files", "departed", "weather_join", "rotations_table", "never_departed_table"):
        expect(node(page, name)).to_be_visible()
    expect(page.get_by_text("Flink")).to_have_count(10)

    page.get_by_role("button", name="Materialize all").click()
    page.set_viewport_size({"width": 1980, "height": 860})
    node(page, "rotations").click()
    expect(page.get_by_role("row", name="flink/checkpoint_id 3")).to_be_visible(timeout=RUN_MS)
    expect(page.get_by_role("row", name="flink/watermark")).to_be_visible()
    _narrow_sidebar(page)
    picture = pictures / "asset-graph.png"
    page.screenshot(path=picture)
    assert picture.stat().st_size > 50_000

    page.set_viewport_size({"width": 1420, "height": 940})
    page.goto(f"{dagster_dev}/assets/flights/rotations?view=events")
    expect(page.get_by_role("cell", name="64..127", exact=True)).to_be_visible()  # the table of subtasks
    page.screenshot(path=pictures / "checkpoint.png")


def _narrow_sidebar(page: Page) -> None:
    """Drags its edge, for it hides half of the graph."""
    text = page.get_by_text("Follows an aircraft").first.bounding_box()
    assert text is not None
    page.mouse.move(text["x"] - 25, 600)
    page.mouse.down()
    page.mouse.move(1440, 600, steps=5)
    page.mouse.up()


def test_restore_job_asks_for_its_savepoint(dagster_dev: str, page: Page) -> None:
    page.goto(f"{dagster_dev}/locations/flights/jobs/flights_restore/playground")
    expect(page.get_by_text("Launch run").first).to_be_visible()
    expect(page.get_by_text("savepoint_path").first).to_be_visible()


def test_sensor_reads_to_the_end_of_input(dagster_dev: str, page: Page) -> None:
    sensor = f"{dagster_dev}/locations/flights/sensors/flights_checkpoint_sensor"
    page.goto(sensor)
    page.locator("label", has=page.get_by_role("checkbox")).first.click()
    page.goto(f"{dagster_dev}/locations/flights/asset-groups/flights/lineage")
    node(page, "rotations").click()
    expect(page.get_by_role("row", name="flink/watermark end of input")).to_be_visible(timeout=RUN_MS)
    page.goto(sensor)
    expect(page.get_by_role("img", name="run_success").first).to_be_visible()
