"""Every way to ask for a savepoint refuses targets where it would be deleted or read as rows, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_flinkpy.checkpoint.offline import stop_with_savepoint, trigger_savepoint
from dagster_flinkpy.checkpoint.requests import Order, RequestKind
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.cli import main
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import AccessDeniedError, ConfigurationError, RequestFailedError, StorageError
from dagster_flinkpy.state_processor import write_savepoint
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.harness import HarnessAttempt
from tests.runtime.master.test_requests import Asked, always, ids
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

__all__ = ["always"]

RECORDS = [(f"k{i}", i, i) for i in range(7)]
BELOW = ["job/shared", "job/chk-1", "job/exchange", "job/savepoints", "other", "table", "table/day=1"]


def program(folder: Path) -> JobGraph:
    """Seven rows into a Parquet table."""
    env = environment(1)
    counted = events(env, RECORDS, per_epoch=4).key_by("key").process(CountPerKey(), COUNTED).uid("counts")
    counted.sink_to(ParquetSink(str(folder / "table"))).uid("sink")
    return env.get_job_graph()


def rows(folder: Path) -> int:
    return sum(len(column) for column, _ in _read(folder))


def _read(folder: Path) -> list[Any]:
    source = ParquetSource(str(folder), bounded=True)
    splits = source.create_enumerator(None).plan_epoch(1)
    return [batch for split in splits[0] for batch in source.read(split)]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job that has committed all rows, beside another one."""
    with HarnessAttempt(program(tmp_path), tmp_path) as attempt:
        list(attempt.run_epochs())
    StorageLocation(str(tmp_path / "other")).open().put("HEAD", b"another job")
    return tmp_path


def take(job: Path, target: str) -> None:
    with HarnessAttempt(program(job), job) as attempt:
        attempt.savepoint(target)


def stop(job: Path, target: str) -> None:
    with HarnessAttempt(program(job), job) as attempt:
        attempt.stop_with_savepoint(target)


def offline(job: Path, target: str) -> None:
    trigger_savepoint(StorageLocation(str(job / "job")), StorageLocation(target))


def stop_offline(job: Path, target: str) -> None:
    stop_with_savepoint(StorageLocation(str(job / "job")), StorageLocation(target), owner="test", now_ms=0)


def process(job: Path, target: str) -> None:
    write_savepoint(str(job / "job")).write(target)


def command(*words: str) -> Callable[[Path, str], None]:
    def run(job: Path, target: str) -> None:
        result = CliRunner().invoke(main, [*words, str(job / "job"), "--target", target])
        assert result.exit_code == 1
        raise ConfigurationError(result.output)

    return run


@pytest.mark.parametrize(
    "ask", [take, stop, offline, stop_offline, process, command("savepoint", "trigger"), command("savepoint", "stop")]
)
def test_a_stored_checkpoint_is_not_copied_there(job: Path, ask: Callable[[Path, str], None]) -> None:
    before = files(job) - {"job/HEAD", "job/leader"}
    for below in BELOW:
        with pytest.raises(ConfigurationError, match=r"no savepoint can be written to(?s:.*)outside of it"):
            ask(job, str(job / below))
        assert files(job) - {"job/HEAD", "job/leader", "job/statistics", "job/execution"} <= before, below
        assert rows(job / "table") == 7
        assert not open_checkpoint(StorageLocation(str(job / "job"))).metadata.stopped


def test_a_savepoint_of_a_savepoint_is_not_inside_it(job: Path) -> None:
    first = trigger_savepoint(StorageLocation(str(job / "job")), StorageLocation(str(job / "kept")))
    for target in (f"{first}/shared", f"{first}/again", (job / "table" / "x").as_uri()):
        with pytest.raises(ConfigurationError, match="no savepoint can be written to"):
            write_savepoint(first).write(target)
    open_checkpoint(StorageLocation(write_savepoint(first).write(str(job / "kept" / "second"))))


def test_a_savepoint_elsewhere_survives_a_sweep_and_is_no_rows(job: Path) -> None:
    url = trigger_savepoint(StorageLocation(str(job / "job")), StorageLocation(str(job / "kept")))
    before = files(job / "kept")
    sweep(StorageLocation(str(job / "job")).open())
    assert files(job / "kept") == before and rows(job / "table") == 7
    with HarnessAttempt(program(job), job / "copy", restore_from=url) as attempt:
        assert attempt.finished


@pytest.mark.parametrize("kind", [RequestKind.SAVEPOINT, RequestKind.STOP])
@pytest.mark.parametrize("below", ["job/shared", "sink/committed", "sink/../job/chk-1"])
def test_a_running_job_refuses_and_goes_on(tmp_path: Path, kind: RequestKind, below: str) -> None:
    with Asked(tmp_path) as attempt:
        attempt._savepoints.__dict__["folders"] = ((tmp_path / "sink").as_uri(),)  # its sink has no URL
        attempt.orders = {2: [Order(kind, target=str(tmp_path / below))]}
        assert ids(attempt) == [1, 2, 3, 4, 5]
        with pytest.raises(RequestFailedError, match="no savepoint can be written to"):
            attempt.answer()
        assert attempt.stopped_with is None
    assert not [name for name in files(tmp_path) if "savepoint-" in name]


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        *((target, RequestKind.SAVEPOINT) for target in ("\0", "a\0b", "x\ny", "\ud800", "", "http://x", "x" * 300)),
        ("\0", RequestKind.STOP),
    ],
)
def test_what_is_no_folder_is_refused_by_everybody(tmp_path: Path, kind: RequestKind, target: str) -> None:
    """The asker refuses it, and so does a run that finds it in a request."""
    with Asked(tmp_path) as attempt:
        attempt.run_epoch()
        with pytest.raises((ConfigurationError, StorageError)):
            attempt.savepoint(target)
        with pytest.raises((ConfigurationError, StorageError)):
            attempt.stop_with_savepoint(target)
        if len(target) < 300:
            with pytest.raises((ConfigurationError, StorageError)):
                Order(kind, target=target)
        order = Order(kind)
        object.__setattr__(order, "target", target)
        attempt.orders = {2: [order]}
        assert ids(attempt) == [2, 3, 4, 5]
        with pytest.raises(RequestFailedError):
            attempt.answer()
        assert attempt.stopped_with is None


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff", b"{}", b"[]", b"null", b'{"version": 1}', b"[" * 60_000])
def test_what_is_no_request_is_answered_and_the_job_goes_on(tmp_path: Path, data: bytes) -> None:
    with Asked(tmp_path) as attempt:
        attempt.run_epoch()
        number = f"{current_millis():013d}-0123456789ab"
        attempt._store.store.put(f"requests/{number}/request", data)
        attempt._store.store.put("requests/nonsense", data)
        attempt.requests.append(number)
        assert ids(attempt) == [2, 3, 4, 5]
        with pytest.raises(RequestFailedError, match="cannot be carried out"):
            attempt.answer()


def test_a_request_that_nobody_may_read_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get = LocalObjectStore.get

    def denied(store: LocalObjectStore, key: str) -> Any:
        if key == f"requests/{attempt.requests[0]}/request":
            raise AccessDeniedError("403")
        return get(store, key)

    with Asked(tmp_path) as attempt:
        attempt.orders = {2: [Order(RequestKind.CHECKPOINT), Order(RequestKind.CHECKPOINT)]}
        attempt.then = {2: lambda: monkeypatch.setattr(LocalObjectStore, "get", denied)}
        assert ids(attempt) == [1, 2, 3, 4, 5]
        with pytest.raises(RequestFailedError, match="cannot be carried out: 403"):
            attempt.answer(0)
        assert attempt.answer(1).checkpoint_id
