"""Finds the savepoint or checkpoint that an attempt starts from, and settles who owns it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.evolution import evolution_since, refuse_other_windows
from dagster_flinkpy.checkpoint.forks.fork_sinks import refuse_copy
from dagster_flinkpy.checkpoint.kept_parallelism import PARALLELISM, settle_parallelism
from dagster_flinkpy.checkpoint.metadata import (
    COMMITS,
    METADATA_NAME,
    RESTORED_BY,
    CheckpointKind,
    CheckpointMetadata,
)
from dagster_flinkpy.checkpoint.offline import without_committables, without_committed
from dagster_flinkpy.checkpoint.recomputation import Recomputation, without_state
from dagster_flinkpy.checkpoint.restore import RestorePlan, assign, restore_targets
from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.savepoints.savepoint import import_savepoint, pickled_state
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import (
    open_checkpoint,
    savepoint_choices,
    savepoint_location,
)
from dagster_flinkpy.checkpoint.state_migration import migrate
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState, RecoveryClaimMode
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import CorruptMetadataError, FlinkPyError, HeadLostError, ObjectNotFoundError, RestoreError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["Restore"]

_MOST_RUNS = 16
"""How many runs that have restored something a job remembers, so that their retries do not restore it again."""


@dataclass
class Restore:
    """What an execution attempt starts from (Flink: ``SavepointRestoreSettings``)."""

    path: str | None
    """``chk-7``, or the path or URL of a savepoint or checkpoint, or the name of a savepoint next to the job's
    checkpoints. None stands for the last completed checkpoint."""
    start_empty: bool
    """Whether to start from empty state, even if there are checkpoints."""
    parallelism: int | None
    """Parallelism of the operators that do not set their own. None stands for the one that the restored checkpoint was
    rescaled to, or else that of the program."""
    claim_mode: RecoveryClaimMode
    """Who owns the savepoint or checkpoint from now on."""
    allow_non_restored_state: NonRestoredState
    """Whether to ignore state whose operator is gone: True for any state, or a list of uids."""
    allow_pickled_state: bool
    """Whether a savepoint outside the job's prefix may contain pickled state."""
    run_id: str | None
    """The run that restores the path, or starts from empty state; all its tries have the same id."""
    progress: Callable[[str], None]
    """Takes one-line progress messages."""
    choose: Callable[[Attempt], str | None] | None = None
    """Returns the path, or None for empty state, once the attempt leads: others may change the job until then."""
    recomputation: Recomputation | None = None
    """Which operators start empty, and read again what their state was built from."""
    last_committed: Mapping[str, int] = field(default_factory=dict)
    """The newest checkpoint that the targets of sinks have, by uid, if the job goes back or starts anew."""
    claimed: StorageLocation | None = None
    """A savepoint that the job owns now, and deletes once it has completed a checkpoint."""

    def __post_init__(self) -> None:
        self._restored_by: tuple[str, ...] = ()

    def settle(self, attempt: Attempt, job: StorageLocation, graph: JobGraph) -> None:
        """Settles what an attempt that leads starts from.

        It continues from the latest checkpoint if an earlier try of the run has started anew and completed one. Other
        runs may have continued since, or have restored something else.

        Raises:
            ConfigurationError: The job's folder is a copy of another job's, and both would write to the same place.
        """
        refuse_copy(attempt.latest, job, graph, self.progress)
        if self.choose is not None:
            self.path = self.choose(attempt)
            self.start_empty = self.path is None
        latest = attempt.latest
        self._restored_by = () if latest is None else latest.restored_by
        if self.run_id is None or (self.path is None and not self.start_empty):
            return
        if latest is not None and self.run_id in self._restored_by:
            done = "started from empty state" if self.path is None else f"restored {self.path}"
            self.progress(
                f"an earlier try of this run has {done}; this one continues from checkpoint {latest.checkpoint_id}"
            )
            self.path, self.start_empty = None, False
        else:
            self._restored_by = (*self._restored_by, self.run_id)[-_MOST_RUNS:]

    def continue_run(self) -> None:
        """Lets the next attempt of the same run start from the latest checkpoint, which the run has completed."""
        self.path, self.start_empty, self.claimed, self.recomputation, self.choose = None, False, None, None, None

    def ancestors(self, job: StorageLocation, latest: CheckpointMetadata | None) -> tuple[tuple[str, int], ...]:
        """Returns the jobs with whose state the job begins or has begun, and the checkpoints of these."""
        found = latest
        if self.start_empty:
            return ()
        if self.path is not None and self.path.strip():
            location = savepoint_location(self.path, job)
            if location.url != job.url and self._own_id(location, job.url) is None:
                with suppress(RestoreError, HeadLostError, CorruptMetadataError):  # `load` says so
                    found = open_checkpoint(location).metadata
        return () if found is None else found.ancestors_of(job.name)

    def load(
        self, job: StorageLocation, graph: JobGraph, store: CompletedCheckpointStore, attempt: Attempt
    ) -> CheckpointMetadata | None:
        """Reads a checkpoint of the job, or copies a savepoint's files to the job's prefix, and migrates its state.

        Of a savepoint, the next checkpoint of the attempt has a greater id.

        Returns:
            The checkpoint or savepoint to restore, or None to start empty.

        Raises:
            RestoreError: The checkpoint or savepoint does not exist, or may not be restored.
            CorruptMetadataError: Its metadata cannot be read.
            CorruptStateError: A file of the savepoint is missing or damaged.
            StateSchemaError: A migration of the program returns what does not fit.
            UserFunctionError: A migration of the program has failed.
        """
        found = self._found(job, graph, store, attempt)
        if found is None:
            return None
        if self.recomputation is not None:
            for line in self.recomputation.lines:
                self.progress(line)
            found = without_state(found, graph, self.recomputation)
        # Like the copies of a savepoint's files, what is written is this attempt's, and not of its epochs.
        return migrate(found, graph, store.store, f"{attempt.token}-0", self.progress)

    def _found(
        self, job: StorageLocation, graph: JobGraph, store: CompletedCheckpointStore, attempt: Attempt
    ) -> CheckpointMetadata | None:
        if self.start_empty:
            if attempt.latest is not None:
                latest = attempt.latest.checkpoint_id
                self.progress(f"starting from empty state; the state of checkpoint {latest} is not restored")
            self._tell_of_rows_since(0, attempt)
            return None
        if self.path is None:
            return attempt.latest and without_committed(attempt.latest, graph, attempt.committed)
        prefix = store.store.url
        if not self.path.strip():
            raise RestoreError(
                "restore_from is empty: give a savepoint, a checkpoint (chk-7) or the job's folder, or leave it out"
            )
        # The location needs the path with its slashes: without them 's3://' would be a local folder.
        location = savepoint_location(self.path, job)
        if location.url == prefix:  # stands for the job's latest checkpoint, as in other commands
            if attempt.latest is None:
                raise RestoreError(f"{self.path!r} is this job's own folder, and it has no completed checkpoint")
            return self._own_checkpoint(attempt.latest.checkpoint_id, job.name, store, attempt)
        own = self._own_id(location, prefix)
        if own is not None:
            return self._own_checkpoint(own, job.name, store, attempt)
        try:
            found = open_checkpoint(location)
        except RestoreError as error:
            raise RestoreError(f"{error} {savepoint_choices(store.store)}") from error
        if found.files.url == location.url and found.metadata.kind is CheckpointKind.CHECKPOINT:
            raise RestoreError(
                f"{self.path!r} is the folder of another job, at checkpoint {found.metadata.checkpoint_id}, and its "
                f"files belong to that job. Take a savepoint of it: 'flinkpy savepoint trigger {location.url}'"
            )
        if not location.url.startswith(f"{prefix}/") and not self.allow_pickled_state:
            untyped = any(isinstance(e.type_info, PickledBytesTypeInfo) for e in graph.edges)
            if pickled := pickled_state(found.metadata, untyped_edges=untyped):
                raise RestoreError(
                    f"savepoint {location.url} is outside this job's prefix and contains pickled state "
                    f"({', '.join(pickled)}), which can run code of whoever wrote it. "
                    "If you trust it, set allow_pickled_state in the config of the run. Before a script runs, call "
                    f"'flinkpy savepoint restore --allow-pickled-state {location.url} {prefix}' instead of setting "
                    "execution.state-recovery.path."
                )
        self.progress(f"restoring {location.url}")
        # The copies are named after this attempt, so that no other one deletes them, but unlike files of its epochs.
        files = found.files.open()
        savepoint = import_savepoint(location.open(), store.store, f"{attempt.token}-0", files=files)
        attempt.start_after(savepoint.checkpoint_id)
        self._tell_of_rows_since(savepoint.last_of(job.name), attempt)  # the sinks know the checkpoints of no other job
        self.claimed = location if self.claim_mode is RecoveryClaimMode.CLAIM else None
        return savepoint

    def _own_id(self, location: StorageLocation, prefix: str) -> int | None:
        """Returns the checkpoint of the job that the path means, at a location; None if it means something else."""
        folder = (self.path or "").removesuffix(METADATA_NAME).rstrip("/")
        own = re.fullmatch(r"chk-(\d+)", folder) or re.fullmatch(rf"{re.escape(prefix)}/chk-(\d+)", location.url)
        return int(own[1]) if own else None

    def _own_checkpoint(
        self, checkpoint_id: int, job_id: str, store: CompletedCheckpointStore, attempt: Attempt
    ) -> CheckpointMetadata:
        kept = sorted({*attempt.head.kept})
        # A checkpoint that has a _metadata but never completed does not count: its committables were aborted.
        with suppress(ObjectNotFoundError):
            if checkpoint_id in kept:
                metadata = store.load(checkpoint_id)
                if self.claim_mode is RecoveryClaimMode.CLAIM:
                    attempt.claim(checkpoint_id)
                else:
                    attempt.leave_unclaimed(checkpoint_id)
                    self.progress(
                        f"chk-{checkpoint_id} is not claimed: it is kept until 'flinkpy savepoint dispose "
                        f"{store.store.url}/chk-{checkpoint_id}'"
                    )
                self._tell_of_rows_since(checkpoint_id, attempt)
                # Whoever restores it may know that a target has lost rows.
                there = {u: i for u, i in metadata.commits.items() if self.last_committed.get(u, 0) >= i}
                return replace(without_committables(metadata), properties={**metadata.properties, COMMITS: there})
        names = ", ".join(f"chk-{i}" for i in kept) or "none"
        lost = ""
        if attempt.head.lost:
            lost = ". Its HEAD was lost: 'flinkpy checkpoints recover' rebuilds it from the checkpoints that exist"
        raise RestoreError(f"job {job_id!r} has no checkpoint {self.path!r}; it keeps {names}{lost}")

    def _tell_of_rows_since(self, checkpoint_id: int, attempt: Attempt) -> None:
        """Says which sinks have rows of later checkpoints, which a job that goes back writes again."""
        if attempt.latest is not None and attempt.latest.end_of is not None:
            return  # partitions that run again replace their rows
        since = f"since checkpoint {checkpoint_id} " if checkpoint_id else ""
        for uid, last in self.last_committed.items():
            if last > checkpoint_id:
                self.progress(
                    f"sink {uid!r} has rows up to checkpoint {last}: those {since}stay, and are written again beside "
                    "them when their input is read again, unless the sink replaces rows. Delete them before the job "
                    "goes on"
                )

    def settle_parallelism(self, program: JobGraph, restored: CheckpointMetadata | None) -> JobGraph:
        """Returns the program at the parallelism that the run uses; a progress message explains a surprising one.

        Raises:
            ParallelismError: The parallelism is above a max parallelism that the program sets.
        """
        settled = settle_parallelism(program, restored, self.parallelism)
        self.parallelism = settled.kept
        for line in settled.told:
            self.progress(line)
        return settled.graph

    def assign(self, graph: JobGraph, restored: CheckpointMetadata) -> tuple[JobGraph, RestorePlan]:
        """Assigns the restored state to the operators; progress messages tell what has changed in the program since.

        Returns:
            The program with the stored max parallelisms, and the state of each operator.

        Raises:
            RestoreError: The state does not fit the program.
            StateSchemaError: Windows are open that the program would never fire.
        """
        evolution = evolution_since(restored, graph, allow_non_restored_state=self.allow_non_restored_state)
        for line in evolution.lines:
            self.progress(line)
        for vertex in graph.vertices:
            refuse_other_windows(restored.operator(vertex.uid), vertex)
        plan = assign(restored, restore_targets(graph), allow_non_restored_state=self.allow_non_restored_state)
        return graph.with_max_parallelisms({u: o.max_parallelism for u, o in plan.operators.items()}), plan

    @property
    def properties(self) -> dict[str, Any]:
        """The properties that the attempt adds to its checkpoints."""
        return {PARALLELISM: self.parallelism, RESTORED_BY: list(self._restored_by) or None}

    def dispose_claimed(self, owner: str, now_ms: int) -> None:
        """Deletes the claimed savepoint, if there is one; called once the job has completed a checkpoint."""
        claimed, self.claimed = self.claimed, None
        if claimed is not None:
            try:
                dispose_savepoint(claimed, owner=owner, now_ms=now_ms)
            except FlinkPyError as e:  # the checkpoint is complete nevertheless
                self.progress(f"the job owns {claimed.url} now, but could not delete it: {e}")
