"""The barrier rules of an input gate as pure transitions: event in, actions out; no I/O and no clock.

Rows are pushed, so the handler keeps the elements of a blocked channel until it is unblocked. An element may be
anything: a buffer, a watermark, or a batch of a chained operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.errors import CheckpointError

__all__ = [
    "Abort",
    "Action",
    "AddToChannelState",
    "AlignmentTimeout",
    "Barrier",
    "BarrierHandler",
    "CancelBarrier",
    "Channel",
    "CheckpointBarrierTracker",
    "Complete",
    "Deliver",
    "Element",
    "Event",
    "SingleCheckpointBarrierHandler",
    "Snapshot",
]

_MAX_TRACKED = 50  # Flink: CheckpointBarrierTracker.MAX_CHECKPOINTS_TO_TRACK

Channel = Any
"""Identifies a channel; hashable."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that arrives at a gate."""


@dataclass(frozen=True, slots=True)
class Element(Event):
    """Data, or something whose position among the data matters, such as a watermark."""

    channel: Channel
    element: Any


@dataclass(frozen=True, slots=True)
class Barrier(Event):
    """The barrier of a checkpoint."""

    channel: Channel
    checkpoint_id: int
    aligned: bool = False
    """Whether it overtakes nothing, because all input ends with it, and nobody would process what it overtakes."""


@dataclass(frozen=True, slots=True)
class CancelBarrier(Event):
    """The barrier of a checkpoint that was aborted upstream (Flink: ``CancelCheckpointMarker``)."""

    channel: Channel
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class AlignmentTimeout(Event):
    """Alignment has taken too long, so the snapshot is taken now. Has no effect if it comes too late."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Action:
    """Something that the gate has to do."""


@dataclass(frozen=True, slots=True)
class Deliver(Action):
    """Give the element to the operator."""

    channel: Channel
    element: Any


@dataclass(frozen=True, slots=True)
class Snapshot(Action):
    """Take the snapshot and forward the barrier."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class AddToChannelState(Action):
    """Add the element, which was in flight when the snapshot was taken, to the checkpoint. It is delivered, too."""

    checkpoint_id: int
    channel: Channel
    element: Any


@dataclass(frozen=True, slots=True)
class Complete(Action):
    """All barriers have arrived: acknowledge the snapshot with its channel state."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Abort(Action):
    """The snapshot was not taken or is no longer valid: decline the checkpoint and cancel it downstream."""

    checkpoint_id: int
    reason: CheckpointFailureReason


class BarrierHandler(ABC):
    """Handles the barriers of one gate (Flink: ``CheckpointBarrierHandler``)."""

    def __init__(self, channels: Iterable[Channel]) -> None:
        self._channels = frozenset(channels)
        self.blocked: set[Channel] = set()
        """The channels of which nothing is to be taken for now."""

    @abstractmethod
    def handle(self, event: Event) -> list[Action]:
        """Makes the transition for one event.

        Raises:
            CheckpointError: The channel is unknown, or delivered a barrier twice.
        """

    @property
    def aligning(self) -> int | None:
        """The checkpoint whose snapshot is waiting for barriers, and could stop waiting, or None."""
        return None

    @property
    @abstractmethod
    def awaits_barriers(self) -> bool:
        """Whether some channels have delivered a barrier that others have not."""

    @abstractmethod
    def missing(self, checkpoint_id: int) -> frozenset[Channel]:
        """Returns the channels whose barrier has not arrived; all channels for an unknown checkpoint."""

    def _check(self, channel: Channel) -> None:
        if channel not in self._channels:
            raise CheckpointError(f"the gate received data from channel {channel}, which it does not have")


class SingleCheckpointBarrierHandler(BarrierHandler):
    """EXACTLY_ONCE: one checkpoint at a time (Flink: ``SingleCheckpointBarrierHandler``).

    In an aligned checkpoint, a channel is blocked from its barrier until the last one arrives. So the snapshot contains
    the effects of exactly the records before the barriers. In an unaligned checkpoint, the snapshot is taken at the
    first barrier, and what other channels deliver before their barriers becomes channel state. If a channel delivers a
    newer barrier before the current one, the current checkpoint is aborted.

    Args:
        channels: All channels of all inputs.
        unaligned: Whether to take the snapshot at the first barrier. Otherwise :class:`AlignmentTimeout` makes a
            checkpoint unaligned. Default: False.
        aligned: Channels whose barriers are awaited all the same: none of their elements becomes channel state (Flink:
            ``AlignmentType.FORCED_ALIGNED``). Default: none.
    """

    def __init__(
        self, channels: Iterable[Channel], *, unaligned: bool = False, aligned: Set[Channel] = frozenset()
    ) -> None:
        super().__init__(channels)
        self._unaligned, self._aligned = unaligned, aligned
        self._timed_out = self._all_align = False
        self._current = 0
        self._finished = 0
        """The last checkpoint that was completed or aborted."""
        self._arrived: set[Channel] = set()
        self._taken = False
        """Whether the snapshot was taken before the last barrier."""
        self._kept: deque[Element | Barrier | CancelBarrier] = deque()

    @property
    def aligning(self) -> int | None:
        return self._current if self._pending and not self._taken else None

    @property
    def awaits_barriers(self) -> bool:
        return self._pending

    def missing(self, checkpoint_id: int) -> frozenset[Channel]:
        if checkpoint_id <= self._finished:
            return frozenset()
        return self._channels - self._arrived if checkpoint_id == self._current else self._channels

    @property
    def _pending(self) -> bool:
        return self._current > self._finished

    def handle(self, event: Event) -> list[Action]:
        actions: list[Action] = []
        self._take(event, actions)
        return actions

    def _take(self, event: Event, actions: list[Action]) -> None:
        match event:
            case Element(channel=channel) | Barrier(channel=channel) | CancelBarrier(channel=channel):
                self._check(channel)
                if channel in self.blocked:
                    self._kept.append(event)
                elif isinstance(event, Element):
                    if self._taken and channel not in self._arrived:
                        actions.append(AddToChannelState(self._current, channel, event.element))
                    actions.append(Deliver(channel, event.element))
                elif isinstance(event, Barrier):
                    self._on_barrier(event, actions)
                else:
                    self._on_cancel(event, actions)
            case AlignmentTimeout(checkpoint_id=checkpoint_id):
                if checkpoint_id == self.aligning:
                    self._timed_out = True
                    if self._may_overtake:
                        self._snapshot(actions)
                        self._unblock(actions)
            case _:
                raise AssertionError(f"unknown event {event!r}")

    def _on_barrier(self, event: Barrier, actions: list[Action]) -> None:
        channel, checkpoint_id = event.channel, event.checkpoint_id
        if checkpoint_id < self._current or checkpoint_id <= self._finished:
            return  # the checkpoint was aborted
        if checkpoint_id > self._current:
            if channel in self._arrived:
                # Only if unaligned: the channel is ahead of the others. Flink gives up the older one; here it waits.
                self.blocked.add(channel)
                self._kept.append(event)
                return
            aborted = self._pending
            if aborted:
                self._abort(CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED, actions)
            self._current = checkpoint_id
            if aborted:
                self._unblock(actions, first=event)
                return
        if channel in self._arrived:
            raise CheckpointError(f"channel {channel} delivered barrier {checkpoint_id} twice")
        self._arrived.add(channel)
        self._all_align |= event.aligned
        last = self._arrived == self._channels
        if not self._taken:
            if last or self._may_overtake:
                self._snapshot(actions)
                if not last:
                    self._unblock(actions)
            else:
                self.blocked.add(channel)
        if last:
            actions.append(Complete(checkpoint_id))
            self._end()
            self._unblock(actions)

    def _on_cancel(self, event: CancelBarrier, actions: list[Action]) -> None:
        checkpoint_id = event.checkpoint_id
        if checkpoint_id < self._current or checkpoint_id <= self._finished:
            return
        if self._pending and checkpoint_id > self._current:
            self._abort(CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED, actions)
        self._current = checkpoint_id
        self._abort(CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER, actions)
        self._unblock(actions)

    @property
    def _may_overtake(self) -> bool:
        """Whether the snapshot need not wait for the missing barriers."""
        return (self._unaligned or self._timed_out) and not self._all_align and self._aligned <= self._arrived

    def _snapshot(self, actions: list[Action]) -> None:
        self._taken = True
        actions.append(Snapshot(self._current))

    def _abort(self, reason: CheckpointFailureReason, actions: list[Action]) -> None:
        actions.append(Abort(self._current, reason))
        self._end()

    def _end(self) -> None:
        self._finished = self._current
        self._arrived.clear()
        self._taken = self._timed_out = self._all_align = False

    def _unblock(self, actions: list[Action], first: Event | None = None) -> None:
        """Unblocks all channels and handles the kept events in order, which may block channels again."""
        self.blocked.clear()
        kept, self._kept = self._kept, deque()
        if first is not None:
            self._take(first, actions)
        for event in kept:
            self._take(event, actions)


class CheckpointBarrierTracker(BarrierHandler):
    """AT_LEAST_ONCE: counts barriers and never blocks (Flink: ``CheckpointBarrierTracker``).

    A snapshot may contain the effects of records after the barrier, which come again after a restore.
    """

    def __init__(self, channels: Iterable[Channel]) -> None:
        super().__init__(channels)
        self._pending: dict[int, set[Channel]] = {}
        """The channels whose barrier has arrived, by checkpoint id in ascending order."""
        self._finished = 0

    @property
    def awaits_barriers(self) -> bool:
        return bool(self._pending)

    def missing(self, checkpoint_id: int) -> frozenset[Channel]:
        if checkpoint_id <= self._finished:
            return frozenset()
        return self._channels - self._pending.get(checkpoint_id, set())

    def handle(self, event: Event) -> list[Action]:
        match event:
            case Element(channel=channel, element=element):
                self._check(channel)
                return [Deliver(channel, element)]
            case Barrier(channel=channel, checkpoint_id=checkpoint_id):
                self._check(channel)
                return self._on_barrier(channel, checkpoint_id)
            case CancelBarrier(channel=channel, checkpoint_id=checkpoint_id):
                self._check(channel)
                return self._on_cancel(checkpoint_id)
            case AlignmentTimeout():
                return []
            case _:
                raise AssertionError(f"unknown event {event!r}")

    def _on_barrier(self, channel: Channel, checkpoint_id: int) -> list[Action]:
        if checkpoint_id <= self._finished:
            return []
        arrived = self._pending.setdefault(checkpoint_id, set())
        if channel in arrived:
            raise CheckpointError(f"channel {channel} delivered barrier {checkpoint_id} twice")
        arrived.add(channel)
        if arrived == self._channels:
            return [*self._end(checkpoint_id), Snapshot(checkpoint_id), Complete(checkpoint_id)]
        if len(self._pending) > _MAX_TRACKED:
            oldest = min(self._pending)
            del self._pending[oldest]
            self._finished = oldest
            return [Abort(oldest, CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED)]
        return []

    def _on_cancel(self, checkpoint_id: int) -> list[Action]:
        if checkpoint_id <= self._finished:
            return []
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
        return [*self._end(checkpoint_id), Abort(checkpoint_id, reason)]

    def _end(self, checkpoint_id: int) -> list[Action]:
        """Ends a checkpoint, and aborts all older ones."""
        older = [i for i in self._pending if i < checkpoint_id]
        for i in (*older, checkpoint_id):
            self._pending.pop(i, None)
        self._finished = checkpoint_id
        return [Abort(i, CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED) for i in sorted(older)]
