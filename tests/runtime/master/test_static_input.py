"""Static inputs: read at once, before other input, and again only when they have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Duration, TimestampAssigner, Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream import (
    BroadcastProcessFunction,
    KeyedCoProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.number_seq import NumberSequenceSource
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.datastream.data_stream import DataStream
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.program.partitioned_program import check_partitioned
from dagster_flinkpy.datastream.state import MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, JobGraphError
from dagster_flinkpy.orchestration.sensors.waiting_input import WaitingInput
from dagster_flinkpy.runtime.master.epochs.split_planner import create_enumerator
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from tests.examples import examples
from tests.runtime.harness import (
    HarnessAttempt,
    collect_graph,
    collected,
    make_job,
    random_order,
    run_job,
    run_rows,
    spark_order,
)

PAIR = Types.TUPLE([Types.LONG(), Types.STRING()])
NAMES = MapStateDescriptor("names", Types.LONG(), Types.STRING())
NO_TIME = WatermarkStrategy.no_watermarks()


class NameOf(BroadcastProcessFunction):
    """Puts the name to a number, by the table that every subtask has."""

    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        yield value, ctx.get_broadcast_state(NAMES).get(value % 7) or "?"

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(NAMES).put(value[0], value[1])


class NameOfKey(KeyedCoProcessFunction):
    """Puts the name to a number, by the row of its key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._name = runtime_context.get_state(ValueStateDescriptor("name", Types.STRING()))

    def process_element1(self, value: int, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        yield value, self._name.value() or "?"

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        self._name.update(value[1])


class Number(TimestampAssigner):
    """A number is its own time."""

    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


def names(version: str = "") -> list[Any]:
    return [(n, f"{n}{version}") for n in range(7)]


def enriched(facts: DataStream, table: DataStream, *, keyed: bool) -> DataStream:
    if keyed:
        streams = facts.key_by(lambda n: n % 7, Types.LONG()).connect(table.key_by(lambda row: row[0], Types.LONG()))
        return streams.process(NameOfKey(), PAIR).uid("names")
    return facts.connect(table.broadcast(NAMES)).process(NameOf(), PAIR).uid("names")


def program(
    table: Source, *, keyed: bool = False, parallelism: int = 2, longer: bool = False, per_epoch: int | None = 20
) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    numbers = CollectionSource(list(range(60)), Types.LONG(), records_per_epoch=per_epoch, batch_size=4)
    facts = env.from_source(numbers, NO_TIME, "facts").uid("facts")
    rows = env.from_source(table, NO_TIME, "table").uid("table").static()
    if longer:  # it arrives later than the facts
        rows = rows.rebalance().map(lambda row: row, PAIR).rebalance().map(lambda row: row, PAIR)
    return collect_graph(enriched(facts, rows, keyed=keyed))


EXPECTED = Counter((n, str(n % 7)) for n in range(60))


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    keyed=st.booleans(),
    longer=st.booleans(),
    parallelism=st.integers(1, 3),
    per_epoch=st.sampled_from([7, 20, None]),
    order=st.none() | st.integers(0, 99),
    live=st.booleans(),
    rescale=st.dictionaries(st.integers(0, 3), st.integers(1, 3), max_size=2),
)
def test_each_fact_finds_its_row(
    tmp_path_factory: pytest.TempPathFactory,
    keyed: bool,
    longer: bool,
    parallelism: int,
    per_epoch: int | None,
    order: int | None,
    live: bool,
    rescale: dict[int, int],
) -> None:
    table = CollectionSource(names(), PAIR, batch_size=1)
    graph = program(table, keyed=keyed, parallelism=parallelism, longer=longer, per_epoch=per_epoch)
    ordered = {} if order is None or live else {"order": random_order(order)}
    folder = tmp_path_factory.mktemp("job")
    found = run_job(graph, folder, rescale_at=rescale, live=live, **ordered)
    assert Counter(map(tuple, found)) == EXPECTED


def folder_of(path: Path, version: str = "") -> ParquetSource:
    path.mkdir(exist_ok=True)
    rows = [{"id": n, "name": name} for n, name in names(version)]
    pq.write_table(pa.Table.from_pylist(rows), path / "names.parquet")
    return ParquetSource(str(path), row_type=Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()]))


def reads(source: Source, position: Any, parallelism: int = 2) -> tuple[int, Any]:
    """Returns how many splits a run reads of a static source, and the position from which the next one starts."""
    env = StreamExecutionEnvironment.get_execution_environment()
    graph = collect_graph(env.from_source(source, NO_TIME, "table").uid("table").static())
    enumerator = create_enumerator("table", graph.vertex("table").spec, position)
    splits = [split.advanced(9, finished=True) for share in enumerator.plan_epoch(parallelism) for split in share]
    assert enumerator.exhausted
    assert not any(enumerator.plan_epoch(parallelism)), "it is read once"
    enumerator.on_epoch_read(splits)
    return len(splits), enumerator.snapshot_state()


def test_it_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "table")
    count, first = reads(source, None)
    assert count == 1
    assert reads(source, first) == (0, first)
    folder_of(tmp_path / "table", "!")
    count, second = reads(source, first)
    assert count == 1
    assert reads(source, second) == (0, second)
    one, two = (CollectionSource(rows, PAIR) for rows in (names(), names("!")))
    count, position = reads(one, None, parallelism=1)
    assert (count, reads(one, position, parallelism=1)) == (1, (0, position))
    assert reads(two, position, parallelism=1)[0] == 1


def test_a_source_whose_content_is_unknown_is_read_in_each_run() -> None:
    class Unknown(CollectionSource):
        content_token = None

    source = Unknown(names(), PAIR)
    position = reads(source, None)[1]
    assert reads(source, position)[0] == 2


def test_the_rest_of_what_a_barrier_has_parted_is_read_by_the_next_run(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "table")
    env = StreamExecutionEnvironment.get_execution_environment()
    spec = collect_graph(env.from_source(source, NO_TIME, "table").uid("table").static()).vertex("table").spec
    enumerator = create_enumerator("table", spec, None)
    [[split]] = enumerator.plan_epoch(1)
    enumerator.on_epoch_read([split.advanced(3, finished=False)])
    assert not enumerator.exhausted
    again = create_enumerator("table", spec, enumerator.snapshot_state())
    [[rest]] = again.plan_epoch(1)
    assert (rest.split_id, rest.offset) == (split.split_id, 3)
    again.on_epoch_read([rest.advanced(7, finished=True)])
    assert again.exhausted
    assert again.snapshot_state()["rest"] == []


def test_a_changed_table_is_known_from_the_next_run_on(tmp_path: Path) -> None:
    found: list[Any] = []
    for run in range(2):
        graph = program(folder_of(tmp_path / "table", "" if run < 1 else "!"))
        with HarnessAttempt(graph, tmp_path / "job") as attempt:
            attempt.run_epoch()
            found.append(Counter(map(tuple, collected(attempt.graph, attempt.collected))))
    assert found == [
        Counter((n, f"{n % 7}{version}") for n in range(20 * run, 20 * run + 20))
        for run, version in enumerate(["", "!"])
    ]


def test_spark_sorts_it_before_other_input(tmp_path: Path) -> None:
    graph = program(CollectionSource(names(), PAIR, batch_size=1), longer=True)
    [static] = graph.static_inputs("names")
    [other] = [edge for edge in graph.inputs("names") if edge != static]
    seen: list[list[bool]] = []

    def look(rows: list[WireRow]) -> list[WireRow]:
        rows = spark_order(rows)
        seen.append([row.edge == static.id for row in rows if row.edge in (static.id, other.id)])
        return rows

    run_rows(make_job(graph, tmp_path), look)
    both = [order for order in seen if len({*order}) == 2]
    assert both
    assert all(order == sorted(order, reverse=True) for order in both)


def test_event_time_does_not_wait_for_it(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Number())
    numbers = CollectionSource(list(range(60)), Types.LONG(), records_per_epoch=20)
    facts = env.from_source(numbers, strategy, "facts").uid("facts")
    table = env.from_source(folder_of(tmp_path / "table").continuous(), NO_TIME, "table").uid("table").static()
    graph = collect_graph(enriched(facts, table.map(lambda row: (row.id, row.name), PAIR), keyed=False))
    with HarnessAttempt(graph, tmp_path / "job") as attempt:
        epoch = attempt.run_epoch()
    states = {operator.uid: operator for operator in epoch.metadata.operators}
    assert [subtask.watermark for subtask in states["names"].subtasks] == [18] * len(states["names"].subtasks)


def test_it_needs_no_partitions(tmp_path: Path) -> None:
    day = datetime(2024, 3, 1, tzinfo=timezone.utc)
    partition = TimePartition("2024-03-01", day, day + timedelta(days=1), 0)
    for source, advice in (
        (CollectionSource([1], Types.LONG()), r"'s' \(CollectionSource\) cannot .*call static\(\)"),
        (folder_of(tmp_path / "table"), r"partition_format=.*call static\(\)"),
    ):
        env = StreamExecutionEnvironment.get_execution_environment()
        stream = env.from_source(source, NO_TIME, "s").uid("s")
        with pytest.raises(ConfigurationError, match=advice):
            check_partitioned(collect_graph(stream), partition)
        check_partitioned(collect_graph(stream.static()), partition)


def test_what_cannot_be_static_is_refused() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = NumberSequenceSource(0, 9)
    with pytest.raises(JobGraphError, match="'Map' is none"):
        env.from_source(numbers, NO_TIME, "n").map(lambda n: n).static()
    with pytest.raises(JobGraphError, match="nobody waits for its event time"):
        timed = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1))
        env.from_source(numbers, timed, "n").static()
    stream = env.from_source(numbers, NO_TIME, "n").uid("n").static()
    with pytest.raises(JobGraphError, match="over a blocking edge"):
        collect_graph(stream.blocking().map(lambda n: n, Types.LONG()).uid("map"))


def test_a_static_source_is_not_asked_for_input_when_nothing_runs(tmp_path: Path) -> None:
    graph = program(folder_of(tmp_path / "table"), per_epoch=None)
    with HarnessAttempt(graph, tmp_path / "jobs") as attempt:
        while not attempt.finished:
            attempt.run_epoch()
    job = StorageLocation(str(tmp_path / "jobs" / "job"))
    assert WaitingInput(graph).find(job, 0) is None
    folder_of(tmp_path / "table", "!")
    assert WaitingInput(graph).find(job, 0) is None, "it is read by the next run that others need"
