"""``map_batch()`` and ``filter_batch()``: stateless functions of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Row, Types, WatermarkStrategy
from dagster_flinkpy.datastream import ProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError, UserFunctionError
from dagster_flinkpy.testing import run_local
from tests.examples import examples

SALE = Types.ROW_NAMED(["at", "amount"], [Types.LONG(), Types.LONG()])
DOUBLED = Types.ROW_NAMED(["amount", "twice"], [Types.LONG(), Types.LONG()])


class WithTime(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timestamp()


def sales(env: StreamExecutionEnvironment, pairs: list[tuple[int, int | None]]) -> Any:
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    return env.from_collection([Row(*p) for p in pairs], SALE).assign_timestamps_and_watermarks(by_time)


def doubled(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"twice": pc.multiply(batch["amount"], 2), "amount": batch["amount"]})


@settings(max_examples=examples(20))
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99) | st.none()), min_size=1, max_size=30))
def test_like_map_and_filter_of_records_event_time_included(pairs):
    env = StreamExecutionEnvironment.get_execution_environment()
    records = sales(env, pairs)
    columns = records.filter_batch(lambda batch: pc.less(batch["amount"], 50)).map_batch(doubled, DOUBLED)
    rows = records.filter(lambda sale: sale.amount is not None and sale.amount < 50)
    rows = rows.map(lambda sale: Row(sale.amount, 2 * sale.amount), DOUBLED)
    found, expected = run_local(env, columns.process(WithTime()), rows.process(WithTime()))
    assert found == expected


def test_plain_values_and_numpy():
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_collection([1, 2, 3], Types.LONG())
    odd = numbers.filter_batch(lambda batch: batch["value"].to_numpy() % 2 == 1)
    squares = odd.map_batch(lambda batch: pa.table({"n": pc.multiply(batch["value"], batch["value"])}), Types.LONG())
    none = numbers.filter_batch(lambda batch: np.zeros(len(batch), dtype=bool))
    assert run_local(env, squares, none) == [[1, 9], []]


WRONG = {
    "rows": (lambda s: s.map_batch(lambda b: doubled(b).slice(1), DOUBLED), "1 rows for 2 records.*filter_batch"),
    "no table": (lambda s: s.map_batch(lambda b: 5, DOUBLED), "returned 5; it must return a record batch or a table"),
    "fields": (lambda s: s.map_batch(lambda b: b, DOUBLED), "got the columns"),
    "a column": (
        lambda s: s.map_batch(lambda b: b["amount"], DOUBLED),
        r"<pyarrow\.lib\.\w+>; it must return a record",
    ),
    "no booleans": (lambda s: s.filter_batch(lambda b: b["amount"]), "a column of int64; it must return one of bool"),
    "no mask": (lambda s: s.filter_batch(lambda b: [True]), "must return an Arrow or numpy array"),
    "few": (lambda s: s.filter_batch(lambda b: np.ones(1, dtype=bool)), "1 booleans for 2 records"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_result_names_the_operator(case):
    env = StreamExecutionEnvironment.get_execution_environment()
    call, message = WRONG[case]
    stream = call(sales(env, [(1, 2), (3, 4)])).uid("batches")
    with pytest.raises(TypeMismatchError, match=f"operator 'batches': .*{message}"):
        run_local(env, stream)


def test_an_exception_names_the_operator():
    for call in (lambda s, f: s.map_batch(f, DOUBLED), lambda s, f: s.filter_batch(f)):
        env = StreamExecutionEnvironment.get_execution_environment()
        stream = call(sales(env, [(1, 2)]), lambda batch: batch["absent"]).uid("batches")
        with pytest.raises(UserFunctionError, match="batches"):
            run_local(env, stream)


def test_arguments():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = sales(env, [(1, 2)])
    with pytest.raises(ConfigurationError, match=r"map_batch\(\) needs a function"):
        stream.map_batch(5, DOUBLED)
    with pytest.raises(ConfigurationError, match=r"map_batch\(\) needs an output_type"):
        stream.map_batch(doubled, Types.PICKLED_BYTE_ARRAY())
    with pytest.raises(ConfigurationError, match=r"filter_batch\(\) needs a function"):
        stream.filter_batch(ProcessFunction)
