"""Sinks behind recomputed operators replace the rows that they had written, and no others."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from pyiceberg.catalog import load_catalog

from dagster_flinkpy.checkpoint.forks.fork import fork_job
from dagster_flinkpy.checkpoint.forks.job_disposal import dispose_job
from dagster_flinkpy.checkpoint.offline import restore_savepoint, trigger_savepoint
from dagster_flinkpy.checkpoint.recomputation import REPLACES, recomputation_of
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors import DeltaSink, IcebergSink, ParquetSink, PostgresSink
from dagster_flinkpy.connectors.commit.staged_files import StagedFileCommitter
from dagster_flinkpy.errors import CommitRefusedError, CommittableLostError, ConfigurationError, RestoreError
from dagster_flinkpy.orchestration.program import plan_restore, program_attempt
from dagster_flinkpy.orchestration.upgrade import switch_program
from dagster_flinkpy.runtime.master.commits.committers import Committers
from dagster_flinkpy.storage import StorageLocation
from tests.examples import examples
from tests.orchestration.recomputed import (
    PER_EPOCH,
    SPARK,
    Totals,
    catalog_of,
    checkpoint_of,
    expected,
    files,
    job_of,
    latest,
    program,
    run,
    sink_of,
    table,
    totals_of,
)
from tests.runtime.programs import FolderSink

pytestmark = pytest.mark.usefixtures("in_process")


def test_rows_up_to_since_stay_and_the_state_is_built_from_what_follows(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 4)
    switch_program(program(tmp_path, Totals(7)), job_of(tmp_path), spark=SPARK, recompute=["totals"], since="chk-2")
    run(program(tmp_path, Totals(7)), tmp_path)
    kept = [path for path in files(tmp_path) if checkpoint_of(path) <= 2]
    assert sum(pq.read_metadata(path).num_rows for path in kept) == 2 * PER_EPOCH
    for path in kept:
        path.unlink()
    assert table(tmp_path) == expected(7, first=2)


@pytest.mark.system
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


@pytest.mark.system
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


@pytest.mark.system
@pytest.mark.short("files", "delta")
@pytest.mark.parametrize("kind", ["files", "delta", "iceberg"])
def test_a_checkpoint_from_before_rows_were_replaced_is_not_restored_after_that(tmp_path: Path, kind: str) -> None:
    of = partial(program, tmp_path, sink=sink_of(kind, tmp_path))
    run(of(), tmp_path, 3)
    new = of(Totals(7))
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
    assert table(tmp_path, kind=kind) == expected(7)


def compact(kind: str, folder: Path) -> None:
    """Rewrites all rows into files of others."""
    if kind == "files":
        there = files(folder)
        if [each.name for each in there] != ["compacted.parquet"]:
            pq.write_table(
                pa.concat_tables([pq.read_table(each) for each in there]), folder / "table/compacted.parquet"
            )
            for each in there:
                each.unlink()
    elif kind == "delta":
        DeltaTable(str(folder / "table")).optimize.compact()
    else:
        there = load_catalog("default", **catalog_of(folder)).load_table("db.t")
        there.overwrite(there.scan().to_arrow())


@pytest.mark.parametrize("kind", ["files", "delta", "iceberg"])
def test_a_table_that_others_have_compacted_is_refused_before_anything_changes(tmp_path: Path, kind: str) -> None:
    of, job = partial(program, tmp_path, sink=sink_of(kind, tmp_path)), job_of(tmp_path)
    run(of(), tmp_path, 2)
    compact(kind, tmp_path)
    run(of(), tmp_path, 1)
    before, rows = latest(job), table(tmp_path, kind=kind)
    with pytest.raises(ConfigurationError, match=r"'table' can be recomputed: .* files of others, such as"):
        switch_program(of(Totals(7)), job, spark=SPARK, recompute=["totals"])
    assert (latest(job), table(tmp_path, kind=kind)) == (before, rows)
    assert list(job.parent.open().list_folders()) == ["job/"]
    planned = plan_restore(of(Totals(7)), open_checkpoint(job), recompute=["totals"])
    assert "files of others" in str(planned.problem)


@pytest.mark.system
@pytest.mark.parametrize("kind", ["files", "delta", "iceberg"])
def test_a_table_that_others_compact_after_the_switch_is_refused_before_anything_is_read(
    tmp_path: Path, kind: str
) -> None:
    of, job = partial(program, tmp_path, sink=sink_of(kind, tmp_path)), job_of(tmp_path)
    run(of(), tmp_path, 2)
    switch_program(of(Totals(7)), job, spark=SPARK, recompute=["totals"])
    compact(kind, tmp_path)
    before, rows = latest(job), table(tmp_path, kind=kind)
    with pytest.raises(ConfigurationError, match="files of others, such as"):
        run(of(Totals(7)), tmp_path)
    assert (latest(job), table(tmp_path, kind=kind)) == (before, rows)


class Silent(Totals):
    """Keeps its state, and emits nothing."""

    def process_element(self, value: Any, context: Any) -> Any:
        list(super().process_element(value, context))
        return []


@pytest.mark.short("files", "delta")
@pytest.mark.parametrize("kind", ["files", "delta", "iceberg", "branch"])
def test_rows_are_removed_also_if_none_come_anew(tmp_path: Path, kind: str) -> None:
    of, job = partial(program, tmp_path, sink=sink_of(kind, tmp_path)), job_of(tmp_path)
    run(of(), tmp_path, 3)
    switch_program(of(Silent()), job, spark=SPARK, recompute=["totals"])
    run(of(Silent()), tmp_path, 1)
    assert table(tmp_path, kind=kind) == ([], {})
    switch_program(of(Totals(7)), job, spark=SPARK, recompute=["totals"])
    run(of(Totals(7)), tmp_path)
    assert table(tmp_path, kind=kind) == expected(7)


@pytest.mark.system
@pytest.mark.short
@pytest.mark.parametrize("kind", ["files", "delta", "iceberg"])
@pytest.mark.parametrize("change", [Totals(7), Silent()])
def test_a_table_that_others_compact_amid_the_epoch_is_refused_until_it_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, change: Totals
) -> None:
    of, job = partial(program, tmp_path, sink=sink_of(kind, tmp_path)), job_of(tmp_path)
    run(of(), tmp_path, 2)
    number = latest(job).checkpoint_id
    switch_program(of(change), job, spark=SPARK, recompute=["totals"])
    rows, real = table(tmp_path, kind=kind), Committers.commit

    def commit(self: Committers, metadata: Any) -> int:
        if REPLACES in metadata.properties:
            compact(kind, tmp_path)
        return real(self, metadata)

    with monkeypatch.context() as patched, pytest.raises(CommitRefusedError, match=r"told from others|files of others"):
        patched.setattr(Committers, "commit", commit)
        run(of(change), tmp_path, 1)
    assert table(tmp_path, kind=kind) == rows
    with pytest.raises(CommitRefusedError):
        run(of(change), tmp_path)
    run(of(), tmp_path, 0, restore_from=f"chk-{number}")
    assert table(tmp_path, kind=kind) == rows


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_sink_that_replaces_rows_by_key_is_refused(tmp_path: Path, kind: str) -> None:
    place = str(tmp_path / "table")
    keyed = (
        DeltaSink(place, key=["key"])
        if kind == "delta"
        else IcebergSink("db.t", place, properties=catalog_of(tmp_path), key=["key"])
    )
    run(program(tmp_path, sink=keyed), tmp_path, 2)
    before = latest(job_of(tmp_path))
    with pytest.raises(ConfigurationError, match="With a key, it has changed rows in place"):
        switch_program(program(tmp_path, Totals(7), sink=keyed), job_of(tmp_path), spark=SPARK, recompute=["totals"])
    assert latest(job_of(tmp_path)) == before


def test_rows_in_postgresql_are_replaced_also_those_of_the_original_of_a_fork(tmp_path: Path, postgres: str) -> None:
    schema = f"s{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres, autocommit=True, row_factory=dict_row) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        of = partial(program, tmp_path, sink=PostgresSink(postgres, f"{schema}.t", str(tmp_path / "s"), create=True))

        def rows() -> Any:
            return totals_of(connection.execute(f"SELECT key, count, total FROM {schema}.t").fetchall())

        run(of(), tmp_path, 3)
        switch_program(of(Totals(7)), job_of(tmp_path), spark=SPARK, recompute=["totals"])
        assert rows() == expected(epochs=3)
        run(of(Totals(7)), tmp_path, 1)
        switch_program(of(Totals(3)), job_of(tmp_path), spark=SPARK, recompute=["totals"])
        run(of(Totals(3)), tmp_path)
        assert rows() == expected(3)
        fork_job(job_of(tmp_path), "fork")
        dispose_job(job_of(tmp_path))
        fork = job_of(tmp_path).parent.child("fork")
        switch_program(of(Totals(5)), fork, spark=SPARK, recompute=["totals"])
        run(of(Totals(5)), tmp_path, job=fork)
        assert rows() == expected(5)
        connection.execute(f"UPDATE {schema}.t SET total = 0 WHERE count = 1")
        with pytest.raises(ConfigurationError, match="somebody has updated, deleted"):
            switch_program(of(Totals(7)), fork, spark=SPARK, recompute=["totals"])
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.system
@pytest.mark.short("1")
@pytest.mark.parametrize("ran", [0, 1])
def test_a_fork_replaces_in_its_branch_what_the_original_had_written_before_and_nothing_in_main(
    tmp_path: Path, ran: int
) -> None:
    place, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    main = program(tmp_path, sink=sink_of("iceberg", tmp_path))
    run(main, tmp_path, 2)
    fork_job(job_of(tmp_path), "fork")
    run(main, tmp_path, 1)
    fork = job_of(tmp_path).parent.child("fork")
    of = partial(program, elsewhere, sink=sink_of("branch", tmp_path))
    if ran:
        run(of(), tmp_path, ran, job=fork)
    switch_program(of(Totals(7)), fork, spark=SPARK, recompute=["totals"])
    run(of(Totals(7)), tmp_path, job=fork)
    assert table(tmp_path, kind="branch") == expected(7)
    assert table(tmp_path, kind="iceberg") == expected(epochs=3)
    assert place.exists()


@pytest.mark.system
@pytest.mark.short("files", "delta")
@pytest.mark.parametrize("kind", ["files", "delta", "iceberg"])
def test_a_fork_that_takes_over_the_table_of_the_original_replaces_its_rows_too(tmp_path: Path, kind: str) -> None:
    of, job = partial(program, tmp_path, sink=sink_of(kind, tmp_path)), job_of(tmp_path)
    run(of(), tmp_path, 2)
    fork_job(job, "first")
    dispose_job(job)
    first, second = (job.parent.child(name) for name in ("first", "second"))
    run(of(), tmp_path, 1, job=first)
    fork_job(first, "second")
    dispose_job(first)
    run(of(), tmp_path, 1, job=second)
    for times in (7, 3):
        switch_program(of(Totals(times)), second, spark=SPARK, recompute=["totals"])
        run(of(Totals(times)), tmp_path, 1, job=second)
        assert table(tmp_path, kind=kind) == expected(times)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_of_the_original_that_others_have_compacted_is_refused(tmp_path: Path, kind: str) -> None:
    of, job = partial(program, tmp_path, sink=sink_of(kind, tmp_path)), job_of(tmp_path)
    run(of(), tmp_path, 2)
    compact(kind, tmp_path)
    fork_job(job, "fork")
    dispose_job(job)
    fork = job.parent.child("fork")
    run(of(), tmp_path, 1, job=fork)
    with pytest.raises(ConfigurationError, match="files of others, such as"):
        switch_program(of(Totals(7)), fork, spark=SPARK, recompute=["totals"])


@pytest.mark.system
@pytest.mark.short("False")
@pytest.mark.parametrize("too_new", [False, True])
def test_a_branch_with_rows_of_the_original_from_after_the_fork_is_refused(tmp_path: Path, too_new: bool) -> None:
    main = program(tmp_path, sink=sink_of("iceberg", tmp_path))
    run(main, tmp_path, 2)
    fork_job(job_of(tmp_path), "fork")
    if too_new:
        run(main, tmp_path, 1)
    there = load_catalog("default", **catalog_of(tmp_path)).load_table("db.t")
    there.manage_snapshots().create_branch(there.current_snapshot().snapshot_id, "b").commit()
    fork = job_of(tmp_path).parent.child("fork")
    of = partial(program, tmp_path / "elsewhere", sink=sink_of("branch", tmp_path))
    run(of(), tmp_path, 1, job=fork)
    before = latest(fork)
    if too_new:
        with pytest.raises(ConfigurationError, match="began with rows that job 'job' had written at checkpoint 3"):
            switch_program(of(Totals(7)), fork, spark=SPARK, recompute=["totals"])
        assert latest(fork) == before
        return
    switch_program(of(Totals(7)), fork, spark=SPARK, recompute=["totals"])
    run(of(Totals(7)), tmp_path, job=fork)
    assert table(tmp_path, kind="branch") == expected(7)


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
