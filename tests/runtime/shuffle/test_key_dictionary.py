from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.program.job_graph import JobEdge, PartitionerKind, StreamPartitioner
from dagster_flinkpy.key_hashes import java_hash_code
from dagster_flinkpy.runtime.shuffle import key_dictionary
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, KeyColumn, StreamBatch
from dagster_flinkpy.runtime.shuffle.record_writer import RecordWriter
from dagster_flinkpy.runtime.shuffle.wire import TaskOutput, decode_buffer, rows_of

RECORD = Types.ROW_NAMED(["number", "name"], [Types.LONG(), Types.STRING()])


def sent(selector: Any, names: list[str], batch_rows: int, targets: int) -> tuple[list[tuple[int, StreamBatch]], int]:
    """Sends records with these names; returns what subtasks receive, and the bytes that were sent."""
    kind = Types.STRING() if callable(selector) else None
    partitioner = StreamPartitioner(PartitionerKind.HASH, selector, kind)
    output = TaskOutput()
    writer = RecordWriter(JobEdge(0, "before", "behind", 0, partitioner, RECORD), 0, targets, 128, output)
    column = RECORD.to_arrow(list(enumerate(names)))
    for start in range(0, len(names), batch_rows):
        part = column.slice(start, batch_rows)
        writer.emit(StreamBatch(RECORD, np.full(len(part), NO_TIMESTAMP), column=part))
    writer.flush()
    rows = [row for batch in output.drain() for row in rows_of(batch)]
    return [(row.target, decode_buffer(row.payload, RECORD)) for row in rows], writer.bytes_out


@pytest.mark.parametrize("selector", ["name", lambda record: record.name])
@given(data=st.data())
def test_records_and_keys_arrive_as_without_a_dictionary(selector: Any, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.text(max_size=3), min_size=1, max_size=120))
    batch_rows, targets = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_dictionary, "RESTS", data.draw(st.integers(0, 2)))
        patch.setattr(key_dictionary, "REPEATED", data.draw(st.integers(1, 3)))
        patch.setattr(key_dictionary, "ROWS", 1)
        found, _ = sent(selector, names, batch_rows, targets)
        patch.setattr(key_dictionary, "ROWS", 10_000)
        plain, _ = sent(selector, names, batch_rows, targets)
    assert len(found) == len(plain)
    for (target, batch), (expected_target, expected) in zip(found, plain, strict=True):
        assert target == expected_target
        assert batch.column.type == RECORD.arrow_type
        assert batch.column.equals(expected.column)
        assert batch.keys is not None
        assert expected.keys is not None
        assert batch.keys.column.equals(expected.keys.column)
        assert batch.keys.hashes.tolist() == [java_hash_code(key) for key in expected.keys.column.to_pylist()]
        assert expected.keys.encoded is None
        encoded = batch.keys.encoded
        if encoded is not None:
            assert encoded.dictionary.to_pylist() == list(dict.fromkeys(expected.keys.column.to_pylist()))
            assert encoded.dictionary_decode().equals(expected.keys.column)


def test_keys_that_repeat_take_fewer_bytes() -> None:
    few = [f"customer-{i * 7919 % 50:07}" for i in range(4096)]
    found, encoded = sent("name", few, 1024, 2)
    assert all(batch.keys is not None and batch.keys.encoded is not None for _, batch in found)
    assert encoded < 0.5 * pa.array(few).nbytes + 8 * len(few)


def test_keys_that_do_not_repeat_are_sent_as_they_are() -> None:
    found, _ = sent("name", [f"customer-{i:07}" for i in range(4096)], 1024, 2)
    assert all(batch.keys is not None and batch.keys.encoded is None for _, batch in found)


def test_buffers_rest_after_one_whose_keys_did_not_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_dictionary, "RESTS", 2)
    dictionary = key_dictionary.KeyDictionary()
    few, many = ["a"] * 1000, [str(i) for i in range(1000)]
    found = [encodes(dictionary, names) for names in (few, few, many, few, few, few)]
    assert found == [True, True, False, False, False, True]


def encodes(dictionary: key_dictionary.KeyDictionary, names: list[str], **metadata: str) -> bool:
    metadata = {"key_type": json.dumps(Types.STRING().to_json()), "key_fields": "1", **metadata}
    hashes = pa.array(np.zeros(len(names), dtype=np.int32))
    columns = {"value": RECORD.to_arrow(list(enumerate(names))), "hash": hashes}
    return "hash" not in dictionary.encode(pa.RecordBatch.from_pydict(columns, metadata=metadata)).schema.names


def test_keys_that_seldom_repeat_are_not_looked_at() -> None:
    """Nor do buffers rest after them."""
    dictionary, names = key_dictionary.KeyDictionary(), [str(i) for i in range(1000)]
    assert not encodes(dictionary, names, seldom_repeat="1")
    assert encodes(dictionary, ["a"] * 1000)


@pytest.mark.parametrize("seldom", [False, True])
def test_who_emits_keys_says_whether_they_seldom_repeat(seldom: bool) -> None:
    keys = pa.array(["a"] * key_dictionary.ROWS)
    hashes = np.full(len(keys), java_hash_code("a"), dtype=np.int32)
    partitioner, output = StreamPartitioner(PartitionerKind.HASH, "name"), TaskOutput()
    writer = RecordWriter(JobEdge(0, "before", "behind", 0, partitioner, RECORD), 0, 1, 128, output)
    column = KeyColumn(Types.STRING(), keys, hashes, seldom_repeat=seldom)
    sums, times = pa.array(range(len(keys))), np.zeros(len(keys), dtype=np.int64)
    writer.emit(StreamBatch(Types.LONG(), times, column=sums, keys=column, combined=True))
    writer.flush()
    (row,) = (row for batch in output.drain() for row in rows_of(batch))
    found = decode_buffer(row.payload, RECORD).keys
    assert found is not None and found.column.equals(keys) and found.hashes.tolist() == hashes.tolist()
    assert (found.encoded is None) == seldom
