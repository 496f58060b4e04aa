"""Asset checks on checkpoints from the harness. The tests damage the files."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    DagsterInstance,
    DagsterRunStatus,
    Definitions,
    Failure,
    define_asset_job,
)
from dagster._core.test_utils import create_run_for_test

from dagster_flinkpy.checkpoint import verify
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream import CoProcessFunction, KeyedProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import SourceLag
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import ConfigurationError, StorageError
from dagster_flinkpy.orchestration import CheckpointStorageResource, FlinkAssetChecks, flink_assets
from dagster_flinkpy.orchestration.dagster_internals import SENSOR_NAME_TAG
from dagster_flinkpy.orchestration.definitions import checks
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.orchestration.programs import Count, word_count
from tests.runtime.harness import run_rows, spark_order
from tests.runtime.programs import EVENT, environment, events

WORDS = [hashlib.md5(str(i).encode()).hexdigest() for i in range(9000)]
COUNT = AssetKey(["words", "count"])
TABLE = AssetKey(["words", "table"])


class Deployment:
    """A word count that has run, and its checks."""

    def __init__(self, folder: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        self.folder, self.instance, self.resources = folder, instance, resources
        self.state = folder / "checkpoints" / "words"

    def env(self) -> StreamExecutionEnvironment:
        return word_count(self.folder / "table", WORDS, per_epoch=4000)

    def run(self, epochs: int = 1, **options: Any) -> None:
        job = Definitions(flink_assets(self.env(), name="words"), resources=self.resources)
        config = {"ops": {"words": {"config": {"epochs": epochs, **options}}}}
        assert job.resolve_implicit_global_asset_job_def().execute_in_process(config, self.instance).success

    def check(
        self, name: str, *, tags: Mapping[str, str] | None = None, **options: Any
    ) -> dict[AssetKey, AssetCheckEvaluation]:
        assets = flink_assets(self.env(), name="words", checks=FlinkAssetChecks(**options))
        mine = [key for each in assets for key in each.check_keys if key.name == name]
        definitions = Definitions(
            assets,
            resources=self.resources,
            jobs=[define_asset_job("chosen", AssetSelection.checks(*mine))],
        )
        result = definitions.resolve_job_def("chosen").execute_in_process(instance=self.instance, tags=tags)
        return {evaluation.asset_key: evaluation for evaluation in result.get_asset_check_evaluations()}

    def failed_check(self, name: str) -> Failure:
        """Runs a check whose step fails, and returns the failure."""
        with pytest.raises(Failure) as raised:
            self.check(name)
        return raised.value

    def files(self) -> list[Path]:
        return sorted((self.state / "shared").glob("*.parquet"))


@pytest.fixture
def deployment(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Deployment:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))
    return Deployment(tmp_path, instance, resources)


def damage_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def test_before_the_first_checkpoint_there_is_nothing_to_check(deployment: Deployment) -> None:
    found = deployment.check("snapshot_integrity")
    assert found[COUNT].passed
    assert found[COUNT].description == "There is no completed checkpoint yet."


def test_whole_state_passes(deployment: Deployment) -> None:
    deployment.run(2)
    assert deployment.files(), "too large to be part of the metadata"
    integrity = deployment.check("snapshot_integrity")
    assert set(integrity) == {COUNT}
    assert integrity[COUNT].passed
    assert integrity[COUNT].metadata["files"].value >= 2
    drill = deployment.check("restore_drill")[COUNT]
    assert drill.passed
    assert (drill.metadata["rows"].value, drill.metadata["parallelism"].value) == (8000, 3)


@pytest.mark.parametrize(
    ("damage", "says"),
    [(Path.unlink, "is missing"), (damage_bit, "is damaged"), (lambda f: f.write_bytes(b""), "is damaged")],
    ids=["missing", "bit", "empty"],
)
def test_a_damaged_file_is_named(deployment: Deployment, damage: Callable[[Path], Any], says: str) -> None:
    deployment.run()
    broken = deployment.files()[0]
    damage(broken)
    integrity = deployment.check("snapshot_integrity")[COUNT]
    assert not integrity.passed
    assert integrity.severity == AssetCheckSeverity.ERROR
    assert broken.name in (integrity.description or "")
    assert says in (integrity.description or "")
    drill = deployment.check("restore_drill")[COUNT]
    assert not drill.passed
    assert broken.name in (drill.description or "")


def test_damaged_metadata_is_a_finding(deployment: Deployment) -> None:
    deployment.run()
    (metadata,) = deployment.state.glob("chk-*/_metadata")
    metadata.write_bytes(b"no metadata")
    integrity = deployment.check("snapshot_integrity")[COUNT]
    assert not integrity.passed
    assert "_metadata" in (integrity.description or "")


@pytest.mark.system
@pytest.mark.parametrize(
    "check", ["snapshot_integrity", "restore_drill", "lag", "state_evolution", "lingering_transactions"]
)
def test_a_head_that_was_lost_is_a_finding(deployment: Deployment, check: str) -> None:
    deployment.run()
    (deployment.state / "HEAD").unlink()
    for found in deployment.check(check).values():
        assert not found.passed
        assert "HEAD" in (found.description or "")


@pytest.mark.system
def test_a_checkpoint_that_is_replaced_while_it_is_read_is_no_finding(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new run replaces the checkpoint and deletes its files after the check has listed them."""
    deployment.resources["checkpoint_storage"] = CheckpointStorageResource(
        url=str(deployment.state.parent), num_retained=1
    )
    deployment.run()
    first = set(deployment.files())
    real, runs, seen = verify.verify_checkpoint, iter([1]), list[bool]()

    def slow(metadata: CheckpointMetadata, store: ObjectStore) -> verify.VerifyResult:
        for epochs in runs:
            deployment.run(epochs, start_empty=True, parallelism=3)
        found = real(metadata, store)
        seen.append(not found.problems)
        return found

    monkeypatch.setattr(verify, "verify_checkpoint", slow)
    found = deployment.check("snapshot_integrity")[COUNT]
    assert not first & set(deployment.files())
    assert seen == [False, True]
    assert found.passed
    assert found.metadata["flink/checkpoint_id"].value == 2


def test_checkpoints_that_come_quicker_than_they_are_read(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.run()
    ids = iter(range(1, 100))
    known = CompletedCheckpointStore(StorageLocation(str(deployment.state)).open()).latest()
    assert known is not None
    monkeypatch.setattr(
        CompletedCheckpointStore,
        "latest",
        lambda self: replace(known, checkpoint_id=next(ids)),
    )
    monkeypatch.setattr(
        verify, "verify_checkpoint", lambda metadata, store: verify.VerifyResult(1, 0, ("a is missing",))
    )
    found = deployment.check("snapshot_integrity")[COUNT]
    assert not found.passed
    assert found.severity == AssetCheckSeverity.WARN
    assert "[1, 2, 3, 4, 5] were each replaced" in (found.description or "")


@pytest.mark.system
@pytest.mark.parametrize("check", ["snapshot_integrity", "restore_drill", "lag"])
def test_a_store_that_fails_is_no_finding_but_a_failure_that_says_what_to_do(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    deployment.run()

    def fails(self: LocalObjectStore, *_: object, **__: object) -> Any:
        raise StorageError("GET s3://b/words: 503 SlowDown")

    for call in ("get", "get_range", "head"):
        monkeypatch.setattr(LocalObjectStore, call, fails)
    failure = deployment.failed_check(check)
    assert str(failure.description).startswith(
        "GET s3://b/words: 503 SlowDown - This says nothing about the checkpoint."
    )
    assert "Run the check again" in str(failure.description)
    assert failure.metadata["error"].value == "StorageError"


@pytest.mark.parametrize(
    ("large", "tags", "left_out"),
    [
        (1, {SENSOR_NAME_TAG: "words_checkpoint_sensor"}, {"snapshot_integrity", "restore_drill"}),
        (1 << 28, {SENSOR_NAME_TAG: "words_checkpoint_sensor"}, set()),
        (1, {}, set()),
    ],
    ids=["large", "small", "by hand"],
)
def test_a_run_of_a_sensor_does_not_read_all_of_a_large_state(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, large: int, tags: dict[str, str], left_out: set[str]
) -> None:
    monkeypatch.setattr(checks, "LARGE_STATE", large)
    assets = flink_assets(deployment.env(), name="words", checks=FlinkAssetChecks())
    job = Definitions(assets, resources=deployment.resources).resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=deployment.instance, tags=tags)
    done = {evaluation.check_name for evaluation in result.get_asset_check_evaluations()}
    said = {entry.user_message for entry in deployment.instance.all_logs(result.run_id)}
    assert {key.name for each in assets for key in each.check_keys} - done == left_out
    assert {name for name in left_out if any(f"Left out {name} of words/count" in line for line in said)} == left_out


@pytest.mark.system
@pytest.mark.parametrize("check", ["snapshot_integrity", "restore_drill"])
def test_a_check_that_a_sensor_asks_for_alone_reads_a_large_state(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    deployment.run()
    monkeypatch.setattr(checks, "LARGE_STATE", 1)
    assert deployment.check(check, tags={SENSOR_NAME_TAG: "daily"})[COUNT].passed


def test_lag(deployment: Deployment) -> None:
    deployment.run()
    assert deployment.check("lag")[TABLE].passed
    assert deployment.check("lag", max_lag=timedelta(days=1))[TABLE].passed
    late = deployment.check("lag", max_lag=timedelta(0))[TABLE]
    assert not late.passed
    assert "The last checkpoint is" in (late.description or "")
    deployment.run(2)
    ended = deployment.check("lag", max_lag=timedelta(0))[TABLE]
    assert ended.passed, "there is no input left to be late with"


@pytest.mark.system
def test_a_job_whose_runs_have_all_failed_lags(deployment: Deployment) -> None:
    late = {"max_lag": timedelta(0)}
    assert deployment.check("lag", **late)[TABLE].passed, "it has never run"
    create_run_for_test(deployment.instance, tags={JOB_TAG: "words"}, status=DagsterRunStatus.FAILURE)
    found = deployment.check("lag", **late)[TABLE]
    assert not found.passed
    assert "There is no completed checkpoint yet, 0:00:0" in (found.description or "")
    assert deployment.check("lag", max_lag=timedelta(hours=1))[TABLE].passed
    assert deployment.check("lag")[TABLE].passed
    deployment.run()
    assert not deployment.check("lag", **late)[TABLE].passed
    assert deployment.check("lag", max_lag=timedelta(hours=1))[TABLE].passed


def test_lingering_transactions(deployment: Deployment) -> None:
    deployment.run()
    assert deployment.check("lingering_transactions")[TABLE].passed
    store = StorageLocation(str(deployment.folder / "table")).open()
    store.create_upload("words.table.0000000009.00000.1-dead.parquet")
    store.create_upload("others.table.0000000009.00000.1-dead.parquet")
    found = deployment.check("lingering_transactions")[TABLE]
    assert not found.passed
    assert found.severity == AssetCheckSeverity.WARN
    assert found.metadata["transactions"].value == 1
    deployment.run()
    assert deployment.check("lingering_transactions")[TABLE].passed


def test_transactions_linger_without_a_checkpoint_too(deployment: Deployment) -> None:
    store = StorageLocation(str(deployment.folder / "table")).open()
    store.create_upload("words.table.0000000001.00000.1-dead.parquet")
    found = deployment.check("lingering_transactions")[TABLE]
    assert not found.passed
    assert found.metadata["transactions"].value == 1


def test_trend(deployment: Deployment) -> None:
    deployment.run()
    for duration in (100, 110, 90, 105, 95, 100, 120):
        facts = {"flink/duration_ms": duration, "flink/delta_bytes": 1000}
        deployment.instance.report_runless_asset_event(AssetMaterialization(COUNT, metadata=facts))
    assert deployment.check("checkpoint_trend", trend_factor=1.5)[COUNT].passed
    facts = {"flink/duration_ms": 100, "flink/delta_bytes": 4000}
    deployment.instance.report_runless_asset_event(AssetMaterialization(COUNT, metadata=facts))
    found = deployment.check("checkpoint_trend")[COUNT]
    assert not found.passed
    assert found.severity == AssetCheckSeverity.WARN
    assert "delta_bytes 4,000 bytes, median of 8 before 1,000" in (found.description or "")


def test_few_checkpoints_are_no_trend(deployment: Deployment) -> None:
    deployment.run()
    assert deployment.check("checkpoint_trend")[COUNT].passed


@pytest.mark.parametrize(
    "limit",
    [
        {"trend_factor": 1},
        {"trend_factor": float("nan")},
        {"max_lag": timedelta(-1)},
        {"max_event_time_lag": timedelta(-1)},
    ],
    ids=str,
)
def test_a_limit_that_no_job_keeps_is_refused(limit: Any) -> None:
    [name] = limit
    with pytest.raises(ConfigurationError, match=f"^{name}="):
        FlinkAssetChecks(**limit)


def test_evolution_of_the_same_program(deployment: Deployment) -> None:
    deployment.run()
    found = deployment.check("state_evolution")[COUNT]
    assert found.passed
    assert found.metadata["changes"].value == "none"


def test_evolution_of_an_operator_whose_code_changed(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.run()
    monkeypatch.setattr(Count, "factor", 2, raising=False)
    found = deployment.check("state_evolution")[COUNT]
    assert (found.passed, found.severity) == (False, AssetCheckSeverity.WARN)
    assert "function: the code or the settings of Count changed; its state is kept" in (found.description or "")
    deployment.run()
    assert deployment.check("state_evolution")[COUNT].passed, "the checkpoint is of the new code"


def test_evolution_of_a_program_that_would_be_refused(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.run()
    latest = CompletedCheckpointStore(StorageLocation(str(deployment.state)).open()).latest()
    assert latest is not None
    gone = replace(latest, operators=(*latest.operators, replace(latest.operators[1], uid="gone")))
    monkeypatch.setattr(CompletedCheckpointStore, "latest", lambda self: gone)
    found = deployment.check("state_evolution")[COUNT]
    assert (found.passed, found.severity) == (False, AssetCheckSeverity.ERROR)
    assert "The next run will be refused" in (found.description or "")
    assert "has state for operator 'gone'" in (found.description or "")


def test_the_lag_of_a_source_is_a_number_and_a_check(deployment: Deployment, instance: DagsterInstance) -> None:
    deployment.run()
    source = AssetKey(["words", "words"])
    event = instance.get_latest_materialization_event(source)
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["flink/unread_records"].value == 5000
    assert deployment.check("source_lag")[source].passed
    late = deployment.check("source_lag", max_unread_records=4999)[source]
    assert not late.passed
    assert "5,000 records left to read" in str(late.description)
    assert late.metadata["unread_records"].value == 5000
    deployment.run(epochs=2)
    assert deployment.check("source_lag", max_unread_records=0)[source].passed
    with pytest.raises(ConfigurationError, match="max_unread_bytes=-1"):
        FlinkAssetChecks(max_unread_bytes=-1)
    with pytest.raises(ConfigurationError, match=r"FlinkAssetChecks\(max_lag=...\) needs a timedelta, .* not 60"):
        FlinkAssetChecks(max_lag=60)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", [each.name for each in fields(SourceLag)])
def test_each_lag_that_a_source_can_tell_has_a_limit(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    deployment.run()
    latest = CompletedCheckpointStore(StorageLocation(str(deployment.state)).open()).latest()
    assert latest is not None
    behind = [
        replace(each, coordinator_state={"lag": {what: 2}} if each.uid == "words" else each.coordinator_state)
        for each in latest.operators
    ]
    monkeypatch.setattr(CompletedCheckpointStore, "latest", lambda self: replace(latest, operators=tuple(behind)))
    source, limit = AssetKey(["words", "words"]), f"max_unread_{what}"
    assert deployment.check("source_lag", **{limit: 2})[source].passed
    assert not deployment.check("source_lag", **{limit: 1})[source].passed


class Either(CoProcessFunction):
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Any:
        yield value

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> None: ...


@pytest.mark.system
@pytest.mark.parametrize("ends", [False, True])
def test_what_holds_event_time_back_is_named(ends: bool, deployment: Deployment) -> None:
    def joined() -> StreamExecutionEnvironment:
        env = environment(2)
        orders = events(env, [("a", i * 1000, i) for i in range(8)], per_epoch=4)
        records, silent = [("a", 0, i) for i in range(2 if ends else 8)], WatermarkStrategy.no_watermarks()
        dimension = events(env, records, uid="dimension", per_epoch=4, strategy=silent)
        both = orders.connect(dimension).process(Either(), EVENT).uid("both")
        both.key_by("key").window(TumblingEventTimeWindows(2000)).reduce(lambda a, b: a).uid("windows")
        return env

    deployment.env = joined  # type: ignore[method-assign]
    deployment.run()
    found = deployment.check("event_time")
    both, windows = found[AssetKey(["words", "both"])], found[AssetKey(["words", "windows"])]
    assert both.metadata["watermark of dimension"].value == ("its end" if ends else "none")
    assert both.metadata["watermark of events"].value != "none"
    assert [both.passed, windows.passed] == [ends, ends]
    if not ends:
        assert "the other inputs wait for 'dimension', which gives no watermarks." in str(both.description)
        assert re.search("'dimension', which gives no watermarks, with [1-9] rows in state", str(windows.description))


@pytest.mark.system
def test_a_source_that_has_read_nothing_yet_beside_a_static_input_is_no_fault(deployment: Deployment) -> None:
    def joined() -> StreamExecutionEnvironment:
        env = environment(2)
        by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("time")
        source = ParquetSource(str(deployment.folder / "events"), row_type=EVENT)
        orders = env.from_source(source, by_time, "events").uid("events")
        dimension = events(env, [("a", 0, 1)], uid="dimension", strategy=WatermarkStrategy.no_watermarks()).static()
        orders.connect(dimension).process(Either(), EVENT).uid("both")
        return env

    (deployment.folder / "events").mkdir()
    deployment.env = joined  # type: ignore[method-assign]
    deployment.run()
    found = deployment.check("event_time")[AssetKey(["words", "both"])]
    assert (found.passed, found.description) == (True, "There is no event time yet.")


class Waits(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(1000)


def test_windows_and_timers_that_no_source_gives_event_time_are_named(
    deployment: Deployment, instance: DagsterInstance
) -> None:
    def program() -> StreamExecutionEnvironment:
        env = environment(2)
        silent = WatermarkStrategy.no_watermarks().with_timestamp_assigner("time")
        source = ParquetSource(str(deployment.folder / "events"), row_type=EVENT)
        keyed = env.from_source(source, silent, "events").uid("events").key_by("key")
        keyed.window(TumblingEventTimeWindows(2000)).reduce(lambda a, b: a).uid("windows")
        keyed.process(Waits()).uid("timers")
        return env

    (deployment.folder / "events").mkdir()
    table = pa.table({"key": ["a", "a"], "time": [0, 1000], "value": [1, 2]})
    pq.write_table(table, deployment.folder / "events" / "1.parquet")
    deployment.env = program  # type: ignore[method-assign]
    deployment.run()
    found = deployment.check("event_time")
    windows, timers = found[AssetKey(["words", "windows"])], found[AssetKey(["words", "timers"])]
    assert not windows.passed
    assert "source 'events' gives no watermarks and does not end" in str(windows.description)
    assert not timers.passed
    assert "1 event-time timers of 'timers' never fire, because 'events' gives no" in str(timers.description)
    logged = [entry for run in instance.get_runs() for entry in instance.all_logs(run.run_id)]
    warned = [entry.user_message for entry in logged if entry.level == logging.WARNING]
    assert any("windows and timers of 'windows' never fire" in message for message in warned)
