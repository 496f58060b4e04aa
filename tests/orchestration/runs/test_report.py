from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dagster import MarkdownMetadataValue, TableMetadataValue

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics, CheckpointStats, CheckpointStatus
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.orchestration.runs.report import operator_metadata
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle, TableSnapshot
from tests.orchestration.programs import FakeAttempt, word_count

DONE = CheckpointStats(1, CheckpointKind.CHECKPOINT, CheckpointStatus.COMPLETED, 0, 20, 3, 3, 500, 4)
EXPIRED = CheckpointFailureReason.CHECKPOINT_EXPIRED


def records(value: object) -> list[dict[str, object]]:
    assert isinstance(value, TableMetadataValue)
    return [dict(record.data) for record in value.records]


def test_skew_of_an_operator_with_keyed_state(tmp_path: Path) -> None:
    attempt = FakeAttempt.factory()(word_count(tmp_path, ["a"]).get_job_graph(), None)  # type: ignore[arg-type]
    epoch = attempt.run_epoch()
    bare = operator_metadata(epoch, epoch.operator("count"), 7, tables_of_job=True)
    assert not {"flink/skew", "flink/key_groups"} & bare.keys()
    (table,) = records(bare["flink/subtasks"])[:1]
    assert (table["keys"], table["skew"]) == (3, 2.0), "the other subtask has none"

    groups, counts = KeyGroupRange(0, 7), (1, 3, -2, 1)
    run = RunHandle(sha256="0" * 64, rows=4, key_groups=groups, rows_per_key_group=counts, data=b"123456789")
    states = [KeyedSnapshot(KeyGroupRange(*r), ()) for r in ((0, 7), (8, 15))]
    states[0] = replace(states[0], tables=(TableSnapshot("count", "VALUE", {}, None, None, {}, (run,)),))
    subtasks = tuple(SubtaskState(i, keyed=keyed) for i, keyed in enumerate(states))
    operator = OperatorState("count", "Count", 2, 16, subtasks=subtasks)
    epoch = replace(epoch, metadata=replace(epoch.metadata, operators=(operator,)))
    facts = operator_metadata(epoch, epoch.operator("count"), 7, tables_of_job=True)
    assert facts["flink/skew"] == 2.0
    assert isinstance(facts["flink/key_groups"], MarkdownMetadataValue)
    assert "Highest: 3 rows, 12.0 times the mean" in facts["flink/key_groups"].md_str


def test_rows_of_a_partition(tmp_path: Path) -> None:
    attempt = FakeAttempt.factory()(word_count(tmp_path, ["a"]).get_job_graph(), None)  # type: ignore[arg-type]
    epoch = attempt.run_epoch()
    assert "dagster/partition_row_count" not in operator_metadata(epoch, epoch.operator("table"), 7, tables_of_job=True)
    epoch = replace(epoch, metadata=replace(epoch.metadata, partition="2024-01-01"))
    assert operator_metadata(epoch, epoch.operator("table"), 7, tables_of_job=True)["dagster/partition_row_count"] == 6
    assert "dagster/partition_row_count" not in operator_metadata(epoch, epoch.operator("count"), 7, tables_of_job=True)


def test_statistics_are_metadata(tmp_path: Path) -> None:
    attempt = FakeAttempt.factory()(word_count(tmp_path, ["a"]).get_job_graph(), None)  # type: ignore[arg-type]
    epoch = attempt.run_epoch()
    bare = operator_metadata(epoch, epoch.operator("count"), 7, tables_of_job=True)
    assert not {"flink/statistics", "flink/history", "flink/alignment_ms"} & bare.keys()
    statistics = CheckpointStatistics()
    for checkpoint_id in range(1, 20):
        at = {"trigger_ms": 1_709_251_200_000 + 1000 * checkpoint_id, "state_bytes": 100 * checkpoint_id}
        statistics.record(replace(DONE, checkpoint_id=checkpoint_id, duration_ms=checkpoint_id, **at))
    statistics.record(replace(DONE, checkpoint_id=20, status=CheckpointStatus.FAILED, reason=EXPIRED, acknowledged=2))
    facts = operator_metadata(replace(epoch, statistics=statistics), epoch.operator("count"), 7, tables_of_job=True)
    assert facts["flink/checkpoints_completed"] == 19
    assert facts["flink/checkpoints_failed"] == 1
    assert facts["flink/restarts"] == 0
    statistics.record_restarts(2, 1)
    restarted = operator_metadata(replace(epoch, statistics=statistics), epoch.operator("count"), 7, tables_of_job=True)
    assert restarted["flink/restarts"] == 2
    assert facts["flink/alignment_ms"] == 4
    assert records(facts["flink/statistics"])[0] == {
        "of": "duration_ms",
        "last": 19,
        "min": 1,
        "p50": 10,
        "p99": 19,
        "max": 19,
    }
    history = records(facts["flink/history"])
    assert [row["checkpoint"] for row in history] == list(range(20, 10, -1))
    assert history[1] == {
        "checkpoint": 19,
        "kind": "checkpoint",
        "triggered": "2024-03-01 00:00:19",
        "status": "COMPLETED",
        "reason": "",
        "duration_ms": 19,
        "state_bytes": 1900,
        "growth_bytes": 100,
        "start_delay_ms": 0,
        "alignment_ms": 4,
        "acknowledged": "3/3",
    }
    assert (facts["flink/job_state_bytes"], facts["flink/job_state_growth_bytes"]) == (1900, 100)
    assert history[0]["growth_bytes"] is None, "it did not complete"
    assert (history[0]["status"], history[0]["reason"], history[0]["acknowledged"]) == (
        "FAILED",
        "CHECKPOINT_EXPIRED",
        "2/3",
    )


def test_metrics_are_numbers_that_the_page_plots_and_a_table_of_all(tmp_path: Path) -> None:
    attempt = FakeAttempt.factory()(word_count(tmp_path, ["a"]).get_job_graph(), None)  # type: ignore[arg-type]
    epoch = attempt.run_epoch()
    counted = {
        "records_in": 6,
        "bytes_in": 480,
        "bytes_out": 0,
        "busy_us": 700,
        "idle_us": 200,
        "back_pressured_us": 100,
    }
    subtasks = tuple(SubtaskState(i, watermark=50, metrics={**counted, "watermark_lag_ms": 9 * i}) for i in range(2))
    operator = OperatorState("count", "Count", 2, 16, subtasks=subtasks)
    epoch = replace(epoch, metadata=replace(epoch.metadata, operators=(operator,)))
    facts = operator_metadata(epoch, epoch.operator("count"), 7, tables_of_job=True)
    assert {name: facts[f"flink/{name}"] for name in ("bytes_in", "bytes_out", "watermark_lag_ms")} == {
        "bytes_in": 960,
        "bytes_out": 0,
        "watermark_lag_ms": 9,
    }
    assert (facts["flink/busy_ms_per_second"], facts["flink/back_pressured_ms_per_second"]) == (700, 100)
    assert "flink/records_in_flight" not in facts
    output = {"edge": "e", "segments": [{"rows": 3, "bytes": 9}, {"rows": 4, "bytes": 9}]}
    overtaken = replace(epoch.metadata, operators=(replace(operator, in_flight=(output,)),))
    of_edges = operator_metadata(replace(epoch, metadata=overtaken), epoch.operator("count"), 7, tables_of_job=True)
    assert [of_edges[f"flink/{of}_in_flight"] for of in ("segments", "records", "bytes")] == [2, 7, 18]
    (row, _) = records(facts["flink/subtasks"])
    assert (row["bytes_in"], row["busy_ms_per_second"], row["idle_ms_per_second"]) == (480, 700, 200)
    table = {(row["of"], row["metric"]): row["value"] for row in records(facts["flink/metrics"])}
    assert table["operator", "idleTimeMsPerSecond"] == 200
    assert table["operator", "currentOutputWatermark"] == 50
    assert table["job", "lastCompletedCheckpointId"] == epoch.checkpoint_id
