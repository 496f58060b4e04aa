"""Runs over disjoint ranges at the same time, in two real processes with one Dagster instance, without Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from dagster import (
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    RetryRequested,
)
from dagster import in_process_executor as in_process
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.execution.plan.objects import StepFailureData, StepSuccessData
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
    PARTITION_NAME_TAG,
    ROOT_RUN_ID_TAG,
)
from dagster._core.test_utils import create_run_for_test

from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, FlinkJob, flink_job
from dagster_flinkpy.orchestration.runs import backfill_runs, exclusive_run
from dagster_flinkpy.orchestration.runs.backfill_runs import continues_backfill, let_run_before_go_first
from dagster_flinkpy.orchestration.runs.exclusive_run import await_exclusive_run
from dagster_flinkpy.orchestration.runs.partition_start import time_partitions
from dagster_flinkpy.runtime.master import job as job_loop
from dagster_flinkpy.storage import StorageLocation, lease
from tests.orchestration.runs.test_partitioned_run import KEYS, WEEK, Deployment, letters, straight_run
from tests.runtime.harness import run_rows, spark_order
from tests.waiting import until

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 600.0
"""After this time a hanging process is ended, and the test fails because its line is missing."""


def resources(path: Path) -> dict[str, Any]:
    return {"spark": SparkResource(), "checkpoint_storage": CheckpointStorageResource(url=str(path / "checkpoints"))}


def child(path: str, first: str, last: str, backfill: str, stops: str) -> None:
    """Executes a run in a separate process. Each line from outside lets it continue."""

    def reached(what: str) -> None:
        print(what, flush=True)
        assert sys.stdin.readline()

    def on_spark(attempt: Any, epoch: Any) -> Any:
        if stops:
            reached("in an epoch")
        return run_rows(epoch, spark_order)

    patch = pytest.MonkeyPatch()
    patch.setattr(job_loop.JobAttempt, "_on_spark", on_spark)
    patch.setattr(exclusive_run, "SILENT_SECONDS", 2.0)
    instance = DagsterInstance.get()
    if stops == "dead":
        patch.setattr(job_loop, "_LEASE", timedelta(seconds=1))
    assets = Deployment(Path(path), instance, {}).assets()
    definitions = Definitions(assets, resources=resources(Path(path)), executor=in_process)
    job = definitions.resolve_implicit_global_asset_job_def()
    tags = {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last, BACKFILL_ID_TAG: backfill}
    run = instance.create_run_for_job(job, tags={**tags, JOB_TAG: "letters"}, asset_selection=frozenset(assets[0].keys))
    reached(f"created {run.run_id}")
    execute_run(InMemoryJob(job), run, instance)
    print("ended", flush=True)


def fork_children() -> None:
    """Forks a process for each line, which has what `child` gets, and prints its id. Dagster's import takes seconds."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        path, *order = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ["DAGSTER_HOME"] = path
        pipes = Path(path, order.pop())
        for name, mode, number in (("in", os.O_RDONLY, 0), ("out", os.O_WRONLY, 1)):
            os.dup2(os.open(pipes / name, mode), number)
        os.dup2(1, 2)
        sys.stdin = os.fdopen(0)
        failed = 1
        try:
            child(path, *order)
            failed = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(failed)


class Forks:
    """A process that has imported what runs need, and forks them."""

    def __init__(self) -> None:
        program = f"from {__name__} import fork_children; fork_children()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def fork(self, *order: str) -> int:
        """Returns the id of a new process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(order)}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.close()


class Process:
    """A run in a separate process.

    Args:
        forks: Starts it.
        path: Folder of the deployment, and home of Dagster.
        first: First partition.
        last: Last partition.
        backfill: Id of the backfill to which the run belongs.
        stops: Where it stops in each epoch until it is told to continue. "dead": its lease is short. Empty: nowhere.
    """

    def __init__(self, forks: Forks, path: Path, first: str, last: str, *, backfill: str, stops: str = "") -> None:
        pipes = path / uuid.uuid4().hex
        pipes.mkdir()
        for name in ("in", "out"):
            os.mkfifo(pipes / name)
        self._pid = forks.fork(str(path), first, last, backfill, stops, pipes.name)
        self._input = (pipes / "in").open("w")  # both sides wait for each other
        self._output = (pipes / "out").open()
        self._timer = threading.Timer(LIMIT_SECONDS, self._kill)
        self._timer.start()
        self.lines: list[str] = []
        self.run_id = self.until("created ").split()[1]

    def until(self, text: str) -> str:
        """Returns its next line that contains a text."""
        for line in self._output:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in:\n{''.join(self.lines)}")

    def go_on(self) -> None:
        self._input.write("\n")
        self._input.flush()

    def kill(self) -> None:
        self._kill()
        until(lambda: not psutil.pid_exists(self._pid), "it does not end")

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        self._timer.cancel()
        self.kill()
        self._input.close()
        self._output.close()


Processes = Callable[..., AbstractContextManager[list[Process]]]


@pytest.fixture
def processes(tmp_path: Path, forks: Forks) -> Processes:
    """Creates runs that wait until they are told to begin."""

    @contextmanager
    def made(*ranges: tuple[str, str, str], stops: Sequence[str] = ("", "")) -> Iterator[list[Process]]:
        with ExitStack() as started:
            yield [
                started.enter_context(closing(Process(forks, tmp_path, first, last, backfill=backfill, stops=stop)))
                for (first, last, backfill), stop in zip(ranges, stops, strict=True)
            ]

    return made


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """Returns a deployment that has run the first five days, so that each range has a start state."""
    monkeypatch.setattr(job_loop.JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.get() as instance:
        made = Deployment(tmp_path, instance, resources(tmp_path))
        assert made.run(KEYS[0], KEYS[4]).success
        yield made


def statuses(deployment: Deployment, *runs: Process) -> list[DagsterRunStatus]:
    found = [deployment.instance.get_run_by_id(run.run_id) for run in runs]
    return [run.status for run in found if run is not None]


SUCCESS = DagsterRunStatus.SUCCESS


@pytest.mark.smoke
def test_two_backfills_that_begin_at_the_same_moment_take_turns(deployment: Deployment, processes: Processes) -> None:
    ranges = (KEYS[3], KEYS[4], "late"), (KEYS[1], KEYS[2], "early")
    with processes(*ranges) as both:
        for run in both:
            run.go_on()
        for run in both:
            run.until("ended")
        assert statuses(deployment, *both) == [SUCCESS, SUCCESS]
    assert deployment.table() == straight_run(KEYS[:5])


def test_a_run_whose_process_is_killed_is_not_waited_for_without_end(
    deployment: Deployment, processes: Processes
) -> None:
    ranges = (KEYS[3], KEYS[4], "late"), (KEYS[1], KEYS[2], "early")
    with processes(*ranges, stops=("dead", "")) as (killed, other):
        killed.go_on()
        killed.until("in an epoch")
        killed.kill()
        other.go_on()
        other.until(f"Run {killed.run_id} of job letters began earlier but has shown no sign of life since")
        other.until("ended")
        assert statuses(deployment, killed, other) == [DagsterRunStatus.STARTED, SUCCESS]
    assert deployment.table() == straight_run(KEYS[:5])


def test_runs_of_one_backfill_that_begin_in_reverse_order_do_not_wait_for_each_other(
    deployment: Deployment, processes: Processes
) -> None:
    ranges = (KEYS[3], KEYS[4], "one"), (KEYS[1], KEYS[2], "one")
    with processes(*ranges, stops=("", "epochs")) as (late, early):
        late.go_on()
        late.until(f"Waiting for run {early.run_id} of the same backfill, which comes first: {KEYS[2]}")
        early.go_on()
        for _ in range(2):
            early.until("in an epoch")
            early.go_on()
        for run in (early, late):
            run.until("ended")
        assert statuses(deployment, early, late) == [SUCCESS, SUCCESS]
    assert deployment.table() == straight_run(KEYS[:5])


# --- rules ------------------------------------------------------------------------------------------------------------


class Clock:
    """The clock of this process, which waiting moves forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real, steady, self.ahead = time.time, time.monotonic, 0.0
        self.slept = 0
        self.then: Callable[[], None] = lambda: None
        monkeypatch.setattr(time, "time", lambda: real() + self.ahead)
        monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * time.time()))
        monkeypatch.setattr(time, "monotonic", lambda: steady() + self.ahead)

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.ahead += seconds
        self.then()
        assert self.slept < 10_000, "waits forever"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def job(tmp_path: Path) -> FlinkJob:
    return flink_job(letters(tmp_path), "letters")


class Turns:
    """The runs of an instance, and the log lines of a waiting run."""

    def __init__(self, instance: DagsterInstance, job: FlinkJob, clock: Clock, path: Path) -> None:
        self.instance, self.job, self.clock = instance, job, clock
        self.store = StorageLocation(str(path / "checkpoints")).open()
        self.said: list[str] = []

    def run(
        self, *, begun: bool = True, status: DagsterRunStatus = DagsterRunStatus.STARTED, **tags: str
    ) -> DagsterRun:
        run: DagsterRun = create_run_for_test(self.instance, status=status, tags={JOB_TAG: "letters", **tags})
        if begun:
            self.event(run, DagsterEventType.STEP_START)
        return run

    def backfill_run(self, key: str, **options: Any) -> DagsterRun:
        return self.run(**{BACKFILL_ID_TAG: "one", PARTITION_NAME_TAG: key, **options})

    def event(self, run: DagsterRun, kind: DagsterEventType, data: Any = None) -> None:
        event = DagsterEvent(kind.value, run.job_name, step_key="letters", event_specific_data=data)
        self.instance.report_dagster_event(event, run.run_id)

    def await_exclusive_run(self, run: DagsterRun) -> None:
        await_exclusive_run(self.instance, self.job, [], run, self.store, self.said.append, sleep=self.clock.sleep)

    def goes_on(self, run: DagsterRun) -> bool:
        first = time_partitions(WEEK, [run.tags[PARTITION_NAME_TAG]])[0]
        return continues_backfill(
            self.instance,
            run,
            self.job,
            [],
            WEEK,
            first,
            self.store,
            pool=None,
            log=self.said.append,
            sleep=self.clock.sleep,
        )

    def lets_another_go_first(self, run: DagsterRun) -> bool:
        first = time_partitions(WEEK, [run.tags[PARTITION_NAME_TAG]])[0]
        try:
            let_run_before_go_first(self.instance, run, self.job, [], WEEK, first, self.store, self.said.append)
        except RetryRequested:
            return True
        return False


@pytest.fixture
def turns(instance: DagsterInstance, job: FlinkJob, clock: Clock, tmp_path: Path) -> Turns:
    return Turns(instance, job, clock, tmp_path)


def test_whose_step_began_first_goes_first(turns: Turns, clock: Clock) -> None:
    turns.run(begun=False)
    first, mine, _younger = turns.run(), turns.run(), turns.run()

    def then() -> None:
        if clock.slept == 3:
            turns.instance.report_run_canceled(first)

    clock.then = then
    turns.await_exclusive_run(mine)
    assert clock.slept == 3, "not for the younger one, nor for the one whose step has not begun"
    (line,) = turns.said
    assert f"Waiting for run {first.run_id}" in line


def test_one_that_is_up_for_a_retry_is_not_waited_for(turns: Turns) -> None:
    other, mine = turns.run(), turns.run()
    turns.event(other, DagsterEventType.STEP_UP_FOR_RETRY)
    turns.await_exclusive_run(mine)
    assert turns.said == [], "it may wait for the slot of a pool that this one holds"


def test_who_leads_the_job_is_waited_for_although_its_step_began_later(turns: Turns, clock: Clock) -> None:
    mine, younger = turns.run(), turns.run()
    leader = lease.acquire(turns.store, "another run", timedelta(minutes=11), 10**14, led_by=younger.run_id, above=0)

    def then() -> None:
        if clock.slept == 3:
            lease.release(turns.store, leader)

    clock.then = then
    turns.await_exclusive_run(mine)
    assert clock.slept == 3
    assert f"Waiting for run {younger.run_id}" in turns.said[0]


def test_runs_of_two_backfills_never_wait_in_a_circle(turns: Turns) -> None:
    """The second run of a backfill begins first, then another run, then the first run of the backfill."""
    turns.backfill_run(KEYS[1])
    other = turns.run()
    first = turns.backfill_run(KEYS[0])
    turns.await_exclusive_run(first)
    assert turns.said == [], "the other one waits for the backfill"
    turns.await_exclusive_run(other)
    assert "Waiting for run" in turns.said[0]


def test_who_waits_long_says_so_again_and_gives_up_the_dead(turns: Turns, clock: Clock) -> None:
    dead, mine = turns.run(), turns.run()
    turns.await_exclusive_run(mine)
    assert clock.ahead <= exclusive_run.SILENT_SECONDS + exclusive_run.POLL_SECONDS
    *waiting, last = turns.said
    assert len(waiting) >= 4
    assert all(f"Waiting for run {dead.run_id}, which works on job letters" in line for line in waiting)
    assert f"Run {dead.run_id} of job letters began earlier but has shown no sign of life since" in last


def test_what_repeats_a_run_of_a_backfill_belongs_to_it(turns: Turns) -> None:
    """People execute failed runs again when the backfill has ended: then Dagster does not tag them."""
    first = turns.backfill_run(KEYS[0], status=DagsterRunStatus.SUCCESS)
    failed = [turns.backfill_run(key, status=DagsterRunStatus.FAILURE) for key in KEYS[1:3]]

    def again(run: DagsterRun, status: DagsterRunStatus = DagsterRunStatus.STARTED) -> DagsterRun:
        tags = {ROOT_RUN_ID_TAG: run.run_id, JOB_TAG: "letters", PARTITION_NAME_TAG: run.tags[PARTITION_NAME_TAG]}
        return create_run_for_test(
            turns.instance, status=status, tags=tags, root_run_id=run.run_id, parent_run_id=run.run_id
        )

    assert turns.goes_on(again(failed[1])), "the partition before it may have been run by hand"
    assert not turns.goes_on(again(first, DagsterRunStatus.SUCCESS)), "the config is for it"
    before = again(failed[0])
    assert turns.goes_on(before)
    turns.instance.report_run_failed(before)
    with pytest.raises(RestoreError, match=f"which run {before.run_id} of this backfill has not completed"):
        turns.goes_on(again(failed[1]))


def test_a_dead_run_of_the_backfill_is_an_error_for_the_next(turns: Turns, clock: Clock) -> None:
    dead, mine = turns.backfill_run(KEYS[0]), turns.backfill_run(KEYS[1])
    with pytest.raises(RestoreError, match=f"whose run {dead.run_id} of this backfill has shown no sign of life since"):
        turns.goes_on(mine)
    assert clock.ahead <= exclusive_run.SILENT_SECONDS + exclusive_run.POLL_SECONDS


def test_so_is_one_that_never_begins_but_not_while_one_before_it_works(
    turns: Turns, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_runs, "_QUEUED_SECONDS", 100.0)
    at_work = turns.backfill_run(KEYS[0])
    waits = turns.backfill_run(KEYS[1], begun=False, status=DagsterRunStatus.NOT_STARTED)
    mine = turns.backfill_run(KEYS[2])
    now = time.time_ns() // 1_000_000
    lease.acquire(turns.store, "another run", timedelta(seconds=200), now, led_by=at_work.run_id, above=0)
    with pytest.raises(
        RestoreError, match=f"whose run {waits.run_id} of this backfill does not begin: it is NOT_START"
    ):
        turns.goes_on(mine)
    assert clock.ahead > 150


def test_a_run_whose_other_assets_go_on_is_not_waited_for(turns: Turns, clock: Clock) -> None:
    before, mine = turns.backfill_run(KEYS[0]), turns.backfill_run(KEYS[1])
    assert turns.lets_another_go_first(mine)
    turns.event(before, DagsterEventType.STEP_SUCCESS, StepSuccessData(0.0))
    assert not turns.lets_another_go_first(mine)
    assert turns.goes_on(mine)
    assert clock.slept == 0

    turns.event(mine, DagsterEventType.STEP_SUCCESS, StepSuccessData(0.0))
    failed = turns.backfill_run(KEYS[2])
    turns.event(failed, DagsterEventType.STEP_FAILURE, StepFailureData(None, None))
    last = turns.backfill_run(KEYS[3])
    assert not turns.lets_another_go_first(last)
    with pytest.raises(RestoreError, match=f"which run {failed.run_id} of this backfill has not completed"):
        turns.goes_on(last)
