from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.reports.late_rows import QUARTER_HOUR_MS, LateRows, late_rows, to_metrics

QUARTERS = st.dictionaries(st.integers(-10_000, 10_000), st.integers(1, 9), max_size=400)


def test_quarters_of_an_hour_that_follow_each_other_are_one_period() -> None:
    metrics = to_metrics({8: 1, 9: 2, 12: 4})
    assert late_rows([metrics, {"records_in": 7, "user.late_rows": 3}, to_metrics({12: 8})]) == (
        LateRows(8 * QUARTER_HOUR_MS, 10 * QUARTER_HOUR_MS, 3),
        LateRows(12 * QUARTER_HOUR_MS, 13 * QUARTER_HOUR_MS, 12),
    )


def test_no_late_rows_have_no_metrics() -> None:
    assert to_metrics({}) == {}
    assert late_rows([{}]) == ()


@given(QUARTERS)
def test_periods_are_few_and_cover_each_row_once(counts: dict[int, int]) -> None:
    found = late_rows([to_metrics(counts)])
    assert len(found) <= 100
    assert all(before.end_ms < after.start_ms for before, after in pairwise(found))
    rows = Counter[int]()
    for quarter, number in counts.items():
        [period] = [i for i, each in enumerate(found) if each.start_ms <= quarter * QUARTER_HOUR_MS < each.end_ms]
        rows[period] += number
    assert [rows[i] for i in range(len(found))] == [each.rows for each in found]


@given(st.dictionaries(st.integers(-10_000, 10_000), st.integers(1, 9), max_size=100))
def test_few_periods_have_no_quarter_without_rows(counts: dict[int, int]) -> None:
    for each in late_rows([to_metrics(counts)]):
        assert set(range(each.start_ms, each.end_ms, QUARTER_HOUR_MS)) <= {q * QUARTER_HOUR_MS for q in counts}
