from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.state.columns import NumberColumn, SharedColumn, VariableColumn, make_column

STRUCT = pa.struct([pa.field("n", pa.int32()), pa.field("s", pa.string()), pa.field("f", pa.float64())])
PAIR = Types.TUPLE([Types.LONG(), Types.DOUBLE()])
ODD = [True, 2**70, 0.5, None, "1"]
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


@given(data=st.data())
def test_cells_that_share_a_value_against_a_dict(data):
    """Lists of numbers, which grow in place. A part of some cells that share a list gets a number."""
    column, model, size = SharedColumn(Types.LIST(Types.LONG())), {}, 0
    for step in range(data.draw(st.integers(1, 12))):
        size += data.draw(st.integers(0, 3))
        column.grow(size)
        some = np.array(sorted(data.draw(st.sets(st.integers(0, max(size - 1, 0)), max_size=size))), dtype=np.int64)
        match data.draw(st.sampled_from(["add", "drop", "keep", "put", "alone"])) if len(some) else "nothing":
            case "add":
                # Cells that hold nothing share what is added; so do some of those that share a list.
                places, halves = column.places(some), data.draw(st.integers(0, 1)) * some % 2
                known, parts = np.unique(np.stack([places, halves]), axis=1, return_inverse=True)
                for place in column.divide(some, parts.reshape(-1), known[0]).tolist():
                    if column.values[place] is None:
                        column.values[place] = []
                    column.values[place].append(step)
                column.valid[some] = True
                model.update({cell: [*model.get(cell, []), step] for cell in some.tolist()})
            case "drop":
                column.drop(np.append(some, some[:1]))
                model = {cell: value for cell, value in model.items() if cell not in some}
            case "keep":
                column.keep(some)
                size, model = len(some), {i: model[cell] for i, cell in enumerate(some.tolist()) if cell in model}
            case "put":
                column.put(np.append(some, some[:1]), pa.array([[0]] * len(some) + [[1]]))
                model.update({cell: [0] for cell in some.tolist()} | {int(some[0]): [1]})
            case "alone":
                for place, cell in zip(column.alone(np.append(some, some[:1])).tolist(), some.tolist(), strict=False):
                    column.values[place] = [*(column.values[place] or []), step]
                    model[cell] = [*model.get(cell, []), step]
                column.valid[some] = True
        asked = np.arange(size)
        assert column.get(asked) == [column.get_one(cell) for cell in range(size)]
        assert column.take(asked).to_pylist() == [model.get(cell) for cell in range(size)]
        assert column.has(asked).tolist() == [cell in model for cell in range(size)]
    assert len([value for value in column.values if value is not None]) <= len(model)


@given(data=st.data())
def test_numbers_against_a_dict(data):
    """Pairs of numbers, which cells may share, until one has another kind of number."""
    number = st.one_of(st.integers(-9, 9), data.draw(st.sampled_from([st.integers(-9, 9), st.sampled_from(ODD)])))
    column, model, size = data.draw(st.sampled_from([NumberColumn, SharedColumn]))(PAIR), {}, 0
    for _ in range(data.draw(st.integers(1, 12))):
        size += data.draw(st.integers(0, 3))
        column.grow(size)
        some = np.array(sorted(data.draw(st.sets(st.integers(0, max(size - 1, 0)), max_size=size))), dtype=np.int64)
        value = data.draw(number), data.draw(st.floats(allow_nan=False))
        match data.draw(st.sampled_from(["set", "drop", "keep", "put", "alone"])) if len(some) else "nothing":
            case "set":
                known, parts = np.unique(column.places(some), return_inverse=True)
                places = column.divide(some, parts, known) if isinstance(column, SharedColumn) else known
                for _, held, at in column.changing(places, np.append(parts, 0)):
                    for place in at:
                        held[place] = value
                column.sync(some)
                model.update(dict.fromkeys(some.tolist(), value))
            case "drop":
                column.drop(np.append(some, some[:1]))
                model = {cell: value for cell, value in model.items() if cell not in some}
            case "keep":
                column.keep(some)
                size, model = len(some), {i: model[cell] for i, cell in enumerate(some.tolist()) if cell in model}
            case "put":
                column.put(np.append(some, some[:1]), PAIR.to_arrow([(0, 1.0)] * len(some) + [(2, 3.0)]))
                model.update(dict.fromkeys(some.tolist(), (0, 1.0)) | {int(some[0]): (2, 3.0)})
            case "alone":
                for place, cell in zip(column.alone(some).tolist(), some.tolist(), strict=True):
                    column.values[place] = model[cell] = cell, 0.5
                column.valid[some] = True
        asked = np.arange(size)
        assert repr(column.get(asked)) == repr([model.get(cell) for cell in range(size)])
        assert column.has(asked).tolist() == [cell in model for cell in range(size)]
