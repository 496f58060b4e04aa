"""`transform_spark`: DataFrames run on a real Spark, other operators usually in the harness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.recomputation import recomputation_of
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import OutputTag, ProcessFunction, TumblingEventTimeWindows
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import (
    ConfigurationError,
    FlinkPyError,
    InputTypeError,
    StorageError,
    UserFunctionError,
)
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.blocking.dataframes import COUNTED_LONGS, ID, RECORDS, Where, fails, parts, run
from tests.runtime.harness import HarnessAttempt, collect_graph
from tests.runtime.programs import FolderSink, environment, events

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_server")]

SUMS = Types.ROW_NAMED(["key", "total"], [Types.STRING(), Types.LONG()])


def totals(frame: Any) -> Any:
    """Returns a total per key."""
    return frame.groupBy("key").sum("value").withColumnRenamed("sum(value)", "total")


def test_an_aggregation_is_one_of_an_epoch(tmp_path: Path) -> None:
    stream = events(environment(2), RECORDS, per_epoch=2).transform_spark(totals, SUMS).uid("totals")
    expected = [("a", 2), ("b", 3), ("a", 5), ("c", 7), ("b", 1), ("a", 1)]
    found = run(collect_graph(stream), tmp_path, epochs=1)
    found += run(collect_graph(stream), tmp_path, parallelism=3)
    assert Counter((r.key, r.total) for r in found) == Counter(expected)


def test_a_transform_that_is_recomputed_has_each_epoch_by_itself(tmp_path: Path) -> None:
    def graph(factor: int) -> JobGraph:
        def changed(df: Any) -> Any:
            return totals(df).selectExpr("key", f"{factor} * total total")

        stream = events(environment(2), RECORDS, per_epoch=2).blocking(timedelta(days=1))
        return collect_graph(stream.transform_spark(changed, SUMS).uid("totals"))

    run(graph(1), tmp_path, epochs=2)
    latest = CompletedCheckpointStore(StorageLocation(str(tmp_path / "job")).open()).latest()
    assert latest is not None
    recomputation = recomputation_of(latest, graph(10), ["totals"])
    assert "totals" in recomputation.operators
    found = run(graph(10), tmp_path, recomputation=recomputation)
    expected = [("a", 20), ("b", 30), ("a", 50), ("c", 70), ("b", 10), ("a", 10)]
    assert Counter((r.key, r.total) for r in found) == Counter(expected)


def test_event_time_passes(tmp_path: Path) -> None:
    doubled = Types.ROW_NAMED(["key", "twice"], [Types.STRING(), Types.LONG()])
    stream = events(environment(2), RECORDS, per_epoch=2)
    twice = stream.transform_spark(lambda df: df.selectExpr("key", "2 * value twice", "rowtime"), doubled).uid("twice")
    sums = twice.key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(10))).sum("twice").uid("sums")
    graph = collect_graph(sums)
    assert run(graph, tmp_path, epochs=2) == []
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert attempt.restored is not None
        assert {s.watermark for o in attempt.restored.operators for s in o.subtasks if o.uid == "sums"} == {2}
    found = run(graph, tmp_path)
    assert sorted((r.key, r.twice) for r in found) == [("a", 2), ("a", 14), ("b", 2), ("b", 6), ("c", 14)]


@pytest.mark.parametrize(
    ("function", "times"),
    [
        (lambda df: df.select("value", "rowtime"), [1, 2]),
        (lambda df: df.select("value"), [-(2**63)] * 2),
        (lambda df: df.selectExpr("value", "if(value = 2, null, rowtime + 1) rowtime"), [-(2**63), 3]),
    ],
)
def test_what_event_time_the_records_have(tmp_path: Path, function: Callable[[Any], Any], times: list[int]) -> None:
    value = Types.ROW_NAMED(["value"], [Types.LONG()])
    stream = events(environment(), RECORDS[:2]).transform_spark(function, value).uid("values")
    found = run(collect_graph(stream.process(Where(), COUNTED_LONGS)), tmp_path)
    assert [(v, t) for _, v, t in found] == list(zip([2, 3], times, strict=True))


def test_a_record_without_event_time_has_none_in_the_data_frame(tmp_path: Path) -> None:
    stream = environment().from_collection([(1,)], Types.TUPLE([Types.LONG()])).uid("numbers")
    out = Types.ROW_NAMED(["f0", "none"], [Types.LONG(), Types.BOOLEAN()])
    timeless = stream.transform_spark(lambda df: df.selectExpr("f0", "rowtime is null none"), out).uid("t")
    assert run(collect_graph(timeless), tmp_path) == [Row(f0=1, none=True)]


def test_a_failed_epoch_is_computed_again_from_the_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FolderSink(tmp_path / "table")
    env = environment(2)
    stream = events(env, RECORDS, per_epoch=2).transform_spark(totals, SUMS).uid("totals")
    stream.map(lambda r: (r.key, r.total), Types.TUPLE([Types.STRING(), Types.LONG()])).uid("map").sink_to(sink).uid(
        "sink"
    )
    graph = env.get_job_graph()
    run(graph, tmp_path, epochs=1)

    class Fails(HarnessAttempt):
        def _on_spark(self, job: EpochJob) -> list[WireRow]:
            rows = super()._on_spark(job)
            if job.region == 1:
                raise StorageError("away")
            return rows

    with pytest.raises(StorageError), Fails(graph, tmp_path) as attempt:
        attempt.run_epoch()
    assert sink.rows() == [("a", 2), ("b", 3)]
    assert parts(tmp_path, "totals") == ["0000000002"]
    run(graph, tmp_path, parallelism=3)
    assert sink.rows() == sorted([("a", 2), ("b", 3), ("a", 5), ("c", 7), ("b", 1), ("a", 1)])
    assert (sink.staged(), parts(tmp_path, "totals")) == ([], [])


def test_an_epoch_without_records_is_left_out(tmp_path: Path) -> None:
    rows = events(environment(), RECORDS, per_epoch=3).filter(lambda r: r.time > 3).uid("late")
    count = Types.ROW_NAMED(["n"], [Types.LONG()])
    counted = rows.transform_spark(lambda df: df.selectExpr("count(*) n"), count).uid("count")
    assert run(collect_graph(counted), tmp_path) == [Row(n=3)]


class Odd(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (OutputTag("odd", ID), value) if value.id % 2 else value


def test_united_streams_and_side_outputs_are_one_data_frame(tmp_path: Path) -> None:
    env = environment(2)
    split = env.from_collection([Row(i) for i in range(6)], ID).uid("numbers").process(Odd(), ID).uid("split")
    both = split.union(split.get_side_output(OutputTag("odd", ID)))
    total = both.transform_spark(lambda df: df.selectExpr("sum(id) id"), ID).uid("total")
    following = total.transform_spark(lambda df: df.selectExpr("id + 1 id"), ID).uid("next")
    assert run(collect_graph(following), tmp_path) == [Row(id=16)]


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (fails, UserFunctionError, "operator 't' failed: KeyError"),
        (
            lambda df: df.count(),
            InputTypeError,
            "operator 't': .* must return a Spark DataFrame, not 2, which is int",
        ),
        (
            lambda df: df.select("key"),
            InputTypeError,
            "operator 't': the DataFrame has no column 'total'; its columns are 'key'",
        ),
        (
            lambda df: df.selectExpr("key", "value total", "current_timestamp() rowtime"),
            InputTypeError,
            "operator 't': column 'rowtime' of the DataFrame is timestamp; event time must be int milliseconds",
        ),
    ],
)
def test_what_is_wrong_with_the_result_is_said(
    tmp_path: Path, function: Callable[[Any], Any], error: type[FlinkPyError], message: str
) -> None:
    stream = events(environment(), RECORDS[:2]).transform_spark(function, SUMS).uid("t")
    with pytest.raises(error, match=message):
        run(collect_graph(stream), tmp_path)


def test_a_field_that_spark_has_no_type_for_is_named() -> None:
    wide = Types.ROW_NAMED(["n", "m"], [Types.LONG(), Types.LIST(Types.BIG_INT())])
    message = r"field 'm' of the stream is Types\.LIST\(Types\.BIG_INT\(\)\), for which Spark has no type"
    with pytest.raises(ConfigurationError, match=message):
        environment().from_collection([Row(1, [2])], wide).transform_spark(lambda df: df)


def test_a_program_on_spark() -> None:
    env = environment(2)
    orders = env.from_spark(lambda spark: spark.range(0, 100, 1, 4).selectExpr("id % 3 k", "id v"))
    big = orders.key_by("k").sum("v").transform_spark(lambda df: df.groupBy("k").max("v").toDF("k", "top"))
    assert sorted((r.k, r.top) for r in big.execute_and_collect()) == [(0, 1683), (1, 1617), (2, 1650)]


@pytest.fixture(scope="module", autouse=True)
def same_session(spark: Any) -> Iterator[None]:
    yield
