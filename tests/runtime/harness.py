"""Runs epochs and whole jobs in this process: every stage task as Spark would run it, but without Spark."""

from __future__ import annotations

import importlib
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch
from dagster_flinkpy.common.clock import Clock, SystemClock
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.data_stream import DataStream
from dagster_flinkpy.datastream.operator_specs import CollectSpec, OperatorSpec
from dagster_flinkpy.datastream.program.given import Given
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.program.transformation import Transformation
from dagster_flinkpy.errors import UserFunctionError
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.master.deployments.in_process import run_in_process, shuffled
from dagster_flinkpy.runtime.master.epochs.open_epoch import OpenEpoch
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.mailbox import InlineMailbox, Mailbox, ThreadMailbox
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.idle_lease_keeper import IdleLeaseKeeper
from tests.runtime.state_rules import check_after_each_stimulus

check_after_each_stimulus()

_CLOCKS: dict[str, ManualClock] = {}


def _clock(name: str) -> ManualClock:
    # Found again by name: this module may travel by value.
    return importlib.import_module("tests.runtime.harness")._CLOCKS[name]


class ManualClock(Clock):
    """A processing-time clock that a test sets. Tasks unpickle their epoch, but get this same clock."""

    def __init__(self, time: int = 0) -> None:
        self.time = time
        self._name = uuid.uuid4().hex
        _CLOCKS[self._name] = self

    def now(self) -> int:
        return self.time

    def __reduce__(self) -> Any:
        return _clock, (self._name,)


Order = Callable[[list[WireRow]], list[WireRow]]
"""A function that orders the rows of one task."""


def spark_order(rows: list[WireRow]) -> list[WireRow]:
    """Orders rows as the Spark job of a region does."""
    return sorted(rows, key=lambda row: (row.seq, row.edge, row.channel))


def random_order(seed: int) -> Order:
    """Returns an order that interleaves channels at random. The rows of each channel stay in order.

    How often it has been asked decides, not how many rows there were: equal programs may differ in what follows.
    """
    calls = count()

    def order(rows: list[WireRow]) -> list[WireRow]:
        # A channel has the rows of one edge, one writer and one reader.
        turns: list[tuple[int, int, int]] = []
        queues: dict[tuple[int, int, int], deque[WireRow]] = {}
        for row in spark_order(rows):
            turns.append((row.edge, row.channel, row.target))
            queues.setdefault(turns[-1], deque()).append(row)
        random.Random(f"{seed} {next(calls)}").shuffle(turns)
        return [queues[channel].popleft() for channel in turns]

    return order


Corrupt = Callable[[int, list[WireRow]], list[WireRow]]
"""A function that changes the rows on their way to a stage, for tests of bad input."""


def run_rows(job: EpochJob, order: Order = spark_order, corrupt: Corrupt = lambda stage, rows: rows) -> list[WireRow]:
    """Runs all stages of an epoch, and returns the rows for the driver. Each task unpickles the epoch, as in Spark."""

    def shuffle(stage: int, rows: list[WireRow], width: int) -> list[list[WireRow]]:
        return [order(each) for each in shuffled(stage, corrupt(stage, rows), width)]

    return list(run_in_process(job, shuffle))


def make_job(
    graph: JobGraph,
    folder: Path,
    *,
    checkpoint_id: int = 1,
    inputs: Mapping[tuple[str, int], SubtaskState] | None = None,
    ended: Iterable[str] = (),
) -> EpochJob:
    """Returns an epoch of a graph. Without ``inputs``, the sources read their whole first epoch and then end."""
    read: dict[tuple[str, int], tuple[SourceSplit, ...]] = {}
    if inputs is None:
        inputs, ended = {}, list(ended)
        for v in graph.vertices:
            source = getattr(v.spec, "source", None)
            if source is not None:
                enumerator = source.create_enumerator(None)
                for i, splits in enumerate(enumerator.plan_epoch(v.parallelism)):
                    read[v.uid, i] = tuple(splits)
                ended += [v.uid] if enumerator.exhausted else []
    return EpochJob(
        graph=graph,
        job_id="job",
        epoch=EpochInput(checkpoint_id, read, frozenset(ended)),
        fencing_token=1,
        job_storage=StorageLocation(str(folder / "job")),
        inputs=inputs,
        cache_dir=str(folder / "cache"),
    )


def run_epoch(job: EpochJob, order: Order = spark_order, **options: Any) -> EpochResults:
    """Runs an epoch, and sorts the rows that it returns to the driver."""
    return EpochResults.of(run_rows(job, order, **options), job.checkpoint_id)


def collect_graph(stream: DataStream) -> JobGraph:
    """Returns the program of a stream, with a collect operator at its end."""
    collect = Transformation(
        "Collect", Given[OperatorSpec](CollectSpec()), [stream._upstream.inputs], stream.get_type(), uid="collect"
    )
    program = stream._upstream.program
    return program.build([*program.transformations, collect])


def collected(graph: JobGraph, columns: Mapping[str, Iterable[pa.Array]]) -> list[Any]:
    """Returns the records from the collect operator of a graph."""
    (vertex,) = (v for v in graph.vertices if isinstance(v.spec, CollectSpec))
    return [record for column in columns.get(vertex.uid, ()) for record in vertex.output_type.from_arrow(column)]


def collect_all(stream: DataStream, folder: Path, order: Order = spark_order) -> list[Any]:
    """Runs a program as one epoch, and raises its failure."""
    graph = collect_graph(stream)
    results = run_epoch(make_job(graph, folder), order)
    if results.failure is not None:
        raise results.failure.error
    results.check_consistent()
    return collected(graph, results.collected)


class Crash(BaseException):
    """The process dies."""


class HarnessAttempt(JobAttempt):
    """A job attempt that runs its Spark jobs in the harness.

    Args:
        graph: The program.
        folder: Where checkpoints and local copies of state go.
        job_id: Name of the job.
        order: The order in which tasks get their rows. It has no effect on tasks that live.
        live: Whether tasks live in slots, which are threads of this process. Default: False.
        threads: Whether the lanes of the master are threads, too, so that epochs can be open. Default: False.
        clock: The processing-time clock. Default: the machine's.
        attempt: Further arguments of :class:`JobAttempt`.
    """

    def __init__(
        self,
        graph: JobGraph,
        folder: Path | StorageLocation,
        *,
        job_id: str = "job",
        order: Order = spark_order,
        live: bool = False,
        threads: bool = False,
        clock: Clock | None = None,
        config: Mapping[str, Any] | None = None,
        **attempt: Any,
    ) -> None:
        storage = StorageLocation(str(folder)) if isinstance(folder, Path) else folder
        settings = {"cache_dir": str(folder / "cache") if isinstance(folder, Path) else None, **(config or {})}
        if live:
            settings = {"exchange": ExchangeOptions(mode=ExchangeMode.PIPELINED), **settings, "in_process": True}
        else:
            settings = {"exchange": ExchangeOptions(mode=ExchangeMode.SPARK), **settings}
        self._threads = threads
        super().__init__(graph, JobConfig(job_id, storage, **settings), **{"owner": "test", **attempt})
        self._order, self._live = order, live
        self._clock = clock or SystemClock()

    def run_epoch(self, *args: Any, **options: Any) -> CompletedEpoch:
        try:
            return super().run_epoch(*args, **options)
        except UserFunctionError as error:  # a task reports the death of its process
            if f"raised {Crash.__name__}." in str(error):
                raise Crash from error
            raise

    def _create_mailbox(self) -> Mailbox:
        return ThreadMailbox() if self._threads else InlineMailbox()

    def _create_lease_keeper(self) -> IdleLeaseKeeper:
        return IdleLeaseKeeper(self.config.checkpointing.timeout)

    def _on_spark(self, job: EpochJob, *open_epoch: OpenEpoch) -> Sequence[WireRow]:
        job = replace(job, clock=self._clock)
        return super()._on_spark(job, *open_epoch) if self._live else run_rows(job, self._order)


def run_job(
    graph: JobGraph,
    folder: Path,
    *,
    rescale_at: Mapping[int, int] | None = None,
    order: Order = spark_order,
    live: bool = False,
) -> list[Any]:
    """Runs a job to its end, and returns the records of its collect operator, one epoch after the other.

    Args:
        graph: The program, with a collect operator.
        folder: Where its checkpoints go.
        rescale_at: Number of the epoch -> parallelism with which another attempt continues from there.
        order: The order in which tasks get their rows.
        live: Whether tasks live in slots. Default: False.
    """
    rescale_at = rescale_at or {}
    records: list[Any] = []
    number, finished = 0, False
    while not finished:
        with HarnessAttempt(graph, folder, order=order, live=live, parallelism=rescale_at.get(number)) as attempt:
            if number in rescale_at and attempt.restored is not None:
                attempt.commit_restored()
            finished = attempt.finished
            while not finished:
                attempt.run_epoch()
                records += collected(attempt.graph, attempt.collected)
                finished = attempt.finished
                number += 1
                if number in rescale_at:
                    break
    return records


def payloads(rows: Iterable[WireRow], kind: int) -> list[bytes]:
    """Returns the payloads of the rows of one kind."""
    return [row.payload.to_pybytes() for row in rows if row.kind == kind]
