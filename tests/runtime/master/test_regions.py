"""A job of several regions: they run side by side, under one checkpoint."""

from __future__ import annotations

import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator_config import CoordinatorConfig
from dagster_flinkpy.datastream import DataStream
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.errors import CheckpointError, UserFunctionError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.mailbox import Mailbox, ThreadMailbox
from dagster_flinkpy.runtime.master.restart_strategies import FixedDelayRestart
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, events

RECORDS = [(f"k{i % 3}", i, i) for i in range(12)]
LIMIT = 30


def program(folder: Path, cuts: tuple[bool, ...] = (True,), per_epoch: int = 4) -> tuple[JobGraph, FolderSink]:
    """A chain of stateful operators, with blocking edges where it is cut."""
    env, sink = environment(2), FolderSink(folder / "sink")
    stream: DataStream = events(env, RECORDS, per_epoch=per_epoch)
    for number, cut in enumerate(cuts[:-1]):
        stream = (stream.blocking() if cut else stream).rebalance().map(lambda v: v, EVENT).uid(f"map-{number}")
    keyed = (stream.blocking() if cuts[-1] else stream).key_by("key")
    keyed.process(CountPerKey(), COUNTED).uid("counts").sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


def expected(folder: Path) -> list[Any]:
    graph, sink = program(folder / "straight", (False,))
    with HarnessAttempt(graph, folder / "straight") as attempt:
        list(attempt.run_epochs())
    return sink.rows()


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "job" / "exchange").rglob("*.arrow"))


Run = tuple[int, int]
"""A region, and the first checkpoint of its Spark job."""


class Watched(HarnessAttempt):
    """Notes its Spark jobs. Before a job, something may be done once, such as to wait or to raise."""

    def __init__(self, *args: Any, before: dict[Run, Callable[[], object]] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.before = before or {}
        self.began: defaultdict[Run, threading.Event] = defaultdict(threading.Event)
        self.jobs: list[Run] = []

    def _on_spark(self, job: EpochJob) -> list[WireRow]:
        run = job.region, job.checkpoint_id
        self.jobs.append(run)
        self.began[run].set()
        self.before.pop(run, lambda: None)()
        return super()._on_spark(job)


class Threaded(Watched):
    def _create_mailbox(self) -> Mailbox:
        return ThreadMailbox()


def test_a_region_runs_the_next_epoch_while_the_one_behind_it_runs_this_one(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    with Threaded(graph, tmp_path) as attempt:
        attempt.before[1, 1] = lambda: attempt.began[0, 2].wait(LIMIT) or pytest.fail("region 0 waits for region 1")
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs()] == [1, 2, 3]
    assert sink.rows() == expected(tmp_path)
    assert segments(tmp_path) == []


@pytest.mark.parametrize("ahead", [1, 2])
def test_no_region_runs_further_ahead_than_allowed(tmp_path: Path, ahead: int) -> None:
    graph, _ = program(tmp_path, per_epoch=2)
    seen: list[list[Run]] = []
    config = {"checkpointing": CoordinatorConfig(max_concurrent=ahead)}
    with Threaded(graph, tmp_path, config=config) as attempt:

        def look() -> None:
            assert attempt.began[0, ahead + 1].wait(LIMIT)
            # The master has nothing more to do until this Spark job ends.
            while attempt._mailbox.busy.total() > 1:
                threading.Event().wait(0.01)
            seen.append([run for run in attempt.jobs if run[0] == 0])

        attempt.before[1, 1] = look
        list(attempt.run_epochs())
    assert seen == [[(0, number) for number in range(1, ahead + 2)]]


def test_a_checkpoint_completes_although_the_next_epoch_fails_in_an_earlier_region(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise UserFunctionError("broken")

    completed: list[int] = []
    with pytest.raises(UserFunctionError, match="broken"), Threaded(graph, tmp_path) as attempt:
        attempt.before.update({(0, 2): fail, (1, 1): lambda: failed.wait(LIMIT)})
        completed.extend(epoch.checkpoint_id for epoch in attempt.run_epochs())
    assert (completed, sink.staged()) == ([1], [])
    with HarnessAttempt(graph, tmp_path) as attempt_2:
        list(attempt_2.run_epochs())
    assert sink.rows() == expected(tmp_path)


def restarting() -> dict[str, Any]:
    return {"failover": FailoverConfig(FixedDelayRestart(attempts=3, delay=timedelta(0)))}


def raise_it(error: Exception) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize("region", [0, 1, 2])
def test_a_region_that_fails_runs_its_epoch_again_alone(tmp_path: Path, region: int) -> None:
    graph, sink = program(tmp_path, (True, True))
    with Watched(graph, tmp_path, config=restarting(), before={(region, 2): raise_it(UserFunctionError("!"))}) as job:
        assert [epoch.checkpoint_id for epoch in job.run_epochs()] == [1, 2, 3]
        assert job.token == 1
    runs = [(r, n) for n in (1, 2, 3) for r in range(3)]
    assert sorted(job.jobs) == sorted([*runs, (region, 2)])
    assert sink.rows() == expected(tmp_path)


def test_a_lost_segment_is_written_again(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)

    def lose() -> None:
        for path in segments(tmp_path):
            path.unlink()

    with Watched(graph, tmp_path, config=restarting(), before={(1, 2): lose}) as job:
        list(job.run_epochs())
        assert job.token == 2, "all go back to the last checkpoint"
    assert [region for region, _ in job.jobs].count(1) == 4, "the epoch that had no segment, and three others"
    assert sink.rows() == expected(tmp_path)
    assert segments(tmp_path) == []


@settings(max_examples=examples(4))
@given(
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.integers(1, 12),
    st.integers(1, 3),
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(1, 6)), st.booleans(), max_size=2),
    st.integers(1, 3),
)
def test_cuts_change_nothing_whatever_dies(
    cuts: tuple[bool, ...], per_epoch: int, barriers: int, kills: dict[Run, bool], parallelism: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        graph, sink = program(path, cuts, per_epoch)
        before = {run: raise_it(CheckpointError("lost")) for run in kills}
        finished, width = False, None
        while not finished:
            try:
                with Watched(graph, path, parallelism=width, before=before) as attempt:
                    finished = attempt.finished
                    if not finished:
                        list(attempt.run_epochs(barriers=barriers))
                        finished = attempt.finished
            except CheckpointError:
                width = parallelism
        assert in_any_order(sink.rows()) == in_any_order(expected(path))
        assert (sink.staged(), segments(path)) == ([], [])


def in_any_order(rows: list[Any]) -> tuple[list[Any], dict[str, int]]:
    """Returns what does not depend on the order of the records of a key: its counts, and its last sum."""
    return sorted((key, number) for key, number, _ in rows), {key: total for key, _, total in sorted(rows)}
