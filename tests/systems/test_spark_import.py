"""A program goes on here from the checkpoint of a Spark streaming query that really ran."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from dagster import DagsterEventType, DagsterInstance
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.cli import main
from dagster_flinkpy.common import Row, Time, Types
from dagster_flinkpy.common.serialization import SimpleStringSchema
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.datastream.connectors.kafka_source import KafkaSource
from dagster_flinkpy.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from dagster_flinkpy.errors import (
    ConfigurationError,
    CorruptStateError,
    RestoreError,
    UnsupportedSavepointError,
)
from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource, build_flink_jobs
from dagster_flinkpy.orchestration.flink_job import flink_job
from dagster_flinkpy.orchestration.spark_import import import_spark_checkpoint
from dagster_flinkpy.state_processor import SavepointReader, read_savepoint
from dagster_flinkpy.state_processor.import_report import ImportReport
from dagster_flinkpy.state_processor.spark_checkpoint import _together
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCHEMA = "user string, amount long, time timestamp"
BEFORE = [(f"u{n % 5}", n) for n in range(20)]
AFTER = [(f"u{n % 7}", n) for n in range(20, 40)]
TIMER = 4_000_000_000_000
"""A time that no test reaches."""
Query = Callable[["DataFrame"], "DataFrame"]


def write(folder: Path, name: str, rows: list[tuple[str, int]]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [{"user": user, "amount": n, "time": f"2026-01-01T00:00:{n:02d}Z"} for user, n in rows]
    (folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def run_in_spark(spark: SparkSession, folder: Path, query: Query, mode: str = "update", *, once: bool = False) -> None:
    """Runs a query over the files that are there, and stops it. With processing time, only ``once`` has an end."""
    frame = query(spark.readStream.schema(SCHEMA).json(str(folder / "in")))
    writer = (
        frame.writeStream.format("noop")
        .outputMode(mode)
        .trigger(**({"once": True} if once else {"availableNow": True}))
    )
    running = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    assert running.awaitTermination(120)


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Gives queries the provider that transformWithState needs."""
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, ROCKSDB)
    yield
    spark.conf.unset(name)


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("user").agg({"*": "count", "amount": "sum"})


class OfUser(KeyedProcessFunction):
    """A function whose keys are users."""

    keys: TypeInformation = Types.STRING()

    def key_of(self, row: tuple[str, int]) -> Any:
        return row[0]


class Totals(OfUser):
    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.sum = context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        self.sum.update((self.sum.value() or 0) + value[1])
        yield value[0], self.count.value(), self.sum.value()


class Windowed(Totals):
    """Totals of a user in five seconds, which Spark's function ``window`` puts into the key."""

    times = Types.ROW_NAMED(["start", "end"], [Types.SQL_TIMESTAMP()] * 2)
    keys = Types.ROW_NAMED(["window", "user"], [times, Types.STRING()])

    def key_of(self, row: tuple[str, int]) -> Any:
        start = datetime(2026, 1, 1, 0, 0, row[1] // 5 * 5)
        return Row(window=Row(start=start, end=start + timedelta(seconds=5)), user=row[0])


class Sums(OfUser):
    """Two sums, as Spark calls them."""

    def open(self, context: Any) -> None:
        self.sums = [context.get_state(ValueStateDescriptor(name, Types.LONG())) for name in ("sum", "sum_2")]

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        for state, factor in zip(self.sums, (1, -1), strict=True):
            state.update((state.value() or 0) + factor * value[1])
        yield from ()


class First(OfUser):
    def open(self, context: Any) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", Types.BOOLEAN()))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        if not self.seen.value():
            self.seen.update(True)
            yield value[0]


class Collected(OfUser):
    def __init__(self, ttl: bool = False) -> None:
        self.ttl = ttl

    def open(self, context: Any) -> None:
        last = ValueStateDescriptor("last", Types.ROW_NAMED(["user", "n"], [Types.STRING(), Types.LONG()]))
        total = ValueStateDescriptor("total", Types.LONG())
        amounts = ListStateDescriptor("amounts", Types.LONG())
        parity = MapStateDescriptor("parity", Types.STRING(), Types.LONG())
        if self.ttl:
            for each in (last, total, amounts, parity):
                each.enable_time_to_live(StateTtlConfig.new_builder(Time.days(3650)).build())
        self.last, self.total = context.get_state(last), context.get_state(total)
        self.amounts, self.parity = context.get_list_state(amounts), context.get_map_state(parity)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        n = value[1]
        self.total.update((self.total.value() or 0) + n)
        self.amounts.add(n)
        self.parity.put(str(n % 2), n)
        timers = context.timer_service()
        (timers.register_processing_time_timer if self.ttl else timers.register_event_time_timer)(TIMER + n)
        yield from ()

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        yield from ()


class Pairs(OfUser):
    """Counts and sums of the odd and the even amounts of a user, in one state."""

    def __init__(self, named: bool) -> None:
        kinds = [Types.STRING(), Types.LONG()]
        self.named = named
        self.keys = Types.ROW_NAMED(["user", "odd"], kinds) if named else Types.TUPLE(kinds)

    def key_of(self, row: tuple[str, int]) -> Any:
        user, odd = row[0], row[1] % 2
        return Row(user=user, odd=odd) if self.named else (user, odd)

    def open(self, context: Any) -> None:
        kinds = [Types.LONG(), Types.LONG()]
        kind = Types.ROW_NAMED(["sum", "count"], kinds) if self.named else Types.TUPLE(kinds)
        self.pair = context.get_state(ValueStateDescriptor("pair", kind))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        if self.named:
            before = self.pair.value() or Row(sum=0, count=0)
            self.pair.update(Row(sum=before.sum + value[1], count=before.count + 1))
        else:
            count, total = self.pair.value() or (0, 0)
            self.pair.update((count + 1, total + value[1]))
        yield from ()


def parsed(line: str) -> tuple[str, int]:
    row = json.loads(line)
    return row["user"], row["amount"]


def program(
    folder: Path, function: OfUser, source: Source | None = None, uids: Sequence[str] = ("keyed",)
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder / "in")).build()
    source = source or files
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").uid("lines")
    rows = lines.map(parsed, Types.TUPLE([Types.STRING(), Types.LONG()])).uid("parsed")
    keyed = rows.key_by(function.key_of, function.keys)
    for uid in uids:
        keyed.process(function, Types.PICKLED_BYTE_ARRAY()).uid(uid).print().uid(f"{uid}-printed")
    return env


def imported(
    spark: SparkSession, folder: Path, function: OfUser, uids: Sequence[str] = ("keyed",), **options: Any
) -> tuple[ImportReport, SavepointReader]:
    source, target = (StorageLocation(str(folder / name)) for name in ("checkpoint", "savepoint"))
    report = import_spark_checkpoint(spark, source, program(folder, function, uids=uids), target, **options)
    found = read_savepoint(report.url)
    assert isinstance(found, SavepointReader)
    return report, found


def went_on(folder: Path, function: OfUser, name: str, **options: Any) -> dict[str, list[Any]]:
    """Runs the program here, and returns its keyed state and timers in the end."""
    graph = flink_job(program(folder, function), "job").graph
    with HarnessAttempt(graph, folder / name, live=True, config={"cache_dir": str(folder / "cache")}, **options) as job:
        job.run_epoch()
    found = read_savepoint(str(folder / name / "job"))
    return {
        state.name: sorted(
            repr({column: value for column, value in row.items() if column not in ("key_group", "expires_at")})
            for row in state.to_pylist(allow_pickled_state=True)
        )
        for state in found.states
        if state.uid == "keyed"
    }


def check_goes_on(folder: Path, function: Callable[[], OfUser], url: str) -> None:
    """Checks that a program that goes on has the state of one that read all input here."""
    write(folder / "in", "b.json", AFTER)
    found = went_on(folder, function(), "imported", restore_from=url)
    assert found == went_on(folder, function(), "straight")
    assert all(rows for name, rows in found.items() if not name.startswith("_timers"))


def test_a_program_goes_on_with_the_counts_and_sums_of_a_streaming_aggregation(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in", "a.json", BEFORE)
    run_in_spark(spark, tmp_path, totals, "complete")
    monkeypatch.setattr("dagster_flinkpy.state_processor.spark_checkpoint._BATCH_ROWS", 1)
    lines: list[str] = []
    report, _ = imported(spark, tmp_path, Totals(), on_progress=lines.append)
    assert {(each.uid, each.name, each.origin, each.rows) for each in report.imported} == {
        ("keyed", "count", "0.stateStoreSave", 5),
        ("keyed", "sum", "0.stateStoreSave", 5),
        ("lines", "position", "sources/0", 1),
    }
    assert report.left_behind == ()
    with pytest.raises(UnsupportedSavepointError, match=r"it could be keyed:count, keyed:sum, other:count, other:sum"):
        imported(spark, tmp_path, Totals(), uids=("keyed", "other"))
    progress = [line for line in lines if line.startswith("keyed.sum: ")]
    assert len(progress) == 2  # one of each state partition
    assert progress[-1] == "keyed.sum: 5 rows"
    check_goes_on(tmp_path, Totals, report.url)


@pytest.mark.usefixtures("one_server")
def test_a_run_of_dagster_imports_a_checkpoint_and_shows_what_it_left_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in", "a.json", BEFORE)
    run_in_spark(spark, tmp_path, lambda rows: rows.dropDuplicates(["user"]), "append")
    (tmp_path / "elsewhere" / "in").mkdir(parents=True)
    env = program(tmp_path / "elsewhere", First())
    jobs = {job.name: job for job in build_flink_jobs(env, name="first")}
    config = {
        "spark_checkpoint": str(tmp_path / "checkpoint"),
        "target": str(tmp_path / "savepoint"),
        "mapping": {"dedupe": "keyed:seen"},
        "allow_non_restored_state": ["sources/0"],
    }
    resources = {
        "spark": SparkResource(),
        "checkpoint_storage": CheckpointStorageResource(url=str(tmp_path / "checkpoints"), num_retained=2),
    }
    with DagsterInstance.ephemeral() as instance:
        run_config = {"ops": {"import_for_first": {"config": config}}}
        result = jobs["first_import"].execute_in_process(run_config, instance, resources=resources)
        logged = [event.user_message for event in instance.all_logs(result.run_id)]
    (output,) = result.filter_events(lambda event: event.event_type is DagsterEventType.STEP_OUTPUT)
    shown = {name: each.value for name, each in output.step_output_data.metadata.items()}
    assert shown["rows/keyed/seen"] == 5
    (left,) = shown["left_behind"]
    assert (left["operator"], "none of the paths" in left["problem"]) == ("sources/0", True)
    assert {"keyed.seen: 5 rows", f"left behind: {left['problem']}"} <= set(logged)
    found = read_savepoint(result.output_for_node("import_for_first")).state("keyed", "seen")
    assert [row["value"] for row in found.to_pylist()] == [True] * 5


def test_what_was_not_committed_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    interval = "spark.sql.streaming.fileSource.log.compactInterval"
    spark.conf.set(interval, "2")
    try:
        for number in range(3):
            write(tmp_path / "in", f"a {number}%.json", BEFORE[number * 5 : number * 5 + 5])
            run_in_spark(spark, tmp_path, totals, "complete")
    finally:
        spark.conf.unset(interval)
    checkpoint = tmp_path / "checkpoint"
    assert (checkpoint / "sources" / "0" / "1.compact").exists()
    (checkpoint / "commits" / "2").unlink()
    report, found = imported(spark, tmp_path, Totals())
    assert {row["value"] for row in found.state("keyed", "count").to_pylist()} == {2}
    (lines,) = [each for each in found.metadata.operators if each.uid == "lines"]
    assert lines.coordinator_state is not None
    assert [Path(name).name for name in lines.coordinator_state["found"]] == ["a 0%.json", "a 1%.json"]
    check_goes_on(tmp_path, Totals, report.url)


def test_of_a_query_without_state_the_position_is_imported(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", BEFORE)
    run_in_spark(spark, tmp_path, lambda rows: rows.where("amount > 3"), "append")
    report, _ = imported(spark, tmp_path, Totals())
    assert [(each.uid, each.name) for each in report.imported] == [("lines", "position")]


@pytest.mark.smoke
def test_two_sums_become_two_states(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", BEFORE)

    def query(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("user", "amount", "-amount as minus").groupBy("user").sum("amount", "minus")

    run_in_spark(spark, tmp_path, query, "complete")
    report, _ = imported(spark, tmp_path, Sums())
    assert [each.name for each in report.imported if each.keyed] == ["sum", "sum_2"]
    check_goes_on(tmp_path, Sums, report.url)


def test_a_program_goes_on_with_an_aggregation_in_windows(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", BEFORE)

    def query(rows: DataFrame) -> DataFrame:
        from pyspark.sql.functions import window

        windows = rows.withWatermark("time", "1 hour").groupBy(window("time", "5 seconds"), "user")
        return windows.agg({"*": "count", "amount": "sum"})

    run_in_spark(spark, tmp_path, query)
    report, _ = imported(spark, tmp_path, Windowed())
    assert [(each.name, each.rows) for each in report.imported if each.keyed] == [("count", 20), ("sum", 20)]
    check_goes_on(tmp_path, Windowed, report.url)


@pytest.mark.parametrize("named", [False, True], ids=["tuple", "row"])
def test_a_key_and_a_value_with_several_columns_become_a_row_or_a_tuple(
    spark: SparkSession, tmp_path: Path, named: bool
) -> None:
    write(tmp_path / "in", "a.json", BEFORE)

    def query(rows: DataFrame) -> DataFrame:
        grouped = rows.selectExpr("user", "amount % 2 as odd", "amount").groupBy("user", "odd")
        return grouped.agg({"*": "count", "amount": "sum"})

    run_in_spark(spark, tmp_path, query, "complete")
    report, _ = imported(spark, tmp_path, Pairs(named), mapping={"0": "keyed:pair"})
    assert ("keyed", "pair", 10) in {(each.uid, each.name, each.rows) for each in report.imported}
    check_goes_on(tmp_path, lambda: Pairs(named), report.url)
    with pytest.raises(UnsupportedSavepointError, match=r"key: declared Types.STRING\(\), but Spark has"):
        imported(spark, tmp_path, Totals())


def test_of_a_kafka_source_the_next_offset_of_each_partition_is_imported(spark: SparkSession, tmp_path: Path) -> None:
    """The checkpoint is one of files, in which Spark's documented offsets of Kafka are written."""
    write(tmp_path / "in", "a.json", BEFORE)
    run_in_spark(spark, tmp_path, totals, "complete")
    log = tmp_path / "checkpoint" / "offsets" / "0"
    *head, _ = log.read_text().splitlines()
    builder = KafkaSource.builder().set_bootstrap_servers("h:1").set_topics("orders")
    kafka = builder.set_value_only_deserializer(SimpleStringSchema()).build()

    def found(env: StreamExecutionEnvironment, offsets: str) -> Any:
        log.write_text("\n".join([*head, offsets]))
        target = StorageLocation(str(tmp_path / "savepoint"))
        report = import_spark_checkpoint(spark, StorageLocation(str(tmp_path / "checkpoint")), env, target)
        stored = read_savepoint(report.url)
        assert isinstance(stored, SavepointReader)
        (lines,) = [each for each in stored.metadata.operators if each.uid == "lines"]
        return lines.coordinator_state

    offsets = '{"orders":{"0":23,"1":0}}'
    anew = r"which a FileSource cannot go on from.*what the query has read counts again"
    with pytest.raises(UnsupportedSavepointError, match=anew):
        found(program(tmp_path, Totals()), offsets)
    with pytest.raises(UnsupportedSavepointError, match="a partition not yet looked up"):
        found(program(tmp_path, Totals(), kafka), offsets.replace("23", "-2"))
    position = found(program(tmp_path, Totals(), kafka), offsets)
    assert sorted(position["next"]) == [["orders", 0, 23], ["orders", 1, 0]]
    kafka.create_enumerator(position)


def test_a_program_goes_on_with_the_keys_that_drop_duplicates_has_seen(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", BEFORE)
    run_in_spark(spark, tmp_path, lambda rows: rows.dropDuplicates(["user"]), "append")
    with pytest.raises(UnsupportedSavepointError, match=r"0\.dedupe.*the program has the state keyed:seen \(VALUE\)"):
        imported(spark, tmp_path, First())
    report, _ = imported(spark, tmp_path, First(), mapping={"dedupe": "keyed"})
    assert ("keyed", "seen", 5) in {(each.uid, each.name, each.rows) for each in report.imported}
    check_goes_on(tmp_path, First, report.url)
    with pytest.raises(UnsupportedSavepointError, match=r"state 0\.dedupe, value: declared Types.LONG\(\)"):
        imported(spark, tmp_path, Totals(), mapping={"dedupe": "keyed:sum"})


def collected(rows: DataFrame, ttl: bool) -> DataFrame:
    """Collects the rows of a user in state of all kinds; with a time to live in pandas and processing time."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Collect(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            lasting = {"ttlDurationMs": 3_650 * 86_400_000} if ttl else {}
            self.handle = handle
            self.total = handle.getValueState("total", "n long", **lasting)
            self.last = handle.getValueState("last", "n long, user string", **lasting)
            self.amounts = handle.getListState("amounts", "amount long", **lasting)
            self.parity = handle.getMapState("parity", "parity string", "amount long", **lasting)

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
            amounts = [n for frame in rows for n in frame["amount"].tolist()] if ttl else [row.amount for row in rows]
            for n in sorted(amounts):
                self.total.update(((self.total.get()[0] if self.total.exists() else 0) + n,))
                self.amounts.appendValue((n,))
                self.parity.updateValue((str(n % 2),), (n,))
                self.handle.registerTimer(4_000_000_000_000 + n)
            self.last.update((self.total.get()[0], key[0]))
            yield from ()

        def close(self) -> None:
            pass

    if ttl:
        return rows.groupBy("user").transformWithStateInPandas(Collect(), "user string", "Update", "ProcessingTime")
    keyed = rows.withWatermark("time", "1 second").groupBy("user")
    return keyed.transformWithState(Collect(), "user string", "Update", "EventTime")


@pytest.mark.usefixtures("rocksdb")
@pytest.mark.parametrize("ttl", [False, True], ids=["event-time", "time-to-live-in-pandas"])
def test_a_program_goes_on_with_the_values_lists_maps_and_timers_of_transform_with_state(
    spark: SparkSession, tmp_path: Path, ttl: bool
) -> None:
    write(tmp_path / "in", "a.json", BEFORE)
    run_in_spark(spark, tmp_path, lambda rows: collected(rows, ttl), once=ttl)
    spark.conf.unset("spark.sql.streaming.stateStore.providerClass")  # the checkpoint knows it
    report, found = imported(spark, tmp_path, Collected(ttl))
    assert {(each.name, each.origin, each.rows) for each in report.imported} == {
        ("total", "0.total", 5),
        ("last", "0.last", 5),
        ("amounts", "0.amounts", 5),
        ("parity", "0.parity", 10),
        ("_timers/processing_time" if ttl else "_timers/event_time", "0.timers", 20),
        ("position", "sources/0", 1),
    }
    rows = {row["key"]: row["value"] for row in found.state("keyed", "last").to_pylist()}
    assert rows["u1"]["user"] == "u1"
    assert rows["u1"]["n"] == sum(n for user, n in BEFORE if user == "u1")
    if ttl:
        check_expiry(spark, tmp_path, found)
        with pytest.raises(
            UnsupportedSavepointError, match=r"0\.amounts .*expires in Spark, and keyed:amounts does not"
        ):
            imported(spark, tmp_path, Collected())
    write(tmp_path / "in", "b.json", AFTER)
    here = went_on(tmp_path, Collected(ttl), "imported", restore_from=report.url)
    straight = went_on(tmp_path, Collected(ttl), "straight")
    assert here.pop("last")  # only Spark wrote it
    straight.pop("last", None)
    assert here == straight
    assert sum(len(rows) for name, rows in here.items() if name.startswith("_timers")) == len(BEFORE + AFTER)


def check_expiry(spark: SparkSession, folder: Path, found: SavepointReader) -> None:
    """Checks that each value expires when it would have in Spark."""
    reader = spark.read.format("statestore").option("stateVarName", "total")
    rows = reader.load(str(folder / "checkpoint")).selectExpr("key.user", "value.ttlExpirationMs as time").collect()
    wanted = {row["user"]: row["time"] for row in rows}
    assert {row["key"]: row["expires_at"] for row in found.state("keyed", "total").to_pylist()} == wanted
    lists = found.state("keyed", "amounts").to_pylist()
    assert {row["key"]: set(row["expires_at"]) for row in lists} == {user: {time} for user, time in wanted.items()}


def test_what_cannot_be_imported_is_an_error_or_is_left_behind(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", BEFORE)
    run_in_spark(spark, tmp_path, lambda rows: rows.groupBy("user", "time").count(), "complete")
    with pytest.raises(UnsupportedSavepointError, match="nothing in the program") as caught:
        imported(spark, tmp_path, First())
    assert "--map 0.stateStoreSave=UID:STATE" in str(caught.value)
    assert not (tmp_path / "savepoint").exists()
    for mapping, message in (
        ({"nothing": "keyed"}, r"none of what the checkpoint has: 0\.stateStoreSave, sources/0"),
        ({"0": "nothing:seen"}, "cannot go to 'nothing:seen'; the program has the state keyed:seen"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            imported(spark, tmp_path, First(), mapping=mapping)
    report, _ = imported(spark, tmp_path, First(), allow_non_restored_state=["0"])
    assert [each.operator for each in report.left_behind] == ["0"]
    assert [each.name for each in report.imported] == ["position"]


def test_columns_of_an_aggregation_without_a_state_are_named(spark: SparkSession, tmp_path: Path) -> None:
    class OneColumn(OfUser):
        def open(self, context: Any) -> None:
            context.get_state(ValueStateDescriptor("sum", Types.LONG()))

        def process_element(self, value: Any, context: Any) -> None: ...

    write(tmp_path / "in", "a.json", BEFORE)
    run_in_spark(spark, tmp_path, totals, "complete")
    with pytest.raises(UnsupportedSavepointError, match="'keyed' has no state called count, and takes all columns"):
        imported(spark, tmp_path, OneColumn())


def test_a_damaged_checkpoint_is_an_error_that_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", BEFORE)
    with pytest.raises(RestoreError, match="is no checkpoint of a Spark streaming query"):
        imported(spark, tmp_path, Totals())
    run_in_spark(spark, tmp_path, totals, "complete")
    log = tmp_path / "checkpoint" / "sources" / "0" / "0"
    text = log.read_text()
    damages: Mapping[str, tuple[type[Exception], str]] = {
        text.replace("v1", "v7"): (UnsupportedSavepointError, "sources/0/0 is a log of version 'v7'"),
        text.replace("path", "paths"): (CorruptStateError, "names no file"),
        text[:-3]: (CorruptStateError, "is not JSON"),
    }
    for damaged, (error, message) in damages.items():
        log.write_text(damaged)
        with pytest.raises(error, match=message):
            imported(spark, tmp_path, Totals())
    log.write_text(text)
    for metadata in (tmp_path / "checkpoint" / "state" / "0" / "_metadata").iterdir():
        metadata.unlink()
    with pytest.raises(UnsupportedSavepointError, match="Spark"):
        imported(spark, tmp_path, Totals())
    offsets = tmp_path / "checkpoint" / "offsets" / "0"
    whole = offsets.read_text()
    offsets.write_text("v1\n{}")
    with pytest.raises(CorruptStateError, match="offsets/0 has no sources"):
        imported(spark, tmp_path, Totals(), allow_non_restored_state=True)
    offsets.write_text(whole)
    log.unlink()
    with pytest.raises(CorruptStateError, match="there is no sources/0/0"):
        imported(spark, tmp_path, Totals())


@pytest.mark.usefixtures("one_server")
def test_the_command_imports_a_checkpoint_and_prints_the_path(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", BEFORE)
    run_in_spark(spark, tmp_path, lambda rows: rows.dropDuplicates(["user"]), "append")
    code = [
        "from pathlib import Path",
        "from tests.systems.test_spark_import import First, program",
        "def build():",
        f"    return program(Path({str(tmp_path)!r}), First())",
    ]
    (tmp_path / "job.py").write_text("\n".join(code))
    command = ["savepoint", "import-spark", str(tmp_path / "checkpoint"), "--program", f"{tmp_path}/job.py:build"]
    command += ["--to", str(tmp_path / "to")]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 1
    assert "0.dedupe" in refused.output
    assert CliRunner().invoke(main, [*command, "--map", "0"]).exit_code == 2
    result = CliRunner().invoke(main, [*command, "--map", "0=keyed:seen"])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == (tmp_path / "to").as_uri()
    assert "state in Spark" in result.stderr


@given(st.lists(st.integers(0, 1_200_000)))
def test_state_partitions_are_read_together_until_they_have_many_rows(counts: list[int]) -> None:
    groups = list(_together(list(enumerate(counts))))
    assert [number for partitions, _ in groups for number in partitions] == list(range(len(counts)))
    for partitions, rows in groups:
        assert rows == sum(counts[number] for number in partitions)
        assert rows <= 500_000 or len(partitions) == 1
