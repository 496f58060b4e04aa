from __future__ import annotations

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

from dagster_flinkpy.common import Row
from dagster_flinkpy.common.decimals import as_stored_before
from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream import DataStream, OutputTag, ProcessFunction, TumblingEventTimeWindows
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.connectors.blocking_edge import BlockingEdgeSource
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import InputTypeError, JobGraphError, RestoreError, SegmentLostError, StorageError
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeOutput
from dagster_flinkpy.runtime.blocking.segments import SegmentWriter
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, collect_graph, collected, run_job, run_rows
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, Sessions, environment, event_time, events

RECORDS = [("a", 1, 2), ("b", 2, 3), ("a", 3, 5), ("c", 4, 7), ("b", 50, 1), ("a", 60, 1)]


def segments(folder: Path, job_id: str = "job") -> list[Path]:
    return sorted((folder / job_id / "exchange").rglob("*.arrow"))


def run(graph: JobGraph, folder: Path, epochs: int | None = None, **options: Any) -> list[Any]:
    """Runs a job to its end or for some epochs, and returns the collected records."""
    records: list[Any] = []
    with HarnessAttempt(graph, folder, **options) as attempt:
        for _ in range(99 if epochs is None else epochs):
            if not attempt.finished:
                attempt.run_epoch()
                records += collected(attempt.graph, attempt.collected)
    return records


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
        graph, path = program(lambda s: s.blocking()), Path(folder) / "blocking"
        found = run_job(graph, path, rescale_at={1: downstream % 3 + 1}) if in_turns else run(graph, path)
        assert segments(path) == [], "everything was read before the last checkpoint"
    assert Counter(found) == Counter(expected)


def test_an_epoch_has_its_watermark_and_the_last_one_ends_the_input(tmp_path: Path) -> None:
    outputs: dict[int, EdgeOutput] = {}

    class Attempt(HarnessAttempt):
        def _create_metadata(self, write: Any) -> Any:
            (source, _) = self._deployed.master.state.regions
            outputs.update({number: by_uid["events.exchange"] for number, (by_uid,) in source.outputs.items()})
            return super()._create_metadata(write)

    with Attempt(counts(), tmp_path) as attempt:
        assert all(epoch.has_read for epoch in attempt.run_epochs())
    found = [(o.watermark, o.end_of_input, sum(s["rows"] for s in o.segments)) for _, o in sorted(outputs.items())]
    assert found == [(1, False, 2), (3, False, 2), (MAX_WATERMARK, True, 2)]


def test_checkpoints_do_not_name_segments(tmp_path: Path) -> None:
    with HarnessAttempt(counts(), tmp_path) as attempt:
        metadata = attempt.run_epoch().metadata
        assert not attempt.finished
    ends = [metadata.operator(uid) for uid in ("events.exchange", "events.exchange.counts")]
    for end in ends:
        assert end is not None
        assert not end.has_state, "the program can be restored without blocking()"


def test_event_time_is_kept(tmp_path: Path) -> None:
    stream = events(environment(2), RECORDS, per_epoch=2).blocking()
    sums = stream.key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    graph = collect_graph(sums.reduce(lambda a, b: type(a)(a.key, a.time, a.value + b.value)).uid("sums"))
    assert run(graph, tmp_path, epochs=2) == []
    assert sorted((r.key, r.value) for r in run(graph, tmp_path)) == [
        *[("a", 1), ("a", 7), ("b", 1), ("b", 3), ("c", 7)]
    ]


def test_an_attempt_continues_at_another_parallelism(tmp_path: Path) -> None:
    found = run(counts(parallelism=2), tmp_path, epochs=1)
    found += run(counts(parallelism=2), tmp_path, parallelism=3)
    assert Counter(found) == Counter(COUNTS)


def test_an_attempt_that_fails_behind_the_edge_is_repeated_from_before_it(tmp_path: Path) -> None:
    class Attempt(HarnessAttempt):
        def _on_spark(self, job: EpochJob) -> list[WireRow]:
            if job.region == 1 and job.checkpoint_id == 2:
                raise StorageError("the store is away")
            return super()._on_spark(job)

    with pytest.raises(StorageError), Attempt(counts(), tmp_path) as attempt:
        list(attempt.run_epochs())
    assert attempt.latest is not None and attempt.latest.checkpoint_id == 1
    left = segments(tmp_path)
    assert len(left) == 1, "epoch 2 was written and not read"
    with HarnessAttempt(counts(), tmp_path) as attempt:
        assert segments(tmp_path) == []
        found = [r for _ in attempt.run_epochs() for r in collected(attempt.graph, attempt.collected)]
    assert found == COUNTS[2:]


def test_a_savepoint_and_a_stop_with_drain_have_all_regions(tmp_path: Path) -> None:
    with HarnessAttempt(counts(), tmp_path) as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint()
        attempt.stop_with_savepoint(drain=True)
        assert attempt.latest is not None and attempt.latest.end_of_input
    found = run(counts(), tmp_path, job_id="other", restore_from=savepoint, parallelism=2)
    assert Counter(found) == Counter(COUNTS[2:])


def test_draining_fires_the_timers_of_all_regions(tmp_path: Path) -> None:
    stream = events(environment(2), RECORDS, per_epoch=2).blocking()
    graph = sessions(stream)
    with HarnessAttempt(graph, tmp_path) as attempt:
        attempt.run_epoch()
        attempt.stop_with_savepoint(drain=True)
        assert sorted(collected(attempt.graph, attempt.collected)) == [("a", 1, 2), ("b", 1, 3)]


def test_what_is_printed_comes_once_and_in_order_of_the_regions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = environment(1)
    stream = events(env, RECORDS, per_epoch=2)
    stream.map(lambda r: f"read {r.value}", Types.STRING()).print().uid("first")
    stream.blocking().map(lambda r: f"got {r.value}", Types.STRING()).uid("got").print().uid("second")
    with HarnessAttempt(env.get_job_graph(), tmp_path) as attempt:
        attempt.run_epoch()
        assert capsys.readouterr().out.split("\n") == ["read 2", "read 3", "got 2", "got 3", ""]


def test_a_region_with_a_source_of_its_own_reads_on_when_the_others_have_ended(tmp_path: Path) -> None:
    env = environment(1)
    short = events(env, RECORDS[:2], uid="short", per_epoch=2).blocking()
    long = events(env, RECORDS, uid="long", per_epoch=1)
    graph = collect_graph(short.union(long).map(lambda r: r.value, Types.LONG()).uid("values"))
    with HarnessAttempt(graph, tmp_path) as attempt:
        epochs = [collected(attempt.graph, attempt.collected) for _ in attempt.run_epochs()]
    assert [len(each) for each in epochs] == [3, 1, 1, 1, 1, 1]
    assert attempt.finished


def test_a_stream_is_written_once_for_all_that_read_it(tmp_path: Path) -> None:
    env = environment(2)
    stream = events(env, RECORDS, per_epoch=4).blocking()
    sinks = [FolderSink(tmp_path / name) for name in "ab"]
    for name, sink in zip("ab", sinks, strict=True):
        counted = stream.key_by("key").process(CountPerKey(), COUNTED).uid(name)
        counted.sink_to(sink).uid(f"{name}_sink")
    graph = env.get_job_graph()
    assert [[v.uid for v in r.vertices] for r in graph.regions()] == [
        ["events", "events.exchange"],
        ["events.exchange.a", "a", "a_sink"],
        ["events.exchange.b", "b", "b_sink"],
    ]
    run_with(HarnessAttempt, graph, tmp_path)
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


def test_the_state_of_an_earlier_release_is_refused() -> None:
    source = BlockingEdgeSource("up.exchange", Types.LONG())
    with pytest.raises(RestoreError, match="each region of a program was a separate job"):
        source.create_enumerator({"last": 1, "ended": False})


def test_a_segment_that_is_gone_is_named(tmp_path: Path) -> None:
    class Attempt(HarnessAttempt):
        def _on_spark(self, job: EpochJob) -> list[WireRow]:
            if job.region == 1:
                segments(tmp_path)[0].unlink()
            return super()._on_spark(job)

    with pytest.raises(
        SegmentLostError, match=r"events.exchange/0000000001-0000000001/000000\..* is gone, although no"
    ):
        run_with(Attempt, counts(), tmp_path)
    assert run(counts(), tmp_path) == COUNTS


def run_with(kind: type[HarnessAttempt], graph: JobGraph, folder: Path) -> None:
    with kind(graph, folder) as attempt:
        list(attempt.run_epochs())


def test_an_idle_subtask_does_not_hold_event_time_back(tmp_path: Path) -> None:
    stream = events(environment(3), RECORDS, per_epoch=1).blocking().rebalance()
    graph = collect_graph(stream.map(lambda v: v, EVENT).uid("map"))
    with HarnessAttempt(graph, tmp_path) as attempt:
        times = [attempt.run_epoch().operator("map").watermark for _ in range(2)]
    assert times == [0, 1]


def test_on_s3_after_a_rescale(s3_location: StorageLocation) -> None:
    found: list[Any] = []
    for parallelism in (1, 3, None):
        with HarnessAttempt(counts(), s3_location, parallelism=parallelism) as attempt:
            if parallelism == 3:
                attempt.commit_restored()
            attempt.run_epoch()
            found += collected(attempt.graph, attempt.collected)
    assert attempt.finished
    assert Counter(found) == Counter(COUNTS)


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


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Types.PICKLED_BYTE_ARRAY(), Types.PRIMITIVE_ARRAY(Types.BYTE())),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.PICKLED_BYTE_ARRAY()),
        (Types.BIG_DEC(), Types.STRING()),
        (Types.STRING(), Types.BIG_DEC()),
    ],
)
def test_kept_records_are_not_read_as_another_type_that_is_the_same_in_arrow(
    tmp_path: Path, before: TypeInformation, now: TypeInformation
) -> None:
    named = [Types.ROW_NAMED(["n", "value"], [Types.LONG(), kind]) for kind in (before, now)]
    other_order = Types.ROW_NAMED(["value", "n"], [before, Types.LONG()])
    writer = SegmentWriter(StorageLocation(str(tmp_path)).child("up").open(), "s", named[0])
    value = {"BIG_DEC": Decimal("1.5"), "STRING": "1.5"}.get(getattr(before, "name", ""), b"1.5")
    writer.write(named[0].to_arrow([Row(n=1, value=value)]), pa.array([7]))
    split = SourceSplit("1-0", {"segments": writer.finish()})
    location = StorageLocation(str(tmp_path))
    ((batch, _),) = BlockingEdgeSource("up", other_order, location=location).read(split)
    assert other_order.from_arrow(batch.field("value")) == [Row(value=value, n=1)]
    with pytest.raises(InputTypeError, match=r"the blocking edge after 'up' has kept records of .*recompute 'up', too"):
        list(BlockingEdgeSource("up", named[1], location=location).read(split))


def test_kept_records_are_not_read_with_the_types_of_two_fields_swapped(tmp_path: Path) -> None:
    pickled, data = Types.PICKLED_BYTE_ARRAY(), Types.PRIMITIVE_ARRAY(Types.BYTE())
    before, now = (Types.ROW_NAMED(["a", "b"], kinds) for kinds in ([pickled, data], [data, pickled]))
    writer = SegmentWriter(StorageLocation(str(tmp_path)).child("up").open(), "s", before)
    writer.write(before.to_arrow([Row(a={"x": 1}, b=b"1")]), pa.array([7]))
    split = SourceSplit("1-0", {"segments": writer.finish()})
    with pytest.raises(InputTypeError, match=r"the blocking edge after 'up' has kept records of"):
        list(BlockingEdgeSource("up", now, location=StorageLocation(str(tmp_path))).read(split))
