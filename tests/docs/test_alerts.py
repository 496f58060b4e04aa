"""The alerts of the page arrive at a webhook."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetKey,
    AssetSpec,
    DagsterEventType,
    DagsterInstance,
    Definitions,
    FreshnessPolicy,
    asset,
    asset_check,
    build_run_status_sensor_context,
    evaluate_automation_conditions,
    job,
    op,
)
from dagster._core.definitions.freshness import FreshnessState, FreshnessStateChange

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource, flink_assets
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.docs.test_snippets import PAGES, snippets_of
from tests.runtime.harness import run_rows


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What has been posted to a webhook."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WEBHOOK_URL", f"http://127.0.0.1:{server.server_port}/hook")
        yield received
        server.shutdown()


@pytest.fixture
def page() -> dict[str, Any]:
    """The names that the page defines."""
    names: dict[str, Any] = {}
    for snippet in snippets_of(PAGES["how-to/alerts"].read_text()):
        exec(compile(snippet.code, "alerts.py", "exec"), names)
    return names


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


def no_price(word: str) -> str:
    raise ValueError(f"no price of {word}")


def program() -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(["tea"], Types.STRING()).uid("words").map(no_price, Types.STRING()).uid("prices").print()
    return env


def test_a_failed_run_is_told_with_the_operator(
    page: dict[str, Any],
    messages: list[str],
    instance: DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job))
    resources = {"spark": SparkResource(), "checkpoint_storage": CheckpointStorageResource(url=str(tmp_path))}
    failing = Definitions(flink_assets(program, name="shop"), resources=resources)
    ran = failing.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance, raise_on_error=False)
    (event,) = [event for event in ran.all_events if event.is_run_failure]
    context = build_run_status_sensor_context("alerts", event, instance, ran.dagster_run)
    page["tell_of_failed_runs"](context.for_run_failure())
    (message,) = messages
    assert message.startswith(f"Run {ran.run_id[:8]} of __ASSET_JOB: step shop failed: error='UserFunctionError'")
    assert "operator='prices'" in message
    assert "no price of tea" in message


def test_a_hook_tells_in_the_run(page: dict[str, Any], messages: list[str], instance: DagsterInstance) -> None:
    @op
    def failing() -> None:
        raise ValueError("no price")

    @job(hooks={page["tell_of_failed_step"]})
    def hooked() -> None:
        failing()

    hooked.execute_in_process(instance=instance, raise_on_error=False)
    assert messages == ["Step failing failed: no price"]


def test_failed_checks_are_told_and_others_are_not(
    page: dict[str, Any], messages: list[str], instance: DagsterInstance
) -> None:
    @asset
    def table() -> None: ...

    @asset_check(asset=table)
    def lag() -> AssetCheckResult:
        return AssetCheckResult(passed=False, severity=AssetCheckSeverity.WARN, description="The last is 2 h old.")

    @asset_check(asset=table)
    def event_time() -> AssetCheckResult:
        return AssetCheckResult(passed=True)

    defs = Definitions([table], asset_checks=[lag, event_time])
    ran = defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    (event,) = [event for event in ran.all_events if event.event_type == DagsterEventType.RUN_SUCCESS]
    page["tell_of_failed_checks"](build_run_status_sensor_context("alerts", event, instance, ran.dagster_run))
    assert messages == ["WARN lag of table: The last is 2 h old."]


def test_a_stale_table_is_told_once_each_time(
    page: dict[str, Any], messages: list[str], instance: DagsterInstance
) -> None:
    table, hourly = AssetKey(["words", "counts_table"]), FreshnessPolicy.time_window(timedelta(hours=1))
    defs, cursor, before = (
        Definitions([page["tell_of_stale_table"], AssetSpec(table, freshness_policy=hourly)]),
        None,
        FreshnessState.UNKNOWN,
    )
    told = []
    for at, state in enumerate(
        [FreshnessState.PASS, FreshnessState.FAIL, None, FreshnessState.PASS, FreshnessState.FAIL]
    ):
        if state is not None:  # as Dagster's freshness daemon records it
            instance._report_runless_asset_event(
                FreshnessStateChange(
                    key=table, new_state=state, previous_state=before, state_change_timestamp=float(at)
                )
            )
            before = state
        evaluated = evaluate_automation_conditions(defs, instance, cursor=cursor)
        cursor = evaluated.cursor
        told.append(evaluated.total_requested)
    assert told == [0, 1, 0, 0, 1]
    defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    assert messages == ["words/counts_table has got no rows within its fail_window"]
