"""The metrics of a job in the form that Prometheus reads, with the names of Flink's ``PrometheusReporter``.

A checkpoint has counts of its epoch. Here they are counted since the attempt began, as Flink's are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.reports.job_metrics import TIMES, job_metrics
from dagster_flinkpy.metrics import user_metrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["PrometheusMetrics"]

_JOB = "flink_jobmanager_job_"
_OPERATOR = "flink_taskmanager_job_task_operator_"
_TASK = "flink_taskmanager_job_task_"
_LATENCY = "flink_taskmanager_job_latency_operator_id_operator_subtask_index_"
"""Before ``latency``. Flink's name with ``metrics.latency.granularity: single``."""

_DURATIONS = (
    "checkpointStartDelayNanos",
    "checkpointAlignmentTime",
    "checkpointSyncDuration",
    "checkpointAsyncDuration",
)
_OF_TASK = frozenset(("numBytesIn", "numBytesOut", "inPoolUsage", *TIMES, *_DURATIONS))
"""Metrics that Flink has in the scope of a task. All others have that of an operator."""
_COUNTERS = frozenset(
    (
        *("numRecordsIn", "numRecordsOut", "numBytesIn", "numBytesOut", "numLateRecordsDropped"),
        *("localStateHits", "localStateMisses"),
    )
)
_PERCENTILE = re.compile(r"(.*)\.p(\d+)")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9:_]")

Labels = tuple[tuple[str, str], ...]
Families = dict[str, dict[tuple[str, Labels], float]]
"""Values by name of the sample and labels, by name of the family."""


class PrometheusMetrics:
    """The last metrics of a job; a collector of ``prometheus_client``.

    The threads of a server call :meth:`collect`, and the master's thread calls :meth:`report`.
    """

    def __init__(self) -> None:
        self._counted: dict[tuple[str, Labels], int | float] = {}
        self._families: Families = {}

    def report(self, metadata: CheckpointMetadata, statistics: CheckpointStatistics) -> None:
        """Takes a committed checkpoint. Each one is reported once, in order."""
        metrics = job_metrics(metadata, statistics)
        job: Labels = (("job_id", metrics.job_id), ("job_name", metrics.job_id))
        found: Families = {}
        _add(found, _JOB, metrics.job, job)
        for stored, operator in zip(metadata.operators, metrics.operators, strict=True):
            task = (*job, ("task_id", operator.uid), ("task_name", operator.name))
            for subtask, measured in zip(stored.subtasks, operator.subtasks, strict=True):
                index = ("subtask_index", str(subtask.index))
                on_task = (*task, index)
                on_operator = (*task, ("operator_id", operator.uid), ("operator_name", operator.name), index)
                # Those of functions come first, so that they replace none of ours.
                self._add_user(found, subtask.metrics, on_operator)
                for name, number in measured.items():
                    value = self._count(name, on_task, number) if name in _COUNTERS else number
                    if name in _OF_TASK:
                        _add(found, _TASK, {name: value}, on_task)
                    elif name.startswith("latency."):
                        at = (*job, ("operator_id", operator.uid), ("operator_subtask_index", str(subtask.index)))
                        _add(found, _LATENCY, {name: value}, at)
                    else:
                        _add(found, _OPERATOR, {name: value}, on_operator)
        self._families = found

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics. Counters are gauges, as in Flink, and histograms are summaries."""
        from prometheus_client.core import GaugeMetricFamily, SummaryMetricFamily

        for name, samples in sorted(self._families.items()):
            summary = any(sample != name or _has_quantile(labels) for sample, labels in samples)
            family = (SummaryMetricFamily if summary else GaugeMetricFamily)(name, name)
            for (sample, labels), value in samples.items():
                family.add_sample(sample, dict(labels), value)
            yield family

    def _count(self, name: str, labels: Labels, more: int | float) -> int | float:
        total = self._counted[name, labels] = self._counted.get((name, labels), 0) + more
        return total

    def _add_user(self, found: Families, stored: Mapping[str, int | float], labels: Labels) -> None:
        values = user_metrics([stored])
        distributions = {name[: -len(".count")] for name in values if name.endswith(".count")}
        distributions &= {name[: -len(".sum")] for name in values if name.endswith(".sum")}
        for name, value in values.items():
            scope, _, part = name.rpartition(".")
            if f"user.{name}" in stored:
                value = self._count(f"user.{name}", labels, value)
            if scope not in distributions or _PERCENTILE.fullmatch(name):
                _add(found, _OPERATOR, {name: value}, labels)
            elif part in ("count", "sum"):
                family = _OPERATOR + _sanitized(scope)
                found.setdefault(family, {})[f"{family}_{part}", labels] = value


def _has_quantile(labels: Labels) -> bool:
    return any(label == "quantile" for label, _ in labels)


def _sanitized(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)


def _add(found: Families, prefix: str, values: Mapping[str, int | float], labels: Labels) -> None:
    for name, value in values.items():
        if percentile := _PERCENTILE.fullmatch(name):
            family = prefix + _sanitized(percentile[1])
            labelled = (*labels, ("quantile", str(int(percentile[2]) / 100)))
        else:
            family, labelled = prefix + _sanitized(name), labels
        found.setdefault(family, {})[family, labelled] = value
