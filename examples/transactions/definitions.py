"""Plain assets that write exactly once: daily orders in Parquet, and their sums as CSV.

Run it with ``dagster dev -f definitions.py``. Materialize a day as often as you like, or a range of days: each day has
its rows once.
"""

import os

import dagster as dg
import pandas as pd
from dagster_flinkpy.orchestration import FileSinkResource, build_transaction_checks, build_transactions_job

FOLDER = os.environ.get("ORDERS_HOME", "tables")
days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-08")


def orders_of(day: str) -> pd.DataFrame:
    """Stands for a shop's database."""
    number = int(day[-2:])
    return pd.DataFrame({"id": range(number), "customer": "ann", "amount": 10})


@dg.asset(
    partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run(), retry_policy=dg.RetryPolicy(max_retries=2)
)
def orders(context: dg.AssetExecutionContext, tables: FileSinkResource) -> None:
    with tables.transaction(context, "orders", sort_by=["id"]) as transaction:
        for day in context.partition_keys:
            transaction.write(orders_of(day), partition=day)


@dg.asset(deps=[orders])
def totals(context: dg.AssetExecutionContext, tables: FileSinkResource, reports: FileSinkResource) -> None:
    rows = pd.read_parquet(tables.table("orders").url)
    with reports.transaction(context, "totals") as transaction:
        transaction.write(rows.groupby("customer", as_index=False)[["amount"]].sum())


defs = dg.Definitions(
    assets=[orders, totals],
    asset_checks=[build_transaction_checks(["orders"], resource_key="tables")],
    jobs=[build_transactions_job(["tables", "reports"])],
    resources={
        "tables": FileSinkResource(url=f"{FOLDER}/tables"),
        "reports": FileSinkResource(url=f"{FOLDER}/reports", file_format="csv"),
    },
)
