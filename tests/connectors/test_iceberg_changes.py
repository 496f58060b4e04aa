"""Others who change, drop or re-create an Iceberg table while a job runs, and two first runs at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.table import DataScan, Table
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType

from dagster_flinkpy.common import Row, Types
from dagster_flinkpy.connectors import IcebergSink, IcebergSource
from dagster_flinkpy.connectors.iceberg_committer import IcebergCommitter
from dagster_flinkpy.connectors.iceberg_table import NAME_MAPPING
from dagster_flinkpy.datastream.connectors.base import CommitRequest
from dagster_flinkpy.errors import CommitRefusedError, SourceReadError
from dagster_flinkpy.runtime.master.commit_retries import commit_requests
from tests.connectors.test_iceberg_sink import commit, committer, opened, rows, sink_in, stage
from tests.connectors.test_table_sources import take
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import EVENT, environment, events


def no_retry(seconds: float) -> None:
    raise AssertionError("trying again does not help")


def put(running: Any, request: CommitRequest) -> int:
    again = CommitRequest(request.checkpoint_id, request.subtask, request.committable)
    return commit_requests(running, [again], "sink", wait=no_retry)


def rename(table: Table, old: str, new: str) -> None:
    with table.update_schema() as update:
        update.rename_column(old, new)


def rename_and_add(table: Table) -> None:
    rename(table, "n", "m")
    with table.update_schema() as update:
        update.add_column("n", LongType())


def drop_column(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("n")


def drop_and_add(table: Table) -> None:
    drop_column(table)
    with table.update_schema() as update:
        update.add_column("n", LongType())


def required(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("x", LongType(), required=True)


def partition(table: Table, transform: Any) -> None:
    with table.update_spec() as spec:
        spec.add_field("s", transform, "by_s")


def set_property(table: Table, name: str, value: str) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({name: value})


def anew(table: Table, location: str) -> None:
    catalog, schema = table.catalog, table.schema()
    catalog.drop_table(table.name())
    catalog.create_table(table.name(), schema, location=location)


def misleading(table: Table) -> None:
    [n, s] = parse_mapping_from_json(table.properties[NAME_MAPPING]).root
    swapped = [n.model_copy(update={"names": s.names}), s.model_copy(update={"names": n.names})]
    text = "[" + ", ".join(field.model_dump_json(by_alias=True) for field in swapped) + "]"
    set_property(table, NAME_MAPPING, text)


CHANGES: list[tuple[str, Callable[[Table], None]]] = [
    ("column 'n' .* was renamed to 'm': rename it back", lambda table: rename(table, "n", "m")),
    ("column 'n' .* was renamed to 'm'", rename_and_add),
    ("column 'n' .* was dropped, but", drop_column),
    ("column 'n' .* was dropped and added again, but", drop_and_add),
    ("column 'x' .* must be optional", required),
    (r"is partitioned by \['s'\], not by \[\]", lambda table: partition(table, IdentityTransform())),
    (r"is partitioned by bucket\[4\] of 's'", lambda table: partition(table, BucketTransform(4))),
    ("is encrypted", lambda table: set_property(table, "encryption.key-id", "k")),
    ("does not say that '[ns]' is field", misleading),
    ("is no name mapping: {}", lambda table: set_property(table, NAME_MAPPING, "{}")),
    ("does not exist any more: it was dropped or renamed", lambda table: table.catalog.drop_table(table.name())),
]


@pytest.mark.parametrize(("said", "change"), CHANGES, ids=[said for said, _ in CHANGES])
@pytest.mark.parametrize("key", [[], ["s"]], ids=["append", "key"])
@pytest.mark.parametrize("restarted", [False, True], ids=["meanwhile", "restarted"])
def test_what_others_change_meanwhile_is_refused_and_the_rows_stay_staged(
    tmp_path: Path, said: str, change: Any, key: list[str], restarted: bool
) -> None:
    sink = sink_in(tmp_path, key=key, merge_schema=True)
    commit(sink, stage(sink, 1))
    running = committer(sink)
    running.abort_lingering([])
    request, before = stage(sink, 2, checkpoint_id=2), opened(sink)
    change(opened(sink))
    if restarted:
        running = committer(sink, token=2)
    with pytest.raises(CommitRefusedError, match=f"{said}.* stay staged.*'chk-2' to continue without"):
        put(running, request)
    if before.catalog.table_exists(sink.table):
        before.catalog.drop_table(sink.table)
    before.catalog.register_table(sink.table, before.metadata_location)  # as it was
    assert put(running, request) == 0
    assert rows(sink) == [1, 2]


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


def test_a_table_that_was_restored_from_a_backup(tmp_path: Path) -> None:
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


def test_other_changes_do_not_matter(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    running = committer(sink)
    running.abort_lingering([])
    request = stage(sink, 1)
    with opened(sink).update_schema() as update:
        update.add_column("more", LongType())
        update.move_first("s")
    with opened(sink).update_sort_order() as order:
        order.asc("s", IdentityTransform())
    set_property(opened(sink), "write.format.default", "orc")
    put(running, request)
    assert opened(sink).scan().to_arrow().to_pylist() == [{"s": "1", "n": 1, "more": None}]


def test_a_column_that_the_name_mapping_lacks_is_added_to_it(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    commit(sink, stage(sink, 1))
    table = opened(sink)
    [n, _] = parse_mapping_from_json(table.properties[NAME_MAPPING]).root
    set_property(table, NAME_MAPPING, f"[{n.model_dump_json(by_alias=True)}]")
    commit(sink, stage(sink, 2, checkpoint_id=2))
    found = opened(sink).scan().to_arrow().sort_by("n").to_pylist()
    assert found == [{"n": 1, "s": "1"}, {"n": 2, "s": "2"}]


@pytest.mark.parametrize("change", [CHANGES[0], CHANGES[5]], ids=["schema", "partitions"])
def test_a_change_between_look_and_write_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, Callable[[Table], None]]
) -> None:
    sink = sink_in(tmp_path)
    request = stage(sink, 1)
    running = committer(sink)
    running.abort_lingering([request])
    real, left = IcebergCommitter._swap, [change[1]]

    def swap(self: IcebergCommitter, *args: Any) -> None:
        if left:
            left.pop()(opened(sink))
        real(self, *args)

    monkeypatch.setattr(IcebergCommitter, "_swap", swap)
    with pytest.raises(CommitRefusedError, match=change[0]):
        put(running, request)
    assert opened(sink).snapshots() == []


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


def test_a_newer_format_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_in(tmp_path)
    running = committer(sink)
    running.abort_lingering([])
    monkeypatch.setattr(Table, "format_version", 3)
    with pytest.raises(CommitRefusedError, match="has format version 3"):
        put(running, stage(sink, 1))


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


@pytest.mark.parametrize("options", [{"key": ["s"]}, {"partition_column": "day"}], ids=["key", "partition"])
def test_equality_deletes_keep_rows_from_being_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    sink = sink_in(tmp_path, **options)
    running = committer(sink)
    running.abort_lingering([])
    request = stage(sink, 1, partition="a")

    def plan_files(self: DataScan) -> Any:
        raise ValueError("PyIceberg does not yet support equality deletes")

    monkeypatch.setattr(DataScan, "plan_files", plan_files)
    with pytest.raises(
        CommitRefusedError, match=r"'db.t' cannot be found: .*equality deletes\. Rewrite the data files"
    ):
        put(running, request)


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
    with pytest.raises(SourceReadError, match=r"has the field 'p.x', which was renamed, or dropped and added again"):
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
        with pytest.raises(SourceReadError, match=r"column 'n' .* is not the one that the source has read"):
            again.plan_epoch(1)


def test_a_source_of_a_table_that_was_dropped(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    commit(sink, stage(sink, 1))
    source, before = source_of(sink, bounded=False), opened(sink)
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1]
    before.catalog.drop_table(sink.table)
    with pytest.raises(SourceReadError, match=r"'db.t' of catalog 'default': it does not exist.*Put it back"):
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
