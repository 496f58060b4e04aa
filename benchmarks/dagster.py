"""What Dagster has to wait for: loading the code location, the overhead of a checkpoint run, and a sensor's tick.

Loading compares the reference deployment (17 assets, 46 checks, 19 jobs, 7 sensors) with a location without
definitions, in turn: as a plain import in a fresh process, and as Dagster does it, with a code server. Runs are
launched as the daemon launches them: by the instance's launcher, into a process that the code server starts, with a
process for the step. Sensors tick over 10,000 retained checkpoints and the 10,000 runs that took them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.report import line
from dagster_flinkpy.storage import StorageLocation

ROOT = Path(__file__).parents[1]
REFERENCE, EMPTY, LOCATION = "assets.definitions", "benchmarks.empty_location", "benchmarks.dagster_location"
IMPORTS, LOADS, RUNS = 15, 6, 5
CHECKPOINTS, TICKS = 10_000, 20
_RUN_SECONDS = 120
"""After this time the benchmark stops waiting for a run, whose process may be gone."""


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        variables = {
            "FLINKPY_HOME": str(home / "flinkpy"),
            "FLINKPY_BENCH_SPARK_EVENTS": str(home / "spark_events"),
            "DAGSTER_HOME": str(home / "dagster"),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "PYTHONWARNINGS": "ignore",
            "PYTHONDONTWRITEBYTECODE": "",  # unset here, because installed code has bytecode
        }
        for name in ("flinkpy", "spark_events", "dagster"):
            (home / name).mkdir()
        (home / "dagster" / "dagster.yaml").write_text("python_logs: {python_log_level: ERROR}\n")
        with _environment(variables):
            return [*_load(), *_runs(home), *_ticks(home)]


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# --- loading ----------------------------------------------------------------------------------------------------------


def _load() -> list[dict[str, Any]]:
    imports: dict[str, list[float]] = {REFERENCE: [], EMPTY: []}
    for round_ in range(IMPORTS + 1):
        for module, seconds in imports.items():
            took = _import_seconds(module)
            if round_:  # the first one may have to compile
                seconds.append(took)
    loads: dict[str, list[float]] = {REFERENCE: [], EMPTY: []}
    for _ in range(LOADS):
        for module, seconds in loads.items():
            start = time.perf_counter()
            with _workspace(module):
                seconds.append(time.perf_counter() - start)
    return [
        _ratio("dagster.import_vs_empty", imports, "a process that imports Definitions() alone"),
        _ratio("dagster.load_vs_empty", loads, "a code location of Definitions() alone"),
        line("dagster.heavy_modules_loaded", _heavy_modules(REFERENCE), "modules", bar="<= 0"),
    ]


def _import_seconds(module: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], cwd=ROOT, check=True)
    return time.perf_counter() - start


def _heavy_modules(module: str) -> int:
    program = (
        f"import sys, {module}; print(len({{'pyspark', 'pyarrow', 'numpy', 'pandas', 'boto3'}} & set(sys.modules)))"
    )
    return int(subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True).stdout)


def _ratio(metric: str, seconds: Mapping[str, list[float]], peer: str) -> dict[str, Any]:
    ours, empty = statistics.median(seconds[REFERENCE]), statistics.median(seconds[EMPTY])
    settings = {"seconds": round(ours, 3), "peer_seconds": round(empty, 3), "rounds": len(seconds[EMPTY])}
    return line(metric, ours / empty, "ratio of time", peer=peer, bar="<= 1.3", settings=settings)


@contextmanager
def _workspace(module: str) -> Iterator[Any]:
    """Loads a workspace with one code location, by its own code server."""
    from dagster import DagsterInstance
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import ModuleTarget

    target = ModuleTarget(module_name=module, attribute=None, working_directory=str(ROOT), location_name="benchmark")
    with DagsterInstance.get() as instance, WorkspaceProcessContext(instance, target) as context:
        workspace = context.create_request_context()
        assert workspace.code_locations, workspace.get_code_location_entries()
        yield workspace


# --- runs -------------------------------------------------------------------------------------------------------------


def _runs(home: Path) -> list[dict[str, Any]]:
    from assets.demo.data import prepare

    prepare(home / "flinkpy" / "data")
    events = home / "spark_events"
    before, after, beside, empty = [], [], [], []
    with _workspace(LOCATION) as workspace:
        for round_ in range(RUNS + 1):
            nothing_start, nothing_end = _launch(workspace, "nothing_job")
            start, end = _launch(workspace, "flights_checkpoint")
            if round_:  # the first one starts the Spark server
                first, last = _spark_jobs(events, start)
                before.append(first - start)
                after.append(end - last)
                empty.append(nothing_end - nothing_start)
                beside.append(before[-1] + after[-1] - empty[-1])
    settings = {
        "before_first_spark_job_s": round(statistics.median(before), 3),
        "after_last_spark_job_s": round(statistics.median(after), 3),
        "empty_run_s": round(statistics.median(empty), 3),
        "overheads_s": [round(seconds, 2) for seconds in beside],
        "rounds": RUNS,
    }
    peer = "a run of an empty asset in the same code location"
    overhead = statistics.median(beside)
    return [line("dagster.checkpoint_run_overhead_s", overhead, "s", peer=peer, bar="<= 2", settings=settings)]


def _launch(workspace: Any, job_name: str) -> tuple[float, float]:
    """Launches a run as the daemon does. Returns the times of the launch and of the run's end."""
    from dagster import DagsterRunStatus

    instance = workspace.instance
    location = workspace.get_code_location("benchmark")
    [repository] = location.get_repositories().values()
    job = repository.get_full_job(job_name)
    plan = location.get_execution_plan(job, {}, step_keys_to_execute=None, known_state=None, instance=instance)
    created = instance.create_run(
        job_name=job_name,
        run_id=None,
        run_config={},
        resolved_op_selection=None,
        step_keys_to_execute=None,
        status=DagsterRunStatus.NOT_STARTED,
        op_selection=None,
        root_run_id=None,
        parent_run_id=None,
        tags=dict(job.run_tags or {}),
        job_snapshot=job.job_snapshot,
        execution_plan_snapshot=plan.execution_plan_snapshot,
        parent_job_snapshot=job.parent_job_snapshot,
        remote_job_origin=job.get_remote_origin(),
        job_code_origin=job.get_python_origin(),
        asset_selection=None,
        asset_check_selection=None,
        asset_graph=repository.asset_graph,
    )
    start = time.time()
    instance.launch_run(created.run_id, workspace)
    while not (record := instance.get_run_record_by_id(created.run_id)).dagster_run.is_finished:
        if time.time() - start > _RUN_SECONDS:
            raise TimeoutError(f"run {created.run_id} is {record.dagster_run.status.value} after {_RUN_SECONDS} s")
        time.sleep(0.2)
    if record.dagster_run.status != DagsterRunStatus.SUCCESS:
        raise RuntimeError([entry.user_message for entry in instance.all_logs(created.run_id)])
    return start, record.end_time


def _spark_jobs(events: Path, since: float) -> tuple[float, float]:
    """Returns the start of the first Spark job since a time, and the end of the last one, from Spark's own log."""
    starts, ends = [], []
    for file in events.iterdir():
        for text in file.read_text().splitlines():
            if text.startswith('{"Event":"SparkListenerJob'):
                event = json.loads(text)
                if event["Event"] == "SparkListenerJobStart":
                    starts.append(event["Submission Time"] / 1000)
                elif event["Event"] == "SparkListenerJobEnd":
                    ends.append(event["Completion Time"] / 1000)
    return min(time_ for time_ in starts if time_ >= since), max(ends)


# --- ticks ------------------------------------------------------------------------------------------------------------


def _ticks(home: Path) -> list[dict[str, Any]]:
    from tests.servers import ministack

    written = StorageLocation(str(home / "flinkpy" / "checkpoints" / "flights"))
    many = home / "many"
    with _environment({"DAGSTER_HOME": str(home / "runs")}):
        Path(os.environ["DAGSTER_HOME"]).mkdir()
        (home / "runs" / "dagster.yaml").touch()
        _retain_many(written, StorageLocation(str(many / "checkpoints" / "flights")))
        _record_runs()
        lines = _sensor_lines("local store", {"FLINKPY_STORAGE": str(many)})
        credentials = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        with ministack(home) as endpoint_url, _environment(credentials):
            _make_bucket(endpoint_url)
            bucket = StorageLocation("s3://benchmark/checkpoints/flights", endpoint_url=endpoint_url)
            _retain_many(written, bucket)
            s3 = {"FLINKPY_STORAGE": "s3://benchmark", "FLINKPY_S3_ENDPOINT_URL": endpoint_url}
            return lines + _sensor_lines("MiniStack S3", s3)


def _make_bucket(endpoint_url: str) -> None:
    import boto3

    boto3.client("s3", endpoint_url=endpoint_url).create_bucket(Bucket="benchmark")


def _retain_many(written: StorageLocation, location: StorageLocation) -> None:
    """Creates a job with 10,000 retained checkpoints, the last of which a run wrote."""
    import hashlib

    from dagster_flinkpy.checkpoint.head import HEAD_KEY, Head
    from dagster_flinkpy.checkpoint.metadata import METADATA_NAME
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore

    latest = CompletedCheckpointStore(written.open()).latest()
    assert latest is not None
    store, paths = location.open(), [f"chk-{n}/{METADATA_NAME}" for n in range(1, CHECKPOINTS + 1)]
    data = replace(latest, checkpoint_id=CHECKPOINTS, parent_id=CHECKPOINTS - 1).to_bytes()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda path: store.put(path, data), paths))
    retained = tuple(range(1, CHECKPOINTS + 1))
    head = Head(latest.fencing_token, CHECKPOINTS, paths[-1], hashlib.sha256(data).hexdigest(), retained)
    store.put(HEAD_KEY, head.to_bytes())


def _record_runs() -> None:
    """Records the runs that took the checkpoints, in one transaction."""
    from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
    from dagster._core.storage.runs.schema import RunsTable, RunTagsTable
    from dagster._core.storage.runs.sql_run_storage import SqlRunStorage

    from dagster_flinkpy.orchestration.flink_job import JOB_TAG
    from dagster_flinkpy.orchestration.runs.runs_of_job import CHECKPOINT_TAG

    runs = [
        DagsterRun(
            "flights_checkpoint",
            status=DagsterRunStatus.SUCCESS,
            tags={JOB_TAG: "flights", CHECKPOINT_TAG: str(n)},
        )
        for n in range(1, CHECKPOINTS + 1)
    ]
    tags = [{"run_id": run.run_id, "key": key, "value": value} for run in runs for key, value in run.tags.items()]
    with DagsterInstance.get() as instance:
        storage = instance.run_storage
        assert isinstance(storage, SqlRunStorage)
        now = datetime.now(timezone.utc)
        with storage.connect() as connection:
            connection.execute(RunsTable.insert(), [storage._get_run_insertion_values(run, now) for run in runs])
            connection.execute(RunTagsTable.insert(), tags)
        assert instance.get_runs_count() == CHECKPOINTS


def _sensor_lines(store: str, variables: Mapping[str, str]) -> list[dict[str, Any]]:
    program = "from benchmarks.dagster import time_ticks; time_ticks()"
    with _environment(variables):
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    lines = []
    for sensor, (first, *others) in json.loads(done.stdout.splitlines()[-1]).items():
        settings = {
            "store": store,
            "retained_checkpoints": CHECKPOINTS,
            "runs": CHECKPOINTS,
            "first_tick_of_the_process_ms": round(first, 1),
            "median_ms": round(statistics.median(others), 1),
            "ticks": len(others),
        }
        where = "s3" if "S3" in store else "local"
        lines.append(line(f"dagster.{sensor}_tick_{where}_ms", max(others), "ms", bar="<= 300", settings=settings))
    return lines


def time_ticks() -> None:
    """Prints the milliseconds of the ticks of each sensor. Call it in a process that has ticked none before."""
    from dagster import DagsterInstance, build_sensor_context

    from assets.definitions import defs
    from resources import resources

    sensors = {sensor.name: sensor for sensor in defs.sensors or ()}
    milliseconds: dict[str, list[float]] = {}
    with DagsterInstance.get() as instance:
        for kind in ("checkpoint", "savepoint", "retention", "restart"):
            [sensor] = [sensors[name] for name in sensors if name.endswith(f"{kind}_sensor")]
            for _ in range(TICKS + 1):
                with build_sensor_context(instance, resources=resources, definitions=defs) as context:
                    start = time.perf_counter()
                    sensor.evaluate_tick(context)
                    milliseconds.setdefault(sensor.name, []).append((time.perf_counter() - start) * 1000)
    print(json.dumps(milliseconds))
