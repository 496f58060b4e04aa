"""Numbers, tuples and rows outside of Python's objects come back as they were, or are refused."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.state.number_values import NumberValues

LONG, DOUBLE = Types.LONG(), Types.DOUBLE()
ROW = Types.ROW_NAMED(["n", "f"], [LONG, DOUBLE])
KINDS = {
    LONG: lambda n, f: n,
    DOUBLE: lambda n, f: f,
    Types.TUPLE([LONG, DOUBLE]): lambda n, f: (n, f),
    ROW: lambda n, f: Row(n=n, f=f),
    Types.ROW([LONG, DOUBLE]): lambda n, f: Row(f0=n, f1=f),
}


class Level(enum.IntEnum):
    HIGH = 1


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@given(puts=st.lists(st.tuples(st.integers(0, 9), st.integers(-(2**63), 2**63 - 1), st.floats()), max_size=20))
def test_values_come_back_as_they_were(kind: Any, puts: list[tuple[int, int, float]]) -> None:
    values, model = NumberValues(kind), {}
    values.grow(10)
    for place, number, fraction in puts:
        model[place] = KINDS[kind](number, fraction)
    assert values.put(
        np.array([place for place, *_ in puts], dtype=np.int64), [KINDS[kind](*each) for _, *each in puts]
    )
    asked = np.array([*range(10), 0])
    assert list(map(repr, values.get(asked))) == [repr(model.get(place)) for place in asked.tolist()]
    assert values.has(asked).tolist() == [place in model for place in asked.tolist()]
    column = values.column(asked)
    assert column is not None and column.type == kind.arrow_type
    assert list(map(repr, kind.from_arrow(column))) == [repr(model.get(place)) for place in asked.tolist()]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (LONG, True),
        (LONG, 2**63),
        (LONG, 1.0),
        (LONG, np.int64(1)),
        (LONG, Level.HIGH),
        (LONG, None),
        (DOUBLE, 1),
        (DOUBLE, np.float64(1)),
        (Types.TUPLE([LONG, DOUBLE]), [1, 1.0]),
        (Types.TUPLE([LONG, DOUBLE]), (1,)),
        (Types.TUPLE([LONG, DOUBLE]), (1, 1.0, 1)),
        (Types.TUPLE([LONG, DOUBLE]), (1, 1)),
        (ROW, Row(1, 1.0)),
        (ROW, Row(f=1.0, n=1)),
        (ROW, Row(n=1, f=None)),
        (ROW, (1, 1.0)),
    ],
    ids=repr,
)
def test_what_would_come_back_as_something_else_is_refused(kind: Any, value: Any) -> None:
    values, good = NumberValues(kind), KINDS[kind](5, 0.5)
    values.grow(2)
    assert values.put(np.array([0, 1]), [good, good])
    assert not values.put(np.array([0, 1]), [good, value])
    assert values.get(np.array([0, 1])) == [good, good]


@pytest.mark.parametrize(("kind", "value"), [(Types.INT(), 2**31), (Types.TUPLE([LONG, Types.BYTE()]), (0, 128))])
def test_what_is_out_of_range_comes_back_but_not_as_a_column(kind: Any, value: Any) -> None:
    values = NumberValues(kind)
    values.grow(1)
    assert values.put(np.array([0]), [value])
    assert values.get(np.array([0])) == [value]
    assert values.column(np.array([0])) is None


@pytest.mark.parametrize(
    "kind", [Types.FLOAT(), Types.STRING(), Types.BOOLEAN(), Types.TUPLE([Types.STRING()]), Types.LIST(LONG)]
)
def test_types_that_have_other_values_do_not_fit(kind: Any) -> None:
    assert not NumberValues.fits(kind)
    assert NumberValues.fits(LONG)
