"""Tests each function separately, record by record."""

import pytest
from dagster_flinkpy.common import Row
from dagster_flinkpy.testing import OperatorTestHarness

from shop.functions import DAY_MS, HOUR_MS, Deduplicate, JoinPayments, TopTen, day_of
from shop.records import ALERTS, LATE_SALES, ORDER, PAID_ORDER, PAYMENT, TOP_PRODUCT


def order(order_id="o1", product="tea", amount=500, at=0):
    return Row(order_id, "ann", product, amount, at)


def paid(product="tea", amount=500, at=0):
    return Row("o1", "ann", product, amount, at, at)


@pytest.fixture
def join():
    harness = OperatorTestHarness(
        JoinPayments(),
        key_by="order_id",
        input_type=[ORDER, PAYMENT],
        output_type=PAID_ORDER,
        side_outputs=[ALERTS],
    )
    with harness:
        yield harness


def test_duplicates_are_dropped_for_a_day():
    with OperatorTestHarness(Deduplicate(), key_by="order_id", input_type=ORDER, output_type=ORDER) as harness:
        harness.process_element(order("o1"), 0)
        harness.process_element(order("o1"), 1_000)
        harness.process_element(order("o2"), 2_000)
        assert [row.order_id for row in harness.output] == ["o1", "o2"]
        harness.process_watermark(DAY_MS)
        assert harness.state("seen", "o1") is None  # so the state does not grow forever
        assert harness.state("seen", "o2") is True


def test_a_payment_finds_its_order(join):
    join.process_element(order(), 0)
    join.process_element2(Row("p1", "o1", HOUR_MS), HOUR_MS)
    join.end_input()
    assert [(row.order_id, row.amount, row.paid_at) for row in join.output] == [("o1", 500, HOUR_MS)]
    assert join.side_output(ALERTS) == []


def test_an_order_finds_the_payment_that_came_first(join):
    join.process_element2(Row("p1", "o1", HOUR_MS), HOUR_MS)
    assert join.output == []
    join.process_element(order(), 0)
    join.end_input()
    assert [row.paid_at for row in join.output] == [HOUR_MS]
    assert join.side_output(ALERTS) == []


def test_the_timer_reports_an_order_that_is_not_paid(join):
    join.process_element(order(), 0)
    join.process_watermark(2 * HOUR_MS - 1)
    assert join.side_output(ALERTS) == []
    join.process_watermark(2 * HOUR_MS)
    assert [tuple(alert) for alert in join.side_output(ALERTS)] == [("order without payment", "o1", 2 * HOUR_MS)]
    assert join.state("order", "o1") is None


def test_a_payment_after_more_than_two_hours_matches_nothing(join):
    join.process_element(order(), 0)
    join.process_element2(Row("p1", "o1", 3 * HOUR_MS), 3 * HOUR_MS)
    join.end_input()
    assert join.output == []
    assert sorted(alert.alert for alert in join.side_output(ALERTS)) == [
        "order without payment",
        "payment without order",
    ]


def test_an_order_that_waits_survives_a_checkpoint_and_more_subtasks(join):
    join.process_element(order(), 0)
    snapshot = join.snapshot()
    join.restore(snapshot, parallelism=3)
    join.process_element2(Row("p1", "o1", HOUR_MS), HOUR_MS)
    assert [row.order_id for row in join.output] == ["o1"]


def test_the_ten_best_products_of_a_day_and_what_comes_too_late():
    harness = OperatorTestHarness(
        TopTen(),
        key_by=lambda sale: day_of(sale.ordered_at),
        input_type=PAID_ORDER,
        output_type=TOP_PRODUCT,
        side_outputs=[LATE_SALES],
    )
    with harness:
        for number in range(12):
            harness.process_element(paid(f"p{number:02}", 100 * number), 0)
        harness.process_element(paid("p00", 5_000), 0)
        harness.process_watermark(DAY_MS + 2 * HOUR_MS)
        assert [(row.rank, row.product) for row in harness.output[:3]] == [(1, "p00"), (2, "p11"), (3, "p10")]
        assert len(harness.output) == 10
        harness.process_element(paid("tea"), 0)
        assert [row.product for row in harness.side_output(LATE_SALES)] == ["tea"]
