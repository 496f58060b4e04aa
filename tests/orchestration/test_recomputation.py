"""Operators whose state is not kept read again what blocking edges or sources have, while the others keep theirs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import AssetSelection, DagsterInstance, Definitions, define_asset_job, materialize
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import DEFAULT_NUM_RETAINED
from dagster_flinkpy.checkpoint.forks.fork import fork_job
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.offline import release_leadership, restore_savepoint, trigger_savepoint
from dagster_flinkpy.checkpoint.recomputation import REPLACES, TO_REPLACE, recomputation_of
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.connectors.commit.staged_files import StagedFileCommitter
from dagster_flinkpy.datastream import BroadcastProcessFunction, KeyedProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.state import MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import CommittableLostError, ConfigurationError, InputTypeError, RestoreError
from dagster_flinkpy.orchestration import (
    CheckpointStorageResource,
    FlinkAssetChecks,
    SparkResource,
    build_flink_jobs,
    flink_assets,
)
from dagster_flinkpy.orchestration.program import plan_restore, program_attempt
from dagster_flinkpy.orchestration.upgrade import switch_program
from dagster_flinkpy.runtime.blocking.segments import in_order
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from tests.checkpoint.interruptions import Died, at_request, dies
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, run_rows
from tests.runtime.master.test_partitions import Letters, day
from tests.runtime.programs import FolderSink, environment, events

ROW = Types.ROW_NAMED(["key", "count", "total"], [Types.STRING(), Types.LONG(), Types.LONG()])
FACTOR = MapStateDescriptor("factor", Types.LONG(), Types.LONG())
RECORDS = [(f"k{i % 3}", i, i) for i in range(30)]
PER_EPOCH = 6
DAY = timedelta(days=1)
SPARK = SparkResource()
Program = Callable[[], StreamExecutionEnvironment]


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_spark(self: JobAttempt, job: EpochJob) -> list[WireRow]:
        return run_rows(job)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_spark)


class Totals(KeyedProcessFunction):
    """Counts and adds up the records of each key, each record so many times."""

    kind = Types.LONG()

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", self.kind))
        self.total = context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, context: Any) -> Any:
        count, total = int(self.count.value() or 0) + 1, (self.total.value() or 0) + self.times * value.total
        self.count.update(count if self.kind == Types.LONG() else str(count))
        self.total.update(total)
        yield value.key, count, total


class Texts(Totals):
    """Keeps the count as a text, so that the state of `Totals` does not fit."""

    kind = Types.STRING()


class Multiply(BroadcastProcessFunction):
    """Multiplies each record with the factor that a static input gives."""

    def process_element(self, value: Any, context: Any) -> Any:
        yield value.key, 1, value.value * context.get_broadcast_state(FACTOR).get(0)

    def process_broadcast_element(self, value: int, context: Any) -> None:
        context.get_broadcast_state(FACTOR).put(0, value)


class Backwards(Totals):
    """Adds up in other states."""

    def __init__(self) -> None:
        super().__init__(-1)

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("n", Types.LONG()))
        self.total = context.get_state(ValueStateDescriptor("sum", Types.LONG()))


class Numbers(Totals):
    """Is in front of the blocking edge: its state shows whether it has read something twice."""

    def process_element(self, value: Any, context: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value.key, self.count.value(), value.value


def program(
    folder: Path,
    function: Any = None,
    *,
    retain: timedelta | None = DAY,
    unaligned: bool = False,
    edges: int = 1,
    sink: Any = None,
    sink_uid: str = "table",
    parallelism: int = 2,
) -> Program:
    """Returns a program of two branches behind a blocking edge, of which one is changed."""

    def build() -> StreamExecutionEnvironment:
        env = environment(parallelism)
        if unaligned:
            env.get_checkpoint_config().enable_unaligned_checkpoints()
        read = events(env, RECORDS, per_epoch=PER_EPOCH).key_by("key").process(Numbers(), ROW).uid("numbers")
        read = read.blocking(retain)
        totals = read.key_by("key").process(function or Totals(), ROW).uid("totals")
        for number in range(edges - 1):
            totals = totals.blocking(retain).map(lambda row: row, ROW).uid(f"behind-{number}")
        totals.sink_to(sink or ParquetSink(str(folder / "table"))).uid(sink_uid)
        others = read.key_by("key").process(Totals(10), ROW).uid("others")
        others.sink_to(ParquetSink(str(folder / "kept"))).uid("kept")
        return env

    return build


def job_of(folder: Path) -> StorageLocation:
    return StorageLocation(str(folder / "jobs" / "job"))


def run(
    program: Program, folder: Path, epochs: int | None = None, job: StorageLocation | None = None, **options: Any
) -> None:
    """Runs some epochs, or all that there is to read."""
    options |= {"spark": SPARK, "owner": "test", "on_progress": lambda line: None}
    with program_attempt(program, job or job_of(folder), **options) as attempt:
        if epochs is None:
            list(attempt.run_epochs())
        for _ in range(epochs or 0):
            attempt.run_epoch()


def latest(job: StorageLocation) -> CheckpointMetadata:
    found = CompletedCheckpointStore(job.open()).latest()
    assert found is not None
    return found


def files(folder: Path, name: str = "table") -> list[Path]:
    return sorted((folder / name).glob("*.parquet"))


def checkpoint_of(file: Path) -> int:
    return int(file.name.split(".")[2])


def table(folder: Path, name: str = "table") -> Any:
    """Returns what does not depend on the order of records that come over different channels."""
    rows = sorted(tuple(row.values()) for file in files(folder, name) for row in pq.read_table(file).to_pylist())
    return sorted((key, count) for key, count, _ in rows), {key: total for key, _, total in rows}


def expected(times: int = 1, epochs: int = 5, first: int = 0) -> Any:
    """Returns the table of a run that has read some epochs, from one on."""
    counts, totals = list[tuple[str, int]](), dict[str, int]()
    for key, _, value in RECORDS[PER_EPOCH * first : PER_EPOCH * epochs]:
        counts.append((key, sum(each == key for each, _ in counts) + 1))
        totals[key] = totals.get(key, 0) + times * value
    return sorted(counts), totals


def segments(folder: Path, job: str = "job") -> list[Path]:
    return sorted((folder / "jobs" / job / "exchange").rglob("*.arrow"))


@pytest.mark.parametrize("edges", [1, 2])
@pytest.mark.parametrize("unaligned", [False, True])
def test_a_changed_operator_reads_retained_segments_again_while_the_others_keep_their_state(
    tmp_path: Path, unaligned: bool, edges: int
) -> None:
    of = partial(program, tmp_path, unaligned=unaligned, edges=edges)
    run(of(), tmp_path, 3)
    before = table(tmp_path, "kept")
    number = switch_program(of(Totals(7)), job_of(tmp_path), spark=SPARK, recompute=["totals"])
    assert TO_REPLACE in latest(job_of(tmp_path)).properties
    assert table(tmp_path, "kept") == before, "nothing was read"
    run(of(Totals(7)), tmp_path)
    assert table(tmp_path) == expected(7)
    assert table(tmp_path, "kept") == expected(10)
    assert min(map(checkpoint_of, files(tmp_path))) > number, "the rows of the old version are gone"


@given(
    before=st.integers(1, 5),
    change=st.sampled_from([Totals(3), Texts(2), Backwards()]),
    unaligned=st.booleans(),
    edges=st.integers(1, 2),
    parallelism=st.sampled_from([1, 2, 3]),
    from_sources=st.booleans(),
    again=st.booleans(),
    in_switch=st.booleans(),
    at=st.integers(1, 250),
)
@settings(max_examples=examples(40), deadline=None)
def test_a_recomputation_that_dies_and_is_repeated_equals_a_run_from_the_beginning(
    tmp_path_factory: pytest.TempPathFactory,
    before: int,
    change: Totals,
    unaligned: bool,
    edges: int,
    parallelism: int,
    from_sources: bool,
    again: bool,
    in_switch: bool,
    at: int,
) -> None:
    folder = tmp_path_factory.mktemp("recompute")
    retain = None if from_sources else DAY
    old = program(folder, retain=retain, unaligned=unaligned, edges=edges)
    new = program(folder, change, retain=retain, unaligned=unaligned, edges=edges, parallelism=parallelism)
    uids = ["numbers"] if from_sources else ["totals"]
    steps = [
        lambda: switch_program(new, job_of(folder), spark=SPARK, recompute=uids),
        lambda: run(new, folder),
    ]
    run(old, folder, before)
    if again:  # nothing runs between two switches
        other = program(folder, Totals(9), retain=retain, unaligned=unaligned, edges=edges)
        switch_program(other, job_of(folder), spark=SPARK, recompute=uids)
    for number, step in enumerate(steps):
        if in_switch is (number == 0):
            with suppress(Died), at_request(at, dies):
                step()
                continue
            for name in ("job", "job_before"):
                release_leadership(job_of(folder).parent.child(name), owner="test", now_ms=current_millis())
        step()
    run(new, folder)
    assert table(folder) == expected(change.times)
    assert table(folder, "kept") == expected(10)
    assert REPLACES not in latest(job_of(folder)).properties
    assert TO_REPLACE not in latest(job_of(folder)).properties


def test_rows_up_to_since_stay_and_the_state_is_built_from_what_follows(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 4)
    switch_program(program(tmp_path, Totals(7)), job_of(tmp_path), spark=SPARK, recompute=["totals"], since="chk-2")
    run(program(tmp_path, Totals(7)), tmp_path)
    kept = [path for path in files(tmp_path) if checkpoint_of(path) <= 2]
    assert sum(pq.read_metadata(path).num_rows for path in kept) == 2 * PER_EPOCH
    for path in kept:
        path.unlink()
    assert table(tmp_path) == expected(7, first=2)


@given(
    runs=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    pick=st.integers(0, 9),
    unaligned=st.booleans(),
    edges=st.integers(1, 2),
)
@settings(max_examples=examples(40), deadline=None)
def test_no_row_up_to_since_is_lost_and_no_later_one_is_doubled(
    tmp_path_factory: pytest.TempPathFactory, runs: list[int], pick: int, unaligned: bool, edges: int
) -> None:
    folder = tmp_path_factory.mktemp("since")
    old = program(folder, unaligned=unaligned, edges=edges)
    new = program(folder, Totals(7), unaligned=unaligned, edges=edges)
    for epochs in runs:
        run(old, folder, epochs)
    if unaligned:  # until nothing is in flight
        run(old, folder)
    edge = latest(job_of(folder)).operator("numbers.exchange")
    assert edge is not None and edge.history is not None
    choices = edge.history.choices
    since = choices[pick % len(choices)]
    switch_program(new, job_of(folder), spark=SPARK, recompute=["totals"], since=f"chk-{since}")
    run(new, folder)
    later = [path for path in files(folder) if checkpoint_of(path) > since]
    (folder / "later").mkdir()
    for path in later:
        path.rename(folder / "later" / path.name)
    assert table(folder) == expected(epochs=since)
    assert table(folder, "later") == expected(7, first=since)


def test_rows_from_before_a_start_from_empty_state_stay(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 2)
    first = files(tmp_path)
    run(program(tmp_path), tmp_path, 2, start_empty=True)
    switch_program(program(tmp_path, Totals(7)), job_of(tmp_path), spark=SPARK, recompute=["totals"])
    run(program(tmp_path, Totals(7)), tmp_path)
    assert {*first} < {*files(tmp_path)}
    for file in first:
        file.unlink()
    assert table(tmp_path) == expected(7)


def test_an_operator_without_a_blocking_edge_before_it_reads_the_sources_again(tmp_path: Path) -> None:
    def build(times: int) -> Program:
        def of() -> StreamExecutionEnvironment:
            env = environment(1)
            for uid, factor in (("a", times), ("b", 1)):
                read = events(env, RECORDS, uid=f"{uid}-events", per_epoch=PER_EPOCH).key_by("key")
                read = read.process(Numbers(), ROW).uid(f"{uid}-numbers").key_by("key")
                totals = read.process(Totals(factor), ROW).uid(f"{uid}-totals")
                totals.sink_to(ParquetSink(str(tmp_path / uid))).uid(f"{uid}-table")
            return env

        return of

    run(build(1), tmp_path, 2)
    job = job_of(tmp_path)
    plan = plan_restore(build(7), open_checkpoint(job), recompute=["a-totals"])
    assert plan.recomputation is not None
    assert plan.recomputation.sources == ("a-events",)
    assert plan.problem is None
    switch_program(build(7), job, spark=SPARK, recompute=["a-totals"])
    assert table(tmp_path, "a") == expected(1, epochs=2), "until there are others"
    run(build(7), tmp_path, 2)
    assert table(tmp_path, "a") == expected(7, epochs=2)
    assert table(tmp_path, "b") == expected(1, epochs=4), "it has gone on"
    run(build(7), tmp_path)
    assert table(tmp_path, "a") == expected(7)
    assert table(tmp_path, "b") == expected(1)
    with pytest.raises(ConfigurationError, match="'a-events' are read with them"):
        switch_program(build(7), job, spark=SPARK, recompute=["a-totals"], since="chk-1")


def test_rows_from_before_a_start_from_empty_state_stay_if_sources_are_read_again(tmp_path: Path) -> None:
    of = partial(program, tmp_path, retain=None)
    run(of(), tmp_path, 2)
    first = files(tmp_path)
    run(of(), tmp_path, 1, start_empty=True)
    run(of(), tmp_path, 1)
    planned = plan_restore(of(Totals(7)), open_checkpoint(job_of(tmp_path)), recompute=["numbers"])
    assert (
        "read again from the beginning: sources 'events'. Rows of what they no longer have are lost from the sinks"
        in (planned.of_recomputation)
    )
    switch_program(of(Totals(7)), job_of(tmp_path), spark=SPARK, recompute=["numbers"])
    run(of(Totals(7)), tmp_path)
    assert {*first} < {*files(tmp_path)}
    for file in first:
        file.unlink()
    assert table(tmp_path) == expected(7)


def test_a_static_input_is_read_again_whole_also_since_a_checkpoint(tmp_path: Path) -> None:
    def of(times: int) -> Program:
        def build() -> StreamExecutionEnvironment:
            env = environment(1)
            read = events(env, RECORDS, per_epoch=PER_EPOCH).blocking(DAY)
            factors = env.from_collection([times], Types.LONG()).uid("factors").static()
            both = read.connect(factors.broadcast(FACTOR)).process(Multiply(), ROW).uid("multiply")
            both.sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
            return env

        return build

    run(of(1), tmp_path, 3)
    switch_program(of(7), job_of(tmp_path), spark=SPARK, recompute=["multiply"], since="chk-1")
    run(of(7), tmp_path)
    rows = [row for file in files(tmp_path) for row in pq.read_table(file).to_pylist()]
    assert sorted(row["total"] for row in rows) == sorted(
        value * (1 if number < PER_EPOCH else 7) for number, (_, _, value) in enumerate(RECORDS)
    )


def test_the_plan_says_what_does_not_fit_and_from_what_it_can_be_recomputed(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 3)
    stored = open_checkpoint(job_of(tmp_path))
    refused = plan_restore(program(tmp_path, Texts()), stored)
    assert refused.problem is not None
    assert refused.of_recomputation[0] == "a switch could recompute it:"
    planned = plan_restore(program(tmp_path, Texts()), stored, recompute=["totals"])
    assert planned.problem is None
    size = sum(path.stat().st_size for path in segments(tmp_path))
    assert planned.of_recomputation == [
        "recomputed: 'totals', 'table'",
        f"read again: what the blocking edges after 'numbers' keep since the beginning of the job: 18 records, "
        f"{size:,} bytes",
        "replaced: the rows that sinks 'table' have written since the beginning of the job",
    ]
    states = {each.uid: each.state.value for each in planned.evolution.operators}
    assert (states["totals"], states["others"], states["numbers"]) == ("recomputed", "kept", "kept")
    assert planned.to_json()["recomputation"]["sinks"] == ["table"]
    switch_program(program(tmp_path, Texts()), job_of(tmp_path), spark=SPARK, recompute=["totals"])
    run(program(tmp_path, Texts()), tmp_path)
    assert table(tmp_path) == expected()


def test_nothing_is_changed_if_what_would_be_read_again_is_not_there(tmp_path: Path) -> None:
    run(program(tmp_path, retain=None), tmp_path, 1)
    job = job_of(tmp_path)

    def refused(error: type[Exception], match: str, new: Program | None = None, **options: Any) -> None:
        before = latest(job).checkpoint_id
        with pytest.raises(error, match=match):
            switch_program(new or program(tmp_path), job, spark=SPARK, **{"recompute": ["totals"], **options})
        assert latest(job).checkpoint_id == before
        assert list(job.parent.open().list_folders()) == ["job/"]

    refused(RestoreError, "the blocking edge after 'numbers' keeps nothing that was read")
    run(program(tmp_path), tmp_path, 2)  # from now on it does
    refused(RestoreError, r"does not keep all since the beginning of the job.*with since: chk-2, chk-3")
    refused(RestoreError, "does not keep all since checkpoint 1", since="chk-1")
    refused(ConfigurationError, "must be a checkpoint, such as chk-7", since="7")
    refused(ConfigurationError, "name them with recompute", recompute=[], since="chk-2")
    refused(ConfigurationError, "the program has no such operator", recompute=["else"])
    refused(ConfigurationError, "give it the uid 'table'", program(tmp_path, sink_uid="renamed"), since="chk-2")
    folder = program(tmp_path, sink=FolderSink(tmp_path / "folder"))
    refused(ConfigurationError, "nothing before sink 'table' can be recomputed", folder, since="chk-2")
    planned = plan_restore(folder, open_checkpoint(job), recompute=["totals"], since="chk-2")
    assert "nothing before sink 'table' can be recomputed" in str(planned.problem)
    switch_program(program(tmp_path), job, spark=SPARK, recompute=["totals"], since="chk-2")


def test_a_sink_that_was_left_out_meanwhile_is_put_back_before_its_rows_are_replaced(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 2)
    gone = program(tmp_path, sink=ParquetSink(str(tmp_path / "elsewhere")), sink_uid="elsewhere")
    run(gone, tmp_path, 1, allow_non_restored_state=True)
    new, job = program(tmp_path, Totals(7)), job_of(tmp_path)
    before = latest(job)
    with pytest.raises(ConfigurationError, match=r"'table' can be recomputed: it has rows .* up to checkpoint 2"):
        switch_program(new, job, spark=SPARK, recompute=["totals"])
    assert latest(job) == before
    planned = plan_restore(new, open_checkpoint(job), recompute=["totals"], allow_non_restored_state=True)
    assert "Switch to the program without recomputing first" in str(planned.problem)
    run(program(tmp_path), tmp_path, 1, allow_non_restored_state=True)
    switch_program(new, job, spark=SPARK, recompute=["totals"])
    run(new, tmp_path)
    assert table(tmp_path) == expected(7)


def test_a_checkpoint_from_before_rows_were_replaced_is_not_restored_after_that(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 3)
    new = program(tmp_path, Totals(7))
    number = switch_program(new, job_of(tmp_path), spark=SPARK, recompute=["totals"])
    savepoint = trigger_savepoint(job_of(tmp_path))
    run(new, tmp_path, 0, restore_from=f"chk-{number}")
    run(new, tmp_path, 1)
    options: dict[str, Any] = {"owner": "test", "now_ms": current_millis(), "allow_pickled_state": True}
    with pytest.raises(RestoreError, match="from the middle of a recomputation"):
        restore_savepoint(job_of(tmp_path), StorageLocation(savepoint), **options)
    with pytest.raises(RestoreError, match="from the middle of a recomputation, and sink 'table' has written rows"):
        run(new, tmp_path, restore_from=f"chk-{number}")
    run(new, tmp_path)
    assert table(tmp_path) == expected(7)


def test_a_run_whose_sink_cannot_replace_its_rows_any_more_is_refused_before_it_reads(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 3)
    switch_program(program(tmp_path, Totals(7)), job_of(tmp_path), spark=SPARK, recompute=["totals"])
    before = latest(job_of(tmp_path))
    with pytest.raises(ConfigurationError, match="it cannot replace the rows that it has written"):
        run(program(tmp_path, Totals(7), sink=FolderSink(tmp_path / "folder")), tmp_path)
    assert latest(job_of(tmp_path)) == before
    run(program(tmp_path, Totals(7)), tmp_path)
    assert table(tmp_path) == expected(7)


def test_any_sink_can_write_all_rows_to_another_place(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 2)
    sink = FolderSink(tmp_path / "folder")
    new = program(tmp_path, Totals(7), sink=sink, sink_uid="other_table")
    switch_program(new, job_of(tmp_path), spark=SPARK, recompute=["totals"])
    run(new, tmp_path)
    assert table(tmp_path) == expected(epochs=2)
    assert (sorted((key, count) for key, count, _ in sink.rows()), {k: t for k, _, t in sink.rows()}) == expected(7)


def test_a_segment_that_is_written_anew_is_the_one_that_is_kept(tmp_path: Path) -> None:
    graph, lost = program(tmp_path)().get_job_graph(), list[Path]()

    class Attempt(HarnessAttempt):
        def _on_spark(self, job: EpochJob) -> list[WireRow]:
            if job.region == 1 and not lost:
                lost.append(sorted((tmp_path / "jobs").rglob("*.arrow"))[0])
                lost[0].unlink()
            return run_rows(job)

    restarts = {"failover": FailoverConfig(FixedDelayRestart(3, timedelta(0)))}
    with Attempt(graph, tmp_path / "jobs", config=restarts) as attempt:
        attempt.run_epoch()
    [path] = lost
    found = latest(job_of(tmp_path)).files()
    assert not path.exists()
    assert verify_files(job_of(tmp_path), found) == set()
    switch_program(program(tmp_path, Totals(7)), job_of(tmp_path), spark=SPARK, recompute=["totals"])
    run(program(tmp_path, Totals(7)), tmp_path)
    assert table(tmp_path) == expected(7)


def verify_files(job: StorageLocation, files: set[str]) -> set[str]:
    """Returns those that do not exist."""
    store = job.open()
    return {file for file in files if store.head(file) is None}


def test_segments_are_kept_for_as_long_as_the_edge_retains_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [current_millis()]
    monkeypatch.setattr("dagster_flinkpy.runtime.master.job.current_millis", lambda: now[0])
    of, job = program(tmp_path, retain=timedelta(hours=1)), job_of(tmp_path)
    run(of, tmp_path, 1)
    first = segments(tmp_path)
    now[0] += 40 * 60_000
    run(of, tmp_path, 1)
    second = [path for path in segments(tmp_path) if path not in first]
    assert first and second and {*first} < {*segments(tmp_path)}
    assert sweep(job.open(), timedelta(0)).files == 0
    now[0] += 40 * 60_000
    run(of, tmp_path, 1)
    history = latest(job).operator("numbers.exchange")
    assert history is not None and history.history is not None
    assert (history.history.after, history.history.choices) == (1, [2, 3])
    assert {*first, *second} < {*segments(tmp_path)}, "checkpoints that are kept name them"
    run(of, tmp_path, DEFAULT_NUM_RETAINED)
    assert not {*first} & {*segments(tmp_path)} and {*second} < {*segments(tmp_path)}
    run(program(tmp_path, retain=None), tmp_path, DEFAULT_NUM_RETAINED)
    assert segments(tmp_path) == []


def test_rows_of_a_run_between_the_plan_and_the_switch_are_replaced_too(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 3)
    new = program(tmp_path, Totals(7))
    planned = recomputation_of(latest(job_of(tmp_path)), new().get_job_graph(), ["totals"])
    run(program(tmp_path), tmp_path, 1)
    options: dict[str, Any] = {"spark": SPARK, "owner": "test", "on_progress": lambda line: None}
    with program_attempt(new, job_of(tmp_path), recomputation=planned, **options) as attempt:
        attempt.commit_restored()
    run(new, tmp_path)
    assert table(tmp_path) == expected(7)


def test_rows_of_another_job_that_restores_a_savepoint_from_the_middle_of_a_recomputation_stay(tmp_path: Path) -> None:
    of, folder = partial(program, tmp_path), tmp_path / "other"
    other = StorageLocation(str(folder / "jobs" / "other"))
    run(of(), tmp_path, 3)
    run(program(folder), folder, 3, job=other)
    before = files(folder)
    switch_program(of(Totals(7)), job_of(tmp_path), spark=SPARK, recompute=["totals"])
    savepoint = trigger_savepoint(job_of(tmp_path))
    run(program(folder, Totals(7)), folder, job=other, restore_from=savepoint, allow_pickled_state=True)
    assert {*before} < {*files(folder)}
    for file in before:
        file.unlink()
    assert table(folder) == expected(7)
    run(of(Totals(7)), tmp_path, restore_from=savepoint)
    assert table(tmp_path) == expected(7)


def test_a_sink_replaces_its_rows_although_another_one_has_lost_what_it_had_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = StagedFileCommitter._complete

    def lost(self: StagedFileCommitter, file: Any, where: str, checkpoint_id: int) -> None:
        if ".kept." in file.key:
            raise CommittableLostError.of(checkpoint_id, "gone")
        complete(self, file, where, checkpoint_id)

    run(program(tmp_path), tmp_path, 2)
    new = program(tmp_path, Totals(7))
    number = switch_program(new, job_of(tmp_path), spark=SPARK, recompute=["totals"])
    with monkeypatch.context() as patched, pytest.raises(CommittableLostError):
        patched.setattr(StagedFileCommitter, "_complete", lost)
        run(new, tmp_path, 1)
    with monkeypatch.context() as patched:
        patched.setattr(StagedFileCommitter, "_complete", lost)
        run(new, tmp_path, 0, restore_from=f"chk-{number + 1}")
    run(new, tmp_path)
    assert table(tmp_path) == expected(7)


def test_retained_records_are_read_by_the_names_of_their_fields_if_these_have_another_order_now(tmp_path: Path) -> None:
    row = Types.ROW_NAMED(["total", "key", "count"], [Types.LONG(), Types.STRING(), Types.LONG()])

    class Swapped(Numbers):
        def process_element(self, value: Any, context: Any) -> Any:
            for key, count, total in super().process_element(value, context):
                yield total, key, count

    def of() -> StreamExecutionEnvironment:
        env = environment(2)
        read = events(env, RECORDS, per_epoch=PER_EPOCH).key_by("key").process(Swapped(), row).uid("numbers")
        read = read.blocking(DAY)
        for uid, times, name in (("totals", 7, "table"), ("others", 10, "kept")):
            totals = read.key_by("key").process(Totals(times), ROW).uid(uid)
            totals.sink_to(ParquetSink(str(tmp_path / name))).uid(name)
        return env

    run(program(tmp_path), tmp_path, 3)
    switch_program(of, job_of(tmp_path), spark=SPARK, recompute=["totals"])
    run(of, tmp_path)
    assert table(tmp_path) == expected(7)
    assert table(tmp_path, "kept") == expected(10)


@pytest.mark.parametrize("nulls", [False, True])
def test_fields_are_put_in_order_by_name_and_refused_if_they_are_others(nulls: bool) -> None:
    rows = [{"a": 1, "b": 2}, {"a": None, "b": 3}, *([None] if nulls else [])]
    records = pa.array(rows, pa.struct([("a", pa.int64()), ("b", pa.int64())]))
    assert in_order(records.slice(1), ["b", "a"], "edge").to_pylist() == rows[1:]
    assert [field.name for field in in_order(records, ["b", "a"], "edge").type] == ["b", "a"]
    assert in_order(records, ["a", "b"], "edge") is records
    for others in (["b", "c"], ["a"], ["a", "b", "c"]):
        with pytest.raises(InputTypeError, match="the blocking edge after 'before' has kept records with the fields"):
            in_order(records, others, "before.exchange")


@pytest.mark.parametrize("names", [["key", "count", "sum"], ["key", "count", "total", "more"], ["key", "total"]])
def test_nothing_is_changed_if_the_records_that_an_edge_has_kept_have_other_fields(
    tmp_path: Path, names: list[str]
) -> None:
    row = Types.ROW_NAMED(names, [Types.STRING(), *[Types.LONG()] * (len(names) - 1)])

    class Others(Numbers):
        def process_element(self, value: Any, context: Any) -> Any:
            for key, count, total in super().process_element(value, context):
                yield tuple({"key": key, "count": count, "more": 0}.get(name, total) for name in names)

    def of() -> StreamExecutionEnvironment:
        env = environment(2)
        read = events(env, RECORDS, per_epoch=PER_EPOCH).key_by("key").process(Others(), row).uid("numbers")
        read = read.blocking(DAY).map(lambda value: (value[0], 0, 7 * value[-1]), ROW).uid("named").key_by("key")
        read.process(Totals(), ROW).uid("totals").sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
        return env

    run(program(tmp_path), tmp_path, 2)
    before = latest(job_of(tmp_path))
    with pytest.raises(InputTypeError, match=r"the blocking edge after 'numbers' .* recompute 'numbers', too"):
        switch_program(of, job_of(tmp_path), spark=SPARK, recompute=["totals"])
    assert latest(job_of(tmp_path)) == before


def test_a_job_that_is_partitioned_by_time_is_refused_also_after_a_switch_that_keeps_all_state(tmp_path: Path) -> None:
    def of() -> StreamExecutionEnvironment:
        env = environment(1)
        letters = env.from_source(Letters(), WatermarkStrategy.no_watermarks(), "letters").uid("letters")
        letters.sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
        return env

    with HarnessAttempt(of().get_job_graph(), tmp_path / "jobs") as attempt:
        attempt.run_epoch(partition=day(0))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="is partitioned by time"):
            switch_program(of, job_of(tmp_path), spark=SPARK, recompute=["table"])
        switch_program(of, job_of(tmp_path), spark=SPARK)
    assert latest(job_of(tmp_path)).partition is None


def test_a_fork_keeps_the_segments_and_a_savepoint_does_not(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 2)
    job = job_of(tmp_path)
    fork = job.parent.child("fork")
    savepoint = StorageLocation(trigger_savepoint(job))
    fork_job(job, "fork")
    store = job.open()
    store.delete_many([info.key for info in savepoint.open().list()])
    elsewhere = tmp_path / "elsewhere"
    run(program(tmp_path, retain=None), tmp_path, 1)
    assert segments(tmp_path), "the fork needs them"
    switch_program(program(elsewhere, Totals(7)), fork, spark=SPARK, recompute=["totals"])
    run(program(elsewhere, Totals(7)), tmp_path, job=fork)
    assert table(elsewhere) == expected(7)


def test_dagster_shows_the_assets_as_out_of_sync_before_and_fresh_after(tmp_path: Path) -> None:
    resources = {"spark": SPARK, "checkpoint_storage": CheckpointStorageResource(url=str(tmp_path / "jobs"))}
    config = {"ops": {"switch_job": {"config": {"recompute": ["totals"]}}}}

    with DagsterInstance.ephemeral() as instance:

        def stale(new: Program) -> set[str]:
            assets = flink_assets(new, name="job")
            graph = Definitions(assets, resources=resources).resolve_asset_graph()
            resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
            keys = [spec.key for spec in assets[0].specs]
            return {key.path[-1] for key in keys if resolver.get_status(key) is not StaleStatus.FRESH}

        old, new = program(tmp_path), program(tmp_path, Totals(7))
        assert materialize(flink_assets(old, name="job"), instance=instance, resources=resources).success
        assert stale(old) == set()
        assert "totals" in stale(new) and "others" not in stale(new)
        [switch] = [each for each in build_flink_jobs(new, name="job") if each.name == "job_switch"]
        assert switch.execute_in_process(config, resources=resources, instance=instance).success
        assert materialize(flink_assets(new, name="job"), instance=instance, resources=resources).success
        assert stale(new) == set()
    assert table(tmp_path) == expected(7, epochs=2)


@pytest.mark.parametrize("live", [False, True])
def test_a_job_that_has_ended_ends_again(tmp_path: Path, live: bool) -> None:
    with HarnessAttempt(program(tmp_path)().get_job_graph(), tmp_path / "jobs", live=live) as attempt:
        list(attempt.run_epochs())
        assert attempt.finished
    new = program(tmp_path, Totals(7))().get_job_graph()
    found = recomputation_of(latest(job_of(tmp_path)), new, ["totals"])
    with HarnessAttempt(new, tmp_path / "jobs", live=live, recomputation=found) as attempt:
        assert len(list(attempt.run_epochs())) == 1
        assert attempt.finished
    assert table(tmp_path) == expected(7)
    assert table(tmp_path, "kept") == expected(10)


def test_the_check_of_the_state_says_what_can_be_recomputed(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 2)
    resources = {"spark": SPARK, "checkpoint_storage": CheckpointStorageResource(url=str(tmp_path / "jobs"))}
    assets = flink_assets(program(tmp_path, Texts()), name="job", checks=FlinkAssetChecks())
    mine = [key for each in assets for key in each.check_keys if key.name == "state_evolution"]
    chosen = define_asset_job("chosen", AssetSelection.checks(*mine))
    job = Definitions(assets, resources=resources, jobs=[chosen]).resolve_job_def("chosen")
    with DagsterInstance.ephemeral() as instance:
        found = job.execute_in_process(instance=instance, raise_on_error=False).get_asset_check_evaluations()
    [check] = [each for each in found if each.asset_key.path[-1] == "totals"]
    assert not check.passed
    assert "recomputed: 'totals', 'table'" in str(check.metadata["changes"].value)
