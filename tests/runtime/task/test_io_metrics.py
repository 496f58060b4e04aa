"""What operators report about themselves adds up over the edges of a program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.timeline import CheckpointTimeline
from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch
from dagster_flinkpy.checkpoint.reports.job_metrics import TIMES, OperatorMetrics, job_metrics
from dagster_flinkpy.datastream import DataStream, OutputTag, ProcessFunction
from dagster_flinkpy.datastream.program.job_graph import JobGraph, PartitionerKind
from dagster_flinkpy.runtime.task.task_metrics import TaskTimes
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, ManualClock, collect_graph, random_order
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, event_time, events

RECORDS = [(f"k{i % 5}", i * 10, i) for i in range(60)]

STEPS: dict[str, Callable[[DataStream], DataStream]] = {
    "forward": lambda s: s.map(lambda v: v, EVENT),
    "filter": lambda s: s.filter(lambda v: v.value % 3 > 0),
    "repeat": lambda s: s.flat_map(lambda v: [v, v], EVENT),
    "rebalance": lambda s: s.rebalance().map(lambda v: v, EVENT),
    "keyed": lambda s: s.key_by("key").filter(lambda v: v.value % 2 == 0),
    "broadcast": lambda s: s.broadcast().map(lambda v: v, EVENT),
    "rescale": lambda s: s.rescale().map(lambda v: v, EVENT),
}


def metrics_of(epoch: CompletedEpoch) -> Mapping[str, OperatorMetrics]:
    return {each.uid: each for each in job_metrics(epoch.metadata, epoch.statistics).operators}


def check_sums(graph: JobGraph, found: Mapping[str, OperatorMetrics]) -> None:
    for vertex in graph.vertices:
        expected = 0
        for edge in graph.inputs(vertex.uid):
            copies = vertex.parallelism if edge.partitioner.kind is PartitionerKind.BROADCAST else 1
            expected += copies * int(found[edge.source].total["numRecordsOut"])
        assert found[vertex.uid].total["numRecordsIn"] == expected, vertex.uid
        shuffled = [e for e in graph.inputs(vertex.uid) if not graph.is_chained(e)]
        assert bool(found[vertex.uid].total["numBytesIn"]) == any(
            found[e.source].total["numRecordsOut"] for e in shuffled
        )
    sent, received = (sum(each.total[n] for each in found.values()) for n in ("numBytesOut", "numBytesIn"))
    assert sent == received
    for each in found.values():
        for numbers in (each.total, *each.subtasks):
            assert sum(numbers[name] for name in TIMES) == 1000
            assert all(numbers[name] >= 0 for name in TIMES)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(1, 3)), min_size=1, max_size=4),
    parallelism=st.integers(1, 2),
    fan_out=st.booleans(),
    seed=st.integers(0, 99),
)
def test_what_is_sent_is_received(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int]],
    parallelism: int,
    fan_out: bool,
    seed: int,
) -> None:
    stream = start = events(environment(parallelism), RECORDS, per_epoch=20)
    for i, (step, width) in enumerate(steps):
        stream = STEPS[step](stream).set_parallelism(width).uid(f"{step}-{i}")
    if fan_out:
        stream = stream.union(start.key_by("key").map(lambda v: v, EVENT).uid("aside"))
    graph = collect_graph(stream)
    with HarnessAttempt(graph, tmp_path_factory.mktemp("job"), order=random_order(seed)) as attempt:
        while not attempt.finished:
            check_sums(attempt.graph, metrics_of(attempt.run_epoch()))


def test_bytes_of_an_edge_are_those_of_its_buffers(tmp_path: Path) -> None:
    stream = events(environment(2), RECORDS).key_by("key").process(CountPerKey(), COUNTED).uid("count")
    with HarnessAttempt(collect_graph(stream), tmp_path) as attempt:
        found = metrics_of(attempt.run_epoch())
    assert found["events"].total["numBytesOut"] == found["count"].total["numBytesIn"] > 60 * 16
    assert found["collect"].total["numBytesIn"] == 0, "it is chained"
    assert [each["numBytesOut"] for each in found["events"].subtasks if each["numRecordsOut"]]


def test_in_flight_data_of_an_unaligned_checkpoint_counts_when_it_is_processed(tmp_path: Path) -> None:
    env = environment(1)
    small = events(env, RECORDS[:8], uid="small", per_epoch=4)
    large = events(env, RECORDS, uid="large", per_epoch=30, batch_size=10)
    graph = collect_graph(small.union(large).key_by("key").process(CountPerKey(), COUNTED).uid("count"))
    sums = dict.fromkeys(("numRecordsIn", "numBytesIn"), 0)
    sent = dict(sums)
    in_flight = []
    for _ in range(3):
        config = {"checkpointing": CoordinatorConfig(unaligned=True)}
        with HarnessAttempt(graph, tmp_path, config=config, order=random_order(1)) as attempt:
            if attempt.finished:
                break
            epoch = attempt.run_epoch()
        found = metrics_of(epoch)
        in_flight.append(any(s.channel_state for o in epoch.metadata.operators for s in o.subtasks))
        for name in sums:
            sums[name] += int(found["count"].total[name])
            sent[name] += sum(int(found[uid].total[name.replace("In", "Out")]) for uid in ("small", "large"))
    assert in_flight[0] and not in_flight[-1]
    assert sums == sent


def test_watermarks_and_how_far_they_are_behind(tmp_path: Path) -> None:
    clock = ManualClock(100_000)
    stream = events(environment(1), RECORDS, per_epoch=30, strategy=event_time(5)).key_by("key")
    graph = collect_graph(stream.process(CountPerKey(), COUNTED).uid("count"))
    with HarnessAttempt(graph, tmp_path, clock=clock) as attempt:
        found = metrics_of(attempt.run_epoch())
        assert "currentInputWatermark" not in found["events"].total
        assert found["events"].total["currentOutputWatermark"] == 290 - 5 - 1
        assert found["count"].total["currentInputWatermark"] == 290 - 5 - 1
        assert found["count"].total["watermarkLag"] == 100_000 - 284
        clock.time = 200_000
        last = metrics_of(attempt.run_epoch())
    assert last["count"].total["currentInputWatermark"] == 2**63 - 1
    assert "watermarkLag" not in last["count"].total, "nothing is behind when the input has ended"


def test_an_operator_that_is_slow_is_busy_and_holds_up_the_one_in_front_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nanos = itertools.count(0, 10_000)  # each look at the clock takes a little
    spent = [0]
    monkeypatch.setattr(TaskTimes.__init__, "__defaults__", (lambda: next(nanos) + spent[0],))

    def spin(value: Any) -> Any:
        spent[0] += 1_000_000
        return value

    stream = events(environment(1), RECORDS).map(spin, EVENT).uid("slow")
    with HarnessAttempt(collect_graph(stream), tmp_path) as attempt:
        found = metrics_of(attempt.run_epoch())
    source, slow = found["events"].total, found["slow"].total
    assert slow["busyTimeMsPerSecond"] > source["busyTimeMsPerSecond"]
    assert source["backPressuredTimeMsPerSecond"] > source["busyTimeMsPerSecond"], "the slow one is chained to it"
    assert slow["checkpointSyncDuration"] >= 0


def test_side_outputs_and_sinks_count(tmp_path: Path) -> None:
    odd = OutputTag("odd", EVENT)

    class Split(ProcessFunction):
        def process_element(self, value, ctx):
            yield (odd, value) if value.value % 2 else value

    stream = events(environment(1), RECORDS).process(Split(), EVENT).uid("split")
    stream.get_side_output(odd).sink_to(FolderSink(tmp_path / "odd")).uid("odd")
    stream.sink_to(FolderSink(tmp_path / "even")).uid("even")
    with HarnessAttempt(stream.get_execution_environment().get_job_graph(), tmp_path / "job") as attempt:
        found = metrics_of(attempt.run_epoch())
    assert found["split"].total["numRecordsOut"] == 60
    assert [found[uid].total["numRecordsIn"] for uid in ("odd", "even")] == [30, 30]


def test_numbers_go_on_behind_a_blocking_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[int] = []
    monkeypatch.setattr(CheckpointTimeline, "marked", lambda self, checkpoint_id, at: marked.extend(at))
    stream = events(environment(2), RECORDS, per_epoch=30).map(lambda v: v, EVENT).uid("first").blocking()
    graph = collect_graph(stream.key_by("key").process(CountPerKey(), COUNTED).uid("count"))
    config = {"latency_tracking_interval": timedelta(milliseconds=1)}
    with HarnessAttempt(graph, tmp_path, config=config) as attempt:
        epoch = attempt.run_epoch()
    assert len(attempt.graph.regions()) == 2
    found = metrics_of(epoch)
    assert found["first"].total["numRecordsOut"] == found["count"].total["numRecordsIn"] == 30
    assert all(sum(each[name] for name in TIMES) == 1000 for m in found.values() for each in m.subtasks)
    reached = {
        operator.uid: sum(int(s.metrics.get("latency_markers", 0)) for s in operator.subtasks)
        for operator in epoch.metadata.operators
    }
    assert reached["collect"] > 0
    assert len(marked) == reached["first.exchange"], "those of the edge's source do not count from the program's source"
