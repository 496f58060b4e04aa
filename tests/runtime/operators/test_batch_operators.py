"""Vectorised process functions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import KeyedBatchFunction, KeyedProcessFunction, ProcessFunction
from dagster_flinkpy.datastream.state import ListStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError, UserFunctionError
from dagster_flinkpy.runtime.task import operator_task
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, collect_all, collect_graph, collected, random_order
from tests.runtime.programs import environment, events

TOTAL = ValueStateDescriptor("total", Types.LONG())
OUT = Types.ROW_NAMED(["key", "total"], [Types.STRING(), Types.LONG()])


class Totals(KeyedBatchFunction):
    """Emits the total of each key once per batch, which has one record here."""

    def process_batch(self, keys: Any, batch: pa.RecordBatch, state: Any) -> Any:
        sums = pa.table({"key": keys, "value": batch.column("value")}).group_by("key", use_threads=False)
        sums = sums.aggregate([("value", "sum")])
        distinct = sums.column("key").combine_chunks()
        before = pc.fill_null(state.lookup(TOTAL, distinct), 0)
        total = pc.add(before, sums.column("value_sum").combine_chunks())
        state.update(TOTAL, distinct, total)
        # A total of ten or more starts again.
        done = pc.greater_equal(total, 10)
        state.delete(TOTAL, distinct.filter(done))
        return pa.table({"total": total, "key": distinct})


class TotalsPerRecord(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        total = (self.total.value() or 0) + value.value
        self.total.update(total if total < 10 else None)
        yield ctx.get_current_key(), total


@settings(max_examples=examples(20))
@given(
    seed=st.integers(0, 10**6),
    forms=st.lists(st.tuples(st.booleans(), st.integers(1, 3)), min_size=1, max_size=5),
)
def test_the_form_can_change_between_epochs(tmp_path_factory, seed, forms):
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 30))
    keys, values = random.choice(list("abcde"), n).tolist(), random.integers(0, 6, n).tolist()
    records = list(zip(keys, range(n), values, strict=True))

    def program(vectorised: bool) -> Any:
        keyed = events(environment(), records, per_epoch=6, batch_size=1).key_by("key")
        stream = keyed.process_batch(Totals(), OUT) if vectorised else keyed.process(TotalsPerRecord(), OUT)
        return collect_graph(stream.uid("totals"))

    def run(forms: list[tuple[bool, int]]) -> list[Any]:
        folder, rows, epoch, finished = tmp_path_factory.mktemp("job"), [], 0, False
        while not finished:
            vectorised, parallelism = forms[min(epoch, len(forms) - 1)]
            order = random_order(epoch)
            with HarnessAttempt(program(vectorised), folder, order=order, parallelism=parallelism) as attempt:
                if attempt.restored is not None:
                    attempt.commit_restored()
                if not attempt.finished:
                    attempt.run_epoch()
                    rows.append(sorted(map(tuple, collected(attempt.graph, attempt.collected))))
                finished = attempt.finished
            epoch += 1
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator_task, "_JOINED_SIZE", 0)
        assert run(forms) == run([(False, parallelism) for _, parallelism in forms])


class Given(KeyedBatchFunction):
    """Uses a plain function as ``process_batch``."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def process_batch(self, keys: Any, batch: Any, state: Any) -> Any:
        return self.function(keys, batch, state)


class Times(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value.total, ctx.timestamp()


RECORDS = [("a", 3, 1), ("b", 9, 2), ("a", 5, 3)]


def run(function: Any, folder: Path, output_type: Any = OUT) -> list[Any]:
    keyed = events(environment(), RECORDS, batch_size=10).key_by("key")
    return collect_all(keyed.process_batch(Given(function), output_type).uid("op"), folder)


def times(function: Any, folder: Path) -> list[Any]:
    keyed = events(environment(), RECORDS, batch_size=10).key_by("key")
    stream = keyed.process_batch(Given(function), OUT).uid("op").process(Times(), Types.TUPLE([Types.LONG()] * 2))
    return collect_all(stream, folder)


def test_as_many_rows_as_records_keep_their_timestamps(tmp_path):
    def same(keys: Any, batch: Any, state: Any) -> Any:
        return pa.record_batch({"key": keys, "total": batch.column("value")})

    assert times(same, tmp_path) == [(1, 3), (2, 9), (3, 5)]


def test_any_other_number_of_rows_gets_the_newest(tmp_path):
    def some(keys: Any, batch: Any, state: Any) -> Any:
        whole = pa.table({"key": keys, "total": batch.column("value")})
        yield whole.slice(0, 1)
        yield whole.slice(0, 0)
        yield whole

    assert times(some, tmp_path) == [(1, 9), (1, 3), (2, 9), (3, 5)]


def test_nothing(tmp_path):
    assert run(lambda keys, batch, state: None, tmp_path) == []


def test_plain_values(tmp_path):
    stream = environment().from_collection([1, 2, 3], Types.LONG()).uid("source").key_by(lambda v: v % 2)

    def double(keys: Any, batch: Any, state: Any) -> Any:
        return pa.record_batch({"x": pc.multiply(batch.column("value"), 2)})

    stream = stream.process_batch(Given(double), Types.LONG()).uid("op")
    assert collect_all(stream, tmp_path) == [2, 4, 6]


def test_the_last_value_of_a_key_counts_and_a_null_deletes(tmp_path):
    def twice(keys: Any, batch: Any, state: Any) -> Any:
        state.update(TOTAL, keys, batch.column("value"))
        found = state.lookup(TOTAL, pa.array(["a", "b"]))
        state.update(TOTAL, pa.array(["a"]), pa.array([None], type=pa.int64()))
        return pa.record_batch({"key": pa.array(["a", "b", "a"]), "total": [*found.to_pylist(), None]}, schema=_SCHEMA)

    def check(keys: Any, batch: Any, state: Any) -> Any:
        twice(keys, batch, state)
        return pa.table({"key": ["a", "b"], "total": state.lookup(TOTAL, pa.array(["a", "b"]))})

    assert [tuple(row) for row in run(twice, tmp_path / "1")] == [("a", 3), ("b", 2), ("a", None)]
    assert [tuple(row) for row in run(check, tmp_path / "2")] == [("a", None), ("b", 2)]


_SCHEMA = pa.schema([("key", pa.string()), ("total", pa.int64())])


def table(**columns: Any) -> Any:
    return lambda keys, batch, state: pa.table(columns)


WRONG = {
    "a missing column": (table(key=["a"]), r"operator 'op': declared the fields \['key', 'total'\], got .*\['key'\]"),
    "another type": (table(key=["a"], total=["b"]), r"operator 'op', field 'total': declared Types.LONG\(\).*'b'"),
    "a fraction": (table(key=["a"], total=[0.5]), r"field 'total'.*0.5"),
    "no table": (lambda keys, batch, state: [1], r"operator 'op': process_batch\(\) returned 1"),
    "lengths": (
        lambda keys, batch, state: state.update(TOTAL, keys, pa.array([1])),
        r"operator 'op', state 'total': update\(\) got 3 keys and 1 values",
    ),
    "the type of a value": (
        lambda keys, batch, state: state.update(TOTAL, keys, keys),
        r"operator 'op', state 'total': declared Types.LONG\(\), got string, such as 'a'",
    ),
    "the type of a key": (
        lambda keys, batch, state: state.lookup(TOTAL, pa.array([1])),
        r"operator 'op', the keys of state 'total': declared Types.STRING\(\), got int64",
    ),
    "a key that is None": (
        lambda keys, batch, state: state.lookup(TOTAL, pa.array([None], type=pa.string())),
        "a key of state 'total' is None",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_columns(tmp_path, what):
    function, message = WRONG[what]
    with pytest.raises(TypeMismatchError, match=message):
        run(function, tmp_path)


def test_a_value_out_of_range(tmp_path):
    small = Types.ROW_NAMED(["key", "total"], [Types.STRING(), Types.BYTE()])
    with pytest.raises(TypeMismatchError, match=r"field 'total': declared Types.BYTE\(\), got int64: 300 does not fit"):
        run(table(key=["a", "b"], total=[1, 300]), tmp_path, small)


def test_other_kinds_of_state(tmp_path):
    def ask(keys: Any, batch: Any, state: Any) -> Any:
        state.lookup(ListStateDescriptor("list", Types.LONG()), keys)

    with pytest.raises(ConfigurationError, match="needs a ValueStateDescriptor"):
        run(ask, tmp_path)


def test_state_is_read_of_keys_that_are_asked_for_and_kept_for_the_whole_batch(tmp_path):
    def some(keys: Any, batch: Any, state: Any) -> Any:
        touched = [state._backend.statistics.keys_touched]
        state.update(TOTAL, pa.array(["b"]), pa.array([7]))
        touched.append(state._backend.statistics.keys_touched)
        found = state.lookup(TOTAL, keys)
        touched.append(state._backend.statistics.keys_touched)
        yield pa.record_batch({"key": keys, "total": found})
        yield pa.table({"key": ["touched"] * 3, "total": touched})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ColumnarKeyedStateBackend, "make_room", lambda self: self.flush())
        rows = [tuple(row) for row in run(some, tmp_path)]
    assert rows == [("a", None), ("b", 7), ("a", None), ("touched", 0), ("touched", 1), ("touched", 2)]


def test_keys_of_another_subtask(tmp_path):
    def ask(keys: Any, batch: Any, state: Any) -> Any:
        state.lookup(TOTAL, pa.array([str(i) for i in range(100)]))

    keyed = events(environment(2), RECORDS, batch_size=10).key_by("key")
    with pytest.raises(ConfigurationError, match="belongs to key group"):
        collect_all(keyed.process_batch(Given(ask), OUT).uid("op"), tmp_path)


class AsksTooEarly(Given):
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(TOTAL)


def test_state_of_open(tmp_path):
    keyed = events(environment(), RECORDS).key_by("key")
    with pytest.raises(ConfigurationError, match="through its argument `state`"):
        collect_all(keyed.process_batch(AsksTooEarly(None), OUT).uid("op"), tmp_path)


def test_what_the_function_raises(tmp_path):
    def fail(keys: Any, batch: Any, state: Any) -> Any:
        raise KeyError("oops")

    with pytest.raises(UserFunctionError, match=r"process_batch\(\) of operator 'op'.*oops"):
        run(fail, tmp_path)


def test_declarations():
    keyed = events(environment(), RECORDS).key_by("key")
    with pytest.raises(ConfigurationError, match="KeyedBatchFunction"):
        keyed.process_batch(TotalsPerRecord(), OUT)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a column"):
        keyed.process_batch(Totals(), Types.PICKLED_BYTE_ARRAY())
