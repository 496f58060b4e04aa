from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.state.columns import VariableColumn, make_column

STRUCT = pa.struct([pa.field("n", pa.int32()), pa.field("s", pa.string()), pa.field("f", pa.float64())])
VALUES = {
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=3),
    pa.list_(pa.int64()): st.lists(st.integers(0, 3), max_size=2),
    STRUCT: st.fixed_dictionaries(
        {
            "n": st.one_of(st.none(), st.integers(0, 9)),
            "s": st.one_of(st.none(), st.text(max_size=2)),
            "f": st.just(0.5),
        }
    ),
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
@given(data=st.data())
def test_against_a_dict(kind, data):
    value = st.one_of(st.none(), VALUES[kind])
    column, model, size = make_column(kind), {}, 0
    for _ in range(data.draw(st.integers(1, 6))):
        size += data.draw(st.integers(0, 5))
        column.grow(size)
        if size:
            puts = data.draw(st.lists(st.tuples(st.integers(0, size - 1), value), max_size=8))
            cells = np.array([cell for cell, _ in puts], dtype=np.int64)
            column.put(cells, pa.array([v for _, v in puts], type=kind))
            model.update(puts)
        asked = list(range(size)) * 2
        taken = column.take(np.array(asked, dtype=np.int64))
        assert taken.type == kind
        assert taken.to_pylist() == [model.get(cell) for cell in asked]


def test_what_is_out_of_date_is_dropped():
    column = VariableColumn(pa.string())
    column.grow(100)
    cells = np.arange(100)
    for i in range(200):
        column.put(cells, pa.array([f"{i}/{cell}" for cell in range(100)]))
    assert column.take(cells).to_pylist() == [f"199/{cell}" for cell in range(100)]
    assert sum(map(len, column._chunks)) <= 2 * 100 + 1024
    assert len(column._chunks) < 10
