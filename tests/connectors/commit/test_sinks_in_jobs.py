"""Whole jobs into Delta Lake, Iceberg and PostgreSQL: tolerated failures, and partitions that run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import WatermarkStrategy
from dagster_flinkpy.connectors import DeltaSink, IcebergSink, ParquetSink
from dagster_flinkpy.datastream.connectors.base import Source, TwoPhaseCommittingSink
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.errors import CommitRefusedError, ConfigurationError, StorageError
from dagster_flinkpy.runtime.master import job_state
from tests.connectors.postgres.conftest import database as database  # a fixture
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import EVENT, environment, events

Target = tuple[Callable[..., TwoPhaseCommittingSink], Callable[[], list[Any]]]


@pytest.fixture(params=["delta", "iceberg", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """Returns what makes a sink, and what reads its table."""
    if request.param == "delta":
        table = str(tmp_path / "table")

        def rows() -> list[Any]:
            columns = DeltaTable(table).to_pyarrow_table().to_pydict()
            names = [name for name in ("value", "day") if name in columns]
            return sorted(zip(*(columns[name] for name in names), strict=True))

        return lambda **options: DeltaSink(table, **options), rows
    if request.param == "iceberg":
        catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}

        def found() -> list[Any]:
            columns = load_catalog("default", **catalog).load_table("db.t").scan().to_arrow().to_pydict()
            names = [name for name in ("value", "day") if name in columns]
            return sorted(zip(*(columns[name] for name in names), strict=True))

        return lambda **options: IcebergSink("db.t", str(tmp_path / "t"), properties=catalog, **options), found
    database = request.getfixturevalue("database")
    database.create("key text, time bigint, value bigint, day text")
    return database.sink, lambda: database.sql("SELECT value, day FROM {}.t ORDER BY value")


def test_rows_of_a_tolerated_failed_checkpoint_are_committed_with_the_next(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_state, "_RETRY_AFTER_MS", 0)
    write = CompletedCheckpointStore.write_metadata

    def fails_once(store: Any, attempt: Any, metadata: Any, **options: Any) -> None:
        if metadata.checkpoint_id == 2:
            raise StorageError("503")
        write(store, attempt, metadata, **options)

    monkeypatch.setattr(CompletedCheckpointStore, "write_metadata", fails_once)
    make, rows = target
    env = environment(2)
    stream = events(env, [(f"k{i % 3}", i, i) for i in range(9)], per_epoch=3).rebalance()
    stream.sink_to(make()).uid("sink")
    config = {"checkpointing": CoordinatorConfig(tolerable_failed=1)}
    with HarnessAttempt(env.get_job_graph(), tmp_path / "job", config=config) as attempt:
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs()] == [1, 3]
        assert [row[0] for row in rows()] == list(range(9))
    with HarnessAttempt(env.get_job_graph(), tmp_path / "job"):  # commits again what its checkpoint names
        assert [row[0] for row in rows()] == list(range(9))


FIRST = datetime(2024, 3, 1, tzinfo=timezone.utc)
DAYS = [[1, 2], [3], [4, 5]]


class Numbers(PartitionedSource):
    """Reads the numbers of a day."""

    @property
    def produced_type(self) -> Any:
        return EVENT

    def for_partition(self, partition: TimePartition) -> Source:
        return CollectionSource([("k", n, n) for n in DAYS[partition.ordinal]], EVENT)

    def create_enumerator(self, restored: Any) -> Any:
        return CollectionSource([], EVENT).create_enumerator(restored)

    def read(self, split: Any) -> Iterator[Any]:
        raise AssertionError("only partitions are read")


def test_a_partition_that_runs_again_replaces_its_rows(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, rows = target
    env = environment(2)
    stream = env.from_source(Numbers(), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers").rebalance()
    stream.sink_to(make(partition_column="day")).uid("sink")
    graph, told = env.get_job_graph(), list[str]()

    def run(*ordinals: int, **options: Any) -> None:
        with HarnessAttempt(graph, tmp_path / "job", on_progress=told.append, **options) as attempt:
            for ordinal in ordinals:
                start = FIRST + timedelta(days=ordinal)
                attempt.run_epoch(
                    partition=TimePartition(f"{start:%Y-%m-%d}", start, start + timedelta(days=1), ordinal)
                )

    run(0, 1, 2)
    assert rows() == [(n, f"2024-03-0{i + 1}") for i, day in enumerate(DAYS) for n in day]
    monkeypatch.setitem(globals(), "DAYS", [[1, 2], [30, 31], []])
    run(1, 2, restore_from="chk-1")
    assert rows() == [(1, "2024-03-01"), (2, "2024-03-01"), (30, "2024-03-02"), (31, "2024-03-02")]
    run(0, start_empty=True)
    assert len(rows()) == 4
    assert not [line for line in told if "Delete them" in line], "who did it would delete rows that are replaced"


def test_a_partition_with_rows_of_another_job_is_refused_until_these_are_deleted(
    target: Target, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    make, rows = target
    env = environment(1)
    stream = env.from_source(Numbers(), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    stream.sink_to(make(partition_column="day")).uid("sink")
    day = TimePartition(f"{FIRST:%Y-%m-%d}", FIRST, FIRST + timedelta(days=1), 0)

    def run(job_id: str) -> None:
        with HarnessAttempt(env.get_job_graph(), tmp_path, job_id=job_id) as attempt:
            attempt.run_epoch(partition=day)

    run("one")
    for _ in range(2):
        with pytest.raises(CommitRefusedError, match=r"partition '2024-03-01' .* rows of sink 'sink' of job 'one'"):
            run("other")
    assert rows() == [(1, "2024-03-01"), (2, "2024-03-01")]
    if request.node.callspec.params["target"] == "delta":
        DeltaTable(str(tmp_path / "table")).delete()
    elif request.node.callspec.params["target"] == "iceberg":
        catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
        load_catalog("default", **catalog).load_table("db.t").delete()
    else:
        request.getfixturevalue("database").sql("DELETE FROM {}.t")
    run("other")
    run("other")
    assert rows() == [(1, "2024-03-01"), (2, "2024-03-01")]


def test_two_sinks_that_would_replace_rows_of_each_other_are_refused(target: Target, tmp_path: Path) -> None:
    make, rows = target
    env = environment(2)
    stream = env.from_source(Numbers(), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    for uid, rest in (("even", 0), ("odd", 1)):
        stream.filter(lambda event, rest=rest: event.value % 2 == rest).sink_to(make(partition_column="day")).uid(uid)
    day = TimePartition(f"{FIRST:%Y-%m-%d}", FIRST, FIRST + timedelta(days=1), 0)
    with (
        HarnessAttempt(env.get_job_graph(), tmp_path / "job") as attempt,
        pytest.raises(ConfigurationError, match=r"sinks 'even' and 'odd' .* each would replace the rows"),
    ):
        attempt.run_epoch(partition=day)
    assert rows() == []


def test_a_table_that_is_restored_from_a_backup_between_two_runs_is_refused(tmp_path: Path) -> None:
    table, job = tmp_path / "table", tmp_path / "job"
    env = environment(1)
    events(env, [("k", i, i) for i in range(9)], per_epoch=3).sink_to(DeltaSink(str(table))).uid("sink")
    graph = env.get_job_graph()
    config = {"checkpointing": CoordinatorConfig(num_retained=2)}

    def rows() -> list[int]:
        return sorted(DeltaTable(str(table)).to_pyarrow_table()["value"].to_pylist())

    with HarnessAttempt(graph, job, config=config) as attempt:
        list(attempt.run_epochs(2))
    newest = table / "_delta_log" / f"{2:020}.json"
    content = newest.read_bytes()
    newest.unlink()
    for _ in range(2):
        with pytest.raises(CommitRefusedError, match=r"'sink' has committed checkpoint 2, but .* up to checkpoint 1"):
            HarnessAttempt(graph, job, config=config).__enter__()
    assert rows() == [0, 1, 2]
    newest.write_bytes(content)  # as it was
    with HarnessAttempt(graph, job, config=config) as attempt:
        assert attempt.finished is False
    newest.unlink()
    with HarnessAttempt(graph, job, config=config, restore_from="chk-1") as attempt:
        list(attempt.run_epochs())
    assert rows() == list(range(9))


def test_who_restores_an_older_checkpoint_is_told_which_sinks_write_again(tmp_path: Path) -> None:
    """The advice to restore one is about a sink that has lost its rows. The others have theirs."""
    env, lines = environment(1), list[str]()
    stream = events(env, [("k", i, i) for i in range(6)], per_epoch=3)
    for uid in ("lost", "there"):
        stream.sink_to(DeltaSink(str(tmp_path / uid))).uid(uid)
    graph, config = env.get_job_graph(), {"checkpointing": CoordinatorConfig(num_retained=2)}
    with HarnessAttempt(graph, tmp_path / "job", config=config) as attempt:
        list(attempt.run_epochs(2))
    (tmp_path / "lost" / "_delta_log" / f"{2:020}.json").unlink()
    with pytest.raises(CommitRefusedError, match=r"'lost' has committed checkpoint 2, but .* up to checkpoint 1"):
        HarnessAttempt(graph, tmp_path / "job", config=config).__enter__()
    options = {"restore_from": "chk-1", "on_progress": lines.append}
    with HarnessAttempt(graph, tmp_path / "job", config=config, **options):
        pass
    told = [line for line in lines if "are written again" in line]
    assert [line.split(":")[0] for line in told] == ["sink 'there' has rows up to checkpoint 2"]


@pytest.mark.parametrize("back", ["chk-1", "savepoint", "empty"])
def test_who_goes_back_is_told_of_the_rows_in_files_too(tmp_path: Path, back: str) -> None:
    """The run succeeds, and its table has rows twice. Nobody reads the page that says so at night."""
    env, lines = environment(1), list[str]()
    table = ParquetSink(str(tmp_path / "table"))
    events(env, [("k", i, i) for i in range(6)], per_epoch=2).sink_to(table).uid("table")
    graph, config = env.get_job_graph(), {"checkpointing": CoordinatorConfig(num_retained=3)}
    with HarnessAttempt(graph, tmp_path / "job", config=config) as attempt:
        attempt.run_epoch()
    with HarnessAttempt(graph, tmp_path / "job", config=config) as attempt:
        savepoint = attempt.savepoint(str(tmp_path / "savepoints"))
    with HarnessAttempt(graph, tmp_path / "job", config=config) as attempt:
        attempt.run_epoch()
    ways = {"chk-1": {"restore_from": back}, "savepoint": {"restore_from": savepoint}, "empty": {"start_empty": True}}
    with HarnessAttempt(graph, tmp_path / "job", config=config, on_progress=lines.append, **ways[back]):
        pass
    since = "" if back == "empty" else "since checkpoint 1 "
    told = f"sink 'table' has rows up to checkpoint 2: those {since}stay, and are written again beside them"
    assert [line[: len(told)] for line in lines if line.startswith("sink")] == [told]


def test_who_restores_the_last_savepoint_is_told_of_no_rows(tmp_path: Path) -> None:
    env, lines = environment(1), list[str]()
    table = ParquetSink(str(tmp_path / "table"))
    events(env, [("k", i, i) for i in range(6)], per_epoch=2).sink_to(table).uid("table")
    graph = env.get_job_graph()
    with HarnessAttempt(graph, tmp_path / "job") as attempt:
        attempt.run_epoch()
    with HarnessAttempt(graph, tmp_path / "job") as attempt:
        savepoint = attempt.savepoint(str(tmp_path / "savepoints"))
    with HarnessAttempt(graph, tmp_path / "job", on_progress=lines.append, restore_from=savepoint):
        pass
    assert not [line for line in lines if "has rows" in line]
