"""A checkpoint of live tasks comes amid a split: between two records, as in Flink."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partialmethod
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.requests import Order, RequestKind
from dagster_flinkpy.common import TimestampAssigner, Types, WatermarkStrategy
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream import (
    CheckpointedFunction,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ReducingStateDescriptor
from dagster_flinkpy.runtime.epoch import EpochInput, Stop
from dagster_flinkpy.runtime.master.deployments import pipelined_region
from dagster_flinkpy.runtime.master.requests import taken_requests
from dagster_flinkpy.runtime.shuffle.batch import Pace, StreamBatch
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.master.test_open_epochs import Run, World
from tests.waiting import until

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
FILES: dict[str, Input] = {}


def _input(name: str) -> Input:
    # Found again by name: this module may travel by value.
    return importlib.import_module("tests.runtime.master.test_stops_amid_splits").FILES[name]


class Input:
    """What a source reads. Pickled copies are this same object."""

    def __init__(self, sizes: Sequence[int], *, batches: Sequence[int] = (10,), limit: int | None = None) -> None:
        self.bounds = [0, *np.cumsum(sizes).tolist()]
        """Where splits begin and end."""
        self.batches = batches
        """How many records a batch has, in one call of read() after the other."""
        self.limit = self.bounds[-1] if limit is None else limit
        """The first record that is not there yet."""
        self.calls = 0
        self._name = uuid.uuid4().hex
        FILES[self._name] = self

    def __reduce__(self) -> Any:
        return _input, (self._name,)

    def read(self, start: int, end: int) -> Iterator[tuple[pa.Array, int]]:
        size = self.batches[self.calls % len(self.batches)]
        self.calls += 1
        while start < end:
            stop = max(min(start + size, end, self.limit), start)
            yield pa.array(range(start, stop), pa.int64()), stop  # without records as long as none are there
            start = stop


class Ranges(Source):
    """The records of an input."""

    discovery_interval = timedelta(milliseconds=1)
    resumes_splits = counts_records = True

    def __init__(self, there: Input, *, side_by_side: bool = False) -> None:
        self._there, self.splits_side_by_side = there, side_by_side

    @property
    def produced_type(self) -> TypeInformation:
        return Types.LONG()

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return _Ranges(self._there, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        return self._there.read(split.offset, split.properties["end"])


class _Ranges(SplitEnumerator):
    def __init__(self, there: Input, restored: Any) -> None:
        bounds = list(pairwise(there.bounds))
        # Two that are empty at the same place are two splits.
        splits = [SourceSplit(f"{number}: {a}-{b}", {"end": b}, a) for number, (a, b) in enumerate(bounds)]
        self._open = splits if restored is None else [SourceSplit.from_json(each) for each in restored["open"]]
        self._numbers = {split.split_id: number for number, split in enumerate(splits)}
        self._planned = False

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        self._planned = True
        return [[s for s in self._open if self._numbers[s.split_id] % parallelism == i] for i in range(parallelism)]

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        back = {split.split_id: split for split in splits}
        found = [back.get(split.split_id, split) for split in self._open]
        self._open = [split for split in found if not split.finished]
        self._planned = all(split.finished for split in splits)

    @property
    def exhausted(self) -> bool:
        return self._planned

    @property
    def assigns_late(self) -> bool:
        return True

    def snapshot_state(self) -> dict[str, Any]:
        return {"open": [split.to_json() for split in self._open]}


class Sum(KeyedProcessFunction):
    """Adds up what came of a key, and tells the world of each record."""

    def __init__(self, world: World) -> None:
        self._world = world

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self._world.see(value)
        self._sum.add(value)
        yield value, self._sum.get()


@pytest.fixture(autouse=True, scope="module")
def often() -> Iterator[None]:
    """Attempts look for requests often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(milliseconds=5))
        yield


def program(source: Source, world: World, *, parallelism: int = 1) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    keyed = numbers.key_by(lambda number: number % 3, Types.LONG())
    return collect_graph(keyed.process(Sum(world), PAIR).uid("sum"))


def sums(count: int) -> list[tuple[int, int]]:
    """Returns each number with the sum of its key up to it, if they came in order."""
    return [(n, sum(range(n % 3, n + 1, 3))) for n in range(count)]


def position(run: Run | HarnessAttempt) -> list[int]:
    """Returns how far the splits are read that the last checkpoint has not read to their ends."""
    metadata = (run.attempt if isinstance(run, Run) else run).latest
    assert metadata is not None
    return [split["offset"] for split in metadata.operator("numbers").coordinator_state["open"]]


def test_checkpoints_come_amid_a_split(tmp_path: Path) -> None:
    there, world = Input([100], limit=30), World()
    with Run(world, tmp_path, graph=program(Ranges(there), world)) as run:
        for limit in (30, 60):
            there.limit = limit
            world.wait_for(limit - 1)
            run.ask(RequestKind.CHECKPOINT)
            assert run.rows == sums(limit)
            assert position(run) == [limit]
        there.limit = 100
    assert run.error is None
    assert run.rows == sums(100)
    assert position(run) == []
    assert there.calls == 1, "the reader has gone on where it was"


def _parts(pace: Pace, rows: int, batch: StreamBatch, function: Callable[[StreamBatch], object]) -> Iterator[int]:
    """As `Pace.process`, with functions that take long for a few records."""
    for start in range(0, len(batch), rows):
        function(batch.slice(start, start + rows))
        pace.is_slow = True
        yield min(start + rows, len(batch))


class Slow(MapFunction):
    """Takes a millisecond for each record until it is released."""

    def __init__(self, world: World) -> None:
        self._world = world

    def map(self, value: Any) -> Any:
        self._world.released.wait(0.001)
        return value


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_checkpoint_comes_amid_a_batch_that_takes_long(tmp_path: Path, shuffled: bool) -> None:
    there, world = Input([30_000], batches=(30_000,)), World()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    numbers = env.from_source(Ranges(there), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    sent = numbers.rebalance() if shuffled else numbers
    counts = sent.map(Slow(world), Types.LONG()).uid("slow").key_by(lambda n: n % 3, Types.LONG())
    with Run(world, tmp_path, graph=collect_graph(counts.process(Sum(world), PAIR).uid("sum"))) as run:
        run.ask(RequestKind.CHECKPOINT)
        run.ask(RequestKind.CHECKPOINT)
        first = position(run)
        world.released.set()
    assert run.error is None
    assert 0 < first[0] < 30_000
    assert [n for n, _ in run.rows] == list(range(30_000))
    assert [t for _, t in run.rows[-3:]] == [sum(range(n % 3, n + 1, 3)) for n in range(29_997, 30_000)]
    assert there.calls == 1, "the rest of the batch is kept"


@pytest.mark.parametrize(("live", "parallelism"), [(True, 1), (True, 3), (False, 1), (False, 2)])
def test_another_run_goes_on_amid_the_split(tmp_path: Path, live: bool, parallelism: int) -> None:
    there, world = Input([50, 50, 50], limit=30), World()
    with Run(world, tmp_path, graph=program(Ranges(there), world)) as run:
        world.wait_for(29)
        assert run.ask(RequestKind.STOP).savepoint is not None
    assert run.error is None
    assert run.rows == sums(30)
    assert position(run) == [30, 50, 100]
    there.limit = 150
    graph = program(Ranges(there), world, parallelism=parallelism)
    rows = list(run.rows)
    with HarnessAttempt(graph, tmp_path, live=live) as attempt:
        while not (attempt.latest and attempt.latest.end_of_input):
            attempt.run_epoch()
            rows += collected(graph, attempt.collected)
        assert position(attempt) == []
    assert sorted(n for n, _ in rows) == list(range(150))
    assert {n % 3: total for n, total in sorted(rows, key=lambda row: row[1])} == {n % 3: t for n, t in sums(150)}
    if parallelism == 1:
        assert rows == sums(150)


def test_a_failure_after_a_checkpoint_amid_a_split_reads_on_from_there(tmp_path: Path) -> None:
    there, world = Input([100], limit=30), World()
    world.fails_at = {45}
    with Run(world, tmp_path, graph=program(Ranges(there), world)) as run:
        world.wait_for(29)
        run.ask(RequestKind.CHECKPOINT)
        there.limit = 60
        world.wait_for(59)
        run.ask(RequestKind.CHECKPOINT)
        assert run.rows == sums(60)
        there.limit = 100
    assert run.error is None
    assert run.rows == sums(100)
    assert world.seen.count(29) == 1
    assert world.seen.count(31) == 2


class FailsOnce(Sum, CheckpointedFunction):
    """Raises when the snapshot is taken, once."""

    def snapshot_state(self, context: Any) -> None:
        if self._world.fails_at:
            self._world.fails_at.clear()
            raise ValueError("once")

    def initialize_state(self, context: Any) -> None:
        """It keeps nothing else."""


@pytest.mark.parametrize("batches", [(10,), (10, 7), (10, 40), (10, 1)])
def test_another_try_of_an_epoch_stops_where_the_first_one_has(tmp_path: Path, batches: Sequence[int]) -> None:
    there, world = Input([100], batches=batches, limit=30), World()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    numbers = env.from_source(Ranges(there), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    keyed = numbers.key_by(lambda number: number % 3, Types.LONG())
    with Run(world, tmp_path, graph=collect_graph(keyed.process(FailsOnce(world), PAIR).uid("sum"))) as run:
        world.wait_for(29)
        world.fails_at = {-1}
        order = run.asker.submit(Order(RequestKind.CHECKPOINT))
        world.wait_for_other(29)
        there.limit = 100
        assert run.asker.wait(order).checkpoint_id == 1
    assert run.error is None
    assert run.rows == sums(100)
    assert run.positions[0] == (None, 30), "rows that came since are of the next checkpoint"


class AtTime(KeyedProcessFunction):
    """Emits a record when its event time has come; late ones are negative."""

    def __init__(self, world: World) -> None:
        self._world = world

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self._world.see(value)
        if value <= ctx.timer_service().current_watermark():
            yield -value, 0
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield timestamp, 0


@pytest.mark.parametrize("side_by_side", [False, True])
def test_event_time_waits_for_what_is_not_read(tmp_path: Path, side_by_side: bool) -> None:
    class Later(TimestampAssigner):
        """The records of each split have the same times, if the splits are side by side."""

        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return value % 40 if side_by_side else value

    there, world = Input([40, 40, 40], limit=20), World()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Later())
    numbers = env.from_source(Ranges(there, side_by_side=side_by_side), strategy, "numbers").uid("numbers")
    time = (lambda number: number % 40) if side_by_side else (lambda number: number)
    keyed = numbers.map(time, Types.LONG()).uid("time").key_by(lambda number: 0, Types.LONG())
    with Run(world, tmp_path, graph=collect_graph(keyed.process(AtTime(world), PAIR).uid("at"))) as run:
        world.wait_for(19)
        run.ask(RequestKind.CHECKPOINT)
        assert len(run.rows) == (0 if side_by_side else 19), "records with earlier times may follow of other splits"
        there.limit = 120
    assert run.error is None
    rows = [n for n, _ in run.rows]
    assert min(rows) >= 0, "no record is late"
    assert rows == sorted(rows)


STOPS: list[Any] = []
"""One for each time that live tasks were told to stop."""


class Waits(ParquetSource):
    """Yields nothing for now after each 5,000 records, until there was a checkpoint."""

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        stops = importlib.import_module("tests.runtime.master.test_stops_amid_splits").STOPS
        read = split.offset
        for column, offset in super().read(split):
            while min(offset, 20_000) > 5000 * (len(stops) + 1):
                yield column[:0], read
            yield column, offset
            read = offset


def test_a_parquet_file_is_read_up_to_each_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, say = 200_000, pipelined_region._Deployment.say

    def told(deployment: Any, what: str, *args: Any, **fields: Any) -> None:
        say(deployment, what, *args, **fields)
        if what == "stop_reading":
            STOPS.append(deployment)

    STOPS.clear()
    monkeypatch.setattr(pipelined_region._Deployment, "say", told)
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": pa.array(range(count), pa.int64())}), tmp_path / "in" / "a.parquet")
    source = Waits(str(tmp_path / "in"), row_type=Types.ROW_NAMED(["n"], [Types.LONG()]), batch_rows=1000)
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    graph = collect_graph(rows.map(lambda row: int(row.n), Types.LONG()).uid("see"))
    with Run(World(), tmp_path / "job", graph=graph, interval=timedelta(milliseconds=10)) as run:
        pass
    assert run.error is None
    assert run.rows == list(range(count))
    found = [rows for _, rows in run.positions]
    assert [rows for rows in found if 0 < rows <= 15_000], "a checkpoint came while the first records were read"
    assert found == sorted(found)


@settings(max_examples=examples(30))
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    batches=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    limits=st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=4),
    fails_at=st.sets(st.integers(0, 120), max_size=3),
    parallelism=st.integers(1, 2),
    part_rows=st.sampled_from([1, 3, None]),
    interval_ms=st.sampled_from([20, 86_400_000]),
)
def test_whenever_checkpoints_and_failures_come_each_record_is_counted_once(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    batches: list[int],
    limits: list[tuple[float, bool]],
    fails_at: set[int],
    parallelism: int,
    part_rows: int | None,
    interval_ms: int,
) -> None:
    there, world = Input(sizes, batches=batches, limit=0), World()
    total, world.fails_at = sum(sizes), fails_at
    graph, interval = program(Ranges(there), world, parallelism=parallelism), timedelta(milliseconds=interval_ms)
    with (
        pytest.MonkeyPatch.context() as patch,
        Run(world, tmp_path_factory.mktemp("run"), graph=graph, interval=interval) as run,
    ):
        if part_rows is not None:
            patch.setattr(Pace, "process", partialmethod(_parts, part_rows))
        for share, asks in sorted(limits):
            there.limit = int(share * total)
            if asks and there.limit < total:  # else the job may have ended
                run.ask(RequestKind.CHECKPOINT)
                # Another checkpoint may complete between the two.
                until(lambda: sorted(n for n, _ in run.rows) == sorted({*range(total)} - {*_rest(run, there)}), "rows")
        there.limit = total
    assert run.error is None
    assert sorted(n for n, _ in run.rows) == list(range(total))
    assert {n % 3: t for n, t in sorted(run.rows, key=lambda r: r[1])} == {n % 3: t for n, t in sums(total)}


def _rest(run: Run, there: Input) -> list[int]:
    """Returns the records that the last checkpoint has not read."""
    metadata = run.attempt.latest
    assert metadata is not None
    splits = metadata.operator("numbers").coordinator_state["open"]
    return [n for split in splits for n in range(split["offset"], split["properties"]["end"])]


# --- the rule ---------------------------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(0, 9), max_size=5),
    cuts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=8),
    before=st.integers(0, 3),
)
def test_epochs_that_stop_anywhere_read_each_record_once_and_in_order(
    sizes: list[int], cuts: list[tuple[int, int]], before: int
) -> None:
    task, bounds = ("numbers", 0), [0, *np.cumsum(sizes).tolist()]
    left = [SourceSplit(f"{a}-{b}", {"end": b}, a) for a, b in pairwise(bounds)]
    read: list[int] = []
    for checkpoint_id, (number, records) in enumerate(cuts):
        part, stops = EpochInput(checkpoint_id, {task: tuple(left)}, open=True), dict[tuple[str, int], Stop]()
        if number < len(left):
            end = min(left[number].offset + records, left[number].properties["end"])
            begun = ((number, end - left[number].offset, end),) if records else ()
            stops[task] = Stop(number, begun)
        earlier = SourceSplit("earlier", {"end": 0}, finished=True)
        epoch = EpochInput(checkpoint_id, {task: (earlier,) * before}).followed_by(EpochInput(checkpoint_id, {}))
        epoch = epoch.followed_by(EpochInput(checkpoint_id, part.splits, stops=stops))
        back = epoch.read_splits()["numbers"]
        assert [split.split_id for split in back[:before]] == ["earlier"] * before
        for split, there in zip(back[before:], left, strict=True):
            read += range(there.offset, there.properties["end"] if split.finished else split.offset)
        left = [split for split in back if not split.finished]
    assert [*read, *(n for split in left for n in range(split.offset, split.properties["end"]))] == [*range(sum(sizes))]
