"""Programs of the matrix: plain data, whose ``repr`` is code, and the job graphs built from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import (
    AsyncDataStream,
    DataStream,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
)
from dagster_flinkpy.datastream.connectors import source as flink
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    Source,
    SourceSplit,
    SplitEnumerator,
)
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from tests.matrix.functions import (
    LATE,
    ODD,
    ODD_KEYS,
    OUT,
    RULES,
    Ask,
    ByRules,
    Changeable,
    Count,
    Digits,
    Edits,
    EveryKindOfState,
    InPlace,
    Join,
    JoinThree,
    Larger,
    Look,
    Numbered,
    OddAside,
    OddWindow,
    Pass,
    SelectThree,
    Tells,
    Values,
    Window,
)
from tests.runtime.programs import COUNTED, EVENT, FolderSink, environment

__all__ = ["BOUND", "LIVE", "Input", "Leg", "Path_", "Program", "Sources", "build"]

BOUND = 20
"""Allowed out-of-orderness of every source, in milliseconds."""

Record = tuple[str, int, int]
"""Key, time, value."""


@dataclass(frozen=True)
class Input:
    """A source: the records of each split of each epoch. An epoch may be empty."""

    epochs: tuple[tuple[tuple[Record, ...], ...], ...]
    idleness: bool = False
    """Whether the watermark strategy has an idle timeout."""


class Path_(Enum):
    """How records come from the sources to the first operator with keys."""

    DIRECT = "direct"
    MAP = "map"
    REBALANCE = "rebalance"
    STAMPED = "stamped"
    """Timestamps and watermarks are assigned anew."""
    BLOCKING = "blocking"
    """Records go through the store, between two regions."""

    def __repr__(self) -> str:
        return str(self)


class Leg(Enum):
    """What is computed from the records and written to a separate sink."""

    STATE = "state"
    TUMBLING = "tumbling"
    TUMBLING_LATENESS = "tumbling with lateness"
    SLIDING = "sliding"
    SLIDING_REDUCED = "sliding, reduced"
    SESSIONS = "sessions"
    SESSIONS_LATENESS = "sessions with lateness"
    COLUMNS = "sums of windows, in columns"
    COLUMNS_SLIDING = "counts of sliding windows, in columns"
    SESSIONS_AGGREGATED = "sessions, aggregated"
    ODD_KEYS = "windows of keys such as NaN"
    COUNT_WINDOWS = "windows by count"
    EDITS = "states that are edited"
    CHANGEABLE = "states of values that can change"
    TWICE = "windows of windows"
    COUNT = "running counts"
    SIDES = "side output, united again"
    ASYNC = "asynchronous calls"
    JOIN = "join"
    JOIN_THREE = "join of three"
    SELECT_THREE = "join of three that selects its inputs"
    TOLD = "events for a coordinator"
    RULES = "broadcast"
    COLUMNS_OWN = "sessions, aggregated in columns"

    def __repr__(self) -> str:
        return str(self)


ORDERED = {Leg.COUNT, Leg.COUNT_WINDOWS, Leg.EDITS, Leg.CHANGEABLE, Leg.TUMBLING_LATENESS, Leg.SESSIONS_LATENESS}
"""Legs whose output depends on the order of a key's records, or of records and watermarks."""
SEVERAL_INPUTS = {Leg.JOIN, Leg.JOIN_THREE, Leg.SELECT_THREE, Leg.RULES}
LIVE = {Leg.SELECT_THREE, Leg.TOLD}
"""Legs whose tasks must live."""


@dataclass(frozen=True)
class Program:
    """United sources, and what is computed from their records."""

    inputs: tuple[Input, ...]
    path: Path_
    legs: tuple[Leg, ...]
    ends: bool = True
    """Whether the input ends with its last epoch."""
    spoils: bool = False
    """Whether functions change what they are given, what they read from state, and what they have emitted."""

    @property
    def epochs(self) -> int:
        """The number of epochs."""
        return max(len(each.epochs) for each in self.inputs)


class Sources(Enum):
    """How sources give out the records of their inputs."""

    PLANNED = "planned"
    """Splits, which are planned before an epoch and read to their ends."""
    STOPPED = "stopped"
    """Splits that may come in the middle of an epoch, and amid which a barrier may come."""
    SLICED = "sliced"
    """A collection, of which each subtask reads a slice. A barrier may come amid it."""
    READERS = "readers"
    """As in Flink. A reader does not wait for others between epochs: event time does."""

    def __repr__(self) -> str:
        return str(self)


class _Sink(FolderSink):
    def create_committer(self, context: CommitterInitContext) -> Committer:
        return _Committer(super().create_committer(context))


class _Committer(Committer):
    """Replaces nothing, because each partition runs once."""

    def __init__(self, inner: Committer) -> None:
        self._inner = inner

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        self._inner.commit(requests)

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        return self._inner.abort_lingering(keep)

    def replace_partition(self, partition: str, checkpoint_id: int) -> int:
        return 0


class _Scheduled(PartitionedSource):
    def __init__(self, epochs: tuple[Any, ...], ends: bool, *, first: int = 0) -> None:
        self._epochs, self._ends, self._first = epochs, ends, first

    def for_partition(self, partition: TimePartition) -> Source:
        number = partition.ordinal
        return _Scheduled(self._epochs[number : number + 1], ends=True, first=number)

    @property
    def produced_type(self) -> Any:
        return EVENT

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return _Enumerator(self._epochs, self._ends, restored or {"next": 0, "given": self._first})

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        records = split.properties["records"]
        for start in range(split.offset, len(records), 2):
            batch = [tuple(record) for record in records[start : start + 2]]
            yield EVENT.to_arrow(batch), start + len(batch)


class _Enumerator(SplitEnumerator):
    def __init__(self, epochs: tuple[Any, ...], ends: bool, state: Any) -> None:
        self._epochs, self._ends, self._state = epochs, ends, dict(state)

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        planned = self._epochs[self._state["next"] : self._state["next"] + 1]
        for records in planned[0] if planned else ():
            number = self._state["given"]
            shares[number % parallelism].append(SourceSplit(f"split-{number}", {"records": records}))
            self._state["given"] += 1
        self._state["next"] += 1
        return shares

    def on_epoch_read(self, splits: Any) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return self._ends and self._state["next"] >= len(self._epochs)

    def snapshot_state(self) -> Any:
        return dict(self._state)


class _Stopped(Source):
    """Splits are read in parts, and those of an epoch before those of the next one."""

    resumes_splits = counts_records = True
    discovery_interval = timedelta(milliseconds=1)

    def __init__(self, scheduled: _Scheduled, *, side_by_side: bool) -> None:
        self._scheduled, self.splits_side_by_side = scheduled, side_by_side

    @property
    def produced_type(self) -> Any:
        return EVENT

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        inner, rests = (None, ()) if restored is None else (restored["inner"], restored["rests"])
        return _StoppedSplits(self._scheduled.create_enumerator(inner), rests)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        return self._scheduled.read(split)


class _StoppedSplits(SplitEnumerator):
    def __init__(self, inner: SplitEnumerator, rests: Sequence[Any]) -> None:
        self._inner = inner
        self._rests = [SourceSplit.from_json(each) for each in rests]

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        if not self._rests:
            return self._inner.plan_epoch(parallelism)
        rests, self._rests = self._rests, []
        return [rests[i::parallelism] for i in range(parallelism)]

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        self._rests += [split for split in splits if not split.finished]

    @property
    def exhausted(self) -> bool:
        return self._inner.exhausted and not self._rests

    @property
    def assigns_late(self) -> bool:
        return True

    def snapshot_state(self) -> Any:
        return {"inner": self._inner.snapshot_state(), "rests": [split.to_json() for split in self._rests]}


class _Readers(flink.Source):
    """Each reader is assigned all of its splits when it asks for one."""

    discovery_interval = timedelta(milliseconds=1)

    def __init__(self, epochs: tuple[Any, ...]) -> None:
        self._splits = [records for epoch in epochs for records in epoch]

    @property
    def produced_type(self) -> Any:
        return EVENT

    def create_enumerator(self, context: flink.SplitEnumeratorContext) -> flink.SplitEnumerator:
        return _ReadersEnumerator(context, [[number, 0] for number in range(len(self._splits))])

    def restore_enumerator(self, context: flink.SplitEnumeratorContext, checkpoint: Any) -> flink.SplitEnumerator:
        return _ReadersEnumerator(context, checkpoint)

    def create_reader(self, context: flink.SourceReaderContext) -> flink.SourceReader:
        return _Reader(context, self._splits)


class _ReadersEnumerator(flink.SplitEnumerator):
    def __init__(self, context: flink.SplitEnumeratorContext, left: list[Any]) -> None:
        self._context, self._left = context, left

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None) -> None:
        readers = self._context.current_parallelism()
        own = [split for split in self._left if split[0] % readers == subtask_id]
        self._left = [split for split in self._left if split not in own]
        self._context.assign_splits({subtask_id: own})
        self._context.signal_no_more_splits(subtask_id)

    def add_splits_back(self, splits: Sequence[Any], subtask_id: int) -> None:
        self._context.assign_splits({subtask_id % self._context.current_parallelism(): splits})

    def snapshot_state(self) -> Any:
        return self._left


class _Reader(flink.SourceReader):
    def __init__(self, context: flink.SourceReaderContext, records: Sequence[Any]) -> None:
        self._context, self._records = context, records
        self._splits: list[Any] = []
        self._no_more = False

    def start(self) -> None:
        self._context.send_split_request()

    def poll_next(self, output: flink.ReaderOutput) -> flink.InputStatus:
        while self._splits and self._splits[0][1] >= len(self._records[self._splits[0][0]]):
            del self._splits[0]
        if not self._splits:
            return flink.InputStatus.END_OF_INPUT if self._no_more else flink.InputStatus.NOTHING_AVAILABLE
        number, start = self._splits[0]
        end = min(start + 2, len(self._records[number]))  # as other sources, because watermarks come in between
        self._splits[0] = [number, end]
        output.collect_column(EVENT.to_arrow([tuple(record) for record in self._records[number][start:end]]))
        return flink.InputStatus.NOTHING_AVAILABLE

    def is_available(self) -> Future[None] | None:
        if not self._splits:
            return None
        now = Future[None]()
        now.set_result(None)
        return now

    def add_splits(self, splits: Sequence[Any]) -> None:
        self._splits = sorted([*self._splits, *splits])

    def notify_no_more_splits(self) -> None:
        self._no_more = True

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        return self._splits


def build(
    program: Program, parallelism: int, folder: Path, sources: Sources = Sources.PLANNED, drift: int | None = None
) -> JobGraph:
    """Builds the job graph of a program. Each leg writes to a :class:`FolderSink` of its name in the folder."""
    env = environment(parallelism)
    streams = [_stream(env, program, i, sources, drift) for i in range(len(program.inputs))]
    united = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    for leg in program.legs:
        sink = _Sink(folder / leg.name)
        three = (streams[0], streams[len(streams) // 2], streams[-1]) if leg in SEVERAL_INPUTS else (united,) * 3
        _compute(leg, program.spoils, *three).sink_to(sink).uid(f"{leg.name}-sink")
    return env.get_job_graph()


def _strategy(idleness: bool, drift: int | None = None) -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(BOUND))
    strategy = strategy.with_timestamp_assigner("time")
    if drift is not None:
        strategy = strategy.with_watermark_alignment("all", Duration.of_millis(drift), Duration.of_millis(1))
    return strategy.with_idleness(Duration.of_seconds(1)) if idleness else strategy


def _source(program: Program, index: int, sources: Sources) -> Source | flink.Source:
    epochs = program.inputs[index].epochs
    if sources is Sources.READERS:
        return _Readers(epochs)
    if sources is Sources.SLICED:
        return CollectionSource(
            [each for epoch in epochs for records in epoch for each in records], EVENT, batch_size=2
        )
    scheduled = _Scheduled(epochs, program.ends)
    return scheduled if sources is Sources.PLANNED else _Stopped(scheduled, side_by_side=index == 1)


def _stream(
    env: StreamExecutionEnvironment, program: Program, index: int, sources: Sources, drift: int | None
) -> DataStream:
    uid, strategy = f"source-{index}", _strategy(program.inputs[index].idleness, drift)
    stream = env.from_source(_source(program, index, sources), strategy, uid).uid(uid)
    if program.path is Path_.MAP:
        stream = stream.map(Pass(program.spoils), EVENT).uid(f"map-{index}")
    elif program.path is Path_.REBALANCE:
        stream = stream.rebalance().map(Pass(program.spoils), EVENT).uid(f"map-{index}")
    elif program.path is Path_.STAMPED:
        stream = stream.map(Pass(program.spoils), EVENT).uid(f"map-{index}")
        stream = stream.assign_timestamps_and_watermarks(_strategy(False)).uid(f"time-{index}")
    elif program.path is Path_.BLOCKING:
        stream = stream.map(Pass(program.spoils), EVENT).uid(f"map-{index}").blocking()
    return stream


def _late(stream: DataStream, leg: Leg) -> DataStream:
    late = stream.get_side_output(LATE).map(lambda v: ("late", v.key, v.time, [v.value]), OUT).uid(f"{leg.name}-late")
    return stream.union(late)


def _compute(leg: Leg, spoils: bool, left: DataStream, middle: DataStream, right: DataStream) -> DataStream:
    looked = left.filter(Look(spoils)).uid(f"{leg.name}-look") if spoils else left
    uid, keyed = leg.name, looked.key_by("key")
    long_list, values = Types.LIST(Types.LONG()), InPlace() if spoils else Values()
    tumbling = TumblingEventTimeWindows.of(Time.milliseconds(20))
    sliding = SlidingEventTimeWindows.of(Time.milliseconds(30), Time.milliseconds(10))
    sessions = EventTimeSessionWindows.with_gap(Time.milliseconds(9))
    match leg:
        case Leg.STATE:
            return keyed.process(EveryKindOfState(), OUT).uid(uid)
        case Leg.TUMBLING | Leg.TUMBLING_LATENESS:
            windowed = keyed.window(tumbling).side_output_late_data(LATE)
            windowed = windowed.allowed_lateness(15) if leg is Leg.TUMBLING_LATENESS else windowed
            return _late(windowed.aggregate(values, Window(spoils), long_list, OUT).uid(uid), leg)
        case Leg.SLIDING:
            return keyed.window(sliding).process(Window(spoils), OUT).uid(uid)
        case Leg.SLIDING_REDUCED:
            return keyed.window(sliding).reduce(Larger(), Window(spoils), OUT).uid(uid)
        case Leg.SESSIONS | Leg.SESSIONS_LATENESS:
            windowed = keyed.window(sessions).side_output_late_data(LATE)
            windowed = windowed.allowed_lateness(15) if leg is Leg.SESSIONS_LATENESS else windowed
            return _late(windowed.process(Window(spoils), OUT).uid(uid), leg)
        case Leg.COLUMNS:
            sums = keyed.window(tumbling).sum("value").uid(uid)
            return sums.map(lambda v: ("sum", v.key, 0, [v.value]), OUT).uid(f"{uid}-map")
        case Leg.COLUMNS_SLIDING:
            counts = keyed.window(sliding).count().uid(uid)
            return counts.map(lambda v: ("count", v.key, v.window_start, [v.count]), OUT).uid(f"{uid}-map")
        case Leg.SESSIONS_AGGREGATED:
            windowed = keyed.window(sessions).side_output_late_data(LATE)
            return _late(windowed.aggregate(values, Window(spoils), long_list, OUT).uid(uid), leg)
        case Leg.ODD_KEYS:
            odd = left.key_by(lambda v: ODD_KEYS[v.key], Types.DOUBLE())
            return odd.window(tumbling).aggregate(values, OddWindow(), long_list, OUT).uid(uid)
        case Leg.COUNT_WINDOWS:
            return keyed.count_window(3, 2).process(Numbered(), OUT).uid(uid)
        case Leg.CHANGEABLE:
            return keyed.process(Changeable(spoils), OUT).uid(uid)
        case Leg.EDITS:
            return keyed.process(Edits(), OUT).uid(uid)
        case Leg.TWICE:
            once = keyed.window(tumbling).aggregate(values, output_type=long_list).uid(uid)
            twice = once.key_by(len, Types.LONG()).window(TumblingEventTimeWindows.of(Time.milliseconds(40)))
            summed = twice.reduce(lambda a, b: sorted(a + b)).uid(f"{uid}-again")
            return summed.map(lambda v: ("twice", "", 0, v), OUT).uid(f"{uid}-map")
        case Leg.COUNT:
            return keyed.process(Count(), OUT).uid(uid)
        case Leg.SIDES:
            even = left.process(OddAside(), EVENT).uid(uid)
            odd = even.get_side_output(ODD).map(lambda v: v, EVENT).uid(f"{uid}-odd")
            return even.union(odd).key_by("key").process(EveryKindOfState(), OUT).uid(f"{uid}-state")
        case Leg.ASYNC:
            asked = AsyncDataStream.unordered_wait(left, Ask(), Time.seconds(1000), 3, EVENT).uid(uid)
            return asked.key_by("key").process(EveryKindOfState(), OUT).uid(f"{uid}-state")
        case Leg.JOIN:
            return left.connect(right).key_by("key", "key").process(Join(), OUT).uid(uid)
        case Leg.JOIN_THREE | Leg.SELECT_THREE:
            tuples = middle.map(tuple, COUNTED).uid(f"{uid}-map").key_by(lambda v: v[0], Types.STRING())
            join = JoinThree() if leg is Leg.JOIN_THREE else SelectThree()
            return keyed.connect(tuples, right.key_by("key")).process(join, OUT).uid(uid)
        case Leg.TOLD:
            return left.process(Tells(), OUT).uid(uid)
        case Leg.RULES:
            return keyed.connect(right.broadcast(RULES)).process(ByRules(), OUT).uid(uid)
        case Leg.COLUMNS_OWN:
            digits = keyed.window(sessions).agg(Digits()).uid(uid)
            return digits.map(lambda v: ("own", v.key, v.window_start, [v.n, *map(int, v.digits)]), OUT).uid(
                f"{uid}-map"
            )
