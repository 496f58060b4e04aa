from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.state.files.cache import Rows, Run, take_all
from dagster_flinkpy.state.files.packed_columns import pack_rows

_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(0, 1000),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=3),
    pa.timestamp("ms"): st.integers(0, 2**40),
}
_KINDS = st.recursive(
    st.sampled_from([*_VALUES]),
    lambda kinds: st.lists(kinds, min_size=1, max_size=3).map(
        lambda fields: pa.struct([(f"f{i}", kind) for i, kind in enumerate(fields)])
    ),
    max_leaves=4,
)


def _values(kind: Any, nulls: bool) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        own = st.fixed_dictionaries({field.name: _values(field.type, nulls) for field in kind})
    else:
        own = _VALUES[kind]
    return st.none() | own if nulls else own


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[Run, np.ndarray[Any, Any]]]:
    """Draws runs whose column ``c`` is stored in any way, each with some of its rows."""
    kind = draw(_KINDS)
    found = []
    for _ in range(draw(st.integers(1, 4))):
        column = pa.array(draw(st.lists(_values(kind, draw(st.booleans())), min_size=1, max_size=9)), kind)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(np.arange(len(column), dtype=np.uint64)), column],
            schema=pa.schema([pa.field("sort_key", pa.uint64(), nullable=False), pa.field("c", kind)]),
        ).slice(start := draw(st.integers(0, len(column) - 1)))
        run = Run(Rows(pack_rows(batch) if draw(st.booleans()) else batch))
        if draw(st.booleans()):
            run = run.within(range(start + draw(st.integers(0, len(batch) - 1)), len(column)))
        found.append((run, np.array(draw(st.lists(st.integers(0, len(run) - 1), max_size=5)), dtype=np.int64)))
    return found


@given(runs())
def test_rows_of_several_runs_are_taken_as_from_each(found: list[tuple[Run, np.ndarray[Any, Any]]]) -> None:
    taken = take_all(found, "c")
    expected = [run.column("c").take(pa.array(rows)) for run, rows in found]
    assert taken.type == expected[0].type
    assert repr(taken.to_pylist()) == repr(pa.concat_arrays(expected).to_pylist())  # NaN, and -0.0
