from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.program.job_graph import JobEdge, PartitionerKind, StreamPartitioner
from dagster_flinkpy.errors import TypeMismatchError, UnsupportedKeyTypeError, UserFunctionError
from dagster_flinkpy.key_groups import compute_operator_index_for_key_group
from dagster_flinkpy.key_hashes import assign_to_key_group, java_hash_code
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.runtime.shuffle.record_writer import BUFFER_SIZE, RecordWriter
from dagster_flinkpy.runtime.shuffle.wire import Kind, TaskOutput, WireRow, decode_buffer, rows_of

PICKLED = Types.PICKLED_BYTE_ARRAY()


def batch_of(values: list[Any], type_info: TypeInformation = PICKLED) -> StreamBatch:
    return StreamBatch(type_info, np.arange(len(values), dtype=np.int64), values=values, producer="before")


class Shuffle:
    """A writer, and what it has sent."""

    def __init__(
        self,
        partitioner: StreamPartitioner,
        *,
        targets: int = 3,
        subtask: int = 0,
        max_parallelism: int = 128,
        type_info: TypeInformation = PICKLED,
    ) -> None:
        self.type_info = type_info
        self.output = TaskOutput()
        edge = JobEdge(5, "before", "behind", 0, partitioner, type_info)
        self.writer = RecordWriter(edge, subtask, targets, max_parallelism, self.output)

    def emit(self, *values: Any) -> None:
        self.writer.emit(batch_of(list(values), self.type_info))

    def rows(self) -> list[WireRow]:
        return [row for batch in self.output.drain() for row in rows_of(batch)]

    def decoded(self) -> list[tuple[int, StreamBatch]]:
        self.writer.flush()
        return [(row.target, decode_buffer(row.payload, self.type_info)) for row in self.rows()]

    def received(self) -> dict[int, list[Any]]:
        received: dict[int, list[Any]] = {}
        for target, batch in self.decoded():
            received.setdefault(target, []).extend(batch.values)
        return received


def by_key(**options: Any) -> StreamPartitioner:
    return StreamPartitioner(PartitionerKind.HASH, **{"selector": lambda value: value, **options})


# --- what is not sent twice -------------------------------------------------------------------------------------------

EVENT = Types.ROW_NAMED(["name", "time", "seq"], [Types.STRING(), Types.LONG(), Types.LONG()])


def sent_columns(shuffle: Shuffle) -> list[list[str]]:
    """Returns the names of the columns of each buffer."""
    shuffle.writer.flush()
    rows = shuffle.rows()
    assert rows
    return [pa.ipc.open_stream(row.payload).schema.names for row in rows]


@given(
    batches=st.lists(
        st.lists(st.tuples(st.text(max_size=2), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5),
        min_size=1,
    ),
    timestamps=st.sampled_from(["none", "time", "seq", "other"]),
    selector=st.sampled_from(["name", "time", ("name", "seq"), lambda value: value["name"]]),
)
def test_records_keys_and_times_arrive_as_they_were_sent(batches: list[Any], timestamps: str, selector: Any) -> None:
    shuffle = Shuffle(by_key(selector=selector), targets=2, type_info=EVENT)
    sent = Counter()
    for i, batch in enumerate(batches):
        rows = [Row(name=n, time=t, seq=s) for n, t, s in batch]
        own = {"none": NO_TIMESTAMP, "other": 7 + i}
        times = [own[timestamps] if timestamps in own else row[timestamps] for row in rows]
        shuffle.writer.emit(StreamBatch(EVENT, np.array(times, dtype=np.int64), values=rows))
        for row, time in zip(rows, times, strict=True):
            names = selector if isinstance(selector, tuple) else ("name",) if callable(selector) else (selector,)
            key = tuple(row[n] for n in names)
            sent[repr(row), time, key if isinstance(selector, tuple) else key[0]] += 1
    received = Counter()
    for _, batch in shuffle.decoded():
        assert batch.keys is not None
        keys = batch.keys.type_info.from_arrow(batch.keys.column)
        received.update(zip(map(repr, batch.values), batch.timestamps.tolist(), keys, strict=True))
    assert received == sent


def test_keys_and_times_that_are_fields_are_not_sent_twice() -> None:
    shuffle = Shuffle(by_key(selector="name"), targets=1, type_info=EVENT)
    rows = [Row(name="a", time=5, seq=1), Row(name="b", time=6, seq=1)]
    shuffle.writer.emit(StreamBatch(EVENT, np.array([5, 6]), values=rows))
    assert sent_columns(shuffle) == [["value", "hash"]]
    shuffle.writer.emit(StreamBatch(EVENT, np.array([5, 7]), values=rows))
    assert sent_columns(shuffle) == [["value", "timestamp", "hash"]]
    shuffle.writer.emit(StreamBatch(EVENT, np.array([5, 6]), values=rows))
    assert sent_columns(shuffle) == [["value", "timestamp", "hash"]], (
        "an optimisation that failed once is not tried again"
    )
    timeless = Shuffle(by_key(), targets=1, type_info=Types.LONG())
    timeless.writer.emit(StreamBatch(Types.LONG(), np.array([NO_TIMESTAMP]), values=[3]))
    assert sent_columns(timeless) == [["value", "key", "hash"]]


def test_a_null_among_the_fields_of_that_time_is_no_time() -> None:
    shuffle = Shuffle(by_key(selector="name"), targets=1, type_info=EVENT)
    rows = [Row(name="a", time=5, seq=None), Row(name="b", time=None, seq=None)]
    shuffle.writer.emit(StreamBatch(EVENT, np.array([5, 0]), values=rows))
    ((_, batch),) = shuffle.decoded()
    assert batch.timestamps.tolist() == [5, 0]


def test_names_that_look_like_paths_are_names() -> None:
    record = Types.ROW_NAMED([".time", "[0]"], [Types.LONG(), Types.STRING()])
    shuffle = Shuffle(by_key(selector="[0]"), targets=1, type_info=record)
    shuffle.writer.emit(StreamBatch(record, np.array([5, 6]), column=record.to_arrow([(5, "a"), (6, "b")])))
    ((_, batch),) = shuffle.decoded()
    assert batch.keys is not None
    assert (batch.timestamps.tolist(), batch.keys.column.to_pylist()) == ([5, 6], ["a", "b"])


# --- partitioners -----------------------------------------------------------------------------------------------------

keys = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.lists(st.text(), min_size=1),
    st.lists(st.booleans(), min_size=1),
    st.lists(st.floats(allow_nan=False), min_size=1),
    st.lists(st.tuples(st.text(), st.integers(-(2**63), 2**63 - 1)), min_size=1),
    st.lists(st.builds(Row, st.text(), st.integers(-9, 9)), min_size=1),
    st.lists(st.builds(Row, name=st.text(), number=st.integers(-9, 9)), min_size=1),
)


@given(values=keys, targets=st.integers(1, 9), max_parallelism=st.integers(9, 200))
def test_hash_sends_a_key_to_the_subtask_of_its_key_group(
    values: list[Any], targets: int, max_parallelism: int
) -> None:
    shuffle = Shuffle(by_key(), targets=targets, max_parallelism=max_parallelism)
    shuffle.emit(*values)
    decoded = shuffle.decoded()
    assert Counter(map(repr, values)) == Counter(repr(v) for _, batch in decoded for v in batch.values)
    for target, batch in decoded:
        assert batch.keys is not None
        received = batch.keys.type_info.from_arrow(batch.keys.column)
        for key, value, code in zip(received, batch.values, batch.keys.hashes.tolist(), strict=True):
            group = assign_to_key_group(value, max_parallelism)
            assert target == compute_operator_index_for_key_group(max_parallelism, targets, group)
            assert code == java_hash_code(value)
            assert list(key) == list(value) if isinstance(value, Row) else key == value


@given(values=st.lists(st.tuples(st.text(max_size=3), st.integers(-5, 5)), min_size=1), targets=st.integers(1, 5))
def test_fields_hash_as_their_values_do(values: list[tuple[str, int]], targets: int) -> None:
    row = Types.ROW_NAMED(["name", "number"], [Types.STRING(), Types.LONG()])
    one = Shuffle(StreamPartitioner(PartitionerKind.HASH, "name"), targets=targets, type_info=row)
    both = Shuffle(StreamPartitioner(PartitionerKind.HASH, ("name", "number")), targets=targets, type_info=row)
    for shuffle, key_of in ((one, lambda v: v[0]), (both, tuple)):
        shuffle.emit(*(Row(*v) for v in values))
        for target, records in shuffle.received().items():
            for record in records:
                group = assign_to_key_group(key_of(record), 128)
                assert target == compute_operator_index_for_key_group(128, targets, group)


@given(sizes=st.lists(st.integers(0, 20)), targets=st.integers(1, 6), subtask=st.integers(0, 5))
def test_rebalance_is_even_over_all_batches(sizes: list[int], targets: int, subtask: int) -> None:
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.REBALANCE), targets=targets, subtask=subtask)
    total = 0
    for size in sizes:
        shuffle.emit(*range(total, total + size))
        total += size
    received = shuffle.received()
    counts = [len(received.get(t, [])) for t in range(targets)]
    assert sum(counts) == total
    assert max(counts) - min(counts) <= 1
    if total:
        assert received[subtask % targets][0] == 0  # writers do not all begin with the same target


def test_broadcast_sends_all_to_all() -> None:
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.BROADCAST))
    shuffle.emit(1, 2)
    assert shuffle.received() == {0: [1, 2], 1: [1, 2], 2: [1, 2]}


def test_global_sends_all_to_the_first() -> None:
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.GLOBAL), subtask=2)
    shuffle.emit(1, 2)
    assert shuffle.received() == {0: [1, 2]}


def test_forward_sends_to_the_subtask_of_the_same_index_only() -> None:
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.FORWARD), subtask=2)
    shuffle.emit(1, 2)
    shuffle.writer.barrier(1, "", aligned=False)
    assert [(row.target, row.kind, row.seq) for row in shuffle.rows()] == [
        (2, Kind.BUFFER, 0),
        (2, Kind.BARRIER, 1),
    ]


def test_an_event_goes_to_all_behind_the_records_before_it() -> None:
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.REBALANCE), targets=2, subtask=0)
    shuffle.emit("first")
    shuffle.writer.watermark("events", 1)
    assert [(row.target, row.kind, row.seq, row.edge, row.channel) for row in shuffle.rows()] == [
        (0, Kind.BUFFER, 0, 5, 0),
        (0, Kind.WATERMARK, 1, 5, 0),
        (1, Kind.WATERMARK, 0, 5, 0),
    ]


def test_timestamps_travel_with_their_records() -> None:
    shuffle = Shuffle(by_key(), targets=4)
    shuffle.emit(*"abcdefgh")
    for _, batch in shuffle.decoded():
        assert [("abcdefgh".index(v)) for v in batch.values] == batch.timestamps.tolist()


# --- buffers ----------------------------------------------------------------------------------------------------------


def test_a_buffer_is_sent_when_it_is_full() -> None:
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.GLOBAL), type_info=Types.STRING())
    third = "x" * (BUFFER_SIZE // 3)
    shuffle.emit(third)
    shuffle.emit(third)
    assert shuffle.rows() == []
    shuffle.emit(third)
    (row,) = shuffle.rows()
    assert decode_buffer(row.payload, Types.STRING()).values == [third] * 3


def test_buffers_fill_up_for_each_target_by_itself() -> None:
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.REBALANCE), targets=2, type_info=Types.STRING())
    shuffle.emit("x" * BUFFER_SIZE, "y")
    assert [row.target for row in shuffle.rows()] == [0]
    assert shuffle.received() == {1: ["y"]}


@pytest.mark.parametrize("targets", [2, 16])
def test_buffers_of_records_of_one_size_are_full_when_they_are_sent(targets: int) -> None:
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.REBALANCE), targets=targets, type_info=Types.LONG())
    for _ in range(targets * 9):
        shuffle.emit(*range(BUFFER_SIZE // 8 // 16))  # 16 bytes each with the timestamp, so 8 batches fill a buffer
    sent = [row for row in shuffle.rows() if row.kind is Kind.BUFFER]
    assert sorted(row.target for row in sent) == list(range(targets))
    assert all(BUFFER_SIZE <= row.payload.size < 1.2 * BUFFER_SIZE for row in sent)


def test_a_record_larger_than_a_buffer_travels_whole() -> None:
    shuffle = Shuffle(by_key(), type_info=Types.STRING())
    record = "ü" * (3 * BUFFER_SIZE)
    shuffle.emit(record)
    (row,) = shuffle.rows()
    assert decode_buffer(row.payload, Types.STRING()).values == [record]


def test_an_empty_batch_sends_nothing() -> None:
    shuffle = Shuffle(by_key())
    shuffle.emit()
    assert shuffle.decoded() == []


@given(values=st.lists(st.integers(0, 20), min_size=1), room=st.sets(st.integers(0, 2)))
def test_records_wait_for_a_full_buffer_while_their_receiver_has_no_room(values: list[int], room: set[int]) -> None:
    shuffle, whole = Shuffle(by_key()), Shuffle(by_key())
    shuffle.emit(*values)
    whole.emit(*values)
    all_left = whole.received()
    assert shuffle.writer.flush_to_room(lambda edge, target: edge == 5 and target in room) == (all_left.keys() <= room)
    assert {row.target for row in shuffle.rows()} == all_left.keys() & room
    assert shuffle.received() == {target: got for target, got in all_left.items() if target not in room}


def test_a_broadcast_waits_for_the_receiver_that_has_no_room() -> None:
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.BROADCAST))
    shuffle.emit("a")
    assert not shuffle.writer.flush_to_room(lambda edge, target: target != 1)
    assert shuffle.rows() == []
    assert shuffle.writer.flush_to_room(lambda edge, target: True)
    assert [row.target for row in shuffle.rows()] == [0, 1, 2]


# --- keys -------------------------------------------------------------------------------------------------------------


def test_another_type_of_key_begins_another_buffer() -> None:
    shuffle = Shuffle(by_key(), targets=1)
    for value in (1, 2, "a", "b", 3):
        shuffle.emit(value)
    decoded = [batch for _, batch in shuffle.decoded()]
    assert [list(batch.values) for batch in decoded] == [[1, 2], ["a", "b"], [3]]
    assert [batch.keys and batch.keys.type_info for batch in decoded] == [Types.LONG(), Types.STRING(), Types.LONG()]


def test_a_declared_key_type_is_kept() -> None:
    shuffle = Shuffle(by_key(key_type=Types.INT()), targets=1)
    shuffle.emit(7)
    ((_, batch),) = shuffle.decoded()
    assert batch.keys is not None
    assert batch.keys.type_info == Types.INT()


def test_a_key_that_is_not_of_the_declared_type_is_named() -> None:
    shuffle = Shuffle(by_key(key_type=Types.LONG()))
    with pytest.raises(TypeMismatchError, match=r"in front of operator 'behind'.*'a' is str"):
        shuffle.emit("a")


def test_a_key_that_cannot_be_hashed_names_the_operator_behind() -> None:
    with pytest.raises(UnsupportedKeyTypeError, match="key_by in front of operator 'behind': the key of record None"):
        Shuffle(by_key()).emit(1, None)


def test_an_error_of_the_key_selector_is_the_users() -> None:
    shuffle = Shuffle(by_key(selector=lambda value: 1 // value), subtask=1)
    with pytest.raises(UserFunctionError, match="ZeroDivisionError") as raised:
        shuffle.emit(1, 0)
    assert (raised.value.operator, raised.value.subtask) == ("before", 1)
    assert "1 // value" in raised.value.user_traceback


def test_a_value_that_is_not_of_the_declared_type_names_the_operator() -> None:
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.GLOBAL), type_info=Types.LONG())
    with pytest.raises(TypeMismatchError, match=r"operator 'before': declared LONG.*'a' is str"):
        shuffle.emit("a")


# --- digest -----------------------------------------------------------------------------------------------------------


def digest(*values: Any, watermark: int = 0) -> int:
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.GLOBAL))
    shuffle.emit(*values)
    shuffle.writer.watermark("events", watermark)
    return shuffle.output.digest


def test_the_digest_tells_outputs_apart() -> None:
    assert digest(1, 2) == digest(1, 2)
    assert len({digest(1, 2), digest(2, 1), digest(1), digest(1, 2, watermark=1)}) == 4
