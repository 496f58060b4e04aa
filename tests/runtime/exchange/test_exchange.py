"""Partitions and gates: in whatever order they are used, a channel loses and reorders nothing."""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.errors import CheckpointError, SlotProtocolError
from dagster_flinkpy.runtime.exchange import frames, result_partition
from dagster_flinkpy.runtime.exchange.input_gate import InputGate
from dagster_flinkpy.runtime.exchange.result_partition import PipelinedSubpartition, ResultPartition
from dagster_flinkpy.runtime.shuffle.record_writer import BUFFER_SIZE
from dagster_flinkpy.runtime.shuffle.wire import NO_EDGE, Kind, WireRow
from tests.examples import examples

EDGE = 0
CHANNELS = [(EDGE, sender) for sender in range(3)]
KINDS = st.sampled_from([Kind.BUFFER, Kind.BUFFER, Kind.WATERMARK, Kind.BARRIER])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2), KINDS),
        st.tuples(st.just("poll"), st.just(0), st.just(None)),
        st.tuples(st.just("grant"), st.just(0), st.just(None)),
        st.tuples(st.just("deliver"), st.integers(0, 2), st.just(None)),
        st.tuples(st.just("block"), st.frozensets(st.integers(0, 2)), st.just(None)),
    ),
    max_size=60,
)


class Channels:
    """Three tasks that send to one, over a network that is slow in both directions.

    Args:
        room: For how many buffers a channel has room.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._network: list[deque[WireRow]] = [deque() for _ in CHANNELS]
        self._credits = Counter[int]()
        self.gate = InputGate({(EDGE, c): partial(self._grant, c) for _, c in CHANNELS}, lambda: None, 2)
        self.partitions = [
            ResultPartition({(EDGE, 0): PipelinedSubpartition(network.append, room)}, lambda row: None)
            for network in self._network
        ]
        self.sent: list[list[int]] = [[] for _ in CHANNELS]
        self.received: list[list[int]] = [[] for _ in CHANNELS]
        self._inside = Counter[int]()
        """The buffers that have left a producer and were not read yet."""

    def _grant(self, channel: int) -> None:
        self._credits[channel] += 1

    def send(self, channel: int, kind: Kind) -> None:
        """A task sends a row, as it does only while nothing of it waits."""
        if self.partitions[channel].is_available:
            seq = len(self.sent[channel])
            self.sent[channel].append(seq)
            self.partitions[channel].add(0, EDGE, channel, seq, kind)

    def deliver(self, channel: int) -> None:
        """The credits of a channel's receiver arrive, and what is under way on it."""
        if buffers := self._credits.pop(channel, 0):
            self.partitions[channel].add_credit(EDGE, 0, buffers)
        while self._network[channel]:
            row = self._network[channel].popleft()
            self._inside[channel] += row.kind is Kind.BUFFER
            assert self._inside[channel] <= self._room, "a producer sent more than there is room for"
            self.gate.put(row)

    def poll(self, blocked: frozenset[int]) -> bool:
        row = self.gate.poll()
        if row is None:
            return False
        assert row.channel not in blocked
        self._inside[row.channel] -= row.kind is Kind.BUFFER
        self.received[row.channel].append(row.seq)
        return True

    def check(self) -> None:
        for partition, sent, received in zip(self.partitions, self.sent, self.received, strict=True):
            assert partition.subpartitions[EDGE, 0].credit >= 0
            assert received == sent[: len(received)]

    def run_dry(self, channels: set[int]) -> None:
        """Delivers and reads until nothing moves any more."""
        self.gate.grant()
        moved = True
        while moved:
            before = [len(each) for each in self.received]
            for channel in channels:
                self.deliver(channel)
            while self.poll(frozenset()):
                pass
            self.gate.grant()
            moved = before != [len(each) for each in self.received]


@settings(max_examples=examples(200))
@given(steps=STEPS, room=st.integers(1, 3))
def test_a_channel_keeps_its_order_and_loses_nothing(steps: list[tuple[str, Any, Any]], room: int) -> None:
    channels, blocked = Channels(room), frozenset[int]()
    for step, what, kind in steps:
        match step:
            case "send":
                channels.send(what, kind)
            case "poll":
                channels.poll(blocked)
            case "grant":
                channels.gate.grant()
            case "deliver":
                channels.deliver(what)
            case "block":
                blocked = what
                channels.gate.block({(EDGE, channel) for channel in blocked})
        channels.check()
    channels.gate.block(set())
    channels.run_dry({0, 1, 2})
    assert channels.received == channels.sent
    assert all(partition.is_available for partition in channels.partitions)
    assert all(partition.subpartitions[EDGE, 0].credit == room for partition in channels.partitions)


@settings(max_examples=examples(50))
@given(room=st.integers(1, 3), buffers=st.integers(1, 20), blocked=st.integers(0, 2))
def test_a_blocked_channel_stops_its_producer_and_nobody_else(room: int, buffers: int, blocked: int) -> None:
    channels = Channels(room)
    channels.gate.block({(EDGE, blocked)})
    for _ in range(buffers):
        for channel in range(3):
            channels.send(channel, Kind.BUFFER)
            channels.deliver(channel)
        while channels.poll(frozenset({blocked})):
            pass
        channels.gate.grant()
        for channel in range(3):
            channels.deliver(channel)
    for channel in range(3):
        sent = len(channels.sent[channel])
        assert sent == (min(buffers, room + 1) if channel == blocked else buffers)
        assert channels.partitions[channel].is_available == (channel != blocked or buffers <= room)
    assert channels.received[blocked] == []


@settings(max_examples=examples(100))
@given(
    rates=st.lists(st.floats(1000, 1e9), min_size=1, max_size=3),
    room=st.integers(1, 3),
    delay=st.floats(0, 0.2),
)
def test_buffers_are_as_large_as_their_receiver_processes_in_half_a_second(
    rates: list[float], room: int, delay: float
) -> None:
    """The receiver processes one buffer after the other, so many bytes in a second; a credit comes after a delay."""
    now, ready_at, under_way = [0.0], [0.0], deque[float]()

    def send(row: WireRow) -> None:
        ready_at[0] = max(ready_at[0], now[0]) + row.payload.size / rate
        under_way.append(ready_at[0] + delay)

    subpartition = PipelinedSubpartition(send, room)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_partition.time, "monotonic", lambda: now[0])
        for rate in rates:
            for _ in range(120):
                subpartition.add(WireRow(0, EDGE, 0, 0, Kind.BUFFER, pa.allocate_buffer(subpartition.buffer_size)))
                while not subpartition.is_available:
                    now[0] = max(now[0], under_way.popleft())
                    subpartition.add_credit(1)
            seconds = subpartition.buffer_size / rate
            assert seconds <= 0.51
            assert seconds + delay >= 0.49 or subpartition.buffer_size == BUFFER_SIZE


def test_buffers_that_are_not_full_tell_nothing() -> None:
    subpartition = PipelinedSubpartition(lambda row: None, 2)
    before = subpartition.buffer_size
    for _ in range(10):
        subpartition.add(WireRow(0, EDGE, 0, 0, Kind.BUFFER, pa.allocate_buffer(before // 16)))
        subpartition.add_credit(1)
    assert subpartition.buffer_size == before


def test_events_need_no_credit_but_keep_their_place() -> None:
    sent: list[WireRow] = []
    partition = ResultPartition({(EDGE, 0): PipelinedSubpartition(sent.append, 1)}, lambda row: None)
    for seq, kind in enumerate([Kind.WATERMARK, Kind.BUFFER, Kind.BARRIER, Kind.BUFFER, Kind.BARRIER]):
        partition.add(0, EDGE, 0, seq, kind)
    assert [row.seq for row in sent] == [0, 1, 2]
    assert not partition.is_available
    partition.add_credit(EDGE, 0, 1)
    assert [row.seq for row in sent] == [0, 1, 2, 3, 4]
    assert partition.is_available


def test_a_task_that_is_full_still_talks_to_the_driver() -> None:
    told: list[WireRow] = []
    partition = ResultPartition({(EDGE, 0): PipelinedSubpartition(lambda row: None, 0)}, told.append)
    partition.add(0, EDGE, 0, 0, Kind.BUFFER)
    partition.add(0, NO_EDGE, 0, 0, Kind.ACK)
    assert [row.kind for row in told] == [Kind.ACK]


def test_a_gate_refuses_a_channel_that_it_does_not_have() -> None:
    gate = InputGate({(EDGE, 0): lambda: None}, lambda: None, 2)
    with pytest.raises(CheckpointError, match=r"channel \(0, 7\), which it does not have"):
        gate.put(WireRow(0, EDGE, 7, 0, Kind.BUFFER, pa.py_buffer(b"")))
    assert not gate.is_available


def test_how_full_a_gate_is() -> None:
    gate = InputGate({(EDGE, 0): lambda: None, (EDGE, 1): lambda: None}, lambda: None, 2)
    assert gate.usage == 0
    for channel, kind in ((0, Kind.BUFFER), (1, Kind.BUFFER), (1, Kind.BARRIER), (0, Kind.BUFFER)):
        gate.put(WireRow(0, EDGE, channel, 0, kind, pa.py_buffer(b"")))
    assert gate.usage == 3 / 4, "events need no room"
    while gate.poll() is not None:
        pass
    assert gate.usage == 0


# --- frames -----------------------------------------------------------------------------------------------------------


@given(
    kind=st.text(),
    body=st.binary(),
    fields=st.dictionaries(
        st.text().filter(lambda name: name not in ("kind", "body")), st.integers() | st.text() | st.booleans()
    ),
)
def test_a_frame_is_read_as_it_was_written(kind: str, body: bytes, fields: dict[str, Any]) -> None:
    assert frames.parse(pa.py_buffer(frames.frame(kind, body, **fields))) == ({"kind": kind, **fields}, body)


@given(st.binary())
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(SlotProtocolError):
        frames.parse(pa.py_buffer(data))
    with pytest.raises(SlotProtocolError):
        frames.opened(data, slot=str)


_secret = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)


@given(_secret, _secret)
def test_only_who_has_the_token_is_heard(token: str, other: str) -> None:
    check = frames.TokenCheck(token)
    check.start_call(None, {"authorization": [f"Bearer {token}"]})
    for headers in ({}, {"authorization": []}, {"authorization": [token]}, {"authorization": [b"\xff\xfe"]}):
        with pytest.raises(flight.FlightUnauthenticatedError):
            check.start_call(None, headers)
    if other != token:
        with pytest.raises(flight.FlightUnauthenticatedError):
            check.start_call(None, {"authorization": [f"Bearer {other}"]})


_channel = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@given(st.dictionaries(_channel, st.integers(1, 99)))
def test_credits_are_read_as_they_were_written(credits: dict[tuple[int, int, int], int]) -> None:
    rows = frames.credits_of(pa.py_buffer(frames.of_credits(credits))).tolist()
    assert {(edge, sender, target): number for edge, sender, target, number in rows} == credits


@given(st.binary().filter(lambda data: len(data) % 16))
def test_damaged_credits_are_refused(data: bytes) -> None:
    with pytest.raises(SlotProtocolError):
        frames.credits_of(pa.py_buffer(data))
