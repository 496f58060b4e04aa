"""What an attempt is told to start from: finds the savepoint or older checkpoint, and settles whose it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dagster_flinkpy.checkpoint.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata
from dagster_flinkpy.checkpoint.restore import OperatorSpec, RestorePlan, assign
from dagster_flinkpy.checkpoint.savepoint import files_location, import_savepoint, load_savepoint, pickled_state
from dagster_flinkpy.checkpoint.store import Attempt, CompletedCheckpointStore
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.state_recovery import RecoveryClaimMode
from dagster_flinkpy.errors import FlinkPyError, ObjectNotFoundError, RestoreError
from dagster_flinkpy.runtime.job_config import JobConfig
from dagster_flinkpy.storage import StorageLocation

__all__ = ["Restore"]

_PARALLELISM = "parallelism"
"""Property of a checkpoint: the parallelism a restore has set, which stays until the next one sets another."""
_RESTORED_BY = "restored_by"
"""Property of a checkpoint: the run that restored a savepoint, or an older checkpoint, and has come this far."""


@dataclass
class Restore:
    """What an execution attempt starts from (Flink: ``SavepointRestoreSettings``), and what came of it."""

    path: str | None
    """``chk-7``, or the path or URL of a savepoint or checkpoint; None: the last completed checkpoint."""
    start_empty: bool
    """Starts from empty state, although there may be checkpoints."""
    parallelism: int | None
    """Of all operators without one of their own; None: that of the restored checkpoint's rescale, if there was one."""
    claim_mode: RecoveryClaimMode
    """Whose the savepoint or checkpoint is from now on."""
    allow_non_restored_state: bool
    """Leaves state behind whose operator is gone."""
    allow_pickled_state: bool
    """Whether a savepoint outside the job's prefix may have pickled state."""
    run_id: str | None
    """The run that restores the path; the same for all tries of it."""
    progress: Callable[[str], None]
    """Is told what goes on."""
    claimed: StorageLocation | None = None
    """A savepoint that is the job's now, until it has a checkpoint of its own."""

    def __post_init__(self) -> None:
        self._restored_by = None if self.path is None else self.run_id

    def skip_if_restored(self, latest: CheckpointMetadata | None) -> None:
        """Leaves the path alone where an earlier try of the run has restored it, and come to the latest checkpoint."""
        if (
            latest is not None
            and self._restored_by is not None
            and latest.properties.get(_RESTORED_BY) == self._restored_by
        ):
            self.progress(f"{self.path} was restored by an earlier try; this one goes on from there")
            self.path = None

    def load(
        self, config: JobConfig, graph: JobGraph, store: CompletedCheckpointStore, attempt: Attempt
    ) -> CheckpointMetadata | None:
        """Reads a checkpoint of the job, or copies a savepoint's files to the job's prefix.

        Args:
            config: Where the job runs.
            graph: The program.
            store: The job's checkpoints.
            attempt: The attempt; its ids go on after the savepoint's.

        Returns:
            What is restored; None: nothing is.

        Raises:
            RestoreError: There is no such thing, or it may not be restored.
            CorruptMetadataError: It cannot be read.
            CorruptStateError: A file of the savepoint is missing or damaged.
        """
        if self.start_empty:
            return None
        if self.path is None:
            return attempt.latest
        prefix = store.store.url
        folder = self.path.removesuffix(METADATA_NAME).rstrip("/")
        location = replace(config.storage, url=folder)
        own = re.fullmatch(r"chk-(\d+)", folder) or re.fullmatch(rf"{re.escape(prefix)}/chk-(\d+)", location.url)
        if own:
            return self._own_checkpoint(int(own[1]), config.job_id, store, attempt)
        if not location.url.startswith(f"{prefix}/") and not self.allow_pickled_state:
            untyped = any(isinstance(e.type_info, PickledBytesTypeInfo) for e in graph.edges)
            if pickled := pickled_state(load_savepoint(location.open()), untyped_edges=untyped):
                raise RestoreError(
                    f"savepoint {location.url} is not below this job's prefix and has pickled state "
                    f"({', '.join(pickled)}), which can run code of whoever wrote it; "
                    "if you trust it, set allow_pickled_state"
                )
        self.progress(f"restoring {location.url}")
        # Named after this attempt, so that no other one deletes the copies; and not as what its epochs write.
        files = files_location(load_savepoint(location.open()), location).open()
        savepoint = import_savepoint(location.open(), store.store, f"{attempt.token}-0", files=files)
        attempt.start_after(savepoint.checkpoint_id)
        self.claimed = location if self.claim_mode is RecoveryClaimMode.CLAIM else None
        return savepoint

    def _own_checkpoint(
        self, checkpoint_id: int, job_id: str, store: CompletedCheckpointStore, attempt: Attempt
    ) -> CheckpointMetadata:
        kept = sorted({*attempt.head.kept})
        # One that has a _metadata and never completed is none: what its sinks prepared was aborted.
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
        raise RestoreError(f"job {job_id!r} has no checkpoint {self.path!r}; it keeps {names}")

    def assign(self, graph: JobGraph, restored: CheckpointMetadata) -> tuple[JobGraph, RestorePlan]:
        """Gives the restored state to the operators.

        Returns:
            The program with the stored max parallelisms, and the parallelism of the last rescale; and what is whose.

        Raises:
            RestoreError: The state does not fit the program.
        """
        kept = restored.properties.get(_PARALLELISM)
        if self.parallelism is None and isinstance(kept, int):
            self.parallelism = kept
            graph = graph.with_parallelism(kept)
        specs = [
            OperatorSpec(v.uid, v.parallelism, v.max_parallelism, v.max_parallelism_set, v.spec.keeps_state)
            for v in graph.vertices
        ]
        plan = assign(restored, specs, allow_non_restored_state=self.allow_non_restored_state)
        for uid in plan.skipped:
            self.progress(f"state of operator {uid!r} is left behind")
        return graph.with_max_parallelisms({u: o.max_parallelism for u, o in plan.operators.items()}), plan

    @property
    def properties(self) -> dict[str, Any]:
        """What the checkpoints of the attempt say of it."""
        return {_PARALLELISM: self.parallelism, _RESTORED_BY: self._restored_by}

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
