from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common import Instant, Row, RowKind, TypeInformation, Types
from dagster_flinkpy.common.text import to_printed, to_text

PAIR = Types.ROW([Types.INT(), Types.STRING()])

# tests/pyflink/expected/print_format.txt has what PyFlink prints. These cases are the ones it cannot print reliably.
CASES: list[tuple[TypeInformation, Any, str]] = [
    (Types.TUPLE([Types.INT(), Types.STRING()]), (1, None), "(1,null)"),
    (Types.LIST(PAIR), [Row(1, "a"), None], "[+I[1, a], null]"),
    (PAIR, Row.of_kind(RowKind.DELETE, 1, "a"), "-D[1, a]"),
    (Types.MAP(Types.STRING(), Types.DOUBLE()), {"a": 1e7, "b": 0.5}, "{a=1.0E7, b=0.5}"),
    (Types.DOUBLE(), 1e-3, "0.001"),
    (Types.DOUBLE(), 9.5e-4, "9.5E-4"),
    (Types.DOUBLE(), -math.inf, "-Infinity"),
    (Types.DOUBLE(), -1.0e22, "-1.0E22"),
    (Types.DOUBLE(), 5e-324, "4.9E-324"),
    (Types.FLOAT(), 0.1, "0.1"),
    (Types.BOOLEAN(), True, "true"),
    (Types.BIG_DEC(), Decimal("1.5"), "1.5"),
    (Types.PICKLED_BYTE_ARRAY(), [True, None], "[True, None]"),
    (Types.INSTANT(), Instant(0, 0), "1970-01-01T00:00:00Z"),
    (Types.INSTANT(), Instant(1_700_000_000, 120_000_000), "2023-11-14T22:13:20.120Z"),
    (Types.INSTANT(), Instant(-1, 6_000), "1969-12-31T23:59:59.000006Z"),
    (Types.INSTANT(), Instant(5, 1), "1970-01-01T00:00:05.000000001Z"),
]


@pytest.mark.parametrize(("kind", "value", "text"), CASES)
def test_values_are_written_as_java_does(kind: TypeInformation, value: Any, text: str) -> None:
    assert to_text(kind, value) == text


def test_rows_are_printed_by_python_with_their_kind() -> None:
    assert to_printed(PAIR, Row.of_kind(RowKind.UPDATE_BEFORE, 1, None)) == "-U[1,None]"
    parts = Types.ROW([Types.LIST(Types.INT()), Types.MAP(Types.STRING(), Types.LONG())])
    assert to_printed(parts, Row([np.int32(1), 2], {"a": np.int64(3)})) == "+I[[1, 2],{'a': 3}]"
    assert to_printed(PAIR, None) == "null"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_read_back(value: float) -> None:
    assert float(to_text(Types.DOUBLE(), value)) == value


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_float_is_read_back(value: float) -> None:
    assert np.float32(to_text(Types.FLOAT(), value)) == np.float32(value)


def test_a_value_without_type_is_printed_by_python() -> None:
    assert (to_printed(Types.PICKLED_BYTE_ARRAY(), None), to_printed(Types.STRING(), None)) == ("None", "null")
