"""Packed columns have the values of the columns that were packed, in fewer bytes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.state.files.packed_columns import SortKeyColumn, pack, pack_rows, packing_of

BOUNDS = {pa.int32(): (-(2**31), 2**31 - 1), pa.int64(): (-(2**63), 2**63 - 1), pa.uint64(): (0, 2**64 - 1)}


@st.composite
def integers(draw: st.DrawFn, rows: int) -> pa.Array[Any]:
    """Draws a column of integers, with any distance between the smallest and the largest."""
    kind = draw(st.sampled_from([*BOUNDS]))
    low, high = BOUNDS[kind]
    base = draw(st.integers(low, high))
    values = st.integers(base, min(high, base + 2 ** draw(st.integers(0, 64))))
    return pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array[Any]:
    """Draws a column of integers, of texts, or of structs of such columns."""
    rows = draw(st.integers(0, 20))
    texts = st.lists(st.none() | st.text(max_size=3), min_size=rows, max_size=rows).map(
        lambda each: pa.array(each, pa.string())
    )
    leaves = integers(rows) | texts

    def struct(of: list[Any], missing: list[bool]) -> pa.Array[Any]:
        return pa.StructArray.from_arrays(of, [f"f{i}" for i in range(len(of))], mask=pa.array(missing, pa.bool_()))

    missing = st.lists(st.booleans(), min_size=rows, max_size=rows)
    inner = st.builds(struct, st.lists(leaves, min_size=1, max_size=2), missing)
    return draw(leaves | st.builds(struct, st.lists(leaves | inner, min_size=1, max_size=3), missing))


def stored(column: pa.Array[Any]) -> pa.Array[Any]:
    """Returns a column as it comes back from a file."""
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([column], schema=pa.schema([pa.field("c", column.type)]))
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_file(sink.getvalue()).get_batch(0).column(0)


@given(column=columns(), data=st.data())
def test_a_packed_column_has_the_values_it_had_before(column: pa.Array[Any], data: st.DataObject) -> None:
    packed = stored(pack(column))
    packing = packing_of(packed.type)
    start = data.draw(st.integers(0, len(column)))
    if packing is None:
        assert packed.equals(column)
        return
    assert packing.kind == column.type
    found = packing.unpack(packed)
    assert found.type == column.type
    assert found.to_pylist() == column.to_pylist()
    assert packing.unpack(packed.slice(start)).to_pylist() == column.slice(start).to_pylist()


@pytest.mark.parametrize(
    ("largest", "size"), [(255, 1), (256, 2), (2**16, 4), (2**32, 5), (2**40, 6), (2**48 - 1, 6), (2**48, 8)]
)
def test_integers_take_as_few_bytes_as_their_differences_need(largest: int, size: int) -> None:
    column = pa.array(-(10**15) + np.linspace(0, largest, 50_000).astype(np.int64))
    assert pack(column).nbytes == size * len(column)


HASHES = st.sampled_from([0, 1, 2, 255, 256, 2**31, 2**32 - 1])


@given(
    first=st.integers(0, 2000),
    keys=st.lists(st.tuples(st.integers(0, 600), HASHES), max_size=30),
    sought=st.lists(st.tuples(st.integers(-1, 601), st.sampled_from([0, 1, 3, 256, 2**31])), max_size=10),
    data=st.data(),
)
def test_packed_sort_keys_are_found_like_others(
    first: int, keys: list[tuple[int, int]], sought: list[tuple[int, int]], data: st.DataObject
) -> None:
    own = np.array(sorted((first + 1 + group << 32) + hashed for group, hashed in keys), dtype=np.uint64)
    looked_for = np.array([(first + 1 + group << 32) + hashed for group, hashed in [*sought, *keys]], dtype=np.uint64)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(own))] * 2)))
    bound = st.builds(lambda group, hashed: (group << 32) + hashed, st.integers(first, first + 603), HASHES)
    bounds = data.draw(st.lists(bound, max_size=8))
    batch = pa.RecordBatch.from_arrays([pa.array(own)], names=["sort_key"])
    plain, packed = (SortKeyColumn(each.column("sort_key")) for each in (batch, pack_rows(batch)))
    assert len(packed) == len(own)
    for each, few in itertools.product((plain, packed), (len(looked_for), 1)):  # packed ones, if few are looked for
        some = looked_for[-few:]
        expected = {(i, j - start) for i, key in enumerate(some) for j in range(start, stop) if own[j] == key}
        wanted, rows = each.find(some, start, stop)
        assert set(zip(wanted.tolist(), rows.tolist(), strict=True)) == expected
        assert len(wanted) == len(expected)
    for each in (plain, packed):
        assert [each[i] for i in range(len(own))] == own.tolist()
        for sort_key in bounds:
            below = sum(int(own[i]) < sort_key for i in range(start, stop))
            assert each.place(sort_key, start, stop) == start + below


@pytest.mark.parametrize("rows", [20_000, 20_015])  # with lines that are full, and with a rest
@pytest.mark.parametrize("spread", [3, 1 << 20])  # with rows that share a sort key, and without
def test_the_few_rows_that_are_sought_in_a_large_run_are_found(rows: int, spread: int) -> None:
    random = np.random.default_rng(rows + spread)
    own = np.sort(random.integers(1, rows * spread // 8, rows, dtype=np.uint64)) * np.uint64(7)
    batch = pa.RecordBatch.from_arrays([pa.array(own)], names=["sort_key"])
    near = own[[0, 1, 15, 16, -17, -16, -15, -2, -1]]
    for start, stop in ((0, rows), (1, rows - 1), (37, rows - 3)):
        for each in (batch, pack_rows(batch)):
            column = SortKeyColumn(each.column("sort_key"))
            for _ in range(100):
                some = np.concatenate([random.choice(near, 5), random.choice(own, 15)])
                some = np.sort(some + random.integers(0, 2, len(some), dtype=np.uint64))
                wanted, found = column.find(some, start, stop)
                expected = [np.flatnonzero(own[start:stop] == key).tolist() for key in some]
                assert [found[wanted == i].tolist() for i in range(len(some))] == expected
            assert column._marks is not None
