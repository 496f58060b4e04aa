"""The program whose checkpoint and savepoint were written by the first release with format version 1.

It never changes, and neither does its output: ``tests/fixtures/metadata/v1``. The next version gets another program in
a new module. ``python -m tests.runtime.format_v1 FOLDER`` wrote the fixture.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import (
    AggregateFunction,
    CheckpointedFunction,
    FlatMapFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
)
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import environment, events

FIXTURES = Path(__file__).parents[1] / "fixtures" / "metadata" / "v1"
EPOCHS_BEFORE = 2

_KEYS = "abcdef"
_RECORDS = [(_KEYS[n * n % 6], 10 * n, n) for n in range(48)]
_RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
_LARGE = f"{random.Random(1).getrandbits(240_000):x}"  # does not fit into the metadata


class Mean(AggregateFunction):
    """Sum and count."""

    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Kinds(KeyedProcessFunction):
    """Keeps all kinds of keyed state, and timers. Each output depends on all of them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        context = runtime_context
        self._count = context.get_state(ValueStateDescriptor("count", Types.LONG()))
        expiring = ValueStateDescriptor("expiring", Types.LONG())
        expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.days(36_500)).build())
        self._expiring = context.get_state(expiring)
        self._large = context.get_state(ValueStateDescriptor("large", Types.STRING()))
        self._list = context.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self._map = context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.DOUBLE()))
        self._sum = context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))
        mean = AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()]))
        self._mean = context.get_aggregating_state(mean)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        self._expiring.update((self._expiring.value() or 100) + 1)
        if self._large.value() is None:
            self._large.update(_LARGE)
        self._list.add(value.value)
        self._map.put(str(value.value % 3), value.value / 4)
        self._sum.add(value.value)
        self._mean.add(value.value)
        ctx.timer_service().register_event_time_timer(value.time + 150)
        yield json.dumps(["element", value.key, value.time, *self._all()])

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield json.dumps(["timer", ctx.get_current_key(), timestamp, self._expiring.value() is not None])

    def _all(self) -> list[Any]:
        large = self._large.value()
        entries = dict(self._map.items())
        values = [self._count.value(), self._expiring.value(), large == _LARGE, list(self._list.get())]
        return [*values, sorted(entries.items()), self._sum.get(), self._mean.get()]


class Kept(FlatMapFunction, CheckpointedFunction):
    """Emits in each epoch what it kept from the previous one: each element of the list once, and the whole union."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store = context.get_operator_state_store()
        self._list = store.get_list_state(ListStateDescriptor("kept", Types.LONG()))
        self._union = store.get_union_list_state(ListStateDescriptor("seen", Types.STRING()))
        self._restored = list(self._list.get()) if context.is_restored() else []
        self._seen = sorted(self._union.get())
        self._kept: list[int] = []

    def flat_map(self, value: Any) -> Iterable[Any]:
        for number in self._restored:
            yield json.dumps(["kept", number])
        if self._restored:
            yield json.dumps(["union", self._seen])
        self._restored = []
        self._kept.append(value.value)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._list.update(self._kept)
        self._union.update([f"{number:02}" for number in self._kept])


class Rated(KeyedBroadcastProcessFunction):
    """Multiplies by the rule of the key."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        rule = ctx.get_broadcast_state(_RULES)[value.key] or 0
        yield json.dumps(["rated", value.key, value.time, value.value * rule])

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(_RULES)[value[0]] = value[1]


def program(parallelism: int) -> JobGraph:
    env = environment(parallelism)
    stream = events(env, _RECORDS, per_epoch=12).set_parallelism(1)  # so the records of a key stay in order
    keyed = stream.key_by("key")
    rules = CollectionSource([(key, n) for n, key in enumerate(_KEYS)], Types.TUPLE([Types.STRING(), Types.LONG()]))
    broadcast = env.from_source(rules, WatermarkStrategy.for_monotonous_timestamps(), "rules").uid("rules")
    kinds = keyed.process(Kinds(), Types.STRING()).uid("kinds")
    kept = stream.rebalance().flat_map(Kept(), Types.STRING()).uid("kept")
    rated = keyed.connect(broadcast.broadcast(_RULES)).process(Rated(), Types.STRING()).uid("rated")
    return collect_graph(kinds.union(kept, rated))


def run_on(attempt: HarnessAttempt) -> list[list[Any]]:
    """Runs to the end of the input, and returns the output."""
    rows: list[Any] = []
    while not attempt.finished:
        attempt.run_epoch()
        rows += collected(attempt.graph, attempt.collected)
    return [json.loads(row) for row in rows]


def write_fixture(folder: Path) -> None:
    """Writes two epochs of the job, a savepoint of it, and the output of the later epochs."""
    work = folder / "work"
    with HarnessAttempt(program(2), work) as attempt:
        for _ in range(EPOCHS_BEFORE):
            attempt.run_epoch()
        savepoint = attempt.savepoint(str(work / "savepoints"))
    shutil.copytree(work / "job", folder / "checkpoint" / "job")
    shutil.copytree(savepoint.removeprefix("file://"), folder / "savepoint")
    with HarnessAttempt(program(2), work) as attempt:
        rows = sorted(run_on(attempt), key=repr)
    (folder / "expected.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    shutil.rmtree(work)


if __name__ == "__main__":
    write_fixture(Path(sys.argv[1]))
