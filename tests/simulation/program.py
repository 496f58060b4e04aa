"""The simulated program: numbers -> count per key -> files, in one region, in two, or in four.

Of four regions, two are side by side: one passes on the even numbers, the other the odd ones. The program reads a
stream of splits, or time partitions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from enum import StrEnum
from functools import cache
from typing import Any

import pyarrow as pa

from dagster_flinkpy.checkpoint.partitions import PartitionEnd, PartitionRetention
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors.commit.staged_files import StagedFileCommitter
from dagster_flinkpy.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import (
    Committer,
    CommitterInitContext,
    CommittingSinkWriter,
    Source,
    SourceSplit,
    SplitEnumerator,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from tests.simulation.bucket import URL, SimulatedStore
from tests.simulation.world import Chaos, World

__all__ = [
    "EXCHANGE",
    "FILTERS",
    "JOB",
    "KEYS",
    "MAX_PARALLELISM",
    "OUT",
    "PARTITIONS",
    "PARTITION_SPLITS",
    "SPLITS",
    "SPLIT_RECORDS",
    "Files",
    "Numbers",
    "Scenario",
    "SimulatedLocation",
    "SourceShape",
    "count_of",
    "group_of",
    "here",
    "key_of",
    "ordinals",
    "partition",
    "program",
    "simulate_in",
]

JOB = "job"
OUT = "out"
SPLITS = 10
SPLIT_RECORDS = 4
PARTITION_SPLITS = 2
PARTITIONS = SPLITS // PARTITION_SPLITS
KEYS = 5
EXCHANGE = ".exchange"
"""The end of the uids of operators that write a blocking edge."""
FILTERS: dict[str, Callable[[int], bool]] = {"evens": lambda n: n % 2 == 0, "odds": lambda n: n % 2 == 1}
"""The operators of the regions that are side by side."""
MAX_PARALLELISM = 6

_FIRST_DAY = datetime(2024, 3, 1, tzinfo=timezone.utc)

_world: World | None = None


def simulate_in(world: World) -> None:
    """Sets the world to which locations, sinks and clocks in this process belong."""
    global _world
    _world = world


def here() -> World:
    """Returns the world that is simulated in this process."""
    assert _world is not None
    return _world


@dataclass(frozen=True)
class SimulatedLocation(StorageLocation):
    """Opens the world's store."""

    def open(self) -> ObjectStore:
        return SimulatedStore(here(), self.url.removeprefix(URL).strip("/"))


class SourceShape(StrEnum):
    """How the source of live tasks gives out its records."""

    WHOLE = "whole"
    """Splits, which are planned before an epoch."""
    LATE = "late"
    """Splits that come in the middle of an epoch, too."""
    RESUMED = "resumed"
    """The same, and a barrier may come amid a split."""
    READERS = "readers"
    """Readers that ask for splits, as in Flink."""


@dataclass(frozen=True)
class Scenario:
    """How the job is deployed."""

    partitioned: bool
    regions: int
    """How many regions the program has."""
    num_retained: int
    partition_retention: PartitionRetention
    retention: ExternalizedCheckpointRetention
    """What happens to checkpoints when a run ends."""
    unaligned: bool = False
    """Whether barriers overtake what is in flight on blocking edges, or between live tasks."""
    live: bool = False
    """Whether its tasks are the library's own, and live in slots."""
    one_reader: bool = False
    """Whether only one live task reads the source."""
    source: SourceShape = SourceShape.WHOLE
    """How the source of live tasks gives out its records."""
    aligned: bool = False
    """Whether the subtasks of that source wait for each other in event time."""

    @staticmethod
    def draw(rng: random.Random, chaos: Chaos) -> Scenario:
        drawn = Scenario(
            partitioned=rng.random() < chaos.partitioned,
            regions=(4 if rng.random() < chaos.diamond else 2) if rng.random() < chaos.regions else 1,
            num_retained=rng.choice((1, 1, 2, 3)),
            partition_retention=rng.choice(
                (
                    PartitionRetention(),
                    PartitionRetention(every=2),
                    PartitionRetention(every=3, last=1),
                    PartitionRetention(every=None, last=1),
                    PartitionRetention(every=None, last=2),
                )
            ),
            retention=(
                rng.choice(tuple(ExternalizedCheckpointRetention))
                if rng.random() < chaos.deleting
                else ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
            ),
        )
        return replace(drawn, unaligned=rng.random() < chaos.unaligned) if drawn.regions > 1 else drawn

    def with_live_tasks(self, rng: random.Random, chaos: Chaos) -> Scenario:
        regions = min(self.regions, 2)
        source = SourceShape.WHOLE if self.partitioned else SourceShape(rng.choice(chaos.sources or (*SourceShape,)))
        unaligned = regions == 1 and rng.random() < chaos.unaligned
        one_reader = regions == 1 and rng.random() < 0.3
        aligned = self.num_retained == 2  # not drawn, so that the known seeds remain what they are
        changes = {"unaligned": unaligned, "one_reader": one_reader, "source": source, "aligned": aligned}
        return replace(self, live=True, regions=regions, **changes)


def key_of(record: int) -> int:
    return record % KEYS


def count_of(record: int) -> int:
    """Returns the count of its key with which a record is written, whatever was run again."""
    return record // KEYS + 1


def group_of(key: int) -> int:
    return key * 5 % MAX_PARALLELISM


def partition(ordinal: int) -> TimePartition:
    start = _FIRST_DAY + timedelta(days=ordinal)
    return TimePartition(f"{start:%Y-%m-%d}", start, start + timedelta(days=1), ordinal)


def ordinals(ends: Iterable[PartitionEnd]) -> dict[int, PartitionEnd]:
    """Returns end states by their ordinals, which runs take from the keys: a restored one may have another."""
    by_key = {end.partition: end for end in ends}
    return {p: by_key[key] for p in range(PARTITIONS) if (key := partition(p).key) in by_key}


class _Enumerator(SplitEnumerator):
    def __init__(self, restored: Any, end: int) -> None:
        self._read = restored["read"] if restored else 0
        self._planned = self._read
        self._end = end

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        if self._planned != self._read:
            raise AssertionError("splits are planned before the last ones were read")
        width = here().rng.randint(1, 3)
        splits = range(self._read, min(self._read + width, self._end))
        self._planned = splits.stop
        return [
            [SourceSplit(f"split-{s}", {"n": s}) for s in splits if s % parallelism == i] for i in range(parallelism)
        ]

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        if not all(split.finished for split in splits):
            raise AssertionError("a split that was not read to its end")
        self._read = self._planned

    @property
    def exhausted(self) -> bool:
        return self._planned >= self._end

    def snapshot_state(self) -> dict[str, Any]:
        return {"read": self._read}


class Numbers(PartitionedSource):
    def __init__(self, first: int = 0, end: int = SPLITS) -> None:
        self._first, self._end = first, end

    @property
    def produced_type(self) -> TypeInformation:
        return Types.LONG()

    def for_partition(self, partition: TimePartition) -> Source:
        first = partition.ordinal * PARTITION_SPLITS
        return Numbers(first, first + PARTITION_SPLITS)

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return _Enumerator(restored or {"read": self._first}, self._end)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        raise AssertionError("simulated tasks read for themselves")


class _Count(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        raise AssertionError("simulated tasks count for themselves")


class Files(TwoPhaseCommittingSink):
    def validate(self, type_info: TypeInformation | None) -> None:
        pass

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        raise AssertionError("simulated tasks write for themselves")

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return _FileCommitter(SimulatedStore(here(), OUT), context)


class _FileCommitter(StagedFileCommitter):
    def last_committed(self) -> int | None:
        # Not by a request, which every seed would have: those in noticed.json would notice nothing.
        found = [self._names.checkpoint(key) for key in here().bucket.objects if key.startswith(f"{OUT}/")]
        return max((number for number in found if number is not None), default=None)


@cache
def program(parallelism: int, regions: int) -> JobGraph:
    """Returns the program at a parallelism, in one region, in two, or in four."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    env.set_max_parallelism(MAX_PARALLELISM)
    numbers = env.from_source(Numbers(), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    if regions > 1:
        numbers = numbers.blocking()
    if regions > 2:
        evens, odds = (numbers.filter(keep).uid(uid).blocking() for uid, keep in FILTERS.items())
        numbers = evens.union(odds)
    counts = numbers.key_by(lambda n: n % KEYS, Types.LONG()).process(_Count(), Types.LONG()).uid("count")
    counts.sink_to(Files()).uid("files")
    return env.get_job_graph()
