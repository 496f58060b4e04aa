"""Reports completed checkpoints in Dagster: log lines, metadata and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from dagster import (
    DataVersion,
    MarkdownMetadataValue,
    MetadataValue,
    PathMetadataValue,
    TableMetadataValue,
    TextMetadataValue,
    TimestampMetadataValue,
    UrlMetadataValue,
)

from dagster_flinkpy.checkpoint.reports.in_flight import in_flight
from dagster_flinkpy.checkpoint.reports.skew import rows_by_key_group, skew
from dagster_flinkpy.datastream.connectors.base import SourceLag
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.key_groups import compute_key_group_range_for_operator_index
from dagster_flinkpy.orchestration.dagster_internals import TableMetadataSet
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.job_assets import JobAssets, is_internal
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet
from dagster_flinkpy.orchestration.tables import shown_time, table

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics
    from dagster_flinkpy.checkpoint.operator_states import OperatorState
    from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch, OperatorReport, SubtaskReport
    from dagster_flinkpy.checkpoint.reports.job_metrics import OperatorMetrics

__all__ = [
    "END_OF_INPUT",
    "asset_metadata",
    "checkpoint_line",
    "data_version",
    "operator_metadata",
    "place",
    "skew_chart",
    "watermark",
]

END_OF_INPUT = "end of input"
"""The watermark after the last record."""

_HISTORY_SHOWN = 10
_BY_SUBTASK = {
    "bytes_in": "numBytesIn",
    "bytes_out": "numBytesOut",
    "busy_ms_per_second": "busyTimeMsPerSecond",
    "idle_ms_per_second": "idleTimeMsPerSecond",
    "back_pressured_ms_per_second": "backPressuredTimeMsPerSecond",
}
_END_OF_TIME = 2**63 - 1  # Flink: Watermark.MAX_WATERMARK
_MOST_BARS = 64
_MOST_LINES = 16
_BAR, _HEIGHT = 6, 48  # pixels


def checkpoint_line(job: FlinkJob, epoch: CompletedEpoch) -> str:
    """Describes a checkpoint in one line."""
    read = sum(epoch.operator(v.uid).records_out for v in job.graph.sources)
    committed = sum(report.rows_committed or 0 for report in epoch.operators)
    written = sum(report.delta_bytes for report in epoch.operators)
    dropped = sum(report.late_records_dropped or 0 for report in epoch.operators)
    late = f", {dropped:,} late records dropped" if dropped else ""
    return (
        f"Checkpoint {epoch.checkpoint_id} of job {job.job_id} completed in {epoch.duration_ms} ms: "
        f"{read:,} records read, {committed:,} rows committed, {written:,} bytes of state written{late}."
    )


def asset_metadata(epoch: CompletedEpoch, assets: JobAssets, uid: str, attempt: int) -> dict[str, Any]:
    """Returns the metadata of an asset in a checkpoint: of its operator, and of the hidden ones that it shows.

    Tables of the whole job are in the first asset only: Dagster stores each event several times, and keeps it as long
    as its run.

    Hidden operators are a table, ``flink/operators``. The numbers of those with a uid are entries ``{uid}/...`` as
    well, because the page plots numbers only; and so are the metrics of the functions of all of them.

    Args:
        epoch: The checkpoint.
        assets: The job's assets.
        uid: Uid of the asset's operator.
        attempt: Fencing token of the attempt.
    """
    facts = operator_metadata(epoch, epoch.operator(uid), attempt, tables_of_job=uid == assets.first)
    hidden = [vertex for vertex in assets.hidden[uid] if not is_internal(vertex)]
    for vertex in hidden:
        report = epoch.operator(vertex.uid)
        numbers = {**(_numbers(vertex, report) if vertex.uid_set else {}), **report.user_metrics}
        facts = {**{f"{vertex.uid}/{name}": n for name, n in numbers.items() if n is not None}, **facts}
    if hidden:
        facts |= dict(FlinkCheckpointMetadataSet(operators=_operator_table(epoch, hidden)))
    return facts


def operator_metadata(
    epoch: CompletedEpoch, report: OperatorReport, attempt: int, *, tables_of_job: bool
) -> dict[str, Any]:
    """Returns the metadata of an operator in a checkpoint. The metrics of user functions keep their own names.

    Args:
        epoch: The checkpoint.
        report: What the operator did in it.
        attempt: Fencing token of the attempt.
        tables_of_job: Whether the metrics, the statistics and the history of the whole job are in it, too.
    """
    from dagster_flinkpy.checkpoint.reports.job_metrics import operator_metrics

    state = epoch.metadata.operator(report.uid)
    metrics = operator_metrics(state) if state else None
    numbers: Mapping[str, int | float] = metrics.total if metrics else {}
    lag = (SourceLag.from_position(state.coordinator_state) if state else None) or SourceLag()
    waiting = in_flight(epoch.metadata)
    facts = FlinkCheckpointMetadataSet(
        checkpoint_id=epoch.checkpoint_id,
        checkpoint_metadata=place(epoch.metadata_path),
        attempt=attempt,
        parallelism=state.parallelism if state else None,
        records_in=report.records_in,
        records_out=report.records_out,
        bytes_in=_whole(numbers, "numBytesIn"),
        bytes_out=_whole(numbers, "numBytesOut"),
        busy_ms_per_second=_whole(numbers, "busyTimeMsPerSecond"),
        back_pressured_ms_per_second=_whole(numbers, "backPressuredTimeMsPerSecond"),
        watermark_lag_ms=_whole(numbers, "watermarkLag"),
        unread_files=lag.files,
        unread_bytes=lag.bytes,
        unread_records=lag.records,
        unread_versions=lag.versions,
        unread_milliseconds=lag.milliseconds,
        metrics=_metrics_table(metrics.total, epoch.metrics.job if tables_of_job else {}) if metrics else None,
        rows_committed=report.rows_committed,
        late_records_dropped=report.late_records_dropped,
        key_count=report.keys,
        state_bytes=report.state_bytes,
        delta_bytes=report.delta_bytes,
        skew=_skew(state) if state else None,
        key_groups=_key_groups(state) if state else None,
        watermark=watermark(report.watermark),
        duration_ms=epoch.duration_ms,
        subtasks=_subtask_table(report.subtasks, metrics),
        source_to_commit_ms_p50=_whole(epoch.metrics.job, "sourceToCommitLatency.p50"),
        source_to_commit_ms_p99=_whole(epoch.metrics.job, "sourceToCommitLatency.p99"),
        restarts=epoch.statistics.counts.restarts,
        checkpoints_completed=epoch.statistics.counts.completed or None,
        checkpoints_failed=epoch.statistics.counts.failed,
        job_state_bytes=_last(epoch.statistics, "state_bytes"),
        job_state_growth_bytes=_last_growth(epoch.statistics),
        segments_in_flight=sum(each.segments for each in waiting) if waiting else None,
        records_in_flight=sum(each.records for each in waiting) if waiting else None,
        bytes_in_flight=sum(each.bytes for each in waiting) if waiting else None,
        start_delay_ms=_last(epoch.statistics, "start_delay_ms"),
        alignment_ms=_last(epoch.statistics, "alignment_ms"),
        statistics=_summary_table(epoch.statistics) if tables_of_job else None,
        history=_history_table(epoch.statistics) if tables_of_job else None,
    )
    # The rows of a partition are those of its last epoch, because its older files are replaced.
    rows = None if epoch.metadata.partition is None else report.rows_committed
    return {**report.user_metrics, **dict(facts), **TableMetadataSet(partition_row_count=rows)}


def data_version(epoch: CompletedEpoch) -> DataVersion:
    """Returns the data version, from which Dagster derives whether an asset is stale."""
    return DataVersion(f"{epoch.checkpoint_id}-{epoch.digest[:12]}")


def place(url: str) -> PathMetadataValue | UrlMetadataValue:
    """Returns the metadata value of a file or folder: a path if it is local, otherwise a URL."""
    parts = urlsplit(url)
    return MetadataValue.url(url) if parts.scheme not in ("", "file") else MetadataValue.path(unquote(parts.path))


def watermark(milliseconds: int | None) -> TimestampMetadataValue | TextMetadataValue | None:
    """Returns the metadata value of a watermark: a time if it is one, otherwise a text."""
    if milliseconds is None:
        return None
    if milliseconds == _END_OF_TIME:
        return MetadataValue.text(END_OF_INPUT)
    try:
        return MetadataValue.timestamp(milliseconds / 1000)
    except (OverflowError, ValueError):
        return MetadataValue.text(f"{milliseconds} ms")


def _numbers(vertex: JobVertex, report: OperatorReport) -> dict[str, int | None]:
    """The numbers of a hidden operator. They have the names that they have in the metadata of an operator's asset."""
    numbers = {"records_in": report.records_in, "records_out": report.records_out}
    state = {"key_count": report.keys, "state_bytes": report.state_bytes, "delta_bytes": report.delta_bytes}
    return {
        **numbers,
        "late_records_dropped": report.late_records_dropped,
        **(state if vertex.spec.keeps_state else {}),
    }


def _operator_table(epoch: CompletedEpoch, vertices: Sequence[JobVertex]) -> TableMetadataValue:
    kinds = {"operator": "string", "kind": "string", "parallelism": "int", "records_in": "int", "records_out": "int"}
    kinds |= dict.fromkeys(("late_records_dropped", "key_count", "state_bytes", "delta_bytes"), "int")
    rows = []
    for vertex in vertices:
        report = epoch.operator(vertex.uid)
        about = (vertex.uid if vertex.uid_set else vertex.name, vertex.spec.kind, len(report.subtasks))
        numbers = _numbers(vertex, report)
        rows.append((*about, *(numbers.get(name) for name in list(kinds)[len(about) :])))
    return table(kinds, rows)


def _last(statistics: CheckpointStatistics, number: str) -> int | None:
    summary = statistics.summary(number)
    return None if summary is None else summary.last


def _last_growth(statistics: CheckpointStatistics) -> int | None:
    return next((growth for _, growth in reversed(statistics.with_growth()) if growth is not None), None)


def _summary_table(statistics: CheckpointStatistics) -> TableMetadataValue | None:
    """Returns a summary of the last 100 completed checkpoints, or None before the first one."""
    rows = [
        (number, s.last, s.minimum, s.p50, s.p99, s.maximum)
        for number in ("duration_ms", "state_bytes", "start_delay_ms", "alignment_ms")
        if (s := statistics.summary(number)) is not None
    ]
    kinds = {"of": "string", **dict.fromkeys(("last", "min", "p50", "p99", "max"), "int")}
    return table(kinds, rows) if rows else None


def _skew(state: OperatorState) -> float | None:
    found = skew([subtask.keyed.rows for subtask in state.subtasks if subtask.keyed])
    return None if found is None else round(found, 2)


def _key_groups(state: OperatorState) -> MarkdownMetadataValue | None:
    rows = rows_by_key_group(state)
    return MetadataValue.md(skew_chart(rows, state.parallelism)) if any(rows) else None


def _history_table(statistics: CheckpointStatistics) -> TableMetadataValue | None:
    """Returns a table of the last checkpoints, newest first, or None if there are none."""
    rows = [
        (
            *(s.checkpoint_id, s.status.value, shown_time(s.trigger_ms)),
            *(s.duration_ms, s.state_bytes, growth, s.start_delay_ms, s.alignment_ms),
            *(f"{s.acknowledged}/{s.tasks}", s.kind.value, s.reason.name if s.reason else ""),
        )
        for s, growth in reversed(statistics.with_growth()[-_HISTORY_SHOWN:])
    ]
    numbers = ("duration_ms", "state_bytes", "growth_bytes", "start_delay_ms", "alignment_ms")
    kinds = {"checkpoint": "int", "status": "string", "triggered": "string", **dict.fromkeys(numbers, "int")}
    kinds |= dict.fromkeys(("acknowledged", "kind", "reason"), "string")
    return table(kinds, rows) if rows else None


def _whole(numbers: Mapping[str, int | float], name: str) -> int | None:
    return int(numbers[name]) if name in numbers else None


def _metrics_table(operator: Mapping[str, int | float], job: Mapping[str, int | float]) -> TableMetadataValue:
    scopes = {"operator": operator, "job": job}
    rows = ((name, scope, float(value)) for scope, values in scopes.items() for name, value in values.items())
    return table({"metric": "string", "of": "string", "value": "float"}, rows)


def _subtask_table(subtasks: Sequence[SubtaskReport], metrics: OperatorMetrics | None) -> TableMetadataValue:
    kinds = {"subtask": "int", "key_groups": "string", "keys": "int", "skew": "float"}
    kinds |= dict.fromkeys(("state_bytes", "delta_bytes", "records_in", "records_out"), "int")
    measured = metrics.subtasks if metrics and metrics.subtasks else ({},) * len(subtasks)
    kinds |= {name: "int" for name, flink in _BY_SUBTASK.items() if any(flink in each for each in measured)}
    has_late = any(s.late_records_dropped is not None for s in subtasks)
    kinds |= {"late_records_dropped": "int"} if has_late else {}
    own = dict.fromkeys(name for s in subtasks for name in s.user_metrics if name not in kinds)
    mean = sum(s.keys for s in subtasks) / len(subtasks) if subtasks else 0
    rows = [
        (
            *(s.index, "-" if s.key_groups is None else f"{s.key_groups[0]}..{s.key_groups[1]}"),
            *(s.keys, round(s.keys / mean, 2) if mean else None),
            *(s.state_bytes, s.delta_bytes, s.records_in, s.records_out),
            *(numbers.get(flink) for name, flink in _BY_SUBTASK.items() if name in kinds),
            *([s.late_records_dropped] if has_late else []),
            *(s.user_metrics.get(name) for name in own),
        )
        for s, numbers in zip(subtasks, measured, strict=True)
    ]
    return table(kinds | dict.fromkeys(own, "float"), rows)


def skew_chart(rows: Sequence[int], parallelism: int) -> str:
    """Draws the rows by key group as Markdown.

    Args:
        rows: Number of rows of each key group; at least one is not 0.
        parallelism: Number of subtasks that share the key groups. Up to 16 are separated by lines.
    """
    width = -(-len(rows) // _MOST_BARS)
    bars = [sum(rows[start : start + width]) for start in range(0, len(rows), width)]
    most, mean = max(bars), sum(bars) / len(bars)
    svg = _svg(bars, _edges(len(rows), width, parallelism))
    image = f"![Rows by key group](data:image/svg+xml,{quote(svg, safe=chr(39) + '/:=,-')})"
    groups = f"{width} key groups" if width > 1 else "one key group"
    highest = f"Highest: {most:,} rows, {most / mean:.1f} times the mean."
    return f"{image}\n\nEach bar is {groups}; lines separate subtasks.\n\n{highest}"


def _edges(key_groups: int, width: int, parallelism: int) -> list[int]:
    """Returns the pixels at which the next subtask begins."""
    if parallelism > _MOST_LINES:
        return []
    ranges = (compute_key_group_range_for_operator_index(key_groups, parallelism, i) for i in range(1, parallelism))
    return [each.start * _BAR // width for each in ranges]


def _svg(bars: Sequence[int], edges: Sequence[int]) -> str:
    """Draws the bars as one outline, which takes fewer characters than a rectangle for each."""
    most, at, steps = max(bars), 0, []
    for bar in bars:
        height = -(-bar * _HEIGHT // most)  # rounded up, so that every bar that is not empty is visible
        steps.append(f"v{at - height}h{_BAR}" if height != at else f"h{_BAR}")
        at = height
    lines = "".join(f"M{edge},0v{_HEIGHT}" for edge in edges)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{len(bars) * _BAR}' height='{_HEIGHT}'>"
        f"<path fill='teal' d='M0,{_HEIGHT}{''.join(steps)}V{_HEIGHT}z'/><path stroke='red' d='M0,0{lines}'/></svg>"
    )
