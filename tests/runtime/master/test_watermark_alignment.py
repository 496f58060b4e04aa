"""Sources of a group wait for each other in event time. Slots and lanes are threads of this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.requests import RequestKind
from dagster_flinkpy.common import Duration, TimestampAssigner, Types, WatermarkStrategy
from dagster_flinkpy.common.clock import Clock, SystemClock
from dagster_flinkpy.common.exchange_options import ExchangeMode
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors import source
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit
from dagster_flinkpy.datastream.connectors.source import InputStatus, ReaderOutput, SourceReader, SplitEnumerator
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import NoEffectWarning
from dagster_flinkpy.runtime.epoch import EpochInput, Reached, Stop
from dagster_flinkpy.runtime.exchange.input_gate import InputGate
from dagster_flinkpy.runtime.exchange.result_partition import PipelinedSubpartition, ResultPartition
from dagster_flinkpy.runtime.master.deployments.watermark_alignment import WatermarkCoordinator
from dagster_flinkpy.runtime.master.requests import taken_requests
from dagster_flinkpy.runtime.operators import source_reader_operator
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow, decode_event
from dagster_flinkpy.runtime.slot.pipelined_task import PipelinedTask
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, ManualClock, collect_graph, make_job
from tests.runtime.master.test_open_epochs import PAIR, Numbers, Run, World
from tests.runtime.master.test_stops_amid_splits import Input, Ranges, Sum, _Ranges
from tests.waiting import LIMIT, until

DRIFT, BATCH = 20, 10


class Time(TimestampAssigner):
    """The numbers of each source begin at a multiple of 10,000, at time 0."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value % 10_000 if record_timestamp < 0 else record_timestamp


def strategy(drift: int, idle_ms: int | None) -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Time())
    if idle_ms is not None:
        strategy = strategy.with_idleness(Duration.of_millis(idle_ms))
    return strategy.with_watermark_alignment("all", Duration.of_millis(drift), Duration.of_millis(1))


class Shifted(Ranges):
    """The records of an input, each with the same number added."""

    def __init__(self, there: Input, shift: int, *, resumes: bool = True) -> None:
        super().__init__(there)
        self._shift, self.resumes_splits = shift, resumes

    def read(self, split: SourceSplit) -> Iterator[Any]:
        for column, offset in super().read(split):
            yield pc.add(column, self._shift), offset


class FromZero(Ranges):
    """Splits that begin at time 0 each."""

    def read(self, split: SourceSplit) -> Iterator[Any]:
        first = self._there.bounds[int(split.split_id.split(":")[0])]
        for column, offset in super().read(split):
            yield column, offset, pa.array(range(offset - len(column) - first, offset - first), pa.int64())


def program(
    world: World, *sources: Source, drift: int = DRIFT, parallelism: int = 1, idle_ms: int | None = None
) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    uids = ["numbers", *(f"others{i}" for i in range(1, len(sources)))]
    first, *others = (
        env.from_source(source, strategy(drift, idle_ms), uid).uid(uid)
        for source, uid in zip(sources, uids, strict=True)
    )
    both = first.union(*others) if others else first
    return collect_graph(both.key_by(lambda number: number % 3, Types.LONG()).process(Sum(world), PAIR).uid("sum"))


@pytest.fixture(autouse=True, scope="module")
def often() -> Iterator[None]:
    """Attempts look for requests often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(milliseconds=5))
        yield


@pytest.fixture
def coordinators(monkeypatch: pytest.MonkeyPatch) -> list[WatermarkCoordinator]:
    """Those of all deployments that have sources of a group."""
    found: list[WatermarkCoordinator] = []
    hear = WatermarkCoordinator.hear

    def heard(coordinator: WatermarkCoordinator, *args: Any) -> bool:
        changed = hear(coordinator, *args)
        if coordinator not in found:
            found.append(coordinator)
        return changed

    monkeypatch.setattr(WatermarkCoordinator, "hear", heard)
    return found


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How far sources were told that they may be, by uid."""
    limits: dict[str, int] = {}
    set_limits = PipelinedTask.set_limits

    def tell(task: PipelinedTask, *args: Any) -> None:
        set_limits(task, *args)
        limits.update((uid, source.max_watermark) for uid, source in task._aligned.items())

    monkeypatch.setattr(PipelinedTask, "set_limits", tell)
    return limits


@contextmanager
def ending(world: World) -> Iterator[None]:
    try:
        yield
    finally:
        world.ended = True


def await_limit(coordinators: list[WatermarkCoordinator], limit: int) -> None:
    """Waits until the first source may be as far as a limit, and is further."""

    def holds() -> bool:
        known = coordinators[-1] if coordinators else None
        if known is None or known.limits.get("numbers") != limit:
            return False
        return any(waits and reached is not None and reached > limit for reached, _, waits in reached_by(known))

    until(holds, f"a source that waits at {limit}")


def await_looks(world: World, looks: int) -> None:
    """Waits until a source was asked for input so often."""
    until(lambda: world.looks >= looks, "another look for input")


def reached_by(coordinator: WatermarkCoordinator) -> list[Reached]:
    return list(coordinator._subtasks["numbers"].values())


def read_of_first(world: World) -> int:
    """Returns the last record of the first source that was processed."""
    return max(number for number in list(world.seen) if number < 10_000)


def test_it_is_said_that_sources_do_not_wait_in_an_epoch_that_is_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_flinkpy.common.no_effect._warned_of", set())
    graph = program(World(), Numbers(World()))
    with HarnessAttempt(graph, tmp_path) as attempt:
        deployed = attempt._deployed
        epoch = EpochInput(1, {("numbers", 0): (SourceSplit("0-1", {"end": 1}),)})
        job = replace(make_job(graph, tmp_path), epoch=epoch)
        monkeypatch.setattr(attempt._exchange, "_mode", ExchangeMode.SPARK)
        monkeypatch.setattr(attempt._exchange, "_on_spark", lambda *_: [])
        with pytest.warns(NoEffectWarning, match=r"with_watermark_alignment\(\) has no effect: an epoch that is not"):
            attempt._exchange.run(job, deployed.regions.sessions[0], deployed.slots)


def test_limits_follow_the_source_that_is_least_far() -> None:
    world = World()
    coordinator = WatermarkCoordinator(program(world, Numbers(world), Numbers(world), parallelism=2))
    known = {uid: list(subtasks) for uid, subtasks in coordinator._subtasks.items()}
    assert coordinator.hear(0, {"numbers": (500, True, False)}) is False, "of the other source nothing is known"
    assert coordinator.hear(1, {"others1": (MIN_WATERMARK, True, False)}) is True, "it has just begun"
    assert coordinator.hear(1, {"others1": (None, False, False)}) is True
    assert coordinator.limits == {}, "what it has read had no timestamps"
    assert coordinator.hear(1, {"others1": (100, True, False)}) is True
    assert coordinator.limits == {"numbers": 100 + DRIFT, "others1": 100 + DRIFT}
    coordinator.hear(0, {"numbers": (500, True, True)})
    assert not coordinator.are_held
    coordinator.hear(1, {"others1": (300, False, False)})
    assert coordinator.limits["numbers"] == 300 + DRIFT, "where it has stopped"
    assert coordinator.are_held
    coordinator.hear(1, {"others1": (None, False, False)})
    assert coordinator.limits["numbers"] == 300 + DRIFT, "still"
    coordinator.hear(1, {"others1": (MAX_WATERMARK, False, False)})
    assert coordinator.limits["numbers"] == 500 + DRIFT, "it is idle, or has ended"
    assert {uid: list(subtasks) for uid, subtasks in coordinator._subtasks.items()} == known, "another thread looks"


def test_a_source_that_is_ahead_waits_while_the_other_one_reads(
    tmp_path: Path, coordinators: list[WatermarkCoordinator], told: dict[str, int]
) -> None:
    ahead, behind, world = Input([1000], limit=1), Input([1000], limit=1), World()
    with Run(world, tmp_path, graph=program(world, Ranges(ahead), Shifted(behind, 10_000))) as run:
        world.wait_for(0)
        world.wait_for(10_000)
        until(lambda: told == {"numbers": 19, "others1": 19}, "limits")
        ahead.limit = 1000
        for limit in (1, 100, 300):
            behind.limit = limit
            await_limit(coordinators, limit - 2 + DRIFT)
            assert read_of_first(world) - 1 <= limit - 2 + DRIFT + BATCH
            assert run.ask(RequestKind.CHECKPOINT).checkpoint_id, "a checkpoint comes nevertheless"
        behind.limit = 1000
    assert run.error is None
    assert sorted(number for number, _ in run.rows) == [*range(1000), *range(10_000, 11_000)]


class InTurns(_Ranges):
    """Gives each subtask what another one has begun."""

    looks = 0

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        self.looks += 1
        shares = super().plan_epoch(parallelism)
        return [shares[(i + self.looks) % parallelism] for i in range(parallelism)]


def test_a_checkpoint_names_once_what_several_subtasks_have_read_one_after_the_other(
    tmp_path: Path, coordinators: list[WatermarkCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, behind, world = Input([1000]), World(), World()
    monkeypatch.setattr(Ranges, "create_enumerator", lambda source, restored: InTurns(source._there, restored))
    graph = program(world, Ranges(ahead), Numbers(behind), parallelism=2)
    with Run(world, tmp_path, graph=graph) as run, ending(behind):
        behind.records += [10_000, 10_000]
        await_limit(coordinators, -1 + DRIFT)
        await_looks(behind, behind.looks + 5)
        run.ask(RequestKind.CHECKPOINT)
    assert run.error is None
    assert sorted(number for number, _ in run.rows) == [*range(1000), 10_000, 10_000]


def test_a_source_waits_in_no_part_without_input_for_it(
    tmp_path: Path, coordinators: list[WatermarkCoordinator]
) -> None:
    there, world = [Input([1000]), Input([1000], limit=100)], World()
    sources = [Ranges(there[0]), Shifted(there[1], 10_000)]
    for each in sources:
        each.discovery_interval = timedelta(days=1)  # nobody stops one that waits, so that there may be more for others
    with Run(world, tmp_path, graph=program(world, *sources)) as run:
        await_limit(coordinators, 98 + DRIFT)
        run.ask(RequestKind.CHECKPOINT)
        there[1].limit = 1000
    assert run.error is None
    assert sorted(number for number, _ in run.rows) == [*range(1000), *range(10_000, 11_000)]


def test_a_source_that_is_ahead_waits_while_the_other_one_has_nothing(
    tmp_path: Path, coordinators: list[WatermarkCoordinator], told: dict[str, int]
) -> None:
    ahead, behind, world = Input([1000], limit=1), World(), World()
    graph = program(world, Ranges(ahead), Numbers(behind))
    with Run(world, tmp_path, graph=graph) as run, ending(behind):
        behind.records.append(10_000)
        world.wait_for(10_000)
        until(lambda: told.get("numbers") == 19, "limits")
        ahead.limit = 1000
        for limit in (1, 100):
            behind.records += range(10_000 + len(behind.records), 10_000 + limit)
            world.wait_for(10_000 + limit - 1)
            await_limit(coordinators, limit - 2 + DRIFT)
            await_looks(behind, behind.looks + 3)
            assert read_of_first(world) - 1 <= limit - 2 + DRIFT + BATCH
    assert run.error is None
    assert sorted(number for number, _ in run.rows) == [*range(1000), *range(10_000, 10_100)]


def test_a_source_that_is_ahead_waits_in_another_run_too(
    tmp_path: Path, coordinators: list[WatermarkCoordinator]
) -> None:
    ahead, behind, world = Input([1000]), World(), World()
    behind.records += range(10_000, 10_100)
    with Run(world, tmp_path, graph=program(world, Ranges(ahead), Numbers(behind))) as run:
        await_limit(coordinators, 98 + DRIFT)
        assert run.ask(RequestKind.STOP).savepoint
    rows, runs = list(run.rows), len(coordinators)
    with Run(world, tmp_path, graph=program(world, Ranges(ahead), Numbers(behind))) as run, ending(behind):
        until(lambda: len(coordinators) > runs, "another deployment")
        await_limit(coordinators, 98 + DRIFT)
        await_looks(behind, behind.looks + 3)
        assert read_of_first(world) - 1 <= 98 + DRIFT + BATCH
    assert run.error is None
    assert sorted(number for number, _ in rows + run.rows) == [*range(1000), *range(10_000, 10_100)]


def test_an_idle_source_holds_up_no_other_one(tmp_path: Path, coordinators: list[WatermarkCoordinator]) -> None:
    ahead, behind, world = Input([1000], limit=1), World(), World()
    with Run(world, tmp_path, graph=program(world, Ranges(ahead), Numbers(behind), idle_ms=50)) as run, ending(behind):
        behind.records.append(10_000)
        world.wait_for(10_000)
        until(lambda: coordinators and coordinators[0].limits.get("numbers") is not None, "limits")
        ahead.limit = 1000
        world.wait_for(999)
        assert not behind.ended
    assert run.error is None
    assert sorted(number for number, _ in run.rows) == [*range(1000), 10_000]


def await_records_of_both(world: World, behind: World) -> None:
    """Waits until both sources have read what they were given: of the second one, nobody knew how far it is."""
    world.wait_for(999)
    behind.records.append(10_000)
    world.wait_for(10_000)
    await_looks(behind, behind.looks + 3)


def fail_with_another(world: World, behind: World) -> None:
    """Lets the region fail with another record of the second source."""
    world.fails_at = {10_001}
    behind.records.append(10_001)


def test_another_try_reads_all_that_the_first_one_has_though_a_source_was_ahead(tmp_path: Path) -> None:
    ahead, behind, world = Input([1000]), World(), World()
    with Run(world, tmp_path, graph=program(world, Ranges(ahead), Numbers(behind))) as run, ending(behind):
        await_records_of_both(world, behind)
        fail_with_another(world, behind)
        world.wait_for(10_001)
    assert run.error is None
    assert sorted(number for number, _ in run.rows) == [*range(1000), 10_000, 10_001]


def test_another_try_reads_all_that_the_first_one_has_though_a_reader_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, told = threading.Event(), threading.Event()

    def stop_reading(task: PipelinedTask, *, stops: bool) -> None:
        stop(task, stops=stops)
        if stops and not world.fails_at:  # it has failed
            told.set()

    stop = PipelinedTask.stop_reading
    monkeypatch.setattr(PipelinedTask, "stop_reading", stop_reading)
    monkeypatch.setattr(WatermarkCoordinator, "are_held", property(lambda _: held.is_set()))
    there, other, world = Input([1000]), World(), World()
    with Run(world, tmp_path, graph=program(world, Ranges(there), Numbers(other))) as run, ending(other):
        await_records_of_both(world, other)
        there.limit = 500
        held.set()
        fail_with_another(world, other)
        assert told.wait(LIMIT)
        there.limit = 1000
        world.wait_for(10_001)
    assert run.error is None
    assert sorted(number for number, _ in run.rows) == [*range(1000), 10_000, 10_001]


def test_splits_that_are_read_side_by_side_wait_for_each_other(tmp_path: Path) -> None:
    sizes, world = [300, 300, 100], World()
    there = Input(sizes)
    with Run(world, tmp_path, graph=program(world, FromZero(there, side_by_side=True))) as run:
        pass
    assert run.error is None
    reached = [0, 0, 0]
    for number in world.seen:
        split = int(np.searchsorted(there.bounds, number, side="right")) - 1
        reached[split] = number - there.bounds[split]
        left = [time for time, size in zip(reached, sizes, strict=True) if time + 1 < size]
        assert max(left, default=0) - min(left, default=0) <= BATCH
    assert sorted(number for number, _ in run.rows) == list(range(700))


def task_of(graph: JobGraph, folder: Path, clock: Clock | None = None) -> tuple[PipelinedTask, list[WireRow]]:
    """Returns the task that reads the sources of a program, and what it sends."""
    rows = list[WireRow]()
    task = PipelinedTask(
        replace(make_job(graph, folder, inputs={}), clock=clock or SystemClock()),
        0,
        graph.stage_vertices(0),
        0,
        ResultPartition({(0, 0): PipelinedSubpartition(rows.append, 99)}, rows.append),
        InputGate({}, lambda: None, 1),
        later=lambda mail: mail(),
        on_error=lambda error, task: None,
    )
    task.open()
    return task, rows


def side_by_side(folder: Path) -> tuple[PipelinedTask, list[WireRow]]:
    """Returns a task that reads two splits, of 40 records from time 0 on each, and what it sends."""
    return task_of(program(World(), FromZero(Input([40, 40]), side_by_side=True)), folder)


def part(read: int, **more: Any) -> EpochInput:
    """Returns a part with both splits. Of the first one, so many records were read before, of the second one none."""
    splits = SourceSplit("0:", {"end": 40}, read), SourceSplit("1:", {"end": 80}, 40)
    return EpochInput(1, {("numbers", 0): splits}, open=True, timed=True, watermarks={"numbers": 5}, **more)


def asked_with(task: PipelinedTask, rows: list[WireRow]) -> dict[str, Any]:
    """Reads on, and returns what the task says when it asks for the next part."""
    while task.is_available:
        task.step()
    told = [json.loads(row.payload.to_pybytes()) for row in rows if row.kind is Kind.OPERATOR_EVENT]
    asked: dict[str, Any] = [each for each in told if "stops" in each][-1]
    return asked


def test_a_split_that_waits_unread_holds_event_time_back(tmp_path: Path) -> None:
    task, rows = side_by_side(tmp_path)
    task.begin(part(0))
    task.step()
    task.stop_reading(stops=True)  # behind a batch of the first split
    asked = asked_with(task, rows)
    assert (asked["watermarks"], sorted(asked["stops"]["numbers"][1])) == ({"numbers": 5}, [[0, 10, 10], [1, 0, 40]])
    task.set_limits({"numbers": 0})
    task.begin(part(10))
    task.stop_reading(stops=True)  # while it waits for others
    asked = asked_with(task, rows)
    assert (asked["watermarks"], sorted(asked["stops"]["numbers"][1])) == ({"numbers": 5}, [[0, 0, 10], [1, 0, 40]])


def test_a_split_that_waits_unread_holds_event_time_back_in_another_try(tmp_path: Path) -> None:
    task, rows = side_by_side(tmp_path)
    task.begin(part(0, again=True, stops={("numbers", 0): Stop(2, ((0, 10, 10), (1, 0, 40)))}))
    assert asked_with(task, rows)["watermarks"] == {"numbers": 5}


class Reader(SourceReader):
    """Emits 200 numbers of each of two splits. Those of the second are ten times as far in event time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next: dict[str, int] = {"slow": 0, "fast": 0}
        self._paused: set[str] = set()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        if 1 in self._next.values() and not self._world.released.is_set():
            return InputStatus.NOTHING_AVAILABLE
        for name in self._next.keys() - self._paused:
            n = self._next[name]
            step, shift = (10, 10_000) if name == "fast" else (1, 0)
            output.create_output_for_split(name).collect(n + shift, n * step)
            self._next[name] += 1
            if n == 199:
                output.release_output_for_split(name)
                del self._next[name]
        if not self._next:
            return InputStatus.END_OF_INPUT
        return InputStatus.MORE_AVAILABLE if self._next.keys() - self._paused else InputStatus.NOTHING_AVAILABLE

    def pause_or_resume_splits(self, splits_to_pause: Sequence[str], splits_to_resume: Sequence[str]) -> None:
        self._paused = (self._paused | {*splits_to_pause}) - {*splits_to_resume}

    def add_splits(self, splits: Sequence[Any]) -> None:
        if splits:
            (self._next,) = splits

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        return [self._next]


class Enumerator(SplitEnumerator):
    def handle_split_request(self, subtask_id: int, requester_hostname: str | None) -> None:
        pass

    def add_splits_back(self, splits: Sequence[Any], subtask_id: int) -> None:
        pass

    def snapshot_state(self) -> Any:
        return None


class TwoSplits(source.Source):
    produced_type = Types.LONG()

    def __init__(self, world: World) -> None:
        self._world = world

    def create_enumerator(self, context: source.SplitEnumeratorContext) -> SplitEnumerator:
        return Enumerator()

    def restore_enumerator(self, context: source.SplitEnumeratorContext, checkpoint: Any) -> SplitEnumerator:
        return Enumerator()

    def create_reader(self, context: source.SourceReaderContext) -> SourceReader:
        return Reader(self._world)


def test_a_reader_pauses_splits_that_are_ahead(
    tmp_path: Path, told: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_reader_operator, "_BATCH_RECORDS", BATCH)
    world = World()
    with Run(world, tmp_path, graph=program(world, TwoSplits(world)), interval=timedelta(milliseconds=50)) as run:
        until(lambda: told == {"numbers": DRIFT - 1}, "a limit")
        world.released.set()
    assert run.error is None
    assert sorted(number for number, _ in run.rows) == [*range(200), *range(10_000, 10_200)]
    slow = 0
    for number in world.seen:
        slow = max(slow, number if number < 10_000 else 0)
        assert slow == 199 or 10 * (number - 10_000) <= slow + DRIFT + 11 * BATCH


def test_a_reader_that_waits_for_others_is_no_longer_idle(tmp_path: Path) -> None:
    clock, world = ManualClock(0), World()
    task, rows = task_of(program(world, TwoSplits(world), idle_ms=10), tmp_path, clock)

    def reads_on() -> list[bool]:
        """Reads on, and returns when those behind the source take it for idle, and when no longer."""
        while task.is_available:
            task.step()
        return [bool(decode_event(row.kind, bytes(row.payload))[1]) for row in rows if row.kind is Kind.STREAM_STATUS]

    task.begin(EpochInput(1, {}, open=True, timed=True))
    for _ in range(2):
        reads_on()
        task.on_processing_time()
        clock.time += 10
    assert reads_on()[-1] is True
    task.set_limits({"numbers": -10})  # so it is not polled, and may have more
    assert reads_on()[-1] is False
    task.set_limits({})
    world.released.set()
    assert reads_on()[-1] is True, "it has read all"
    task.set_limits({"numbers": -10})
    assert reads_on()[-1] is True, "event time does not wait for it"


@settings(max_examples=examples(40))
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    of_others=st.lists(st.integers(0, 200), max_size=2),
    drift=st.integers(0, 100),
    batches=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    resumes=st.booleans(),
    side_by_side=st.booleans(),
    fails_at=st.sets(st.integers(0, 240), max_size=3),
    parallelism=st.integers(1, 2),
    interval_ms=st.sampled_from([10, 50, 86_400_000]),
    idle_ms=st.sampled_from([None, 20]),
)
def test_whatever_waits_all_is_read_once(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    of_others: list[int],
    drift: int,
    batches: list[int],
    resumes: bool,
    side_by_side: bool,
    fails_at: set[int],
    parallelism: int,
    interval_ms: int,
    idle_ms: int | None,
) -> None:
    world = World()
    world.fails_at = fails_at
    sources: list[Source] = [FromZero(Input(sizes, batches=batches), side_by_side=side_by_side)]
    sources += [
        Shifted(Input([size], batches=batches), 10_000 * i, resumes=resumes) for i, size in enumerate(of_others, 1)
    ]
    graph = program(world, *sources, drift=drift, parallelism=parallelism, idle_ms=idle_ms)
    folder, interval = tmp_path_factory.mktemp("run"), timedelta(milliseconds=interval_ms)
    with Run(world, folder, graph=graph, interval=interval) as run:
        pass
    assert run.error is None
    others = [range(10_000 * i, 10_000 * i + size) for i, size in enumerate(of_others, 1)]
    assert sorted(n for n, _ in run.rows) == [*range(sum(sizes)), *(n for each in others for n in each)]
