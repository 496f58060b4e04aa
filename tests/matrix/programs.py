"""Programs of the matrix: plain data, whose ``repr`` is code, and the job graphs built from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import (
    DataStream,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
)
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    Source,
    SourceSplit,
    SplitEnumerator,
)
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.datastream.job_graph import JobGraph
from tests.matrix.functions import (
    LATE,
    ODD,
    ODD_KEYS,
    OUT,
    RULES,
    ByRules,
    Changeable,
    Count,
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
    Values,
    Window,
)
from tests.runtime.programs import COUNTED, EVENT, FolderSink, environment

__all__ = ["BOUND", "Input", "Leg", "Path_", "Program", "build"]

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
    JOIN = "join"
    JOIN_THREE = "join of three"
    RULES = "broadcast"

    def __repr__(self) -> str:
        return str(self)


ORDERED = {Leg.COUNT, Leg.COUNT_WINDOWS, Leg.EDITS, Leg.CHANGEABLE, Leg.TUMBLING_LATENESS, Leg.SESSIONS_LATENESS}
"""Legs whose output depends on the order of a key's records, or of records and watermarks."""
SEVERAL_INPUTS = {Leg.JOIN, Leg.JOIN_THREE, Leg.RULES}


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


def build(program: Program, parallelism: int, folder: Path) -> JobGraph:
    """Builds the job graph of a program. Each leg writes to a :class:`FolderSink` of its name in the folder."""
    env = environment(parallelism)
    streams = [_stream(env, program, i) for i in range(len(program.inputs))]
    united = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    for leg in program.legs:
        sink = _Sink(folder / leg.name)
        three = (streams[0], streams[len(streams) // 2], streams[-1]) if leg in SEVERAL_INPUTS else (united,) * 3
        _compute(leg, program.spoils, *three).sink_to(sink).uid(f"{leg.name}-sink")
    return env.get_job_graph()


def _strategy(idleness: bool) -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(BOUND))
    strategy = strategy.with_timestamp_assigner("time")
    return strategy.with_idleness(Duration.of_seconds(1)) if idleness else strategy


def _stream(env: StreamExecutionEnvironment, program: Program, index: int) -> DataStream:
    given = program.inputs[index]
    uid, strategy = f"source-{index}", _strategy(given.idleness)
    stream = env.from_source(_Scheduled(given.epochs, program.ends), strategy, uid).uid(uid)
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
        case Leg.JOIN:
            return left.connect(right).key_by("key", "key").process(Join(), OUT).uid(uid)
        case Leg.JOIN_THREE:
            tuples = middle.map(tuple, COUNTED).uid(f"{uid}-map").key_by(lambda v: v[0], Types.STRING())
            return keyed.connect(tuples, right.key_by("key")).process(JoinThree(), OUT).uid(uid)
        case Leg.RULES:
            return keyed.connect(right.broadcast(RULES)).process(ByRules(), OUT).uid(uid)
