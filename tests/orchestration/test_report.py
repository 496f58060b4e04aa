from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dagster import TableMetadataValue

from dagster_flinkpy.checkpoint.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.checkpoint.statistics import CheckpointStatistics, CheckpointStats, CheckpointStatus
from dagster_flinkpy.orchestration.report import operator_metadata
from tests.orchestration.programs import FakeAttempt, word_count

DONE = CheckpointStats(1, CheckpointKind.CHECKPOINT, CheckpointStatus.COMPLETED, 0, 20, 3, 3, 500, 4)
EXPIRED = CheckpointFailureReason.CHECKPOINT_EXPIRED


def records(value: object) -> list[dict[str, object]]:
    assert isinstance(value, TableMetadataValue)
    return [dict(record.data) for record in value.records]


def test_statistics_are_metadata(tmp_path: Path) -> None:
    attempt = FakeAttempt.factory()(word_count(tmp_path, ["a"]).get_job_graph(), None)  # type: ignore[arg-type]
    epoch = attempt.run_epoch()
    bare = operator_metadata(epoch, epoch.operator("count"), 7)
    assert not {"flink/statistics", "flink/history", "flink/alignment_ms"} & bare.keys()
    statistics = CheckpointStatistics()
    for checkpoint_id in range(1, 20):
        statistics.record(replace(DONE, checkpoint_id=checkpoint_id, duration_ms=checkpoint_id))
    statistics.record(replace(DONE, checkpoint_id=20, status=CheckpointStatus.FAILED, reason=EXPIRED, acknowledged=2))
    facts = operator_metadata(replace(epoch, statistics=statistics), epoch.operator("count"), 7)
    assert facts["flink/checkpoints_completed"] == 19
    assert facts["flink/checkpoints_failed"] == 1
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
    assert (history[0]["status"], history[0]["reason"], history[0]["acknowledged"]) == (
        "FAILED",
        "CHECKPOINT_EXPIRED",
        "2/3",
    )
