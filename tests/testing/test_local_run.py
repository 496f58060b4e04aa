"""Runs of whole programs without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.common import Configuration, Instant, Row, Types
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import KeyedProcessFunction, OutputTag, ProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.functions import RuntimeContext
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, JobGraphError, TypeMismatchError, UserFunctionError
from dagster_flinkpy.testing import run_local

COUNTED = Types.ROW_NAMED(["word", "count"], [Types.STRING(), Types.LONG()])


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context):  # type: ignore[no-untyped-def]
        self.count.update((self.count.value() or 0) + 1)
        yield Row(value, self.count.value())


def test_streams_come_back_and_sinks_are_committed(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    words = env.from_collection(["a", "b", "a", "c"], Types.STRING())
    counted = words.key_by(lambda word: word).process(Count(), COUNTED)
    counted.sink_to(ParquetSink(str(tmp_path / "counts")))
    upper, counts = run_local(env, words.map(str.upper, Types.STRING()), counted)
    assert sorted(upper) == ["A", "A", "B", "C"]
    assert sorted((row.word, row["count"]) for row in counts) == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
    rows = pq.read_table(tmp_path / "counts").to_pylist()
    assert sorted((row["word"], row["count"]) for row in rows) == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]


def test_the_environment_forgets_the_program() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    assert run_local(env, env.from_collection([1], Types.LONG())) == [[1]]
    assert run_local(env, env.from_collection([2], Types.LONG())) == [[2]]


def test_a_chain_is_longer_than_pythons_stack_is_deep_by_default() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([0], Types.LONG())
    for _ in range(300):
        stream = stream.map(lambda v: v + 1, Types.LONG())
    assert run_local(env, stream) == [[300]]


def test_streams_part_and_unite_again_many_times(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1, 2, 3], Types.LONG())
    for _ in range(40):  # Each place doubles the ways from the sink to the source.
        stream = stream.filter(lambda v: v % 2 == 0).union(stream.filter(lambda v: v % 2 == 1))
    stream.map(lambda v: Row(v), Types.ROW_NAMED(["v"], [Types.LONG()])).sink_to(ParquetSink(str(tmp_path))).uid("sink")
    (values,) = run_local(env, stream)
    assert sorted(values) == [1, 2, 3]


def local_environment() -> StreamExecutionEnvironment:
    configuration = Configuration()
    configuration.set_string("execution.local", "true")
    return StreamExecutionEnvironment.get_execution_environment(configuration)


def test_an_option_makes_execute_and_collect_local() -> None:
    env = local_environment()
    assert list(env.from_collection([1, 2], Types.LONG()).execute_and_collect()) == [1, 2]


def test_a_failure_says_where() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    broken = env.from_collection([1], Types.LONG()).map(lambda v: v // 0, Types.LONG()).uid("broken")
    with pytest.raises(UserFunctionError, match="'broken'"):
        run_local(env, broken)


def test_breakpoints_stop_in_user_functions(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from dagster_flinkpy.common import Types\n"
        "from dagster_flinkpy.datastream import StreamExecutionEnvironment\n"
        "from dagster_flinkpy.testing import run_local\n"
        "def double(value):\n"
        "    breakpoint()\n"
        "    return value * 2\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "print(run_local(env, env.from_collection([21], Types.LONG()).map(double, Types.LONG())))\n"
    )
    done = subprocess.run(
        [sys.executable, program], input="p value\nw\nc\n", capture_output=True, text=True, check=True
    )
    assert f"{program}(" in done.stdout
    assert done.stdout.rstrip().endswith("[[42]]")


def test_neither_spark_nor_dagster_is_loaded() -> None:
    program = (
        "import sys\n"
        "from dagster_flinkpy.common import Types\n"
        "from dagster_flinkpy.datastream import StreamExecutionEnvironment\n"
        "from dagster_flinkpy.testing import run_local\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "assert run_local(env, env.from_collection([1], Types.LONG())) == [[1]]\n"
        "print([name for name in ('pyspark', 'dagster', 'boto3') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_order_of_records_is_kept() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(3)
    assert run_local(env, env.from_collection(list(range(20)), Types.LONG())) == [list(range(20))]


def test_a_keyed_stream_gives_keys_and_records_as_pyflink_does() -> None:
    env = local_environment()
    words = env.from_collection(["ant", "bee"], Types.STRING())
    assert list(words.key_by(lambda word: word[0]).execute_and_collect()) == [
        Row(f0="a", f1="ant"),
        Row(f0="b", f1="bee"),
    ]
    rows = env.from_collection([Row(1, "x")], Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()]))
    assert rows.key_by("id").execute_and_collect(limit=1) == [Row(f0=1, f1=Row(id=1, name="x"))]
    rows = env.from_collection([Row(1, "x")], Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()]))
    assert rows.key_by(("id", "name")).execute_and_collect("both", 1) == [Row(f0=(1, "x"), f1=Row(id=1, name="x"))]


def test_a_keyed_stream_keeps_the_order_of_records() -> None:
    env = local_environment().set_parallelism(3)
    words = [f"{i} {letter}" for i, letter in enumerate("abcdefgh")]
    keyed = env.from_collection(words, Types.STRING()).key_by(lambda word: word[-1], Types.STRING())
    assert [row.f1 for row in keyed.execute_and_collect()] == words


def test_a_side_output_that_nothing_reads_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    class Halves(ProcessFunction):
        def process_element(self, value: int, ctx: ProcessFunction.Context):  # type: ignore[no-untyped-def]
            yield (OutputTag("odd", Types.LONG()), value) if value % 2 else value

    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_collection([1, 2, 3], Types.LONG())
    assert run_local(env, numbers.process(Halves(), Types.LONG()).uid("halves")) == [[2]]
    (warning,) = (record.getMessage() for record in caplog.records if "side output" in record.getMessage())
    assert warning.startswith("Operator 'halves' sends records to side output 'odd', which nothing reads")


def test_an_instant_with_nanoseconds_is_refused_instead_of_cut() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    late = env.from_collection([1], Types.LONG()).map(lambda v: Instant(0, 1_500), Types.INSTANT())
    with pytest.raises(TypeMismatchError, match="keeps microseconds, not nanoseconds"):
        run_local(env, late)


def test_what_is_no_stream_of_the_program_is_refused() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_collection([1], Types.LONG())
    with pytest.raises(ConfigurationError, match="needs an environment, not 5"):
        run_local(5)  # type: ignore[arg-type]
    for wrong in ([numbers], numbers.print(), numbers.key_by(lambda v: v).count_window(1)):
        with pytest.raises(ConfigurationError, match="returns the records of DataStreams, not of"):
            run_local(env, wrong)  # type: ignore[arg-type]
    other = StreamExecutionEnvironment.get_execution_environment().from_collection([1], Types.LONG())
    with pytest.raises(JobGraphError, match="stream of another environment"):
        run_local(env, other)
