"""Transactions of assets: whatever dies and whenever, a table has the rows of the last one, once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.connectors.commit.output_ledger import OutputLedger
from dagster_flinkpy.connectors.delta.committer import DeltaCommitter
from dagster_flinkpy.connectors.iceberg.committer import IcebergCommitter
from dagster_flinkpy.connectors.postgres.session import Session
from dagster_flinkpy.errors import (
    CommitRefusedError,
    ConfigurationError,
    CorruptMetadataError,
    FencedError,
    SinkCommitError,
    StorageError,
)
from dagster_flinkpy.orchestration.outputs import output_transaction
from dagster_flinkpy.orchestration.outputs.output_transaction import Output, OutputTransaction, abort_transactions
from dagster_flinkpy.runtime.master.commits import commit_retries
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.connectors.postgres.test_jobs import dying
from tests.examples import examples
from tests.orchestration.outputs.targets import Delta, Files, Iceberg, Postgres, Target, write
from tests.runtime.harness import Crash


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_retries, "_sleep", lambda seconds: None)


@pytest.fixture(params=["files", "s3", "delta", "iceberg", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    if request.param == "s3":
        return Files(request.getfixturevalue("s3_location"))
    location = StorageLocation(str(tmp_path))
    if request.param == "postgres":
        return Postgres(location, request.getfixturevalue("postgres"))
    made: dict[str, type[Target]] = {"files": Files, "delta": Delta, "iceberg": Iceberg}
    return made[request.param](location)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(StorageLocation(str(tmp_path)))


def test_a_transaction_replaces_the_output_of_its_asset_and_nothing_else(target: Target) -> None:
    target.put({None: [9]}, "other")
    transaction = target.stage({None: [1, 2]})
    write(transaction, [3])
    assert target.rows() == [("other", None, 9)]
    transaction.commit()
    assert transaction.rows(None) == 3
    assert target.rows() == [*(("a", None, n) for n in (1, 2, 3)), ("other", None, 9)]
    target.put({None: [4]})
    assert target.rows() == [("a", None, 4), ("other", None, 9)]
    target.put({None: []})
    assert target.rows() == [("other", None, 9)]
    assert (target.staged(), target.output().ledger.read().transactions) == (0, ())


def test_a_transaction_replaces_its_partitions(target: Target) -> None:
    target.put({"x": [9]}, "b")
    target.put({"x": [1], "y/1": [2], "z": [3]})
    target.put({"x": [10], "y/1": []})
    assert target.rows() == [("a", "x", 10), ("a", "z", 3), ("b", "x", 9)]


def test_rows_of_a_time_without_partitions_are_no_rows_of_a_partition(target: Target) -> None:
    target.put({None: [1]})
    with pytest.raises(ConfigurationError, match=r"has written to .* without partitions.*Run it once as it was, with"):
        target.put({"x": [2]})
    assert (target.rows(), target.staged()) == ([("a", None, 1)], 0)
    target.put({None: []})
    target.put({"x": [2]})
    assert target.rows() == [("a", "x", 2)]
    target.put({None: [3]})
    assert target.rows() == [("a", None, 3)]


def test_what_is_aborted_leaves_nothing(target: Target) -> None:
    target.put({"x": [1]})
    transaction = target.stage({"x": [2]})
    transaction.abort()
    assert (target.rows(), target.staged()) == ([("a", "x", 1)], 0)


def test_of_several_at_once_the_one_that_began_last_counts(target: Target) -> None:
    first, disjoint = target.stage({"x": [1], "y": [2]}), target.stage({"z": [3]})
    last = target.stage({"y": [4]})
    with pytest.raises(FencedError, match=r"transaction 1 of asset 'a' into table .* is not committed: a newer one"):
        first.commit()
    first.abort()
    disjoint.commit()
    last.commit()
    assert target.rows() == [("a", "y", 4), ("a", "z", 3)]
    assert target.staged() == 0


@contextmanager
def frozen(owner: Any, name: str, meanwhile: Callable[[], None]) -> Iterator[None]:
    """Runs something else before the first call of a method, as if the caller had slept."""
    real = getattr(owner, name)
    slept = False

    def method(*args: Any, **options: Any) -> Any:
        nonlocal slept
        if not slept:
            slept = True
            meanwhile()
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, method)
        yield


@pytest.mark.short
@pytest.mark.parametrize("step", ["commit_requests", "drop", "_discard"])
def test_a_zombie_that_goes_on_committing_changes_nothing(target: Target, step: str) -> None:
    target.put({"x": [0], "y": [0]})
    zombie = target.stage({"x": [1], "y": [1]})
    owner: Any = Output if step == "drop" else output_transaction
    with frozen(owner, step, lambda: target.put({"x": [2]})), suppress(FencedError):
        zombie.commit()
    assert target.rows() == [("a", "x", 2), ("a", "y", 1)]
    assert target.staged() == 0


LAKES: dict[str, tuple[type[Target], Callable[[Any], None], Callable[[Any], None], str]] = {
    "delta": (
        Delta,
        lambda table: table.alter.add_constraint({"few": "n < 100"}),
        lambda table: table.alter.drop_constraint("few"),
        "constraint 'few', CHECK",
    ),
    "iceberg": (
        Iceberg,
        lambda table: table.update_schema().rename_column("n", "m").commit(),
        lambda table: table.update_schema().rename_column("m", "n").commit(),
        "'n' .* was renamed to 'm'",
    ),
}


@pytest.mark.parametrize("kind", LAKES)
def test_a_table_that_others_change_keeps_its_rows_and_takes_new_ones_when_it_is_changed_back(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, change, change_back, said = LAKES[kind]
    target: Any = make(StorageLocation(str(tmp_path)))
    target.put({"x": [1], "y": [2]})
    transaction = target.stage({"x": [10]})
    change(target.opened())
    for refused in (transaction, target.stage({"y": [20]})):
        with pytest.raises(CommitRefusedError, match=f"cannot commit transaction .*{said}.*run again"):
            refused.commit()
    with pytest.raises(CommitRefusedError):  # it drops the first one
        target.put({"x": [11]})
    assert "so its partitions (x) must be run again" in caplog.text
    change_back(target.opened())
    target.put({"y": [21]})
    assert target.rows() == [("a", "x", 1), ("a", "y", 21)]
    target.put({"x": [12]})
    assert target.rows() == [("a", "x", 12), ("a", "y", 21)]
    assert (target.staged(), target.output().ledger.read().transactions) == (0, ())


@pytest.mark.parametrize("kind", LAKES)
def test_a_table_that_others_drop_is_made_anew(tmp_path: Path, kind: str) -> None:
    target: Any = LAKES[kind][0](StorageLocation(str(tmp_path)))
    target.put({"x": [1], "y": [2]})
    target.drop()
    target.put({"x": [3]})
    assert target.rows() == [("a", "x", 3)]


def test_a_zombie_amid_its_files(files: Files) -> None:
    zombie = files.begin()
    for n in range(4):
        write(zombie, [n])  # a file for each
    with frozen(LocalObjectStore, "_complete", lambda: files.put({None: [9]})), suppress(FencedError):
        zombie.commit()
    assert files.rows() == [("a", None, 9)]


STEPS: list[tuple[Any, str]] = [
    (OutputLedger, "read"),
    (OutputLedger, "change"),
    (OutputTransaction, "write"),
    (Output, "finish"),
    (Output, "drop"),
    (output_transaction, "commit_requests"),
    (output_transaction, "_discard"),
    (DeltaCommitter, "_write"),
    (IcebergCommitter, "_swap"),
    (Session, "register"),
    (LocalObjectStore, "put"),
    (LocalObjectStore, "complete_upload"),
    (LocalObjectStore, "delete_many"),
]


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["files", "delta", "iceberg", "postgres"]),
    step=st.sampled_from(STEPS),
    when=st.sampled_from(["before", "after"]),
    numbers=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    actions=st.lists(st.tuples(st.sampled_from(["x", "y", "xy"]), st.booleans()), min_size=1, max_size=4),
)
def test_processes_that_die_anywhere(
    postgres: str,
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    step: tuple[Any, str],
    when: str,
    numbers: list[int],
    actions: list[tuple[str, bool]],
) -> None:
    location = StorageLocation(str(tmp_path_factory.mktemp("outputs")))
    made: dict[str, Callable[[], Target]] = {
        "files": lambda: Files(location),
        "delta": lambda: Delta(location),
        "iceberg": lambda: Iceberg(location),
        "postgres": lambda: Postgres(location, postgres),
    }
    target = made[kind]()
    target.put({"x": [0], "y": [0]}, "other")
    written: dict[str, list[int]] = {"x": [], "y": []}
    """What each partition has had, oldest first. A process that died has committed the last one, or not."""
    with dying(step, when, numbers):
        for number, (partitions, fails) in enumerate(actions, 1):
            rows = [number * 10, number * 10 + 1]
            with suppress(Crash, StorageError):  # another process continues
                transaction = target.stage(dict.fromkeys(partitions, rows))
                if fails:
                    transaction.abort()
                    continue
                for key in partitions:
                    written[key].append(number)
                transaction.commit()
    assert [row for row in target.rows() if row[0] == "other"] == [("other", "x", 0), ("other", "y", 0)]
    if kind != "files":  # which appear one by one
        for key, numbers_written in written.items():
            found = [n for asset, partition, n in target.rows() if (asset, partition) == ("a", key)]
            assert found in [[], *([n * 10, n * 10 + 1] for n in numbers_written)]
    target.put({"x": [1000]})
    target.put({"y": [1001]})
    assert [row for row in target.rows() if row[0] == "a"] == [("a", "x", 1000), ("a", "y", 1001)]
    assert (target.staged(), target.output().ledger.read().transactions) == (0, ())


@pytest.mark.short("s3", "delta", "postgres")
def test_partitions_at_the_same_time(target: Target) -> None:
    names = [f"p{i}" for i in range(5)]

    def put(name: str) -> None:
        for number in (1, 2):
            target.put({name: [number]})

    target.put({"p0": [0]})  # creates the table
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(put, random.sample(names, 5)))
    assert target.rows() == [("a", name, 2) for name in names]


def test_tokens_go_on_if_the_ledger_is_lost(target: Target) -> None:
    for number in (1, 2):
        target.put({"x": [number], "y": [number]})
    target.location.open().delete_many([i.key for i in target.location.open().list(".transactions/")])
    target.put({"x": [3], "y": []})
    assert target.rows() == [("a", "x", 3)]


def test_a_ledger_that_cannot_be_read_is_named(files: Files) -> None:
    files.put({None: [1]})
    key = next(files.location.open().list(".transactions/")).key
    for data in (b"{", b'{"version": 2}', b'{"version": 1, "last_token": 1, "transactions": [{}]}'):
        files.location.open().put(key, data)
        with pytest.raises(CorruptMetadataError, match=r"\.transactions/t/a\.json"):
            files.begin()


def test_a_commit_that_fails_for_now_is_made_good_by_the_next_transaction(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.put({"x": [1]})
    transaction = target.stage({"x": [2], "y": [3]})
    with monkeypatch.context() as patch:
        committer = type(target.output().committer(1, transaction.type_info))

        def fails(self: Any, requests: Any) -> None:
            for request in requests:
                request.retry_later(StorageError("503"))

        patch.setattr(committer, "commit", fails)
        with pytest.raises(StorageError, match="the next one commits it: 503"):
            transaction.commit()
    transaction.abort()
    assert target.rows() == [("a", "x", 1)]
    target.put({"x": [4]})
    assert target.rows() == [("a", "x", 4), ("a", "y", 3)]


def test_rows_that_a_table_refuses_are_dropped_by_the_next_transaction(tmp_path: Path, postgres: str) -> None:
    target = Postgres(StorageLocation(str(tmp_path)), postgres)
    target.put({None: [1]})
    target.execute(f"ALTER TABLE {target.schema}.t ADD CHECK (n < 10)")
    with pytest.raises(SinkCommitError, match="violates check constraint"):
        target.put({None: [11]})
    assert target.rows() == [("a", None, 1)]
    target.put({None: [2]})
    assert target.rows() == [("a", None, 2)]
    assert target.staged() == 0


def test_a_table_with_other_columns_is_refused_and_the_next_transaction_writes_the_rows(
    tmp_path: Path, postgres: str
) -> None:
    target = Postgres(StorageLocation(str(tmp_path)), postgres)
    target.execute(f"CREATE TABLE {target.schema}.t (n bigint)")
    with pytest.raises(CommitRefusedError, match='ADD COLUMN "dagster_asset_key" text'):
        target.put({None: [1]})
    target.execute(
        f"ALTER TABLE {target.schema}.t ADD COLUMN dagster_asset_key text, ADD COLUMN dagster_partition_key text"
    )
    target.put({None: [1]})
    assert target.rows() == [("a", None, 1)]
    assert (target.staged(), target.output().ledger.read().transactions) == (0, ())


def test_only_open_transactions_are_aborted(target: Target) -> None:
    transaction = target.stage({"x": [1]})
    ledger, store = target.output().ledger, target.location.child(target.table).open()
    assert abort_transactions(ledger, store, {1, 2}) == {1}
    assert target.staged() == 0
    with pytest.raises(FencedError, match="somebody aborted it"):
        transaction.commit()
    other = target.stage({"x": [2]})
    with dying((Output, "finish"), "before", [1]), pytest.raises(Crash):
        other.commit()
    assert abort_transactions(ledger, store, {2}) == set()
    target.put({"y": [3]})
    [record] = ledger.read().transactions
    target.output().finish(record)
    assert target.rows() == [("a", "x", 2), ("a", "y", 3)]
