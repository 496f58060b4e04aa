"""Unaligned barriers overtake what is in flight on a blocking edge: the checkpoint names its segments."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.checkpoint.verify import verify_checkpoint
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.datastream import DataStream
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import NamedSegmentLostError, RestoreError, UserFunctionError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.mailbox import InlineMailbox, Lane, Mailbox
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.state_processor import dispose_job, fork_job
from dagster_flinkpy.storage import StorageLocation
from tests.examples import examples
from tests.runtime import in_flight_v1
from tests.runtime.harness import HarnessAttempt
from tests.runtime.master.test_regions import Watched
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, events
from tests.waiting import LIMIT

RECORDS = [(f"k{i % 3}", i, i) for i in range(12)]
READER = "events.exchange.counts"


def options(**config: Any) -> dict[str, Any]:
    return {"checkpointing": CoordinatorConfig(unaligned=True, **config)}


def program(folder: Path, edges: int = 1, per_epoch: int = 4) -> tuple[JobGraph, FolderSink]:
    env, sink = environment(2), FolderSink(folder / "sink")
    stream: DataStream = events(env, RECORDS, per_epoch=per_epoch)
    for number in range(edges - 1):
        stream = stream.blocking().map(lambda v: v, EVENT).uid(f"map-{number}")
    stream = stream.blocking() if edges else stream
    stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts").sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


def expected(folder: Path) -> list[Any]:
    graph, sink = program(folder / "straight", 0)
    with HarnessAttempt(graph, folder / "straight") as attempt:
        list(attempt.run_epochs())
    return in_any_order(sink.rows())


def in_any_order(rows: list[Any]) -> list[Any]:
    """Returns what does not depend on the order of the records of a key: its counts, and its last sum."""
    totals = {key: total for key, _, total in sorted(rows)}
    return [sorted((key, number) for key, number, _ in rows), sorted(totals.items())]


def segments(folder: Path) -> list[str]:
    exchange = folder / "job" / "exchange"
    return sorted(path.relative_to(folder / "job").as_posix() for path in exchange.rglob("*.arrow"))


def named(metadata: CheckpointMetadata | None) -> list[str]:
    assert metadata is not None
    return sorted(path for operator in metadata.operators for path in operator.segments())


def test_a_checkpoint_completes_although_nobody_has_read_the_edge(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    with HarnessAttempt(graph, tmp_path, config=options()) as attempt:
        metadata = attempt.run_epoch().metadata
    reader = metadata.operator(READER)
    assert reader is not None
    (output,) = reader.in_flight
    assert (output["edge"], output["checkpoint_id"], output["end_of_input"]) == ("events.exchange", 1, False)
    assert sum(segment["rows"] for segment in output["segments"]) == 4
    assert named(metadata) == segments(tmp_path) != []
    assert sink.rows() == []
    assert [operator.uid for operator in metadata.operators if operator.in_flight] == [READER]
    assert verify_checkpoint(metadata, StorageLocation(str(tmp_path / "job")).open()).problems == ()


@pytest.mark.short
@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_restore_reads_it_at_any_parallelism(tmp_path: Path, parallelism: int, epochs: int) -> None:
    graph, sink = program(tmp_path)

    def die() -> None:
        raise RestoreError("no restart helps")

    with pytest.raises(RestoreError), Watched(graph, tmp_path, config=options()) as attempt:
        attempt.before[1, epochs + 1] = die
        list(attempt.run_epochs())
    assert attempt.latest is not None and attempt.latest.checkpoint_id == epochs
    assert len(named(attempt.latest)) > 0
    with HarnessAttempt(graph, tmp_path, config=options(), parallelism=parallelism) as attempt:
        list(attempt.run_epochs())
        assert attempt.finished
    assert in_any_order(sink.rows()) == expected(tmp_path)
    assert (segments(tmp_path), sink.staged()) == ([], [])


def test_both_regions_run_an_epoch_at_the_same_time(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    # The second region has its first Spark job in any case. Whether it has another one before the end depends on how
    # much of the edge was written when that job was planned.
    meet = threading.Barrier(2, timeout=LIMIT)
    with Watched(
        graph, tmp_path, threads=True, config=options(), before={(0, 2): meet.wait, (1, 1): meet.wait}
    ) as attempt:
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs()] == [1, 2, 3]
    assert in_any_order(sink.rows()) == expected(tmp_path)


def test_segments_go_with_the_last_checkpoint_that_names_them(tmp_path: Path) -> None:
    graph, _ = program(tmp_path, per_epoch=2)
    kept: list[list[str]] = []
    with HarnessAttempt(graph, tmp_path, config=options(num_retained=2)) as attempt:
        while not attempt.finished:
            kept = [*kept, named(attempt.run_epoch().metadata)][-2:]
            assert segments(tmp_path) == sorted(path for paths in kept for path in paths)
    assert kept[0] != []
    assert kept[1] == [], "the epoch that ends the input aligns"


@pytest.mark.parametrize("format_type", SavepointFormatType)
def test_a_savepoint_keeps_them(tmp_path: Path, format_type: SavepointFormatType) -> None:
    graph, sink = program(tmp_path)
    job = StorageLocation(str(tmp_path / "job"))
    with HarnessAttempt(graph, tmp_path, config=options()) as attempt:
        metadata = attempt.run_epoch().metadata
        savepoint = attempt.savepoint(format_type=format_type)
        list(attempt.run_epochs())
    once = sink.rows()
    native = format_type is SavepointFormatType.NATIVE
    assert segments(tmp_path) == (named(metadata) if native else [])
    sweep(job.open(), timedelta(0))
    assert segments(tmp_path) == (named(metadata) if native else [])
    with HarnessAttempt(graph, tmp_path, config=options(), restore_from=savepoint, parallelism=3) as attempt:
        sweep(job.open(), timedelta(0))  # the copies are as old as the run
        again = named(attempt.commit_restored().metadata)
        assert again != [] and {*again}.isdisjoint(named(metadata)), "the job has copies of its own"
        dispose_savepoint(StorageLocation(savepoint), owner="test", now_ms=0)
        sweep(job.open(), timedelta(0))
        list(attempt.run_epochs())
    assert Counter(in_any_order(sink.rows())[0]) == Counter(in_any_order(once)[0] * 2), "the rows of both"
    sweep(job.open(), timedelta(0))
    assert segments(tmp_path) == []


def test_a_fork_reads_them_although_the_job_is_gone(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    with HarnessAttempt(graph, tmp_path, config=options()) as attempt:
        attempt.run_epoch()
    job = StorageLocation(str(tmp_path / "job"))
    waiting = segments(tmp_path)
    fork_job(job, "copy")
    dispose_job(job)
    assert (segments(tmp_path), sink.rows()) == (waiting, [])
    graph, sink = program(tmp_path / "copy of rows")
    with HarnessAttempt(graph, tmp_path, job_id="copy", config=options(), parallelism=3) as attempt:
        list(attempt.run_epochs())
    assert in_any_order(sink.rows()) == expected(tmp_path)
    sweep(job.parent.child("copy").open(), timedelta(0))
    assert list(job.open().list()) == []


def test_what_was_in_flight_is_read_without_further_input(tmp_path: Path) -> None:
    graph, sink = program(tmp_path, edges=3, per_epoch=12)
    with HarnessAttempt(graph, tmp_path, config=options()) as attempt:
        attempt.run_epoch()
        assert attempt.finished, "the epoch that ends the input aligns"
    assert in_any_order(sink.rows()) == expected(tmp_path)


def test_the_alignment_timeout_counts_from_the_trigger(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    with HarnessAttempt(graph, tmp_path, config=options(aligned_timeout=timedelta(hours=1))) as attempt:
        assert named(attempt.run_epoch().metadata) == []
        assert len(sink.rows()) == 4
        list(attempt.run_epochs())
    assert in_any_order(sink.rows()) == expected(tmp_path)


def test_a_partner_that_aligns_reads_what_was_in_flight_first(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    with HarnessAttempt(graph, tmp_path, config=options()) as attempt:
        attempt.run_epoch()
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert named(attempt.run_epoch().metadata) == []
        assert len(sink.rows()) == 8
        list(attempt.run_epochs())
    assert in_any_order(sink.rows()) == expected(tmp_path)


def test_a_program_without_the_edge_is_refused(tmp_path: Path) -> None:
    graph, _ = program(tmp_path)
    with HarnessAttempt(graph, tmp_path, config=options()) as attempt:
        attempt.run_epoch()
    graph, _ = program(tmp_path, 0)
    with pytest.raises(RestoreError, match=READER), HarnessAttempt(graph, tmp_path, config=options()):
        pass


def test_a_region_that_fails_reads_the_same_again(tmp_path: Path) -> None:
    graph, sink = program(tmp_path, 2)

    def fail() -> None:
        raise UserFunctionError("!")

    failover = FailoverConfig(FixedDelayRestart(3, timedelta(0)))
    before = {(region, 2): fail for region in range(3)}
    with Watched(graph, tmp_path, config={**options(), "failover": failover}, before=before) as attempt:
        list(attempt.run_epochs())
        assert attempt.token == 1
    assert in_any_order(sink.rows()) == expected(tmp_path)


class Slow(Watched):
    """A run in one process in which the last regions wait whenever another lane has work."""

    restored: int | None = None
    """The checkpoint whose state the last Spark job of the last region has started from."""

    def _on_spark(self, job: EpochJob) -> list[WireRow]:
        self.restored = job.restored if job.region else self.restored
        return super()._on_spark(job)

    def _create_mailbox(self) -> Mailbox:
        return InlineMailbox(_first_regions_first, now=current_millis)


def _first_regions_first(lanes: list[Lane]) -> Lane:
    return min(lanes, key=lambda lane: (lane.number, lane.name))


def test_a_checkpoint_does_not_wait_for_a_spark_job_behind_the_edge(tmp_path: Path) -> None:
    graph, sink = program(tmp_path, per_epoch=2)
    with Slow(graph, tmp_path, config=options(num_retained=9)) as attempt:
        found = [epoch.metadata for epoch in attempt.run_epochs(5)]
        assert not attempt.finished
    # All but the last one of the request pass the Spark job that region 1 began with checkpoint 1.
    assert attempt.jobs[:5] == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]
    assert {number for region, number in attempt.jobs if region == 1} == {1}
    rows = [sum(s["rows"] for s in output["segments"]) for output in found[-1].operator(READER).in_flight]
    assert [len(metadata.operator(READER).in_flight) for metadata in found] == [1, 2, 3, 4, 5]
    assert rows == [2] * 5
    assert named(found[-1]) == segments(tmp_path)
    assert sink.rows() == []
    with HarnessAttempt(graph, tmp_path, config=options(), parallelism=3) as attempt:
        list(attempt.run_epochs())
        assert attempt.finished
    assert in_any_order(sink.rows()) == expected(tmp_path)
    assert (segments(tmp_path), sink.staged()) == ([], [])


def test_functions_are_told_of_a_checkpoint_that_has_their_state(tmp_path: Path) -> None:
    graph, _ = program(tmp_path, per_epoch=2)
    with Slow(graph, tmp_path, config=options()) as attempt:
        list(attempt.run_epochs(2))
        list(attempt.run_epochs(2))
        assert [number for region, number in attempt.jobs if region == 1] == [1, 3]
        assert attempt.restored == 2, "the first one that the Spark job named 1 belongs to"


def lose(folder: Path, epoch: int) -> Callable[[], None]:
    def act() -> None:
        for path in segments(folder):
            if f"-{epoch:010d}/" in path:
                (folder / "job" / path).unlink()

    return act


def test_a_lost_segment_that_the_last_checkpoint_names_ends_the_run_at_once(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    failover = FailoverConfig(FixedDelayRestart(9, timedelta(0)))
    config = {**options(), "failover": failover}
    before = {(1, 2): lose(tmp_path, 1)}
    with (
        pytest.raises(NamedSegmentLostError, match=r"exchange/events.exchange/.* is gone, and checkpoint 1 names it"),
        Watched(graph, tmp_path, config=config, before=before) as attempt,
    ):
        attempt.run_epoch()
        attempt.run_epoch()
    assert attempt.jobs.count((1, 2)) == 1
    assert attempt.token == 1
    with pytest.raises(NamedSegmentLostError), HarnessAttempt(graph, tmp_path, config=config) as attempt:
        attempt.run_epoch()
    assert attempt.token == 2
    with HarnessAttempt(graph, tmp_path, config=config, start_empty=True) as attempt:
        list(attempt.run_epochs())
    assert in_any_order(sink.rows()) == expected(tmp_path)


def test_a_lost_segment_that_no_checkpoint_names_is_written_again(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    failover = FailoverConfig(FixedDelayRestart(1, timedelta(0)))
    before = {(1, 3): lose(tmp_path, 3)}  # the epoch that ends the input aligns
    with Slow(graph, tmp_path, config={**options(), "failover": failover}, before=before) as attempt:
        list(attempt.run_epochs())
        assert attempt.finished
        assert attempt.token == 1, "only the two regions restart"
    assert [attempt.jobs.count((region, 3)) for region in (0, 1)] == [2, 2]
    assert in_any_order(sink.rows()) == expected(tmp_path)


@pytest.mark.parametrize("parallelism", [None, 1, 3])
def test_what_the_first_release_wrote_is_restored(tmp_path: Path, parallelism: int | None) -> None:
    shutil.copytree(in_flight_v1.FIXTURES, tmp_path / "jobs")
    # The first of the two epochs was read.
    before = in_flight_v1.run(tmp_path / "before", 2)
    found = before + in_flight_v1.run(tmp_path / "jobs", parallelism=parallelism)
    counts = Counter(key for key, _, _ in in_flight_v1.RECORDS)
    assert sorted((key, number) for key, number, _ in found) == sorted(
        (key, number) for key, count in counts.items() for number in range(1, count + 1)
    )


@settings(max_examples=examples(6))
@given(
    st.integers(1, 3),
    st.integers(1, 12),
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(1, 6)), st.booleans(), max_size=3),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_results_are_exact_whatever_dies(
    edges: int, per_epoch: int, dies: dict[Any, bool], parallelism: int, ahead: int
) -> None:
    def fail(error: Exception) -> Callable[[], object]:
        def act() -> None:
            raise error

        return act

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        graph, sink = program(path, edges, per_epoch)
        failover = FailoverConfig(FixedDelayRestart(9, timedelta(0)))
        config = {**options(max_concurrent=ahead, num_retained=2), "failover": failover}
        before = {run: fail(RestoreError("!") if whole else UserFunctionError("!")) for run, whole in dies.items()}
        finished, width = False, None
        while not finished:
            try:
                with Watched(graph, path, config=config, parallelism=width, before=before) as attempt:
                    finished = attempt.finished
                    if not finished:
                        list(attempt.run_epochs())
                        finished = attempt.finished
            except RestoreError:
                width = parallelism
        assert in_any_order(sink.rows()) == expected(path)
        assert sink.staged() == []
