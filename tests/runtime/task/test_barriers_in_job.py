"""Barriers of jobs whose gates align, count or do neither, and restores from them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.savepoints.savepoint import write_savepoint
from dagster_flinkpy.common.clock import Clock
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import CorruptStateError, RestoreError
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.storage import StorageLocation
from tests.examples import examples
from tests.runtime.harness import (
    HarnessAttempt,
    Order,
    collect_graph,
    collected,
    make_job,
    random_order,
    run_rows,
    spark_order,
)
from tests.runtime.programs import COUNTED, CountPerKey, FolderSink, environment, events

RECORDS = [(f"k{i % 5}", i * 10, i) for i in range(60)]
UNALIGNED = CoordinatorConfig(unaligned=True)
slow = settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])


def counted(parallelism: int, per_epoch: int | None, sink: FolderSink | None = None) -> JobGraph:
    """Counts per key after two shuffles, so that barriers pass several gates with many channels."""
    stream = events(environment(parallelism), RECORDS, per_epoch=per_epoch).rebalance().map(lambda v: v).uid("map")
    typed = stream.map(lambda v: v, events(environment(), RECORDS).get_type()).uid("typed")
    counts = typed.key_by("key").process(CountPerKey(), COUNTED).uid("count")
    if sink is None:
        return collect_graph(counts)
    counts.sink_to(sink).uid("sink")
    return counts.get_execution_environment().get_job_graph()


def totals(rows: list[Any]) -> dict[str, tuple[int, int]]:
    """Returns the last count and sum of each key. Counts only grow."""
    last: dict[str, tuple[int, int]] = {}
    for key, count, total in rows:
        last[key] = max(last.get(key, (0, 0)), (count, total))
    return last


EXPECTED = {f"k{k}": (12, sum(i for i in range(60) if i % 5 == k)) for k in range(5)}


def run(
    graph: JobGraph,
    folder: Path,
    *,
    order: Order = spark_order,
    checkpointing: CoordinatorConfig | None = None,
) -> tuple[list[Any], list[int], list[Any]]:
    """Runs to the end, with an attempt per epoch. Returns records, checkpoints and in-flight data."""
    records: list[Any] = []
    ids: list[int] = []
    in_flight: list[Any] = []
    config = {"checkpointing": checkpointing or CoordinatorConfig()}
    finished = False
    while not finished:
        with HarnessAttempt(graph, folder, order=order, config=config) as attempt:
            epoch = attempt.run_epoch()
            records += collected(attempt.graph, attempt.collected)
            ids.append(epoch.checkpoint_id)
            in_flight += [c for o in epoch.metadata.operators for s in o.subtasks for c in s.channel_state]
            finished = attempt.finished
    return records, ids, in_flight


@slow
@given(parallelism=st.integers(1, 3), seed=st.integers(0, 99))
def test_the_order_of_channels_changes_no_state(
    parallelism: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("job")
    records, ids, in_flight = run(counted(parallelism, 10), folder, order=random_order(seed))
    assert sorted(count for key, count, _ in records if key == "k0") == list(range(1, 13))
    assert totals(records) == EXPECTED
    assert ids == [1, 2, 3, 4, 5, 6]
    assert in_flight == []


@slow
@given(parallelism=st.integers(1, 3), seed=st.integers(0, 99))
def test_unaligned_checkpoints_lose_nothing_and_repeat_nothing(
    parallelism: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("job")
    graph = counted(parallelism, 10)
    records, _, _ = run(graph, folder, order=random_order(seed), checkpointing=UNALIGNED)
    assert sorted(count for key, count, _ in records if key == "k0") == list(range(1, 13))
    assert totals(records) == EXPECTED


@slow
@given(parallelism=st.integers(1, 3), seed=st.integers(0, 99))
def test_at_least_once_counts_all_when_nothing_fails(
    parallelism: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = CoordinatorConfig(mode=CheckpointingMode.AT_LEAST_ONCE)
    folder = tmp_path_factory.mktemp("job")
    graph = counted(parallelism, 10)
    with HarnessAttempt(graph, folder, order=random_order(seed), config={"checkpointing": config}) as attempt:
        records: list[Any] = []
        while not attempt.finished:
            attempt.run_epoch()
            records += collected(attempt.graph, attempt.collected)
    assert totals(records) == EXPECTED


COUNTS = list(range(1, 83))
"""The rows of key k0 for the records below: each count once."""


def skewed() -> JobGraph:
    """Returns a program with two epochs and two channels, one of which carries much more, after the other's barrier."""
    big = [(f"k{i % 5}", i, i) for i in range(400)]
    env = environment(1)
    left = events(env, RECORDS[:10], uid="left", per_epoch=5)
    right = events(env, big, uid="right", per_epoch=200, batch_size=20)
    return collect_graph(left.union(right).key_by("key").process(CountPerKey(), COUNTED).uid("count"))


def test_in_flight_data_is_kept_with_the_checkpoint_and_comes_first(tmp_path: Path) -> None:
    graph = skewed()
    config = {"checkpointing": UNALIGNED}
    with HarnessAttempt(graph, tmp_path, config=config) as attempt:
        epoch = attempt.run_epoch()
        before = collected(attempt.graph, attempt.collected)
        state = epoch.metadata.operator("count")
    assert state is not None and state.subtasks[0].channel_state
    assert len(before) < 205
    with HarnessAttempt(graph, tmp_path, config=config) as attempt:
        last = attempt.run_epoch()
        after = collected(attempt.graph, attempt.collected)
    assert sorted(count for key, count, _ in before + after if key == "k0") == COUNTS
    # Nothing may be in flight when the input has ended: no epoch follows.
    assert attempt.finished and not any(s.channel_state for o in last.metadata.operators for s in o.subtasks)


def test_large_in_flight_data_is_a_file_that_savepoints_take_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_flinkpy.state.files.operator_state.INLINE_BELOW", 100)
    graph = skewed()
    with HarnessAttempt(graph, tmp_path / "a", config={"checkpointing": UNALIGNED}) as attempt:
        epoch = attempt.run_epoch()
        before = collected(attempt.graph, attempt.collected)
        savepoint = attempt.savepoint()
        again = (
            f"{tmp_path}/{write_savepoint(epoch.metadata, attempt._store.store, StorageLocation(str(tmp_path)).open())}"
        )
    files = epoch.metadata.files()
    assert any((tmp_path / "a" / "job" / file).stat().st_size for file in files)
    for number, (name, parallelism) in enumerate(((savepoint, None), (again, None), (savepoint, 2), (savepoint, 3))):
        folder = tmp_path / f"of-{number}"
        with HarnessAttempt(graph, folder, restore_from=name, parallelism=parallelism) as attempt:
            attempt.run_epoch()
            after = collected(attempt.graph, attempt.collected)
        assert sorted(count for key, count, _ in before + after if key == "k0") == COUNTS
    (channel_file,) = epoch.metadata.operator("count").subtasks[0].operator_state_files()
    (tmp_path / "a" / "job" / channel_file).write_bytes(b"damaged")
    with HarnessAttempt(graph, tmp_path / "a") as attempt, pytest.raises(CorruptStateError, match="damaged"):
        attempt.run_epoch()


def test_in_flight_data_of_an_edge_that_is_gone_is_refused(tmp_path: Path) -> None:
    with HarnessAttempt(skewed(), tmp_path, config={"checkpointing": UNALIGNED}) as attempt:
        attempt.run_epoch()
    left = events(environment(1), RECORDS[:10], uid="left", per_epoch=5)
    changed = collect_graph(left.key_by("key").process(CountPerKey(), COUNTED).uid("count"))
    with (
        HarnessAttempt(changed, tmp_path, allow_non_restored_state=True) as attempt,
        pytest.raises(RestoreError, match="in-flight data from operator 'right' to 'count'"),
    ):
        attempt.run_epoch()


class Ticking(Clock):
    """A clock that advances by a minute at each reading."""

    def __init__(self) -> None:
        self._now = 0

    def now(self) -> int:
        self._now += 60_000
        return self._now


@pytest.mark.parametrize(("timeout", "in_flight"), [(timedelta(seconds=1), True), (timedelta(days=9), False)])
def test_alignment_goes_over_to_unaligned_when_it_takes_too_long(
    tmp_path: Path, timeout: timedelta, in_flight: bool
) -> None:
    job = replace(make_job(skewed(), tmp_path), alignment_timeout=timeout, clock=Ticking())
    results = EpochResults.of(run_rows(job), 1)
    assert results.failure is None
    states = {task.uid: state for task, state in results.states.items()}
    assert bool(states["count"].channel_state) == in_flight


# --- checkpoints of one attempt ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [False, True])
def test_each_barrier_is_a_checkpoint_of_its_own_and_they_complete_in_order(tmp_path: Path, live: bool) -> None:
    sink = FolderSink(tmp_path / "sink")
    config = {"checkpointing": CoordinatorConfig(num_retained=3)}
    with HarnessAttempt(counted(2, 10, sink), tmp_path, live=live, config=config) as attempt:
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs(4)] == [1, 2, 3, 4]
        store = attempt._store
        kept = [store.load(i) for i in store.retained()]
    assert [m.checkpoint_id for m in kept] == [2, 3, 4]
    assert [m.parent_id for m in kept] == [1, 2, 3]
    assert {int(f.name.split(".")[0]) for f in (tmp_path / "sink" / "committed").iterdir()} == {1, 2, 3, 4}
    assert len(sink.rows()) == 40 and sink.staged() == []
    for metadata in kept:
        count = metadata.operator("count")
        assert count is not None
        assert sum(s.metrics["records_in"] for s in count.subtasks) == 10
        assert metadata.operator("events").coordinator_state["next"] == metadata.checkpoint_id * 10


@pytest.mark.parametrize("checkpoint_id", [2, 3])
def test_every_checkpoint_of_the_job_can_be_gone_on_from(tmp_path: Path, checkpoint_id: int) -> None:
    graph = counted(2, 10)
    config = {"checkpointing": CoordinatorConfig(num_retained=9)}
    with HarnessAttempt(graph, tmp_path, config=config) as attempt:
        list(attempt.run_epochs(4))
    records: list[Any] = []
    with HarnessAttempt(graph, tmp_path, config=config, restore_from=f"chk-{checkpoint_id}") as attempt:
        for _ in attempt.run_epochs():
            records += collected(attempt.graph, attempt.collected)
    assert len(records) == 60 - 10 * checkpoint_id
    assert totals(records) == EXPECTED


def test_each_file_is_read_once_whichever_barrier_ends_its_epoch(tmp_path: Path) -> None:
    (folder := tmp_path / "files").mkdir()
    for i in range(5):
        pq.write_table(pa.table({"n": [i * 2, i * 2 + 1]}), folder / f"{i}.parquet")
    source = ParquetSource(str(folder), bounded=True, max_files_per_epoch=2)
    env = environment(1)
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "files").uid("files")
    records, ids, _ = run(collect_graph(rows.map(lambda row: row.n, Types.LONG())), tmp_path / "state")
    assert (records, ids) == (list(range(10)), [1, 2, 3])


# --- latency ----------------------------------------------------------------------------------------------------------


def test_latency_markers_reach_every_operator(tmp_path: Path) -> None:
    with HarnessAttempt(
        counted(2, None), tmp_path, config={"latency_tracking_interval": timedelta(milliseconds=1)}
    ) as attempt:
        epoch = attempt.run_epoch()
    for operator in epoch.metadata.operators:
        markers = sum(s.metrics.get("latency_markers", 0) for s in operator.subtasks)
        assert bool(markers) == (operator.uid != "events")
        for s in operator.subtasks:
            if s.metrics.get("latency_markers"):
                assert 0 <= s.metrics["latency_ms_p50"] <= s.metrics["latency_ms_p99"] <= s.metrics["latency_ms_max"]
    phases = epoch.statistics.history[-1].phases
    assert phases is not None and phases.latency_ms_p50 is not None and phases.latency_ms_p99 is not None
    end = epoch.metadata.operator("collect")
    assert end is not None
    assert phases.latency_ms_p99 >= max(s.metrics.get("latency_ms_max", 0) for s in end.subtasks), "then the commit"


def test_no_latency_markers_are_sent_unless_asked_for(tmp_path: Path) -> None:
    with HarnessAttempt(counted(1, None), tmp_path) as attempt:
        epoch = attempt.run_epoch()
    assert not any("latency_markers" in s.metrics for o in epoch.metadata.operators for s in o.subtasks)
    phases = epoch.statistics.history[-1].phases
    assert phases is not None and phases.latency_ms_p50 is None
