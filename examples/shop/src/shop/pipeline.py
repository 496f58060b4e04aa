"""The program: three sources, four operators with state, six tables."""

from pathlib import Path

from dagster_flinkpy.common import Duration, Time, Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.window import EventTimeSessionWindows

from shop.functions import ClickCount, Deduplicate, JoinPayments, TopTen, WithSession, day_of
from shop.records import ALERTS, CLICK, LATE_CLICKS, LATE_SALES, ORDER, PAID_ORDER, PAYMENT, SESSION, TOP_PRODUCT

TABLES = ("paid_orders", "alerts", "top_products", "late_sales", "sessions", "late_clicks")


def shop_env(data: Path | str, tables: Path | str, *, parallelism: int = 2) -> StreamExecutionEnvironment:
    """Builds the program. Dagster calls it when it loads the code, so it reads no data.

    Args:
        data: Folder with the folders ``orders``, ``payments`` and ``clicks``. Each epoch reads one file of each.
        tables: Folder for the tables. Each table is a folder of Parquet files.
        parallelism: Number of subtasks of each operator.
    """
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    env.enable_checkpointing(5 * 60 * 1000)

    def source(name, row_type, time):
        by_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(10)).with_timestamp_assigner(time)
        files = ParquetSource(f"{data}/{name}", row_type=row_type, max_files_per_epoch=1)
        return env.from_source(files, by_time, name).uid(name)

    def write(stream, table):
        stream.sink_to(ParquetSink(f"{tables}/{table}")).uid(f"{table}_table")

    orders = source("orders", ORDER, "ordered_at").key_by("order_id").process(Deduplicate(), ORDER)
    payments = source("payments", PAYMENT, "paid_at").key_by("payment_id").process(Deduplicate(), PAYMENT)
    orders.uid("unique_orders")
    payments.uid("unique_payments")

    paid = orders.connect(payments).key_by("order_id", "order_id").process(JoinPayments(), PAID_ORDER)
    paid.uid("paid_orders")
    write(paid, "paid_orders")
    write(paid.get_side_output(ALERTS), "alerts")

    top = paid.key_by(lambda sale: day_of(sale.ordered_at), Types.LONG()).process(TopTen(), TOP_PRODUCT)
    top.uid("top_products")
    write(top, "top_products")
    write(top.get_side_output(LATE_SALES), "late_sales")

    sessions = (
        source("clicks", CLICK, "clicked_at")
        .key_by("customer")
        .window(EventTimeSessionWindows.with_gap(Time.minutes(30)))
        .side_output_late_data(LATE_CLICKS)
        .aggregate(ClickCount(), WithSession(), accumulator_type=ClickCount.ACCUMULATOR, output_type=SESSION)
    )
    sessions.uid("sessions")
    write(sessions, "sessions")
    write(sessions.get_side_output(LATE_CLICKS), "late_clicks")
    return env
