"""Programs of PyFlink that run half in Flink and half here.

make_fixtures.py runs them under PyFlink. The tests read this file with ``dagster_flinkpy`` in place of ``pyflink``.
Each program makes lines of text of records ``(key, time, n)``, which do not depend on when watermarks arrive.
"""

import datetime
import json
from decimal import Decimal

from pyflink.common import Duration, Instant, Row, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    AggregateFunction,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessWindowFunction,
    ReduceFunction,
    StreamExecutionEnvironment,
    WindowFunction,
)
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from pyflink.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)

RECORD = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])
PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
TEXT = Types.STRING()


def lines_of(half):
    """The input: 40 records, and then 30, whose last ones close all windows."""
    if half == 0:
        return [f"k{n * n % 7 % 4},{n * 700},{n}" for n in range(40)]
    more = [f"k{n * n % 7 % 4},{n * 700},{n}" for n in range(40, 66)]
    return more + [f"k{n},{2_000_000 + n},{100 + n}" for n in range(4)]


class Parse(MapFunction):
    def map(self, line):
        key, time, n = line.split(",")
        return key, int(time), int(n)


class Second(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Append(MapFunction):
    def __init__(self, path):
        self.path = path

    def map(self, line):
        with open(self.path, "a") as file:
            file.write(line + "\n")
        return line


def build(name, folder, config=None):
    """The program of a name, which reads new files of ``folder/in`` and appends to ``folder/out``."""
    env = StreamExecutionEnvironment.get_execution_environment(*([] if config is None else [config]))
    env.set_parallelism(2 if name in WIDE else 1)
    env.set_max_parallelism(300 if name in WIDE else 128)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), f"{folder}/in")
    source = source.monitor_continuously(Duration.of_millis(100)).build()
    ascending = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Second())
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines", TEXT).uid("lines").set_parallelism(1)
    stream = stream.map(Parse(), RECORD).uid("parse").set_parallelism(1)
    stream = stream.assign_timestamps_and_watermarks(ascending).uid("times").set_parallelism(1)
    PROGRAMS[name](stream).map(Append(f"{folder}/out"), TEXT).uid("append").set_parallelism(1)
    return env


def keyed(stream):
    return stream.key_by(lambda r: r[0], TEXT)


def say(*values):
    return json.dumps(values)


class Values(KeyedProcessFunction):
    """Values of plain types."""

    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.text = context.get_state(ValueStateDescriptor("text", Types.STRING()))
        self.ratio = context.get_state(ValueStateDescriptor("ratio", Types.DOUBLE()))
        self.even = context.get_state(ValueStateDescriptor("even", Types.BOOLEAN()))

    def process_element(self, r, ctx):
        yield say(r[0], self.count.value(), self.text.value(), self.ratio.value(), self.even.value())
        self.count.update((self.count.value() or 0) + 1)
        self.text.update(((self.text.value() or "") + f"é{r[2]}")[-12:])
        self.ratio.update(r[2] / 3)
        self.even.update(r[2] % 2 == 0)


class Exact(KeyedProcessFunction):
    """Values of decimals, dates, times and bytes."""

    def open(self, context):
        def state(name, kind):
            return context.get_state(ValueStateDescriptor(name, kind))

        self.sum = state("sum", Types.BIG_DEC())
        self.day = state("day", Types.SQL_DATE())
        self.time = state("time", Types.SQL_TIME())
        self.stamp = state("stamp", Types.SQL_TIMESTAMP())
        self.moment = state("moment", Types.INSTANT())
        self.raw = state("raw", Types.PRIMITIVE_ARRAY(Types.BYTE()))
        self.small = state("small", Types.SHORT())

    def process_element(self, r, ctx):
        moment = self.moment.value()
        values = (self.sum, self.day, self.time, self.stamp, self.small)
        shown = None if moment is None else [moment.seconds, moment.nanos]
        raw = self.raw.value()
        yield say(r[0], *(str(each.value()) for each in values), shown, None if raw is None else raw.hex())
        self.sum.update((self.sum.value() or Decimal("0.00")) + Decimal(r[2]) / 8)
        self.day.update(datetime.date(2020, 1, 1) + datetime.timedelta(days=r[2]))
        self.time.update(datetime.time(r[2] % 24, 5, 6, 7000))
        self.stamp.update(datetime.datetime(2021, 2, 3, 4, 5, 6, 7000) + datetime.timedelta(hours=r[2]))
        self.moment.update(Instant(r[2], r[2] * 1000))
        self.raw.update(bytes([r[2], 0, 255]))
        self.small.update(-r[2])


class Rows(KeyedProcessFunction):
    """A value that is a row with names, nulls, and a list in it, and one that is pickled."""

    def open(self, context):
        kind = Types.ROW_NAMED(["n", "name", "last"], [Types.INT(), TEXT, Types.LIST(Types.LONG())])
        self.row = context.get_state(ValueStateDescriptor("row", kind))
        self.any = context.get_state(ValueStateDescriptor("any", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, r, ctx):
        row = self.row.value()
        yield say(r[0], None if row is None else [row.n, row.name, row.last], self.any.value())
        last = [] if row is None else row.last
        self.row.update(Row(n=r[2], name=None if r[2] % 3 else r[0], last=[*last[-2:], r[2]]))
        self.any.update({"seen": [r[2], r[0]], "before": (self.any.value() or {}).get("seen")})


class Lists(KeyedProcessFunction):
    """Lists of tuples and of texts; the second is cleared now and then."""

    def open(self, context):
        self.pairs = context.get_list_state(ListStateDescriptor("pairs", Types.TUPLE([TEXT, Types.LONG()])))
        self.words = context.get_list_state(ListStateDescriptor("words", TEXT))

    def process_element(self, r, ctx):
        self.pairs.add((f"{r[0]}!", r[2]))
        self.words.add_all([f"w{r[2]}", ""])
        yield say(r[0], [list(pair) for pair in self.pairs.get()], list(self.words.get()))
        if r[2] % 11 == 10:
            self.words.clear()


class Maps(KeyedProcessFunction):
    """Maps of numbers, and of rows."""

    def open(self, context):
        self.counts = context.get_map_state(MapStateDescriptor("counts", TEXT, Types.LONG()))
        row = Types.ROW_NAMED(["n", "texts"], [Types.LONG(), Types.MAP(TEXT, Types.LONG())])
        self.rows = context.get_map_state(MapStateDescriptor("rows", Types.INT(), row))

    def process_element(self, r, ctx):
        name = f"m{r[2] % 3}"
        self.counts.put(name, (self.counts.get(name) or 0) + r[2])
        self.rows.put(r[2] % 2, Row(n=r[2], texts={"at": r[1], r[0]: r[2]}))
        rows = {k: [v.n, v.texts] for k, v in self.rows.items()}
        yield say(r[0], sorted(self.counts.items()), sorted(rows.items()))
        if r[2] % 13 == 0:
            self.counts.remove(name)


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        number = value[2] if isinstance(value, tuple) else value
        return accumulator[0] + number, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Folding(KeyedProcessFunction):
    """Reducing and aggregating state."""

    def open(self, context):
        self.largest = context.get_reducing_state(ReducingStateDescriptor("largest", max, Types.LONG()))
        self.mean = context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), PAIR))

    def process_element(self, r, ctx):
        self.largest.add(r[2] % 17)
        self.mean.add(r[2])
        yield say(r[0], self.largest.get(), self.mean.get())


def lasting(descriptor):
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(36500)).build())
    return descriptor


class Lasting(KeyedProcessFunction):
    """State with a time to live."""

    def open(self, context):
        self.last = context.get_state(lasting(ValueStateDescriptor("last", Types.LONG())))
        self.log = context.get_list_state(lasting(ListStateDescriptor("log", Types.LONG())))
        self.by = context.get_map_state(lasting(MapStateDescriptor("by", TEXT, Types.LONG())))

    def process_element(self, r, ctx):
        yield say(r[0], self.last.value(), list(self.log.get() or []), sorted(self.by.items()))
        self.last.update(r[2])
        self.log.add(r[2])
        self.by.put(f"b{r[2] % 3}", r[2])


class Timers(KeyedProcessFunction):
    """Timers of event time that fire long after they were set, some of which are deleted."""

    def process_element(self, r, ctx):
        ctx.timer_service().register_event_time_timer(r[1] + 100_000)
        if r[2] % 5 == 0:
            ctx.timer_service().register_event_time_timer(1_900_000)
        if r[2] % 7 == 6:
            ctx.timer_service().delete_event_time_timer(r[1] + 100_000)

    def on_timer(self, timestamp, ctx):
        if timestamp < 2_000_000:
            yield say(ctx.get_current_key(), timestamp)


class Window(ProcessWindowFunction):
    """What is in a window, and how many of a key have fired; the state is asked for when the first one fires."""

    def process(self, key, context, records):
        fired = context.global_state().get_state(ValueStateDescriptor("fired", Types.LONG()))
        fired.update((fired.value() or 0) + 1)
        window = context.window()
        if window.start < 2_000_000:
            yield say(key, window.start, window.end, sorted(r[2] for r in records), fired.value())


class Contents(WindowFunction):
    def apply(self, key, window, records):
        yield say(key, sorted(r[2] if isinstance(r, tuple) else r for r in records))


class Folded(ProcessWindowFunction):
    """The one result of a window."""

    def process(self, key, context, results):
        window = context.window()
        if window.start < 2_000_000:
            yield say(key, window.start, window.end, list(results))


class Larger(ReduceFunction):
    def reduce(self, a, b):
        return a if a[2] % 17 >= b[2] % 17 else b


RULES = MapStateDescriptor("rules", TEXT, Types.LONG())


class Rules(KeyedBroadcastProcessFunction):
    """Broadcast state, beside keyed state."""

    def open(self, context):
        self.sum = context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, r, ctx):
        self.sum.update((self.sum.value() or 0) + r[2])

    def process_broadcast_element(self, r, ctx):
        rules = ctx.get_broadcast_state(RULES)
        rules.put(f"r{r[2] % 3}", r[2])
        yield say("rules", sorted(rules.items()))


class Plain(BroadcastProcessFunction):
    """Broadcast state without keys."""

    def process_element(self, r, ctx):
        return []

    def process_broadcast_element(self, r, ctx):
        rules = ctx.get_broadcast_state(RULES)
        rules.put(r[0], (rules.get(r[0]) or 0) + r[2])
        yield say(sorted(rules.items()))


class Both(KeyedCoProcessFunction):
    """State of two inputs."""

    def open(self, context):
        self.left = context.get_state(ValueStateDescriptor("left", Types.LONG()))
        self.right = context.get_list_state(ListStateDescriptor("right", Types.LONG()))

    def process_element1(self, r, ctx):
        self.left.update((self.left.value() or 0) + r[2])
        yield say("left", r[0], self.left.value())

    def process_element2(self, r, ctx):
        self.right.add(r[2])
        yield say("right", r[0], list(self.right.get()))


class Count(KeyedProcessFunction):
    """How many records of a key there were, whatever the key is."""

    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, r, ctx):
        self.count.update((self.count.value() or 0) + 1)
        key = ctx.get_current_key()
        yield say(list(key) if isinstance(key, (tuple, Row)) else key, self.count.value())


LATE = OutputTag("odd", RECORD)


class Sides(KeyedProcessFunction):
    """A side output with state before and after it."""

    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last", RECORD))

    def process_element(self, r, ctx):
        if self.last.value() is not None:
            yield LATE, self.last.value()
        self.last.update(r)


def process(function, uid="process"):
    return lambda stream: keyed(stream).process(function(), TEXT).uid(uid)


def by(select, kind):
    return lambda stream: stream.key_by(select, kind).process(Count(), TEXT).uid("count")


def windows(assigner, function=Window):
    return lambda stream: keyed(stream).window(assigner).process(function(), TEXT).uid("windows")


def reduced(stream):
    return keyed(stream).reduce(Larger()).uid("rolling").map(lambda r: say(*r), TEXT).uid("show")


def summed(stream):
    return keyed(stream).sum(2).uid("rolling").map(lambda r: say(r[0], r[2]), TEXT).uid("show")


def window_mean(stream):
    windowed = keyed(stream).window(SlidingEventTimeWindows.of(Time.seconds(20), Time.seconds(10)))
    mean = windowed.aggregate(Mean(), Folded(), PAIR, TEXT)
    return mean.uid("windows")


def window_largest(stream):
    windowed = keyed(stream).window(EventTimeSessionWindows.with_gap(Time.seconds(4)))
    return windowed.reduce(Larger(), Folded2(), TEXT).uid("windows")


class Folded2(Folded):
    def process(self, key, context, results):
        return super().process(key, context, [r[2] for r in results])


def counted(stream):
    return keyed(stream).count_window(5).apply(Contents(), TEXT).uid("windows")


def triggered(stream):
    windowed = keyed(stream).window(TumblingEventTimeWindows.of(Time.hours(2))).trigger(CountTrigger.of(4))
    return windowed.apply(Contents(), TEXT).uid("windows")


def rules(stream):
    return keyed(stream).connect(stream.broadcast(RULES)).process(Rules(), TEXT).uid("rules")


def plain_rules(stream):
    return stream.connect(stream.broadcast(RULES)).process(Plain(), TEXT).uid("rules")


def both(stream):
    left, right = stream.filter(lambda r: r[2] % 3 > 0).uid("some"), stream.filter(lambda r: r[2] % 2 > 0).uid("odd")
    pair = keyed(left).connect(keyed(right))
    return pair.process(Both(), TEXT).uid("both")


def chained(stream):
    counts = keyed(stream).process(Values(), TEXT).uid("values")
    again = counts.key_by(lambda text: json.loads(text)[0] > "k1", Types.BOOLEAN())
    return again.process(Lengths(), TEXT).uid("lengths")


class Lengths(KeyedProcessFunction):
    def open(self, context):
        self.length = context.get_reducing_state(ReducingStateDescriptor("length", lambda a, b: a + b, Types.INT()))

    def process_element(self, text, ctx):
        self.length.add(len(text))
        yield say(ctx.get_current_key(), self.length.get())


def sides(stream):
    main = keyed(stream).process(Sides(), TEXT).uid("sides")
    return keyed(main.get_side_output(LATE)).process(Count(), TEXT).uid("count")


def two_fields(r):
    return Row(r[0], r[2] % 2)


PROGRAMS = {
    "both": both,
    "chained": chained,
    "counted": counted,
    "exact": process(Exact),
    "folding": process(Folding),
    "lasting": process(Lasting),
    "lists": process(Lists),
    "long-keys": by(lambda r: r[2] % 3 - 1, Types.LONG()),
    "maps": process(Maps),
    "plain-rules": plain_rules,
    "reduced": reduced,
    "row-keys": by(two_fields, Types.ROW([TEXT, Types.LONG()])),
    "rows": process(Rows),
    "rules": rules,
    "sessions": windows(EventTimeSessionWindows.with_gap(Time.seconds(4))),
    "sides": sides,
    "summed": summed,
    "timers": process(Timers),
    "triggered": triggered,
    "tumbling": windows(TumblingEventTimeWindows.of(Time.seconds(15))),
    "tuple-keys": by(lambda r: (r[0], r[2] % 2), Types.TUPLE([TEXT, Types.LONG()])),
    "values": process(Values),
    "values-native": process(Values),
    "values-thread": process(Values),
    "wide": by(lambda r: r[0], TEXT),  # with several subtasks PyFlink keeps no order
    "window-largest": window_largest,
    "window-mean": window_mean,
}
WIDE = ("wide",)
