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
from dagster_flinkpy.runtime.master.spark_progress import INTERVAL_SECONDS, EpochProgress
from dagster_flinkpy.runtime.record_counts import RecordCounts
from dagster_flinkpy.runtime.shipping import dump_job
from dagster_flinkpy.runtime.shuffle.wire import SEQ_BITS, Kind, WireRow

__all__ = ["PipelinedRegion", "places_of"]

_WHY_SECONDS = 5.0
"""How long Spark may take to say why a process has ended."""
_CANCEL_SECONDS = 30.0
"""How long tasks may take to give up what they have begun (Flink: ``task.cancellation.timeout``). A slot that takes
longer is lost."""


def places_of(job: EpochJob) -> Places:
    """Returns the slots of a region: subtasks of a slot-sharing group share one by their number."""
    graph, slots = job.graph, dict[tuple[int, int], str]()
    for stage in range(graph.number_of_stages):
        group = graph.stage_vertices(stage)[0].slot_sharing_group
        for index in range(graph.stage_parallelism(stage)):
            slots[stage, index] = f"{group}-{index}"
    return Places(slots)


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
        self.cut_off = False
        """Whether a task was cut off from another slot."""
        self.lost: tuple[Slot, FlinkPyError] | None = None
        self.last = 0
        """The last checkpoint that all have acknowledged."""
        self.epochs = 0
        """How many epochs they have read."""

    @property
    def is_broken(self) -> bool:
        """Whether the tasks have to be deployed again."""
        return self.failed or self.lost is not None

    @property
    def number_of_tasks(self) -> int:
        """How many subtasks acknowledge each checkpoint."""
        return sum(vertex.parallelism for vertex in self.job.graph.vertices)

    def tasks_of(self, slot: Slot) -> str:
        """Returns the subtasks of a slot, in words for people."""
        indexes = dict[int, list[str]]()
        for stage, index in self.places.of_slot(slot.name):
            uids = [repr(v.uid) for v in self.job.graph.stage_vertices(stage) if index < v.parallelism]
            indexes.setdefault(index, []).extend(uids)
        return " and ".join(f"subtask {index} of {', '.join(uids)}" for index, uids in indexes.items())

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
        progress: Takes one-line progress messages.
        same_machine: Whether the slots are on this machine.
    """

    def __init__(self, pool: SlotPool, progress: Callable[[str], object], *, same_machine: bool) -> None:
        self._pool, self._progress = pool, progress
        self._counts = RecordCounts(same_machine)
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
        deployment = self.deploy(job) if known is None or not known.begun or not known.is_broken else known
        if deployment is not known or not known.is_broken:  # otherwise since its last epoch
            for epoch in job.epochs:
                body = pickle.dumps(epoch, protocol=5) if deployment.begun else b""
                deployment.say(frame("begin", body, deployment=deployment.id, first=not deployment.begun))
                deployment.begun = True
        try:
            self._wait(lambda: self._is_done(deployment, job.epochs), self._epoch_progress(deployment, job))
        except FlinkPyError:
            self.cancel()
            raise
        with self._changed:
            rows, deployment.rows = deployment.rows, []
        if deployment.failed:
            self.cancel()
        base = deployment.epochs << SEQ_BITS
        deployment.epochs += len(job.epochs)
        deployment.last = job.epochs[-1].checkpoint_id
        return [replace(row, seq=row.seq - base) if row.kind is Kind.COLLECT else row for row in rows]

    def _epoch_progress(self, deployment: _Deployment, job: EpochJob) -> EpochProgress:
        checkpoint_id = job.epochs[-1].checkpoint_id
        return EpochProgress(
            f"checkpoint {checkpoint_id} of job {job.job_id!r}",
            deployment.number_of_tasks,
            self._progress,
            acknowledged=lambda: deployment.acknowledged[checkpoint_id],
            records=self._counts.by_stage,
        )

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
        slots = self._pool.request(names, lambda: self._interrupted)
        deployment = _Deployment(job, places, slots)
        with self._changed:
            self._deployment = deployment
        program = dump_job(replace(job, pipelined=True, later=(), counts=self._counts.__enter__().folder))
        locations = {name: slot.location for name, slot in slots.items()}
        deployment.say(frame("deploy", program, deployment=deployment.id, places=places.to_json(), locations=locations))
        try:
            self._wait(lambda: deployment.failed or deployment.running >= set(names))
        except FlinkPyError:
            self.cancel()
            raise
        return deployment

    def _is_done(self, deployment: _Deployment, epochs: Sequence[Epoch]) -> bool:
        tasks = deployment.number_of_tasks
        return deployment.failed or all(deployment.acknowledged[e.checkpoint_id] >= tasks for e in epochs)

    def _wait(self, done: Callable[[], bool], progress: EpochProgress | None = None) -> None:
        """Waits for messages of the tasks.

        Raises:
            SlotLostError: A slot was lost.
            CheckpointError: The epochs were interrupted.
        """
        deployment = self._deployment
        assert deployment is not None

        def over() -> bool:
            return done() or deployment.lost is not None or self._interrupted

        while not self._wait_for(over, INTERVAL_SECONDS):
            if progress is not None:
                progress.update()
        if deployment.cut_off:  # most likely because the other slot is gone, which the driver is about to see
            self._wait_for(lambda: deployment.lost is not None or self._interrupted, _WHY_SECONDS)
        with self._changed:
            lost, interrupted = deployment.lost, self._interrupted
        if interrupted:
            raise CheckpointError("the tasks of the region were interrupted")
        if lost is not None and (deployment.cut_off or not done()):
            slot, error = lost
            why = self._pool.why_ended(slot, _WHY_SECONDS)
            if isinstance(why, FlinkPyError) and not isinstance(why, SlotLostError):
                raise why
            raise type(error)(f"{error}. It had {deployment.tasks_of(slot)}") from error

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, seconds)

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
        self._pool.wake()

    def cancel(self) -> None:
        """Cancels the tasks, if there are any, and waits until they have given up what they have begun."""
        self._end("cancel", _CANCEL_SECONDS)

    def finish(self, seconds: float) -> list[WireRow]:
        """Closes the functions of the tasks at the end of the job, and returns what they have sent to the driver.

        Args:
            seconds: How long they may take.

        Raises:
            SlotLostError: They took longer, or a process has ended.
        """
        deployment = self._deployment
        if deployment is None:
            return []
        self._end("finish", seconds)
        if deployment.lost is not None:
            raise deployment.lost[1]
        return deployment.rows

    def _end(self, kind: str, seconds: float) -> None:
        deployment = self._deployment
        if deployment is None:
            return
        deployment.say(frame(kind, deployment=deployment.id, last=deployment.last))

        def late() -> list[Slot]:
            return [s for name, s in deployment.slots.items() if name not in deployment.ended and s.lost is None]

        self._wait_for(lambda: not late(), seconds)
        for slot in late():
            did = "give up what they do" if kind == "cancel" else "close their functions"
            error = SlotLostError(f"the tasks in slot {slot.name} did not {did} within {seconds:g} s; it is replaced")
            self._progress(str(error))
            self._pool.give_up(slot, error)
        with self._changed:
            if self._deployment is deployment:
                self._deployment = None
                self._counts.__exit__(None, None, None)

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
                    known.cut_off |= not known.failed and _is_cut_off(row)
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
        not deployment.is_broken
        and job.start == deployment.last
        and job.graph is deployment.job.graph
        and job.fencing_token == deployment.job.fencing_token
        and job.restarts == deployment.job.restarts
        and job.partition == deployment.job.partition
        and job.alignment_timeout == deployment.job.alignment_timeout
    )


def _is_cut_off(failure: WireRow) -> bool:
    return bool(json.loads(failure.payload.to_pybytes())["type"] == SlotLostError.__name__)
