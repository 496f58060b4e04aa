"""Compares the whole program on generated days with plain Python on the same files."""

from collections import Counter

import pyarrow.parquet as pq
import pytest
from dagster_flinkpy.testing import run_local

from shop.functions import HOUR_MS, day_of
from shop.generate import generate
from shop.pipeline import TABLES, shop_env


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Returns the folder with the data and the tables of a run."""
    folder = tmp_path_factory.mktemp("shop")
    generate(folder / "data", orders_per_day=100)
    run_local(shop_env(folder / "data", folder / "tables"))
    return folder


def rows(folder):
    return pq.read_table(folder).to_pylist()


def test_more_days_leave_the_first_ones_as_they_are(shop, tmp_path):
    generate(tmp_path, days=2, orders_per_day=100)
    for file in tmp_path.glob("*/*.parquet"):
        assert file.read_bytes() == (shop / "data" / file.relative_to(tmp_path)).read_bytes()


def test_each_order_is_paid_or_reported_once(shop):
    paid, alerts = rows(shop / "tables/paid_orders"), rows(shop / "tables/alerts")
    orders = {row["order_id"]: row for row in rows(shop / "data/orders")}
    assert len(rows(shop / "data/orders")) > len(orders)  # some arrived twice
    in_time = {
        row["order_id"]
        for row in rows(shop / "data/payments")
        if row["paid_at"] - orders[row["order_id"]]["ordered_at"] <= 2 * HOUR_MS
    }
    assert sorted(row["order_id"] for row in paid) == sorted(in_time)
    unpaid = [row["order_id"] for row in alerts if row["alert"] == "order without payment"]
    assert sorted(unpaid) == sorted(orders.keys() - in_time)


def test_the_top_ten_of_each_day(shop):
    assert not (shop / "tables/late_sales").exists()
    amounts = Counter()
    for row in rows(shop / "tables/paid_orders"):
        amounts[day_of(row["ordered_at"]), row["product"]] += row["amount"]
    expected = []
    for day in sorted({day for day, _ in amounts}):
        sold = sorted((-amount, product) for (d, product), amount in amounts.items() if d == day)
        expected += [(day, rank, product, -amount) for rank, (amount, product) in enumerate(sold[:10], start=1)]
    assert sorted(tuple(row.values()) for row in rows(shop / "tables/top_products")) == expected


def test_each_click_is_in_a_session_or_late(shop):
    clicks = len(rows(shop / "data/clicks"))
    late = len(rows(shop / "tables/late_clicks"))
    assert late > 0
    assert sum(row["clicks"] for row in rows(shop / "tables/sessions")) == clicks - late


def test_the_result_does_not_depend_on_the_parallelism(shop, tmp_path):
    run_local(shop_env(shop / "data", tmp_path, parallelism=1))
    for table in ("paid_orders", "alerts", "top_products", "sessions"):
        assert sorted(map(str, rows(tmp_path / table))) == sorted(map(str, rows(shop / "tables" / table))), table
    assert set(TABLES) >= {path.name for path in tmp_path.iterdir()}
