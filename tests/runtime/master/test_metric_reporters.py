"""Reporters with the real ``prometheus_client``, on this machine."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.reports.prometheus_metrics import PrometheusMetrics
from dagster_flinkpy.common.metric_options import PrometheusOptions, PushGatewayOptions
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import MapFunction, RuntimeContext
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.master.metric_reporters import MetricReporters, _PushGatewayReporter
from tests.checkpoint.samples import metadata as sample
from tests.runtime.harness import HarnessAttempt, collect_graph
from tests.runtime.programs import environment, events

ON_TASK = "flink_taskmanager_job_task_"
ON_OPERATOR = "flink_taskmanager_job_task_operator_"


class Measured(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        group = runtime_context.get_metrics_group().add_group("my-group")
        self.seen, self.values = group.counter("seen"), group.distribution("values")
        group.gauge("last", lambda: self.last)

    def map(self, value: Any) -> Any:
        self.seen.inc()
        self.values.update(value.value)
        self.last = value.value
        return value.key


def measured() -> JobGraph:
    records = [(f"k{i % 3}", i, i) for i in range(20)]
    stream = events(environment(2), records, per_epoch=10).rebalance().map(Measured(), Types.STRING())
    return collect_graph(stream.uid("measured"))


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(text: str, name: str, **labels: str) -> float:
    found = [value for (sample, has), value in parsed(text).items() if sample == name and labels.items() <= has]
    assert found, f"there is no {name} with {labels} in\n{text}"
    return sum(found)


def read(lines: list[str]) -> str:
    (url,) = (line.rpartition(" ")[2] for line in lines if "metrics for Prometheus are at" in line)
    with urlopen(url) as answer:
        return answer.read().decode()


def test_prometheus_reads_a_running_job(tmp_path: Path) -> None:
    lines: list[str] = []
    config = {
        "metric_reporters": (PrometheusOptions((0,)),),
        "latency_tracking_interval": timedelta(milliseconds=1),
    }
    with HarnessAttempt(measured(), tmp_path, config=config, on_progress=lines.append) as attempt:
        assert parsed(read(lines)) == {}, "no checkpoint is complete"
        attempt.run_epoch()
        first = read(lines)
        attempt.run_epoch()
        second = read(lines)
    job = {"job_id": "job"}
    assert total(first, "flink_jobmanager_job_numberOfCompletedCheckpoints", **job) == 1
    assert total(second, "flink_jobmanager_job_numberOfCompletedCheckpoints", **job) == 2
    assert total(second, "flink_jobmanager_job_sourceToCommitLatency", quantile="0.99") >= 0
    for text, records in ((first, 10), (second, 20)):
        assert total(text, f"{ON_OPERATOR}numRecordsOut", operator_id="events") == records
        assert total(text, f"{ON_OPERATOR}numRecordsIn", operator_id="measured") == records
        assert total(text, f"{ON_OPERATOR}my_group_seen", operator_id="measured") == records
        assert total(text, f"{ON_OPERATOR}my_group_values_count", operator_id="measured") == records
        assert total(text, f"{ON_OPERATOR}my_group_values_sum") == sum(range(records))
        for subtask in ("0", "1"):
            times = (f"{ON_TASK}{name}TimeMsPerSecond" for name in ("busy", "idle", "backPressured"))
            labels = {"task_id": "measured", "task_name": "Map", "subtask_index": subtask}
            assert sum(total(text, name, **labels) for name in times) == 1000
            latency = "flink_taskmanager_job_latency_operator_id_operator_subtask_index_latency"
            assert total(text, latency, operator_id="collect", operator_subtask_index=subtask, quantile="0.5") >= 0
    assert total(second, f"{ON_TASK}numBytesOut", task_id="events") > total(first, f"{ON_TASK}numBytesIn")
    with pytest.raises(OSError):
        read(lines)


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_two_runs_on_a_machine_listen_on_two_ports(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    with taken_port() as port:
        reporters = MetricReporters([PrometheusOptions((port, 0))], "job", lines.append)
        reporters.open()
        reporters.report(sample(), CheckpointStatistics())
        assert total(read(lines), f"{ON_OPERATOR}numRecordsIn", operator_id="count") == 10
        reporters.close()
        none = MetricReporters([PrometheusOptions((port,))], "job", lines.append)
        none.open()
        none.report(sample(), CheckpointStatistics())
        none.close()
    assert f"no metrics for Prometheus, because no port is free: {port}" in caplog.messages[-1]


class Gateway(ThreadingHTTPServer):
    """Takes requests as a Pushgateway does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, str, str]] = []
        self.refuses = False
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Gateway:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def _take(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.server.requests.append((self.command, self.path, body))
        self.send_response(500 if self.server.refuses else 202)
        self.end_headers()

    do_PUT = do_POST = do_DELETE = _take

    def log_message(self, *_: object) -> None:
        pass


def test_a_short_run_pushes_its_metrics(tmp_path: Path) -> None:
    with Gateway() as gateway:
        config = {"metric_reporters": (PushGatewayOptions(gateway.url, grouping_key=(("team", "shop"),)),)}
        with HarnessAttempt(measured(), tmp_path, config=config) as attempt:
            attempt.run_epoch()
            attempt.run_epoch()
        with HarnessAttempt(measured(), tmp_path, config=config):
            pass  # it has nothing to report, and leaves what the last run has pushed
    assert {(method, path) for method, path, _ in gateway.requests} == {("PUT", "/metrics/job/job/team/shop")}
    last = gateway.requests[-1][2]
    assert total(last, f"{ON_OPERATOR}numRecordsIn", operator_id="measured") == 20
    assert len(gateway.requests) <= 2


def test_metrics_can_be_deleted_when_the_run_ends() -> None:
    with Gateway() as gateway:
        options = PushGatewayOptions(gateway.url, "orders", delete_on_shutdown=True)
        reporters = MetricReporters([options], "job", lambda line: None)
        reporters.open()
        reporters.report(sample(), CheckpointStatistics())
        reporters.close()
    assert [request[:2] for request in gateway.requests] == [
        ("PUT", "/metrics/job/orders"),
        ("DELETE", "/metrics/job/orders"),
    ]


def test_a_gateway_that_is_away_is_reported_and_fails_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Gateway() as gateway:
        gateway.refuses = True
        config = {"metric_reporters": (PushGatewayOptions(gateway.url),)}
        with HarnessAttempt(measured(), tmp_path, config=config) as attempt:
            attempt.run_epoch()
            attempt.run_epoch()
            assert attempt.finished
    (told,) = caplog.messages
    assert told.startswith("metrics cannot be pushed to http://127.0.0.1")


def test_the_last_report_is_pushed_whenever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report may come at any moment of the thread that pushes. Each push takes what is reported then."""
    pushed: list[int] = []
    reports = 0
    monkeypatch.setattr("prometheus_client.push_to_gateway", lambda *args: pushed.append(reports))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(150):
            reporter = _PushGatewayReporter(PushGatewayOptions("http://localhost:1"), "job", None)  # type: ignore[arg-type]
            for _ in range(number % 7):
                reports += 1
                reporter.report()
            reporter.close()
            assert not number % 7 or pushed[-1] == reports
    finally:
        sys.setswitchinterval(interval)


def test_a_report_during_a_push_is_pushed_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[str] = []
    begun, goes_on = threading.Event(), threading.Event()

    def push(*args: object) -> None:
        pushed.append(newest)
        begun.set()
        goes_on.wait()

    monkeypatch.setattr("prometheus_client.push_to_gateway", push)
    reporter = _PushGatewayReporter(PushGatewayOptions("http://localhost:1"), "job", None)  # type: ignore[arg-type]
    newest = "first"
    reporter.report()
    begun.wait()
    newest = "second"
    reporter.report()
    newest = "third"
    reporter.report()
    goes_on.set()
    reporter.close()
    assert pushed == ["first", "third"]


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert MetricReporters([], "job", print) is not None
    with pytest.raises(ConfigurationError, match=r"pip install 'dagster-flinkpy\[prometheus\]'"):
        MetricReporters([PrometheusOptions()], "job", print)


def test_names_that_are_the_same_to_prometheus_are_one_and_none_hides_ours() -> None:
    metrics = {"records_in": 5, "user.numRecordsIn": 7, "user.a-b": 1, "user.a.b": 2, "user.odd.count": 3}
    operator = OperatorState("count", "Count", 1, 8, subtasks=(SubtaskState(0, metrics=metrics),))
    collector = PrometheusMetrics()
    collector.report(replace(sample(), operators=(operator,)), CheckpointStatistics())
    families = list(collector.collect())
    assert len({family.name for family in families}) == len(families)
    values = {each.name: each.value for family in families for each in family.samples}
    assert values[f"{ON_OPERATOR}numRecordsIn"] == 5
    assert values[f"{ON_OPERATOR}a_b"] in (1, 2)
    assert values[f"{ON_OPERATOR}odd_count"] == 3, "a counter of that name, not a histogram"
