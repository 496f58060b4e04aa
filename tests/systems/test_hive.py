"""The Iceberg sink on a real Hive Metastore, whose locks its client takes for each commit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_flinkpy.connectors import IcebergSink, IcebergSource
from dagster_flinkpy.connectors.iceberg.committer import IcebergCommitter
from dagster_flinkpy.errors import CommitRefusedError
from tests import servers
from tests.committing import commit_requests
from tests.connectors.iceberg.test_sink import commit, committer, opened, rows, stage
from tests.connectors.postgres.test_jobs import dying
from tests.runtime.harness import Crash, HarnessAttempt
from tests.runtime.programs import environment, events


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with servers.hive_metastore(tmp_path_factory.mktemp("metastore")) as uri:
        yield {"type": "hive", "uri": uri}


def test_checkpoints_are_committed_once_and_read_back(metastore: dict[str, str], tmp_path: Path) -> None:
    sink = IcebergSink("db.once", str(tmp_path / "t"), properties=metastore, partition_by=["s"])
    first, second = stage(sink, 1), stage(sink, 2, checkpoint_id=2)
    committer(sink).abort_lingering([first, second])
    assert commit(sink, first) == 0
    assert commit(sink, first, second, token=2) == 1
    assert (rows(sink), len(opened(sink).snapshots())) == ([1, 2], 2)
    source = IcebergSource("db.once", str(tmp_path / "t"), properties=metastore)
    [splits] = source.create_enumerator(None).plan_epoch(1)
    assert sorted(n for s in splits for c, _ in source.read(s) for n in c.field("n").to_pylist()) == [1, 2]


def test_writers_at_the_same_time_lose_nothing(metastore: dict[str, str], tmp_path: Path) -> None:
    sink = IcebergSink("db.shared", str(tmp_path / "t"), properties=metastore)
    committer(sink).abort_lingering([request := stage(sink, 0)])
    commit(sink, request)

    def somebody(number: int) -> None:
        for each in range(2):
            append = pa.table({"n": [100 * number + each], "s": ["x"]})
            opened(sink).append(append)

    with ThreadPoolExecutor(2) as pool:
        theirs = pool.submit(somebody, 1)
        for checkpoint_id in range(2, 5):
            commit(sink, stage(sink, checkpoint_id, checkpoint_id=checkpoint_id))
        theirs.result()
    assert rows(sink) == [0, 2, 3, 4, 100, 101]


def test_a_table_that_was_made_anew_is_refused(metastore: dict[str, str], tmp_path: Path) -> None:
    sink = IcebergSink("db.anew", str(tmp_path / "t"), properties=metastore)
    running = committer(sink)
    running.abort_lingering([request := stage(sink, 1)])
    table = opened(sink)
    catalog, schema = table.catalog, table.schema()
    catalog.drop_table("db.anew")
    catalog.create_table("db.anew", schema, location=str(tmp_path / "elsewhere"))
    with pytest.raises(CommitRefusedError):
        commit_requests(running, [request], "sink", wait=pytest.fail)


def test_a_job_that_dies_amid_a_commit_goes_on(metastore: dict[str, str], tmp_path: Path) -> None:
    sink = IcebergSink("db.job", str(tmp_path / "t"), properties=metastore)
    died = 0
    for numbers in ([2], []):
        env = environment(2)
        events(env, [("k", i, i) for i in range(9)], per_epoch=3).rebalance().sink_to(sink).uid("sink")
        with dying((IcebergCommitter, "_swap"), "after", numbers), suppress(Crash):
            with HarnessAttempt(env.get_job_graph(), tmp_path / "job") as attempt:
                while not attempt.finished:
                    attempt.run_epoch()
            continue
        died += 1
    assert died == 1
    assert sorted(opened(sink).scan().to_arrow().column("value").to_pylist()) == list(range(9))
