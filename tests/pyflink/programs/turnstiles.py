"""A state machine per turnstile: what it may do next depends on what it has done; alarms, and a report at the end."""

import json

from pyflink.common import Row, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, OutputTag, StreamExecutionEnvironment
from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor

EVENTS = [
    '{"at": "gate-1", "event": "coin", "time": 10}',
    '{"at": "gate-2", "event": "push", "time": 11}',
    '{"at": "gate-1", "event": "push", "time": 12}',
    '{"at": "gate-1", "event": "push", "time": 13}',
    '{"at": "gate-3", "event": "coin", "time": 14}',
    '{"at": "gate-2", "event": "coin", "time": 15}',
    '{"at": "gate-3", "event": "coin", "time": 16}',
    '{"at": "gate-2", "event": "kick", "time": 17}',
    "not JSON",
    '{"at": "gate-2", "event": "push", "time": 18}',
    '{"at": "gate-3", "event": "push", "time": 19}',
]
NEXT = {
    ("locked", "coin"): "open",
    ("open", "push"): "locked",
    ("locked", "push"): "alarm",
    ("alarm", "push"): "alarm",
    ("alarm", "coin"): "open",
    ("open", "coin"): "open",
}
PARSED = Types.ROW_NAMED(["at", "event", "time"], [Types.STRING(), Types.STRING(), Types.LONG()])
STATE = Types.ROW_NAMED(["name", "since"], [Types.STRING(), Types.LONG()])
ALARM = OutputTag("alarm", Types.STRING())


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value.time


class Turnstile(KeyedProcessFunction):
    def open(self, runtime_context):
        self.state = runtime_context.get_state(ValueStateDescriptor("state", STATE))
        self.spent = runtime_context.get_map_state(MapStateDescriptor("spent", Types.STRING(), Types.LONG()))

    def process_element(self, value, ctx):
        now = self.state.value() or Row("locked", 0)
        after = NEXT.get((now[0], value.event))
        if after is None:
            yield ALARM, f"{value.at}: nothing can {value.event} while {now[0]}"
            return
        if after == "alarm":
            yield ALARM, f"{value.at}: alarm at {value.time}"
        self.spent.put(now[0], (self.spent.get(now[0]) or 0) + value.time - now[1])
        self.state.update(Row(after, value.time))
        ctx.timer_service().register_event_time_timer(100)
        yield f"{value.at}: {now[0]} -> {after}"

    def on_timer(self, timestamp, ctx):
        name, since = self.state.value()
        self.spent.put(name, (self.spent.get(name) or 0) + timestamp - since)
        yield f"{ctx.get_current_key()}: {json.dumps(dict(sorted(self.spent.items())))}"


def parsed(line):
    try:
        event = json.loads(line)
    except ValueError:
        return
    yield Row(at=event["at"], event=event["event"], time=event["time"])


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
    events = env.from_collection(EVENTS, Types.STRING()).flat_map(parsed, PARSED)
    turned = (
        events.assign_timestamps_and_watermarks(strategy)
        .key_by(lambda e: e.at, Types.STRING())
        .process(Turnstile(), Types.STRING())
    )
    turned.print("turnstile")
    turned.get_side_output(ALARM).print("alarm")
    env.execute("turnstiles")


if __name__ == "__main__":
    main()
