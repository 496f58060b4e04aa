"""Reports the metrics of an attempt while it runs (Flink: ``MetricReporter``). What fails here never fails the job."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.reports.prometheus_metrics import PrometheusMetrics
from dagster_flinkpy.common.metric_options import MetricReporterOptions, PrometheusOptions, PushGatewayOptions
from dagster_flinkpy.errors import ConfigurationError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["MetricReporters"]

_PUSH_SECONDS = 10.0
"""How long a push may take, and how long the end of a run waits for the last one."""

_log = logging.getLogger(__name__)


class MetricReporters:
    """The reporters of an attempt.

    Raises:
        ConfigurationError: ``prometheus_client`` is not installed.
    """

    def __init__(
        self, options: Sequence[MetricReporterOptions], job_id: str, progress: Callable[[str], object]
    ) -> None:
        self._options, self._job_id, self._progress = tuple(options), job_id, progress
        self._metrics = PrometheusMetrics()
        self._pushing: list[_PushGatewayReporter] = []
        self._opened = ExitStack()
        if self._options:
            try:
                import prometheus_client  # noqa: F401
            except ImportError:
                raise ConfigurationError(
                    f"job {job_id!r} has a metric reporter, but prometheus_client is not installed: "
                    "pip install 'dagster-flinkpy[prometheus]'"
                ) from None

    def open(self) -> None:
        """Starts the reporters."""
        if not self._options:
            return
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._metrics)
        for each in self._options:
            if isinstance(each, PushGatewayOptions):
                self._pushing.append(pushes := _PushGatewayReporter(each, self._job_id, registry))
                self._opened.callback(pushes.close)
            else:
                self._listen(each, registry)

    def _listen(self, options: PrometheusOptions, registry: CollectorRegistry) -> None:
        """Serves the metrics at ``/metrics``: whoever asks gets the newest ones."""
        from prometheus_client import start_http_server

        for port in options.ports:
            try:
                server, thread = start_http_server(port, registry=registry)
            except OSError:
                continue  # another run listens there
            for end in (thread.join, server.server_close, server.shutdown):  # the last one first
                self._opened.callback(end)
            self._progress(f"metrics for Prometheus are at http://localhost:{server.server_port}/metrics")
            return
        tried = ", ".join(map(str, options.ports[:3])) + (", ..." if len(options.ports) > 3 else "")
        _log.warning("no metrics for Prometheus, because no port is free: %s; set a wider range of ports", tried)

    def report(self, metadata: CheckpointMetadata, statistics: CheckpointStatistics) -> None:
        """Reports a committed checkpoint."""
        if self._options:
            self._metrics.report(metadata, statistics)
            for each in self._pushing:
                each.report()

    def close(self) -> None:
        """Ends the reporters. The last push is waited for."""
        self._opened.close()


class _PushGatewayReporter:
    """Pushes the newest metrics on a thread of its own; while a push takes long, older metrics are left out."""

    def __init__(self, options: PushGatewayOptions, job_id: str, registry: CollectorRegistry) -> None:
        self._options, self._registry = options, registry
        self._name = options.job_name or job_id
        self._due: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Has True for a push, and False for the end."""
        self._failing = False
        self._thread = threading.Thread(target=self._push_when_due, name="flinkpy-metrics", daemon=True)
        self._thread.start()

    def report(self) -> None:
        self._due.put(True)

    def close(self) -> None:
        self._due.put(False)
        self._thread.join(2 * _PUSH_SECONDS)

    def _push_when_due(self) -> None:
        from prometheus_client import delete_from_gateway, push_to_gateway

        url, key = self._options.host_url, dict(self._options.grouping_key)
        due = {True}
        while False not in due:
            due = {self._due.get()}
            while not self._due.empty():
                due.add(self._due.get())
            if True in due:
                self._attempt(lambda: push_to_gateway(url, self._name, self._registry, key, _PUSH_SECONDS))
        if self._options.delete_on_shutdown:
            self._attempt(lambda: delete_from_gateway(url, self._name, key, _PUSH_SECONDS))

    def _attempt(self, request: Callable[[], None]) -> None:
        try:
            request()
            self._failing = False
        except Exception as error:  # whatever the network does; metrics never fail a job
            if not self._failing:
                _log.warning("metrics cannot be pushed to %s: %s", self._options.host_url, error)
            self._failing = True
