"""What a newcomer adds to the tutorial, whose `definitions.py` and tables are in the working directory: three jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from dagster import DailyPartitionsDefinition, Definitions

from dagster_flinkpy.common import Row, Time, TypeInformation, Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import (
    BroadcastProcessFunction,
    DataStream,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.orchestration import FlinkAssetChecks, build_checkpoint_sensor, build_flink_jobs, flink_assets

DAYS = ("2024-03-01", "2024-03-02")
NOON = 43_200_000
"""Event time of all sales, in milliseconds."""
SALE = Types.ROW_NAMED(["shop", "amount", "at"], [Types.STRING(), Types.LONG(), Types.LONG()])
SHOP = Types.ROW_NAMED(["shop", "city"], [Types.STRING(), Types.STRING()])
IN_CITY = Types.ROW_NAMED(["city", "amount"], [Types.STRING(), Types.LONG()])
CITIES = MapStateDescriptor("cities", Types.STRING(), Types.STRING())
NO_WATERMARKS = WatermarkStrategy.no_watermarks()


def write_input(folder: Path) -> None:
    """Writes shops, orders, and the sales of two days, below the working directory of the jobs."""
    shops = pa.table({"shop": ["ann", "bob"], "city": ["Bern", "Rome"]})
    files = {"shops/all": shops, "orders/1": _sales(5, 3), f"sales/{DAYS[0]}": _sales(1, 10)}
    for name, table in (files | {f"sales/{DAYS[1]}": _sales(2, 20)}).items():
        file = folder / f"{name}.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(table, file)


def _sales(ann: int, bob: int) -> pa.Table:
    return pa.table({"shop": ["ann", "bob"], "amount": [ann, bob], "at": [NOON] * 2})


class Highest(KeyedProcessFunction):
    """Keeps all amounts of a shop, and says which was the highest."""

    def __init__(self, amount: TypeInformation) -> None:
        self._amount = amount

    def open(self, runtime_context: Any) -> None:
        self._amounts = runtime_context.get_list_state(ListStateDescriptor("amounts", self._amount))

    def process_element(self, value: Row, ctx: Any) -> Iterator[Row]:
        self._amounts.add(value.amount)
        yield Row(value.shop, max(self._amounts.get()), value.at)


class WithCity(BroadcastProcessFunction):
    """Replaces the shop by its city."""

    def process_element(self, value: Row, ctx: Any) -> Iterator[Row]:
        yield Row(ctx.get_broadcast_state(CITIES).get(value.shop) or "unknown", value.amount)

    def process_broadcast_element(self, value: Row, ctx: Any) -> None:
        ctx.get_broadcast_state(CITIES).put(value.shop, value.city)


def environment() -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    return env.enable_checkpointing(1_000)


def orders_env(amount: TypeInformation | None = None) -> StreamExecutionEnvironment:
    """The highest order of each shop. The argument is the type of the amounts in state, by default LONG."""
    env = environment()
    orders = env.from_source(ParquetSource("orders", row_type=SALE), NO_WATERMARKS, "orders").uid("orders")
    highest = orders.key_by("shop").process(Highest(amount or Types.LONG()), SALE).uid("highest")
    highest.sink_to(ParquetSink("tables/orders")).uid("orders_table")
    return env


def changed_orders_env() -> StreamExecutionEnvironment:
    return orders_env(Types.STRING())


def in_cities(sales: DataStream, shops: DataStream) -> DataStream:
    return sales.connect(shops.broadcast(CITIES)).process(WithCity(), IN_CITY).uid("in_cities")


def hours_env() -> StreamExecutionEnvironment:
    """Sums by hour, whose event time the table of shops holds back."""
    env = environment()
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    sales = env.from_source(ParquetSource("orders", row_type=SALE), by_time, "sales").uid("sales")
    shops = env.from_source(ParquetSource("shops", row_type=SHOP), NO_WATERMARKS, "shops").uid("shops")
    hours = in_cities(sales, shops).key_by("city").window(TumblingEventTimeWindows.of(Time.hours(1)))
    hours.sum("amount").uid("hours").sink_to(ParquetSink("tables/hours")).uid("hours_table")
    return env


def days_env() -> StreamExecutionEnvironment:
    """Sales of a day with their cities, from a table that has no days."""
    env = environment()
    source = ParquetSource("sales", row_type=SALE, partition_format="%Y-%m-%d")
    sales = env.from_source(source, NO_WATERMARKS, "sales").uid("sales")
    shops = env.from_source(ParquetSource("shops", row_type=SHOP), NO_WATERMARKS, "shops").uid("shops").static()
    in_cities(sales, shops).sink_to(ParquetSink("tables/days")).uid("days_table")
    return env


def definitions() -> Definitions:
    """The tutorial's definitions, and these."""
    from definitions import defs as tutorial  # type: ignore[import-not-found]  # the tutorial's

    orders = flink_assets(orders_env, name="orders", group_name="orders", checks=FlinkAssetChecks())
    hours = flink_assets(hours_env, name="hours", group_name="hours", checks=FlinkAssetChecks())
    partitions = DailyPartitionsDefinition(DAYS[0], end_date="2024-03-03")
    days = flink_assets(days_env, name="days", group_name="days", partitions_def=partitions)
    mine = Definitions(
        assets=[*orders, *hours, *days],
        jobs=[*build_flink_jobs(orders_env, name="orders"), *build_flink_jobs(hours_env, name="hours")],
        sensors=[build_checkpoint_sensor(orders, minimum_interval_seconds=1)],
    )
    return Definitions.merge(tutorial, mine)
