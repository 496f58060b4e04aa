"""Lets sources in Flink's shape take part in epochs: the driver's side."""

from __future__ import annotations

import reprlib
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from dagster_flinkpy.datastream.connectors import base
from dagster_flinkpy.datastream.connectors.base import Json, SourceSplit, position_field
from dagster_flinkpy.datastream.connectors.source import (
    InputStatus,
    JsonSerializer,
    ReaderInfo,
    SimpleVersionedSerializer,
    Source,
    SplitEnumerator,
    SplitEnumeratorContext,
)

__all__ = ["SourceCoordinator", "Tell", "packed", "unpacked"]


_MOST_SPLITS = 1000
"""How many splits a reader gets at most for an epoch that is not open, in case an enumerator always has another one."""


class Tell(str, Enum):
    """What a reader is told, in the splits of an epoch."""

    SPLIT = "split"
    NO_MORE_SPLITS = "no more splits"
    EVENT = "event"
    POLL = "poll"
    """Read what is there, up to the barrier. In an open epoch, a reader does that anyway."""
    END = "end"
    """Read to the end, which it has said to have reached: if the epoch runs again, it has not."""
    ANSWER = "answer"
    """Is not told, but returned at the barrier of an epoch that is not open."""


def packed(serializer: SimpleVersionedSerializer, value: Any) -> Json:
    """Returns a value as JSON."""
    return {"version": serializer.get_version(), "data": b64encode(serializer.serialize(value)).decode()}


def unpacked(serializer: SimpleVersionedSerializer, stored: Json) -> Any:
    """Returns the value that `packed` has stored."""
    data = b64decode(position_field(stored, "data", str))
    return serializer.deserialize(position_field(stored, "version", int), data)


@dataclass
class _Call:
    callable: Callable[[], Any]
    handler: Callable[[Any, Exception | None], None]
    due: float
    period: timedelta | None


class SourceCoordinator(base.SplitEnumerator, SplitEnumeratorContext):
    """Calls an enumerator, whose context it is, and keeps what readers are to be told (Flink: ``SourceCoordinator``).

    In an epoch that is open, readers speak to it while they read. Otherwise they are heard at the barrier, and the
    coordinator asks for splits in their place.
    """

    def __init__(self, source: Source, restored: Json | None, now: Callable[[], float] = time.monotonic) -> None:
        self._source, self._now = source, now
        self._splits, self._checkpoints = source.get_split_serializer(), source.get_enumerator_checkpoint_serializer()
        self._calls: list[_Call] = []
        self._parallelism = 1
        self._readers: dict[int, ReaderInfo] = {}
        self._deployment: str | None = None
        """The deployment of the readers that speak, if tasks live."""
        self._statuses: dict[int, InputStatus] = {}
        self._no_more: set[int] = set()
        self._inbox: list[tuple[int, Json]] = []
        self._outbox: list[tuple[int, Tell, Any]] = []
        self._given: list[tuple[int, Tell, Any]] = []
        """What the readers were told, until it is certain that they have taken it."""
        self._assigned = 0
        """How many splits it has assigned."""
        self._rests = False
        """Whether the last epoch was given nothing, because there was nothing."""
        self._back: list[tuple[int, Any]] = []
        """Splits of the checkpoint that no reader has."""
        self._finished = self._ends = self._ended = False
        """All readers have read all; the epoch that was planned ends with it; it was read."""
        self._checkpoint: Any = None
        self._restored = restored is not None
        self._enumerator: SplitEnumerator
        if restored is None:
            return
        self._finished = position_field(restored, "finished", bool)
        self._ended = self._ends = position_field(restored, "ended", bool)
        stored = position_field(restored, "splits", list)
        self._back = [(position_field(s, "subtask", int), unpacked(self._splits, s)) for s in stored]
        self._checkpoint = unpacked(self._checkpoints, position_field(restored, "enumerator", dict))

    def start(self, context: base.SplitEnumeratorContext) -> None:
        self._parallelism, source = context.parallelism, self._source
        if self._restored:
            self._enumerator = source.restore_enumerator(self, self._checkpoint)
        else:
            self._enumerator = source.create_enumerator(self)
        self._enumerator.start()
        back, self._back = self._back, []
        self._give_back(back)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._enumerator.notify_checkpoint_complete(checkpoint_id)

    def close(self) -> None:
        self._enumerator.close()

    # --- what readers say --------------------------------------------------------------------------------------------

    def receive(self, deployment: str, messages: Sequence[tuple[int, Json]]) -> None:
        """Takes what readers of live tasks have said, by their numbers. They are heard when the next part is planned.

        Readers in another deployment than the one before are other ones: those are gone.
        """
        if deployment != self._deployment:
            self._deployment = deployment
            self._readers, self._statuses = {}, {}
            self._inbox = [each for each in self._inbox if "event" in each[1]]  # such as those of a barrier
        self._inbox += messages

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        answers = [split.properties for split in splits if split.properties["tell"] == Tell.ANSWER]
        for answer in answers:
            subtask = answer["subtask"]
            self._statuses[subtask] = InputStatus(answer["status"])
            self._inbox += [(subtask, {"event": event}) for event in answer["events"]]
        self._ended |= any(tell is Tell.END for _, tell, _ in self._given)
        self._given = []
        if answers:
            self._settle_end()

    def _hear(self) -> None:
        inbox, self._inbox = self._inbox, []
        for subtask, message in inbox:
            if "host" in message:
                self._register(subtask, message["host"])
            elif "status" in message:
                self._statuses[subtask] = InputStatus(message["status"])
            elif "event" in message:
                self._enumerator.handle_source_event(subtask, message["event"])
            else:
                reader = self._readers.get(subtask, ReaderInfo(subtask))
                self._enumerator.handle_split_request(subtask, reader.location)

    def _register(self, subtask: int, host: str | None) -> None:
        self._readers[subtask] = ReaderInfo(subtask, host)
        if subtask in self._no_more:
            self._outbox.append((subtask, Tell.NO_MORE_SPLITS, None))
        self._enumerator.add_reader(subtask)

    def _settle_end(self) -> None:
        ends = [self._statuses.get(i) is InputStatus.END_OF_INPUT for i in range(self._parallelism)]
        self._finished = (self._finished or all(ends)) and not _splits_in(self._outbox)

    # --- what they are told ------------------------------------------------------------------------------------------

    @property
    def assigns_late(self) -> bool:
        return True

    @property
    def exhausted(self) -> bool:
        return self._ends

    def plan_part(self, parallelism: int) -> list[list[SourceSplit]]:
        self._turn(parallelism)
        return self._end() if self._finished else self._tell()

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        self._turn(parallelism)
        if self._finished:
            return self._end()
        for subtask in range(parallelism):
            if subtask not in self._readers:
                self._register(subtask, None)
        more = InputStatus.MORE_AVAILABLE
        self._ask([i for i in range(parallelism) if self._statuses.get(i) is not more])
        waiting = all(self._statuses.get(i, more) is not more for i in range(parallelism))
        if waiting and not self._outbox and not self._rests:
            self._rests = True
            return self._tell()
        self._rests = False
        self._outbox = [each for each in self._outbox if each[1] is not Tell.NO_MORE_SPLITS]
        self._outbox += [(i, Tell.NO_MORE_SPLITS, None) for i in sorted(self._no_more)]
        self._outbox += [(i, Tell.POLL, None) for i in range(parallelism)]
        return self._tell()

    def _ask(self, readers: Sequence[int]) -> None:
        """Asks for splits in the place of readers, in turn, until there are none."""
        for _ in range(_MOST_SPLITS):
            before = self._assigned
            for subtask in readers:
                if subtask not in self._no_more:
                    self._enumerator.handle_split_request(subtask, None)
            if self._assigned == before:
                break

    def _turn(self, parallelism: int) -> None:
        """Lets the enumerator do what is to be done."""
        self._parallelism = parallelism
        lost, self._given = self._given, []  # an epoch that nobody has read
        self._give_back([(subtask, unpacked(self._splits, value)) for subtask, value in _splits_in(lost)])
        self._hear()
        now = self._now()
        due = [call for call in self._calls if call.due <= now]
        self._calls = [call for call in self._calls if call.due > now]
        for call in due:
            if call.period is not None:
                self._calls.append(_Call(call.callable, call.handler, now + call.period.total_seconds(), call.period))
            try:
                result = call.callable()
            except Exception as error:
                call.handler(None, error)
            else:
                call.handler(result, None)
        self._settle_end()

    def _give_back(self, splits: Sequence[tuple[int, Any]]) -> None:
        by_reader: dict[int, list[Any]] = {}
        for subtask, split in splits:
            by_reader.setdefault(subtask, []).append(split)
        for subtask, own in by_reader.items():
            self._enumerator.add_splits_back(own, subtask)

    def _end(self) -> list[list[SourceSplit]]:
        self._ends = True
        if self._ended:
            return [[] for _ in range(self._parallelism)]
        self._outbox = [(i, tell, None) for i in range(self._parallelism) for tell in (Tell.NO_MORE_SPLITS, Tell.END)]
        return self._tell()

    def _tell(self) -> list[list[SourceSplit]]:
        self._given, self._outbox = self._outbox, []
        told = list[list[SourceSplit]]([] for _ in range(self._parallelism))
        for subtask, tell, value in self._given:
            told[subtask].append(SourceSplit(self._name(subtask, tell, value), {"tell": tell, "value": value}))
        return told

    def _name(self, subtask: int, tell: Tell, value: Any) -> str:
        """Returns what progress messages say, if anything."""
        if tell is Tell.SPLIT:
            return reprlib.repr(unpacked(self._splits, value))
        return f"reader {subtask}" if tell in (Tell.POLL, Tell.END) else ""

    def _add(self, subtask: int, tell: Tell, value: Any = None) -> None:
        """Takes something that a reader is to be told."""
        if not 0 <= subtask < self._parallelism:
            raise ValueError(f"there is no reader {subtask!r}, only {self._parallelism} of them")
        self._outbox.append((subtask, tell, value))

    # --- what the enumerator asks for --------------------------------------------------------------------------------

    def current_parallelism(self) -> int:
        return self._parallelism

    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        return dict(self._readers)

    def assign_splits(self, assignment: Mapping[int, Sequence[Any]]) -> None:
        for subtask, splits in assignment.items():
            for split in splits:
                self._add(subtask, Tell.SPLIT, packed(self._splits, split))
                self._assigned += 1

    def signal_no_more_splits(self, subtask_id: int) -> None:
        if subtask_id not in self._no_more:
            self._add(subtask_id, Tell.NO_MORE_SPLITS)
            self._no_more.add(subtask_id)

    def send_event_to_source_reader(self, subtask_id: int, event: Any) -> None:
        JsonSerializer().serialize(event)  # checks it
        self._add(subtask_id, Tell.EVENT, event)

    def call_async(
        self,
        callable: Callable[[], Any],
        handler: Callable[[Any, Exception | None], None],
        initial_delay: timedelta = timedelta(0),
        period: timedelta | None = None,
    ) -> None:
        self._calls.append(_Call(callable, handler, self._now() + initial_delay.total_seconds(), period))

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def snapshot_state(self) -> Json:
        return {
            "enumerator": packed(self._checkpoints, self._enumerator.snapshot_state()),
            "splits": [{"subtask": subtask, **split} for subtask, split in _splits_in([*self._given, *self._outbox])],
            "finished": self._finished,
            "ended": self._ended,
        }


def _splits_in(told: Sequence[tuple[int, Tell, Any]]) -> list[tuple[int, Json]]:
    return [(subtask, value) for subtask, tell, value in told if tell is Tell.SPLIT]
