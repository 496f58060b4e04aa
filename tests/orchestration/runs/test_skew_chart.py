"""The picture of key-group skew. The browser tests check that Dagster shows it."""

from __future__ import annotations

import re
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from dagster_flinkpy.orchestration.runs.report import skew_chart

SHOWN_IN_PLACE = 1000
"""Dagster's page shows longer Markdown only behind a link."""


def drawn(markdown: str) -> tuple[list[int], list[int]]:
    """Returns the heights of the bars, and the positions of the lines."""
    (image,) = re.findall(r"!\[Rows by key group\]\(data:image/svg\+xml,([^ ()]+)\)", markdown)
    bars, lines = (path.attrib["d"] for path in ElementTree.fromstring(unquote(image)))
    assert bars.startswith("M0,48") and bars.endswith("V48z")
    at, heights = 0, []
    for step, number in re.findall(r"([vh])(-?\d+)", bars):
        if step == "v":
            at -= int(number)
        else:
            heights.append(at)
    return heights, [int(line) for line in re.findall(r"M(\d+),0v48", lines)]


def test_a_bar_for_each_key_group() -> None:
    chart = skew_chart([4, 0, 2, 1], 2)
    assert drawn(chart) == ([48, 0, 24, 12], [12])
    assert "Each bar is one key group" in chart
    assert "Highest: 4 rows, 2.3 times the mean." in chart


def test_many_key_groups_share_bars() -> None:
    heights, lines = drawn(skew_chart([1] * 64 + [3] * 64, 4))
    assert heights == [16] * 32 + [48] * 32
    assert lines == [96, 192, 288]


def test_a_single_row_can_be_seen() -> None:
    assert drawn(skew_chart([1_000_000, 1], 1))[0] == [48, 1]


@pytest.mark.parametrize("parallelism", [1, 16, 17])
@pytest.mark.parametrize("key_groups", [17, 128, 4096, 32768])
def test_it_is_small_enough_to_be_shown_in_place(key_groups: int, parallelism: int) -> None:
    """Bars of full and zero height in turn take the most characters."""
    width = -(-key_groups // 64)
    rows = [10**12 if group // width % 2 else 1 for group in range(key_groups)]
    chart = skew_chart(rows, parallelism)
    assert len(chart) < SHOWN_IN_PLACE
    heights, lines = drawn(chart)
    assert len(heights) <= 64
    assert len(lines) == (parallelism - 1 if parallelism <= 16 else 0)
