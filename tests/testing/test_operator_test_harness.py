"""The harness for functions, used as in tests of users."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Row, Time, Types
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK
from dagster_flinkpy.datastream import (
    AggregateFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
)
from dagster_flinkpy.datastream.batch_function import KeyedBatchFunction
from dagster_flinkpy.datastream.functions import RuntimeContext
from dagster_flinkpy.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import (
    ConfigurationError,
    StateSchemaError,
    TypeMismatchError,
    UserFunctionError,
)
from dagster_flinkpy.testing import OperatorTestHarness
from tests.examples import examples

WORD, COUNT = Types.STRING(), Types.TUPLE([Types.STRING(), Types.LONG()])
LATE = OutputTag("late", Types.STRING())


class Count(KeyedProcessFunction):
    """Counts words. Emits the count ten milliseconds of event time after each word, and late words to a side output."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = 0
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.times = runtime_context.get_list_state(ListStateDescriptor("times", Types.LONG()))
        self.by_length = runtime_context.get_map_state(MapStateDescriptor("by length", Types.LONG(), Types.STRING()))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if value == "fail":
            raise ValueError("a word that fails")
        if ctx.timestamp() <= ctx.timer_service().current_watermark() != MIN_WATERMARK:
            yield LATE, value
            return
        self.seen += 1
        self.count.update((self.count.value() or 0) + 1)
        self.by_length.put(len(value), value)
        if ctx.timestamp() > MIN_WATERMARK:
            self.times.add(ctx.timestamp())
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        yield value, self.seen

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield f"{ctx.get_current_key()}@{timestamp}", self.count.value()


def counting(**options: Any) -> OperatorTestHarness:
    options = {"side_outputs": [LATE], "output_type": COUNT, **options}
    return OperatorTestHarness(Count(), key_by=lambda word: word[0], input_type=WORD, **options)


# --- records, time, state ---------------------------------------------------------------------------------------------


def test_records_go_through_the_function_one_by_one() -> None:
    with counting() as harness:
        harness.process_element("a", 1)
        assert harness.output == [("a", 1)]
        harness.process_element("b", 2)
        assert harness.output_with_timestamps == [(("a", 1), 1), (("b", 2), 2)]
        harness.process_element("c")
        assert harness.output_with_timestamps[-1] == (("c", 3), None)
        harness.clear_output()
        assert harness.output == []


def test_timers_fire_when_the_watermark_passes_and_late_records_go_to_a_side_output() -> None:
    with counting() as harness:
        harness.process_element("a", 1)
        harness.process_element("b", 5)
        harness.clear_output()
        harness.process_watermark(10)
        assert harness.output == []
        harness.process_watermark(11)
        assert harness.output_with_timestamps == [(("a@11", 1), 11)]
        assert harness.watermarks == [10, 11]
        harness.process_element("a", 11)
        assert harness.side_output(LATE) == ["a"]
        harness.end_input()
        assert harness.output[-1] == ("b@15", 1)
        assert harness.watermarks[-1] == MAX_WATERMARK


def test_state_is_read_as_the_function_sees_it() -> None:
    with counting(parallelism=3) as harness:
        for time, word in enumerate(["apple", "avocado", "banana", "acorn"]):
            harness.process_element(word, time)
        assert harness.state("count", "a") == 3
        assert harness.state("times", "a") == [0, 1, 3]
        assert harness.state("by length", "a") == {5: "acorn", 7: "avocado"}
        assert harness.state("count", "b") == 1
        assert harness.state("count", "z") is None
        assert harness.state("by length", "z") == {}
        harness.process_element("banana", 9)  # reading leaves no key behind
        assert harness.state("count", "b") == 2


def test_before_the_first_record_there_is_no_state() -> None:
    with counting() as harness:
        assert harness.state("count", "a") is None


def test_a_state_that_is_not_there_is_named_with_those_that_are() -> None:
    with (
        counting() as harness,
        pytest.raises(ConfigurationError, match=r"'cuont' .* by length, count, times"),
    ):
        harness.state("cuont", "a")


class Alarm(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = ValueStateDescriptor("recent", Types.STRING())
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(100)).build())
        self.recent = runtime_context.get_state(descriptor)

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 50)
        yield self.recent.value()
        self.recent.update(value)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield f"ring {timestamp} at {ctx.timer_service().current_processing_time()}"


def test_processing_time_stands_still_until_it_is_set() -> None:
    with OperatorTestHarness(Alarm(), key_by=lambda v: 1) as harness:
        harness.process_element("x")
        harness.set_processing_time(49)
        assert harness.output == [None]
        harness.set_processing_time(50)
        assert harness.output == [None, "ring 50 at 50"]
        harness.process_element("y")
        assert harness.output[-1] == "x"
        harness.set_processing_time(250)
        assert harness.output[-1] == "ring 100 at 250"
        harness.process_element("z")
        assert harness.output[-1] is None, "the state has expired"
        with pytest.raises(ConfigurationError, match="249 is before the current time, 250"):
            harness.set_processing_time(249)


# --- snapshots --------------------------------------------------------------------------------------------------------


def test_a_timer_whose_time_has_passed_fires_when_a_snapshot_is_restored() -> None:
    with OperatorTestHarness(Alarm(), key_by=lambda v: 1) as harness:
        harness.process_element("x")
        snapshot = harness.snapshot()
        harness.set_processing_time(1000)
        harness.clear_output()
        harness.restore(snapshot)
        assert harness.output == ["ring 50 at 1000"]


@pytest.mark.parametrize("parallelism", [None, 1, 3])
def test_a_snapshot_is_restored_at_any_parallelism(parallelism: int | None) -> None:
    with counting(parallelism=2) as harness:
        for time, word in enumerate(["ant", "bee", "cow", "dog", "ape"]):
            harness.process_element(word, time)
        harness.process_watermark(3)
        snapshot = harness.snapshot()
        harness.process_element("ass", 20)
        assert harness.state("count", "a") == 3
        harness.restore(snapshot, parallelism=parallelism)
        harness.clear_output()
        assert [harness.state("count", key) for key in "abcd"] == [2, 1, 1, 1]
        harness.process_element("ant", 2)
        assert harness.side_output(LATE) == ["ant"], "event time is restored"
        harness.end_input()
        assert sorted(harness.output) == [("a@10", 2), ("a@14", 2), ("b@11", 1), ("c@12", 1), ("d@13", 1)]


def test_a_snapshot_outlives_its_harness_and_is_restored_in_another_version() -> None:
    with counting() as old:
        old.process_element("ant", 1)
        snapshot = old.snapshot()
    del old
    gc.collect()
    with counting() as new:
        new.restore(snapshot)
        assert new.state("count", "a") == 1
    rows = snapshot.reader.state("operator", "count").to_arrow().to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [("a", 1)]


class CountInText(Count):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.STRING()))


def test_state_of_another_type_is_refused_as_in_a_job() -> None:
    with counting() as harness:
        harness.process_element("ant", 1)
        snapshot = harness.snapshot()
    other = OperatorTestHarness(CountInText(), key_by=lambda word: word[0], input_type=WORD)
    with pytest.raises(StateSchemaError, match="count"):
        other.restore(snapshot)


def test_functions_are_opened_anew_after_a_snapshot_as_in_each_epoch() -> None:
    with counting() as harness:
        harness.process_element("a")
        harness.snapshot()
        harness.process_element("a")
        assert harness.output == [("a", 1), ("a", 1)], "what is not in state is gone"
        assert harness.state("count", "a") == 2


@settings(max_examples=examples(30))
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 20))),
    st.integers(0, 30),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_a_snapshot_in_the_middle_changes_nothing(
    words: list[tuple[str, int]], cut: int, before: int, after: int
) -> None:
    straight, parted = counting(), counting(parallelism=before)
    for i, (word, time) in enumerate(words):
        if i == cut:
            parted.restore(parted.snapshot(), parallelism=after)
        for harness in (straight, parted):
            harness.process_element(word, time)
            harness.process_watermark(time - 5)
    for harness in (straight, parted):
        harness.end_input()
    timers = [[each for each in harness.output if "@" in each[0]] for harness in (straight, parted)]
    assert sorted(timers[0]) == sorted(timers[1])
    assert straight.side_output(LATE) == parted.side_output(LATE)
    assert [straight.state("count", key) for key in "abcdefgh"] == [parted.state("count", key) for key in "abcdefgh"]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_of_the_function_is_raised_with_its_cause() -> None:
    harness = counting()
    with pytest.raises(UserFunctionError, match="'operator'") as caught:
        harness.process_element("fail")
    assert isinstance(caught.value.__cause__, ValueError)


def test_declared_types_are_checked() -> None:
    with pytest.raises(TypeMismatchError, match="input1"):
        counting().process_element(7)
    harness = OperatorTestHarness(Count(), key_by=lambda word: word[0], input_type=WORD, output_type=Types.LONG())
    with pytest.raises(TypeMismatchError, match="operator"):
        harness.process_element("word")


def test_what_is_no_function_of_one_operator_is_refused() -> None:
    class Sum(AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: int, accumulator: int) -> int:
            return accumulator + value

        def get_result(self, accumulator: int) -> int:
            return accumulator

        def merge(self, acc_a: int, acc_b: int) -> int:
            return acc_a + acc_b

    with pytest.raises(ConfigurationError, match=r"Sum is not a function .*for_stream\(\)"):
        OperatorTestHarness(Sum(), key_by=lambda v: v)
    with pytest.raises(ConfigurationError, match="only one input"):
        counting().process_element2("a")
    with pytest.raises(ConfigurationError, match="'other' is not recorded"):
        counting().side_output(OutputTag("other", WORD))


# --- all kinds of functions -------------------------------------------------------------------------------------------


class Upper(MapFunction):
    def map(self, value: str) -> str:
        return value.upper()


class Letters(FlatMapFunction):
    def flat_map(self, value: str) -> Iterator[str]:
        yield from value


class Long(FilterFunction):
    def filter(self, value: str) -> bool:
        return len(value) > 2


class Twice(ProcessFunction):
    def process_element(self, value: str, ctx: ProcessFunction.Context) -> Iterator[str]:
        yield value
        yield value


class Join(ReduceFunction):
    def reduce(self, value1: str, value2: str) -> str:
        return value1 + value2


class Lengths(KeyedBatchFunction):
    def process_batch(self, keys: Any, batch: Any, state: Any) -> Any:
        return pa.record_batch({"value": pc.utf8_length(batch.column(0)).cast(pa.int64())})


@pytest.mark.parametrize(
    ("function", "options", "output"),
    [
        (Upper(), {"output_type": WORD}, ["AB", "ABC"]),
        (Letters(), {}, ["a", "b", "a", "b", "c"]),
        (Long(), {}, ["abc"]),
        (Twice(), {}, ["ab", "ab", "abc", "abc"]),
        (Join(), {"key_by": lambda word: word[0]}, ["ab", "ababc"]),
        (Lengths(), {"key_by": lambda word: word[0], "output_type": Types.LONG()}, [2, 3]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_functions_of_one_stream(function: Any, options: dict[str, Any], output: list[Any]) -> None:
    with OperatorTestHarness(function, input_type=WORD, **options) as harness:
        harness.process_element("ab")
        harness.process_element("abc")
        assert harness.output == output


class BothMapped(CoMapFunction):
    def map1(self, value: Any) -> str:
        return f"1{value}"

    def map2(self, value: Any) -> str:
        return f"2{value}"


class BothFlat(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Iterator[str]:
        yield f"1{value}"

    def flat_map2(self, value: Any) -> Iterator[str]:
        yield f"2{value}"


class Both(CoProcessFunction):
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[str]:
        yield f"1{value}"

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[str]:
        yield f"2{value}"


@pytest.mark.parametrize("function", [BothMapped(), BothFlat(), Both()], ids=lambda each: type(each).__name__)
def test_functions_of_two_streams(function: Any) -> None:
    with OperatorTestHarness(function, input_type=[WORD, Types.LONG()], parallelism=2) as harness:
        harness.process_element1("a")
        harness.process_element2(5)
        assert harness.output == ["1a", "25"]
        harness.process_watermark1(7)
        assert harness.watermarks == []
        harness.process_watermark2(5)
        assert harness.watermarks == [5]


class Pairs(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.left = runtime_context.get_state(ValueStateDescriptor("left", Types.STRING()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        self.left.update(value.name)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        yield Row(self.left.value(), value.amount)


def test_a_keyed_join_of_two_streams() -> None:
    harness = OperatorTestHarness(
        Pairs(),
        key_by="id",
        input_type=[
            Types.ROW_NAMED(["id", "name"], [Types.LONG(), WORD]),
            Types.ROW_NAMED(["id", "amount"], [Types.LONG(), Types.DOUBLE()]),
        ],
        output_type=Types.ROW_NAMED(["name", "amount"], [WORD, Types.DOUBLE()]),
        parallelism=2,
    )
    with harness:
        harness.process_element(Row(1, "one"))
        harness.process_element(Row(2, "two"))
        harness.process_element2(Row(2, 0.5))
        harness.process_element2(Row(3, 1.5))
        assert harness.output == [Row(name="two", amount=0.5), Row(name=None, amount=1.5)]
        assert harness.state("left", 1) == "one"


RULES = MapStateDescriptor("rules", WORD, Types.LONG())


class Limits(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.get_broadcast_state(RULES).get(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(*value)


class KeyedLimits(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), ctx.get_broadcast_state(RULES).get(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(*value)


def test_broadcast_functions_and_their_state() -> None:
    options: dict[str, Any] = {"input_type": [WORD, COUNT]}
    with OperatorTestHarness(Limits(), parallelism=2, **options) as harness:
        harness.process_broadcast_element(("a", 3))
        harness.process_element("a")
        harness.restore(harness.snapshot(), parallelism=3)
        harness.process_element("a")
        harness.process_element("b")
        assert harness.output == [("a", 3), ("a", 3), ("b", None)]
    with OperatorTestHarness(KeyedLimits(), key_by=lambda v: v * 2, **options) as harness:
        harness.process_broadcast_element(("a", 3))
        harness.process_element("a")
        assert harness.output == [("aa", 3)]


@pytest.mark.parametrize("function", [Count(), Join(), Pairs(), KeyedLimits()], ids=lambda each: type(each).__name__)
def test_a_function_with_keys_is_told_which_argument_is_missing(function: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{type(function).__name__} needs a keyed stream: pass key_by"):
        OperatorTestHarness(function, key_by=[None, "id"] if isinstance(function, Pairs) else None)


def test_a_key_field_asks_for_the_type_that_has_it() -> None:
    with pytest.raises(ConfigurationError, match=r"key_by='id' needs records with fields: pass input_type=Types\.ROW"):
        OperatorTestHarness(Count(), key_by="id")


def test_a_broadcast_function_without_keys_is_told_which_argument_is_too_much() -> None:
    with pytest.raises(ConfigurationError, match=r"Limits is for a stream without keys: leave key_by=\.\.\. out"):
        OperatorTestHarness(Limits(), key_by=lambda v: v)


# --- parts of programs ------------------------------------------------------------------------------------------------


def test_windows_and_several_operators() -> None:
    def long_words_per_minute(words: DataStream) -> DataStream:
        long = words.filter(Long()).map(Upper(), WORD).uid("upper")
        windows = long.key_by(lambda word: word[0], WORD).window(TumblingEventTimeWindows.of(Time.minutes(1)))
        return windows.reduce(Join()).uid("joined")

    with OperatorTestHarness.for_stream(long_words_per_minute, input_type=WORD, parallelism=2) as harness:
        for time, word in enumerate(["abc", "no", "abd"]):
            harness.process_element(word, time)
        snapshot = harness.snapshot()
        harness.process_watermark(60_000)
        assert harness.output_with_timestamps == [("ABCABD", 59_999)]
        harness.restore(snapshot)
        harness.process_element("axe", 59_999)
        harness.process_watermark(60_000)
        assert harness.output[-1] == "ABCABDAXE"
        with pytest.raises(ConfigurationError, match="can be read from a snapshot"):
            harness.state("anything", "A")


def test_a_part_of_a_program_with_two_streams() -> None:
    with OperatorTestHarness.for_stream(lambda a, b: a.union(b).map(Upper(), WORD), input_type=[WORD, WORD]) as harness:
        harness.process_element("a")
        harness.process_element2("b")
        assert harness.output == ["A", "B"]


def test_a_class_or_no_function_at_all_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"not the class Count: pass an instance, Count\(\)"):
        OperatorTestHarness(Count, key_by=lambda v: v)
    with pytest.raises(ConfigurationError, match=r"needs a function object of the DataStream API, .* not 5"):
        OperatorTestHarness(5)


def test_times_and_arguments_of_other_types_are_refused() -> None:
    with counting() as harness:
        for wrong in ("1", 1.5, True, 2**63):
            with pytest.raises(ConfigurationError, match=r"the timestamp is .* 64-bit int milliseconds"):
                harness.process_element("a", wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="the watermark is"):
                harness.process_watermark(wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="the processing time is"):
                harness.set_processing_time(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="needs an OutputTag, not 'late'"):
            harness.side_output("late")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"needs what snapshot\(\) returned, not None"):
            harness.restore(None)  # type: ignore[arg-type]
        harness.process_element("a", 1)
        assert harness.state("count", "a") == 1


def test_state_of_another_type_is_found_at_the_latest_when_the_harness_is_closed() -> None:
    class Wrong(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.state = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

        def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> None:
            self.state.update(value)

    harness = OperatorTestHarness(Wrong(), key_by=lambda word: word, input_type=WORD)
    harness.process_element("a")
    with pytest.raises(TypeMismatchError, match="state 'last' of key 'a': declared LONG"):
        harness.close()


@pytest.mark.parametrize("record", [Row("a", 1), Row(word="a"), "ab", b"ab", {"a": 1}, (LATE, "a")])
def test_a_record_that_is_returned_is_not_taken_for_its_parts(record: Any) -> None:
    class Returns(KeyedProcessFunction):
        def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Any:
            return record if value == "alone" else [record]

    with OperatorTestHarness(Returns(), key_by=lambda word: word, input_type=WORD) as harness:
        harness.process_element("in a list")
        assert harness.output == ([record] if type(record) is not tuple else [])
        with pytest.raises(TypeMismatchError, match="instead of records: `yield` them, or return a list"):
            harness.process_element("alone")


@pytest.mark.parametrize("kind", [Types.TUPLE([WORD, WORD]), Types.ROW([WORD, WORD])])
def test_a_tuple_that_is_returned_where_records_are_tuples_is_not_taken_for_its_fields(kind: Any) -> None:
    class Returns(KeyedProcessFunction):
        def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Any:
            return (value, value) if value == "alone" else ((value, value),)

    with OperatorTestHarness(Returns(), key_by=lambda word: word, input_type=WORD, output_type=kind) as harness:
        harness.process_element("in a tuple")
        assert [tuple(record) for record in harness.output] == [("in a tuple", "in a tuple")]
        with pytest.raises(TypeMismatchError, match=r"'alone'.*instead of records: `yield` them, or return a list"):
            harness.process_element("alone")
