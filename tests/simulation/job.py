"""The tasks of the simulated job, which replace those of Spark jobs, and their driver.

The driver is the library's own: job loop, coordinator, store, restore, committers. The tasks keep state in the same
handles and files as real ones, but with rows in JSON, so that an epoch takes a millisecond.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from dagster_flinkpy.checkpoint.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.messages import (
    AcknowledgeCheckpoint,
    CheckpointFailureReason,
    DeclineCheckpoint,
    Subtask,
)
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.checkpoint.stimuli import Acknowledge, Decline, Stimulus, TimerFired
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.connectors.staged_files import StagedUpload, file_name, partition_folder
from dagster_flinkpy.datastream.connectors.base import WriterInitContext
from dagster_flinkpy.errors import (
    CheckpointError,
    CorruptStateError,
    FlinkPyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SegmentLostError,
    StorageError,
)
from dagster_flinkpy.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.failure import error_to_json
from dagster_flinkpy.runtime.master.failover import (
    FailoverConfig,
    RestartAllStrategy,
    RestartPipelinedRegionStrategy,
)
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.job_master import JobMaster
from dagster_flinkpy.runtime.master.mailbox import Done, Lane, Mailbox, Work
from dagster_flinkpy.runtime.master.region_execution import RegionExecution
from dagster_flinkpy.runtime.master.region_runner import RegionEnded
from dagster_flinkpy.runtime.master.restart_strategies import FixedDelayRestart
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow
from dagster_flinkpy.state.handles import DistributionMode, KeyedSnapshot, OperatorStateHandle, RunHandle, TableSnapshot
from dagster_flinkpy.state.operator_state import file_of, state_file
from dagster_flinkpy.state.run_file import upload_run
from dagster_flinkpy.storage import ObjectStore
from tests.simulation.bucket import URL, SimulatedStore
from tests.simulation.program import (
    JOB,
    MAX_PARALLELISM,
    OUT,
    SPLIT_RECORDS,
    Scenario,
    SimulatedLocation,
    group_of,
    here,
    key_of,
    program,
)
from tests.simulation.world import World

__all__ = ["SimulatedAttempt", "SimulatedMaster", "read_counts", "read_held", "read_seen"]

_MAX_RUNS = 3
_HELD = 7
"""The row of each k-th record is held back."""
_TASK_TRIES = 2
WRITES, READS = "numbers.exchange", "numbers.exchange.count"
"""The two ends of the blocking edge."""
_TIMEOUT = timedelta(seconds=60)


# --- state of the tasks -----------------------------------------------------------------------------------------------

Rows = list[tuple[int, Any, Any]]
"""Rows of key group, key and value, in order of key groups."""


def _write_run(rows: Rows, owned: KeyGroupRange, store: ObjectStore, written_by: str) -> RunHandle:
    data = json.dumps(rows).encode()
    sha256 = hashlib.sha256(data).hexdigest()
    groups = [group for group, _, _ in rows]
    counts = [groups.count(group) or -1 for group in range(groups[0], groups[-1] + 1)]
    handle = RunHandle(
        path=state_file(sha256, written_by),
        sha256=sha256,
        bytes=len(data),
        rows=len(rows),
        key_groups=owned,
        rows_per_key_group=(groups[0], *counts),
        footer_bytes=1,
        footer_sha256=sha256,
    )
    upload_run(store, handle, data)
    return handle


def _read_run(handle: RunHandle, read: Callable[[str], bytes]) -> Rows:
    data = read(handle.path)
    if hashlib.sha256(data).hexdigest() != handle.sha256:
        raise AssertionError(f"{handle.path} is another file")
    return [(group, key, value) for group, key, value in json.loads(data) if group in handle.key_groups]


def _table(snapshot: KeyedSnapshot | None, name: str) -> tuple[RunHandle, ...]:
    tables = snapshot.tables if snapshot else ()
    return next((table.runs for table in tables if table.name == name), ())


def _merged(runs: Iterable[RunHandle], read: Callable[[str], bytes]) -> dict[Any, tuple[int, Any]]:
    state: dict[Any, tuple[int, Any]] = {}
    for run in runs:
        for group, key, value in _read_run(run, read):
            state[key] = (group, value)
    return state


def _rows(state: Mapping[Any, tuple[int, Any]]) -> Rows:
    return sorted(((group, key, value) for key, (group, value) in state.items()), key=lambda row: (row[0], str(row[1])))


def read_counts(snapshots: Iterable[KeyedSnapshot | None], read: Callable[[str], bytes]) -> dict[int, list[int]]:
    """Returns all records that the keyed state of a checkpoint has counted, by key."""
    counts: dict[int, list[int]] = {}
    for snapshot in snapshots:
        for key, (_, records) in _merged(_table(snapshot, "counts"), read).items():
            counts.setdefault(key, []).extend(records)
    return counts


def read_held(snapshots: Iterable[KeyedSnapshot | None], read: Callable[[str], bytes]) -> list[int]:
    """Returns all records whose rows are held back."""
    states = (_merged(_table(snapshot, "held"), read) for snapshot in snapshots)
    return [record for state in states for _, rows in state.values() for record, _ in rows]


def read_seen(handles: Iterable[OperatorStateHandle], read: Callable[[str], bytes]) -> list[int]:
    """Returns the splits that an operator state names."""
    seen = []
    for handle in handles:
        for partition in handle.partitions:
            path = file_of(partition)
            seen.append(partition["n"] if path is None else json.loads(read(path))[partition["row"]])
    return seen


# --- the tasks --------------------------------------------------------------------------------------------------------


@dataclass
class _Task:
    """One try of a subtask of a stage, over all barriers of the Spark job."""

    job: EpochJob
    index: int
    execution: str

    @property
    def _store(self) -> ObjectStore:
        return self.job.job_storage.open()

    def _read(self, path: str) -> bytes:
        try:
            return self._store.get(path)[0]
        except ObjectNotFoundError as error:
            raise CorruptStateError(f"state file {path} is missing") from error


class _SourceTask(_Task):
    def run(self) -> list[tuple[list[dict[str, Any]], list[int]]]:
        """Returns acknowledgements and records for each barrier."""
        world = here()
        seen = read_seen(self.job.input("numbers", self.index).operator_state, self._read)
        done: list[tuple[list[dict[str, Any]], list[int]]] = []
        for epoch in self.job.epochs:
            world.step()
            splits = epoch.splits.get(("numbers", self.index), ())
            seen = seen + [split.properties["n"] for split in splits]
            records = [s.properties["n"] * SPLIT_RECORDS + r for s in splits for r in range(SPLIT_RECORDS)]
            state = SubtaskState(
                self.index,
                operator_state=(OperatorStateHandle("seen", DistributionMode.SPLIT_DISTRIBUTE, self._stored(seen)),),
                splits=tuple(split.advanced(SPLIT_RECORDS, finished=True).to_json() for split in splits),
            )
            done.append(([_ack("numbers", epoch.checkpoint_id, state)], records))
        return done

    def _stored(self, seen: Sequence[int]) -> tuple[Any, ...]:
        if len(seen) < 3:
            return tuple({"n": n} for n in seen)
        data = json.dumps(seen).encode()
        sha256 = hashlib.sha256(data).hexdigest()
        by = self.job.written_by
        with suppress(PreconditionFailedError):
            self._store.put(state_file(sha256, by), data, if_none_match=True)
        return tuple({"file": sha256, "by": by, "row": row} for row in range(len(seen)))


class _EdgeWriteTask(_Task):
    def run(self, records: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """Writes the records of one subtask of the source as segments, an epoch after the other."""
        world, acks = here(), []
        for epoch, batch in zip(self.job.epochs, records, strict=True):
            world.step()
            name = f"{self.job.fencing_token:010d}-{epoch.checkpoint_id:010d}/{self.index}.{self.execution}"
            segments = []
            for number, record in enumerate(batch):
                key, data = f"{name}.{number}", json.dumps([record]).encode()
                _edge(self.job).put(key, data)
                segments.append({"key": key, "bytes": len(data), "rows": 1})
            output = {
                "segments": segments,
                "event_times": {"numbers": {"watermark": None, "idle": False}},
                "end_of_input": "numbers" in epoch.ended_sources,
            }
            acks.append(_ack(WRITES, epoch.checkpoint_id, SubtaskState(self.index, committables=(output,))))
        return acks


class _EdgeReadTask(_Task):
    def run(self) -> list[tuple[list[dict[str, Any]], list[int]]]:
        """Returns acknowledgements and records for each barrier."""
        world = here()
        done: list[tuple[list[dict[str, Any]], list[int]]] = []
        for epoch in self.job.epochs:
            world.step()
            (split,) = epoch.splits[READS, self.index]
            records = [record for segment in split.properties["segments"] for record in self._segment(segment["key"])]
            state = SubtaskState(self.index, splits=(split.advanced(len(records), finished=True).to_json(),))
            done.append(([_ack(READS, epoch.checkpoint_id, state)], records))
        return done

    def _segment(self, key: str) -> list[int]:
        store, chaos = _edge(self.job), here().chaos
        if chaos.segment_loss and here().rng.random() < chaos.segment_loss:
            store.delete(key)
        try:
            records: list[int] = json.loads(store.get(key)[0])
        except ObjectNotFoundError as error:
            raise SegmentLostError(f"segment {key} is gone") from error
        return records


def _edge(job: EpochJob) -> ObjectStore:
    return job.job_storage.child("exchange").child(WRITES).open()


class _CountTask(_Task):
    def run(self, records: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """Takes the records of each epoch, and returns the acknowledgements of both operators."""
        try:
            return self._run(records)
        except StorageError:
            for upload in self._uploads:
                upload.abort()
            raise

    def _run(self, records: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        world, job = here(), self.job
        self._uploads: list[StagedUpload] = []
        width = job.graph.vertex("count").parallelism
        groups = self._groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, width, self.index)
        given = job.input("count", self.index).keyed
        runs = list(_table(given, "counts"))
        state = _merged(runs, self._read)
        turns = {key: value for key, (_, value) in _merged(_table(given, "turns"), self._read).items()}
        held = _merged(_table(given, "held"), self._read)
        acks = []
        for epoch, arrived in zip(job.epochs, records, strict=True):
            world.step()
            rows: list[list[int]] = []
            touched: dict[Any, tuple[int, Any]] = {}
            for record in sorted(arrived):
                key = key_of(record)
                group = group_of(key)
                if group in groups:
                    state[key] = touched[key] = (group, [*state.get(key, (group, []))[1], record])
                    # As in a window, some rows wait for the next row of their key, or for the end of input.
                    rows += held.pop(key, (group, []))[1]
                    row = [record, len(state[key][1])]
                    if record % _HELD == 0:
                        held[key] = (group, [row])
                    else:
                        rows.append(row)
            if epoch.ended_sources & {"numbers", READS}:
                rows += [row for _, waiting in held.values() for row in waiting]
                held = {}
            if touched:
                runs.append(self._write(_rows(touched)))
            if len(runs) > _MAX_RUNS:
                runs = [self._write(_rows(state))]
            # The content repeats from time to time.
            turn = 1 - turns.get(f"turn-{groups.start}", 0)
            turns = {f"turn-{groups.start}": turn}
            turning = self._write([(groups.start, f"turn-{groups.start}", turn)])
            waiting = [self._write(_rows(held))] if held else []
            tables = (_snapshot("counts", runs), _snapshot("turns", [turning]), _snapshot("held", waiting))
            keyed = KeyedSnapshot(groups, tables)
            acks.append(_ack("count", epoch.checkpoint_id, SubtaskState(self.index, keyed=keyed)))
            acks.append(_ack("files", epoch.checkpoint_id, self._written(epoch.checkpoint_id, rows)))
        return acks

    def _write(self, rows: Rows) -> RunHandle:
        return _write_run(rows, self._groups, self._store, self.job.written_by)

    def _written(self, checkpoint_id: int, rows: Sequence[Any]) -> SubtaskState:
        if not rows:
            return SubtaskState(self.index)
        init = WriterInitContext(
            job_id=self.job.job_id,
            uid="files",
            subtask=self.index,
            fencing_token=self.job.fencing_token,
            checkpoint_id=checkpoint_id,
            execution=self.execution,
            partition=self.job.partition,
        )
        key = f"{partition_folder(init.partition)}{file_name(init)}"
        upload = StagedUpload(SimulatedStore(here(), OUT), key, part_bytes=64)
        self._uploads.append(upload)
        upload.write(json.dumps(rows).encode())
        return SubtaskState(self.index, committables=(upload.finish(len(rows)).to_json(),))


def _snapshot(name: str, runs: Sequence[RunHandle]) -> TableSnapshot:
    long = Types.LONG().to_json()
    return TableSnapshot(name, "VALUE", long, None, None, long, tuple(runs))


def _ack(uid: str, checkpoint_id: int, state: SubtaskState) -> dict[str, Any]:
    return {
        "uid": uid,
        "checkpoint_id": checkpoint_id,
        "state": state.to_json(),
        "digest": "",
        "consumed": {},
        "marked_ms": {},
    }


# --- the Spark job ----------------------------------------------------------------------------------------------------


@dataclass
class _Stage:
    """The tasks of a stage, and their results so far."""

    run: Callable[[int, str], Any]
    results: dict[int, Any] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)


class _SparkJob:
    """Runs the tasks of an epoch as actors. They outlive a driver that crashes or is interrupted too late."""

    def __init__(self, world: World, job: EpochJob, name: str, interrupted: Callable[[], bool]) -> None:
        self._world = world
        self._job = job
        self._name = name
        self._interrupted = interrupted
        self._tries = 0

    def run(self) -> list[WireRow]:
        """Returns the rows for the driver.

        Raises:
            StorageError: A task failed in all of its tries.
            CheckpointError: The job was interrupted.
        """
        width = self._job.graph.stage_parallelism(0)
        try:
            reads: type[_SourceTask | _EdgeReadTask] = _SourceTask if self._job.region == 0 else _EdgeReadTask
            sources = self._stage(range(width), lambda i, e: reads(self._job, i, e).run())
            records = [
                [record for each in sources for record in each[position][1]]
                for position in range(len(self._job.epochs))
            ]
            rest: Callable[[int, str], Any] = lambda i, e: _CountTask(self._job, i, e).run(records)  # noqa: E731
            if "count" not in {vertex.uid for vertex in self._job.graph.vertices}:
                rest = lambda i, e: _EdgeWriteTask(self._job, i, e).run([each for _, each in sources[i]])  # noqa: E731
            counted = self._stage(range(width), rest)
        except (StorageError, CheckpointError) as error:
            if isinstance(error, StorageError) or self._interrupted():
                raise
            return [_row(Kind.FAILURE, error_to_json(error, "count", 0))]
        except FlinkPyError as error:
            return [_row(Kind.FAILURE, error_to_json(error, "count", 0))]
        acks = [ack for each in sources for acks, _ in each for ack in acks] + [ack for acks in counted for ack in acks]
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


# --- the driver -------------------------------------------------------------------------------------------------------


class _ActorMailbox(Mailbox):
    """A lane with work is an actor of the attempt's process."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        self._world, self._name = world, name
        self._inbox: deque[Done | None] = deque()
        self._todo: defaultdict[Lane, deque[Work]] = defaultdict(deque)
        self._at_work: set[Lane] = set()

    def _submit(self, lane: Lane, work: Work) -> None:
        self._todo[lane].append(work)
        if lane not in self._at_work:
            self._at_work.add(lane)
            process = self._world.current.process
            self._world.spawn(f"{self._name}/{lane}", lambda: self._work_off(lane), process)

    def _work_off(self, lane: Lane) -> None:
        while self._todo[lane]:
            work = self._todo[lane].popleft()
            try:
                done = Done(lane, work, work())
            except Exception as error:
                done = Done(lane, work, None, error)
            self._inbox.append(done)
        self._at_work.remove(lane)

    def _take(self, until_ms: int | None) -> Done | None:
        world = self._world
        until = math.inf if until_ms is None else until_ms - world.current.process.skew_ms
        if not world.wait_for(lambda: bool(self._inbox), until):
            return None
        return self._inbox.popleft()

    def wake(self) -> None:
        self._inbox.append(None)


class SimulatedAttempt(JobAttempt):
    """The library's job loop over simulated Spark jobs.

    Args:
        world: The world.
        scenario: How the job is deployed.
        name: Name of its actor.
        width: Parallelism of the program.
        interval: Time between periodic checkpoints, or None for no periodic checkpoints.
        attempt: Further arguments of :class:`JobAttempt`.
    """

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        name: str,
        *,
        width: int,
        interval: timedelta | None = None,
        **attempt: Any,
    ) -> None:
        config = JobConfig(
            JOB,
            SimulatedLocation(URL),
            checkpointing=CoordinatorConfig(
                interval=interval,
                timeout=_TIMEOUT,
                max_concurrent=3,
                num_retained=scenario.num_retained,
                retention=scenario.retention,
                tolerable_failed=world.rng.choice((1, 5)) if world.rng.random() < world.chaos.tolerates else 0,
            ),
            partition_retention=scenario.partition_retention,
            failover=_failover(world),
            cache_dir="/nowhere",
        )
        self._world = world
        self._name = name
        super().__init__(program(width, scenario.regions), config, owner=name, on_progress=world.note, **attempt)
        self.aborted_open = False
        """Whether nothing failed when it last looked for open uploads."""

    def _create_mailbox(self) -> Mailbox:
        return _ActorMailbox(self._world, self._name)

    def _on_spark(self, job: EpochJob) -> list[WireRow]:
        world = self._world
        world.step(f"Spark job of checkpoint {job.checkpoint_id}, {len(job.epochs)} barriers")
        return _SparkJob(
            world, job, f"{self._name}/{job.checkpoint_id}", lambda: self._regions.sessions[job.region]._interrupted
        ).run()

    def _abort_left_open(self) -> None:
        self._world.bucket.looked_at = self._world.bucket.uploads_made
        super()._abort_left_open()

    def _abort_lingering(self) -> int:
        self.aborted_open = False
        aborted = super()._abort_lingering()
        self.aborted_open = True
        return aborted


def _failover(world: World) -> FailoverConfig:
    """Most attempts restart in the run, some of them as a whole."""
    if world.rng.random() > world.chaos.restarts:
        return FailoverConfig()
    delay = timedelta(seconds=world.rng.choice((0, 1, 40, 90)))
    failover = world.rng.choice((RestartPipelinedRegionStrategy(), RestartAllStrategy()))
    return FailoverConfig(FixedDelayRestart(world.rng.choice((1, 3)), delay), failover)


class SimulatedMaster(JobMaster):
    """The library's master, to which messages come in any order, and more than were meant for it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._world = here()
        self._strays = False
        self._results = EpochResults()
        self._before: dict[int, dict[Subtask, SubtaskState]] = {}
        """What was acknowledged of the checkpoints so far."""

    @property
    def _token(self) -> int:
        return self._regions[0].planner.fencing_token

    def _on_region_ended(self, region: RegionExecution, ended: RegionEnded) -> None:
        self._results = ended.results
        super()._on_region_ended(region, ended)

    def _acknowledge(self, region: RegionExecution, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> None:
        """Acknowledges in any order, mixed with messages for other checkpoints."""
        rng, chaos = self._world.rng, self._world.chaos
        shuffled = list(states.items())
        rng.shuffle(shuffled)
        for later_id, later in self._results.acknowledged.items():
            if later_id > checkpoint_id and rng.random() < 0.5:
                # Not all, or the later checkpoint would be the first to be acknowledged, which no region does.
                for task in rng.sample(sorted(later), rng.randint(1, len(later) - 1)):
                    message = AcknowledgeCheckpoint(JOB, later_id, self._token, task.uid, task.subtask, later[task])
                    super()._drive(Acknowledge(self._world.clock(), message))
        self._strays = rng.random() < chaos.stray_messages
        if self._strays:
            self._stray_messages(checkpoint_id, dict(shuffled))
        super()._acknowledge(region, checkpoint_id, dict(shuffled))
        if self._strays:
            self._late_messages(checkpoint_id, dict(shuffled))
            for earlier in self._before.items():
                if rng.random() < 0.3:
                    self._late_messages(*earlier)
        self._strays = False
        self._before[checkpoint_id] = dict(shuffled)

    def _drive(self, stimulus: Stimulus) -> None:
        super()._drive(stimulus)
        if self._strays and isinstance(stimulus, Acknowledge):
            message = stimulus.message
            again = replace(message, state=SubtaskState(message.subtask))
            super()._drive(Acknowledge(self._world.clock(), again))

    def _stray_messages(self, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> None:
        """Sends messages of another attempt, of another job and for an unknown checkpoint, all with wrong state."""
        now = self._world.clock()
        for task in states:
            wrong = SubtaskState(task.subtask)
            for job_id, token, number in (
                (JOB, self._token - 1, checkpoint_id),
                (JOB, self._token + 1, checkpoint_id),
                ("another", self._token, checkpoint_id),
                (JOB, self._token, checkpoint_id + 1000),
                (JOB, self._token, checkpoint_id - 1),
            ):
                message = AcknowledgeCheckpoint(job_id, number, token, task.uid, task.subtask, wrong)
                self._drive(Acknowledge(now, message))
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED
            earlier = [(self._token, each) for each in (checkpoint_id - 1,) if each not in self.coordinator.pending]
            for token, number in ((self._token - 1, checkpoint_id), *earlier):
                decline = DeclineCheckpoint(JOB, number, token, task.uid, task.subtask, reason, {})
                self._drive(Decline(now, decline))

    def _late_messages(self, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> None:
        now = self._world.clock()
        for task, state in states.items():
            message = AcknowledgeCheckpoint(JOB, checkpoint_id, self._token, task.uid, task.subtask, state)
            self._drive(Acknowledge(now, message))
        self._drive(TimerFired(now, checkpoint_id))
