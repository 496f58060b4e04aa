"""What an operator's asset says about it, as typed metadata in the namespace ``flink``."""

from __future__ import annotations

from dagster import (
    MarkdownMetadataValue,
    PathMetadataValue,
    TableMetadataValue,
    TextMetadataValue,
    TimestampMetadataValue,
    UrlMetadataValue,
)
from dagster._core.definitions.metadata.metadata_set import NamespacedMetadataSet

__all__ = ["FlinkCheckpointMetadataSet", "FlinkMetadataSet"]


class FlinkMetadataSet(NamespacedMetadataSet):
    """Of the definition: how the operator is declared."""

    job_id: str | None = None
    uid: str | None = None
    kind: str | None = None
    parallelism: int | None = None
    max_parallelism: int | None = None
    checkpoint_interval_ms: int | None = None
    """What ``env.enable_checkpointing`` asked for."""

    @classmethod
    def namespace(cls) -> str:
        return "flink"


class FlinkCheckpointMetadataSet(NamespacedMetadataSet):
    """Of a materialization: what a completed checkpoint holds of the operator. Numbers are plotted by the UI."""

    checkpoint_id: int | None = None
    attempt: int | None = None
    """Fencing token of the execution attempt."""
    parallelism: int | None = None
    records_in: int | None = None
    records_out: int | None = None
    rows_committed: int | None = None
    """Sinks only."""
    key_count: int | None = None
    state_bytes: int | None = None
    delta_bytes: int | None = None
    """What the checkpoint added to the state."""
    skew: float | None = None
    """Rows of keyed state in the largest subtask, over the mean: 1.0 is even."""
    key_groups: MarkdownMetadataValue | None = None
    """A picture of the rows of keyed state by key group."""
    watermark: TimestampMetadataValue | TextMetadataValue | None = None
    """Text where it is no time: before the first record and after the last."""
    duration_ms: int | None = None
    """Of the whole checkpoint, from its trigger to its commits."""
    checkpoints_completed: int | None = None
    """Of the job, over all its runs, as are the next four."""
    checkpoints_failed: int | None = None
    job_state_bytes: int | None = None
    job_state_growth_bytes: int | None = None
    """Since the completed checkpoint before."""
    alignment_ms: int | None = None
    """The longest that a gate waited for its last barrier."""
    subtasks: TableMetadataValue | None = None
    """Of the operator, each with its range of key groups."""
    statistics: TableMetadataValue | None = None
    """Last, least, p50, p99 and greatest duration, state size and alignment of its last 100 completed checkpoints."""
    history: TableMetadataValue | None = None
    """Its last checkpoints and what became of them."""
    checkpoint_metadata: PathMetadataValue | UrlMetadataValue | None = None
    """Where ``_metadata`` is."""
    savepoint: PathMetadataValue | UrlMetadataValue | None = None
    """Where the savepoint is that was taken or restored."""

    @classmethod
    def namespace(cls) -> str:
        return "flink"
