"""What a failed Spark job is reported as. Spark is faked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from dagster_flinkpy.errors import CheckpointError, ConfigurationError, ExecutorLostError, FlinkPyError, StorageError
from dagster_flinkpy.runtime.failure import error_to_json
from dagster_flinkpy.runtime.master.deployments.region_job import run_region
from dagster_flinkpy.spark import sessions
from dagster_flinkpy.spark.server_state import ServerLog
from tests.runtime.harness import collect_graph, make_job
from tests.runtime.programs import environment, events


class FailingSpark:
    """A session whose every Spark job fails."""

    def __init__(self, message: str) -> None:
        self._message = message

    def range(self, *args: Any, **options: Any) -> FailingSpark:
        return self

    mapInArrow = range

    def toArrow(self) -> Any:
        raise PySparkException(self._message)


def failure(spark: FailingSpark, folder: Path) -> Exception:
    graph = collect_graph(events(environment(1), [("a", 1, 0)]).map(lambda value: value).uid("same"))
    with pytest.raises(FlinkPyError) as raised:
        list(run_region(spark, make_job(graph, folder)))  # type: ignore[arg-type]
    return raised.value


def test_the_end_of_sparks_log_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "spark-1.log"
    log.write_text("ERROR TaskSetManager: Task 0 failed\njava.lang.OutOfMemoryError: Java heap space\n")
    monkeypatch.setattr(sessions, "server_log", lambda session: ServerLog(log))
    error = failure(FailingSpark("[INTERNAL_ERROR] Java heap space"), tmp_path)
    assert isinstance(error, CheckpointError)
    assert "[INTERNAL_ERROR] Java heap space" in str(error)
    assert "ERROR TaskSetManager: Task 0 failed" in str(error)
    assert "spark.driver.memory" in str(error)
    told = f"dagster_flinkpy.runtime.failure.TaskError: {error_to_json(StorageError('no bucket')).decode()}"
    ours = failure(FailingSpark(told), tmp_path)
    assert isinstance(ours, StorageError), "an error of ours says all there is to say"
    assert str(ours) == "no bucket"


@pytest.mark.parametrize(
    "reason",
    [
        "Sent message larger than max (240086114 vs. 134217728)",
        "gRPC message exceeds maximum size 134217728: 240086114",
    ],
)
def test_a_program_that_is_too_large_for_a_message_is_not_tried_again(tmp_path: Path, reason: str) -> None:
    error = failure(FailingSpark(f"status = StatusCode.RESOURCE_EXHAUSTED, details = {reason}"), tmp_path)
    assert isinstance(error, ConfigurationError)
    assert "Read large data from files" in str(error) and "240086114" in str(error)


@pytest.mark.parametrize(
    "reason",
    [
        "Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in stage 1.0 (TID 9) (10.0.0.4 executor"
        " 7): ExecutorLostFailure (executor 7 exited caused by one of the running tasks) Reason: worker lost",
        "ShuffleMapStage 2 (toArrow) has failed the maximum allowable number of times: 4. Most recent failure reason:\n"
        "org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location for shuffle 0 partition 1",
        "A shuffle map stage with indeterminate output was failed and retried. However, Spark cannot rollback the "
        "ResultStage 3 to re-process the input data, and has to fail this job.",
    ],
)
def test_a_lost_executor_has_an_error_of_its_own(tmp_path: Path, reason: str) -> None:
    error = failure(FailingSpark(f"Job aborted due to stage failure: {reason}"), tmp_path)
    assert isinstance(error, ExecutorLostError)
    assert "because Spark lost an executor: Job aborted" in str(error)
    other = failure(FailingSpark("Job aborted due to stage failure: Total size of results is too big"), tmp_path)
    assert type(other) is CheckpointError


def test_of_a_spark_elsewhere_there_is_no_log(tmp_path: Path) -> None:
    error = failure(FailingSpark("a task failed\n\nfor good"), tmp_path)
    assert str(error).endswith("failed: a task failed\nfor good")
