from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.decimals import as_stored_before
from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream import DataStream, OutputTag, ProcessFunction, TumblingEventTimeWindows
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.connectors.blocking_edge import BlockingEdgeSource
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.errors import JobGraphError, SinkCommitError, SourceReadError, StorageError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, collect_graph, collected, run_job, run_rows
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, Sessions, environment, event_time, events

RECORDS = [("a", 1, 2), ("b", 2, 3), ("a", 3, 5), ("c", 4, 7), ("b", 50, 1), ("a", 60, 1)]


def attempt_of(region: JobGraph, folder: Path, job_id: str, **options: Any) -> HarnessAttempt:
    segments = StorageLocation(str(folder / "job" / "exchange"))
    return HarnessAttempt(region, folder, job_id=job_id, config={"blocking_edges": segments}, **options)


def run(region: JobGraph, folder: Path, job_id: str, *, epochs: int | None = None, **options: Any) -> list[Any]:
    """Runs a region to its end or for some epochs, and returns the collected records."""
    records: list[Any] = []
    with attempt_of(region, folder, job_id, **options) as attempt:
        while not attempt.finished and (epochs is None or epochs > 0):
            attempt.run_epoch()
            epochs = None if epochs is None else epochs - 1
            if "collect" in {v.uid for v in region.vertices}:
                records += collected(attempt.graph, attempt.collected)
    return records


def markers(folder: Path, sink_uid: str = "events.exchange") -> list[dict[str, Any]]:
    found = (folder / "job" / "exchange" / sink_uid / "checkpoints").glob("*.json")
    return [json.loads(path.read_text()) for path in sorted(found)]


def sessions(stream: DataStream) -> JobGraph:
    return collect_graph(stream.key_by("key").process(Sessions(10), COUNTED).uid("sessions"))


def counts(per_epoch: int | None = 2, parallelism: int = 1) -> JobGraph:
    stream = events(environment(parallelism), RECORDS, per_epoch=per_epoch).blocking()
    return collect_graph(stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts"))


COUNTS = [("a", 1, 2), ("b", 1, 3), ("a", 2, 7), ("c", 1, 7), ("b", 2, 4), ("a", 3, 8)]


@settings(max_examples=examples(15))
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99), st.integers(-9, 9)), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 12),
    st.booleans(),
)
def test_two_regions_give_what_one_gives(
    records: list[Any], upstream: int, downstream: int, per_epoch: int, in_turns: bool
) -> None:
    ordered = sorted(records, key=lambda r: r[1])

    def program(through: Callable[[DataStream], DataStream]) -> JobGraph:
        env = environment(downstream)
        source = events(env, ordered, per_epoch=per_epoch, strategy=event_time(200)).set_parallelism(upstream)
        return sessions(through(source))

    with tempfile.TemporaryDirectory() as folder:
        expected = run_job(program(lambda s: s), Path(folder) / "pipelined")
        first, second = program(lambda s: s.blocking()).regions()
        path, found = Path(folder) / "blocking", []
        if in_turns:
            ended = False
            while not ended:
                run(first, path, "first", epochs=1)
                found += run(second, path, "second", epochs=1)
                ended = markers(path)[-1]["end_of_input"]
        else:
            run(first, path, "first")
            found = run(second, path, "second")
    assert Counter(found) == Counter(expected)


def test_a_checkpoint_has_its_watermark_and_the_last_one_ends_the_input(tmp_path: Path) -> None:
    first, _ = counts().regions()
    run(first, tmp_path, "first")
    assert [(m["checkpoint_id"], m["watermark"], m["end_of_input"]) for m in markers(tmp_path)] == [
        (1, 1, False),
        (2, 3, False),
        (3, MAX_WATERMARK, True),
    ]
    assert [sum(s["rows"] for s in m["segments"]) for m in markers(tmp_path)] == [2, 2, 2]


def test_event_time_is_kept(tmp_path: Path) -> None:
    stream = events(environment(2), RECORDS, per_epoch=2).blocking()
    sums = stream.key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    graph = collect_graph(sums.reduce(lambda a, b: type(a)(a.key, a.time, a.value + b.value)).uid("sums"))
    first, second = graph.regions()
    run(first, tmp_path, "first", epochs=2)
    assert run(second, tmp_path, "second", epochs=1) == []
    run(first, tmp_path, "first")
    found = run(second, tmp_path, "second")
    assert sorted((r.key, r.value) for r in found) == [("a", 1), ("a", 7), ("b", 1), ("b", 3), ("c", 7)]


def test_segments_are_read_again_and_at_another_parallelism(tmp_path: Path) -> None:
    first, second = counts().regions()
    run(first, tmp_path, "first")
    assert run(second, tmp_path, "second") == COUNTS
    assert run(second, tmp_path, "again") == COUNTS
    assert sorted(run(second, tmp_path, "wider", parallelism=3)) == sorted(COUNTS)


def test_a_region_goes_on_where_it_was_after_a_rescale(tmp_path: Path) -> None:
    first, second = counts(parallelism=2).regions()
    run(first, tmp_path, "first", epochs=1)
    found = run(second, tmp_path, "second", epochs=1)
    run(first, tmp_path, "first")
    found += run(second, tmp_path, "second", parallelism=3)
    assert Counter(found) == Counter(COUNTS)


def test_several_barriers_of_one_spark_job(tmp_path: Path) -> None:
    first, second = counts().regions()
    with attempt_of(first, tmp_path, "first") as attempt:
        attempt.run_epoch(barriers=3)
    assert len(markers(tmp_path)) == 3
    assert run(second, tmp_path, "second") == COUNTS


def test_nothing_is_read_before_the_checkpoint_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = counts().regions()
    run(first, tmp_path, "first", epochs=1)

    class Killed(BaseException):
        pass

    put = LocalObjectStore.put

    def dies(self: LocalObjectStore, key: str, *args: Any, **options: Any) -> str:
        if key.startswith("checkpoints/"):  # the segments exist, but the marker does not
            raise Killed
        return put(self, key, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalObjectStore, "put", dies)
        with pytest.raises(Killed):
            run(first, tmp_path, "first", epochs=1)
    assert len(list((tmp_path / "job/exchange/events.exchange/segments").glob("*.arrow"))) == 2
    assert [m["checkpoint_id"] for m in markers(tmp_path)] == [1]
    found = run(second, tmp_path, "second", epochs=1)
    assert found == COUNTS[:2]
    with attempt_of(first, tmp_path, "first") as attempt:
        assert attempt.committed_on_recovery == 1
    assert [m["checkpoint_id"] for m in markers(tmp_path)] == [1, 2]
    run(first, tmp_path, "first")
    assert found + run(second, tmp_path, "second") == COUNTS


def test_what_a_failed_epoch_has_written_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = counts().regions()
    with monkeypatch.context() as patch:

        def fails(*_: Any) -> int:
            raise StorageError("the store is away")

        patch.setattr("dagster_flinkpy.runtime.master.job.CompletedCheckpointStore.write_metadata", fails)
        with pytest.raises(StorageError):
            run(first, tmp_path, "first", epochs=1)
    assert markers(tmp_path) == []
    run(first, tmp_path, "first")
    assert run(second, tmp_path, "second") == COUNTS


def test_a_stream_is_written_once_for_all_that_read_it(tmp_path: Path) -> None:
    env = environment(2)
    stream = events(env, RECORDS, per_epoch=4).blocking()
    sinks = [FolderSink(tmp_path / name) for name in "ab"]
    for name, sink in zip("ab", sinks, strict=True):
        counted = stream.key_by("key").process(CountPerKey(), COUNTED).uid(name)
        counted.sink_to(sink).uid(f"{name}_sink")
    regions = env.get_job_graph().regions()
    assert [[v.uid for v in r.vertices] for r in regions] == [
        ["events", "events.exchange"],
        ["events.exchange.a", "a", "a_sink"],
        ["events.exchange.b", "b", "b_sink"],
    ]
    for i, region in enumerate(regions):
        run(region, tmp_path, f"job-{i}")
    assert [sink.rows() for sink in sinks] == [sorted(COUNTS)] * 2


class _Odd(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Any:
        yield (OutputTag("odd values", Types.LONG()), value) if value % 2 else value


def test_side_outputs_and_two_ways_to_one_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_harness(self: JobAttempt, job: EpochJob) -> list[WireRow]:
        return run_rows(job)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_harness)
    split = environment(2).from_collection([1, 2, 3, 4], Types.LONG()).process(_Odd(), Types.LONG()).uid("split")
    odd = split.get_side_output(OutputTag("odd values", Types.LONG())).blocking()
    pair = Types.TUPLE([Types.STRING(), Types.LONG()])
    both = odd.map(lambda v: ("odd", v), pair).union(split.blocking().map(lambda v: ("even", v), pair))
    found = list(both.blocking().rebalance().map(lambda v: v).execute_and_collect())
    assert sorted(found) == [("even", 2), ("even", 4), ("odd", 1), ("odd", 3)]


def test_records_without_a_type_are_not_stored() -> None:
    stream = environment(1).from_collection([1], Types.LONG()).map(lambda v: {"v": v})
    with pytest.raises(JobGraphError, match="declare output_type"):
        stream.blocking()


def test_another_run_of_the_job_does_not_mix_its_segments_in(tmp_path: Path) -> None:
    first, _ = counts().regions()
    run(first, tmp_path, "first", epochs=1)
    with pytest.raises(SinkCommitError, match="the checkpoints of that time are gone"):
        run(first, tmp_path, "other", epochs=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: {**m, "version": 2}, "has version 2, but this release reads version 1"),
        (lambda m: {**m, "segments": [{"key": "../../x"}]}, "not a marker of a blocking edge"),
        (lambda m: {"version": 1}, "not a marker of a blocking edge"),
    ],
)
def test_a_marker_that_is_none_is_refused(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    first, second = counts().regions()
    run(first, tmp_path, "first", epochs=1)
    (path,) = (tmp_path / "job/exchange/events.exchange/checkpoints").glob("*.json")
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(SourceReadError, match=message):
        run(second, tmp_path, "second")


def test_a_segment_that_is_gone_is_named(tmp_path: Path) -> None:
    first, second = counts().regions()
    run(first, tmp_path, "first")
    segment = sorted((tmp_path / "job/exchange/events.exchange/segments").glob("*.arrow"))[0]
    segment.unlink()
    with pytest.raises(SourceReadError, match=segment.name.replace("%", ".")):
        run(second, tmp_path, "second")


def test_an_idle_subtask_does_not_hold_event_time_back(tmp_path: Path) -> None:
    stream = events(environment(3), RECORDS, per_epoch=1).blocking().rebalance()
    first, _ = collect_graph(stream.map(lambda v: v, EVENT).uid("map")).regions()
    run(first, tmp_path, "first", epochs=2)
    assert [m["watermark"] for m in markers(tmp_path)] == [0, 1]


def test_on_s3_after_the_upstream_region_was_rescaled(s3_location: StorageLocation) -> None:
    first, second = counts().regions()
    config = {"blocking_edges": s3_location.child("job").child("exchange")}
    for parallelism in (1, 3):
        options: dict[str, Any] = {"config": config, "parallelism": parallelism}
        with HarnessAttempt(first, s3_location, job_id="first", **options) as attempt:
            if attempt.restored is not None:
                attempt.commit_restored()
            attempt.run_epoch()
    with HarnessAttempt(first, s3_location, job_id="first", config=config) as attempt:
        attempt.run_epoch()
        assert attempt.finished
    with HarnessAttempt(second, s3_location, job_id="second", config=config) as attempt:
        attempt.run_epoch()
        assert attempt.finished
        assert Counter(collected(attempt.graph, attempt.collected)) == Counter(COUNTS)


def test_segments_with_decimals_of_an_earlier_release_are_read(tmp_path: Path) -> None:
    kind = Types.TUPLE([Types.LONG(), Types.BIG_DEC()])
    before = as_stored_before(kind)
    stored = pa.table([before.to_arrow([(1, Decimal("2.5"))]), pa.array([7])], names=["value", "timestamp"])
    folder = tmp_path / "up"
    folder.mkdir()
    with pa.ipc.new_stream(folder / "s.arrow", stored.schema) as stream:
        stream.write_table(stored)
    segment = {"key": "s.arrow", "bytes": (folder / "s.arrow").stat().st_size}
    source = BlockingEdgeSource("up", kind, location=StorageLocation(str(tmp_path)))
    ((batch, offset),) = source.read(SourceSplit("1-0", {"segments": [segment]}))
    assert (kind.from_arrow(batch.field("value")), offset) == ([(1, Decimal("2.5"))], 1)
