"""Runs a program of the matrix in one of many ways, and returns the result."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest import mock

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.datastream.checkpointing.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import UserFunctionError
from dagster_flinkpy.runtime.exchange import result_partition
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.mailbox import InlineMailbox, Lane, Mailbox
from dagster_flinkpy.runtime.operators import local_aggregate
from dagster_flinkpy.runtime.shuffle import batch as shuffle_batch
from dagster_flinkpy.runtime.shuffle import key_dictionary
from dagster_flinkpy.runtime.slot import deployment, pipelined_task
from dagster_flinkpy.runtime.task.operator_task import OperatorTask
from dagster_flinkpy.state import cell_table, columns, index, session_table
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.files import compaction, runs
from dagster_flinkpy.state.timers import timer_table
from dagster_flinkpy.state_processor import read_savepoint
from tests.matrix.programs import LIVE, Leg, Program, Sources, build
from tests.runtime.harness import HarnessAttempt, random_order, spark_order
from tests.runtime.programs import FolderSink

__all__ = ["STRAIGHT", "Outcome", "Settings", "check", "run", "script"]


@dataclass(frozen=True)
class Settings:
    """How a job is run. The defaults are one uninterrupted run."""

    parallelism: int = 1
    epochs: int = 1
    """How many epochs are asked for at once."""
    order: int | None = None
    """Seed of the order in which tasks read their channels, or None for Spark's order."""
    unaligned: bool = False
    lags: bool = False
    """Whether regions behind blocking edges wait for those before them, so that unaligned checkpoints pass them."""
    at_least_once: bool = False
    heap: bool = False
    """Whether state is in the heap backend."""
    swaps: bool = False
    """Whether each attempt has the other state backend."""
    small: bool = False
    """Whether limits are so small that few records do what takes many otherwise, such as writing state out early."""
    attempts: bool = False
    """Whether each request for epochs is a separate attempt, which restores the state of the previous one."""
    crashes: frozenset[int] = frozenset()
    """Requests in which a Spark job is lost, so that another attempt runs it again."""
    rescale: Mapping[int, int] = field(default_factory=dict)
    """Request -> parallelism with which another attempt continues."""
    running: bool = False
    """Whether it is the same attempt that goes on with that parallelism."""
    savepoints: frozenset[int] = frozenset()
    """Requests before which a savepoint is taken, from which another attempt continues."""
    partitions: bool = False
    """Whether each epoch is read as a partition of time. The input must not end."""
    live: bool = False
    """Whether tasks live in slots. Then the order in which they read their channels is not determined."""
    task_slots: int = 1
    """How many slots of tasks that live share a process."""
    sources: Sources = Sources.PLANNED
    """How sources give out records. If not `PLANNED`, the input ends, and epochs of tasks that live can be open."""
    drift: int | None = None
    """How far a source may be ahead of others in event time, in milliseconds. Default: as far as it gets."""
    slow: bool = False
    """Whether functions of tasks that live are slow: a barrier may come behind each record of a batch."""
    raises: frozenset[int] = frozenset()
    """Batches of records at which an operator raises, counted over all of them. The region restarts."""


STRAIGHT = Settings()
_OTHER = {
    StateBackendType.HASHMAP: StateBackendType.COLUMNAR,
    StateBackendType.COLUMNAR: StateBackendType.HASHMAP,
}
_MEMORY = "/dev/shm"
"""A file system in memory, because the store's writes to disk would take most of the time."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    sinks: dict[str, Counter[Any]]
    """The records of each sink."""
    late: int
    """Number of records that windows dropped, according to their metrics."""
    state: dict[str, list[str]]
    """The rows in the last checkpoint, by operator and state."""


class _Crash(BaseException):
    """The driver dies."""


@contextmanager
def _small_limits() -> Iterator[None]:
    limits = dict[Any, dict[str, int]]()
    limits[timer_table] = {"LOAD_TIMERS": 2}
    limits[cell_table] = {"_SPARE_CELLS": 1}
    limits[session_table] = {"_SPARE_SESSIONS": 1}
    limits[columns] = {"_SPARE_ROWS": 0}
    limits[index] = {"_SMALL": 0}
    limits[local_aggregate] = {"ROWS": 3, "TRIED": 3}
    limits[key_dictionary] = {"ROWS": 1, "REPEATED": 1, "RESTS": 1}
    limits[compaction] = {"MAX_RUNS": 2, "SECTION_ROWS": 3}
    limits[runs] = {"SECTION_ROWS": 3}
    limits[shuffle_batch] = {"_AT_ONCE": 1}
    limits[deployment] = {"CREDIT": 1}
    limits[result_partition] = {"_FIRST_SIZE": 1}
    limits[pipelined_task] = {"_ROWS_AT_ONCE": 1}
    defaults = ColumnarKeyedStateBackend.__init__.__kwdefaults__
    with ExitStack() as stack:
        for module, values in limits.items():
            for name, value in values.items():
                stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(mock.patch.dict(defaults, overlay_rows=4, inline_below=0))
        yield


@contextmanager
def _failures(numbers: frozenset[int]) -> Iterator[None]:
    real, batches, lock = OperatorTask._on_records, itertools.count(), threading.Lock()

    def on_records(task: OperatorTask, input_index: int, batch: Any) -> None:
        with lock:
            number = next(batches)
        if number in numbers:
            raise UserFunctionError(f"batch {number}", operator=task.vertex.uid)
        real(task, input_index, batch)

    with mock.patch.object(OperatorTask, "_on_records", on_records):
        yield


def _one_by_one(
    pace: shuffle_batch.Pace, batch: shuffle_batch.StreamBatch, function: Callable[[shuffle_batch.StreamBatch], object]
) -> Iterator[int]:
    """As `Pace.process`, with slow functions."""
    pace.rows, pace.is_slow = 1, True
    for start in range(len(batch)):
        function(batch.slice(start, start + 1))
        yield start + 1


def _first_regions_first(lanes: list[Lane]) -> Lane:
    return min(lanes, key=lambda lane: (lane.number, lane.name))


class _Attempt(HarnessAttempt):
    crash: int | None = None
    """The region whose next Spark job is lost."""

    def _on_spark(self, job: Any, *open_epoch: Any) -> Any:
        rows = super()._on_spark(job, *open_epoch)
        if job.region == self.crash:
            raise _Crash
        return rows


class _Lagging(_Attempt):
    def _create_mailbox(self) -> Mailbox:
        return super()._create_mailbox() if self._threads else InlineMailbox(_first_regions_first)


def run(program: Program, settings: Settings, folder: Path) -> Outcome:
    """Runs a program to its end.

    Args:
        program: The program.
        settings: How to run it.
        folder: An empty folder for all files.
    """
    graph = build(program, settings.parallelism, folder / "sinks", settings.sources, settings.drift)
    slow = (
        mock.patch.object(shuffle_batch.Pace, "process", _one_by_one)
        if settings.slow and settings.live
        else nullcontext()
    )
    with _small_limits() if settings.small else nullcontext(), slow, _failures(settings.raises):
        late, state, named = _run_job(graph, program, settings, folder)
    sinks = {leg.name: FolderSink(folder / "sinks" / leg.name) for leg in program.legs}
    for name, sink in sinks.items():
        assert sink.staged() == [], f"{name}: files are left that no checkpoint commits"
    left = {*(folder / "job" / "exchange").rglob("*.arrow")}
    assert left == {folder / "job" / path for path in named}, "segments are left, or missing"
    return Outcome({name: Counter(map(repr, sink.rows())) for name, sink in sinks.items()}, late, state)


def _run_job(
    graph: JobGraph, program: Program, settings: Settings, folder: Path
) -> tuple[int, dict[str, list[str]], set[str]]:
    periodic = settings.live and settings.sources is not Sources.PLANNED
    policy = CoordinatorConfig(
        interval=timedelta(milliseconds=10) if periodic else None,
        mode=CheckpointingMode.AT_LEAST_ONCE if settings.at_least_once else CheckpointingMode.EXACTLY_ONCE,
        unaligned=settings.unaligned,
        num_retained=99,
        state_backend=StateBackendType.HASHMAP if settings.heap else StateBackendType.COLUMNAR,
    )
    order = spark_order if settings.order is None else random_order(settings.order)
    number, finished, crashed = 0, False, set[int]()
    backends = itertools.cycle([policy.state_backend, *([_OTHER[policy.state_backend]] if settings.swaps else [])])
    restore_from: str | None = None
    metadata: list[Any] = []
    while not finished:
        parallelism, restored_from, restore_from = settings.rescale.get(number), restore_from, None
        config = {
            "checkpointing": replace(policy, state_backend=next(backends)),
            "failover": FailoverConfig(FixedDelayRestart(attempts=len(settings.raises), delay=timedelta(0))),
        }
        if settings.live:
            config["exchange"] = ExchangeOptions(ExchangeMode.PIPELINED, task_slots=settings.task_slots)
        attempt_type = _Lagging if settings.lags else _Attempt
        with attempt_type(
            graph,
            folder,
            order=order,
            live=settings.live,
            threads=periodic,
            config=config,
            parallelism=parallelism,
            restore_from=restored_from,
        ) as attempt:
            finished = attempt.finished or _all_read(program, metadata)
            while not finished:
                lost = number in settings.crashes and number not in crashed
                attempt.crash = number % len(graph.regions()) if lost else None
                try:
                    if settings.partitions:
                        attempt.run_epoch(partition=_partition(len(metadata)))
                    elif periodic:
                        list(attempt.run_epochs(2, periodic=True))
                    else:
                        epochs = 2 * settings.epochs if settings.lags else settings.epochs
                        list(attempt.run_epochs(min(epochs, _remaining(program, metadata))))
                except _Crash:
                    crashed.add(number)
                    break
                number += 1
                done = attempt._store
                metadata = [done.load(i) for i in done.retained()]
                finished = attempt.finished or _all_read(program, metadata)
                if number in settings.savepoints and not finished:
                    restore_from = attempt.savepoint()
                if settings.running and number in settings.rescale and not finished:
                    attempt._rescale(settings.rescale[number])
                elif number in settings.rescale:
                    break
                if settings.attempts or restore_from is not None:
                    break
    late = sum(
        int(subtask.metrics.get("late_records_dropped", 0))
        for checkpoint in metadata
        for operator in checkpoint.operators
        for subtask in operator.subtasks
    )
    named = {path for checkpoint in metadata for operator in checkpoint.operators for path in operator.segments()}
    state = _state(folder / "job" / f"chk-{metadata[-1].checkpoint_id}")
    if Leg.TOLD in program.legs:
        state["heard"] = list(map(repr, metadata[-1].operator(Leg.TOLD.name).coordinator_state["state"]))
    return late, state, named


def _partition(ordinal: int) -> TimePartition:
    start = datetime(2024, 1, 1, tzinfo=timezone.utc) + timedelta(days=ordinal)
    return TimePartition(f"{start:%Y-%m-%d}", start, start + timedelta(days=1), ordinal)


def _remaining(program: Program, metadata: list[Any]) -> int:
    """Returns the number of epochs that an endless input still has. If the input ends, the job knows it."""
    return 10**6 if program.ends else program.epochs - len(metadata)


def _all_read(program: Program, metadata: list[Any]) -> bool:
    return not program.ends and _remaining(program, metadata) <= 0


def _state(checkpoint: Path) -> dict[str, list[str]]:
    """Returns all keyed state and broadcast state. The order of the elements of a list does not count."""
    found: dict[str, list[str]] = {}
    for state in read_savepoint(str(checkpoint)).states:
        rows = [
            repr({k: sorted(v, key=repr) if isinstance(v, list) else v for k, v in row.items() if k != "expires_at"})
            for row in state.to_pylist()
        ]
        if rows:
            found[f"{state.uid}.{state.name}"] = sorted(rows)
    return found


def script(program: Program, settings: Settings) -> str:
    """Returns a Python program that runs one case again."""
    return (
        "from tests.matrix.programs import Input, Leg, Path_, Program\n"
        "from tests.matrix.run import Settings, check\n\n"
        f"check({program!r},\n      {settings!r})\n"
    )


def check(program: Program, settings: Settings) -> None:
    """Runs a program without interruption and with the settings, and compares the results.

    Functions that spoil what is not theirs do so in the second run only.

    Raises:
        AssertionError: Sinks, state or late records differ, or a run fails. The message contains a script that repeats
            the case.
    """
    again = ["", "To run it again:", "", script(program, settings)]
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.path.isdir(_MEMORY) else None) as folder:
        try:
            straight = replace(STRAIGHT, live=bool(LIVE & {*program.legs}))
            expected = run(replace(program, spoils=False), straight, Path(folder) / "straight")
            found = run(program, settings, Path(folder) / "run")
        except Exception as e:
            raise AssertionError("\n".join([repr(e), *again])) from e
    differences = [
        *(
            f"{name}: missing {dict(records - found.sinks[name])}, too many {dict(found.sinks[name] - records)}"
            for name, records in expected.sinks.items()
            if found.sinks[name] != records
        ),
        *(
            f"state {name}: {found.state.get(name)} instead of {expected.state.get(name)}"
            for name in sorted({*expected.state, *found.state})
            if found.state.get(name) != expected.state.get(name)
        ),
        *([] if found.late == expected.late else [f"late: {found.late} records instead of {expected.late}"]),
    ]
    assert not differences, "\n".join([*differences, *again])
