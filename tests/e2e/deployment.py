"""Starts a real ``dagster dev`` with its daemon, for tests and for the pictures of the documentation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster import DagsterInstance

from tests.servers import free_port
from tests.waiting import LIMIT

__all__ = ["ROOT", "Deployment", "dagster_dev"]

ROOT = Path(__file__).parents[2]
_FORKED = Path(__file__).parent / "forked"
_SETTINGS: dict[str, Any] = {
    "telemetry": {"enabled": False},
    "nux": {"enabled": False},
    "run_coordinator": {
        "module": "dagster._core.run_coordinator",
        "class": "QueuedRunCoordinator",
        "config": {"dequeue_interval_seconds": 1},
    },
    "run_monitoring": {"enabled": True, "poll_interval_seconds": 1},
}
_RUNS = """query($f: RunsFilter) { runsOrError(filter: $f, limit: 50) {
  ... on Runs { results { runId jobName status tags { key value } } } } }"""
_LOG = """query($r: ID!) { logsForRun(runId: $r) {
  ... on EventConnection { events { ... on MessageEvent { message } } } } }"""
_BACKFILLS = """query { partitionBackfillsOrError(limit: 10) {
  ... on PartitionBackfills { results { id status } } } }"""
_SENSOR = """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) {
  ... on Sensor { sensorState { id status ticks(limit: 100) { status skipReason runIds } } } } }"""
_STALE = """query($g: AssetGroupSelector!) { assetNodes(group: $g) { assetKey { path } staleStatus } }"""
_RELOAD = """mutation($l: String!) { reloadRepositoryLocation(repositoryLocationName: $l) {
  __typename ... on PythonError { message } } }"""
_SWITCH_ON = """mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) {
  __typename ... on Sensor { name } ... on PythonError { message } } }"""
_SWITCH_OFF = """mutation($i: String!) { stopSensor(id: $i) { __typename ... on PythonError { message } } }"""
_LAUNCH = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""


@dataclass(frozen=True)
class Deployment:
    """A running ``dagster dev``."""

    url: str
    home: Path
    """The folder of the flights: data, checkpoints, tables."""

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """Sends a request, and raises its errors."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        data: dict[str, Any] = answer["data"]
        return data

    def runs(self, **filters: Any) -> list[dict[str, Any]]:
        """Returns runs, newest first, with their tags as a dict."""
        found: list[dict[str, Any]] = self.graphql(_RUNS, f=filters)["runsOrError"]["results"]
        return [{**run, "tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in found]

    def launch(self, location: str, job: str, config: Mapping[str, Any] | None = None) -> str:
        """Starts a run, and returns its id."""
        selector = {**_repository(location), "jobName": job}
        params = {"selector": selector, "mode": "default", "runConfigData": config or {}}
        answer = self.graphql(_LAUNCH, p=params)["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def add_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Adds tags to a run, also while it goes on."""
        with DagsterInstance.from_config(str(self.home / "dagster_home")) as instance:
            instance.add_run_tags(run_id, dict(tags))

    def log(self, run_id: str) -> str:
        """Returns all messages of a run."""
        events = self.graphql(_LOG, r=run_id)["logsForRun"]["events"]
        return "\n".join(event["message"] for event in events if event)

    def backfills(self) -> list[dict[str, Any]]:
        """Returns the backfills, newest first."""
        found: list[dict[str, Any]] = self.graphql(_BACKFILLS)["partitionBackfillsOrError"]["results"]
        return found

    def reload(self, location: str) -> None:
        """Loads the code of a location again, like the button on the page of the deployment."""
        answer = self.graphql(_RELOAD, l=location)["reloadRepositoryLocation"]
        assert answer["__typename"] == "WorkspaceLocationEntry", answer

    def unsynced(self, location: str, group: str) -> set[str]:
        """Returns the last part of the keys of the assets of a group that are out of sync."""
        where = _repository(location)
        selector = {"groupName": group, **where}
        found = self.graphql(_STALE, g=selector)["assetNodes"]
        return {each["assetKey"]["path"][-1] for each in found if each["staleStatus"] != "FRESH"}

    def sensor(self, location: str, name: str) -> dict[str, Any]:
        """Returns the status of a sensor, and its ticks, newest first."""
        state: dict[str, Any] = self.graphql(_SENSOR, s={**_repository(location), "sensorName": name})["sensorOrError"][
            "sensorState"
        ]
        return state

    def said(self, location: str, sensor: str, what: str) -> bool:
        """Returns whether a tick gave this reason for starting no run."""
        return any(what in (tick["skipReason"] or "") for tick in self.sensor(location, sensor)["ticks"])

    def switch_on(self, location: str, sensor: str) -> None:
        """Switches a sensor on, like the switch on the page."""
        answer = self.graphql(_SWITCH_ON, s={**_repository(location), "sensorName": sensor})["startSensor"]
        assert answer["__typename"] == "Sensor", answer

    def switch_off(self, location: str, *sensors: str) -> None:
        """Switches sensors off, so that they do not cost time."""
        for sensor in sensors:
            answer = self.graphql(_SWITCH_OFF, i=self.sensor(location, sensor)["id"])["stopSensor"]
            assert answer["__typename"] == "StopSensorMutationResult", answer

    def latest_checkpoint(self, job: str) -> dict[str, Any]:
        """Reads the last completed checkpoint of a job from the store."""
        head = json.loads((self.home / "checkpoints" / job / "HEAD").read_text())
        return dict(head)

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        """Polls until a call returns something true, and returns that.

        Raises:
            AssertionError: It takes too long. The error has what the call returned last, the runs, and the end of the
                log.
        """
        deadline = time.monotonic() + LIMIT
        while not (found := holds()):
            if time.monotonic() > deadline:
                runs = "".join(f"\n  {run['jobName']} {run['runId']}: {run['status']}" for run in self.runs())
                log = (self.home / "dagster-dev.log").read_text()[-4000:]
                raise AssertionError(f"{what}: {found!r} after {LIMIT} s. Runs:{runs}\nLog:\n{log}")
            time.sleep(0.5)
        return found


@contextmanager
def dagster_dev(
    home: Path,
    locations: Mapping[str, tuple[str, Path]],
    *,
    prepare: str,
    variables: dict[str, str],
    folder: Path = ROOT,
    **settings: Any,
) -> Iterator[Deployment]:
    """Runs ``dagster dev`` until the end of the context.

    Args:
        home: An empty folder for everything that it writes.
        locations: Its code locations: by name, a module and the folder that Python finds it in.
        prepare: Python code that runs first, with the same settings.
        variables: Variables to add to the environment.
        folder: The working directory of all.
        settings: Settings to add to its ``dagster.yaml``.
    """
    (home / "dagster_home").mkdir()
    (home / "dagster_home" / "dagster.yaml").write_text(json.dumps({**_SETTINGS, **settings}))
    workspace = home / "workspace.yaml"
    modules = [
        {"module_name": module, "working_directory": str(place), "location_name": name}
        for name, (module, place) in locations.items()
    ]
    workspace.write_text(json.dumps({"load_from": [{"python_module": module} for module in modules]}))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(_FORKED)]),
        "FLINKPY_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster_home"),
        # One Spark server for the preparation and `dagster dev`. Its key also contains the name of the executable.
        "FLINKPY_SPARK_OWNER_PID": str(os.getpid()),
        "PYTHONWARNINGS": "ignore",
        **variables,
    }
    subprocess.run([sys.executable, "-c", prepare], cwd=folder, env=environment, check=True)
    port = free_port()
    running = Deployment(f"http://127.0.0.1:{port}", home)
    log = home / "dagster-dev.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "-w", str(workspace), "-h", "127.0.0.1", "-p", str(port)],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + LIMIT
        while not _answers(running.url):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.25)
        yield running
    finally:
        # If it is asked to end, it waits for its code servers, and those for their runs.
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _repository(location: str) -> dict[str, str]:
    return {"repositoryName": "__repository__", "repositoryLocationName": location}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=10):
            return True
    except OSError:
        return False
