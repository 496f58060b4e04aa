"""A program with state of ``Types.BIG_DEC()``, and its savepoint from when that was a column of decimal128(38, 18).

Neither it nor what it wrote, ``tests/fixtures/metadata/decimals``, ever changes.
``python -m tests.runtime.decimals_v1 FOLDER`` wrote the fixture.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import (
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
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tests.runtime.format_v1 import run_on
from tests.runtime.harness import HarnessAttempt, collect_graph
from tests.runtime.programs import environment, events

FIXTURES = Path(__file__).parents[1] / "fixtures" / "metadata" / "decimals"
EPOCHS_BEFORE = 2

_KEYS = "abcdef"
_RECORDS = [(_KEYS[n * n % 6], 10 * n, n) for n in range(48)]
PRICE = Types.BIG_DEC()
NESTED = Types.TUPLE([Types.LIST(PRICE), Types.MAP(PRICE, Types.STRING())])
_RATES = MapStateDescriptor("rates", PRICE, PRICE)


class Prices(KeyedProcessFunction):
    """Decimals in all places of keyed state; each output depends on all of them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._total = runtime_context.get_state(ValueStateDescriptor("total", PRICE))
        self._list = runtime_context.get_list_state(ListStateDescriptor("list", Types.TUPLE([Types.LONG(), PRICE])))
        self._map = runtime_context.get_map_state(MapStateDescriptor("map", PRICE, PRICE))
        self._nested = runtime_context.get_state(ValueStateDescriptor("nested", NESTED))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        price = Decimal(value.value) / 4
        self._total.update((self._total.value() or Decimal(0)) + price)
        self._list.add((value.value, -price))
        step = Decimal(value.value % 5) / 2
        self._map.put(step, (self._map.get(step) or Decimal(0)) + price)
        before = self._nested.value()
        self._nested.update(([*(before[0] if before else [])[-2:], price], {price: value.key}))
        entries = sorted((str(k), str(v)) for k, v in self._map.items())
        listed = [(n, str(each)) for n, each in self._list.get()]
        prices, names = self._nested.value()
        nested = [list(map(str, prices)), {str(k): v for k, v in names.items()}]
        yield json.dumps(["element", value.key, value.time, str(self._total.value()), listed, entries, nested])


class Kept(FlatMapFunction, CheckpointedFunction):
    """Says in each epoch what it has kept of the one before."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._list = context.get_operator_state_store().get_list_state(ListStateDescriptor("kept", PRICE))
        self._restored = list(self._list.get()) if context.is_restored() else []
        self._kept: list[Decimal] = []

    def flat_map(self, value: Any) -> Iterable[Any]:
        for number in self._restored:
            yield json.dumps(["kept", str(number)])
        self._restored = []
        self._kept.append(Decimal(value.value) / 8)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._list.update(self._kept)


class Rated(KeyedBroadcastProcessFunction):
    """Looks up the rate of a decimal."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        rate = ctx.get_broadcast_state(_RATES)[Decimal(value.value % 6) / 2]
        yield json.dumps(["rated", value.key, value.time, str(rate)])

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(_RATES)[Decimal(value) / 2] = Decimal(value) / 16


def program(parallelism: int) -> JobGraph:
    env = environment(parallelism)
    stream = events(env, _RECORDS, per_epoch=12).set_parallelism(1)  # so the records of a key stay in order
    keyed = stream.key_by("key")
    rates = CollectionSource(list(range(6)), Types.LONG())
    broadcast = env.from_source(rates, WatermarkStrategy.for_monotonous_timestamps(), "rates").uid("rates")
    prices = keyed.process(Prices(), Types.STRING()).uid("prices")
    kept = stream.rebalance().flat_map(Kept(), Types.STRING()).uid("kept")
    rated = keyed.connect(broadcast.broadcast(_RATES)).process(Rated(), Types.STRING()).uid("rated")
    return collect_graph(prices.union(kept, rated))


def write_fixture(folder: Path) -> None:
    """Two epochs of the job, a savepoint of it, and what comes out of the epochs after that."""
    work = folder / "work"
    with HarnessAttempt(program(2), work) as attempt:
        for _ in range(EPOCHS_BEFORE):
            attempt.run_epoch()
        savepoint = attempt.savepoint(str(work / "savepoints"))
    shutil.copytree(savepoint.removeprefix("file://"), folder / "savepoint")
    with HarnessAttempt(program(2), work) as attempt:
        rows = sorted(run_on(attempt), key=repr)
    (folder / "expected.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    shutil.rmtree(work)


if __name__ == "__main__":
    write_fixture(Path(sys.argv[1]))
