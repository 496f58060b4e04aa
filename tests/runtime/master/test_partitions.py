"""A job that is partitioned by time: end states, overwritten sinks, and an uninterrupted run as oracle."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.forks.fork import fork_job
from dagster_flinkpy.checkpoint.forks.job_disposal import dispose_job
from dagster_flinkpy.checkpoint.head import Head, read_head
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.offline import stop_with_savepoint
from dagster_flinkpy.checkpoint.partitions import PartitionEnd, PartitionRetention
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import Time, Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import CheckpointError, ConfigurationError, FencedError, RestoreError
from dagster_flinkpy.runtime.master.commits.committers import Committers
from dagster_flinkpy.storage import StorageLocation
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import FolderSink

DAY = timedelta(days=1)
FIRST = datetime(2024, 3, 1, tzinfo=timezone.utc)
ROW = Types.ROW_NAMED(["word", "hour"], [Types.STRING(), Types.LONG()])
DAYS = ["abba", "cab", "", "aaaa", "bcb"]
"""The input of each partition: one record per letter."""


def day(ordinal: int) -> TimePartition:
    start = FIRST + ordinal * DAY
    return TimePartition(f"{start:%Y-%m-%d}", start, start + DAY, ordinal)


def hour_of(ordinal: int, position: int) -> int:
    return round((FIRST + ordinal * DAY + timedelta(hours=6 * position)).timestamp() * 1000)


class Letters(PartitionedSource):
    """Reads some letters per day."""

    @property
    def produced_type(self) -> Any:
        return ROW

    def for_partition(self, partition: TimePartition) -> Source:
        letters = DAYS[partition.ordinal]
        rows = [(letter, hour_of(partition.ordinal, i)) for i, letter in enumerate(letters)]
        return CollectionSource(rows, ROW, records_per_epoch=2)

    def create_enumerator(self, restored: Any) -> Any:
        return CollectionSource([], ROW).create_enumerator(restored)

    def read(self, split: Any) -> Iterator[Any]:
        raise AssertionError("only partitions are read")


class Count(KeyedProcessFunction):
    """Keeps counting over all days."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value.word, count


def program(table: Path) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1).set_max_parallelism(8)
    letters = env.from_source(Letters(), WatermarkStrategy.no_watermarks(), "letters").uid("letters")
    counts = letters.key_by("word", Types.STRING()).process(Count(), Types.TUPLE([Types.STRING(), Types.LONG()]))
    counts.uid("count").sink_to(ParquetSink(str(table))).uid("table")
    return env.get_job_graph()


def table(folder: Path) -> dict[str, Counter[tuple[str, int]]]:
    """Returns what a reader finds in each partition of the table."""
    found: dict[str, Counter[tuple[str, int]]] = {}
    for file in folder.glob("partition=*/*.parquet"):
        rows = pq.read_table(file, partitioning=None).to_pylist()
        found.setdefault(file.parent.name.partition("=")[2], Counter()).update(tuple(row.values()) for row in rows)
    return found


def straight_run() -> dict[str, Counter[tuple[str, int]]]:
    """Returns the contents of the table after all days in order."""
    counts: Counter[str] = Counter()
    expected: dict[str, Counter[tuple[str, int]]] = {}
    for ordinal, letters in enumerate(DAYS):
        for letter in letters:
            counts[letter] += 1
            expected.setdefault(day(ordinal).key, Counter())[letter, counts[letter]] += 1
    return expected


class Job:
    """The letters job in a folder, with the set of its end states."""

    def __init__(self, folder: Path, retention: PartitionRetention | None = None, *, unaligned: bool = False) -> None:
        self.folder = folder
        self.config = {
            "partition_retention": retention or PartitionRetention(),
            "checkpointing": CoordinatorConfig(unaligned=unaligned),
        }

    @property
    def head(self) -> Head:
        found = read_head(StorageLocation(str(self.folder / "state")).child("job").open())
        return found[0] if found else Head(0)

    def end_before(self, ordinal: int) -> PartitionEnd | None:
        return next((end for end in self.head.partitions if end.ordinal == ordinal - 1), None)

    def run(self, first: int, last: int, parallelism: int | None = None, *, live: bool = False) -> None:
        """Runs some days, from the end state before the first one."""
        before = self.end_before(first)
        attempt = HarnessAttempt(
            program(self.folder / "table"),
            self.folder / "state",
            config=self.config,
            parallelism=parallelism,
            live=live,
            start_empty=before is None,
            restore_from=None if before is None else f"chk-{before.checkpoint_id}",
        )
        with attempt:
            for ordinal in range(first, last + 1):
                attempt.run_epoch(partition=day(ordinal))


def test_days_in_order(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.run(0, 1)
    job.run(2, 4)
    assert table(tmp_path / "table") == straight_run()
    assert [end.based_on for end in job.head.partitions] == [None, 1, 2, 3, 4]
    assert [end.partition for end in job.head.partitions] == [day(i).key for i in range(5)]


@pytest.mark.parametrize("live", [False, True])
def test_barriers_overtake_no_rows_of_a_day(live: bool, tmp_path: Path) -> None:
    """The other subtasks of the source have nothing to read, so their barriers would come first."""
    job = Job(tmp_path, unaligned=True)
    job.run(0, 4, parallelism=3, live=live)
    assert table(tmp_path / "table") == straight_run()


def test_a_day_that_is_run_again_replaces_its_rows(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.run(0, 3)
    job.run(1, 1)
    assert table(tmp_path / "table") == {k: v for k, v in straight_run().items() if k != day(4).key}
    assert [(e.ordinal, e.checkpoint_id, e.based_on) for e in job.head.partitions] == [
        (0, 1, None),
        (1, 5, 1),
        (2, 3, 2),
        (3, 4, 3),
    ]


def test_a_fork_that_replaces_its_original_replaces_the_rows_of_a_day(tmp_path: Path) -> None:
    """Also those that the original wrote after the checkpoint of the fork."""
    job = Job(tmp_path)
    job.run(0, 3)
    original = StorageLocation(str(tmp_path / "state")).child("job")
    fork_job(original, "fork", at="chk-1")
    dispose_job(original)
    graph = program(tmp_path / "table")
    with HarnessAttempt(graph, tmp_path / "state", job_id="fork") as attempt:
        attempt.run_epoch(partition=day(1))
        attempt.run_epoch(partition=day(2))
    assert table(tmp_path / "table") == {k: v for k, v in straight_run().items() if k != day(4).key}


def test_a_day_whose_input_is_gone_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path)
    job.run(0, 1)
    assert day(1).key in table(tmp_path / "table")
    monkeypatch.setitem(globals(), "DAYS", ["abba", ""])
    job.run(1, 1)
    assert set(table(tmp_path / "table")) == {day(0).key}


@settings(max_examples=examples(12))
@given(st.data())
def test_any_sequence_of_runs_equals_one_straight_run(data: st.DataObject) -> None:
    """Materialises, backfills and rescales in any possible order, and then runs the remaining partitions in order."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder))
        for _ in range(data.draw(st.integers(1, 3), "runs")):
            startable = [0, *(end.ordinal + 1 for end in job.head.partitions if end.ordinal + 1 < len(DAYS))]
            first = data.draw(st.sampled_from(startable), "first")
            last = data.draw(st.integers(first, len(DAYS) - 1), "last")
            job.run(first, last, data.draw(st.sampled_from([None, 1, 2, 3]), "parallelism"))
        done = max(end.ordinal for end in job.head.partitions)
        if done + 1 < len(DAYS):
            job.run(done + 1, len(DAYS) - 1)
        assert table(Path(folder) / "table") == straight_run()


def test_end_states_are_kept_by_the_policy(tmp_path: Path) -> None:
    job = Job(tmp_path, PartitionRetention(every=None, last=2))
    job.run(0, 4)
    assert [end.ordinal for end in job.head.partitions] == [3, 4]
    folders = {path.name for path in (tmp_path / "state" / "job").glob("chk-*")}
    assert folders == {"chk-4", "chk-5"}
    job.run(4, 4)
    assert table(tmp_path / "table") == straight_run()


def test_a_window_stays_open_over_the_end_of_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "DAYS", ["aaaa", "aaa", "b"])
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    by_hour = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("hour")
    letters = env.from_source(Letters(), by_hour, "letters").uid("letters")
    two_days = TumblingEventTimeWindows.of(Time.days(2), Time.days(1))  # the first window is days 0 and 1
    counts = letters.key_by("word", Types.STRING()).window(two_days).count()
    counts.uid("windows").sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
    with HarnessAttempt(env.get_job_graph(), tmp_path / "state") as attempt:
        for ordinal in (0, 1):
            attempt.run_epoch(partition=day(ordinal))
            assert not attempt.finished
            assert table(tmp_path / "table") == {}
        attempt.run_epoch(partition=day(2))
    [(partition, rows)] = table(tmp_path / "table").items()
    assert partition == day(2).key
    assert [(row[0], row[-1]) for row in rows.elements()] == [("a", 7)]


def test_a_rescale_between_two_days_lasts(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.run(0, 1)
    with HarnessAttempt(program(tmp_path / "table"), tmp_path / "state", parallelism=3) as attempt:
        rescaled = attempt.commit_restored()
    assert [(e.ordinal, e.checkpoint_id) for e in job.head.partitions] == [(0, 1), (1, rescaled.checkpoint_id)]
    job.run(2, 4)
    latest = CompletedCheckpointStore(StorageLocation(str(tmp_path / "state")).child("job").open()).latest()
    assert latest is not None
    assert {operator.parallelism for operator in latest.operators} == {3}
    assert table(tmp_path / "table") == straight_run()


def test_a_crash_between_head_and_commit_is_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path)
    job.run(0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(HarnessAttempt, "_commit", lambda self, metadata: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            job.run(0, 0)
    job.run(2, 4)
    assert table(tmp_path / "table") == straight_run()


def test_a_job_that_is_stopped_behind_a_partition_keeps_its_rows(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with HarnessAttempt(program(tmp_path / "table"), tmp_path / "state", start_empty=True) as attempt:
        attempt.run_epoch(partition=day(0))
        attempt.run_epoch(partition=day(1))
        with pytest.raises(ConfigurationError, match="cannot be drained"):
            attempt.stop_with_savepoint(drain=True)
        attempt.stop_with_savepoint()
    assert set(table(tmp_path / "table")) == {day(0).key, day(1).key}
    assert job.end_before(2) is not None
    job.run(2, 4)
    assert table(tmp_path / "table") == straight_run()


def test_a_job_that_is_stopped_from_outside_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path)
    job.run(0, 1)
    with monkeypatch.context() as patched:  # it dies before it can record that nothing is left to commit
        patched.setattr(CompletedCheckpointStore, "end_attempt", lambda *args: None)
        stop_with_savepoint(StorageLocation(str(tmp_path / "state" / "job")), owner="cli", now_ms=0)
    job.run(2, 4)
    assert table(tmp_path / "table") == straight_run()


def test_a_day_whose_rows_are_not_replaced_yet_is_not_stopped_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    job.run(0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(HarnessAttempt, "_commit", lambda self, metadata: (_ for _ in ()).throw(KeyboardInterrupt))
        patched.setitem(globals(), "DAYS", ["abba", ""])
        with pytest.raises(KeyboardInterrupt):
            job.run(1, 1)
    with pytest.raises(CheckpointError, match="may still have something to commit"):
        stop_with_savepoint(StorageLocation(str(tmp_path / "state" / "job")), owner="cli", now_ms=0)


def test_a_fenced_run_whose_rows_were_replaced_meanwhile_has_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    commit = Committers.commit

    def overtaken(committers: Committers, metadata: CheckpointMetadata) -> int:
        monkeypatch.undo()
        job.run(0, 0)
        return commit(committers, metadata)

    monkeypatch.setattr(Committers, "commit", overtaken)
    with pytest.raises(FencedError, match="was fenced by"):
        job.run(0, 0)
    job.run(1, 4)
    assert table(tmp_path / "table") == straight_run()


def test_a_source_that_knows_no_partitions_is_named(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(["a"], Types.STRING()).uid("words").sink_to(ParquetSink(str(tmp_path / "t"))).uid("table")
    with (
        HarnessAttempt(env.get_job_graph(), tmp_path / "state") as attempt,
        pytest.raises(ConfigurationError, match=r"source 'words' \(CollectionSource\) cannot be read by partition"),
    ):
        attempt.run_epoch(partition=day(0))


def test_a_sink_that_cannot_replace_a_partition_is_refused_before_anything_is_complete(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    letters = env.from_source(Letters(), WatermarkStrategy.no_watermarks(), "letters").uid("letters")
    letters.sink_to(FolderSink(tmp_path / "out")).uid("folder")
    with HarnessAttempt(env.get_job_graph(), tmp_path / "state") as attempt:
        with pytest.raises(ConfigurationError, match=r"sink 'folder' \(_FolderCommitter\) cannot replace the rows"):
            attempt.run_epoch(partition=day(0))
        assert attempt.latest is None


def test_a_checkpoint_between_partitions_releases_no_end_state(tmp_path: Path) -> None:
    """An example is the checkpoint that a rescale completes."""
    job = Job(tmp_path, PartitionRetention(every=7))
    job.run(0, 1)
    with HarnessAttempt(program(tmp_path / "table"), tmp_path / "state", config=job.config, parallelism=2) as attempt:
        attempt.commit_restored()
    assert [(end.ordinal, end.checkpoint_id) for end in job.head.partitions] == [(1, 3)], (
        "the same state, at the new parallelism"
    )
    job.run(2, 4)
    assert table(tmp_path / "table") == straight_run()


def test_a_state_that_is_gone_is_not_restored(tmp_path: Path) -> None:
    job = Job(tmp_path, PartitionRetention(every=None, last=1))
    job.run(0, 2)
    attempt = HarnessAttempt(program(tmp_path / "table"), tmp_path / "state", restore_from="chk-1")
    with pytest.raises(RestoreError, match="keeps chk-3"):
        attempt.__enter__()


# --- ParquetSource ----------------------------------------------------------------------------------------------------


def test_parquet_files_of_a_partition(tmp_path: Path) -> None:
    for name in ("2024-02-29", "2024-03-01", "2024-03-01b", "2024-03-02"):
        (tmp_path / f"{name}.parquet").write_bytes(b"")
    source = ParquetSource(str(tmp_path), row_type=ROW, partition_format="%Y-%m-%d")
    part = source.for_partition(day(0))
    assert [f.key for f in part.files(source.location.open())] == ["2024-03-01.parquet", "2024-03-01b.parquet"]
    assert len(source.files(source.location.open())) == 4


@pytest.mark.parametrize("partition_format", [None, "%H", "%Y"])
def test_a_partition_format_must_tell_partitions_apart(tmp_path: Path, partition_format: str | None) -> None:
    source = ParquetSource(str(tmp_path), row_type=ROW, partition_format=partition_format)
    with pytest.raises(ConfigurationError, match="partition_format="):
        source.for_partition(day(0))
