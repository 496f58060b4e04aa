"""What a Delta table demands of its writers, and others who change it while a job runs."""

from __future__ import annotations

import json
import shutil
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

from dagster_flinkpy.checkpoint.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import DeltaSink, DeltaSource
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext
from dagster_flinkpy.errors import CommitRefusedError, ConfigurationError, SourceReadError
from dagster_flinkpy.runtime.master.commit_retries import commit_requests
from tests.connectors.test_delta_sink import CONTEXT, commit, committer, rows, stage
from tests.connectors.test_table_sources import take
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import EVENT, environment, events

N: dict[str, Any] = {"name": "n", "type": "long", "nullable": True, "metadata": {}}
S: dict[str, Any] = {"name": "s", "type": "string", "nullable": True, "metadata": {}}
READER = {
    "variantShredding-preview",
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "catalogManaged",
    "typeWidening",
}


def protocol(*features: str, reader: int = 3, writer: int = 7) -> dict[str, Any]:
    found: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    found |= {"readerFeatures": [f for f in features if f in READER]} if reader == 3 else {}
    return {"protocol": found | ({"writerFeatures": list(features)} if writer == 7 else {})}


def metadata(*fields: dict[str, Any], by: tuple[str, ...] = (), table_id: str = "t", **settings: str) -> dict[str, Any]:
    return {
        "metaData": {
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": list(fields or (N, S))}),
            "partitionColumns": list(by),
            "configuration": {f"delta.{name.replace('__', '.')}": value for name, value in settings.items()},
            "createdTime": 0,
        }
    }


def write_version(folder: Path, *actions: dict[str, Any]) -> None:
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{len(list(log.glob('*.json'))):020d}.json").write_text("\n".join(map(json.dumps, actions)))


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
OLD = protocol(reader=1, writer=4)
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

    def put(checkpoint: int, *records: Any) -> None:
        [committable] = write(sink, row, checkpoint, *records)
        request = CommitRequest(checkpoint, 0, committable)
        commit_requests(committer(sink, type_info=row), [request], "sink", wait=no_retry)

    put(1, ("a", 1))
    with pytest.raises(CommitRefusedError, match=r"a constraint of Delta table .* refuses its rows(.|\n)*stay staged"):
        put(2, ("b", 2), ("a", None))
    assert rows(sink) == [1]


def write(sink: DeltaSink, row: Any, checkpoint: int, *records: Any) -> list[Any]:
    writer = sink.create_writer(replace(CONTEXT, checkpoint_id=checkpoint), row)
    writer.write(row.to_arrow(records))
    return writer.prepare_commit()


def no_retry(seconds: float) -> None:
    raise AssertionError("trying again does not help")


# --- while the job runs -----------------------------------------------------------------------------------------------

CHANGES: list[tuple[str, Any]] = [
    ("constraint 'positive'", metadata(**CHECK)),
    ("'n' .* is NOT NULL", metadata({**N, "nullable": False}, S)),
    ("column 'n' .* does not exist", metadata({**N, "name": "renamed"}, S)),
    ("column 'n' .* must be .*long.* but is .*string", metadata({**N, "type": "string"}, S)),
    ("column 'n' .* must be .*long.* but is .*integer", metadata({**N, "type": "integer"}, S)),
    (r"is partitioned by \['s'\], not by \[\]", metadata(by=("s",))),
    ("'rowTracking'", protocol("rowTracking", reader=1)),
    ("reader version 4", protocol(reader=4)),
    ("dropped and made anew", metadata(table_id="another")),
]


@pytest.mark.parametrize(("said", "change"), CHANGES, ids=[said for said, _ in CHANGES])
@pytest.mark.parametrize("restarted", [False, True])
def test_what_others_change_meanwhile_is_refused_and_the_rows_stay_staged(
    tmp_path: Path, said: str, change: Any, restarted: bool
) -> None:
    write_version(tmp_path, OLD, metadata())
    sink, running = DeltaSink(str(tmp_path)), committer(DeltaSink(str(tmp_path)))
    running.abort_lingering([])
    request = stage(sink, 1)
    write_version(tmp_path, change)
    if restarted and "anew" not in said:
        running = committer(sink, token=2)
    with pytest.raises(CommitRefusedError, match=f"{said}.* stay staged.*'chk-1' to continue without"):
        commit_requests(running, [request], "sink", wait=no_retry)
    assert len(list((tmp_path / "_delta_log").glob("*.json"))) == 2
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()  # RESTORE, or a change back
    again = CommitRequest(1, 0, request.committable)
    assert commit_requests(running, [again], "sink", wait=no_retry) == 0
    assert rows(sink) == [1]


@pytest.mark.parametrize("others", [0, 2], ids=["older", "as long"])
def test_a_table_that_was_restored_from_a_backup(tmp_path: Path, others: int) -> None:
    table = tmp_path / "table"
    sink = DeltaSink(str(table))
    running = committer(sink)
    running.abort_lingering([])
    commit_requests(running, [stage(sink, 1)], "sink", wait=no_retry)
    shutil.copytree(table / "_delta_log", tmp_path / "backup")
    commit_requests(running, [stage(sink, 2, checkpoint_id=2)], "sink", wait=no_retry)
    request = stage(sink, 3, checkpoint_id=3)
    shutil.move(table / "_delta_log", tmp_path / "now")
    shutil.copytree(tmp_path / "backup", table / "_delta_log")
    for n in range(others):
        write_deltalake(str(table), pa.table({"n": [10 + n], "s": ["x"]}), mode="append")
    with pytest.raises(CommitRefusedError, match="does not have version 2 any more, with the rows of checkpoint 2"):
        commit_requests(running, [request], "sink", wait=no_retry)
    shutil.rmtree(table / "_delta_log")
    shutil.move(tmp_path / "now", table / "_delta_log")
    commit_requests(running, [CommitRequest(3, 0, request.committable)], "sink", wait=no_retry)
    assert rows(sink) == [1, 2, 3]


def test_other_changes_do_not_matter(tmp_path: Path) -> None:
    write_version(tmp_path, OLD, metadata())
    sink = DeltaSink(str(tmp_path))
    running = committer(sink)
    running.abort_lingering([])
    request = stage(sink, 1)
    write_version(tmp_path, metadata(S, N, {**N, "name": "more"}, enableChangeDataFeed="true"))
    commit_requests(running, [request], "sink", wait=no_retry)
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist() == [{"s": "1", "n": 1, "more": None}]


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


@pytest.mark.parametrize("key", [[], ["n"]])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_table_that_was_deleted_is_an_error_at_once_and_can_be_put_back(
    tmp_path: Path, key: list[str], restarted: bool
) -> None:
    folder = tmp_path / "table"
    sink = DeltaSink(str(folder), key=key)
    running = committer(sink)
    running.abort_lingering([])
    request = stage(sink, 1)
    shutil.move(folder, tmp_path / "away")
    if restarted:
        running = committer(sink, token=2)
    said = f"sink 'sink' cannot commit .* checkpoint 1: Delta table .*{folder} does not exist any more.*Put it back"
    with pytest.raises(CommitRefusedError, match=said):
        commit_requests(running, [request], "sink", wait=no_retry)
    assert not folder.exists()
    shutil.move(tmp_path / "away", folder)
    commit_requests(running, [CommitRequest(1, 0, request.committable)], "sink", wait=no_retry)
    assert rows(sink) == [1]


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
    with pytest.raises(SourceReadError, match=said):
        take(source, enumerator)
