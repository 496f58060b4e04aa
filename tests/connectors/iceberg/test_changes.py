"""Others who change, drop or re-create an Iceberg table while a job runs, and two first runs at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType

from dagster_flinkpy.common import Row, Types
from dagster_flinkpy.connectors import IcebergSink, IcebergSource
from dagster_flinkpy.connectors.iceberg import commit_log
from dagster_flinkpy.connectors.iceberg.committer import IcebergCommitter
from dagster_flinkpy.connectors.iceberg.table import NAME_MAPPING
from dagster_flinkpy.datastream.connectors.base import CommitRequest
from dagster_flinkpy.errors import CommitRefusedError, InputChangedError
from tests.committing import commit_requests
from tests.connectors.iceberg.actors import (
    ACTS,
    Act,
    add_default,
    anew,
    delete_by_equality,
    drop,
    kept,
    partition,
    rename,
    rename_and_add,
    set_property,
)
from tests.connectors.iceberg.test_sink import commit, committer, opened, rows, sink_in, stage
from tests.connectors.lake.test_table_sources import take
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import EVENT, environment, events


def no_retry(seconds: float) -> None:
    raise AssertionError("trying again does not help")


def put(running: Any, request: CommitRequest) -> int:
    again = CommitRequest(request.checkpoint_id, request.subtask, request.committable)
    return commit_requests(running, [again], "sink", wait=no_retry)


OPTIONS: dict[str, dict[str, Any]] = {"append": {}, "merge": {"key": ["s"]}, "replace": {"partition_column": "day"}}
PROPERTIES = {"encrypted", "misleading", "moved", "no mapping"}
"""Acts that only the next commit sees if they happen amid one."""
EXPECTED = {"append": [1, 2], "merge": [1, 2], "replace": [2]}


def table_with_a_row(folder: Path, mode: str) -> tuple[IcebergSink, Any, CommitRequest]:
    """Returns a sink, a running committer that has committed 1, and the staged 2."""
    sink = sink_in(folder, merge_schema=True, **OPTIONS[mode])
    partition = {"partition": "a"} if mode == "replace" else {}
    running = committer(sink)
    running.abort_lingering([])
    put(running, stage(sink, 1, **partition))
    return sink, running, stage(sink, 2, checkpoint_id=2, **partition)


def outcome(running: Any, request: CommitRequest, act: Act, mode: str, put_back: Callable[[], None]) -> None:
    """Commits a request. If the table is refused, the table is put back, and it is committed then."""
    if mode not in (act.by if act.said else ()):
        put(running, request)
        return
    with pytest.raises(CommitRefusedError, match=rf"{act.said}.* stay staged.*'chk-2' to continue without"):
        put(running, request)
    put_back()
    assert put(running, request) == 0


@pytest.mark.short
@pytest.mark.parametrize("mode", OPTIONS)
@pytest.mark.parametrize("name", ACTS)
def test_others_change_the_table_after_rows_were_staged(tmp_path: Path, name: str, mode: str) -> None:
    sink, running, request = table_with_a_row(tmp_path, mode)
    put_back = kept(opened(sink), tmp_path / "copy")
    ACTS[name].do(opened(sink))
    outcome(running, request, ACTS[name], mode, put_back)
    assert rows(sink) == EXPECTED[mode]


@pytest.mark.parametrize("name", ACTS)
def test_others_change_the_table_before_another_attempt_commits(tmp_path: Path, name: str) -> None:
    sink, _, request = table_with_a_row(tmp_path, "append")
    put_back = kept(opened(sink), tmp_path / "copy")
    ACTS[name].do(opened(sink))
    outcome(committer(sink, token=2), request, ACTS[name], "append", put_back)
    assert rows(sink) == [1, 2]


@pytest.mark.parametrize("name", [name for name in ACTS if name not in PROPERTIES])
def test_others_change_the_table_between_look_and_write(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, running, request = table_with_a_row(tmp_path, "append")
    put_backs, real = list[Callable[[], None]](), IcebergCommitter._swap

    def swap(self: IcebergCommitter, *args: Any) -> None:
        if not put_backs:
            put_backs.append(kept(opened(sink), tmp_path / "copy"))
            ACTS[name].do(opened(sink))
        real(self, *args)

    monkeypatch.setattr(IcebergCommitter, "_swap", swap)
    outcome(running, request, ACTS[name], "append", lambda: put_backs[0]())
    assert rows(sink) == [1, 2]


@pytest.mark.parametrize(
    "name", [name for name, act in ACTS.items() if "exist" not in act.said and "moved" not in act.said]
)
def test_others_change_the_table_between_commit_and_acknowledgement(tmp_path: Path, name: str) -> None:
    sink, running, request = table_with_a_row(tmp_path, "append")
    put(running, request)
    ACTS[name].do(opened(sink))
    before = opened(sink).metadata_location
    assert put(running, request) == 1
    assert opened(sink).metadata_location == before


@pytest.mark.parametrize("key", [[], ["s"]], ids=["append", "key"])
def test_a_table_that_was_made_anew_elsewhere_gets_no_files(tmp_path: Path, key: list[str]) -> None:
    sink = sink_in(tmp_path, key=key)
    running = committer(sink)
    running.abort_lingering([])
    request = stage(sink, 1)
    anew(opened(sink), f"file://{tmp_path}/elsewhere")
    with pytest.raises(CommitRefusedError, match="was dropped and made anew since it was opened"):
        put(running, request)
    with pytest.raises(CommitRefusedError, match=r"is at file://.*/elsewhere, not at file://"):
        put(committer(sink, token=2), request)
    assert opened(sink).snapshots() == []
    assert opened(sink).scan().to_arrow().num_rows == 0


def test_a_table_that_was_made_anew_in_its_place_gets_the_rows_when_it_is_run_again(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    commit(sink, stage(sink, 1))
    running = committer(sink)
    running.abort_lingering([])
    request = stage(sink, 2, checkpoint_id=2)
    anew(opened(sink), opened(sink).location())
    with pytest.raises(CommitRefusedError, match="Running again adds the rows to the new table"):
        put(running, request)
    put(committer(sink, token=2), request)
    assert rows(sink) == [2]


@pytest.mark.parametrize("recent", [1, commit_log._RECENT])
def test_a_table_that_was_restored_from_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recent: int) -> None:
    """It went on, and the rows were lost, if the table had got more commits than it names."""
    monkeypatch.setattr(commit_log, "_RECENT", recent)
    sink = sink_in(tmp_path)
    running = committer(sink)
    running.abort_lingering([])
    put(running, stage(sink, 1))
    backup = opened(sink).metadata_location
    put(running, stage(sink, 2, checkpoint_id=2))
    request, catalog = stage(sink, 3, checkpoint_id=3), opened(sink).catalog
    now = opened(sink).metadata_location
    catalog.drop_table(sink.table)
    catalog.register_table(sink.table, backup)
    with pytest.raises(CommitRefusedError, match="does not have the rows of checkpoint 2 any more"):
        put(running, request)
    catalog.drop_table(sink.table)
    catalog.register_table(sink.table, now)
    put(running, request)
    assert rows(sink) == [1, 2, 3]


def test_a_column_that_the_name_mapping_lacks_is_added_to_it(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    commit(sink, stage(sink, 1))
    table = opened(sink)
    [n, _] = parse_mapping_from_json(table.properties[NAME_MAPPING]).root
    set_property(table, NAME_MAPPING, f"[{n.model_dump_json(by_alias=True)}]")
    commit(sink, stage(sink, 2, checkpoint_id=2))
    found = opened(sink).scan().to_arrow().sort_by("n").to_pylist()
    assert found == [{"n": 1, "s": "1"}, {"n": 2, "s": "2"}]


@pytest.mark.parametrize("key", [[], ["n"]], ids=["append", "key"])
def test_rows_that_an_older_program_has_staged_must_fit_too(tmp_path: Path, key: list[str]) -> None:
    sink = sink_in(tmp_path, key=key)
    committer(sink).abort_lingering([])
    request = stage(sink, 1)
    with opened(sink).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("s")
    with opened(sink).update_schema() as update:
        update.add_column("s", LongType())
    now = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.LONG()])
    with pytest.raises(CommitRefusedError, match=r"column 's' .* must be .*string.*but is int64"):
        put(committer(sink, 2, now), request)
    assert rows(sink) == []


def test_a_checkpoint_that_is_in_the_table_is_not_refused_afterwards(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    request = stage(sink, 1)
    commit(sink, request)
    rename(opened(sink), "n", "m")
    assert put(committer(sink, token=2), request) == 1


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("key", [[], ["s"]], ids=["append", "key"])
def test_partitions_that_were_removed_do_not_matter(tmp_path: Path, version: str, key: list[str]) -> None:
    sink = sink_in(tmp_path, key=key)
    catalog = SqlCatalog("default", **sink.properties)
    catalog.create_namespace("db")
    columns = pa.schema([("n", pa.int64()), ("s", pa.string())])
    location = f"file://{tmp_path}/t t"
    table = catalog.create_table("db.t", columns, location=location, properties={"format-version": version})
    partition(table, IdentityTransform())
    with table.update_spec() as spec:
        spec.remove_field("by_s")
    commit(sink, stage(sink, 1))
    commit(sink, stage(sink, 2, checkpoint_id=2))
    assert rows(sink) == [1, 2]


@pytest.mark.parametrize("mode", ["merge", "replace"])
def test_equality_deletes_keep_rows_from_being_replaced(tmp_path: Path, mode: str) -> None:
    sink, running, request = table_with_a_row(tmp_path, mode)
    put_back = kept(opened(sink), tmp_path / "copy")
    delete_by_equality(opened(sink), 1)
    said = r"'db.t' cannot be found: .*equality deletes.*\. Rewrite the data files"
    outcome(running, request, Act(lambda table: None, said), mode, put_back)
    assert rows(sink) == EXPECTED[mode]


def test_a_source_refuses_equality_deletes(tmp_path: Path) -> None:
    sink, _, _ = table_with_a_row(tmp_path, "append")
    source = source_of(sink, bounded=False)
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1]
    delete_by_equality(opened(sink), 1)
    with pytest.raises(InputChangedError, match=r"equality deletes.*Rewrite the files"):
        source.create_enumerator(None).plan_epoch(1)
    with pytest.raises(InputChangedError, match=r"snapshot .* of Iceberg table 'db.t' deletes or overwrites rows"):
        enumerator.plan_epoch(1)


# --- the source -------------------------------------------------------------------------------------------------------


def source_of(sink: IcebergSink, **options: Any) -> IcebergSource:
    return IcebergSource(sink.table, sink.location, properties=sink.properties, **options)


def records(source: IcebergSource) -> list[Any]:
    [splits] = source.create_enumerator(None).plan_epoch(1)
    return [record for split in splits for column, _ in source.read(split) for record in column.to_pylist()]


def test_a_renamed_column_is_found_in_files_without_ids(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    commit(sink, stage(sink, 1))
    rename(opened(sink), "n", "m")
    assert records(source_of(sink)) == [{"m": 1, "s": "1"}]
    with opened(sink).update_schema() as update:
        update.add_column("x", LongType())
    rename(opened(sink), "m", "k")
    assert records(source_of(sink)) == [{"k": 1, "s": "1", "x": None}]
    now = Types.ROW_NAMED(["k", "s", "x"], [Types.LONG(), Types.STRING(), Types.LONG()])
    commit(sink, stage(sink, row=now, records=[(2, "2", 7)], checkpoint_id=2), row=now)
    assert sorted(each["k"] for each in records(source_of(sink))) == [1, 2]
    assert sorted(opened(sink).scan().to_arrow().column("k").to_pylist()) == [1, 2]


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("change", ["rename", "drop and add"])
def test_fields_in_columns_that_are_others_now_are_refused(tmp_path: Path, ids: bool, change: str) -> None:
    row = Types.ROW_NAMED(["p"], [Types.ROW_NAMED(["x", "y"], [Types.LONG(), Types.STRING()])])
    sink = sink_in(tmp_path)
    committer(sink, type_info=row).abort_lingering([])
    if ids:
        opened(sink).append(pa.table({"p": [{"x": 1, "y": "a"}]}))
    else:
        commit(sink, stage(sink, row=row, records=[(Row(1, "a"),)]), row=row)
    with opened(sink).update_schema() as update:
        update.add_column(("p", "z"), LongType())
    assert records(source_of(sink)) == [{"p": {"x": 1, "y": "a", "z": None}}]
    with opened(sink).update_schema(allow_incompatible_changes=True) as update:
        if change == "rename":
            update.rename_column(("p", "x"), "xx")
        else:
            update.delete_column(("p", "x"))
    if change != "rename":
        assert records(source_of(sink)) == [{"p": {"y": "a", "z": None}}]
        with opened(sink).update_schema() as update:
            update.add_column(("p", "x"), LongType())
    with pytest.raises(InputChangedError, match=r"has the field 'p.x', which was renamed, or dropped and added again"):
        records(source_of(sink))


def test_another_column_of_the_same_name_is_an_error(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    commit(sink, stage(sink, 1))
    source = source_of(sink, bounded=False)
    enumerator = source.create_enumerator(None)
    assert len(enumerator.plan_epoch(1)[0]) == 1
    position = enumerator.snapshot_state()
    rename_and_add(opened(sink))
    for again in (enumerator, source.create_enumerator(position)):
        with pytest.raises(InputChangedError, match=r"column 'n' .* is not the one that the source has read"):
            again.plan_epoch(1)


def test_older_files_have_the_default_of_a_column(tmp_path: Path) -> None:
    sink, _, _ = table_with_a_row(tmp_path, "append")
    add_default(opened(sink))
    assert records(source_of(sink)) == [{"n": 1, "s": "1", "x": 5}]
    with opened(sink).update_schema() as update:
        update.add_column("d", DateType(), default_value=date(2020, 1, 1))
    with pytest.raises(InputChangedError, match=r"'d' .* has a default value of the type date"):
        records(source_of(sink))
    row = Types.ROW_NAMED(["n", "x"], [Types.LONG(), Types.LONG()])
    assert records(source_of(sink, row_type=row)) == [{"n": 1, "x": 5}]


def test_a_source_of_a_table_that_was_dropped(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    commit(sink, stage(sink, 1))
    source, before = source_of(sink, bounded=False), opened(sink)
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1]
    before.catalog.drop_table(sink.table)
    with pytest.raises(InputChangedError, match=r"'db.t' of catalog 'default': it does not exist.*Put it back"):
        enumerator.plan_epoch(1)
    before.catalog.register_table(sink.table, before.metadata_location)
    commit(sink, stage(sink, 2, checkpoint_id=2))
    assert take(source, enumerator) == [2]


# --- what the message says --------------------------------------------------------------------------------------------


def graph_of(sink: IcebergSink, row: Any = EVENT) -> Any:
    env = environment()
    stream = events(env, [("k", i, i) for i in range(9)], per_epoch=3)
    if row is not EVENT:
        stream = stream.map(lambda record: Row(*record), output_type=row).uid("renamed")
    stream.sink_to(sink).uid("sink")
    return env.get_job_graph()


def finish(graph: Any, folder: Path, **options: Any) -> None:
    with HarnessAttempt(graph, folder, **options) as attempt:
        while not attempt.finished:
            attempt.run_epoch()


@pytest.mark.parametrize("way", ["change back", "change the program"])
def test_a_renamed_column_and_how_to_go_on(tmp_path: Path, way: str) -> None:
    sink, job = sink_in(tmp_path), tmp_path / "job"
    with HarnessAttempt(graph_of(sink), job) as attempt:
        attempt.run_epoch()
        rename(opened(sink), "value", "amount")
        with pytest.raises(CommitRefusedError, match=r"'value' .* was renamed to 'amount'"):
            attempt.run_epoch()
    with pytest.raises(CommitRefusedError, match=r"'value' .* was renamed to 'amount'"):
        finish(graph_of(sink), job)
    column, left_out = "value", list[int]()
    if way == "change back":
        rename(opened(sink), "amount", "value")
        finish(graph_of(sink), job)
    else:
        row = Types.ROW_NAMED(["key", "time", "amount"], [Types.STRING(), Types.LONG(), Types.LONG()])
        column, left_out = "amount", [3, 4, 5]
        finish(graph_of(sink, row), job, restore_from="chk-2")
    found = opened(sink).scan().to_arrow().column(column).to_pylist()
    assert sorted(found) == [n for n in range(9) if n not in left_out]
    assert list(sink.location.open().list_uploads()) == []


@pytest.mark.parametrize("way", ["put back", "chk-2"])
def test_a_dropped_table_and_how_to_go_on(tmp_path: Path, way: str) -> None:
    sink, job = sink_in(tmp_path), tmp_path / "job"
    with HarnessAttempt(graph_of(sink), job) as attempt:
        attempt.run_epoch()
        before = opened(sink)
        drop(before)
        with pytest.raises(CommitRefusedError, match=r"sink 'sink' .* checkpoint 2: .*does not exist any more"):
            attempt.run_epoch()
    with pytest.raises(CommitRefusedError, match="checkpoint 1, but its target has nothing of it on record: it, or"):
        finish(graph_of(sink), job)
    if way == "put back":
        before.catalog.register_table(sink.table, before.metadata_location)
        finish(graph_of(sink), job)
    else:
        finish(graph_of(sink), job, restore_from=way)
    found = opened(sink).scan().to_arrow().column("value").to_pylist()
    assert sorted(found) == (list(range(9)) if way == "put back" else [6, 7, 8])


@pytest.mark.parametrize("act", [drop, lambda table: anew(table, table.location())], ids=["dropped", "made anew"])
def test_a_table_that_loses_its_rows_between_two_runs(tmp_path: Path, act: Callable[[Table], None]) -> None:
    sink, job = sink_in(tmp_path), tmp_path / "job"
    with HarnessAttempt(graph_of(sink), job) as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
    put_back = kept(opened(sink), tmp_path / "copy")
    act(opened(sink))
    with pytest.raises(CommitRefusedError, match=r"has committed checkpoint 2, but its target has nothing of it"):
        finish(graph_of(sink), job)
    put_back()
    finish(graph_of(sink), job)
    assert sorted(opened(sink).scan().to_arrow().column("value").to_pylist()) == list(range(9))


# --- two first runs ---------------------------------------------------------------------------------------------------


def test_two_first_runs_into_a_new_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run makes the tables of the catalog, and the namespace, between our look and our write."""
    real_tables, real_space, steps = SqlCatalog.create_tables, SqlCatalog.create_namespace, list[str]()

    def create_tables(self: SqlCatalog) -> None:
        if not steps:
            steps.append("tables")
            real_tables(self)
            SqlCatalogBaseTable.metadata.create_all(self.engine, checkfirst=False)  # as if nobody had made them
        real_tables(self)

    def create_namespace(self: SqlCatalog, namespace: Any, properties: Any) -> None:
        if steps == ["tables"]:
            steps.append("namespace")
            real_space(self, namespace, properties)
            monkeypatch.setattr(SqlCatalog, "namespace_exists", lambda *_: False)
        try:
            real_space(self, namespace, properties)
        finally:
            monkeypatch.undo()

    monkeypatch.setattr(SqlCatalog, "create_tables", create_tables)
    monkeypatch.setattr(SqlCatalog, "create_namespace", create_namespace)
    sink = sink_in(tmp_path)
    commit(sink, stage(sink, 1))
    assert (steps, rows(sink)) == (["tables", "namespace"], [1])


def test_two_first_runs_into_a_new_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run creates the table between our look and our write."""
    sink, real, steps = sink_in(tmp_path), SqlCatalog.commit_table, list[str]()

    def commit_table(self: SqlCatalog, *args: Any) -> Any:
        if not steps:
            steps.append("table")
            committer(sink).abort_lingering([])
        return real(self, *args)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    committer(sink).abort_lingering([])
    assert (steps, rows(sink)) == (["table"], [])
