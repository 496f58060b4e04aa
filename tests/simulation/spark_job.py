"""Runs the tasks of an epoch as actors, as Spark does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_flinkpy.errors import CheckpointError, FlinkPyError, StorageError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.failure import error_to_json
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow
from tests.simulation.tasks import CountTask, EdgeReadTask, EdgeWriteTask, SourceTask
from tests.simulation.world import World

__all__ = ["SparkJob"]

_TASK_TRIES = 2


@dataclass
class _Stage:
    """The tasks of a stage, and their results so far."""

    run: Callable[[int, str], Any]
    results: dict[int, Any] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)


class SparkJob:
    """Runs the tasks of an epoch as actors, on cores that jobs share.

    Tasks outlive a driver that crashes or is interrupted too late.
    """

    def __init__(self, world: World, job: EpochJob, name: str, interrupted: Callable[[], bool]) -> None:
        self._world = world
        self._job = job
        self._name = name
        self._interrupted = interrupted
        self._number = world.cores.new_job()
        self._driver = world.current.process
        self._ended = False
        self._tries = 0

    def run(self) -> list[WireRow]:
        """Returns the rows for the driver.

        Raises:
            StorageError: A task failed in all of its tries.
            CheckpointError: The job was interrupted.
        """
        try:
            return self._run()
        finally:
            self._ended = True

    def _is_over(self) -> bool:
        return self._ended or self._driver.crashed

    def _run(self) -> list[WireRow]:
        width, uids = self._job.graph.stage_parallelism(0), {vertex.uid for vertex in self._job.graph.vertices}
        try:
            reads = SourceTask if "numbers" in uids else EdgeReadTask
            sources = self._stage(range(width), lambda i, e: reads(self._job, i, e).run())
            rest: Callable[[int, str], Any]
            if "count" in uids:
                read = [n for _, records in sources for n in records]
                rest = lambda i, e: CountTask(self._job, i, e).run(read)  # noqa: E731
            else:
                rest = lambda i, e: EdgeWriteTask(self._job, i, e).run(sources[i][1])  # noqa: E731
            counted = self._stage(range(width), rest)
        except (StorageError, CheckpointError) as error:
            if isinstance(error, StorageError) or self._interrupted():
                raise
            return [_row(Kind.FAILURE, error_to_json(error, self._job.graph.vertices[-1].uid, 0))]
        except FlinkPyError as error:
            return [_row(Kind.FAILURE, error_to_json(error, self._job.graph.vertices[-1].uid, 0))]
        acks = [ack for acks, _ in sources for ack in acks] + [ack for acks in counted for ack in acks]
        return [_row(Kind.ACK, json.dumps(ack).encode()) for ack in acks]

    def _stage(self, indexes: Iterable[int], run: Callable[[int, str], Any]) -> list[Any]:
        world, chaos = self._world, self._world.chaos
        stage = _Stage(run)
        indexes = list(indexes)
        for index in indexes:
            self._start(stage, index, _TASK_TRIES)
            if chaos.speculation and world.rng.random() < chaos.speculation:
                self._start(stage, index, 1)
        world.wait_for(lambda: len(stage.results) == len(indexes) or bool(stage.errors) or self._interrupted())
        if self._interrupted():
            raise CheckpointError("the Spark job was interrupted")
        if stage.errors:
            raise stage.errors[0]
        return [stage.results[index] for index in indexes]

    def _start(self, stage: _Stage, index: int, tries: int) -> None:
        world, chaos = self._world, self._world.chaos
        self._tries += 1
        execution = f"{self._job.restarts}-{self._tries}"

        def body() -> None:
            with world.cores.one(self._number, self._is_over) as given:
                if given:
                    task()

        def task() -> None:
            world.step("task starts")
            if chaos.task_hangs and world.rng.random() < chaos.task_hangs:
                world.sleep(world.rng.choice((30, 90, 300)))
            try:
                if chaos.task_fails and world.rng.random() < chaos.task_fails:
                    raise CheckpointError("a task failed")
                result = stage.run(index, execution)
            except StorageError as error:
                if tries > 1:
                    self._start(stage, index, tries - 1)
                else:
                    stage.errors.append(error)
            except FlinkPyError as error:
                stage.errors.append(error)
            else:
                stage.results.setdefault(index, result)

        world.spawn(f"{self._name}.{index}", body)


def _row(kind: Kind, payload: bytes) -> WireRow:
    return WireRow(0, 0, 0, 0, kind, pa.py_buffer(payload))
