from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.errors import CheckpointError
from dagster_flinkpy.runtime.task.barrier_handlers import (
    Abort,
    Action,
    AddToChannelState,
    AlignmentTimeout,
    Barrier,
    BarrierHandler,
    CancelBarrier,
    CheckpointBarrierTracker,
    Complete,
    Deliver,
    Element,
    Event,
    SingleCheckpointBarrierHandler,
    Snapshot,
)

A, B, C = "abc"
SUBSUMED = CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED
CANCELLED = CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER


# --- a naive gate -----------------------------------------------------------------------------------------------------


@dataclass
class Gate:
    """Carries out actions. Its state is the multiset of all delivered records."""

    handler: BarrierHandler
    delivered: list[tuple[Any, Any]] = field(default_factory=list)
    snapshots: dict[int, Counter[Any]] = field(default_factory=dict)
    in_flight: dict[int, Counter[Any]] = field(default_factory=dict)
    complete: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)

    def handle(self, event: Event) -> list[Action]:
        waits = isinstance(event, Element) and event.channel in self.handler.blocked
        actions = self.handler.handle(event)
        assert not (waits and actions)
        for action in actions:
            match action:
                case Deliver(channel=channel, element=element):
                    self.delivered.append((channel, element))
                case Snapshot(checkpoint_id=n):
                    assert n not in self.snapshots
                    self.snapshots[n] = Counter(self.delivered)
                    self.in_flight[n] = Counter()
                case AddToChannelState(checkpoint_id=n, channel=channel, element=element):
                    self.in_flight[n][channel, element] += 1
                case Complete(checkpoint_id=n):
                    assert n in self.snapshots
                    self.complete.append(n)
                case Abort(checkpoint_id=n):
                    self.aborted.append(n)
        return actions


@dataclass(frozen=True)
class Run:
    """The contents of each channel, and the order of delivery."""

    channels: dict[str, list[Event]]
    order: list[str]

    def events(self) -> Iterable[Event]:
        queues = {c: iter(events) for c, events in self.channels.items()}
        return [next(queues[c]) for c in self.order]

    def before(self, checkpoint_id: int) -> Counter[Any]:
        """Returns exactly the records before the barrier."""
        records: Counter[Any] = Counter()
        for c, events in self.channels.items():
            for event in events:
                if isinstance(event, (Barrier, CancelBarrier)) and event.checkpoint_id >= checkpoint_id:
                    break
                if isinstance(event, Element):
                    records[c, event.element] += 1
        return records

    def records(self) -> dict[str, list[Any]]:
        return {c: [e.element for e in events if isinstance(e, Element)] for c, events in self.channels.items()}


@st.composite
def runs(draw: st.DrawFn, *, losses: bool = False) -> Run:
    """Draws a few channels with barriers 1..n. With ``losses``, some are cancelled or missing, but not the last one."""
    n = draw(st.integers(1, 4))
    channels: dict[str, list[Event]] = {}
    for c in draw(st.sampled_from(["a", "ab", "abc", "abcd"])):
        events: list[Event] = []
        number = 0
        for barrier in range(1, n + 1):
            for _ in range(draw(st.integers(0, 3))):
                events.append(Element(c, number))
                number += 1
            kinds = ["barrier"] * 3 + (["cancel", "lost"] if losses and barrier < n else [])
            kind = draw(st.sampled_from(kinds))
            if kind == "barrier":
                events.append(Barrier(c, barrier))
            elif kind == "cancel":
                events.append(CancelBarrier(c, barrier))
        channels[c] = events
    order = draw(st.permutations([c for c, events in channels.items() for _ in events]))
    return Run(channels, order)


def check_all_delivered(run: Run, gate: Gate) -> None:
    assert not gate.handler.blocked
    for c, records in run.records().items():
        assert [r for channel, r in gate.delivered if channel == c] == records


@given(run=runs())
def test_exactly_once_the_snapshot_holds_exactly_the_records_before_the_barrier(run: Run) -> None:
    gate = Gate(SingleCheckpointBarrierHandler(run.channels))
    for event in run.events():
        gate.handle(event)
    n = max(e.checkpoint_id for e in next(iter(run.channels.values())) if isinstance(e, Barrier))
    assert gate.complete == list(range(1, n + 1))
    for checkpoint_id in gate.complete:
        assert gate.snapshots[checkpoint_id] == run.before(checkpoint_id)
        assert not gate.in_flight[checkpoint_id]
    assert gate.aborted == []
    check_all_delivered(run, gate)


@given(
    run=runs(), unaligned=st.booleans(), timeouts=st.sets(st.integers(0, 30)), aligned=st.sets(st.sampled_from("abc"))
)
def test_unaligned_the_snapshot_and_its_channel_state_hold_exactly_the_records_before_the_barrier(
    run: Run, unaligned: bool, timeouts: set[int], aligned: set[str]
) -> None:
    aligned &= run.channels.keys()
    gate = Gate(SingleCheckpointBarrierHandler(run.channels, unaligned=unaligned, aligned=aligned))
    for i, event in enumerate(run.events()):
        gate.handle(event)
        if i in timeouts and gate.handler.aligning is not None:
            waiting = gate.handler.aligning
            waits = bool(aligned & gate.handler.missing(waiting))
            assert (Snapshot(waiting) in gate.handle(AlignmentTimeout(waiting))) != waits
            assert (gate.handler.aligning != waiting) != waits
    assert not any(channel in aligned for each in gate.in_flight.values() for channel, _ in each)
    for checkpoint_id in gate.complete:
        assert gate.snapshots[checkpoint_id] + gate.in_flight[checkpoint_id] == run.before(checkpoint_id)
    assert gate.complete == sorted(gate.snapshots)
    assert gate.aborted == []
    check_all_delivered(run, gate)


@given(run=runs(losses=True), unaligned=st.booleans())
def test_what_completes_in_spite_of_lost_and_cancelled_barriers_is_exact(run: Run, unaligned: bool) -> None:
    gate = Gate(SingleCheckpointBarrierHandler(run.channels, unaligned=unaligned))
    for event in run.events():
        gate.handle(event)
    last = max(e.checkpoint_id for e in next(iter(run.channels.values())) if isinstance(e, Barrier))
    whole = {i for i in range(1, last + 1) if all(Barrier(c, i) in events for c, events in run.channels.items())}
    assert set(gate.complete) <= whole
    assert gate.complete[-1:] == [last]
    assert gate.complete == sorted(gate.complete)
    assert not set(gate.complete) & set(gate.aborted)
    for checkpoint_id in gate.complete:
        assert gate.snapshots[checkpoint_id] + gate.in_flight[checkpoint_id] == run.before(checkpoint_id)
    check_all_delivered(run, gate)


@given(run=runs(losses=True))
def test_at_least_once_the_snapshot_holds_at_least_the_records_before_the_barrier(run: Run) -> None:
    gate = Gate(CheckpointBarrierTracker(run.channels))
    for event in run.events():
        gate.handle(event)
    last = max(e.checkpoint_id for e in next(iter(run.channels.values())) if isinstance(e, Barrier))
    assert gate.complete[-1:] == [last]
    assert gate.complete == sorted(gate.complete)
    assert not set(gate.complete) & set(gate.aborted)
    for checkpoint_id in gate.complete:
        assert gate.snapshots[checkpoint_id] >= run.before(checkpoint_id)
    assert gate.delivered == [(e.channel, e.element) for e in run.events() if isinstance(e, Element)]


# --- one rule each ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [SingleCheckpointBarrierHandler, CheckpointBarrierTracker])
def test_one_channel_triggers_at_once(make: Callable[[str], BarrierHandler]) -> None:
    assert make(A).handle(Barrier(A, 1)) == [Snapshot(1), Complete(1)]


def test_a_channel_is_blocked_from_its_barrier_to_the_last_one() -> None:
    handler = SingleCheckpointBarrierHandler([A, B])
    assert handler.missing(1) == {A, B}
    assert (handler.handle(Barrier(A, 1)), handler.blocked) == ([], {A})
    assert (handler.aligning, handler.missing(1)) == (1, {B})
    assert handler.handle(Element(A, "behind")) == []
    assert handler.handle(Element(B, "before")) == [Deliver(B, "before")]
    assert handler.handle(Barrier(B, 1)) == [Snapshot(1), Complete(1), Deliver(A, "behind")]
    assert not handler.blocked
    assert (handler.aligning, handler.missing(1)) == (None, frozenset())


def test_what_was_kept_may_begin_the_next_alignment() -> None:
    handler = SingleCheckpointBarrierHandler([A, B])
    for event in (Barrier(A, 1), Element(A, "1st"), Barrier(A, 2), Element(A, "2nd")):
        handler.handle(event)
    assert handler.handle(Barrier(B, 1)) == [Snapshot(1), Complete(1), Deliver(A, "1st")]
    assert handler.blocked == {A}
    assert handler.handle(Barrier(B, 2)) == [Snapshot(2), Complete(2), Deliver(A, "2nd")]


def test_a_newer_barrier_aborts_an_older_alignment() -> None:
    handler = SingleCheckpointBarrierHandler([A, B])
    handler.handle(Barrier(A, 1))
    handler.handle(Element(A, "behind"))
    assert handler.handle(Barrier(B, 2)) == [Abort(1, SUBSUMED), Deliver(A, "behind")]
    assert handler.blocked == {B}
    assert (handler.handle(Barrier(A, 2)), handler.blocked) == ([Snapshot(2), Complete(2)], set())
    assert handler.handle(Barrier(B, 1)) == []  # late


def test_a_cancelled_checkpoint_is_aborted_once_and_its_barriers_are_ignored() -> None:
    handler = SingleCheckpointBarrierHandler([A, B, C])
    handler.handle(Barrier(A, 1))
    assert (handler.handle(CancelBarrier(B, 1)), handler.blocked) == ([Abort(1, CANCELLED)], set())
    assert handler.handle(CancelBarrier(C, 1)) == []
    assert handler.handle(Barrier(C, 1)) == []
    assert handler.handle(CancelBarrier(A, 3)) == [Abort(3, CANCELLED)]
    assert handler.handle(Barrier(A, 2)) == []


def test_a_cancel_of_a_newer_checkpoint_aborts_the_older_alignment_too() -> None:
    handler = SingleCheckpointBarrierHandler([A, B])
    handler.handle(Barrier(A, 1))
    assert handler.handle(CancelBarrier(B, 2)) == [Abort(1, SUBSUMED), Abort(2, CANCELLED)]
    assert not handler.blocked


def test_an_alignment_that_takes_too_long_goes_over_to_unaligned() -> None:
    handler = SingleCheckpointBarrierHandler([A, B])
    handler.handle(Barrier(A, 1))
    handler.handle(Element(A, "behind"))
    assert handler.handle(AlignmentTimeout(1)) == [Snapshot(1), Deliver(A, "behind")]
    assert not handler.blocked
    assert handler.aligning is None
    assert handler.handle(Element(B, "before")) == [AddToChannelState(1, B, "before"), Deliver(B, "before")]
    assert handler.handle(Element(A, "behind")) == [Deliver(A, "behind")]
    assert handler.handle(Barrier(B, 1)) == [Complete(1)]
    assert handler.handle(AlignmentTimeout(1)) == []


def test_unaligned_takes_the_snapshot_at_the_first_barrier() -> None:
    handler = SingleCheckpointBarrierHandler([A, B], unaligned=True)
    assert handler.handle(Barrier(A, 1)) == [Snapshot(1)]
    assert (handler.handle(Barrier(A, 2)), handler.blocked) == ([], {A})
    assert (handler.handle(Barrier(B, 1)), handler.blocked) == ([Complete(1), Snapshot(2)], set())


def test_a_snapshot_waits_for_the_channels_that_must_align() -> None:
    handler = SingleCheckpointBarrierHandler([A, B, C], unaligned=True, aligned={B})
    assert (handler.handle(Barrier(A, 1)), handler.blocked) == ([], {A})
    assert handler.handle(Element(A, "behind")) == []
    assert handler.handle(Element(B, "before")) == [Deliver(B, "before")]
    assert handler.handle(Barrier(B, 1)) == [Snapshot(1), Deliver(A, "behind")]
    assert handler.handle(Element(C, "before")) == [AddToChannelState(1, C, "before"), Deliver(C, "before")]
    assert handler.handle(Barrier(C, 1)) == [Complete(1)]
    assert handler.handle(Barrier(B, 2)) == [Snapshot(2)]


def test_at_least_once_a_later_checkpoint_subsumes_the_ones_before() -> None:
    handler = CheckpointBarrierTracker([A, B])
    assert handler.handle(Barrier(A, 1)) == []
    assert handler.handle(Element(A, "behind")) == [Deliver(A, "behind")]
    assert handler.missing(1) == {B}
    handler.handle(Barrier(A, 2))
    assert handler.handle(Barrier(B, 2)) == [Abort(1, SUBSUMED), Snapshot(2), Complete(2)]
    assert handler.handle(Barrier(B, 1)) == []
    assert handler.handle(CancelBarrier(B, 3)) == [Abort(3, CANCELLED)]
    assert handler.handle(Barrier(A, 3)) == []


def test_at_least_once_tracks_fifty_checkpoints() -> None:
    handler = CheckpointBarrierTracker([A, B])
    for i in range(1, 51):
        assert handler.handle(Barrier(A, i)) == []
    assert handler.handle(Barrier(A, 51)) == [Abort(1, SUBSUMED)]


@pytest.mark.parametrize("make", [SingleCheckpointBarrierHandler, CheckpointBarrierTracker])
@pytest.mark.parametrize("event", [Element(C, 1), Barrier(C, 1), CancelBarrier(C, 1)])
def test_an_unknown_channel_is_refused(make: Callable[[list[str]], BarrierHandler], event: Event) -> None:
    with pytest.raises(CheckpointError, match="the gate received data from channel c, which it does not have"):
        make([A, B]).handle(event)


@pytest.mark.parametrize(
    "handler", [SingleCheckpointBarrierHandler([A, B], unaligned=True), CheckpointBarrierTracker([A, B])]
)
def test_a_barrier_that_comes_twice_is_refused(handler: BarrierHandler) -> None:
    handler.handle(Barrier(A, 1))
    with pytest.raises(CheckpointError, match="channel a delivered barrier 1 twice"):
        handler.handle(Barrier(A, 1))
