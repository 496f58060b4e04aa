from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.runtime.shuffle.wire import Kind, TaskOutput, decode_buffer, encode_buffer, rows_of

EVENT = Types.ROW_NAMED(["name", "time", "seq"], [Types.STRING(), Types.LONG(), Types.LONG()])
MIB = 1 << 20


def test_buffers_that_hold_all_columns_are_read() -> None:
    """The state of channels may contain such buffers, written before keys and times were left out."""
    columns = {"value": EVENT.to_arrow([("a", 5, 1)]), "timestamp": [5], "key": ["a"]}
    batch = pa.RecordBatch.from_pydict(
        {**columns, "hash": pa.array([97], pa.int32())}, metadata={"key_type": json.dumps(Types.STRING().to_json())}
    )
    decoded = decode_buffer(encode_buffer(batch), EVENT)
    assert decoded.keys is not None
    assert (decoded.timestamps.tolist(), decoded.keys.column.to_pylist()) == ([5], ["a"])


@given(
    st.lists(st.none() | st.text(max_size=9), max_size=40),
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from([pa.string(), pa.dictionary(pa.int32(), pa.string())]),
)
def test_a_buffer_is_filled_to_its_end(values: list[str | None], start: int, rows: int, kind: pa.DataType) -> None:
    batch = pa.record_batch({"a": pa.array(values, pa.string()).cast(kind), "b": pa.array(range(len(values)))})
    batch = batch.slice(start, rows)
    expected = pa.BufferOutputStream()
    with pa.ipc.new_stream(expected, batch.schema) as writer:
        writer.write_batch(batch)
    assert encode_buffer(batch).equals(expected.getvalue())


def test_much_output_becomes_several_batches() -> None:
    output = TaskOutput()
    for i in range(40):
        output.add(0, 0, 0, i, Kind.BUFFER, bytes([i]) * MIB)
    assert output.ready
    batches = list(output.drain())
    assert [batch.num_rows for batch in batches] == [8] * 5
    rows = [row for batch in batches for row in rows_of(batch)]
    assert [row.seq for row in rows] == list(range(40))
    assert all(row.payload.to_pybytes() == bytes([row.seq]) * MIB for row in rows)
    assert list(output.drain()) == []
    assert not output.ready


def test_the_digest_leaves_out_what_differs_between_attempts() -> None:
    output = TaskOutput()
    output.add(0, 0, 0, 0, Kind.BUFFER, b"data")
    before = output.digest
    for kind in (Kind.BARRIER, Kind.ACK, Kind.FAILURE, Kind.CANCEL_BARRIER):
        output.add(0, 0, 0, 1, kind, b"uuid")
    assert output.digest == before
