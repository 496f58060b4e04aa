"""Attempts that fail, and two attempts at once."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import (
    CheckpointError,
    CommittableLostError,
    CorruptStateError,
    FencedError,
    SourceReadError,
    UserFunctionError,
)
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.mailbox import Lane
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt
from tests.runtime.master.jobs import RECORDS, counted_graph, fail_at, run_epochs, sunk
from tests.runtime.programs import COUNTED, EVENT, FolderSink, environment, event_time, events

# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_failing_function_declines_and_the_next_attempt_resumes(tmp_path: Path) -> None:
    poisoned, sink = sunk(tmp_path, fail_at(120))
    lines: list[str] = []
    with HarnessAttempt(poisoned, tmp_path, on_progress=lines.append) as attempt:
        attempt.run_epoch()
        with pytest.raises(UserFunctionError, match="boom at 120") as raised:
            attempt.run_epoch()
        assert (raised.value.operator, raised.value.subtask) == ("map", 1)
        assert "checkpoint 2 was aborted: The checkpoint was declined." in lines
        assert sink.rows() == sorted(RECORDS[:8])
        assert sink.staged() == []
        with pytest.raises(CheckpointError, match="this attempt has failed"):
            attempt.run_epoch()
    healed, _ = sunk(tmp_path)
    with HarnessAttempt(healed, tmp_path) as attempt:
        assert attempt.restored is not None
        assert attempt.restored.checkpoint_id == 1
        while not attempt.finished:
            attempt.run_epoch()
    assert sink.rows() == sorted(RECORDS)
    assert sink.staged() == []


def test_after_any_error_an_attempt_is_over(tmp_path: Path) -> None:
    def broken(rows: pa.Table) -> pa.Table:
        raise RuntimeError("a bug")

    with HarnessAttempt(counted_graph(), tmp_path, order=broken) as attempt:
        with pytest.raises(RuntimeError, match="a bug"):
            attempt.run_epoch()
        with pytest.raises(CheckpointError, match="this attempt has failed"):
            attempt.run_epoch()


def test_a_damaged_state_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files, however small.
    monkeypatch.setitem(ColumnarKeyedStateBackend.__init__.__kwdefaults__, "inline_below", 0)
    graph = counted_graph(parallelism=1)
    run_epochs(graph, tmp_path, 1)
    shutil.rmtree(tmp_path / "cache")  # otherwise a good local copy would be enough
    damaged = sorted((tmp_path / "job" / "shared").glob("*.parquet"))
    for path in damaged:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    with pytest.raises(CorruptStateError) as raised:
        run_epochs(graph, tmp_path, 1)
    assert any(path.name in str(raised.value) for path in damaged)


def test_a_damaged_input_file_is_named_and_nothing_of_its_epoch_is_committed(tmp_path: Path) -> None:
    files = tmp_path / "input"
    files.mkdir()
    for i in range(3):
        rows = RECORDS[i * 8 : i * 8 + 8]
        table = pa.table(dict(zip(("key", "time", "value"), map(list, zip(*rows, strict=True)), strict=True)))
        pq.write_table(table, files / f"{i}.parquet")
    damaged = bytearray((files / "2.parquet").read_bytes())
    (files / "2.parquet").write_bytes(damaged[: len(damaged) // 2])
    sink = FolderSink(tmp_path / "table")
    env = environment(2)
    stream = env.from_source(ParquetSource(str(files), max_files_per_epoch=2), event_time(), "files").uid("files")
    stream.map(lambda v: (v.key, v.time, v.value), COUNTED).uid("rows").sink_to(sink).uid("sink")
    with HarnessAttempt(env.get_job_graph(), tmp_path) as attempt:
        attempt.run_epoch()
        with pytest.raises(SourceReadError, match=r"2\.parquet"):
            attempt.run_epoch()
    assert sink.rows() == sorted(RECORDS[:16])
    assert sink.staged() == []


class _SlowSpark:
    """A Spark session whose job runs until it is interrupted."""

    conf: Mapping[str, str] = {"spark.default.parallelism": "2"}

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.interrupted = threading.Event()
        self.now_ms = 1_000_000
        """The time: the job takes a minute."""
        self.wake: Callable[[], object] = lambda: None
        """Has the master look at the time."""

    def addTag(self, tag: str) -> None:
        self.tags.append(tag)

    removeTag = addTag

    def interruptTag(self, tag: str) -> None:
        assert tag == self.tags[0]
        self.interrupted.set()

    def stop(self) -> None:
        pass

    def registerProgressHandler(self, handler: object) -> None:
        pass

    removeProgressHandler = registerProgressHandler

    def run(self, spark: Any, job: EpochJob) -> Iterable[WireRow]:
        self.now_ms += 60_000
        self.wake()
        assert self.interrupted.wait(300)
        raise CheckpointError("the Spark job was interrupted")


def test_a_checkpoint_that_takes_too_long_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnSlowSpark(HarnessAttempt):
        _on_spark = HarnessAttempt.__mro__[1]._on_spark
        _create_mailbox = HarnessAttempt.__mro__[1]._create_mailbox

        def __enter__(self) -> Any:
            spark.wake = lambda: self._mailbox.submit(Lane.STORE, lambda: None)
            return super().__enter__()

    spark = _SlowSpark()
    monkeypatch.setattr("dagster_flinkpy.runtime.master.job_session.get_session", lambda settings, **_: spark)
    monkeypatch.setattr("dagster_flinkpy.runtime.master.deployments.way_to_store.run_region", spark.run)
    monkeypatch.setattr("dagster_flinkpy.runtime.master.job._now", lambda: spark.now_ms)
    graph, sink = sunk(tmp_path)
    config = {"checkpointing": CoordinatorConfig(timeout=timedelta(seconds=59))}
    lines: list[str] = []
    with OnSlowSpark(graph, tmp_path, config=config, on_progress=lines.append) as attempt:
        with pytest.raises(CheckpointError, match=r"0 of 8 tasks answered in 0:00:59"):
            attempt.run_epoch()
        tag, again = spark.tags
        assert tag == again and tag.startswith(f"flinkpy-job-{attempt.token}-1-0-")
    assert "checkpoint 1 was aborted: The checkpoint expired before completing." in lines
    with HarnessAttempt(graph, tmp_path, config=config) as attempt:
        attempt.run_epoch()
    assert sink.rows() == sorted(RECORDS[:8])


def test_a_run_that_is_tried_again_restores_once(tmp_path: Path) -> None:
    graph, sink = sunk(tmp_path)
    with HarnessAttempt(graph, tmp_path / "one") as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint(str(tmp_path / "savepoints"))
    run = {"restore_from": savepoint, "run_id": "run"}
    poisoned, _ = sunk(tmp_path, fail_at(200))
    with HarnessAttempt(poisoned, tmp_path / "two", **run) as attempt:
        attempt.run_epoch()
        with pytest.raises(UserFunctionError):
            attempt.run_epoch()
    for _ in range(2):
        with HarnessAttempt(graph, tmp_path / "two", **run) as attempt:
            while not attempt.finished:
                attempt.run_epoch()
    assert sink.rows() == sorted(RECORDS)
    with HarnessAttempt(graph, tmp_path / "two", restore_from=savepoint, run_id="another run") as attempt:
        assert attempt.restored is not None
        assert attempt.restored.checkpoint_id == 1


@pytest.mark.parametrize("another", [False, True], ids=["", "after another run"])
def test_a_run_that_is_tried_again_starts_from_empty_state_once(tmp_path: Path, another: bool) -> None:
    run = {"start_empty": True, "run_id": "run"}
    poisoned, _ = sunk(tmp_path, fail_at(200))
    with HarnessAttempt(poisoned, tmp_path, **run) as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
        with pytest.raises(UserFunctionError):
            attempt.run_epoch()
    graph, sink = sunk(tmp_path)
    if another:  # such as one of the checkpoint sensor, which has begun before the next try
        with HarnessAttempt(graph, tmp_path) as attempt:
            attempt.run_epoch()
    with HarnessAttempt(graph, tmp_path, **run) as attempt:
        while not attempt.finished:
            attempt.run_epoch()
    assert sink.rows() == sorted(RECORDS)
    with HarnessAttempt(graph, tmp_path, start_empty=True, run_id="another run") as attempt:
        assert attempt.restored is None


# --- two attempts at once ---------------------------------------------------------------------------------------------


def test_a_zombie_is_told_who_fenced_it_and_its_rows_stay_invisible(tmp_path: Path) -> None:
    graph, sink = sunk(tmp_path)
    with HarnessAttempt(graph, tmp_path, owner="old run") as zombie:
        zombie.run_epoch()
        with HarnessAttempt(graph, tmp_path, owner="new run") as attempt:
            with pytest.raises(FencedError, match=r"'old run' \(token 1\) was fenced by .*'new run' \(token 2\)"):
                zombie.run_epoch()
            while not attempt.finished:
                attempt.run_epoch()
    assert sink.rows() == sorted(RECORDS)


def test_a_zombie_that_fails_aborts_nothing_of_the_attempt_that_took_over(tmp_path: Path) -> None:
    class Meanwhile(HarnessAttempt):
        """Another attempt fails while the records of this one are staged."""

        zombie: HarnessAttempt

        def _on_spark(self, job: EpochJob) -> list[WireRow]:
            rows = super()._on_spark(job)
            staged = sink.staged()
            assert staged
            if not failures:
                with pytest.raises(UserFunctionError) as raised:
                    self.zombie.run_epoch()
                failures.append(raised.value)
            assert set(staged) <= set(sink.staged())
            return rows

    failures: list[UserFunctionError] = []
    poisoned, _ = sunk(tmp_path, fail_at(120))
    graph, sink = sunk(tmp_path)
    with HarnessAttempt(poisoned, tmp_path) as zombie:
        zombie.run_epoch()
        with Meanwhile(graph, tmp_path) as attempt:
            attempt.zombie = zombie
            while not attempt.finished:
                attempt.run_epoch()
    assert len(failures) == 1
    assert sink.rows() == sorted(RECORDS)


def test_an_attempt_that_is_fenced_between_head_and_commit_leaves_the_commit_to_the_next(tmp_path: Path) -> None:
    graph, sink = sunk(tmp_path)

    class TakenOver(HarnessAttempt):
        """Another attempt takes over as soon as HEAD names the new checkpoint."""

        def _commit(self, metadata: Any) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), TakenOver(graph, tmp_path) as attempt:
        attempt.run_epoch()
    assert sink.rows() == []
    assert len(sink.staged()) == 2
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert attempt.restored is not None
        assert (attempt.restored.checkpoint_id, attempt.committed_on_recovery) == (1, 2)
        assert sink.rows() == sorted(RECORDS[:8])
        while not attempt.finished:
            attempt.run_epoch()
    assert sink.rows() == sorted(RECORDS)


def two_sinks(folder: Path) -> JobGraph:
    """Returns a program with three epochs and two Parquet tables, ``rows`` and ``copy``."""
    env = environment(1)
    rows = events(env, RECORDS, per_epoch=8).map(lambda v: Row(v.key, v.time, v.value), EVENT).uid("rows")
    for name in ("rows", "copy"):
        rows.sink_to(ParquetSink(str(folder / name))).uid(f"{name}_table")
    return env.get_job_graph()


def times(folder: Path) -> list[int]:
    return sorted(t for file in folder.rglob("*.parquet") for t in pq.read_table(file).column("time").to_pylist())


def test_rows_that_were_deleted_after_their_commit_are_written_again_from_a_savepoint(tmp_path: Path) -> None:
    graph = two_sinks(tmp_path)
    with HarnessAttempt(graph, tmp_path) as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint()
        attempt.run_epoch()
    for file in (tmp_path / "rows").rglob("*.parquet"):
        if min(pq.read_table(file).column("time").to_pylist()) >= 80:
            file.unlink()
    shutil.rmtree(tmp_path / "copy")
    with HarnessAttempt(graph, tmp_path, restore_from=savepoint) as attempt:
        while not attempt.finished:
            attempt.run_epoch()
    assert times(tmp_path / "rows") == [time for _, time, _ in RECORDS]
    assert times(tmp_path / "copy") == [time for _, time, _ in RECORDS[8:]]
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert attempt.finished


def test_a_table_can_be_written_elsewhere_from_the_next_checkpoint_on(tmp_path: Path) -> None:
    with HarnessAttempt(two_sinks(tmp_path / "old"), tmp_path) as attempt:
        attempt.run_epoch()
    graph = two_sinks(tmp_path / "new")
    with HarnessAttempt(graph, tmp_path) as attempt:
        while not attempt.finished:
            attempt.run_epoch()
    assert times(tmp_path / "old/rows") == [time for _, time, _ in RECORDS[:8]]
    assert times(tmp_path / "new/rows") == [time for _, time, _ in RECORDS[8:]]


def test_a_lost_file_of_one_sink_does_not_keep_another_sink_from_its_commit(tmp_path: Path) -> None:
    graph = two_sinks(tmp_path)

    class Dies(HarnessAttempt):
        def _commit(self, metadata: Any) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Dies(graph, tmp_path) as attempt:
        attempt.run_epoch()
    store = StorageLocation(str(tmp_path / "rows")).open()
    for upload in store.list_uploads():
        store.abort_upload(upload.key, upload.upload_id)
    with (
        pytest.raises(CommittableLostError, match=r"rows_table.*'chk-1' to continue without them"),
        HarnessAttempt(graph, tmp_path),
    ):
        pass
    assert (times(tmp_path / "rows"), times(tmp_path / "copy")) == ([], [time for _, time, _ in RECORDS[:8]])


def test_a_spark_job_that_brings_back_too_little_completes_nothing(tmp_path: Path) -> None:
    class Forgets(HarnessAttempt):
        def _on_spark(self, job: EpochJob) -> list[WireRow]:
            rows = super()._on_spark(job)
            acks = [row for row in rows if row.kind is Kind.ACK]
            return [row for row in rows if row is not acks[-1]]

    graph, sink = sunk(tmp_path)
    with HarnessAttempt(graph, tmp_path) as attempt:
        attempt.run_epoch()
    with (
        Forgets(graph, tmp_path) as attempt,
        pytest.raises(CheckpointError, match=r"1 of \d+ tasks did not acknowledge checkpoint 2"),
    ):
        attempt.run_epoch()
    assert sink.rows() == sorted(RECORDS[:8])


def test_what_a_dead_attempt_left_staged_is_aborted(tmp_path: Path) -> None:
    graph, sink = sunk(tmp_path)

    class Dies(HarnessAttempt):
        def _create_metadata(self, write: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Dies(graph, tmp_path) as attempt:
        attempt.run_epoch()
    assert len(sink.staged()) == 2
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert attempt.aborted_lingering == 2
        assert sink.staged() == []
        while not attempt.finished:
            attempt.run_epoch()
    assert sink.rows() == sorted(RECORDS)
