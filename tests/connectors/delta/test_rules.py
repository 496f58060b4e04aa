"""What a Delta table demands of its writers, and others who change it while a job runs."""

from __future__ import annotations

import struct
from base64 import b85encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import DeltaSink, DeltaSource
from dagster_flinkpy.connectors.delta.committer import DeltaCommitter
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext
from dagster_flinkpy.errors import CommitRefusedError, ConfigurationError, InputChangedError
from tests.committing import commit_requests
from tests.connectors.delta.actors import (
    ACTS,
    OLD,
    Act,
    N,
    S,
    append,
    break_last_version,
    change,
    create_or_replace,
    delete_folder,
    drop_and_create,
    each,
    kept,
    log_of,
    lose_data,
    lose_first_version,
    metadata,
    protocol,
    write_version,
)
from tests.connectors.delta.test_sink import CONTEXT, commit, committer, rows, stage
from tests.connectors.lake.test_table_sources import take
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import EVENT, environment, events


def sinks(folder: Path) -> dict[str, DeltaSink]:
    return {
        "append": DeltaSink(str(folder)),
        "merge": DeltaSink(str(folder), key=["n"]),
        "replace": DeltaSink(str(folder), partition_column="day"),
        "transaction": DeltaSink(str(folder)).for_owner("asset"),
    }


ALL = ("append", "merge", "replace", "transaction")
DAY = {**S, "name": "day"}
MAPPED = [
    {**field, "metadata": {"delta.columnMapping.id": i, "delta.columnMapping.physicalName": f"c{i}"}}
    for i, field in enumerate((N, S), 1)
]
FILLED = ({**S, "name": "dagster_asset_key"}, {**S, "name": "dagster_partition_key"})
CHECK = {"constraints__positive": "n > 0"}
RULES: list[tuple[str, dict[str, Any], dict[str, Any], list[dict[str, Any]], tuple[str, ...]]] = [
    ("'typeWidening'", protocol("typeWidening"), {}, [N, S], ALL),
    ("'catalogManaged'", protocol("catalogManaged"), {}, [N, S], ALL),
    *(
        (f"{name!r}", protocol(name), {}, [N, S], ALL)
        for name in (
            *("rowTracking", "domainMetadata", "clustering", "inCommitTimestamp", "identityColumns"),
            *("icebergCompatV1", "icebergCompatV2", "allowColumnDefaults", "checkpointProtection", "of-the-future"),
        )
    ),
    ("writer version 8", protocol(reader=1, writer=8), {}, [N, S], ALL),
    ("reader version 4", protocol(reader=4), {}, [N, S], ALL),
    ("identity columns", protocol(reader=1, writer=6), {}, [N, S], ALL),
    (
        "delta.columnMapping.mode='name'",
        protocol(reader=2, writer=5),
        {"columnMapping__mode": "name"},
        MAPPED,
        ("append", "merge"),
    ),
    ("delta.appendOnly=true", OLD, {"appendOnly": "true"}, [N, S], ("merge", "replace", "transaction")),
    (r"constraint 'positive', CHECK \(n > 0\)", OLD, CHECK, [N, S], ("append", "replace", "transaction")),
    ("'n' .* is NOT NULL, but records may", OLD, {}, [{**N, "nullable": False}, S], ("append", "transaction")),
    (
        "'x' .* is NOT NULL, but the records do not have it",
        OLD,
        {},
        [N, S, {**N, "name": "x", "nullable": False}],
        ALL,
    ),
    (
        "'n' .* is generated as 1",
        OLD,
        {},
        [{**N, "metadata": {"delta.generationExpression": "1"}}, S],
        ALL,
    ),
    (
        "'n' .* has the invariant",
        OLD,
        {},
        [{**N, "metadata": {"delta.invariants": '{"expression": {"expression": "n > 0"}}'}}, S],
        ("append", "replace", "transaction"),
    ),
]


@pytest.mark.parametrize(
    ("mode", "said", "of", "settings", "fields"),
    [(mode, *rule[:4]) for rule in RULES for mode in rule[4]],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_table_whose_rules_are_not_kept_is_refused_by_name_at_the_start(
    tmp_path: Path, mode: str, said: str, of: Any, settings: Any, fields: Any
) -> None:
    more = {"replace": [DAY], "transaction": FILLED}.get(mode, ())
    by = tuple(field["name"] for field in more)
    write_version(tmp_path, of, metadata(*fields, *more, by=by, **settings))
    with pytest.raises(ConfigurationError, match=said):
        committer(sinks(tmp_path)[mode]).abort_lingering([])


@pytest.mark.parametrize(
    ("of", "settings"),
    [
        (protocol("appendOnly", reader=1), {"appendOnly": "true"}),
        (protocol("changeDataFeed", reader=1), {"enableChangeDataFeed": "true"}),
        (protocol("deletionVectors"), {"enableDeletionVectors": "true"}),
        (protocol("v2Checkpoint"), {}),
        (protocol("timestampNtz", "invariants", "columnMapping", "generatedColumns", "checkConstraints"), {}),
    ],
)
def test_features_that_ask_nothing_of_an_append(tmp_path: Path, of: Any, settings: Any) -> None:
    write_version(tmp_path, of, metadata(**settings))
    sink = DeltaSink(str(tmp_path))
    committer(sink).abort_lingering([])
    commit(sink, stage(sink, 1))
    assert pa.table(DeltaTable(str(tmp_path)).get_add_actions()).column("num_records").to_pylist() == [1]


def test_rows_are_not_replaced_where_deletion_vectors_are(tmp_path: Path) -> None:
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    of_python = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    inline = b85encode(struct.pack("<IQ", 1681511377, 0)).decode().translate(str.maketrans(of_python, alphabet))
    vector = {"storageType": "i", "pathOrInlineDv": inline, "sizeInBytes": 12, "cardinality": 0}
    add = {
        "path": "f",
        "partitionValues": {},
        "size": 1,
        "modificationTime": 0,
        "dataChange": True,
        "stats": '{"numRecords": 1}',
    }
    file = {"add": {**add, "deletionVector": vector}}
    write_version(tmp_path, protocol("deletionVectors"), metadata(), file)
    with pytest.raises(ConfigurationError, match=r"has deletion vectors.*REORG TABLE"):
        committer(DeltaSink(str(tmp_path), key=["n"])).abort_lingering([])
    committer(DeltaSink(str(tmp_path))).abort_lingering([])


@pytest.mark.parametrize("change", [metadata(**CHECK), metadata({**N, "nullable": False}, S)])
def test_a_merge_keeps_constraints_and_does_not_try_again(tmp_path: Path, change: Any) -> None:
    write_version(tmp_path, OLD, change)
    row = Types.ROW_NAMED(["s", "n"], [Types.STRING(), Types.LONG()])
    sink = DeltaSink(str(tmp_path), key=["s"])

    def upsert(checkpoint: int, *records: Any) -> None:
        [committable] = write(sink, row, checkpoint, *records)
        put(committer(sink, type_info=row), CommitRequest(checkpoint, 0, committable))

    upsert(1, ("a", 1))
    with pytest.raises(CommitRefusedError, match=r"a constraint of Delta table .* refuses its rows(.|\n)*stay staged"):
        upsert(2, ("b", 2), ("a", None))
    assert rows(sink) == [1]


def write(sink: DeltaSink, row: Any, checkpoint: int, *records: Any) -> list[Any]:
    writer = sink.create_writer(replace(CONTEXT, checkpoint_id=checkpoint), row)
    writer.write(row.to_arrow(records))
    return writer.prepare_commit()


def no_retry(seconds: float) -> None:
    raise AssertionError("trying again does not help")


# --- while the job runs -----------------------------------------------------------------------------------------------


def table_with_a_row(folder: Path, mode: str) -> tuple[DeltaSink, Any, Any]:
    """Returns a sink, a running committer that has committed 1, and what stages more rows."""
    sink = sinks(folder)[mode]
    partition = {"partition": "a"} if mode == "replace" else {}
    running = committer(sink)
    running.abort_lingering([])
    put(running, stage(sink, 1, **partition))
    return sink, running, lambda n: stage(sink, n, checkpoint_id=n, **partition)


def put(running: Any, request: CommitRequest) -> int:
    again = CommitRequest(request.checkpoint_id, request.subtask, request.committable)
    return commit_requests(running, [again], "sink", wait=no_retry)


def outcome(running: Any, request: CommitRequest, act: Act, mode: str, put_back: Callable[[], None]) -> None:
    """Commits a request. If the table is refused, the table is put back, and it is committed then."""
    if mode not in (act.by if act.said else ()):
        put(running, request)
        return
    staged = "1 staged rows are gone" if act.do is delete_folder else "The rows stay staged"
    with pytest.raises(CommitRefusedError, match=rf"(?s){act.said}.* {staged}.*'chk-2' to continue without"):
        put(running, request)
    put_back()
    assert put(running, request) == 0


EXPECTED = {"append": [1, 2], "merge": [1, 2], "replace": [2]}


@pytest.mark.short
@pytest.mark.parametrize("mode", EXPECTED)
@pytest.mark.parametrize("name", ACTS)
def test_others_change_the_table_after_rows_were_staged(tmp_path: Path, name: str, mode: str) -> None:
    sink, running, staged = table_with_a_row(tmp_path / "t", mode)
    request = staged(2)
    put_back = kept(tmp_path / "t", tmp_path / "copy")
    ACTS[name].do(tmp_path / "t")
    outcome(running, request, ACTS[name], mode, put_back)
    assert rows(sink) == EXPECTED[mode]


@pytest.mark.parametrize("name", ACTS)
def test_others_change_the_table_before_another_attempt_commits(tmp_path: Path, name: str) -> None:
    sink, _, staged = table_with_a_row(tmp_path / "t", "append")
    request = staged(2)
    put_back = kept(tmp_path / "t", tmp_path / "copy")
    ACTS[name].do(tmp_path / "t")
    outcome(committer(sink, token=2), request, ACTS[name], "append", put_back)
    assert rows(sink) == [1, 2]


BY_VERSIONS = [name for name in ACTS if not any(word in name for word in ("lost", "broken", "log", "folder"))]
"""Acts that leave versions, and so are seen by who writes the next one."""


@pytest.mark.parametrize("name", BY_VERSIONS)
def test_others_change_the_table_between_look_and_write(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, running, staged = table_with_a_row(tmp_path / "t", "append")
    request, put_backs = staged(2), list[Callable[[], None]]()
    real = DeltaCommitter._swap

    def swap(self: DeltaCommitter, *args: Any) -> None:
        if not put_backs:
            put_backs.append(kept(tmp_path / "t", tmp_path / "copy"))
            ACTS[name].do(tmp_path / "t")
        real(self, *args)

    monkeypatch.setattr(DeltaCommitter, "_swap", swap)
    outcome(running, request, ACTS[name], "append", lambda: put_backs[0]())
    assert rows(sink) == [1, 2]


@pytest.mark.parametrize("name", [name for name in BY_VERSIONS if name != "newer protocol"])
def test_others_change_the_table_between_commit_and_acknowledgement(tmp_path: Path, name: str) -> None:
    _, running, staged = table_with_a_row(tmp_path / "t", "append")
    request = staged(2)
    put(running, request)
    ACTS[name].do(tmp_path / "t")
    version = len(log_of(tmp_path / "t"))
    assert put(running, request) == 1
    assert len(log_of(tmp_path / "t")) == version


def test_a_table_that_is_created_or_replaced(tmp_path: Path) -> None:
    sink, running, staged = table_with_a_row(tmp_path, "append")
    request = staged(2)
    create_or_replace(tmp_path)
    with pytest.raises(CommitRefusedError, match=r"dropped and made anew since it was opened\. Running again adds"):
        put(running, request)
    put(committer(sink, token=2), request)
    assert rows(sink) == [2]


def test_lost_files_of_the_table_are_an_error_at_once_where_rows_are_merged(tmp_path: Path) -> None:
    sink, running, staged = table_with_a_row(tmp_path / "t", "merge")
    request = staged(2)
    put_back = kept(tmp_path / "t", tmp_path / "copy")
    lose_data(tmp_path / "t")
    outcome(running, request, Act(lose_data, r"\.parquet of .* is missing: put it back"), "merge", put_back)
    assert rows(sink) == [1, 2]


def test_a_column_that_differs_in_case_is_not_added(tmp_path: Path) -> None:
    table_with_a_row(tmp_path, "append")
    change(tmp_path, each("n", name="N"))
    with pytest.raises(ConfigurationError, match=r"column 'n' cannot be added to .*, which has 'N'"):
        committer(DeltaSink(str(tmp_path), merge_schema=True)).abort_lingering([])


@pytest.mark.parametrize("before", [0, 1], ids=["without any rows", "with some rows"])
@pytest.mark.parametrize("others", [0, 2], ids=["older", "as long"])
def test_a_table_that_was_restored_from_a_backup(tmp_path: Path, before: int, others: int) -> None:
    table = tmp_path / "table"
    sink = DeltaSink(str(table))
    running = committer(sink)
    running.abort_lingering([])
    for n in range(1, before + 1):
        put(running, stage(sink, n, checkpoint_id=n))
    put_back = kept(table / "_delta_log", tmp_path / "backup")
    last = before + 1
    put(running, stage(sink, last, checkpoint_id=last))
    request = stage(sink, last + 1, checkpoint_id=last + 1)
    as_it_was = kept(table / "_delta_log", tmp_path / "now")
    put_back()
    for n in range(others):
        append(table, 10 + n)
    said = f"does not have version {last} any more, with the rows of checkpoint {last}"
    with pytest.raises(CommitRefusedError, match=said):
        put(running, request)
    as_it_was()
    put(running, request)
    assert rows(sink) == list(range(1, last + 2))


@pytest.mark.parametrize("key", [[], ["n"]])
def test_rows_that_an_older_program_has_staged_must_fit_too(tmp_path: Path, key: list[str]) -> None:
    write_version(tmp_path, OLD, metadata())
    sink = DeltaSink(str(tmp_path), key=key)
    committer(sink).abort_lingering([])
    request = stage(sink, 1)
    write_version(tmp_path, metadata(N, {**S, "type": "long"}))
    now = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.LONG()])
    with pytest.raises(CommitRefusedError, match=r"column 's' .* must be .*string.* but is .*long"):
        commit_requests(committer(sink, 2, now), [request], "sink", wait=no_retry)
    assert rows(sink) == []


@pytest.mark.parametrize("first", [True, False], ids=["refused", "found"])
def test_two_first_runs_into_a_new_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
    """Another run creates the table between our look and our write."""
    sink, real, steps = DeltaSink(str(tmp_path)), DeltaTable.create, list[str]()

    def create(*args: Any, **options: Any) -> DeltaTable:
        if not steps:
            steps.append("create")
            committer(sink).abort_lingering([])
            if first:
                raise CommitFailedError("protocol changed")
        return real(*args, **options)

    monkeypatch.setattr(DeltaTable, "create", create)
    committer(sink).abort_lingering([])
    assert (steps, rows(sink), DeltaTable(str(tmp_path)).version()) == (["create"], [], 0)


def test_a_partition_is_not_emptied_against_the_rules(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path)).for_owner("asset")
    commit(sink, stage(sink, 1))
    held = DeltaTable(str(tmp_path))
    held.alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(ConfigurationError, match=r"delta.appendOnly=true"):
        committer(sink).replace_partition(None, 2)
    assert rows(sink) == [1]


def test_a_partition_is_not_emptied_in_a_table_that_is_partitioned_otherwise(tmp_path: Path) -> None:
    sink, running, _ = table_with_a_row(tmp_path, "replace")
    write_version(tmp_path, metadata(N, S, DAY, table_id=str(DeltaTable(str(tmp_path)).metadata().id)))
    for each_one in (running, committer(sink)):
        with pytest.raises(ConfigurationError, match=r"is partitioned by \[\], not by \['day'\]"):
            each_one.replace_partition("a", 2)


# --- what the message says --------------------------------------------------------------------------------------------


def graph_of(folder: Path, row: Any = EVENT, **options: Any) -> Any:
    env = environment()
    stream = events(env, [("k", i, i) for i in range(9)], per_epoch=3)
    if row is not EVENT:
        stream = stream.map(lambda record: (record[0], record[1], str(record[2])), output_type=row).uid("texts")
    stream.sink_to(DeltaSink(str(folder), **options)).uid("sink")
    return env.get_job_graph()


def finish(graph: Any, folder: Path, **options: Any) -> None:
    with HarnessAttempt(graph, folder, **options) as attempt:
        while not attempt.finished:
            attempt.run_epoch()


def refused(tmp_path: Path, change: Callable[[], object], said: str) -> None:
    """Runs two epochs; the table changes before the second one is committed. Further attempts are refused, too."""
    keep = {"checkpointing": CoordinatorConfig(num_retained=2)}
    with HarnessAttempt(graph_of(tmp_path / "table"), tmp_path / "job", config=keep) as attempt:
        attempt.run_epoch()
        change()
        with pytest.raises(CommitRefusedError, match=said):
            attempt.run_epoch()
    with pytest.raises(CommitRefusedError, match=said):
        finish(graph_of(tmp_path / "table"), tmp_path / "job")


def values(tmp_path: Path) -> list[Any]:
    return sorted(DeltaTable(str(tmp_path / "table")).to_pyarrow_table().column("value").to_pylist())


def test_change_the_table_back_and_run_again(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    refused(tmp_path, lambda: DeltaTable(table).alter.add_constraint({"few": "value < 100"}), "constraint 'few', CHECK")
    assert values(tmp_path) == [0, 1, 2]
    DeltaTable(table).alter.drop_constraint("few")
    finish(graph_of(tmp_path / "table"), tmp_path / "job")
    assert values(tmp_path) == list(range(9))


@pytest.mark.parametrize(("restored", "left_out"), [("chk-1", []), ("chk-2", ["3", "4", "5"])])
def test_change_the_program_and_restore_with_or_without_the_rows(
    tmp_path: Path, restored: str, left_out: list[str]
) -> None:
    table = str(tmp_path / "table")

    def to_text() -> None:
        found = DeltaTable(table).to_pyarrow_table()
        texts = found.set_column(2, "value", found.column("value").cast(pa.string()))
        write_deltalake(table, texts, mode="overwrite", schema_mode="overwrite")

    refused(tmp_path, to_text, "'value' .* must be .*long.* but is .*string")
    row = Types.ROW_NAMED(["key", "time", "value"], [Types.STRING(), Types.LONG(), Types.STRING()])
    finish(graph_of(tmp_path / "table", row), tmp_path / "job", restore_from=restored)
    assert values(tmp_path) == [str(n) for n in range(9) if str(n) not in left_out]
    sink = DeltaSink(table)
    sink.create_committer(CommitterInitContext("job", "sink", 2**62, row)).abort_lingering([])
    assert list(sink.location.open().list_uploads()) == []


def restore_the_first(table: Path) -> None:
    """As from a backup that is older than the rows of the second epoch."""
    for entry in log_of(table)[-1:]:
        entry.unlink()


@pytest.mark.parametrize("act", [delete_folder, drop_and_create, restore_the_first])
@pytest.mark.parametrize("key", [[], ["value"]], ids=["append", "key"])
def test_a_table_that_loses_its_rows_between_two_runs(tmp_path: Path, act: Any, key: list[str]) -> None:
    table, job = tmp_path / "table", tmp_path / "job"
    with HarnessAttempt(graph_of(table, key=key), job) as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
    put_back = kept(table, tmp_path / "copy")
    act(table)
    said = r"sink 'sink' has committed checkpoint 2, but its target has (nothing of it|only .* checkpoint 1).*'chk-2'"
    with pytest.raises(CommitRefusedError, match=said):
        finish(graph_of(table, key=key), job)
    there = values(tmp_path) if table.exists() else []
    restored = "chk-2" if act is restore_the_first else None
    if restored is None:
        put_back()
        there = list(range(6))
    finish(graph_of(table, key=key), job, restore_from=restored)
    assert values(tmp_path) == [*there, 6, 7, 8]


@pytest.mark.parametrize("key", [[], ["value"]], ids=["append", "key"])
def test_a_table_that_loses_its_rows_before_the_first_commit_of_a_run(tmp_path: Path, key: list[str]) -> None:
    """The run had looked at the table before. Its first commit went in, and the rows of the one before were lost."""
    graph, job = graph_of(tmp_path / "table", key=key), tmp_path / "job"
    with HarnessAttempt(graph, job) as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
    with HarnessAttempt(graph, job) as attempt:
        restore_the_first(tmp_path / "table")
        with pytest.raises(CommitRefusedError, match="with the rows of checkpoint 2: it was restored from a backup"):
            attempt.run_epoch()
    with pytest.raises(CommitRefusedError, match=r"has committed checkpoint 2, but its target has only"):
        finish(graph, job)
    assert values(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize(("restored", "found"), [("chk-1", list(range(3, 9))), ("chk-2", [6, 7, 8])])
def test_a_table_that_is_gone_for_good_and_restore_with_or_without_the_rows(
    tmp_path: Path, restored: str, found: list[int]
) -> None:
    """The rows of the first epoch are gone with the table."""
    table = tmp_path / "table"
    refused(tmp_path, lambda: delete_folder(table), "does not exist any more|its target has nothing of it")
    finish(graph_of(table), tmp_path / "job", restore_from=restored)
    assert values(tmp_path) == found


# --- the source -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        ("maps columns", [protocol(reader=2, writer=5), metadata(*MAPPED, columnMapping__mode="name")]),
        ("the feature 'variantShredding-preview'", [protocol("variantShredding-preview")]),
    ],
)
def test_a_source_refuses_what_it_cannot_read_when_the_table_gets_it(tmp_path: Path, said: str, changes: Any) -> None:
    write_version(tmp_path, OLD, metadata())
    sink, source = DeltaSink(str(tmp_path)), DeltaSource(str(tmp_path), bounded=False)
    commit(sink, stage(sink, 1))
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1]
    commit(sink, stage(sink, 2, checkpoint_id=2))
    write_version(tmp_path, *changes)
    with pytest.raises(InputChangedError, match=said):
        take(source, enumerator)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (delete_folder, "does not exist: put it back, or create it"),
        (break_last_version, r"json of .* is broken"),
        (lose_first_version, r"json of .* is missing"),
    ],
)
def test_a_source_of_a_table_that_is_gone_or_broken(tmp_path: Path, act: Any, said: str) -> None:
    table_with_a_row(tmp_path / "t", "append")
    source = DeltaSource(str(tmp_path / "t"), bounded=False)
    enumerator = source.create_enumerator(None)
    put_back = kept(tmp_path / "t", tmp_path / "copy")
    act(tmp_path / "t")
    with pytest.raises(InputChangedError, match=said):
        enumerator.plan_epoch(1)
    put_back()
    assert take(source, enumerator) == [1]
    position = enumerator.snapshot_state()
    append(tmp_path / "t", 2)
    put_back = kept(tmp_path / "t", tmp_path / "copy")
    break_last_version(tmp_path / "t")
    with pytest.raises(InputChangedError, match=r"json of .* is broken"):
        enumerator.plan_epoch(1)
    put_back()
    assert take(source, source.create_enumerator(position)) == [2]
