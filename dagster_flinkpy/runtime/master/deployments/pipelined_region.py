"""Runs the epochs of a region in tasks that live in slots, instead of a Spark job for each epoch."""

from __future__ import annotations

import json
import pickle
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.slot_sharing_group import SlotSharingGroup
from dagster_flinkpy.errors import CheckpointError, FlinkPyError, SlotLostError
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob, Stop
from dagster_flinkpy.runtime.exchange.frames import frame
from dagster_flinkpy.runtime.exchange.places import Places, chains_of
from dagster_flinkpy.runtime.failure import error_from_json
from dagster_flinkpy.runtime.master.deployments.watermark_alignment import WatermarkCoordinator
from dagster_flinkpy.runtime.master.epochs.open_epoch import OpenEpoch
from dagster_flinkpy.runtime.master.epochs.operator_coordinators import OperatorCoordinators
from dagster_flinkpy.runtime.master.slots.job_slots import required_slots
from dagster_flinkpy.runtime.master.slots.slot_pool import Slot, SlotPool
from dagster_flinkpy.runtime.shipping import dump_job
from dagster_flinkpy.runtime.shuffle.wire import SEQ_BITS, Kind, WireRow
from dagster_flinkpy.spark.progress import INTERVAL_SECONDS, ProgressLines
from dagster_flinkpy.spark.record_counts import RecordCounts

__all__ = ["PipelinedRegion", "places_of", "resources_of"]

_WHY_SECONDS = 5.0
"""How long Spark may take to say why a process has ended."""
_CUT_OFF_SECONDS = 2.0
"""How long the loss of a slot may take to be seen after another slot has seen it."""
_CANCEL_SECONDS = 30.0
"""How long tasks may take to give up what they have begun (Flink: ``task.cancellation.timeout``). A slot that takes
longer is lost."""


def places_of(graph: JobGraph, region: int = 0, per_process: int = 1) -> Places:
    """Returns the slots of a region: subtasks of a slot-sharing group share one by their number.

    Each region has slots of its own. A slot has one thread, and no region waits for another one that is busy.

    Args:
        graph: The region.
        region: Its number. Default: 0.
        per_process: How many of Flink's slots share a process. They are then one slot, named after the first of them.
            Default: 1.
    """
    slots, of_region = dict[tuple[str, int], str](), f" of region {region}" if region else ""
    numbers = required_slots(graph, per_process=per_process)
    for chain in (chain for stage in range(graph.number_of_stages) for chain in chains_of(graph, stage)):
        group = chain[0].slot_sharing_group
        for vertex in chain:
            names = [f"{group}-{i % numbers[group]}{of_region}" for i in range(vertex.parallelism)]
            slots.update(((vertex.uid, i), name) for i, name in enumerate(names))
    return slots


def resources_of(graph: JobGraph, places: Places) -> dict[str, tuple[SlotSharingGroup, ...]]:
    """Returns the groups that say what the slots of a region need of an executor, by slot."""
    found: dict[str, tuple[SlotSharingGroup, ...]] = {}
    for (uid, _), slot in places.items():
        group = graph.vertex(uid).slot_resources
        found[slot] = tuple(dict.fromkeys((*found.get(slot, ()), *([] if group is None else [group]))))
    return found


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
        self.logs: list[WireRow] = []  # what their functions have logged and printed
        self.acknowledged: Counter[int] = Counter()
        """How many subtasks have acknowledged each checkpoint."""
        self.missing_requests = 0
        """How many tasks have not read the last part of the epoch that is open, and asked for more."""
        self.messages: list[dict[str, Any]] = []
        """What readers of sources have said to their enumerators."""
        self.stops: dict[tuple[str, int], Stop] = {}
        """Where those that have asked have stopped amid the part."""
        self.watermarks: dict[tuple[str, int], int] = {}
        """How far those that have asked are in event time."""
        self.alignment = WatermarkCoordinator(job.graph, job.inputs)
        self.reading = 0
        """The checkpoint of the last epoch that they were told to read; 0: they have not been told yet."""
        self.failed = False
        self.cut_off: FlinkPyError | None = None
        """What has failed first, if that is a connection between two slots."""
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

    @property
    def number_of_sources(self) -> int:
        """How many tasks read sources."""
        return sum(chain[0].parallelism for chain in chains_of(self.job.graph, 0))

    def is_done(self, checkpoint_id: int) -> bool:
        """Returns whether all have acknowledged a checkpoint, or one has failed."""
        return self.failed or self.acknowledged[checkpoint_id] >= self.number_of_tasks

    def begin(self, epoch: EpochInput) -> None:
        """Tells the tasks to read an epoch, or a part of it."""
        body = pickle.dumps(epoch, protocol=5)
        self.missing_requests, self.reading = self.number_of_sources, epoch.checkpoint_id
        self.stops, self.watermarks = {}, {}
        self.say("begin", body)

    def hear(self, subtask: int, message: dict[str, Any]) -> None:
        """Takes a request for the next part, with how far sources are; or what a reader says."""
        if "aligned" in message:
            if self.alignment.hear(subtask, message["aligned"]):
                self.say("align", limits=self.alignment.limits)
            return
        if message and "stops" not in message:
            self.messages.append(message)
            return
        self.stops.update(((uid, subtask), Stop(*stop)) for uid, stop in message.get("stops", {}).items())
        self.watermarks.update(((uid, subtask), reached) for uid, reached in message.get("watermarks", {}).items())
        self.missing_requests -= 1

    def tasks_of(self, slot: Slot) -> str:
        """Returns the subtasks of a slot, in words for people."""
        indexes = dict[int, list[str]]()
        for (uid, index), name in self.places.items():
            if name == slot.name:
                indexes.setdefault(index, []).append(repr(uid))
        return " and ".join(f"subtask {index} of {', '.join(uids)}" for index, uids in indexes.items())

    def send_event(self, uid: str, subtask: int, event: Any) -> None:
        """Sends a subtask an event of its coordinator. Any thread may call it."""
        slot = self.slots[self.places[uid, subtask]]
        slot.say(frame("event", deployment=self.id, uid=uid, subtask=subtask, event=event))

    def say(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        """Sends all slots a message."""
        message = frame(kind, body, deployment=self.id, **fields)
        for slot in self.slots.values():
            slot.say(message)


class PipelinedRegion:
    """Deploys the tasks of a region once, and lets them read epoch after epoch.

    They are deployed again if an epoch does not continue from what they have read last: after a failure, at another
    parallelism, or if the region goes back to an earlier state. Its thread is the lane of the region; `interrupt` may
    come from others.
    """

    coordinators: OperatorCoordinators
    """The coordinators of its functions; whoever uses the region sets them."""
    on_logs: Callable[[bytes], object]  # takes what functions log and print amid an epoch; likewise
    slots_per_process = 1

    def __init__(self, pool: SlotPool, progress: Callable[[str], object], *, same_machine: bool) -> None:
        self._pool, self._progress = pool, progress
        self.counts = RecordCounts(same_machine)
        self._changed = threading.Condition()
        self._deployment: _Deployment | None = None
        self._interrupted = False
        self._names: set[str] = set()
        """The slots of the region."""
        pool.add_listener(self)

    def run(self, job: EpochJob, open_epoch: OpenEpoch | None = None) -> Sequence[WireRow]:
        """Reads the epoch of a job, and returns what the tasks have sent to the driver, when all have acknowledged.

        Raises:
            NoResourceAvailableError: There are too few slots.
            SlotLostError: The process of a slot has ended, or does not answer.
            CheckpointError: The epoch was interrupted.
            FlinkPyError: A slot cannot run on this Spark.
        """
        known = self._deployment
        deployment = self.deploy(job)
        if deployment is not known or not known.is_broken:  # otherwise since its last epoch: it ends with the error
            if open_epoch is None:
                deployment.begin(job.epoch)
            elif open_epoch.checkpoint_id != deployment.reading:  # otherwise it has begun behind the one before it
                deployment.begin(open_epoch.begin())
        try:
            if open_epoch is not None:
                self._give_out(open_epoch, deployment)
                self._read_on(open_epoch, deployment)
            self._wait(lambda: deployment.is_done(job.checkpoint_id), self._says_how_far(deployment, job))
            if not deployment.failed:
                self.coordinators.work()  # their checkpoints are due
        except FlinkPyError:
            self.cancel()
            raise
        if open_epoch is not None:
            open_epoch.receive(deployment.id, self._take_messages(deployment))  # those from before the barrier
        base = deployment.epochs << SEQ_BITS
        deployment.epochs += 1
        deployment.last = job.checkpoint_id
        end = deployment.epochs << SEQ_BITS
        self._pass_on_logs(deployment)
        with self._changed:
            rows, deployment.rows = deployment.rows, []
            if open_epoch is not None and not deployment.failed:
                deployment.rows = [row for row in rows if row.kind is Kind.COLLECT and row.seq >= end]
                rows = [row for row in rows if row.kind is not Kind.COLLECT or row.seq < end]
        if deployment.failed:
            self.cancel()
        return [replace(row, seq=row.seq - base) if row.kind is Kind.COLLECT else row for row in rows]

    def _give_out(self, open_epoch: OpenEpoch, deployment: _Deployment) -> None:
        """Gives the sources what comes, part by part, until the epoch is closed or a task has failed."""
        open_epoch.on_close(self._wake)

        def asked() -> bool:
            return deployment.failed or deployment.missing_requests <= 0

        def over() -> bool:
            return asked() or open_epoch.may_stop

        while not open_epoch.complete and not deployment.failed:
            self._wait(lambda: over() or deployment.alignment.are_held)
            if not over():  # until others, which have read their part, may have more
                self._wait(lambda: over() or not deployment.alignment.are_held, seconds=open_epoch.interval)
            if not (over() or deployment.alignment.are_held):
                continue
            if not asked():
                deployment.say("stop_reading")  # amid the part, where they can
                self._wait(asked)
            if deployment.failed:
                return
            open_epoch.receive(deployment.id, self._take_messages(deployment))
            part = open_epoch.next(deployment.stops, deployment.watermarks)
            if part is None:
                self._wait(
                    lambda: deployment.failed or open_epoch.closed or bool(deployment.messages),
                    seconds=open_epoch.interval,
                )
                continue
            deployment.begin(part)

    def _read_on(self, open_epoch: OpenEpoch, deployment: _Deployment) -> None:
        """Gives the sources what comes for the next epoch, until all tasks have acknowledged this one."""
        following = open_epoch.following
        if following is None or open_epoch.ended or deployment.failed:
            return

        def done() -> bool:
            return deployment.is_done(open_epoch.checkpoint_id)

        deployment.begin(following.begin())
        while not done() and following.error is None and open_epoch.error is None:
            self._wait(lambda: done() or deployment.missing_requests <= 0)
            if done():
                return
            with suppress(Exception):  # it is raised when the epoch is run
                open_epoch.finish()
                following.receive(deployment.id, self._take_messages(deployment))
                if (part := following.next(watermarks=deployment.watermarks)) is not None:
                    deployment.begin(part)
                    continue
            self._wait(lambda: done() or bool(deployment.messages), seconds=following.interval)

    def _take_messages(self, deployment: _Deployment) -> list[dict[str, Any]]:
        with self._changed:
            messages, deployment.messages = deployment.messages, []
        return messages

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _says_how_far(self, deployment: _Deployment, job: EpochJob) -> Callable[[], None]:
        """Returns what says how far an epoch is, if that is due."""
        before = self.counts.by_stage().get(0, 0)
        lines = ProgressLines(f"checkpoint {job.checkpoint_id} of job {job.job_id!r}", self._progress, read=before)

        def update() -> None:
            if lines.due:
                read, done = self.counts.by_stage().get(0, 0), deployment.acknowledged[job.checkpoint_id]
                what = f"{done} of {deployment.number_of_tasks} subtasks have acknowledged"
                lines.say(what, max(read - before, 0), read)

        return update

    def deploy(self, job: EpochJob) -> _Deployment:
        """Deploys the tasks that read the epoch of a job, unless they are there already.

        Raises:
            Exception: As :meth:`run`.
        """
        known = self._deployment
        if known is not None and (_continues(known, job) if known.reading else known.job is job):
            return known
        reason = None if known is None or known.lost is None else known.lost[1]
        self.cancel()
        job.check_start()
        self.coordinators.on_mail = self._wake
        self.coordinators.reset(job.start, reason)
        places = places_of(job.graph, job.region, self.slots_per_process)
        needed = resources_of(job.graph, places)
        slots, self._names = self.request(needed), set(needed)
        deployment = _Deployment(job, places, slots)
        with self._changed:
            self._deployment = deployment
        program = dump_job(replace(job, pipelined=True, counts=self.counts.__enter__().folder))
        locations = {name: slot.location for name, slot in slots.items()}
        where = [(uid, index, name) for (uid, index), name in places.items()]
        deployment.say("deploy", program, places=where, locations=locations)
        try:
            self._wait(lambda: deployment.failed or deployment.running >= needed.keys())
            if deployment.cut_off:
                raise deployment.cut_off
            if not deployment.failed:
                self.coordinators.ready(job.attempt, deployment.send_event)
        except FlinkPyError:
            self.cancel()
            raise
        return deployment

    def request(self, needed: Mapping[str, tuple[SlotSharingGroup, ...]]) -> dict[str, Slot]:
        """Returns slots, and starts those that are not there, see :meth:`SlotPool.request`."""
        return self._pool.request(sorted(needed), lambda: self._interrupted, needed)

    def _wait(
        self, done: Callable[[], bool], update: Callable[[], None] | None = None, seconds: float | None = None
    ) -> None:
        """Waits for messages of the tasks. Raises a SlotLostError, or a CheckpointError if it was interrupted."""
        deployment = self._deployment
        assert deployment is not None

        def over() -> bool:
            return done() or deployment.lost is not None or self._interrupted

        until = None if seconds is None else time.monotonic() + seconds
        while not over():
            left = INTERVAL_SECONDS if until is None else until - time.monotonic()
            if left <= 0:
                break
            self._wait_for(lambda: over() or self.coordinators.has_mail or bool(deployment.logs), left)
            self._pass_on_logs(deployment)
            if update is not None:
                update()
            self.coordinators.work()
        if deployment.cut_off:  # most likely because the other slot is gone, which the driver is about to see
            self._wait_for(lambda: deployment.lost is not None or self._interrupted, _CUT_OFF_SECONDS)
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

    def _pass_on_logs(self, deployment: _Deployment) -> None:
        with self._changed:
            logs, deployment.logs = deployment.logs, []
        for row in logs:
            self.on_logs(row.payload.to_pybytes())

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def notify(self, news: str, checkpoint_id: int) -> None:
        """Tells the functions of the tasks how a checkpoint has ended. Any thread may call it."""
        number, deployment = self.coordinators.snapshot_in(checkpoint_id, news), self._deployment
        if number is None:
            return
        if deployment is not None:
            deployment.say("notify", news=news, checkpoint_id=number)
        self.coordinators.on_notified(news, number)

    # --- the end -----------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Lets epochs run that come after those that were interrupted."""
        with self._changed:
            self._interrupted = False

    def interrupt(self) -> None:
        """Ends the epochs that are being read. Any thread may call it."""
        with self._changed:
            self._interrupted = True
        self._wake()
        self._pool.wake()

    def cancel(self) -> None:
        """Cancels the tasks, if there are any, and waits until they have given up what they have begun."""
        deployment = self._deployment
        self._end("cancel", _CANCEL_SECONDS)
        if deployment is not None:
            self._pass_on_logs(deployment)

    def finish(self, seconds: float) -> list[WireRow]:
        """Closes the functions of the tasks at the end of the job, and returns what they have sent to the driver.

        Raises:
            SlotLostError: They took longer, or a process has ended.
        """
        if (deployment := self._deployment) is None:
            return []
        self._end("finish", seconds)
        self.coordinators.work()
        if deployment.lost is not None:
            raise deployment.lost[1]
        return [*deployment.logs, *deployment.rows]

    def give_back(self) -> None:
        """Cancels the tasks, and ends their slots."""
        self.cancel()
        self._pool.release(self._names)

    def _end(self, kind: str, seconds: float) -> None:
        if (deployment := self._deployment) is None:
            return
        deployment.say(kind, last=deployment.last)

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
                self.counts.__exit__(None, None, None)

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
            for row in rows:
                if row.kind is Kind.OPERATOR_EVENT:
                    message = json.loads(row.payload.to_pybytes()) if row.payload.size else {}
                    if not self.coordinators.on_message(message):
                        known.hear(row.target, message)
                    continue
                (known.logs if row.kind is Kind.LOG else known.rows).append(row)
                if row.kind is Kind.FAILURE:
                    error = error_from_json(row.payload.to_pybytes())
                    if isinstance(error, SlotLostError) and not known.failed:
                        known.cut_off = error
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
    """Returns whether an epoch begins where the tasks are, or were when they broke."""
    return (
        job.start == deployment.last
        and job.graph is deployment.job.graph
        and job.fencing_token == deployment.job.fencing_token
        and job.restarts == deployment.job.restarts
        and job.partition == deployment.job.partition
        and job.alignment_timeout == deployment.job.alignment_timeout
    )
