"""Finds the savepoint or checkpoint that an attempt starts from, and settles who owns it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.evolution import evolution_since
from dagster_flinkpy.checkpoint.kept_parallelism import PARALLELISM, settle_parallelism
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.restore import RestorePlan, assign, restore_targets
from dagster_flinkpy.checkpoint.savepoint import import_savepoint, pickled_state
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.stored_checkpoint import open_checkpoint
from dagster_flinkpy.checkpoint.stored_savepoints import savepoint_choices, savepoint_location
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.state_recovery import NonRestoredState, RecoveryClaimMode
from dagster_flinkpy.errors import FlinkPyError, ObjectNotFoundError, RestoreError
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.storage import StorageLocation

__all__ = ["Restore"]

_RESTORED_BY = "restored_by"
"""Property of a checkpoint: the run that restored a savepoint, or an older checkpoint, and has come this far."""


@dataclass
class Restore:
    """What an execution attempt starts from (Flink: ``SavepointRestoreSettings``)."""

    path: str | None
    """``chk-7``, or the path or URL of a savepoint or checkpoint, or the name of a savepoint next to the job's
    checkpoints; None: the last completed checkpoint."""
    start_empty: bool
    """Starts from empty state, although there may be checkpoints."""
    parallelism: int | None
    """Of all operators without one of their own; None: that of the restored checkpoint's rescale, if there was one."""
    claim_mode: RecoveryClaimMode
    """Whose the savepoint or checkpoint is from now on."""
    allow_non_restored_state: NonRestoredState
    """Ignores state whose operator is gone: any, or that of these uids."""
    allow_pickled_state: bool
    """Whether a savepoint outside the job's prefix may have pickled state."""
    run_id: str | None
    """The run that restores the path; the same for all tries of it."""
    progress: Callable[[str], None]
    """Takes one-line progress messages."""
    claimed: StorageLocation | None = None
    """A savepoint that is the job's now, until it has a checkpoint of its own."""

    def __post_init__(self) -> None:
        self._restored_by = None if self.path is None else self.run_id

    def skip_if_restored(self, latest: CheckpointMetadata | None) -> None:
        """Ignores the path if an earlier try of the run has restored it and completed the latest checkpoint."""
        if (
            latest is not None
            and self._restored_by is not None
            and latest.properties.get(_RESTORED_BY) == self._restored_by
        ):
            self.progress(f"{self.path} was restored by an earlier try; this one continues from there")
            self.path = None

    def load(
        self, config: JobConfig, graph: JobGraph, store: CompletedCheckpointStore, attempt: Attempt
    ) -> CheckpointMetadata | None:
        """Reads a checkpoint of the job, or copies a savepoint's files to the job's prefix.

        Args:
            config: Where the job runs.
            graph: The program.
            store: The job's checkpoints.
            attempt: The attempt; its ids follow that of the savepoint.

        Returns:
            What is restored, or None.

        Raises:
            RestoreError: There is no such thing, or it may not be restored.
            CorruptMetadataError: It cannot be read.
            CorruptStateError: A file of the savepoint is missing or damaged.
        """
        if self.start_empty:
            if attempt.latest is not None:
                latest = attempt.latest.checkpoint_id
                self.progress(f"starting from empty state; the state of checkpoint {latest} is not restored")
            return None
        if self.path is None:
            return attempt.latest
        prefix = store.store.url
        if not self.path.strip():
            raise RestoreError("restore_from is empty: give a savepoint, a chk-n or a job's folder, or leave it out")
        # The location goes by the whole path: without its slashes 's3://' would be a local folder.
        location = savepoint_location(self.path, config.storage.child(config.job_id))
        folder = self.path.removesuffix(METADATA_NAME).rstrip("/")
        if location.url == prefix:  # as other commands take it: the job's latest checkpoint
            if attempt.latest is None:
                raise RestoreError(f"{self.path!r} is this job's own folder, and it has no completed checkpoint")
            return self._own_checkpoint(attempt.latest.checkpoint_id, config.job_id, store, attempt)
        own = re.fullmatch(r"chk-(\d+)", folder) or re.fullmatch(rf"{re.escape(prefix)}/chk-(\d+)", location.url)
        if own:
            return self._own_checkpoint(int(own[1]), config.job_id, store, attempt)
        try:
            found = open_checkpoint(location)
        except RestoreError as error:
            raise RestoreError(f"{error} {savepoint_choices(store.store)}") from error
        if found.files.url == location.url and found.metadata.kind is CheckpointKind.CHECKPOINT:
            raise RestoreError(
                f"{self.path!r} is the folder of another job, at checkpoint {found.metadata.checkpoint_id}, whose "
                f"files belong to it. Take a savepoint: 'flinkpy savepoint trigger {location.url}'"
            )
        if not location.url.startswith(f"{prefix}/") and not self.allow_pickled_state:
            untyped = any(isinstance(e.type_info, PickledBytesTypeInfo) for e in graph.edges)
            if pickled := pickled_state(found.metadata, untyped_edges=untyped):
                raise RestoreError(
                    f"savepoint {location.url} is not below this job's prefix and has pickled state "
                    f"({', '.join(pickled)}), which can run code of whoever wrote it; "
                    "if you trust it, set allow_pickled_state"
                )
        self.progress(f"restoring {location.url}")
        # Named after this attempt, so that no other one deletes the copies; and not as what its epochs write.
        files = found.files.open()
        savepoint = import_savepoint(location.open(), store.store, f"{attempt.token}-0", files=files)
        attempt.start_after(savepoint.checkpoint_id)
        self.claimed = location if self.claim_mode is RecoveryClaimMode.CLAIM else None
        return savepoint

    def _own_checkpoint(
        self, checkpoint_id: int, job_id: str, store: CompletedCheckpointStore, attempt: Attempt
    ) -> CheckpointMetadata:
        kept = sorted({*attempt.head.kept})
        # One that has a _metadata but never completed does not count: its committables were aborted.
        with suppress(ObjectNotFoundError):
            if checkpoint_id in kept:
                metadata = store.load(checkpoint_id)
                if self.claim_mode is RecoveryClaimMode.CLAIM:
                    attempt.claim(checkpoint_id)
                else:
                    attempt.leave_unclaimed(checkpoint_id)
                    self.progress(f"chk-{checkpoint_id} is left unclaimed: it is kept until it is disposed of")
                return metadata
        names = ", ".join(f"chk-{i}" for i in kept) or "none"
        lost = ""
        if attempt.head.lost:
            lost = ". Its HEAD was lost: 'flinkpy checkpoints recover' rebuilds it from the checkpoints that are there"
        raise RestoreError(f"job {job_id!r} has no checkpoint {self.path!r}; it keeps {names}{lost}")

    def settle_parallelism(self, program: JobGraph, restored: CheckpointMetadata | None) -> JobGraph:
        """Returns the program at the parallelism that the run uses, and says why where that may surprise.

        Args:
            program: The program, as it was written.
            restored: What the run continues from; None: it starts empty.

        Raises:
            ParallelismError: It is above a max parallelism that the program sets.
        """
        settled = settle_parallelism(program, restored, self.parallelism)
        self.parallelism = settled.kept
        for line in settled.told:
            self.progress(line)
        return settled.graph

    def assign(self, graph: JobGraph, restored: CheckpointMetadata) -> tuple[JobGraph, RestorePlan]:
        """Assigns the restored state to the operators, and says what has changed in the program since.

        Returns:
            The program with the stored max parallelisms; and what is whose.

        Raises:
            RestoreError: The state does not fit the program.
        """
        evolution = evolution_since(restored, graph, allow_non_restored_state=self.allow_non_restored_state)
        for line in evolution.lines:
            self.progress(line)
        plan = assign(restored, restore_targets(graph), allow_non_restored_state=self.allow_non_restored_state)
        return graph.with_max_parallelisms({u: o.max_parallelism for u, o in plan.operators.items()}), plan

    @property
    def properties(self) -> dict[str, Any]:
        """Properties that the checkpoints of the attempt get."""
        return {PARALLELISM: self.parallelism, _RESTORED_BY: self._restored_by}

    def dispose_claimed(self, owner: str, now_ms: int) -> None:
        """Deletes the claimed savepoint: the job has a checkpoint of its own.

        Args:
            owner: Who deletes it, for people.
            now_ms: The time, in milliseconds since 1970.
        """
        claimed, self.claimed = self.claimed, None
        if claimed is not None:
            try:
                dispose_savepoint(claimed, owner=owner, now_ms=now_ms)
            except FlinkPyError as e:  # the checkpoint is complete all the same
                self.progress(f"{claimed.url} is the job's now, but could not be deleted: {e}")
