"""Runs the epochs of a region in tasks that live in slots, instead of a Spark job for each epoch."""

from __future__ import annotations

import json
import pickle
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dagster_flinkpy.errors import CheckpointError, FlinkPyError, SlotLostError
from dagster_flinkpy.runtime.epoch import Epoch, EpochJob
from dagster_flinkpy.runtime.exchange.frames import frame
from dagster_flinkpy.runtime.exchange.places import Places
from dagster_flinkpy.runtime.master.slot_pool import Slot, SlotPool
from dagster_flinkpy.runtime.shipping import dump_job
from dagster_flinkpy.runtime.shuffle.wire import SEQ_BITS, Kind, WireRow

__all__ = ["PipelinedRegion", "places_of", "slot_names"]

_WHY_SECONDS = 5.0
"""How long Spark may take to say why a process has ended."""
_CANCEL_SECONDS = 30.0
"""How long tasks may take to give up what they have begun. A slot that takes longer is left alone."""


def places_of(job: EpochJob) -> Places:
    """Returns the slots of a region: subtasks of a slot-sharing group share one by their number."""
    graph, slots = job.graph, dict[tuple[int, int], str]()
    for stage in range(graph.number_of_stages):
        group = graph.stage_vertices(stage)[0].slot_sharing_group
        for index in range(graph.stage_parallelism(stage)):
            slots[stage, index] = f"{group}-{index}"
    return Places(slots)


def slot_names(job: EpochJob) -> list[str]:
    """Returns the names of the slots that a region needs."""
    return sorted(set(places_of(job).slots.values()))


class _Deployment:
    """The tasks of a region in their slots, from their start until they are cancelled or have finished."""

    def __init__(self, job: EpochJob, places: Places, slots: dict[str, Slot]) -> None:
        self.id = uuid.uuid4().hex
        self.job, self.places, self.slots = job, places, slots
        self.running: set[str] = set()
        """The slots whose tasks are open."""
        self.ended: set[str] = set()
        """The slots whose tasks are cancelled or have finished."""
        self.rows: list[WireRow] = []
        """What the tasks have sent since the last epoch."""
        self.acknowledged: Counter[int] = Counter()
        """How many subtasks have acknowledged each checkpoint."""
        self.begun = False
        """Whether they have been told to read."""
        self.failed = False
        self.lost: tuple[Slot, FlinkPyError] | None = None
        self.last = 0
        """The last checkpoint that all have acknowledged."""
        self.epochs = 0
        """How many epochs they have read."""

    def say(self, message: bytes) -> None:
        for slot in self.slots.values():
            slot.say(message)


class PipelinedRegion:
    """Deploys the tasks of a region once, and lets them read epoch after epoch.

    They are deployed again if an epoch does not continue from what they have read last: after a failure, at another
    parallelism, or if the region goes back to an earlier state. Its thread is the lane of the region; `interrupt` may
    come from others.

    Args:
        pool: Has the slots.
    """

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._changed = threading.Condition()
        self._deployment: _Deployment | None = None
        self._interrupted = False
        pool.add_listener(self)

    def run(self, job: EpochJob) -> Sequence[WireRow]:
        """Reads the epochs of a job, and returns what the tasks have sent to the driver, when all have acknowledged.

        Raises:
            NoResourceAvailableError: There are too few slots.
            SlotLostError: The process of a slot has ended, or does not answer.
            CheckpointError: The epochs were interrupted.
            FlinkPyError: A slot cannot run on this Spark.
        """
        known = self._deployment
        if known is not None and known.begun and known.failed:  # since their last epoch, when they were notified
            self.cancel()
            return known.rows
        deployment = self.deploy(job)
        for epoch in job.epochs:
            body = pickle.dumps(epoch, protocol=5) if deployment.begun else b""
            deployment.say(frame("begin", body, deployment=deployment.id, first=not deployment.begun))
            deployment.begun = True
        try:
            self._wait(lambda: self._is_done(deployment, job.epochs))
        except FlinkPyError:
            self.cancel()
            raise
        if deployment.failed:
            self.cancel()
        with self._changed:
            rows, deployment.rows = deployment.rows, []
        base = deployment.epochs << SEQ_BITS
        deployment.epochs += len(job.epochs)
        deployment.last = job.epochs[-1].checkpoint_id
        return [replace(row, seq=row.seq - base) if row.kind is Kind.COLLECT else row for row in rows]

    def deploy(self, job: EpochJob) -> _Deployment:
        """Deploys the tasks that read the epochs of a job, unless they are there already.

        Raises:
            Exception: As :meth:`run`.
        """
        known = self._deployment
        if known is not None and (_continues(known, job) if known.begun else known.job is job):
            return known
        self.cancel()
        places = places_of(job)
        names = sorted(set(places.slots.values()))
        slots = self._pool.request(names)
        deployment = _Deployment(job, places, slots)
        with self._changed:
            self._deployment = deployment
        program = dump_job(replace(job, pipelined=True, later=()))
        locations = {name: slot.location for name, slot in slots.items()}
        deployment.say(frame("deploy", program, deployment=deployment.id, places=places.to_json(), locations=locations))
        try:
            self._wait(lambda: deployment.failed or deployment.running >= set(names))
        except FlinkPyError:
            self.cancel()
            raise
        return deployment

    def _is_done(self, deployment: _Deployment, epochs: Sequence[Epoch]) -> bool:
        tasks = sum(vertex.parallelism for vertex in deployment.job.graph.vertices)
        return deployment.failed or all(deployment.acknowledged[e.checkpoint_id] >= tasks for e in epochs)

    def _wait(self, done: Callable[[], bool]) -> None:
        """Waits for messages of the tasks.

        Raises:
            SlotLostError: A slot was lost.
            CheckpointError: The epochs were interrupted.
        """
        deployment = self._deployment
        assert deployment is not None
        with self._changed:
            self._changed.wait_for(lambda: done() or deployment.lost is not None or self._interrupted)
            lost, interrupted = deployment.lost, self._interrupted
        if done() and not interrupted:
            return
        if lost is not None:
            slot, error = lost
            why = self._pool.why_ended(slot.name, _WHY_SECONDS)
            if isinstance(why, FlinkPyError) and not isinstance(why, SlotLostError):
                raise why
            raise error
        if interrupted:
            raise CheckpointError("the tasks of the region were interrupted")

    def notify(self, news: str, checkpoint_id: int) -> None:
        """Tells the functions of the tasks how a checkpoint has ended. Any thread may call it."""
        deployment = self._deployment
        if deployment is not None:
            deployment.say(frame("notify", deployment=deployment.id, news=news, checkpoint_id=checkpoint_id))

    # --- the end -----------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Lets epochs run that come after those that were interrupted."""
        with self._changed:
            self._interrupted = False

    def interrupt(self) -> None:
        """Ends the epochs that are being read. Any thread may call it."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def cancel(self) -> None:
        """Cancels the tasks, if there are any, and waits until they have given up what they have begun."""
        self._end("cancel")

    def finish(self) -> None:
        """Closes the functions of the tasks at the end of the job.

        Raises:
            FlinkPyError: A function raised.
        """
        deployment = self._deployment
        self._end("finish")
        if deployment is not None and deployment.failed:
            from dagster_flinkpy.runtime.master.results import EpochResults

            if (failure := EpochResults.of(deployment.rows).failure) is not None:
                raise failure.error

    def _end(self, kind: str) -> None:
        deployment = self._deployment
        if deployment is None:
            return
        deployment.say(frame(kind, deployment=deployment.id, last=deployment.last))
        with self._changed:
            self._changed.wait_for(
                lambda: all(name in deployment.ended or slot.lost for name, slot in deployment.slots.items()),
                _CANCEL_SECONDS,
            )
            self._deployment = None

    # --- messages of slots -------------------------------------------------------------------------------------------

    def on_message(self, slot: Slot, fields: dict[str, Any]) -> None:
        """Takes a message of a slot."""
        with self._changed:
            deployment = self._deployment
            if deployment is not None and fields.get("deployment") == deployment.id:
                if fields["kind"] == "running":
                    deployment.running.add(slot.name)
                elif fields["kind"] == "ended":
                    deployment.ended.add(slot.name)
                self._changed.notify_all()

    def on_rows(self, slot: Slot, deployment: str, rows: list[WireRow]) -> None:
        """Takes what tasks have sent to the driver."""
        with self._changed:
            known = self._deployment
            if known is None or known.id != deployment:
                return
            known.rows += rows
            for row in rows:
                if row.kind is Kind.FAILURE:
                    known.failed = True
                elif row.kind is Kind.ACK:
                    known.acknowledged[json.loads(row.payload.to_pybytes())["checkpoint_id"]] += 1
            self._changed.notify_all()

    def on_lost(self, slot: Slot, error: FlinkPyError) -> None:
        """Takes the loss of a slot."""
        with self._changed:
            deployment = self._deployment
            if deployment is not None and deployment.slots.get(slot.name) is slot:
                deployment.lost = deployment.lost or (slot, error)
            self._changed.notify_all()


def _continues(deployment: _Deployment, job: EpochJob) -> bool:
    """Returns whether an epoch begins where the tasks are."""
    return (
        not deployment.failed
        and deployment.lost is None
        and job.start == deployment.last
        and job.graph is deployment.job.graph
        and job.fencing_token == deployment.job.fencing_token
        and job.restarts == deployment.job.restarts
        and job.partition == deployment.job.partition
        and job.alignment_timeout == deployment.job.alignment_timeout
    )
