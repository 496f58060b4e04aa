"""Live tasks read what comes until the next checkpoint is triggered. Slots and lanes are threads of this process."""

from __future__ import annotations

import importlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.common import Duration, TimestampAssigner, Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream import (
    DataStream,
    KeyedProcessFunction,
    ProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.checkpointing.master_hook import MasterTriggerRestoreHook
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.errors import JobCancelledError, NoResourceAvailableError, SourceReadError, UserFunctionError
from dagster_flinkpy.runtime.master.deployments import job_exchange
from dagster_flinkpy.runtime.master.deployments.pipelined_region import PipelinedRegion
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.mailbox import Mailbox, ThreadMailbox
from dagster_flinkpy.runtime.master.requests import taken_requests
from dagster_flinkpy.storage import StorageLocation
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.waiting import LIMIT, until

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
DAY = timedelta(days=1)
WORLDS: dict[str, World] = {}


def _world(name: str) -> World:
    # Found again by name: this module may travel by value.
    return importlib.import_module("tests.runtime.master.test_open_epochs").WORLDS[name]


class World:
    """What a source can read, and what functions have seen. Pickled copies are this same object."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.ended = False
        self.seen: list[int] = []
        self.looks = 0
        self.fails_at: set[int] = set()
        """Records at which a function raises, once each."""
        self.taken: list[str] = []
        """The splits that the enumerator has got back, and the checkpoints of which it has heard."""
        self.broken = False
        """Whether the next look for input raises."""
        self.released = threading.Event()
        """Whether functions no longer wait."""
        self._changed = threading.Condition()
        self._name = uuid.uuid4().hex
        WORLDS[self._name] = self

    def __reduce__(self) -> Any:
        return _world, (self._name,)

    def see(self, number: int) -> None:
        with self._changed:
            if number in self.fails_at:
                self.fails_at.remove(number)
                raise ValueError("once")
            self.seen.append(number)
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: number in self.seen, LIMIT), f"{number} was never processed"

    def wait_for_other(self, number: int) -> None:
        """Waits until a record is processed again."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.seen.count(number) > 1, LIMIT), f"{number} never came again"


class Numbers(Source):
    """The records of a world."""

    discovery_interval = timedelta(milliseconds=1)

    def __init__(self, world: World, *, late: bool = True) -> None:
        self._world, self._late = world, late

    @property
    def produced_type(self) -> TypeInformation:
        return Types.LONG()

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return _Enumerator(self._world, restored, late=self._late)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        end = split.properties["end"]
        yield pa.array(self._world.records[split.offset : end], pa.int64()), end


class _Enumerator(SplitEnumerator):
    def __init__(self, world: World, restored: Any, *, late: bool) -> None:
        self._world, self._late = world, late
        self._next, self._ended = (restored["next"], restored["ended"]) if restored else (0, False)

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        self._world.looks += 1
        if self._world.broken:
            self._world.broken = False
            raise SourceReadError("the input cannot be listed")
        self._ended = self._world.ended  # before the records: none comes after the end
        first, end = self._next, len(self._world.records)
        self._next = end
        bounds = [first + (end - first) * i // parallelism for i in range(parallelism + 1)]
        return [[SourceSplit(f"{a}-{b}", {"end": b}, a)] if a < b else [] for a, b in pairwise(bounds)]

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        assert all(split.finished for split in splits)
        self._world.taken += [split.split_id for split in splits]

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._world.taken.append(f"checkpoint {checkpoint_id}")

    @property
    def exhausted(self) -> bool:
        return self._ended

    @property
    def assigns_late(self) -> bool:
        return self._late

    def snapshot_state(self) -> dict[str, Any]:
        return {"next": self._next, "ended": self._ended}


class Count(KeyedProcessFunction):
    """Counts by key, and tells the world of each record."""

    def __init__(self, world: World) -> None:
        self._world = world

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self._world.see(value)
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value, count


def program(world: World, *, late: bool = True, parallelism: int = 2) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    numbers = env.from_source(Numbers(world, late=late), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    keyed = numbers.key_by(lambda number: number % 3, Types.LONG())
    return collect_graph(keyed.process(Count(world), PAIR).uid("count"))


@pytest.fixture(autouse=True, scope="module")
def often() -> Iterator[None]:
    """Attempts look for requests often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(milliseconds=5))
        yield


class Timer(KeyedProcessFunction):
    """Tells the world when a timer of processing time fires."""

    def __init__(self, world: World) -> None:
        self._world = world

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer(now + 10)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        self._world.see(ctx.get_current_key())
        yield ctx.get_current_key(), timestamp


def timers(world: World) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    numbers = env.from_source(Numbers(world), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    return collect_graph(numbers.key_by(lambda number: number, Types.LONG()).process(Timer(world), PAIR).uid("timer"))


class EventTimer(Timer):
    """Tells the world when the event time of a record has come."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(value)


class EventTime(ProcessFunction):
    """Shows event time at each record."""

    def __init__(self, world: World) -> None:
        self._world = world

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield value, ctx.timer_service().current_watermark()
        self._world.see(value)


def of_two_sources(worlds: Sequence[World], timeout: Duration) -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Millis())
    one, other = (
        env.from_source(Numbers(world), strategy.with_idleness(timeout), uid).uid(uid)
        for world, uid in zip(worlds, ("numbers", "other"), strict=True)
    )
    return one.union(other)


def beside_an_idle_source(world: World, idle: World) -> JobGraph:
    keyed = of_two_sources((world, idle), Duration.of_millis(10)).key_by(lambda number: number, Types.LONG())
    return collect_graph(keyed.process(EventTimer(world), PAIR).uid("timer"))


class Millis(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value


class Run:
    """A run with periodic checkpoints, on a thread. Its input ends with the block, and so does it."""

    def __init__(
        self,
        world: World,
        folder: Path,
        *,
        interval: timedelta = DAY,
        late: bool = True,
        restarts: bool = True,
        graph: JobGraph | None = None,
        tolerable: int = 0,
        hooks: Sequence[MasterTriggerRestoreHook] = (),
    ) -> None:
        self.graph = graph or program(world, late=late)
        checkpointing = CoordinatorConfig(interval=interval, tolerable_failed=tolerable, master_hooks=tuple(hooks))
        failover = FailoverConfig(FixedDelayRestart(attempts=100 if restarts else 0, delay=timedelta(0)))
        self.attempt: JobAttempt = HarnessAttempt(
            self.graph,
            folder,
            live=True,
            threads=True,
            config={"checkpointing": checkpointing, "failover": failover},
        )
        self.asker = JobRequests(StorageLocation(str(folder)).child("job"), "asker")
        self.rows: list[Any] = []
        self.checkpoints: list[int] = []
        self.positions: list[tuple[int | None, int]] = []
        """How many records the source had read at each checkpoint, and how many rows there were up to it."""
        self.error: BaseException | None = None
        self.request = {"periodic": True}
        self._world, self._begun = world, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            with self.attempt as running:
                self._begun.set()
                for epoch in running.run_epochs(**self.request):
                    self.checkpoints.append(epoch.checkpoint_id)
                    self.rows += collected(self.graph, running.collected)
                    numbers = epoch.metadata.operator("numbers").coordinator_state
                    self.positions.append((numbers.get("next"), len(self.rows)))
        except BaseException as error:
            self.error = error
        self._begun.set()

    def __enter__(self) -> Run:
        self._thread.start()
        assert self._begun.wait(LIMIT)
        return self

    def __exit__(self, *_: object) -> None:
        self._world.ended = True
        self._thread.join(LIMIT)
        assert not self._thread.is_alive(), "the run does not end"

    def ask(self, kind: RequestKind) -> Any:
        return self.asker.wait(self.asker.submit(Order(kind)))


def counts(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Returns each number with how many of its key there are up to it."""
    return [(n, sum(1 for m in numbers[: i + 1] if m % 3 == n % 3)) for i, n in enumerate(numbers)]


def test_records_are_processed_before_their_checkpoint_is_triggered(tmp_path: Path) -> None:
    world = World()
    with Run(world, tmp_path) as run:
        for number in range(5):
            world.records.append(number)
            world.wait_for(number)
        assert run.checkpoints == []
    assert run.error is None
    assert run.checkpoints == [1], "the end of all input triggers a checkpoint"
    assert sorted(run.rows) == sorted(counts(range(5)))


def test_sources_hear_that_a_checkpoint_is_complete_while_the_next_epoch_is_open(tmp_path: Path) -> None:
    """They heard it at the next barrier: a slot of PostgreSQL kept its WAL, and a group its offsets, twice as long."""
    world = World()
    with Run(world, tmp_path) as run:
        world.records.append(0)
        world.wait_for(0)
        assert run.ask(RequestKind.CHECKPOINT).checkpoint_id == 1
        until(lambda: "checkpoint 1" in world.taken, "the source has not heard of it")
        world.records.append(1)
        world.wait_for(1)
    assert (run.error, run.checkpoints) == (None, [1, 2])
    assert world.taken.count("checkpoint 1") == 1


def test_a_request_for_a_checkpoint_ends_the_epoch_that_is_open(tmp_path: Path) -> None:
    world = World()
    with Run(world, tmp_path) as run:
        world.records.append(0)
        world.wait_for(0)
        assert run.ask(RequestKind.CHECKPOINT).checkpoint_id == 1
        world.records.append(3)
        world.wait_for(3)
        assert run.ask(RequestKind.CHECKPOINT).checkpoint_id == 2
    assert run.rows == [(0, 1), (3, 2)]
    assert run.checkpoints == [1, 2, 3]


def test_a_clock_that_is_set_back_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint was triggered, and no input looked for, until it was as late again: for hours."""
    world, real = World(), time.time_ns
    with Run(world, tmp_path, interval=timedelta(milliseconds=20)) as run:
        world.records.append(0)
        until(lambda: run.checkpoints, "there is no checkpoint")
        monkeypatch.setattr(time, "time_ns", lambda: real() - 5 * 3600 * 10**9)
        known = len(run.checkpoints)
        world.records.append(1)
        until(lambda: len(run.rows) == 2 and len(run.checkpoints) > known + 2, "it stands still")
    assert run.error is None


class Hook(MasterTriggerRestoreHook):
    """Fails at the first checkpoint."""

    def get_identifier(self) -> str:
        return "hook"

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int) -> Any:
        if checkpoint_id == 1:
            raise ValueError("not now")

    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: Any) -> None:
        pass


def test_a_checkpoint_whose_master_hook_fails_is_taken_again(tmp_path: Path) -> None:
    world = World()
    with Run(world, tmp_path, tolerable=1, hooks=[Hook()]) as run:
        world.records.append(0)
        assert run.ask(RequestKind.CHECKPOINT).checkpoint_id == 2
        run.ask(RequestKind.STOP)
    assert run.error is None
    assert sorted(run.rows) == [(0, 1)]


@pytest.mark.parametrize(("tolerable", "hooks"), [(1, []), (0, [Hook()])])
def test_hooks_or_tolerance_alone_keep_no_epoch_from_being_open(
    tmp_path: Path, tolerable: int, hooks: list[Hook]
) -> None:
    world = World()
    with Run(world, tmp_path, tolerable=tolerable, hooks=hooks) as run:
        world.records.append(0)
        world.wait_for(0)
        assert run.checkpoints == []


def test_a_stop_keeps_what_was_read(tmp_path: Path) -> None:
    world = World()
    with Run(world, tmp_path) as run:
        world.records.append(0)
        world.wait_for(0)
        stopped = run.ask(RequestKind.STOP)
    assert run.error is None
    assert stopped.savepoint is not None
    assert run.rows == [(0, 1)]


def test_a_cancellation_does_not_wait_for_the_checkpoint(tmp_path: Path) -> None:
    world = World()
    with Run(world, tmp_path) as run:
        world.records.append(0)
        world.wait_for(0)
        run.ask(RequestKind.CANCEL)
    assert isinstance(run.error, JobCancelledError)
    assert run.checkpoints == []


def test_who_ends_the_iteration_keeps_what_was_read(tmp_path: Path) -> None:
    world = World()
    with Run(world, tmp_path, interval=timedelta(milliseconds=10)).attempt as running:
        world.records.append(0)
        epochs = running.run_epochs(periodic=True)
        while not world.seen:
            next(epochs)
        epochs.close()
    assert running.latest is not None
    assert running.latest.operator("numbers").coordinator_state == {"next": 1, "ended": False}


@pytest.mark.parametrize("at", [0, 1])
def test_a_failure_in_an_open_epoch_repeats_what_it_was_given(tmp_path: Path, at: int) -> None:
    world = World()
    world.fails_at = {at}
    with Run(world, tmp_path) as run:
        for number in range(3):
            world.records.append(number)
            world.wait_for(number)
    assert run.error is None
    assert run.checkpoints == [1]
    assert sorted(run.rows) == sorted(counts(range(3)))
    assert world.seen.count(0) == (2 if at else 1)


def test_a_failure_without_restarts_ends_the_job_at_once(tmp_path: Path) -> None:
    world = World()
    world.fails_at = {0}
    with Run(world, tmp_path, restarts=False) as run:
        world.records.append(0)
    assert isinstance(run.error, UserFunctionError)
    assert run.checkpoints == []


def test_input_that_cannot_be_listed_restarts_the_job(tmp_path: Path) -> None:
    world = World()
    with Run(world, tmp_path) as run:
        world.records.append(0)
        world.wait_for(0)
        world.broken = True
        world.records.append(1)
        world.wait_for(1)
    assert run.error is None
    assert sorted(run.rows) == [(0, 1), (1, 1)]


def test_a_source_that_limits_what_it_reads_is_asked_once_for_each_checkpoint(tmp_path: Path) -> None:
    world = World()
    world.records = [0, 1]
    with Run(world, tmp_path, late=False, interval=timedelta(milliseconds=10)) as run:
        world.wait_for(1)
        run.ask(RequestKind.CHECKPOINT)
    assert world.looks <= len(run.checkpoints) + 1
    assert sorted(run.rows) == [(0, 1), (1, 1)]


def test_timers_of_processing_time_fire_before_the_checkpoint(tmp_path: Path) -> None:
    world = World()
    with Run(world, tmp_path, graph=timers(world)) as run:
        world.records.append(7)
        world.wait_for(7)
        assert run.checkpoints == []
    assert [key for key, _ in run.rows] == [7]


def test_event_time_does_not_wait_for_a_source_that_is_idle_for_longer_than_its_timeout(tmp_path: Path) -> None:
    world, idle = World(), World()
    with Run(world, tmp_path, graph=beside_an_idle_source(world, idle)) as run:
        world.records += [100, 200]
        world.wait_for(100)
        assert run.checkpoints == []
        idle.ended = True
    assert sorted(key for key, _ in run.rows) == [100, 200]


def test_a_source_that_has_no_input_in_an_epoch_is_not_idle_before_its_timeout(tmp_path: Path) -> None:
    world, other = World(), World()
    both = of_two_sources((world, other), Duration.of_days(1))
    with Run(world, tmp_path, graph=collect_graph(both.process(EventTime(world), PAIR).uid("times"))) as run:
        for source, number in ((world, 100), (other, 1000), (world, 200)):
            source.records.append(number)
            world.wait_for(number)
            run.ask(RequestKind.CHECKPOINT)
            run.ask(RequestKind.CHECKPOINT)  # of an epoch without input
        other.ended = True
    assert dict(run.rows)[200] < 200, "event time has not waited for it"


class Auto(JobAttempt):
    """Decides by itself whether tasks live, in slots of this process. Its lanes are threads."""

    def __init__(self, run: Run, folder: Path, progress: Callable[[str], object] = lambda line: None) -> None:
        checkpointing = CoordinatorConfig(interval=DAY)
        config = JobConfig("job", StorageLocation(str(folder)), in_process=True, checkpointing=checkpointing)
        super().__init__(run.graph, config, owner="test", on_progress=progress)
        self._exchange._mode = ExchangeMode.AUTO  # otherwise only on a real Spark

    def _create_mailbox(self) -> Mailbox:
        return ThreadMailbox()


@pytest.mark.parametrize("lives", [True, False])
def test_auto_decides_in_an_open_epoch_whether_tasks_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    def deploy(*_: Any) -> None:
        raise NoResourceAvailableError("2 of 2 slots did not start", needed=2)

    monkeypatch.setattr(job_exchange, "kept_slots", lambda _: 0)
    if not lives:
        monkeypatch.setattr(PipelinedRegion, "request", deploy)
    world, lines = World(), list[str]()
    run = Run(world, tmp_path)
    run.attempt = Auto(run, tmp_path, lines.append)
    with run:
        for number in range(2):
            world.records.append(number)
            if lives:
                world.wait_for(number)
            assert run.ask(RequestKind.CHECKPOINT).checkpoint_id == number + 1
            assert sorted(run.rows) == sorted(counts(range(number + 1)))
        run.ask(RequestKind.STOP)
    assert run.error is None
    assert [line for line in lines if "execution.exchange" in line] == [
        "job 'job': tasks live in slots (execution.exchange: pipelined)"
        if lives
        else "job 'job': each epoch is a Spark job (execution.exchange: spark), because 2 of 2 slots did not start"
    ]


def test_a_script_does_not_wait_for_its_interval_if_tasks_turn_out_not_to_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deploy(*_: Any) -> None:
        raise NoResourceAvailableError("2 of 2 slots did not start", needed=2)

    monkeypatch.setattr(job_exchange, "kept_slots", lambda _: 0)
    monkeypatch.setattr(PipelinedRegion, "request", deploy)
    world = World()
    world.records += range(5)
    world.ended = True
    run = Run(world, tmp_path)
    run.attempt = Auto(run, tmp_path)
    run.request = {"goes_on": True}
    with run:
        pass
    assert run.error is None
    assert sorted(run.rows) == sorted(counts(range(5)))


def test_a_run_can_be_cancelled_that_waits_for_its_first_checkpoint_without_live_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deploy(*_: Any) -> None:
        raise NoResourceAvailableError("2 of 2 slots did not start", needed=2)

    monkeypatch.setattr(PipelinedRegion, "request", deploy)
    world = World()
    run = Run(world, tmp_path)
    run.attempt = Auto(run, tmp_path)
    with run:
        run.ask(RequestKind.CANCEL)
    assert isinstance(run.error, JobCancelledError)
    assert run.checkpoints == world.seen == []


@settings(max_examples=examples(40))
@given(
    steps=st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), min_size=1, max_size=6),
    fails_at=st.sets(st.integers(0, 12), max_size=3),
    interval_ms=st.sampled_from([50, 100, 86_400_000]),
)
def test_whenever_records_checkpoints_and_failures_come_each_is_counted_once(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, bool, bool]],
    fails_at: set[int],
    interval_ms: int,
) -> None:
    world = World()
    world.fails_at = fails_at
    with Run(world, tmp_path_factory.mktemp("run"), interval=timedelta(milliseconds=interval_ms)) as run:
        for more, waits, asks in steps:
            world.records += range(len(world.records), len(world.records) + more)
            if waits and world.records:
                world.wait_for(world.records[-1])
            if asks:
                run.ask(RequestKind.CHECKPOINT)
    assert run.error is None
    assert sorted(n for n, _ in run.rows) == world.records
    assert all(position == rows for position, rows in run.positions), "a run that begins there reads each record once"
    assert sorted((n % 3, count) for n, count in run.rows) == sorted(
        (n % 3, count) for n, count in counts(world.records)
    )
