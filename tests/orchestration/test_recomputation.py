"""Operators whose state is not kept read again what blocking edges or sources have, while the others keep theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
from dagster_flinkpy.checkpoint.offline import release_leadership, trigger_savepoint
from dagster_flinkpy.checkpoint.recomputation import REPLACES, TO_REPLACE, recomputation_of
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.common import TypeInformation, Types, WatermarkStrategy
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.connectors.delta.committer import DeltaCommitter
from dagster_flinkpy.connectors.iceberg.committer import IcebergCommitter
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.errors import CheckpointError, ConfigurationError, InputTypeError, RestoreError
from dagster_flinkpy.orchestration import (
    CheckpointStorageResource,
    FlinkAssetChecks,
    build_flink_jobs,
    flink_assets,
)
from dagster_flinkpy.orchestration.program import plan_restore, program_attempt
from dagster_flinkpy.orchestration.upgrade import UpgradeVerdict, prove_upgrade, roll_back, switch_program
from dagster_flinkpy.runtime.blocking.segments import in_order
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from tests.checkpoint.interruptions import Died, at_request, dies
from tests.examples import examples
from tests.orchestration.recomputed import (
    DAY,
    FACTOR,
    PER_EPOCH,
    RECORDS,
    ROW,
    SPARK,
    Backwards,
    Multiply,
    Numbers,
    Program,
    Texts,
    Totals,
    checkpoint_of,
    expected,
    files,
    job_of,
    latest,
    program,
    run,
    segments,
    sink_of,
    table,
)
from tests.runtime.harness import HarnessAttempt, run_rows
from tests.runtime.master.test_partitions import Letters, day
from tests.runtime.programs import FolderSink, environment, events

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.mark.short
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


@pytest.mark.system
@given(
    before=st.integers(1, 5),
    change=st.sampled_from([Totals(3), Texts(2), Backwards()]),
    unaligned=st.booleans(),
    edges=st.integers(1, 2),
    parallelism=st.sampled_from([1, 2, 3]),
    from_sources=st.booleans(),
    by_version=st.booleans(),
    again=st.booleans(),
    dying=st.sampled_from(["prove", "switch", "run"]),
    at=st.integers(1, 250),
    kind=st.sampled_from(["files", "delta", "iceberg", "branch"]),
    in_commit=st.sampled_from(["", "before", "after"]),
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
    by_version: bool,
    again: bool,
    dying: str,
    at: int,
    kind: str,
    in_commit: str,
) -> None:
    folder = tmp_path_factory.mktemp("recompute")
    retain, sink = None if from_sources else DAY, sink_of(kind, folder)
    of = partial(program, folder, retain=retain, unaligned=unaligned, edges=edges, sink=sink)
    old, new = of(), of(change, parallelism=parallelism)
    asked: dict[str, Any] = {"recompute": ["numbers"] if from_sources else ["totals"]}
    if by_version:  # the operator before the edge has not changed
        asked = {**({} if not from_sources else asked), "recompute_changed": True}

    def prove() -> None:
        report = prove_upgrade(old, new, job_of(folder), spark=SPARK, **asked)
        [found, _] = report.tables
        assert (report.verdict, found.before) == (UpgradeVerdict.DIFFERENT, found.after)
        assert found.after >= PER_EPOCH * before

    steps: dict[str, Callable[[], Any]] = {
        "prove": prove,
        "switch": lambda: switch_program(new, job_of(folder), spark=SPARK, **asked),
        "run": lambda: run(new, folder),
    }
    run(old, folder, before)
    if again:  # nothing runs between two switches
        switch_program(of(Totals(9)), job_of(folder), spark=SPARK, **asked)
    for name, step in steps.items():
        if name == "prove" != dying:
            continue  # it changes nothing
        if name == dying:
            with suppress(Died), dies_in_commit(in_commit) if in_commit else at_request(at, dies):
                step()
                continue
            for name in ("job", "job_before", "job_before_back", "job_proof_old", "job_proof_new"):
                with suppress(CheckpointError):  # it may be disposed of in part
                    release_leadership(job_of(folder).parent.child(name), owner="test", now_ms=current_millis())
        step()
    run(new, folder)
    assert table(folder, kind=kind) == expected(change.times)
    assert table(folder, "kept") == expected(10)
    assert REPLACES not in latest(job_of(folder)).properties
    assert TO_REPLACE not in latest(job_of(folder)).properties


@contextmanager
def dies_in_commit(when: str) -> Iterator[None]:
    """Lets a process die before or after it has written a version of a table."""
    with pytest.MonkeyPatch.context() as patch:
        for committer in (IcebergCommitter, DeltaCommitter):

            def swap(*args: Any, real: Any = committer._swap) -> None:
                if when == "after":
                    real(*args)
                raise Died

            patch.setattr(committer, "_swap", swap)
        yield


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


@pytest.mark.system
def test_segments_are_kept_for_as_long_as_the_edge_retains_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [current_millis()]
    for clock in ("current_millis", "steady_millis"):
        monkeypatch.setattr(f"dagster_flinkpy.runtime.master.job.{clock}", lambda: now[0])
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


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["key", "count", "sum"], Types.LONG()),
        (["key", "count", "total", "more"], Types.LONG()),
        (["key", "total"], Types.LONG()),
        (["key", "count", "total"], Types.DOUBLE()),
    ],
)
def test_nothing_is_changed_if_the_records_that_an_edge_has_kept_have_other_fields(
    tmp_path: Path, names: list[str], kind: TypeInformation
) -> None:
    row = Types.ROW_NAMED(names, [Types.STRING(), *[kind] * (len(names) - 1)])

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
    for step in (switch_program, roll_back):
        with pytest.raises(ConfigurationError, match="is partitioned by time"):
            switch_program(of, job_of(tmp_path), spark=SPARK, recompute=["table"])
        step(of, job_of(tmp_path), spark=SPARK)
    assert latest(job_of(tmp_path)).partition is None
    with program_attempt(of, job_of(tmp_path), spark=SPARK, owner="test", on_progress=lambda line: None) as attempt:
        attempt.run_epoch(partition=day(1))
    with pytest.raises(ConfigurationError, match="is partitioned by time, and what was run"):
        roll_back(of, job_of(tmp_path), spark=SPARK)


@pytest.mark.system
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
    config = {"ops": {"switch_job": {"config": {"recompute_changed": True}}}}

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


@pytest.mark.system
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
