"""A wrong argument of a program's call fails where it is passed, and the message says what to pass."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.common import (
    Configuration,
    Duration,
    Encoder,
    SimpleStringSchema,
    Time,
    Types,
    WatermarkStrategy,
)
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.connectors import AssetSource, DeltaSink, ParquetSink, ParquetSource, PostgresSource
from dagster_flinkpy.datastream import DataStream, OutputTag, StreamExecutionEnvironment
from dagster_flinkpy.datastream.batch_function import BatchAggregateFunction
from dagster_flinkpy.datastream.connectors.file_system import BucketAssigner, FileSink
from dagster_flinkpy.datastream.connectors.kafka import KafkaOffsetsInitializer
from dagster_flinkpy.datastream.connectors.number_seq import NumberSequenceSource
from dagster_flinkpy.datastream.data_stream import KeyedStream
from dagster_flinkpy.datastream.functions import AggregateFunction, MapFunction
from dagster_flinkpy.datastream.state import AggregatingStateDescriptor
from dagster_flinkpy.datastream.window import (
    ContinuousEventTimeTrigger,
    CountSlidingWindowAssigner,
    EventTimeSessionWindows,
    NeverTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from dagster_flinkpy.errors import FlinkPyError
from dagster_flinkpy.orchestration import flink_assets
from dagster_flinkpy.state_processor import dispose_job, fork_job, list_forks
from dagster_flinkpy.testing import OperatorTestHarness

PAIRS = Types.TUPLE([Types.LONG(), Types.LONG()])
SECOND = Time.seconds(1)


class Total(AggregateFunction): ...  # type: ignore[type-arg]


class Columns(BatchAggregateFunction): ...


def env() -> Any:
    return StreamExecutionEnvironment.get_execution_environment()


def stream() -> Any:
    return env().from_collection([(1, 2)], PAIRS)


def keyed() -> Any:
    return stream().key_by(lambda pair: pair[0])


def windowed() -> Any:
    return keyed().window(TumblingEventTimeWindows.of(SECOND))


def started() -> Any:
    program = env()
    program.from_collection([1]).print()
    return program


def settings() -> Any:
    return env().get_checkpoint_config()


_SPAN = "need a span of time, such as Time.minutes(5)"
_DURATION = "needs a Duration, such as Duration.of_minutes(5)"

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    # streams
    "sink_to": (lambda: stream().sink_to("path"), "a sink, such as ParquetSink(location), not 'path'"),
    "sink_to a class": (lambda: stream().sink_to(ParquetSink), "not the class ParquetSink: pass an instance"),
    "get_side_output": (
        lambda: stream().get_side_output("x"),
        "an OutputTag, such as OutputTag('late', type_info), not",
    ),
    "union": (lambda: stream().union(5), "union() needs streams, not 5"),
    "union of keyed": (lambda: keyed().union([stream()]), "union() needs streams, not ["),
    "connect": (lambda: stream().connect(5), "connect() needs a stream, or what broadcast(descriptor) returns, not 5"),
    "map": (lambda: stream().map(5), "need a MapFunction or a callable, not 5"),
    "map a class": (lambda: stream().map(MapFunction), "pass an instance, MapFunction()"),
    "map to no type": (lambda: stream().map(lambda v: v, "LONG"), "needs a type from Types.*, not 'LONG'"),
    "flat_map": (lambda: stream().flat_map(5), "need a FlatMapFunction or a callable, not 5"),
    "filter": (lambda: stream().filter(5), "need a FilterFunction or a callable, not 5"),
    "process": (lambda: stream().process(5), "needs a ProcessFunction, not 5"),
    "key_by": (lambda: stream().key_by(5), "key_by() needs a function of the record, a KeySelector, or the name"),
    "key_by no type": (lambda: stream().key_by(len, "LONG"), "key_by() needs a key type from Types.*, not 'LONG'"),
    "project": (lambda: stream().project("a"), "project() needs a whole number of each field: its index, not 'a'"),
    "print": (lambda: stream().print(5), "print() needs text as the prefix of the lines, not 5"),
    "project nothing": (lambda: stream().project(), "project() needs the index of a field, such as project(0)"),
    "limit": (lambda: stream().execute_and_collect(limit="5"), "limit of execute_and_collect() needs a whole number"),
    "limit 0": (lambda: stream().execute_and_collect(limit=0), "limit=0 of execute_and_collect() must be at least 1"),
    "name of a job": (lambda: started().execute(5), "the name of a job needs text, not 5"),
    "name in the background": (lambda: started().execute_async(5), "the name of a job needs text, not 5"),
    "name of a job to collect": (lambda: stream().execute_and_collect(5), "the name of a job needs text, not 5"),
    "watermarks": (lambda: stream().assign_timestamps_and_watermarks(5), "needs a WatermarkStrategy, such as"),
    "reduce": (lambda: keyed().reduce(5), "need a ReduceFunction or a callable, not 5"),
    "sum": (lambda: keyed().sum(1.5), "sum() needs the index or the name of a field, not 1.5"),
    "window": (lambda: keyed().window(5), "window() needs a WindowAssigner, not 5"),
    "aggregate a class": (lambda: windowed().aggregate(Total), "not the class Total: pass an instance, Total(...)"),
    "agg a class": (lambda: keyed().agg(Columns), "not the class Columns: pass an instance, Columns(...)"),
    "window a class": (lambda: keyed().window(TumblingEventTimeWindows), "pass an instance, TumblingEventTimeWindows("),
    "state a class": (
        lambda: AggregatingStateDescriptor("total", Total, Types.LONG()),
        "state 'total' needs an AggregateFunction, not the class Total: pass an instance, Total(...)",
    ),
    "count_window": (lambda: keyed().count_window("5"), "a count window needs a whole number of records, not '5'"),
    "slide": (lambda: CountSlidingWindowAssigner(5, 1.5), "a count window needs a whole number of records, not 1.5"),
    "trigger": (lambda: windowed().trigger(5), "trigger() needs a Trigger, not 5"),
    "trigger of sessions": (
        lambda: keyed().window(EventTimeSessionWindows(5)).trigger(NeverTrigger()),
        "windows of EventTimeSessionWindows merge, and can_merge() of the trigger NeverTrigger is false",
    ),
    "lateness": (
        lambda: windowed().allowed_lateness(SECOND),
        "allowed_lateness() needs a whole number of milliseconds",
    ),
    "late data": (lambda: windowed().side_output_late_data("late"), "needs an OutputTag, such as OutputTag('late'"),
    # settings of operators
    "uid": (lambda: stream().uid(5), "uid() needs text, not 5"),
    "uid of a sink": (lambda: stream().print().uid(5), "uid() needs text"),
    "name": (lambda: stream().name(5), "name() needs text that is not empty, not 5"),
    "slot sharing": (lambda: stream().slot_sharing_group(5), "slot_sharing_group() needs text"),
    "description": (lambda: stream().set_description(5), "set_description() needs text, not 5"),
    "parallelism": (lambda: stream().set_parallelism("2"), "parallelism is '2', but must be a whole number"),
    "max parallelism": (
        lambda: stream().set_max_parallelism(2.5),
        "max_parallelism is 2.5, but must be a whole number",
    ),
    # the environment
    "default parallelism": (lambda: env().set_parallelism("2"), "parallelism is '2', but must be a whole number"),
    "enable_checkpointing": (
        lambda: env().enable_checkpointing("1 min"),
        "enable_checkpointing() needs a whole number of milliseconds, such as 60_000 for a minute, not '1 min'",
    ),
    "mode": (lambda: env().enable_checkpointing(1000, "x"), "needs a CheckpointingMode, such as"),
    "interval": (lambda: settings().set_checkpoint_interval(SECOND), "needs a whole number of milliseconds"),
    "timeout": (lambda: settings().set_checkpoint_timeout("1 min"), "needs a whole number of milliseconds"),
    "pause": (lambda: settings().set_min_pause_between_checkpoints("1"), "needs a whole number of milliseconds"),
    "concurrent": (lambda: settings().set_max_concurrent_checkpoints(True), "needs a whole number of checkpoints"),
    "storage": (lambda: settings().set_checkpoint_storage_dir(5), "needs text: a folder, or s3://bucket/prefix, not 5"),
    "externalized": (
        lambda: settings().set_externalized_checkpoint_retention("RETAIN_ON_CANCELLATION"),
        "set_externalized_checkpoint_retention() needs an ExternalizedCheckpointRetention, such as",
    ),
    "claim mode": (lambda: settings().set_recovery_claim_mode("CLAIM"), "needs a RecoveryClaimMode, such as"),
    "unaligned": (lambda: settings().enable_unaligned_checkpoints("no"), "needs True or False, not 'no'"),
    "aligned": (lambda: settings().set_aligned_checkpoint_timeout(5), "needs a Duration, such as"),
    "option": (lambda: Configuration().set_string("a", None), "option 'a' needs a value, not None"),  # type: ignore
    "python file": (lambda: env().add_python_file(5), "add_python_file() needs a path, not 5"),
    "python archive": (lambda: env().add_python_archive(5), "add_python_archive() needs a path, not 5"),
    "requirements": (lambda: env().set_python_requirements(5), "set_python_requirements() needs a path, not 5"),
    "options": (lambda: Configuration.from_dict([]), "from_dict() needs a dict of options, not []"),  # type: ignore
    "charset": (lambda: Encoder(5), "a charset needs text that is not empty, not 5"),  # type: ignore
    "text of no charset": (lambda: SimpleStringSchema(None), "a charset needs text that is not empty"),  # type: ignore
    "rows to files": (lambda: FileSink.for_row_format("x", "UTF-8"), "needs an Encoder, such as"),  # type: ignore
    "no folder": (lambda: FileSink.for_row_format(5, Encoder("UTF-8")), "as base_path needs text"),  # type: ignore
    "numbers": (lambda: NumberSequenceSource(None, 5), "NumberSequenceSource() needs two whole"),  # type: ignore
    "large numbers": (lambda: NumberSequenceSource(0, 2**63), "9223372036854775808 is not a number of 64 bits"),
    "time zone": (lambda: BucketAssigner.date_time_bucket_assigner("yyyy", "Mars/X"), "unknown time zone 'Mars/X'"),
    "a folder of time zones": (lambda: BucketAssigner.date_time_bucket_assigner("yyyy", "Europe"), "unknown time zone"),
    "type of a source": (
        lambda: env().from_source(NumberSequenceSource(0, 5), WatermarkStrategy.no_watermarks(), "n", Types.INT()),
        "from_source() of 'n': the source produces Types.LONG(), not Types.INT()",
    ),
    "columns of PostgreSQL": (lambda: PostgresSource("x", "t", 5), "needs the name of a column"),  # type: ignore
    "asset": (lambda: AssetSource(5, len, Types.ROW([])), "AssetSource() needs the key of an asset, not 5"),  # type: ignore
    "offsets": (lambda: KafkaOffsetsInitializer.offsets("x"), "needs a dict of offsets by KafkaTopic"),  # type: ignore
    "size of windows": (lambda: TumblingEventTimeWindows(SECOND), "TumblingEventTimeWindows(size=...) needs a whole"),
    "slide of windows": (lambda: SlidingEventTimeWindows(5, "x", 0), "SlidingEventTimeWindows(slide=...) needs a"),
    "gap of sessions": (lambda: EventTimeSessionWindows(SECOND), "EventTimeSessionWindows(session_gap=...) needs a"),
    "continuous trigger": (
        lambda: ContinuousEventTimeTrigger(SECOND),
        "a continuous trigger needs a whole",
    ),
    "harness": (lambda: OperatorTestHarness.for_stream(5), "for_stream() needs a function that takes a"),  # type: ignore
    "runtime mode": (lambda: env().set_runtime_mode("BATCH"), "a RuntimeExecutionMode, such as"),
    "configure": (lambda: env().configure({"parallelism.default": "2"}), "configure() needs a Configuration, not {"),
    "from_collection": (lambda: env().from_collection(5), "needs a collection of records, such as a list, not 5"),
    "collection type": (lambda: env().from_collection([5], "LONG"), "needs a type from Types.*, not 'LONG'"),
    "read_text_file": (lambda: env().read_text_file(5), "read_text_file() needs text"),
    "from_source": (lambda: env().from_source("x", WatermarkStrategy.no_watermarks(), "n"), "such as ParquetSource("),
    # what is passed to them
    "seconds": (lambda: Duration.of_seconds("5"), "Duration.of_seconds() needs a number that gives whole"),  # type: ignore
    "no millis": (lambda: Duration.of_millis(None), "Duration.of_millis() needs a number"),  # type: ignore
    "half a millisecond": (lambda: Duration.of_millis(1.5), "whole milliseconds, not 1.5"),  # type: ignore
    "minutes": (lambda: Time.minutes("5"), "Time.minutes() needs a number that gives whole"),  # type: ignore
    "for ever": (lambda: Time.days(float("inf")), "Time.days() needs a number that gives whole"),  # type: ignore
    "tuple": (lambda: Types.TUPLE(Types.INT()), "Types.TUPLE needs a list of types"),  # type: ignore
    "row": (lambda: Types.ROW(Types.INT()), "Types.ROW needs a list of types"),  # type: ignore
    "tumbling": (lambda: TumblingEventTimeWindows.of(5), f"{_SPAN}, not 5"),
    "offset": (lambda: TumblingEventTimeWindows.of(SECOND, 5), f"{_SPAN}, not 5"),
    "processing time": (lambda: TumblingProcessingTimeWindows.of("1 min"), f"{_SPAN}, not '1 min'"),
    "sliding": (lambda: SlidingEventTimeWindows.of(SECOND, 5), f"{_SPAN}, not 5"),
    "session": (lambda: EventTimeSessionWindows.with_gap(5), f"{_SPAN}, not 5"),
    "continuous": (lambda: ContinuousEventTimeTrigger.of(5), f"{_SPAN}, not 5"),
    "out of order": (lambda: WatermarkStrategy.for_bounded_out_of_orderness(5), f"{_DURATION}, not 5"),
    "idleness": (lambda: WatermarkStrategy.no_watermarks().with_idleness(5), f"{_DURATION}, not 5"),
    "tag": (lambda: OutputTag(5), "OutputTag() needs text that is not empty, not 5"),
    "ParquetSource": (lambda: ParquetSource(5), "ParquetSource() needs a path, s3://..., or a StorageLocation, not 5"),
    "row type": (lambda: ParquetSource("x", row_type=PAIRS), "row_type of ParquetSource() needs Types.ROW_NAMED(...)"),
    "files": (lambda: ParquetSource("x", max_files_per_epoch="1"), "needs a whole number of files, not '1'"),
    "rows": (lambda: ParquetSource("x", batch_rows=1.5), "needs a whole number of rows, not 1.5"),
    "ParquetSink": (lambda: ParquetSink(5), "ParquetSink() needs a path, s3://..., or a StorageLocation, not 5"),
    "columns": (
        lambda: ParquetSink("x", partition_by=None),
        "list of columns as partition_by, not None; without any",
    ),
    "columns in text": (lambda: ParquetSink("x", sort_by="a"), "needs a list of columns as sort_by, such as ['a']"),
    "key": (lambda: DeltaSink("x", key=[1]), "DeltaSink() needs a list of columns as key, not [1]"),
    "mean": (lambda: keyed().mean(1.5), "mean() needs the index or the name of a field, not 1.5"),
    "sum of windows": (lambda: windowed().sum(None), "sum() needs the index or the name of a field, not None"),
    "transform_spark": (
        lambda: stream().transform_spark(lambda df: df, "x"),
        "transform_spark() needs Types.ROW_NAMED(...) as output_type, not 'x'",
    ),
    # jobs
    "restarts": (lambda: FixedDelayRestart(3, 10), "FixedDelayRestart(delay=...) needs a timedelta, such as"),
    "retention": (lambda: PartitionRetention("all"), "PartitionRetention(every=...) needs a whole number of"),
    "list_forks": (lambda: list_forks("s3://b/jobs/j"), "list_forks() needs the folder of a job as a StorageLocation"),
    "fork_job": (lambda: fork_job("s3://b/jobs/j", "f"), "fork_job() needs the folder of a job as a StorageLocation"),
    "dispose_job": (lambda: dispose_job("s3://b/jobs/j"), "dispose_job() needs the folder of a job as a Storage"),
    "no environment": (lambda: flink_assets("x", name="n"), "job 'n' needs an environment, or a function that returns"),
    "nothing": (lambda: flink_assets(lambda: None, name="n"), "job 'n' needs an environment, or a function that"),
    "no name": (lambda: flink_assets(env, name=None), "job name None: use letters"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_says_what_to_pass(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(FlinkPyError, match=re.escape(message)):
        call()


KEYED_ONLY = [
    "reduce",
    "sum",
    "min",
    "max",
    "min_by",
    "max_by",
    "count",
    "mean",
    "agg",
    "window",
    "count_window",
    "process_batch",
]


@pytest.mark.parametrize("name", KEYED_ONLY)
def test_calls_of_keyed_streams_ask_for_key_by(name: str) -> None:
    assert hasattr(KeyedStream, name)
    with pytest.raises(AttributeError, match=rf"DataStream' object has no attribute '{name}': call key_by\(\) first"):
        getattr(stream(), name)
    assert not hasattr(stream(), name)


def test_the_calls_that_ask_for_key_by_are_all_there_are() -> None:
    public = {name for name in vars(KeyedStream) if not name.startswith("_")}
    assert {name for name in public if not hasattr(DataStream, name)} == set(KEYED_ONLY)


def test_methods_of_pyflink_that_are_absent_say_what_replaces_them() -> None:
    for made in (stream(), keyed()):
        with pytest.raises(AttributeError, match=r"has no attribute 'add_sink': use sink_to\(\)"):
            made.add_sink(print)


def test_other_missing_attributes_are_plain_errors() -> None:
    for made in (stream(), keyed()):
        with pytest.raises(AttributeError, match=r"has no attribute 'mapp'$"):
            made.mapp(5)
    assert copy.copy(stream()).get_type() == PAIRS


def test_a_span_of_time_may_be_a_fraction_of_a_unit() -> None:
    assert Time.seconds(0.5).to_milliseconds() == Duration.of_seconds(0.5).to_millis() == 500  # type: ignore
    assert all(Duration.of_seconds(n / 1000).to_millis() == n for n in range(10_000))  # type: ignore
    assert Duration.of_seconds(np.int64(5)) == Duration.of_millis(5000)  # type: ignore


def test_a_job_whose_name_is_wrong_can_still_run() -> None:
    program = started()
    with pytest.raises(FlinkPyError):
        program.execute(5)
    assert program.get_job_graph().vertices


def test_spans_of_time_may_be_of_either_kind() -> None:
    assert TumblingEventTimeWindows.of(Duration.of_seconds(1)).size == 1000
    assert WatermarkStrategy.for_bounded_out_of_orderness(SECOND).max_out_of_orderness.millis == 1000  # type: ignore
