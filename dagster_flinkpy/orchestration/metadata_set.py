"""Typed metadata of operators' assets, in the namespace ``flink``."""

from __future__ import annotations

from dagster import (
    MarkdownMetadataValue,
    PathMetadataValue,
    TableMetadataValue,
    TextMetadataValue,
    TimestampMetadataValue,
    UrlMetadataValue,
)

from dagster_flinkpy.orchestration.dagster_internals import NamespacedMetadataSet

__all__ = ["FlinkCheckpointMetadataSet", "FlinkMetadataSet"]


class FlinkMetadataSet(NamespacedMetadataSet):
    """Metadata of an asset's definition: how the operator is declared."""

    job_id: str | None = None
    uid: str | None = None
    kind: str | None = None
    parallelism: int | None = None
    max_parallelism: int | None = None
    checkpoint_interval_ms: int | None = None
    """Set with ``env.enable_checkpointing``."""
    checkpoint_min_pause_ms: int | None = None
    """Set with ``set_min_pause_between_checkpoints``; None if it is 0."""
    record_type: str | None = None
    """Tables of sinks: the declared type of the records, as JSON. `FlinkTableIOManager` reads it, and the next two."""
    table_format: str | None = None
    """``parquet`` or ``delta``."""
    partition_column: str | None = None
    """Delta Lake: the column that has the Dagster partition."""

    @classmethod
    def namespace(cls) -> str:
        return "flink"


class FlinkCheckpointMetadataSet(NamespacedMetadataSet):
    """Metadata of a materialization: the operator's part of a completed checkpoint. The UI plots the numbers."""

    checkpoint_id: int | None = None
    attempt: int | None = None
    """Fencing token of the execution attempt."""
    parallelism: int | None = None
    records_in: int | None = None
    records_out: int | None = None
    bytes_in: int | None = None
    """Encoded records that came through a shuffle. Operators that are chained to the one in front of them have none."""
    bytes_out: int | None = None
    busy_ms_per_second: int | None = None
    """How long the operator's own code ran, per second of its tasks' time. 1000 is all the time."""
    back_pressured_ms_per_second: int | None = None
    """How long it waited, per second, until its output was taken."""
    watermark_lag_ms: int | None = None
    """How far its event time was behind the clock at the barrier."""
    unread_files: int | None = None
    """Sources: input that exists and that no epoch has read, if the source counts it. As the next four."""
    unread_bytes: int | None = None
    unread_records: int | None = None
    unread_versions: int | None = None
    """Versions of a table, or materializations of an asset."""
    unread_milliseconds: int | None = None
    """How long ago the last record that was read had arrived, if later ones were left."""
    metrics: TableMetadataValue | None = None
    """All metrics of the operator and of the job, by Flink's names."""
    rows_committed: int | None = None
    """Sinks only."""
    table_files: int | None = None
    """Tables of jobs without partitions: the number of files whose rows are ``dagster/row_count``."""
    table_digest: str | None = None
    """Digest of these files. If they are unchanged, only later files are read to count the rows again."""
    late_records_dropped: int | None = None
    """Windows only: records that came too late for any window, in the epochs since the event before."""
    late_rows: TableMetadataValue | None = None
    """Observations of tables: rows that a checkpoint has committed behind the watermark, by event time in UTC."""
    late_rows_checkpoint: int | None = None
    """That checkpoint."""
    key_count: int | None = None
    state_bytes: int | None = None
    delta_bytes: int | None = None
    """Bytes that the checkpoint added to the state."""
    skew: float | None = None
    """Rows of keyed state in the largest subtask, divided by the mean. 1.0 is even."""
    key_groups: MarkdownMetadataValue | None = None
    """A chart of the rows of keyed state by key group."""
    watermark: TimestampMetadataValue | TextMetadataValue | None = None
    """A time; or a text before the first record and after the last one."""
    duration_ms: int | None = None
    """Duration of the whole checkpoint, from its trigger to its commits."""
    source_to_commit_ms_p50: int | None = None
    """Time from a source to the commit, if the program sends latency markers: the median."""
    source_to_commit_ms_p99: int | None = None
    restarts: int | None = None
    """How often the job, or a region of it, has restarted inside runs."""
    checkpoints_completed: int | None = None
    """This and the next four count the whole job over all its runs."""
    checkpoints_failed: int | None = None
    job_state_bytes: int | None = None
    job_state_growth_bytes: int | None = None
    """Growth since the previous completed checkpoint."""
    segments_in_flight: int | None = None
    """Unaligned checkpoints: the segments of the job's blocking edges that the checkpoint names. As the next two."""
    records_in_flight: int | None = None
    bytes_in_flight: int | None = None
    start_delay_ms: int | None = None
    """The longest time from the trigger of the checkpoint until a task saw its barrier."""
    alignment_ms: int | None = None
    """The longest time that an input gate waited for its last barrier."""
    subtasks: TableMetadataValue | None = None
    """The operator's subtasks, each with its range of key groups."""
    operators: TableMetadataValue | None = None
    """The hidden operators whose numbers the asset shows."""
    statistics: TableMetadataValue | None = None
    """Numbers of the last 100 completed checkpoints: last, min, p50, p99 and max."""
    history: TableMetadataValue | None = None
    """The job's last checkpoints and their outcome."""
    execution: TableMetadataValue | None = None
    """The job's operators at the end of a run: region, states, attempts. They are CANCELED if the job can go on."""
    checkpoint_metadata: PathMetadataValue | UrlMetadataValue | None = None
    """Path of ``_metadata``."""
    savepoint: PathMetadataValue | UrlMetadataValue | None = None
    """Path of the savepoint that was taken or restored."""

    @classmethod
    def namespace(cls) -> str:
        return "flink"
