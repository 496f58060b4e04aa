"""Which columns of a Parquet file get dictionaries."""

from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.parquet_encodings import repeating
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext, WriterInitContext

_NESTED = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.float64()))])
_COLUMNS = {
    "number": pa.int64(),
    "with.dot": pa.string(),
    "struct": _NESTED,
    "list": pa.list_(pa.struct([("z", pa.int32())])),
    "map": pa.map_(pa.string(), pa.list_(pa.int64())),
    "flag": pa.bool_(),
}
_LISTS = st.lists(st.none() | st.integers(0, 5), max_size=3)
_ROW = st.fixed_dictionaries(
    {
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "with.dot": st.none() | st.text(max_size=2),
        "struct": st.none()
        | st.fixed_dictionaries({"x": st.none() | st.integers(0, 3), "y": st.none() | st.lists(st.floats())}),
        "list": st.none() | st.lists(st.none() | st.fixed_dictionaries({"z": st.integers(0, 9)}), max_size=3),
        "map": st.none() | st.dictionaries(st.text(max_size=1), _LISTS, max_size=3).map(lambda d: list(d.items())),
        "flag": st.none() | st.booleans(),
    }
)


def test_columns_that_repeat_have_dictionaries() -> None:
    rows = range(1000)
    table = pa.table(
        {
            "unique": [float(n) for n in rows],
            "half": [n // 2 for n in rows],
            "more": [n % 501 for n in rows],
            "nulls": pa.array([None] * 1000, pa.string()),
            "of": pa.array([{"x": 1, "y": [float(n), 0.5]} for n in rows], _NESTED),
            "map": pa.array([[("a", n)] for n in rows], pa.map_(pa.string(), pa.int64())),
        }
    )
    assert repeating(table) == ["half", "nulls", "of.x", "map.key_value.key"]
    assert repeating(table.slice(500)) == ["half", "nulls", "of.x", "map.key_value.key"]
    assert repeating(pa.table({"late": [*range(8192), *[0] * 8192]})) == []


@given(rows=st.lists(_ROW, max_size=20), start=st.integers(0, 10))
def test_any_table_is_written_and_read(rows: list[dict[str, object]], start: int) -> None:
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(_COLUMNS.items()))).slice(start)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, use_dictionary=repeating(table))
    assert pq.read_table(sink.getvalue()).cast(table.schema).to_pylist().__repr__() == table.to_pylist().__repr__()


def test_a_sink_decides_by_the_first_rows_of_each_file(tmp_path: Path) -> None:
    row = Types.ROW_NAMED(["id", "kind"], [Types.LONG(), Types.STRING()])
    sink = ParquetSink(str(tmp_path), sort_by=["id"])
    writer = sink.create_writer(
        WriterInitContext("job", "sink", subtask=0, fencing_token=1, checkpoint_id=1, execution="e"), row
    )
    writer.write(pa.array([{"id": -n, "kind": "ab"[n % 2]} for n in range(100)], row.arrow_type))
    committer = sink.create_committer(CommitterInitContext("job", "sink", 1))
    committer.commit([CommitRequest(1, 0, committable) for committable in writer.prepare_commit()])
    [file] = tmp_path.glob("*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    assert [group.column(i).has_dictionary_page for i in range(2)] == [False, True]
    assert pq.read_table(file).column("id").to_pylist() == list(range(-99, 1))
