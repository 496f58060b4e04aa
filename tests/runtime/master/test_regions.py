"""A job of several regions: they run side by side, under one checkpoint."""

from __future__ import annotations

import random
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import DataStream, KeyedProcessFunction, RuntimeContext
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.errors import RestoreError, UserFunctionError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, events
from tests.waiting import LIMIT

RECORDS = [(f"k{i % 3}", i, i) for i in range(12)]


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


def test_a_region_runs_the_next_epoch_while_the_one_behind_it_runs_this_one(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    with Watched(graph, tmp_path, threads=True) as attempt:
        attempt.before[1, 1] = lambda: attempt.began[0, 2].wait(LIMIT) or pytest.fail("region 0 waits for region 1")
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs()] == [1, 2, 3]
    assert sink.rows() == expected(tmp_path)
    assert segments(tmp_path) == []


@pytest.mark.parametrize("ahead", [1, 2])
def test_no_region_runs_further_ahead_than_allowed(tmp_path: Path, ahead: int) -> None:
    graph, _ = program(tmp_path, per_epoch=2)
    seen: list[list[Run]] = []
    config = {"checkpointing": CoordinatorConfig(max_concurrent=ahead)}
    with Watched(graph, tmp_path, threads=True, config=config) as attempt:

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
    with pytest.raises(UserFunctionError, match="broken"), Watched(graph, tmp_path, threads=True) as attempt:
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


def lose(folder: Path, sink_uid: str = "*") -> Callable[[], object]:
    def act() -> None:
        for path in (folder / "job" / "exchange").glob(f"{sink_uid}/*/*.arrow"):
            path.unlink()

    return act


class Scatters(KeyedProcessFunction):
    """Gives each record a random number, adds it to its state, and emits it with the sum."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        number = random.randrange(1 << 40)
        self._sum.update((self._sum.value() or 0) + number)
        yield value.key, number, self._sum.value()


def branches(folder: Path) -> tuple[JobGraph, list[FolderSink]]:
    """Region 0 writes random numbers, which regions 1 and 2 read; region 3 reads region 1; region 4 is by itself."""
    env, sinks = environment(2), [FolderSink(folder / f"sink-{i}") for i in range(4)]
    row = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])
    numbers = events(env, RECORDS, per_epoch=4).key_by("key").process(Scatters(), row).uid("numbers")
    numbers.sink_to(sinks[0]).uid("sink-0")
    edge = numbers.blocking()
    middle = edge.map(lambda v: v, row).uid("middle")
    middle.blocking().map(lambda v: v, row).uid("end").sink_to(sinks[1]).uid("sink-1")
    edge.rebalance().map(lambda v: v, row).uid("side").sink_to(sinks[2]).uid("sink-2")
    other = events(env, RECORDS, uid="other", per_epoch=4).blocking()
    other.map(lambda v: v, EVENT).uid("else").sink_to(sinks[3]).uid("sink-3")
    return env.get_job_graph(), sinks


def test_a_lost_segment_restarts_its_producer_and_who_has_read_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph, sinks = branches(tmp_path)
    home = {v.uid: number for number, region in enumerate(graph.regions()) for v in region.vertices}
    producer, middle, end, side = (home[uid] for uid in ("numbers", "middle", "end", "side"))
    before = {(end, 2): lose(tmp_path, "middle.exchange"), (middle, 3): lose(tmp_path, "numbers.exchange")}
    with Watched(graph, tmp_path, config=restarting(), before=before) as job:
        epochs = [epoch.checkpoint_id for epoch in job.run_epochs()]
        attempts = {uid: job._deployed.failover.graph.attempt(number) for uid, number in home.items()}
        assert job.token == 1, "nobody goes back to a checkpoint"
    assert epochs == [1, 2, 3]
    runs = Counter(job.jobs)
    assert (runs[middle, 2], runs[end, 2]) == (2, 2)
    assert (runs[producer, 2], runs[side, 2]) == (1, 1), "nothing of theirs was lost"
    assert (runs[producer, 3], runs[middle, 3]) == (2, 2)
    assert {runs[home["other"], n] for n in epochs} | {runs[home["else"], n] for n in epochs} == {1}
    assert (attempts["numbers"], attempts["middle"], attempts["other"], attempts["else"]) == (1, 2, 0, 0)
    assert f"regions {min(middle, end)}, {max(middle, end)} run all epochs from checkpoint 2" in caplog.text
    # Random numbers: each region has read what the last execution of the producer has written.
    assert sinks[0].rows() == sinks[1].rows() == sinks[2].rows()
    assert len(sinks[3].rows()) == len(RECORDS) == len(sinks[0].rows())
    by_key: dict[str, int] = {}
    for key, number, total in sorted(sinks[0].rows(), key=lambda row: row[2]):
        by_key[key] = by_key.get(key, 0) + number
        assert by_key[key] == total, "its state and its output come from the same executions"
    assert (segments(tmp_path), [sink.staged() for sink in sinks]) == ([], [[]] * 4)


def test_what_the_producer_has_done_since_is_done_again(tmp_path: Path) -> None:
    graph, sinks = branches(tmp_path)
    home = {v.uid: number for number, region in enumerate(graph.regions()) for v in region.vertices}
    config = {**restarting(), "checkpointing": CoordinatorConfig(max_concurrent=2)}
    with Watched(graph, tmp_path, threads=True, config=config) as job:

        def late() -> None:
            for number in (2, 3):
                assert job.began[home["numbers"], number].wait(LIMIT)
            lose(tmp_path, "numbers.exchange")()

        job.before[home["middle"], 1] = late
        assert [epoch.checkpoint_id for epoch in job.run_epochs()] == [1, 2, 3]
        assert job.token == 1
    runs = Counter(job.jobs)
    assert [runs[home["numbers"], number] for number in (1, 2, 3)] == [2, 2, 2]
    assert sinks[0].rows() == sinks[1].rows() == sinks[2].rows()
    assert len(sinks[3].rows()) == len(RECORDS) == len(sinks[0].rows())


@settings(max_examples=examples(4))
@given(
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.integers(1, 12),
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(1, 6)), st.booleans(), max_size=3),
    st.integers(1, 3),
)
def test_cuts_change_nothing_whatever_dies(
    cuts: tuple[bool, ...], per_epoch: int, losses: dict[Run, bool], parallelism: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        graph, sink = program(path, cuts, per_epoch)
        dies = raise_it(RestoreError("no restart helps"))
        before = {run: lose(path) if segment else dies for run, segment in losses.items()}
        finished, width = False, None
        while not finished:
            try:
                with Watched(graph, path, config=restarting(), parallelism=width, before=before) as attempt:
                    finished = attempt.finished
                    if not finished:
                        list(attempt.run_epochs())
                        finished = attempt.finished
            except RestoreError:
                width = parallelism
        assert in_any_order(sink.rows()) == in_any_order(expected(path))
        assert (sink.staged(), segments(path)) == ([], [])


def in_any_order(rows: list[Any]) -> tuple[list[Any], dict[str, int]]:
    """Returns what does not depend on the order of the records of a key: its counts, and its last sum."""
    return sorted((key, number) for key, number, _ in rows), {key: total for key, _, total in sorted(rows)}
