"""A function that gets the rows of each epoch at least once."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import Epoch, ForeachEpoch
from dagster_flinkpy.connectors.commit.staged_rows import StagedRows, StagedRowsWriter
from dagster_flinkpy.connectors.foreach_committer import ForeachCommitter
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import CommitRequest, Committer, CommitterInitContext, WriterInitContext
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.errors import CommittableLostError, ConfigurationError, SinkCommitError
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.runtime.master.commits.commit_retries import MAX_RETRIES
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.committing import commit_requests
from tests.connectors.postgres.test_jobs import dying
from tests.examples import examples
from tests.runtime.harness import Crash, HarnessAttempt
from tests.runtime.programs import EVENT, environment, events

ROW = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
CONTEXT = WriterInitContext("job", "sink", subtask=0, fencing_token=1, checkpoint_id=1, execution="e")


class Calls:
    """A function that keeps what it gets."""

    def __init__(self, fails: int = 0) -> None:
        self.calls: list[tuple[Epoch, list[int]]] = []
        self.fails = fails

    def __call__(self, rows: pa.Table, epoch: Epoch) -> None:
        self.calls.append((epoch, rows.column(rows.num_columns - 2).to_pylist()))
        if len(self.calls) <= self.fails:
            raise ConnectionError("not now")


def stage(sink: ForeachEpoch, *numbers: int, **changes: Any) -> CommitRequest:
    context = replace(CONTEXT, **changes)
    writer = sink.create_writer(context, ROW)
    writer.write(ROW.to_arrow([(n, str(n)) for n in numbers]))
    [committable] = json.loads(json.dumps(writer.prepare_commit()))
    return CommitRequest(context.checkpoint_id, context.subtask, committable)


def committer(sink: ForeachEpoch, token: int = 1) -> Committer:
    return sink.create_committer(CommitterInitContext("job", "sink", token, ROW))


def commit(made: Committer, *requests: CommitRequest) -> None:
    fresh = [CommitRequest(r.checkpoint_id, r.subtask, r.committable) for r in requests]
    commit_requests(made, fresh, "sink")


@pytest.fixture(params=["local", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return StorageLocation(str(tmp_path / "t")) if request.param == "local" else request.getfixturevalue("s3_location")


@pytest.mark.short("local")
def test_the_function_gets_the_rows_of_all_subtasks_with_an_id_that_stays(location: StorageLocation) -> None:
    calls = Calls()
    sink = ForeachEpoch(calls, location)
    requests = [stage(sink, 1, 2), stage(sink, 3, subtask=1)]
    first = committer(sink)
    commit(first, *requests)
    committer(sink, 2).abort_lingering(requests)
    commit(committer(sink, 2), *requests)
    assert [numbers for _, numbers in calls.calls] == [[1, 2, 3], [1, 2, 3]]
    assert len({epoch for epoch, _ in calls.calls}) == 1
    assert (calls.calls[0][0].job_id, calls.calls[0][0].checkpoint_id) == ("job", 1)
    other = stage(sink, 1, 2, execution="other")  # a job that begins anew
    commit(first, other)
    assert calls.calls[-1][0].id != calls.calls[0][0].id


def test_rows_stay_staged_until_the_next_checkpoint_is_committed(tmp_path: Path) -> None:
    sink = ForeachEpoch(Calls(), str(tmp_path))
    made = committer(sink)
    first, second = stage(sink, 1), stage(sink, 2, checkpoint_id=2)
    commit(made, first)
    assert made.lingering([second]) == 1
    commit(made, second)
    assert (made.lingering([second]), made.lingering([])) == (0, 1)
    assert made.abort_lingering([]) == 1
    with pytest.raises(CommittableLostError, match="is missing, so its 1 rows are lost"):
        commit(made, second)


def test_changed_rows_are_an_error(tmp_path: Path) -> None:
    sink = ForeachEpoch(Calls(), str(tmp_path))
    request = stage(sink, 1)
    (tmp_path / request.committable["key"]).write_bytes(b"?")
    with pytest.raises(CommittableLostError, match="was changed"):
        commit(committer(sink), request)
    request.committable = {"key": "../x"}
    with pytest.raises(SinkCommitError, match="not a committable"):
        commit(committer(sink), request)


def test_a_function_that_fails_is_called_again(tmp_path: Path) -> None:
    calls = Calls(fails=2)
    sink = ForeachEpoch(calls, str(tmp_path))
    commit(committer(sink), stage(sink, 1))
    assert len(calls.calls) == 3
    assert len({epoch.id for epoch, _ in calls.calls}) == 1
    calls.fails = 100
    with pytest.raises(SinkCommitError, match=f"after {MAX_RETRIES + 1} tries: not now"):
        commit(committer(sink), stage(sink, 1))


def test_a_partition_without_rows_is_mentioned_once(tmp_path: Path) -> None:
    calls = Calls()
    sink = ForeachEpoch(calls, str(tmp_path))
    writers = [sink.create_writer(replace(CONTEXT, subtask=i, partition="2026-01-01"), ROW) for i in (0, 1)]
    requests = [CommitRequest(1, i, c) for i, writer in enumerate(writers) for c in writer.prepare_commit()]
    commit(committer(sink), *requests)
    [(epoch, numbers)] = calls.calls
    assert (epoch.partition, numbers) == ("2026-01-01", [])


def test_arguments_are_checked(tmp_path: Path) -> None:
    for function, frame, said in ((print, "pandas", "must be one of"), ("x", "arrow", "needs a function")):
        with pytest.raises(ConfigurationError, match=said):
            ForeachEpoch(function, str(tmp_path), frame=frame)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="typed records"):
        ForeachEpoch(print, str(tmp_path)).validate(Types.PICKLED_BYTE_ARRAY())
    sink = ForeachEpoch(print, str(tmp_path), frame="spark")
    with pytest.raises(SinkCommitError, match="has no Spark session"):
        commit(committer(sink), stage(sink, 1))


STEPS: list[tuple[Any, str]] = [
    (StagedRowsWriter, "write"),
    (StagedRowsWriter, "prepare_commit"),
    (ForeachCommitter, "_call"),
    (ForeachCommitter, "_delete_before"),
    (StagedRows, "abort_lingering"),
    (LocalObjectStore, "complete_upload"),
    (LocalObjectStore, "put"),
    (LocalObjectStore, "delete_many"),
]


@settings(max_examples=examples(8))
@given(
    step=st.sampled_from(STEPS),
    when=st.sampled_from(["before", "after"]),
    numbers=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    parallelism=st.integers(1, 2),
)
def test_every_record_has_one_id_wherever_the_job_dies(
    tmp_path_factory: pytest.TempPathFactory, step: tuple[Any, str], when: str, numbers: list[int], parallelism: int
) -> None:
    folder = tmp_path_factory.mktemp("job")
    written: dict[str, list[int]] = {}

    def write(rows: pa.Table, epoch: Epoch) -> None:
        values = rows.column("value").to_pylist()
        assert written.setdefault(epoch.id, values) == values

    sink = ForeachEpoch(write, str(folder / "staged"))
    finished = False
    with dying(step, when, numbers):
        for _ in range(12):
            env = environment(parallelism)
            events(env, [("k", i, i) for i in range(9)], per_epoch=3).rebalance().sink_to(sink).uid("sink")
            try:
                with HarnessAttempt(env.get_job_graph(), folder / "job") as attempt:
                    while not attempt.finished:
                        attempt.run_epoch()
                finished = True
                break
            except Crash:
                pass
    assert finished
    assert sorted(value for values in written.values() for value in values) == list(range(9))
    sink.create_committer(CommitterInitContext("job", "sink", 2**62, EVENT)).abort_lingering([])
    assert list(sink.staging.open().list()) == []


@pytest.mark.spark
def test_a_spark_data_frame(spark: Any, tmp_path: Path) -> None:
    found: list[tuple[str, list[Any]]] = []
    sink = ForeachEpoch(
        lambda rows, epoch: found.append((epoch.id, sorted(map(tuple, rows.collect())))), str(tmp_path), frame="spark"
    )
    made = sink.create_committer(CommitterInitContext("job", "sink", 1, ROW, lambda: nullcontext(spark)))
    commit(made, stage(sink, 1, 2), stage(sink, 3, subtask=1))
    assert [rows for _, rows in found] == [[(1, "1"), (2, "2"), (3, "3")]]


@pytest.mark.spark
def test_a_job_gives_the_rows_of_each_epoch_as_a_spark_data_frame(
    tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: get_session(spark_settings))
    found: dict[str, list[Any]] = {}
    failures = ["the first call fails"]

    def write(rows: Any, epoch: Epoch) -> None:
        found[epoch.id] = sorted(map(tuple, rows.collect()))
        if failures:
            raise OSError(failures.pop())
        rows.write.mode("overwrite").parquet(str(tmp_path / "out" / epoch.id))

    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    source = CollectionSource([(i, str(i)) for i in range(6)], ROW, records_per_epoch=4)
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")
    rows.sink_to(ForeachEpoch(write, str(tmp_path / "staging"), frame="spark")).uid("sink")
    env.execute("foreach")
    assert list(found.values()) == [[(i, str(i)) for i in range(4)], [(4, "4"), (5, "5")]]
    written = [sorted(pq.read_table(tmp_path / "out" / name)["n"].to_pylist()) for name in found]
    assert written == [[0, 1, 2, 3], [4, 5]]
