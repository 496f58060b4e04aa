"""Windows beyond what PyFlink can show (see tests/pyflink/programs/window_*.py): epochs, processing time, state."""

from __future__ import annotations

import hashlib
import struct
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.cli import main
from dagster_flinkpy.common.serializer import TypeSerializer
from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, WatermarkStrategy
from dagster_flinkpy.datastream import (
    AggregateFunction,
    DataStream,
    KeyedStream,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.datastream.window import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Window,
    WindowAssigner,
)
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError, UserFunctionError
from dagster_flinkpy.testing import OperatorTestHarness
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, ManualClock, collect_all, collect_graph, collected, run_job
from tests.runtime.programs import environment, event_time, events

FIRED = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.LIST(Types.LONG())])
NUMBERS, TEXT = Types.LIST(Types.LONG()), Types.TUPLE([Types.STRING()])
TOTAL = Types.ROW_NAMED(["total", "last"], [Types.LONG(), Types.DOUBLE()])
LATE = OutputTag("late", Types.PICKLED_BYTE_ARRAY())

records_of = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(0, 99)), max_size=25)
properties = settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _cells_are_numbered_anew_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.state.cell_table._SPARE_CELLS", 2)
    monkeypatch.setattr("dagster_flinkpy.state.columns.CACHED", 3)
    monkeypatch.setattr("dagster_flinkpy.state.value_folds.CACHED", 3)


class Values(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return [*accumulator, value.value]

    def get_result(self, accumulator):
        return sorted(accumulator)

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


class Describe(ProcessWindowFunction):
    """Emits key, start, end and values, from elements or from one list of values."""

    def process(self, key, context, elements):
        window = context.window()
        values = [v for e in elements for v in (e if isinstance(e, list) else [e.value])]
        yield key, window.start, window.end, sorted(values)


def described(windowed: Any, aggregated: bool) -> Any:
    if aggregated:
        return windowed.aggregate(Values(), Describe(), Types.LIST(Types.LONG()), FIRED).uid("window")
    return windowed.process(Describe(), FIRED).uid("window")


def sessions_of(records: Iterable[tuple[str, int, int]], gap: int) -> list[Any]:
    """Computes sessions by definition: a session ends if no record follows within the gap."""
    fired = []
    for key in "abc":
        session: list[tuple[int, int]] = []
        for time, value in sorted((time, value) for k, time, value in records if k == key):
            if session and time > session[-1][0] + gap:
                fired.append((key, session[0][0], session[-1][0] + gap, sorted(v for _, v in session)))
                session = []
            session.append((time, value))
        if session:
            fired.append((key, session[0][0], session[-1][0] + gap, sorted(v for _, v in session)))
    return fired


# --- epochs and parallelism -------------------------------------------------------------------------------------------


@properties
@given(records=records_of, per_epoch=st.integers(1, 12), gap=st.integers(1, 20), aggregated=st.booleans())
def test_sessions_merge_across_epochs_and_rescaling(
    records: list[tuple[str, int, int]],
    per_epoch: int,
    gap: int,
    aggregated: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stream = events(environment(2), records, per_epoch=per_epoch, strategy=event_time(100)).key_by("key")
    fired = described(stream.window(EventTimeSessionWindows.with_gap(Time.milliseconds(gap))), aggregated)
    folder = tmp_path_factory.mktemp("sessions")
    assert sorted(run_job(collect_graph(fired), folder, rescale_at={1: 3, 2: 1})) == sorted(sessions_of(records, gap))


TRIGGERS = {
    "default": None,
    "count": CountTrigger.of(2),
    "purging": PurgingTrigger.of(CountTrigger.of(2)),
    "purging event time": PurgingTrigger.of(EventTimeTrigger.create()),
}
ASSIGNERS = {
    "tumbling": TumblingEventTimeWindows(10),
    "sliding": SlidingEventTimeWindows(10, 4),
    "sparse": SlidingEventTimeWindows(4, 10),
    "sessions": EventTimeSessionWindows(5),
}


@properties
@given(
    records=records_of,
    per_epoch=st.integers(1, 12),
    live=st.booleans(),
    assigner=st.sampled_from(sorted(ASSIGNERS)),
    trigger=st.sampled_from(sorted(TRIGGERS)),
    lateness=st.integers(0, 20),
    side=st.booleans(),
    aggregated=st.booleans(),
)
def test_where_epochs_end_changes_nothing(
    records: list[tuple[str, int, int]],
    per_epoch: int,
    live: bool,
    assigner: str,
    trigger: str,
    lateness: int,
    side: bool,
    aggregated: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # One source and batches of one record, so that each record has its own watermark, wherever the epochs end.
    def results(per_epoch: int | None, rescale_at: dict[int, int]) -> list[str]:
        source = events(environment(2), records, per_epoch=per_epoch, batch_size=1).set_parallelism(1)
        windowed = source.key_by("key").window(ASSIGNERS[assigner]).allowed_lateness(lateness)
        if TRIGGERS[trigger] is not None:
            windowed.trigger(TRIGGERS[trigger])
        fired = described(windowed.side_output_late_data(LATE), aggregated)
        graph = collect_graph(fired.get_side_output(LATE) if side else fired)
        return sorted(map(str, run_job(graph, tmp_path_factory.mktemp("epochs"), rescale_at=rescale_at, live=live)))

    assert results(per_epoch, {1: 3, 3: 1}) == results(None, {})


class Unaligned(SlidingEventTimeWindows):
    """The same windows, in the operator that calls assigner and trigger for each record."""


@properties
@given(
    records=records_of,
    size=st.integers(1, 30),
    slide=st.integers(1, 20),
    lateness=st.integers(0, 20),
    batch_size=st.integers(1, 5),
    aggregated=st.booleans(),
)
def test_the_quick_way_fires_what_the_general_one_does(
    records: list[tuple[str, int, int]],
    size: int,
    slide: int,
    lateness: int,
    batch_size: int,
    aggregated: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def fired(assigner: type[SlidingEventTimeWindows]) -> list[str]:
        stream = events(environment(), records, batch_size=batch_size).key_by("key")
        windowed = stream.window(assigner(size, slide)).allowed_lateness(lateness)
        stamped = described(windowed, aggregated).process(Stamped())
        return sorted(map(str, collect_all(stamped, tmp_path_factory.mktemp("quick"))))

    assert fired(SlidingEventTimeWindows) == fired(Unaligned)


class InPlace(Values):
    """The values in the order in which they came; changes what it gets."""

    def add(self, value, accumulator):
        accumulator.append(value.value)
        value.value = -1
        return accumulator

    def get_result(self, accumulator):
        accumulator.append(len(accumulator))
        return accumulator

    def merge(self, acc_a, acc_b):
        raise NotImplementedError


class InTuples(InPlace):
    """The same values; its accumulators cannot change."""

    def create_accumulator(self):
        return ("",)

    def add(self, value, accumulator):
        return (f"{accumulator[0]}{value.value} ",)

    def get_result(self, accumulator):
        numbers = list(map(int, accumulator[0].split()))
        return [*numbers, len(numbers)]


class InRows(InPlace):
    """A number that depends on the order, and the last value, in a row that it changes."""

    def create_accumulator(self):
        return Row(total=0, last=0.0)

    def add(self, value, accumulator):
        accumulator.total, accumulator.last = (31 * accumulator.total + value.value) % 1_000_003, self.last(value.value)
        value.value = -1
        return accumulator

    def last(self, value):
        return value / 2

    def get_result(self, accumulator):
        accumulator.total += 1
        return [accumulator.total, int(2 * accumulator.last), int(type(accumulator.last) is int)]


class InOddRows(InRows):
    """The same; some numbers are not of the declared type."""

    def last(self, value):
        return 2 if value > 7 else value / 2


class InGroups(InPlace):
    """The same values, too; its accumulators have the last group twice."""

    def create_accumulator(self):
        return {"all": [], "open": None}

    def add(self, value, accumulator):
        if value.value % 3 == 0 or not accumulator["all"]:
            accumulator["open"] = []
            accumulator["all"].append(accumulator["open"])
        accumulator["open"].append(value.value)
        return accumulator

    def get_result(self, accumulator):
        return super().get_result([number for group in accumulator["all"] for number in group])


class Hashed(Values):
    """What it keeps can be neither copied nor pickled."""

    def create_accumulator(self):
        return hashlib.md5()

    def add(self, value, accumulator):
        accumulator.update(str(value.value).encode())
        return accumulator

    def get_result(self, accumulator):
        return accumulator.hexdigest()


class InOrder(Describe):
    def process(self, key, context, elements):
        values = [e.value for e in elements]
        for element in elements:
            element.value = -1
        yield key, context.window().start, context.window().end, [*values, len(values)]


def chained(one, other):
    one.value = (31 * one.value + other.value) % 1_000_003
    return one


SHARING = {
    "in place": lambda w: w.aggregate(InPlace(), accumulator_type=Types.LIST(Types.LONG()), output_type=NUMBERS),
    "pickled": lambda w: w.aggregate(InPlace(), output_type=NUMBERS),
    "groups": lambda w: w.aggregate(InGroups(), output_type=NUMBERS),
    "tuples": lambda w: w.aggregate(InTuples(), accumulator_type=TEXT, output_type=NUMBERS),
    "rows": lambda w: w.aggregate(InRows(), accumulator_type=TOTAL, output_type=NUMBERS),
    "odd rows": lambda w: w.aggregate(InOddRows(), accumulator_type=TOTAL, output_type=NUMBERS),
    "elements": lambda w: w.process(InOrder(), FIRED),
    "reduce": lambda w: w.reduce(chained),
}
"""What windows hold, changed in each possible way; the order of the records shows."""


@properties
@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 9)), max_size=25),
    per_epoch=st.integers(1, 25),
    batch_size=st.integers(1, 25),
    size=st.integers(2, 20),
    slide=st.integers(1, 9),
    delay=st.integers(0, 20),
    lateness=st.integers(0, 20),
    contents=st.sampled_from(sorted(SHARING)),
)
@example(
    records=[("a", 2, 1), ("a", 4, 2)],
    per_epoch=2,
    batch_size=1,
    size=4,
    slide=2,
    delay=20,
    lateness=0,
    contents="groups",
)
def test_windows_of_a_key_that_have_the_same_records_share_what_they_hold_and_nobody_sees_that(
    records: list[tuple[str, int, int]],
    per_epoch: int,
    batch_size: int,
    size: int,
    slide: int,
    delay: int,
    lateness: int,
    contents: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def fired(assigner: type[SlidingEventTimeWindows]) -> list[str]:
        source = events(environment(), records, per_epoch=per_epoch, batch_size=batch_size, strategy=event_time(delay))
        keyed = source.key_by("key")
        windowed = SHARING[contents](keyed.window(assigner(size, slide)).allowed_lateness(lateness)).uid("window")
        stamped = windowed.process(Stamped()).uid("stamped")
        return sorted(map(str, run_job(collect_graph(stamped), tmp_path_factory.mktemp("shared"))))

    assert fired(SlidingEventTimeWindows) == fired(Unaligned)


def test_windows_do_not_share_what_cannot_be_copied(tmp_path: Path) -> None:
    def hashes(*records: tuple[str, int, int]) -> list[str]:
        source = events(environment(), records, batch_size=1, strategy=event_time(20)).key_by("key")
        return collect_all(source.window(SlidingEventTimeWindows(4, 2)).aggregate(Hashed()).uid("window"), tmp_path)

    with pytest.raises(TypeMismatchError, match=r"operator 'window'.*HASH.*can be neither copied nor pickled"):
        hashes(("a", 2, 1), ("a", 4, 2))


class Stamped(ProcessFunction):
    def process_element(self, value, ctx):
        yield ctx.timestamp(), value


def test_a_session_that_comes_again_as_it_is_keeps_its_records(tmp_path: Path) -> None:
    class ByValue(SessionWindowTimeGapExtractor):
        def extract(self, element):
            return element.value

    # The second record extends the session to [10, 25), with the state of [10, 20). The third one is [10, 25) itself.
    records = [("a", 10, 10), ("a", 15, 10), ("a", 10, 15)]
    stream = events(environment(), records, per_epoch=1, strategy=event_time(100)).key_by("key")
    windowed = stream.window(EventTimeSessionWindows.with_dynamic_gap(ByValue()))
    assert run_job(collect_graph(described(windowed, aggregated=True)), tmp_path) == [("a", 10, 25, [10, 10, 15])]


def test_count_windows_go_on_in_the_next_epoch(tmp_path: Path) -> None:
    records = [("ab"[i % 2], i, i) for i in range(14)]

    class Ids(WindowFunction):
        def apply(self, key, window, inputs):
            yield key, window.id, 0, [e.value for e in inputs]

    def fired(size: int, slide: int, folder: str) -> list[Any]:
        stream = events(environment(2), records, per_epoch=3).set_parallelism(1).key_by("key")
        windows = stream.count_window(size, slide).apply(Ids(), FIRED).uid("window")
        return sorted(run_job(collect_graph(windows), tmp_path / folder, rescale_at={1: 3}))

    assert fired(3, 0, "tumbling") == [
        ("a", 0, 0, [0, 2, 4]), ("a", 1, 0, [6, 8, 10]), ("b", 0, 0, [1, 3, 5]), ("b", 1, 0, [7, 9, 11])
    ]  # fmt: skip
    assert [f for f in fired(3, 2, "sliding") if f[0] == "a"] == [
        ("a", 0, 0, [0, 2, 4]), ("a", 1, 0, [4, 6, 8]), ("a", 2, 0, [8, 10, 12])
    ]  # fmt: skip


def test_a_join_of_sessions_keeps_their_trigger_state(tmp_path: Path) -> None:
    # Two sessions have counted one record each when a third one joins them.
    records = [("a", 10, 1), ("a", 30, 2), ("a", 20, 3)]
    stream = events(environment(), records, per_epoch=1, strategy=event_time(100)).key_by("key")
    windowed = stream.window(EventTimeSessionWindows(10)).trigger(CountTrigger.of(3))
    assert run_job(collect_graph(described(windowed, aggregated=True)), tmp_path) == [("a", 10, 40, [1, 2, 3])]


# --- processing time --------------------------------------------------------------------------------------------------


def at(times: dict[int, int], windowed_by: Any, folder: Path, trigger: Any = None) -> list[list[Any]]:
    """Returns what fires in each epoch. Epoch ``i`` has one record and runs at ``times[i]``."""
    clock = ManualClock()
    records = [("a", 0, i) for i in times]
    strategy = WatermarkStrategy.no_watermarks()
    windowed = events(environment(), records, per_epoch=1, strategy=strategy).key_by("key").window(windowed_by)
    fired = described(windowed if trigger is None else windowed.trigger(trigger), aggregated=True)
    with HarnessAttempt(collect_graph(fired), folder, clock=clock) as attempt:
        by_epoch = []
        for time in times.values():
            clock.time = time
            attempt.run_epoch()
            by_epoch.append(collected(attempt.graph, attempt.collected))
    return by_epoch


@pytest.mark.parametrize(
    ("assigner", "expected"),
    [
        (
            TumblingProcessingTimeWindows(10),
            [[], [], [("a", 0, 10, [0, 1])], [("a", 10, 20, [2])], [("a", 20, 30, [3])]],
        ),
        (
            SlidingProcessingTimeWindows(10, 5),
            [
                [],
                [("a", -5, 5, [0])],
                [("a", 0, 10, [0, 1])],
                [("a", 5, 15, [1, 2]), ("a", 10, 20, [2])],
                [("a", 15, 25, [3]), ("a", 20, 30, [3])],
            ],
        ),
        (
            ProcessingTimeSessionWindows(8),
            [[], [], [], [("a", 1, 18, [0, 1, 2])], [("a", 24, 32, [3])]],
        ),
    ],
    ids=["tumbling", "sliding", "session"],
)
def test_processing_time_windows_fire_by_the_clock(tmp_path: Path, assigner: Any, expected: list[Any]) -> None:
    assert at({0: 1, 1: 6, 2: 10, 3: 24, 4: 40}, assigner, tmp_path) == expected


def test_a_window_that_is_over_leaves_nothing_behind(tmp_path: Path) -> None:
    at({0: 1, 1: 6, 2: 500, 3: 600}, ProcessingTimeSessionWindows(8), tmp_path)
    for state in ("window-contents", "merging-window-set", "_timers/processing_time"):
        read = ["state", "read", str(tmp_path / "job" / "chk-4"), "--uid", "window", "--state", state]
        rows = CliRunner().invoke(main, [*read, "--format", "json"]).output
        assert len(rows.splitlines()) == 1, rows  # that of the last record


def test_a_continuous_trigger_fires_by_the_clock(tmp_path: Path) -> None:
    trigger = ContinuousProcessingTimeTrigger.of(Time.milliseconds(4))
    fired = at({0: 1, 1: 5, 2: 9, 3: 40}, TumblingProcessingTimeWindows(20), tmp_path, trigger)
    # Due at 4, 8, 12, 16 and 19, when the window is over.
    assert fired == [[], [("a", 0, 20, [0])], [("a", 0, 20, [0, 1])], [("a", 0, 20, [0, 1, 2])] * 3]


def continuous(assigner: Any, trigger: Trigger[Any, Any]) -> OperatorTestHarness:
    def windows(stream: DataStream) -> DataStream:
        by_key = stream.key_by(lambda record: record[0], Types.STRING()).window(assigner).trigger(trigger)
        return by_key.reduce(lambda a, b: (a[0], a[1] + b[1]))

    return OperatorTestHarness.for_stream(windows, input_type=Types.TUPLE([Types.STRING(), Types.LONG()]))


def test_windows_of_event_time_fire_by_the_clock_also_after_their_end() -> None:
    trigger = ContinuousProcessingTimeTrigger.of(Time.milliseconds(5))
    with continuous(TumblingEventTimeWindows(10), trigger) as harness:
        harness.set_processing_time(1)
        harness.process_element(("a", 1), 1)
        fired = []
        for now in (4, 5, 9, 9, 1002, 1004, 1005):
            harness.set_processing_time(now)
            fired.append(len(harness.output))
        assert fired == [0, 1, 2, 2, 3, 3, 4]  # 9 is the last millisecond of the window; then 10, and 1005
        harness.process_element(("a", 2), 14)  # a window whose end has passed already
        harness.set_processing_time(1009)
        assert len(harness.output) == 4
        harness.set_processing_time(1010)
        assert harness.output[4:] == [("a", 1), ("a", 2)]
        harness.process_watermark(9)
        harness.set_processing_time(1015)
        assert harness.output[6:] == [("a", 2)]


def test_a_global_window_that_fires_by_event_time_ends_with_the_input() -> None:
    trigger = ContinuousEventTimeTrigger.of(Time.milliseconds(5))
    with continuous(GlobalWindows.create(), trigger) as harness:
        for time in (1, 7):
            harness.process_element(("a", time), time)
        harness.process_watermark(12)
        assert harness.output == [("a", 8), ("a", 8)]
        harness.end_input()
        assert harness.output_with_timestamps[2:] == [(("a", 8), 15), (("a", 8), MAX_WATERMARK)]


# --- windows of one's own ---------------------------------------------------------------------------------------------


class Named(Window):
    def __init__(self, name: str) -> None:
        self.name = name

    def max_timestamp(self) -> int:
        return 2**63 - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class NamedSerializer(TypeSerializer):
    def serialize(self, element, stream):
        stream.write(struct.pack(">i", len(element.name)) + element.name.encode())

    def deserialize(self, stream):
        (length,) = struct.unpack(">i", stream.read(4))
        return Named(stream.read(length).decode())


class ByParity(WindowAssigner):
    def assign_windows(self, element, timestamp, context):
        return [Named("odd" if element.value % 2 else "even"), Named("all")]

    def get_default_trigger(self, env):
        return CountTrigger.of(3)

    def get_window_serializer(self):
        return NamedSerializer()

    def is_event_time(self):
        return False


def test_windows_of_ones_own(tmp_path: Path) -> None:
    class Names(ProcessWindowFunction):
        def process(self, key, context, elements):
            yield context.window().name, 0, 0, [e.value for e in elements]

    stream = events(environment(2), [("a", 0, i) for i in range(6)], per_epoch=2).set_parallelism(1).key_by("key")
    fired = stream.window(ByParity()).process(Names(), FIRED).uid("window")
    assert sorted(run_job(collect_graph(fired), tmp_path, rescale_at={1: 3})) == [
        ("all", 0, 0, [0, 1, 2]),
        ("all", 0, 0, [0, 1, 2, 3, 4, 5]),
        ("even", 0, 0, [0, 2, 4]),
        ("odd", 0, 0, [1, 3, 5]),
    ]


class TimersAndMetrics(Trigger):
    """Fires at an event-time timer beyond the window, and counts its calls."""

    def on_element(self, element, timestamp, window, ctx):
        ctx.get_metric_group().counter("seen").inc()
        ctx.register_event_time_timer(timestamp + 100)
        ctx.register_event_time_timer(timestamp + 200)
        ctx.delete_event_time_timer(timestamp + 200)
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        assert ctx.get_current_watermark() >= time
        return TriggerResult.FIRE

    def on_processing_time(self, time, window, ctx):
        raise AssertionError

    def on_merge(self, window, ctx):
        raise AssertionError

    def clear(self, window, ctx):
        raise AssertionError


def test_a_trigger_on_global_windows_sets_timers(tmp_path: Path) -> None:
    class Elements(ProcessWindowFunction):
        def process(self, key, context, elements):
            yield key, context.current_watermark(), 0, [e.value for e in elements]

    records = [("a", 1, 1), ("a", 2, 2), ("b", 150, 3), ("b", 400, 4)]
    stream = events(environment(), records, batch_size=1).key_by("key").window(GlobalWindows.create())
    fired = collect_all(stream.trigger(TimersAndMetrics()).process(Elements(), FIRED), tmp_path)
    last = 2**63 - 1
    assert fired == [
        ("a", 149, 0, [1, 2]), ("a", 149, 0, [1, 2]), ("b", 399, 0, [3, 4]), ("b", last, 0, [3, 4])
    ]  # fmt: skip


# --- refused ----------------------------------------------------------------------------------------------------------


def keyed() -> KeyedStream:
    return events(environment(), [("a", 1, 1)]).key_by("key")


class Gap(SessionWindowTimeGapExtractor):
    def extract(self, element):
        return 0


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda: keyed().window(10), "needs a WindowAssigner"),
        (lambda: keyed().window(TumblingEventTimeWindows(10)).trigger(CountTrigger), "needs a Trigger"),
        (lambda: keyed().window(TumblingEventTimeWindows(10)).allowed_lateness(-1), "lateness is negative: -1 ms"),
        (lambda: keyed().window(TumblingEventTimeWindows(10)).apply(Describe()), "apply.. needs a WindowFunction"),
        (
            lambda: keyed().window_all(TumblingEventTimeWindows(10)).process(Describe()),
            "process.. needs a ProcessAllWindowFunction",
        ),
        (
            lambda: keyed().window(TumblingEventTimeWindows(10)).reduce(max, lambda k, w, i: i),
            "reduce.. needs a WindowFunction or ProcessWindowFunction",
        ),
        (lambda: keyed().count_window(0), "at least one record"),
        (lambda: keyed().count_window(2, -1), "slide by at least one record"),
        (lambda: EventTimeSessionWindows.with_gap(Time.seconds(0)), "gap between sessions must be positive"),
        (lambda: EventTimeSessionWindows.with_dynamic_gap(lambda e: 1), "SessionWindowTimeGapExtractor"),
        (lambda: ContinuousProcessingTimeTrigger.of(Time.seconds(0)), "interval of a continuous trigger"),
    ],
)
def test_what_cannot_be_is_refused_at_once(program: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        program()


def test_global_windows_without_a_trigger_are_warned_of() -> None:
    windows = keyed().window(GlobalWindows.create())
    with pytest.warns(UserWarning, match="windows of GlobalWindows never fire by themselves: set a trigger") as warned:
        windows.process(Describe(), FIRED)
    assert [each.filename for each in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        windows.trigger(NeverTrigger()).process(Describe(), FIRED)


def test_a_trigger_that_decides_nothing_is_named(tmp_path: Path) -> None:
    class Undecided(CountTrigger):
        def on_element(self, element, timestamp, window, ctx):
            return None

    windows = keyed().window(TumblingEventTimeWindows(10)).trigger(Undecided(2)).reduce(lambda a, b: a)
    with pytest.raises(TypeMismatchError, match="trigger Undecided returned None: it must return a TriggerResult"):
        collect_all(windows, tmp_path)


def test_a_dynamic_gap_that_is_not_positive_is_an_error_of_the_user(tmp_path: Path) -> None:
    stream = keyed().window(EventTimeSessionWindows.with_dynamic_gap(Gap()))
    with pytest.raises(UserFunctionError, match="must be positive, not 0 ms") as raised:
        collect_all(described(stream, aggregated=True), tmp_path)
    assert raised.value.key == "'a'"


def test_sessions_have_no_state_of_their_own(tmp_path: Path) -> None:
    class Stateful(ProcessWindowFunction):
        def process(self, key, context, elements):
            context.window_state().get_state(ValueStateDescriptor("x", Types.LONG()))
            return []

    with pytest.raises(ConfigurationError, match="windows that merge"):
        collect_all(keyed().window(EventTimeSessionWindows(5)).process(Stateful(), FIRED), tmp_path)


def test_all_windows_run_in_one_subtask(tmp_path: Path) -> None:
    class Elements(ProcessAllWindowFunction):
        def process(self, context, elements):
            yield "", context.window().start, context.window().end, sorted(e.value for e in elements)

    records = [("ab"[i % 2], i, i) for i in range(12)]
    stream = events(environment(3), records, per_epoch=4, strategy=event_time(100))
    fired = stream.window_all(TumblingEventTimeWindows(6)).process(Elements(), FIRED).uid("window")
    graph = collect_graph(fired)
    assert graph.vertex("window").parallelism == 1
    assert run_job(graph, tmp_path) == [("", 0, 6, [0, 1, 2, 3, 4, 5]), ("", 6, 12, [6, 7, 8, 9, 10, 11])]
