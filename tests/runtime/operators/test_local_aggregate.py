"""Compares aggregations in two phases with the same ones in one phase."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK, WatermarkStrategy
from dagster_flinkpy.datastream import OutputTag, RuntimeExecutionMode
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.program.job_graph import PartitionerKind, StreamPartitioner
from dagster_flinkpy.datastream.window import (
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.operators import local_aggregate
from dagster_flinkpy.runtime.operators.local_aggregate import LocalAggregate, _runs, local_aggregate_of
from dagster_flinkpy.runtime.operators.windows.window_operator import WindowOperator
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.runtime.shuffle.wire import Kind
from dagster_flinkpy.runtime.task.outputs import CombiningOutput
from dagster_flinkpy.state.layout import distinct_rows
from tests.examples import examples
from tests.runtime.harness import collect_all, random_order
from tests.runtime.operators.test_aggregate_operators import (
    EVENT,
    RECORDS,
    RUNS,
    Run,
    one_phase,
    run,
    some_records,
    source,
    stamped,
)
from tests.runtime.programs import environment
from tests.runtime.shuffle.test_record_writer import Shuffle

ALIGNED = st.one_of(
    st.builds(TumblingEventTimeWindows, st.integers(1, 20)),
    st.builds(lambda slide, panes: SlidingEventTimeWindows(slide * panes, slide), st.integers(1, 7), st.integers(1, 4)),
)
FOLDS = st.sampled_from(["sum", "min", "max", "count", "mean"])


@example(  # a record that closes late overtook those that were held
    records=some_records(1217),
    epochs=1,
    assigner=SlidingEventTimeWindows(4, 2),
    fold="sum",
    field="value",
    lateness=0,
    side=False,
    rows=4,
)
@settings(max_examples=examples(10))
@given(
    records=RECORDS,
    epochs=st.integers(1, 5),
    assigner=ALIGNED,
    fold=FOLDS,
    field=st.sampled_from(["value", "amount"]),
    lateness=st.sampled_from([0, 7]),
    side=st.booleans(),
    rows=st.sampled_from([4, 1000]),
)
def test_one_channel(records, epochs, assigner, fold, field, lateness, side, rows):
    """With one channel, all is equal: which records are late, which windows fire again, and the other fields."""
    exact = [(*record[:3], float(i % 7), record[4]) for i, record in enumerate(records)]

    def program():
        tag = OutputTag("late", EVENT)
        windowed = source(exact, 13, 5).key_by("key").window(assigner).allowed_lateness(lateness)
        windowed = windowed.side_output_late_data(tag)
        stream = (windowed.count() if fold == "count" else getattr(windowed, fold)(field)).uid("windows")
        return stamped(stream.get_side_output(tag) if side else stream)

    runs = [Run(1, True)] * epochs
    with one_phase():
        expected = run(program, runs, random_order(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_aggregate, "ROWS", rows)
        patch.setattr(local_aggregate, "TRIED", rows * 2)
        found = run(program, runs, random_order(0))
    assert [sorted(each) for each in found] == [sorted(each) for each in expected]


@settings(max_examples=examples(10))
@given(
    records=RECORDS,
    runs=RUNS,
    assigner=ALIGNED,
    fold=FOLDS,
    key=st.sampled_from(["key", ("key", "note"), "amount"]),
    lateness=st.sampled_from([0, 7]),
    order=st.integers(0, 3),
)
def test_no_record_late(records, runs, assigner, fold, key, lateness, order):
    """Whatever the order of channels, and however often the parallelism changes, no record is lost or counted twice."""

    def program():
        windowed = source(records, 13, 1000).key_by(key).window(assigner).allowed_lateness(lateness)
        stream = windowed.count() if fold == "count" else getattr(windowed, fold)("value")
        fields = stream.get_type().get_field_names()
        shown = {"value", "count", "mean", "window_start", "window_end", *((key,) if isinstance(key, str) else key)}
        wanted = [i for i, name in enumerate(fields) if name in shown]
        kept = stream.uid("windows").map(lambda row: repr([row[i] for i in wanted]), Types.STRING()).uid("fields")
        return stamped(kept)

    with one_phase():
        expected = run(program, runs, random_order(order))
    found = run(program, [replace(each, in_columns=True) for each in runs], random_order(order))
    assert sorted(chain.from_iterable(found)) == sorted(chain.from_iterable(expected))


@settings(max_examples=examples(10))
@given(
    records=RECORDS, runs=RUNS, assigner=st.builds(TumblingEventTimeWindows, st.integers(1, 20)), seed=st.integers(0, 9)
)
def test_each_record_is_in_a_window_or_late(records, runs, assigner, seed):
    def program():
        tag = OutputTag("late", EVENT)
        counts = source(records, 13, 3).key_by("key").window(assigner).side_output_late_data(tag).count().uid("windows")
        late = counts.get_side_output(tag).map(lambda row: 1, Types.LONG()).uid("late")
        return counts.map(lambda row: row[-1], Types.LONG()).uid("counts").union(late)

    epochs = run(program, [replace(each, in_columns=True) for each in runs], random_order(seed))
    assert sum(map(sum, epochs)) == len(records)


@settings(max_examples=examples(5))
@given(records=RECORDS, parallelism=st.integers(1, 3), fold=st.sampled_from(["sum", "min", "max"]))
def test_batch_mode(records, parallelism, fold):
    def program():
        env = environment(parallelism, max_parallelism=16)
        env.set_runtime_mode(RuntimeExecutionMode.BATCH)
        events = CollectionSource(records, EVENT, records_per_epoch=13, batch_size=7)
        stream = env.from_source(events, WatermarkStrategy.no_watermarks(), "events").uid("events")
        results = getattr(stream.key_by("key"), fold)("value").uid("rolling")
        return results.map(lambda row: (row.key, row.value), Types.TUPLE([Types.STRING(), Types.LONG()])).uid("pairs")

    with one_phase():
        expected = run(program, [Run(parallelism, True)], random_order(0))
    found = run(program, [Run(parallelism, True)], random_order(0))
    assert [sorted(each) for each in found] == [sorted(each) for each in expected]


FINAL = Types.TUPLE([Types.STRING(), Types.DOUBLE()])


@settings(max_examples=examples(8))
@given(records=RECORDS, runs=RUNS, fold=FOLDS, key=st.sampled_from(["key", ("key", "note")]), small=st.booleans())
def test_mini_batches(records, runs, fold, key, small):
    """A key has one result per epoch, the last one that it would have had. Small memory may give more."""

    def program(mini_batch: bool):
        env = environment(max_parallelism=16)
        env.configure(Configuration().set_boolean("table.exec.mini-batch.enabled", mini_batch))
        events = CollectionSource(records, EVENT, records_per_epoch=13, batch_size=7)
        keyed = env.from_source(events, WatermarkStrategy.no_watermarks(), "events").uid("events").key_by(key)
        results = (keyed.count() if fold == "count" else getattr(keyed, fold)("value")).uid("rolling")

        def pair(row):
            which = row[0] + row.note if isinstance(key, tuple) else row[0]
            return which, float(row.value if fold in ("sum", "min", "max") else row[-1])

        return results.map(pair, FINAL).uid("pairs")

    def last(epoch: list[Any]) -> dict[str, float]:
        return dict(epoch)

    # Running results come in the order of the records only with one subtask.
    one = [Run(1, True)]
    expected = [last(epoch) for epoch in run(lambda: program(False), one, random_order(0))]
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr("dagster_flinkpy.state.backend.ColumnarKeyedStateBackend.is_full", True)
        found = run(lambda: program(True), [Run(each.parallelism, True) for each in runs], random_order(0))
    assert [last(epoch) for epoch in found] == [pytest.approx(each) for each in expected]
    if not small:
        assert [len(epoch) for epoch in found] == [len(each) for each in expected]


# --- what is sent -----------------------------------------------------------------------------------------------------


def windows(fold: str = "sum", field: Any = "value", assigner: Any = None) -> Any:
    windowed = source([], None, 0).key_by("key").window(assigner or TumblingEventTimeWindows(10))
    stream = windowed.count() if fold == "count" else getattr(windowed, fold)(field)
    return stream._transformation.spec


def batch(keys: list[str], times: list[int], values: list[int]) -> StreamBatch:
    records = [(key, time, value, 0.5, "") for key, time, value in zip(keys, times, values, strict=True)]
    return StreamBatch(EVENT, np.array(times), column=EVENT.to_arrow(records))


def add(local: LocalAggregate, records: StreamBatch) -> list[StreamBatch]:
    return local.add(Types.STRING(), pa.array([r.key for r in records.values]), records)


def sums(batches: list[StreamBatch]) -> list[tuple[str, int, int]]:
    found = []
    for each in batches:
        assert each.combined and each.keys is not None
        rows = zip(each.keys.column.to_pylist(), each.timestamps.tolist(), each.values, strict=True)
        found += [(key, time, row.value) for key, time, row in rows]
    return found


def test_records_of_a_key_and_slice_become_one():
    local = local_aggregate_of(windows(assigner=SlidingEventTimeWindows(20, 10)))
    assert local is not None
    assert not add(local, batch(["a", "b", "a", "a"], [3, 4, 9, 10], [1, 2, 3, 4]))
    assert local.closes == 9
    assert not add(local, batch(["b"], [-1], [5]))
    assert local.closes == -1
    taken = local.take()
    assert sums(taken) == [("a", 3, 4), ("b", 4, 2), ("a", 10, 4), ("b", -1, 5)]
    assert not any(each.keys.seldom_repeat for each in taken)
    assert local.take() == [] and local.closes == MAX_WATERMARK


def test_in_processing_time_records_of_a_key_become_one():
    """Whatever their times, or without any."""
    for assigner in (TumblingProcessingTimeWindows(10), SlidingProcessingTimeWindows(20, 15)):
        local = local_aggregate_of(windows(assigner=assigner))
        assert local is not None
        records = batch(["a", "b", "a"], [3, NO_TIMESTAMP, 99], [1, 2, 3])
        assert local.takes(records)
        assert not add(local, records)
        assert local.closes == MAX_WATERMARK
        taken = local.take()
        assert sums(taken) == [("a", 3, 4), ("b", NO_TIMESTAMP, 2)]
        assert all(each.keys.seldom_repeat for each in taken)


@pytest.mark.parametrize(("kind", "bits"), [(Types.BYTE(), 8), (Types.SHORT(), 16)])
def test_keys_of_the_whole_range_of_a_narrow_type_are_told_apart(kind, bits):
    local = local_aggregate_of(windows())
    assert local is not None
    numbers = [*range(-(2 ** (bits - 1)), 2 ** (bits - 1))]
    keys = pa.array(numbers * 2, kind.arrow_type)
    assert not local.add(kind, keys, batch(["a"] * len(keys), [0] * len(keys), [1] * len(keys)))
    assert sums(local.take()) == [(number, 0, 2) for number in numbers]


@pytest.mark.parametrize(
    ("assigner", "waits"), [(TumblingEventTimeWindows(10), True), (TumblingProcessingTimeWindows(10), False)]
)
def test_a_buffer_timeout_sends_only_what_may_have_a_result(assigner, waits):
    local = local_aggregate_of(windows(assigner=assigner))
    assert local is not None
    shuffle = Shuffle(StreamPartitioner(PartitionerKind.HASH, selector="key"), type_info=EVENT)
    output = CombiningOutput(shuffle.writer, local, ["events"], MIN_WATERMARK)
    output.emit(batch(["a", "b", "a"], [3, 4, 5], [1, 2, 3]))
    assert output.flush_to_room(lambda edge, target: True)
    sent = [row.kind for row in shuffle.rows()]
    output.watermark("events", 9)
    later = [row.kind for row in shuffle.rows()]
    assert (Kind.BUFFER in sent, Kind.BUFFER in later) == (not waits, waits)


def test_it_stops_where_it_does_not_pay():
    local = local_aggregate_of(windows())
    assert local is not None
    keys = [f"key{i}" for i in range(local_aggregate.TRIED)]
    add(local, batch(keys, [0] * len(keys), [1] * len(keys)))
    assert local.pays
    assert len(sums(local.take())) == len(keys)
    assert not local.pays


def test_sums_that_may_overflow_are_left_to_the_operator():
    local = local_aggregate_of(windows())
    assert local is not None
    add(local, batch(["a", "a"], [0, 1], [2**62, 2**62]))
    assert sums(local.take()) == [("a", 0, 2**62), ("a", 1, 2**62)]


def test_what_is_not_combined(tmp_path):
    assert local_aggregate_of(windows("min", "amount")) is None  # the place of NaN decides
    assert local_aggregate_of(windows("max", "amount")) is None
    assert local_aggregate_of(windows(assigner=SlidingEventTimeWindows(20, 15))) is None
    keyed = source([], None, 0).key_by("key")
    assert local_aggregate_of(keyed.sum("value")._transformation.spec) is None  # a result per record
    assert local_aggregate_of(keyed.count()._transformation.spec) is None
    records = [("a", 1, 5, 0.0, ""), ("a", 2, None, 0.0, "")]
    stream = source(records, None, 0).key_by("key").window(TumblingEventTimeWindows(10)).sum("value").uid("op")
    with pytest.raises(TypeMismatchError, match=r"operator 'op'.*sum\(\) of None"):
        collect_all(stream, tmp_path)


def test_fewer_rows_are_sent(tmp_path):
    """Barriers and watermarks within a window do not stop records from being combined; the sum has all of them."""
    records = [("ab"[i % 2], i, 1, 0.5, "") for i in range(1000)]
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(0)).with_timestamp_assigner("time")
    stream = environment(2).from_source(CollectionSource(records, EVENT, batch_size=10), strategy, "events")
    counted = stream.uid("events").key_by("key").window(TumblingEventTimeWindows(1000)).count().uid("op")
    with pytest.MonkeyPatch.context() as patch:
        sent = []
        real = WindowOperator.process
        patch.setattr(WindowOperator, "process", lambda self, i, b: (sent.append(len(b)), real(self, i, b))[1])
        rows = collect_all(counted, tmp_path)
    assert sorted((row.key, row.count) for row in rows) == [("a", 500), ("b", 500)]
    assert sum(sent) <= 4


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(-20, 20), st.integers(0, 6)), min_size=1, max_size=12)


@example([(0, 0, 0), (0, 1, 0), (0, -1, 3)], 100)
@example([(0, 5, 0), (0, 0, 1), (1, 3, 0)], 3)
@given(ROWS, st.sampled_from([1, 3, 10, 100]))
def test_runs_are_the_sessions_of_each_key(rows: list[tuple[int, int, int]], gap: int) -> None:
    values, starts, lengths = (np.array(column) for column in zip(*rows, strict=True))
    first, codes = distinct_rows(pa.array(values))
    expected: list[tuple[list[int], int, int]] = []
    for i in sorted(range(len(rows)), key=lambda i: (codes[i], starts[i])):
        start, last = int(starts[i]), int(starts[i] + lengths[i])
        if expected and codes[expected[-1][0][0]] == codes[i] and start <= expected[-1][2] + gap:
            members, begun, ended = expected.pop()
            expected.append(([*members, i], begun, max(ended, last)))
        else:
            expected.append(([i], start, last))
    firsts, runs, begun, ended = _runs(first, codes, starts, starts + lengths, gap)
    found = [(np.flatnonzero(runs == run), begun[run], ended[run]) for run in range(len(firsts))]
    assert firsts.tolist() == [rows[0] for rows, _, _ in found]
    assert sorted((rows.tolist(), *times) for rows, *times in found) == sorted((sorted(r), *t) for r, *t in expected)
