from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.job_graph import JobEdge, Partitioner, PartitionerKind
from dagster_flinkpy.errors import FlinkPyError, TypeMismatchError, UnsupportedKeyTypeError, UserFunctionError
from dagster_flinkpy.key_groups import (
    assign_to_key_group,
    compute_operator_index_for_key_group,
    java_hash_code,
)
from dagster_flinkpy.runtime.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.runtime.exchange import (
    BUFFER_SIZE,
    Kind,
    RecordWriter,
    TaskOutput,
    WireRow,
    decode_buffer,
    encode_buffer,
    rows_of,
)

PICKLED = Types.PICKLED_BYTE_ARRAY()


def batch_of(values: list[Any], type_info: TypeInformation = PICKLED) -> StreamBatch:
    return StreamBatch(type_info, np.arange(len(values), dtype=np.int64), values=values, producer="before")


class Exchange:
    """One writer, and what it has sent."""

    def __init__(
        self,
        partitioner: Partitioner,
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


def by_key(**options: Any) -> Partitioner:
    return Partitioner(PartitionerKind.HASH, **{"selector": lambda value: value, **options})


# --- what is not sent twice -------------------------------------------------------------------------------------------

EVENT = Types.ROW_NAMED(["name", "time", "seq"], [Types.STRING(), Types.LONG(), Types.LONG()])


def sent_columns(exchange: Exchange) -> list[list[str]]:
    """The names of the columns of each buffer."""
    exchange.writer.flush()
    rows = exchange.rows()
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
    exchange = Exchange(by_key(selector=selector), targets=2, type_info=EVENT)
    sent = Counter()
    for i, batch in enumerate(batches):
        rows = [Row(name=n, time=t, seq=s) for n, t, s in batch]
        own = {"none": NO_TIMESTAMP, "other": 7 + i}
        times = [own[timestamps] if timestamps in own else row[timestamps] for row in rows]
        exchange.writer.emit(StreamBatch(EVENT, np.array(times, dtype=np.int64), values=rows))
        for row, time in zip(rows, times, strict=True):
            names = selector if isinstance(selector, tuple) else ("name",) if callable(selector) else (selector,)
            key = tuple(row[n] for n in names)
            sent[repr(row), time, key if isinstance(selector, tuple) else key[0]] += 1
    received = Counter()
    for _, batch in exchange.decoded():
        assert batch.keys is not None
        keys = batch.keys.type_info.from_arrow(batch.keys.column)
        received.update(zip(map(repr, batch.values), batch.timestamps.tolist(), keys, strict=True))
    assert received == sent


def test_keys_and_times_that_are_fields_are_not_sent_twice() -> None:
    exchange = Exchange(by_key(selector="name"), targets=1, type_info=EVENT)
    rows = [Row(name="a", time=5, seq=1), Row(name="b", time=6, seq=1)]
    exchange.writer.emit(StreamBatch(EVENT, np.array([5, 6]), values=rows))
    assert sent_columns(exchange) == [["value", "hash"]]
    exchange.writer.emit(StreamBatch(EVENT, np.array([5, 7]), values=rows))
    assert sent_columns(exchange) == [["value", "timestamp", "hash"]]
    exchange.writer.emit(StreamBatch(EVENT, np.array([5, 6]), values=rows))
    assert sent_columns(exchange) == [["value", "timestamp", "hash"]], "what once did not hold is not tried again"
    timeless = Exchange(by_key(), targets=1, type_info=Types.LONG())
    timeless.writer.emit(StreamBatch(Types.LONG(), np.array([NO_TIMESTAMP]), values=[3]))
    assert sent_columns(timeless) == [["value", "key", "hash"]]


def test_a_null_among_the_fields_of_that_time_is_no_time() -> None:
    exchange = Exchange(by_key(selector="name"), targets=1, type_info=EVENT)
    rows = [Row(name="a", time=5, seq=None), Row(name="b", time=None, seq=None)]
    exchange.writer.emit(StreamBatch(EVENT, np.array([5, 0]), values=rows))
    ((_, batch),) = exchange.decoded()
    assert batch.timestamps.tolist() == [5, 0]


def test_names_that_look_like_paths_are_names() -> None:
    record = Types.ROW_NAMED([".time", "[0]"], [Types.LONG(), Types.STRING()])
    exchange = Exchange(by_key(selector="[0]"), targets=1, type_info=record)
    exchange.writer.emit(StreamBatch(record, np.array([5, 6]), column=record.to_arrow([(5, "a"), (6, "b")])))
    ((_, batch),) = exchange.decoded()
    assert batch.keys is not None
    assert (batch.timestamps.tolist(), batch.keys.column.to_pylist()) == ([5, 6], ["a", "b"])


def test_buffers_that_hold_all_columns_are_read() -> None:
    """The state of channels may hold some, of before keys and times were left out."""
    columns = {"value": EVENT.to_arrow([("a", 5, 1)]), "timestamp": [5], "key": ["a"]}
    batch = pa.RecordBatch.from_pydict(
        {**columns, "hash": pa.array([97], pa.int32())}, metadata={"key_type": json.dumps(Types.STRING().to_json())}
    )
    decoded = decode_buffer(encode_buffer(batch), EVENT)
    assert decoded.keys is not None
    assert (decoded.timestamps.tolist(), decoded.keys.column.to_pylist()) == ([5], ["a"])


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
    exchange = Exchange(by_key(), targets=targets, max_parallelism=max_parallelism)
    exchange.emit(*values)
    decoded = exchange.decoded()
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
    one = Exchange(Partitioner(PartitionerKind.HASH, "name"), targets=targets, type_info=row)
    both = Exchange(Partitioner(PartitionerKind.HASH, ("name", "number")), targets=targets, type_info=row)
    for exchange, key_of in ((one, lambda v: v[0]), (both, tuple)):
        exchange.emit(*(Row(*v) for v in values))
        for target, records in exchange.received().items():
            for record in records:
                group = assign_to_key_group(key_of(record), 128)
                assert target == compute_operator_index_for_key_group(128, targets, group)


@given(sizes=st.lists(st.integers(0, 20)), targets=st.integers(1, 6), subtask=st.integers(0, 5))
def test_rebalance_is_even_over_all_batches(sizes: list[int], targets: int, subtask: int) -> None:
    exchange = Exchange(Partitioner(PartitionerKind.REBALANCE), targets=targets, subtask=subtask)
    total = 0
    for size in sizes:
        exchange.emit(*range(total, total + size))
        total += size
    received = exchange.received()
    counts = [len(received.get(t, [])) for t in range(targets)]
    assert sum(counts) == total
    assert max(counts) - min(counts) <= 1
    if total:
        assert received[subtask % targets][0] == 0  # writers do not all begin with the same target


def test_broadcast_sends_all_to_all() -> None:
    exchange = Exchange(Partitioner(PartitionerKind.BROADCAST))
    exchange.emit(1, 2)
    assert exchange.received() == {0: [1, 2], 1: [1, 2], 2: [1, 2]}


def test_global_sends_all_to_the_first() -> None:
    exchange = Exchange(Partitioner(PartitionerKind.GLOBAL), subtask=2)
    exchange.emit(1, 2)
    assert exchange.received() == {0: [1, 2]}


def test_forward_sends_to_the_subtask_of_the_same_index_only() -> None:
    exchange = Exchange(Partitioner(PartitionerKind.FORWARD), subtask=2)
    exchange.emit(1, 2)
    exchange.writer.event(Kind.BARRIER, b"{}")
    assert [(row.target, row.kind, row.seq) for row in exchange.rows()] == [
        (2, Kind.BUFFER, 0),
        (2, Kind.BARRIER, 1),
    ]


def test_an_event_goes_to_all_behind_the_records_before_it() -> None:
    exchange = Exchange(Partitioner(PartitionerKind.REBALANCE), targets=2, subtask=0)
    exchange.emit("first")
    exchange.writer.event(Kind.WATERMARK, b"12345678")
    assert [(row.target, row.kind, row.seq, row.edge, row.channel) for row in exchange.rows()] == [
        (0, Kind.BUFFER, 0, 5, 0),
        (0, Kind.WATERMARK, 1, 5, 0),
        (1, Kind.WATERMARK, 0, 5, 0),
    ]


def test_timestamps_travel_with_their_records() -> None:
    exchange = Exchange(by_key(), targets=4)
    exchange.emit(*"abcdefgh")
    for _, batch in exchange.decoded():
        assert [("abcdefgh".index(v)) for v in batch.values] == batch.timestamps.tolist()


# --- buffers ----------------------------------------------------------------------------------------------------------


def test_a_buffer_is_sent_when_it_is_full() -> None:
    exchange = Exchange(Partitioner(PartitionerKind.GLOBAL), type_info=Types.STRING())
    third = "x" * (BUFFER_SIZE // 3)
    exchange.emit(third)
    exchange.emit(third)
    assert exchange.rows() == []
    exchange.emit(third)
    (row,) = exchange.rows()
    assert decode_buffer(row.payload, Types.STRING()).values == [third] * 3


def test_buffers_fill_up_for_each_target_by_itself() -> None:
    exchange = Exchange(Partitioner(PartitionerKind.REBALANCE), targets=2, type_info=Types.STRING())
    exchange.emit("x" * BUFFER_SIZE, "y")
    assert [row.target for row in exchange.rows()] == [0]
    assert exchange.received() == {1: ["y"]}


def test_a_record_larger_than_a_buffer_travels_whole() -> None:
    exchange = Exchange(by_key(), type_info=Types.STRING())
    record = "ü" * (3 * BUFFER_SIZE)
    exchange.emit(record)
    (row,) = exchange.rows()
    assert decode_buffer(row.payload, Types.STRING()).values == [record]


def test_much_output_becomes_several_batches() -> None:
    output = TaskOutput()
    for i in range(40):
        output.add(0, 0, 0, i, Kind.BUFFER, bytes([i]) * BUFFER_SIZE)
    assert output.ready
    batches = list(output.drain())
    assert [batch.num_rows for batch in batches] == [8] * 5
    rows = [row for batch in batches for row in rows_of(batch)]
    assert [row.seq for row in rows] == list(range(40))
    assert all(row.payload.to_pybytes() == bytes([row.seq]) * BUFFER_SIZE for row in rows)
    assert list(output.drain()) == []
    assert not output.ready


def test_an_empty_batch_sends_nothing() -> None:
    exchange = Exchange(by_key())
    exchange.emit()
    assert exchange.decoded() == []


# --- keys -------------------------------------------------------------------------------------------------------------


def test_another_type_of_key_begins_another_buffer() -> None:
    exchange = Exchange(by_key(), targets=1)
    for value in (1, 2, "a", "b", 3):
        exchange.emit(value)
    decoded = [batch for _, batch in exchange.decoded()]
    assert [list(batch.values) for batch in decoded] == [[1, 2], ["a", "b"], [3]]
    assert [batch.keys and batch.keys.type_info for batch in decoded] == [Types.LONG(), Types.STRING(), Types.LONG()]


def test_a_declared_key_type_is_kept() -> None:
    exchange = Exchange(by_key(key_type=Types.INT()), targets=1)
    exchange.emit(7)
    ((_, batch),) = exchange.decoded()
    assert batch.keys is not None
    assert batch.keys.type_info == Types.INT()


def test_a_key_that_is_not_of_the_declared_type_is_named() -> None:
    exchange = Exchange(by_key(key_type=Types.LONG()))
    with pytest.raises(TypeMismatchError, match=r"in front of operator 'behind'.*'a' is str"):
        exchange.emit("a")


NULLS = {
    "a key": ([1, None], "the key of record None is None"),
    "the first key": ([None, 1], "key is None"),
    "a field of a tuple": ([(1, "a"), (2, None)], r"field 'f1' of the key of record \(2, None\) is None"),
    "a field of the first tuple": ([(1, None)], r"key\[1\] is None"),
    "a field of a row": ([Row(a=1), Row(a=None)], r"field 'a' of the key of record Row\(a=None\) is None"),
    "a field of a tuple in a tuple": ([((1,), 2), ((None,), 2)], r"field 'f0' of the key of record \(\(None,\), 2\)"),
}


@pytest.mark.parametrize(("values", "message"), NULLS.values(), ids=NULLS.keys())
def test_a_missing_key_is_named(values: list[Any], message: str) -> None:
    with pytest.raises(UnsupportedKeyTypeError, match=f"key_by in front of operator 'behind': {message}"):
        Exchange(by_key()).emit(*values)


@pytest.mark.parametrize("selector", ["name", ("name", "number")])
def test_a_missing_key_field_is_named(selector: Any) -> None:
    row = Types.ROW_NAMED(["name", "number"], [Types.STRING(), Types.LONG()])
    exchange = Exchange(Partitioner(PartitionerKind.HASH, selector), type_info=row)
    with pytest.raises(UnsupportedKeyTypeError, match="key field 'name' is null in 2 records"):
        exchange.emit(Row(None, 1), Row("a", 1), None)


@pytest.mark.parametrize("key", [[1], {"a": 1}, {1}, object(), (1, [2]), b"x"])
def test_a_key_without_stable_hash_is_named(key: Any) -> None:
    with pytest.raises(UnsupportedKeyTypeError, match="in front of operator 'behind'"):
        Exchange(by_key()).emit(key)


def test_a_key_field_without_stable_hash_is_refused() -> None:
    row = RowTypeInfo([Types.MAP(Types.STRING(), Types.LONG())], ["map"])
    with pytest.raises(FlinkPyError, match="in front of operator 'behind'"):
        Exchange(Partitioner(PartitionerKind.HASH, "map"), type_info=row).emit(Row({"a": 1}))


def test_an_error_of_the_key_selector_is_the_users() -> None:
    exchange = Exchange(by_key(selector=lambda value: 1 // value), subtask=1)
    with pytest.raises(UserFunctionError, match="ZeroDivisionError") as raised:
        exchange.emit(1, 0)
    assert (raised.value.operator, raised.value.subtask) == ("before", 1)
    assert "1 // value" in raised.value.user_traceback


def test_a_value_that_is_not_of_the_declared_type_names_the_operator() -> None:
    exchange = Exchange(Partitioner(PartitionerKind.GLOBAL), type_info=Types.LONG())
    with pytest.raises(TypeMismatchError, match=r"operator 'before': declared LONG.*'a' is str"):
        exchange.emit("a")


# --- digest -----------------------------------------------------------------------------------------------------------


def digest(*values: Any, watermark: bytes = b"") -> int:
    exchange = Exchange(Partitioner(PartitionerKind.GLOBAL))
    exchange.emit(*values)
    exchange.writer.event(Kind.WATERMARK, watermark)
    return exchange.output.digest


def test_the_digest_tells_outputs_apart() -> None:
    assert digest(1, 2) == digest(1, 2)
    assert len({digest(1, 2), digest(2, 1), digest(1), digest(1, 2, watermark=b"x")}) == 4


def test_the_digest_leaves_out_what_differs_between_attempts() -> None:
    output = TaskOutput()
    output.add(0, 0, 0, 0, Kind.BUFFER, b"data")
    before = output.digest
    for kind in (Kind.BARRIER, Kind.ACK, Kind.FAILURE, Kind.CANCEL_BARRIER):
        output.add(0, 0, 0, 1, kind, b"uuid")
    assert output.digest == before
