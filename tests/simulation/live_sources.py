"""The sources of the simulated program with live tasks. All have the same records, and give them out in other ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.connectors.sources.source_coordinator import unpacked
from dagster_flinkpy.datastream.connectors import source as flink
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.datastream.connectors.source import InputStatus, JsonSerializer
from dagster_flinkpy.state.files.operator_state import read_partitions
from dagster_flinkpy.storage import ObjectStore
from tests.simulation.program import PARTITION_SPLITS, SPLITS, Numbers, SourceShape, here

__all__ = ["LIVE_RECORDS", "Position", "live_source", "position_of"]

LIVE_RECORDS = 12
"""How many records a split has."""


def live_source(shape: SourceShape) -> Source | flink.Source:
    """Returns a source of a shape."""
    if shape is SourceShape.READERS:
        return _WithReaders()
    return _LiveNumbers() if shape is SourceShape.WHOLE else _LateNumbers(resumes=shape is SourceShape.RESUMED)


def _records(split: int, start: int, end: int) -> pa.Array:
    first = split * LIVE_RECORDS
    return pa.array(range(first + start, first + end), pa.int64())


def _take_time() -> None:
    """Lets others have their turn, and now and then a while pass, so that barriers come amid a split."""
    world = here()
    world.turn()
    if world.rng.random() < 0.15:
        world.sleep(world.rng.choice((0.05, 1, 5)))


# --- splits -----------------------------------------------------------------------------------------------------------


class _LiveNumbers(Numbers):
    """The splits of an epoch are planned before it, and read to their ends."""

    def for_partition(self, partition: TimePartition) -> Source:
        first = partition.ordinal * PARTITION_SPLITS
        return _LiveNumbers(first, first + PARTITION_SPLITS)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        size = here().rng.choice((1, 1, 4, LIVE_RECORDS))
        for start in range(0, LIVE_RECORDS, size):
            here().turn()
            yield _records(split.properties["n"], start, start + size), start + size


class _LateNumbers(Source):
    """Splits come in the middle of epochs, too, and a barrier may come amid one, if the source says so."""

    def __init__(self, *, resumes: bool) -> None:
        self.resumes_splits = self.counts_records = resumes

    @property
    def produced_type(self) -> TypeInformation:
        return Types.LONG()

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return _LateSplits(restored, resumes=self.resumes_splits)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        start = split.offset
        while start < LIVE_RECORDS:
            _take_time()
            end = min(start + here().rng.choice((1, 1, 4, LIVE_RECORDS)), LIVE_RECORDS)
            yield _records(split.properties["n"], start, end), end
            start = end


class _LateSplits(SplitEnumerator):
    """Assigns what was not read to its end, and at most a few other splits."""

    def __init__(self, restored: Any, *, resumes: bool) -> None:
        self._next = restored["next"] if restored else 0
        self._rests = [SourceSplit.from_json(each) for each in restored["rests"]] if restored else []
        self._given: dict[str, SourceSplit] = {}
        self._resumes = resumes

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        rng = here().rng
        if self._given:
            here().report(f"splits are planned before {[*self._given]} were read")
        end = min(self._next + rng.randint(0, 2), SPLITS)
        new = [SourceSplit(f"split-{n}", {"n": n}) for n in range(self._next, end)]
        planned, self._rests, self._next = [*self._rests, *new], [], end
        self._given = {split.split_id: split for split in planned}
        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        for split in planned:
            rng.choice(shares).append(split)
        return shares

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        for split in splits:
            given = self._given.pop(split.split_id, None)
            if given is None or split.offset < given.offset:
                here().report(f"{split} is given back, but {given} was assigned")
            if not split.finished:
                self._rests.append(split)
        if self._given or (self._rests and not self._resumes):
            here().report(f"{[*self._given, *self._rests]} were not read to their ends")

    @property
    def exhausted(self) -> bool:
        return self._next >= SPLITS and not self._rests

    @property
    def assigns_late(self) -> bool:
        return True

    def snapshot_state(self) -> dict[str, Any]:
        if self._given:
            here().report(f"a position is taken before {[*self._given]} were read")
        return {"next": self._next, "rests": [split.to_json() for split in self._rests]}


# --- readers ----------------------------------------------------------------------------------------------------------

Split = dict[str, int]
"""``n``, the number of a split, and ``at``, how many of its records are read."""


class _WithReaders(flink.Source):
    """In Flink's shape: readers ask for splits, with a request or with an event, and may have to ask again."""

    @property
    def produced_type(self) -> TypeInformation:
        return Types.LONG()

    def create_enumerator(self, context: flink.SplitEnumeratorContext) -> flink.SplitEnumerator:
        return _Enumerator(context, {"next": 0, "back": []})

    def restore_enumerator(self, context: flink.SplitEnumeratorContext, checkpoint: Any) -> flink.SplitEnumerator:
        return _Enumerator(context, checkpoint)

    def create_reader(self, context: flink.SourceReaderContext) -> flink.SourceReader:
        return _Reader(context)


class _Enumerator(flink.SplitEnumerator):
    def __init__(self, context: flink.SplitEnumeratorContext, state: Any) -> None:
        self._context = context
        self._next: int = state["next"]
        self._back: list[Split] = list(state["back"])
        """Splits that nobody has, besides those that were never assigned."""
        self._waiting: list[int] = []
        """Readers that have asked, and get a split later."""
        self._signalled = False
        self._heard: dict[str, int] = {}
        """The number of the last event of each reader."""

    def start(self) -> None:
        self._context.call_async(lambda: here().rng.random() < 0.5, self._on_look, period=timedelta(seconds=2))

    def _on_look(self, found: bool, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, []
        for subtask in waiting:
            if found:
                self._serve(subtask)
            else:
                self._waiting.append(subtask)

    def _serve(self, subtask: int) -> None:
        if self._back:
            self._context.assign_split(self._back.pop(0), subtask)
        elif self._next < SPLITS:
            self._context.assign_split({"n": self._next, "at": 0}, subtask)
            self._next += 1
        else:
            self._signalled = True
            self._context.signal_no_more_splits(subtask)

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None) -> None:
        if here().rng.random() < 0.3 and self._next < SPLITS:
            self._waiting.append(subtask_id)
        else:
            self._serve(subtask_id)

    def handle_source_event(self, subtask_id: int, event: Any) -> None:
        number, last = event["number"], self._heard.get(event["reader"], 0)
        if number != last + 1:
            what = "comes twice" if number <= last else "comes without those before it"
            here().report(f"event {number} of reader {subtask_id} {what}: the last one was {last}")
        self._heard[event["reader"]] = number
        if not event["asks"]:
            return
        if here().rng.random() < 0.3:
            self._context.send_event_to_source_reader(subtask_id, {"again": number})
        else:
            self._serve(subtask_id)

    def add_splits_back(self, splits: Sequence[Split], subtask_id: int) -> None:
        for split in splits:
            if split["n"] >= self._next or split["n"] in {each["n"] for each in self._back}:
                here().report(f"split {split['n']} is given back twice")
            if self._signalled:
                self._context.assign_split(split, subtask_id % self._context.current_parallelism())
            else:
                self._back.append(split)

    def add_reader(self, subtask_id: int) -> None:
        if subtask_id not in self._context.registered_readers():
            here().report(f"reader {subtask_id} is added, but not registered")
        self._waiting = [each for each in self._waiting if each != subtask_id]  # it asks again

    def snapshot_state(self) -> Any:
        return {"next": self._next, "back": self._back}


class _Reader(flink.SourceReader):
    def __init__(self, context: flink.SourceReaderContext) -> None:
        self._context, self._name = context, f"{here().rng.getrandbits(64):016x}"
        self._splits: list[Split] = []
        self._events = 0
        self._asked = self._no_more = False
        self._more: Future[None] | None = None

    def start(self) -> None:
        self._ask()

    def _ask(self) -> None:
        if self._asked or self._no_more:
            return
        self._asked = True
        if here().rng.random() < 0.5:
            self._context.send_split_request()
        else:
            self._say(asks=True)

    def _say(self, *, asks: bool) -> None:
        self._events += 1
        event = {"reader": self._name, "number": self._events, "asks": asks}
        self._context.send_source_event_to_coordinator(event)

    def poll_next(self, output: flink.ReaderOutput) -> InputStatus:
        _take_time()
        rng = here().rng
        if not self._splits:
            self._ask()
            return InputStatus.END_OF_INPUT if self._no_more else InputStatus.NOTHING_AVAILABLE
        if rng.random() < 0.1:
            return InputStatus.NOTHING_AVAILABLE
        n, at = self._splits[0]["n"], self._splits[0]["at"]
        end = min(at + rng.choice((1, 1, 4)), LIVE_RECORDS)
        records, of_split = _records(n, at, end), output.create_output_for_split(f"{n}")
        if rng.random() < 0.5:
            of_split.collect_column(records)
        else:
            for record in records.to_pylist():
                of_split.collect(record)
        self._splits[0] = {"n": n, "at": end}
        if end == LIVE_RECORDS:
            output.release_output_for_split(f"{n}")
            del self._splits[0]
        return InputStatus.MORE_AVAILABLE

    def is_available(self) -> Future[None] | None:
        world = here()
        if self._more is None or self._more.done():
            more = self._more = Future[None]()

            def complete() -> None:
                world.sleep(world.rng.choice((0.05, 0.5, 3)))
                more.set_result(None)

            world.spawn(f"{world.current.name}/available", complete, world.current.process)
        return None if world.rng.random() < 0.3 else self._more

    def add_splits(self, splits: Sequence[Split]) -> None:
        for split in splits:
            if split["n"] in {each["n"] for each in self._splits}:
                here().report(f"split {split['n']} is assigned to a reader that has it")
            self._splits.append(split)
        self._asked = False

    def notify_no_more_splits(self) -> None:
        self._no_more = True

    def handle_source_events(self, event: Any) -> None:
        self._asked = False

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Split]:
        return list(self._splits)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if here().rng.random() < 0.3:
            self._say(asks=False)


# --- how far a checkpoint is ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Position:
    """What sources have read."""

    begun: int
    """All splits before this one are assigned."""
    rests: Mapping[int, int]
    """Those that are not read to their ends, with how many of their records are read."""
    ended: bool
    """Whether the source knows that it has read all."""

    @property
    def finished(self) -> int:
        """How many splits are read to their ends."""
        return self.begun - len(self.rests)

    @property
    def records(self) -> list[int]:
        """All records that are read."""
        sizes = {n: self.rests.get(n, LIVE_RECORDS) for n in range(self.begun)}
        return [n * LIVE_RECORDS + record for n, size in sizes.items() for record in range(size)]


def position_of(
    metadata: CheckpointMetadata, shape: SourceShape, store: ObjectStore, fail: Callable[[str], None]
) -> Position:
    """Returns how far the source of a shape is read that is not `SourceShape.WHOLE`.

    Args:
        metadata: The checkpoint.
        shape: The shape of the source.
        store: Has the files that the metadata names.
        fail: Reports a split that is in two places.
    """
    numbers = metadata.operator("numbers")
    if numbers is None or numbers.coordinator_state is None:
        return Position(0, {}, ended=False)
    state = numbers.coordinator_state
    if shape is not SourceShape.READERS:
        rests = {split["properties"]["n"]: split["offset"] for split in state["rests"]}
        return Position(state["next"], rests, ended=state["next"] == SPLITS and not rests)
    known = unpacked(JsonSerializer(), state["enumerator"])
    splits: list[Split] = [*known["back"], *(unpacked(JsonSerializer(), each) for each in state["splits"])]
    schema = pa.schema([("value", pa.string())])
    for subtask in numbers.subtasks:
        for handle in subtask.operator_state:
            stored = read_partitions(handle.partitions, schema, store, "splits of readers").column("value")
            splits += [unpacked(JsonSerializer(), json.loads(each)) for each in stored.to_pylist()]
    rests = {split["n"]: split["at"] for split in splits}
    if len(rests) < len(splits):
        fail(f"checkpoint {metadata.checkpoint_id} has a split in two places: {splits}")
    return Position(known["next"], rests, ended=state["ended"])
