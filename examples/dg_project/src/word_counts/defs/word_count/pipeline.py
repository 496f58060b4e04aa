"""A word count: how often each word has been seen so far. Replace it with your own program."""

from collections.abc import Iterator

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.state import ValueStateDescriptor

COUNTS = Types.ROW_NAMED(["word", "count"], [Types.STRING(), Types.LONG()])


class Count(KeyedProcessFunction):
    """Counts how often each word has been seen so far."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value, count


def pipeline(table: str) -> StreamExecutionEnvironment:
    """Builds the program. Dagster calls it when it loads the code, so it must not read data or use Spark."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    lines = CollectionSource(["to", "be", "or", "not", "to", "be"], Types.STRING(), records_per_epoch=3)
    words = env.from_source(lines, WatermarkStrategy.no_watermarks(), "words").uid("words")
    counts = words.key_by(lambda word: word, Types.STRING()).process(Count(), COUNTS).uid("counts")
    counts.sink_to(ParquetSink(table)).uid("table")
    return env
