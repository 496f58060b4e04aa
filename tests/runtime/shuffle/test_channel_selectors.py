from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.program.job_graph import JobEdge, PartitionerKind, StreamPartitioner
from dagster_flinkpy.errors import ConfigurationError, UserFunctionError
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.shuffle.channel_selectors import downstream_subtasks, upstream_subtasks
from dagster_flinkpy.runtime.shuffle.record_writer import BUFFER_ROWS, BUFFER_SIZE, BufferPool, RecordWriter
from dagster_flinkpy.runtime.shuffle.wire import (
    SEQ_BITS,
    Kind,
    TaskOutput,
    decode_buffer,
    rows_of,
)

PICKLED = Types.PICKLED_BYTE_ARRAY()


def batch_of(values: list[Any]) -> StreamBatch:
    return StreamBatch(PICKLED, np.arange(len(values), dtype=np.int64), values=values, producer="before")


class Shuffle:
    def __init__(self, partitioner: StreamPartitioner | PartitionerKind, **options: Any) -> None:
        partitioner = StreamPartitioner(partitioner) if isinstance(partitioner, PartitionerKind) else partitioner
        self.output = TaskOutput()
        edge = JobEdge(5, "before", "behind", 0, partitioner, PICKLED)
        settings = {"subtask": 0, "targets": 3, "max_parallelism": 128, "channels": 2, **options}
        self.writer = RecordWriter(edge, output=self.output, **settings)

    def rows(self) -> list[Any]:
        self.writer.flush()
        return [row for batch in self.output.drain() for row in rows_of(batch)]

    def send(self, *values: Any) -> dict[int, list[Any]]:
        self.writer.emit(batch_of(list(values)))
        received: dict[int, list[Any]] = {}
        for row in self.rows():
            received.setdefault(row.target, []).extend(decode_buffer(row.payload, PICKLED).values)
        return received


@given(kind=st.sampled_from(PartitionerKind), sources=st.integers(1, 12), targets=st.integers(1, 12))
def test_both_ends_of_an_edge_agree_on_its_channels(kind: PartitionerKind, sources: int, targets: int) -> None:
    if kind is PartitionerKind.FORWARD:
        targets = sources
    down = {(s, t) for s in range(sources) for t in downstream_subtasks(kind, s, sources, targets)}
    up = {(s, t) for t in range(targets) for s in upstream_subtasks(kind, t, sources, targets)}
    assert down == up
    assert {s for s, _ in down} == set(range(sources))
    assert {t for _, t in down} == set(range(targets))
    if kind is PartitionerKind.RESCALE:
        assert len(down) == max(sources, targets)  # each subtask of the wider side has one partner


@pytest.mark.parametrize(
    ("sources", "targets", "groups"),
    [
        (2, 4, {0: [0, 1], 1: [2, 3]}),  # the figures in Flink's documentation of rescale()
        (4, 2, {0: [0], 1: [0], 2: [1], 3: [1]}),
        (2, 3, {0: [0, 1], 1: [2]}),
        (3, 2, {0: [0], 1: [1], 2: [1]}),
    ],
)
def test_rescale_joins_local_groups(sources: int, targets: int, groups: dict[int, list[int]]) -> None:
    kind = PartitionerKind.RESCALE
    assert {s: downstream_subtasks(kind, s, sources, targets) for s in range(sources)} == groups


def test_rescale_goes_round_its_group() -> None:
    shuffle = Shuffle(PartitionerKind.RESCALE, targets=4, subtask=1)
    assert shuffle.send(1, 2, 3) == {2: [1, 3], 3: [2]}
    assert shuffle.send(4, 5) == {3: [4], 2: [5]}


def test_shuffle_reaches_all_and_repeats_itself_in_a_replay() -> None:
    def shuffled(**options: Any) -> dict[int, list[Any]]:
        return Shuffle(PartitionerKind.SHUFFLE, **options).send(*range(100))

    first = shuffled(replay=("job", 7))
    assert set(first) == {0, 1, 2}
    assert first == shuffled(replay=("job", 7))
    others = [shuffled(replay=("job", 8)), shuffled(replay=("other", 7)), shuffled(replay=("job", 7), subtask=1)]
    assert all(other != first for other in others)


def custom(partition: Any) -> StreamPartitioner:
    return StreamPartitioner(PartitionerKind.CUSTOM, selector=lambda value: value, custom=partition)


def test_a_custom_partitioner_chooses() -> None:
    assert Shuffle(custom(lambda key, n: (key + 1) % n)).send(0, 1, 2, 3) == {1: [0, 3], 2: [1], 0: [2]}


@pytest.mark.parametrize("choice", [3, -1, None, "0"])
def test_a_custom_partitioner_that_chooses_no_subtask_is_named(choice: Any) -> None:
    with pytest.raises(
        UserFunctionError, match=rf"partition_custom.*{choice!r} for record 'a'; expected an int from 0 to 2"
    ):
        Shuffle(custom(lambda key, n: choice)).send("a")


def test_a_broadcast_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster_flinkpy.runtime.shuffle import record_writer as module

    encoded = []
    encode = module.encode_buffer
    monkeypatch.setattr(module, "encode_buffer", lambda batch: encoded.append(len(batch)) or encode(batch))
    assert Shuffle(PartitionerKind.BROADCAST).send(1, 2) == {0: [1, 2], 1: [1, 2], 2: [1, 2]}
    assert encoded.count(2) == len(list(filter(None, encoded))) == 1


# --- buffers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "records", "least", "most"),
    [
        (10, 200_000, BUFFER_SIZE * 0.7, BUFFER_SIZE * 1.6),
        (1000, 20_000, BUFFER_SIZE * 2.8, BUFFER_SIZE * 6.1),
    ],
)
def test_a_batch_of_many_megabytes_is_cut_into_buffers(record: int, records: int, least: float, most: float) -> None:
    shuffle = Shuffle(PartitionerKind.GLOBAL)
    shuffle.writer.emit(batch_of([b"x" * record] * records))
    *sizes, last = [len(row.payload) for row in shuffle.rows()]
    assert len(sizes) >= 2
    assert all(least < size < most for size in sizes)
    assert last < most


def test_large_records_are_sent_as_many_as_are_processed_at_once() -> None:
    shuffle = Shuffle(PartitionerKind.GLOBAL)
    shuffle.writer.emit(batch_of([b"x" * 150] * 4 * BUFFER_ROWS))
    assert [len(decode_buffer(row.payload, PICKLED)) for row in shuffle.rows()] == [BUFFER_ROWS] * 4


@pytest.mark.parametrize(("size", "most"), [(1_000, 1_500), (400, 1_500), (1, 1_000)])
def test_buffers_for_a_slow_receiver_are_not_larger_than_it_wants(
    size: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a buffer has without records counts, too: in one of 400 bytes there is room for one of them."""
    monkeypatch.setattr(TaskOutput, "buffer_size", lambda *_: size)
    shuffle = Shuffle(PartitionerKind.GLOBAL)
    shuffle.writer.emit(batch_of(list(range(60))))
    payloads = [row.payload for row in shuffle.rows()]
    assert max(len(payload) for payload in payloads) < most
    assert [value for payload in payloads for value in decode_buffer(payload, PICKLED).values] == list(range(60))
    if size <= 400:
        assert len(payloads) == 60


def test_a_large_batch_for_a_slow_receiver_is_not_cut_into_thousands_of_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TaskOutput, "buffer_size", lambda *_: 1)
    shuffle = Shuffle(PartitionerKind.GLOBAL)
    shuffle.writer.emit(batch_of(list(range(10_000))))
    assert len(shuffle.rows()) <= 65


def test_a_record_larger_than_a_buffer_passes() -> None:
    shuffle = Shuffle(PartitionerKind.GLOBAL)
    large = b"x" * (3 * BUFFER_SIZE)
    assert shuffle.send("small", large, "small") == {0: ["small", large, "small"]}


def test_a_record_that_no_row_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.runtime.shuffle.wire.MAX_PAYLOAD", 5_000)
    with pytest.raises(ConfigurationError, match=r"a record has 1\d{4} bytes, .* at most 5000:"):
        Shuffle(PartitionerKind.GLOBAL).send(b"x" * 10_000)


def test_what_is_held_back_is_bounded_and_the_largest_goes_first() -> None:
    shuffle = Shuffle(custom(lambda key, n: key[0]), targets=4, pool=BufferPool(300_000))
    record = b"x" * 10_000
    held = []
    for i in range(120):
        shuffle.writer.emit(batch_of([(i % 4 if i % 3 else 0, record)]))
        held.append(sum(shuffle.writer._pool._pending.values()))
    assert max(held) < 300_000 + 20_000
    sent = [row for batch in shuffle.output.drain() for row in rows_of(batch)]
    assert sent[0].target == 0  # which got most
    assert shuffle.rows()


def test_records_that_wait_do_not_keep_large_batches_in_memory() -> None:
    shuffle = Shuffle(custom(lambda key, n: 0 if key[0] else 1))
    shuffle.writer.emit(batch_of([(0, "rare"), *[(1, b"x" * 1000)] * 500]))
    (pending,) = shuffle.writer._pending[1]
    assert pending.get_total_buffer_size() < 2000


def test_seq_leaps_behind_a_barrier() -> None:
    shuffle = Shuffle(PartitionerKind.REBALANCE)
    shuffle.send(1, 2, 3, 4)
    shuffle.writer.barrier(1, "", aligned=False)
    shuffle.writer.emit(batch_of([5]))
    rows = [row for row in shuffle.rows() if row.kind is Kind.BUFFER]
    assert [row.seq for row in rows] == [1 << SEQ_BITS]
