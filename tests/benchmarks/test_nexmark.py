"""Nexmark: what the generator makes, and the queries against DuckDB, through a kill and a change of parallelism."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import nexmark
from benchmarks.nexmark import generator, results
from benchmarks.nexmark.flink_sql import FLINK_SQL
from benchmarks.nexmark.generator import Events
from benchmarks.nexmark.peer import Peer
from benchmarks.nexmark.program import Used
from benchmarks.nexmark.queries import QUERIES, build
from benchmarks.nexmark.spark_sql import SPARK
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.spark.java import find_java_home
from tests.benchmarks.nexmark_sql import SQL
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, random_order
from tests.servers import quick_spark_java

EVENTS = Events(5_000, rate=50, start=1_436_918_400_000 - 60_000)
"""A hundred seconds around midnight."""
PER_EPOCH = 1_000


@settings(max_examples=examples(20))
@given(number=st.integers(50, 1_500), seed=st.integers(0, 2**32), rate=st.integers(1, 100_000))
def test_generator(number: int, seed: int, rate: int) -> None:
    [made] = generator.tables(Events(number, seed, rate))
    assert made == next(generator.tables(Events(number, seed, rate)))
    assert sum(map(len, made.values())) == number
    whole = number // 50
    assert [len(made[n]) - whole * share for n, share in (("person", 1), ("auction", 3), ("bid", 46))] == [
        min(max(number % 50 - before, 0), most) for before, most in ((0, 1), (1, 3), (4, 46))
    ]
    for table in made.values():
        times = table["date_time"].to_numpy()
        assert (times[1:] >= times[:-1]).all()
        assert not any(column.null_count for column in table.columns)
    people, auctions, bids = made["person"], made["auction"], made["bid"]
    assert people["id"].to_pylist() == list(range(1000, 1000 + len(people)))
    assert auctions["id"].to_pylist() == list(range(1000, 1000 + len(auctions)))
    assert pc.all(pc.greater(auctions["expires"], auctions["date_time"])).as_py()
    assert set(auctions["category"].to_pylist()) <= {10, 11, 12, 13, 14}
    for ids, most in (
        (auctions["seller"], len(people)),
        (bids["bidder"], len(people)),
        (bids["auction"], len(auctions)),
    ):
        assert not len(ids) or 1000 <= pc.min(ids).as_py() <= pc.max(ids).as_py() < 1000 + most + 10


def test_distributions() -> None:
    [made] = generator.tables(Events(100_000))
    assert {name: len(table) for name, table in made.items()} == {"person": 2_000, "auction": 6_000, "bid": 92_000}
    bids = made["bid"].slice(50_000)
    price = bids["price"].to_numpy()
    for low, high in ((1e2, 1e4), (1e4, 1e6), (1e6, 1e8)):
        assert abs(((price >= low) & (price < high)).mean() - 1 / 3) < 0.02
    assert abs((bids["auction"].to_numpy() % 100 == 0).mean() - 0.5) < 0.03
    assert abs((bids["bidder"].to_numpy() % 100 == 1).mean() - 0.75) < 0.03
    channels = bids["channel"].to_pylist()
    assert abs(sum("-" not in c for c in channels) / len(channels) - 0.5) < 0.03
    for name, mean in (("person", 200), ("auction", 500), ("bid", 100)):
        fixed = [c for c in made[name].column_names if name != "bid" or c not in ("channel", "url")]
        sizes = [
            pc.mean(pc.utf8_length(made[name][c])).as_py() if made[name][c].type == pa.string() else 8 for c in fixed
        ]
        assert abs(sum(sizes) / mean - 1) < 0.05


def test_more_events_add_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "FILE_EVENTS", 1_000)
    generator.write(tmp_path / "few", Events(1_500))
    generator.write(tmp_path / "many", Events(2_500))
    few, many = ((tmp_path / name / "bid" / "00000.parquet").read_bytes() for name in ("few", "many"))
    assert few == many
    assert len(list((tmp_path / "many").glob("*/*.parquet"))) == 9
    generator.write(tmp_path / "many", Events(2_500))
    with pytest.raises(FileExistsError, match="other events"):
        generator.write(tmp_path / "many", Events(2_501))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nexmark")
    generator.write(made, EVENTS)
    return made


def expected(name: str, folder: Path) -> pa.Table:
    import duckdb

    with duckdb.connect() as connection:
        for table in generator.TABLES:
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM '{folder}/{table}/*.parquet'")
        return connection.sql(SQL[name]).to_arrow_table()


class Killed(Exception):
    pass


class _Attempt(HarnessAttempt):
    """An attempt that may be killed after its tasks have run, before its checkpoint."""

    kill = False

    def _on_spark(self, job: Any) -> Any:
        rows = super()._on_spark(job)
        if self.kill:
            raise Killed
        return rows


@pytest.mark.parametrize("name", [name for name, query in QUERIES.items() if query.deterministic])
def test_queries_through_a_kill_and_a_rescale(name: str, folder: Path, tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    build(name, env, folder, events_per_epoch=PER_EPOCH).sink_to(ParquetSink(str(tmp_path / "out"))).uid("sink")
    graph = env.get_job_graph()
    epoch, killed, finished = 0, False, False
    while not finished:
        order = random_order(epoch)
        with _Attempt(graph, tmp_path, order=order, parallelism=3 if epoch == 3 else None) as attempt:
            if attempt.restored is not None:
                attempt.commit_restored()
            while not (finished := attempt.finished):
                attempt.kill = epoch == 1 and not killed
                try:
                    attempt.run_epoch()
                except Killed:
                    killed = True
                    break
                epoch += 1
                if epoch == 3:
                    break
    assert killed
    assert epoch >= EVENTS.number // PER_EPOCH
    assert results.differences(QUERIES[name], results.read(tmp_path / "out"), expected(name, folder)) == ""


@pytest.mark.spark
def test_spark_gives_the_same_in_several_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A join of windows, without those that are open at the end, and an aggregation in update mode."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", " ".join(quick_spark_java(find_java_home())))
    monkeypatch.setattr(generator, "FILE_EVENTS", EVENTS.number // 2)
    generator.write(tmp_path, EVENTS)
    names = ["q8", "q17"]
    for name, theirs in zip(names, SPARK.results(names, tmp_path, 2, files_per_batch=1), strict=True):
        pair = [expected(name, tmp_path), theirs]
        if name in SPARK.closed_only:
            pair = [results.before(each, SPARK.closed_only[name], EVENTS.end - nexmark.OPEN) for each in pair]
        else:
            assert len(theirs) > len(pair[0])  # of some auctions, each micro-batch tells what it has so far
        assert len(pair[0]) > 10
        assert results.differences(QUERIES[name], *pair) == ""


def test_files_of_a_micro_batch() -> None:
    assert SPARK.files_per_batch(1_000_000) == 2
    assert SPARK.files_per_batch(None) is None
    assert FLINK_SQL.files_per_batch(300_000) is None
    for events in (300_000, 750_000):
        with pytest.raises(SystemExit, match="files of 500000 events"):
            SPARK.files_per_batch(events)


def test_peers_have_the_queries() -> None:
    assert set(FLINK_SQL.sql) == set(QUERIES)
    assert set(QUERIES) - set(SPARK.sql) == {"q4", "q9", "q15", "q16", "q19"}


def test_a_query_that_a_peer_cannot_run_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "peer.py"
    program.write_text(
        "import json, sys\n"
        "for query in json.loads(sys.argv[1])['queries']:\n"
        "    assert query['sql'] == 'good'\n"
        "    print('[[1, 2], [3, 4], [5, 6]]', flush=True)\n"
    )
    sql = {"q0": "good", "q1": "bad", "q2": "good"}
    peer = Peer("peer", "Peer", program, lambda: Path(sys.executable), sql, {}, in_batches=False, bar=1)
    found = list(peer.used(list(sql), *[tmp_path] * 3, 1, None))
    assert found == [(name, Used(4, 3), Used(6, 5)) for name in ("q0", "q2")]
    assert "Peer has failed, q1 is left out" in capsys.readouterr().err


@pytest.mark.smoke
def test_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLINKPY_RUNTIME_DIR", str(tmp_path))  # the benchmark sets it
    lines = list(
        nexmark.run(query=["q1", "q3"], events=2_000, local=True, checkpoint_every=500, output=tmp_path / "out")
    )
    assert {each["metric"] for each in lines} == {
        f"nexmark.{name}_events_per_{unit}" for name in ("q1", "q3") for unit in ("s", "cpu_s")
    }
    assert list((tmp_path / "out" / "q1").glob("*.parquet"))
    with pytest.raises(SystemExit, match="unknown queries q6"):
        list(nexmark.run(query=["q6"]))
    with pytest.raises(SystemExit, match="--rescale-to needs --checkpoint-every"):
        list(nexmark.run(rescale_to=3))
