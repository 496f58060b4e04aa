"""A chart of how keyed state is spread over key groups, for the asset's page in Dagster.

It has fewer than 1,000 characters, because the page shows longer Markdown only behind a link.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from dagster_flinkpy.key_groups import compute_key_group_range_for_operator_index

__all__ = ["skew_chart"]

_MOST_BARS = 64
_MOST_LINES = 16
_BAR, _HEIGHT = 6, 48  # pixels


def skew_chart(rows: Sequence[int], parallelism: int) -> str:
    """Draws the rows by key group as Markdown.

    Args:
        rows: Number of rows of each key group; at least one is not 0.
        parallelism: Number of subtasks that share the key groups. Up to 16 are separated by lines.
    """
    width = -(-len(rows) // _MOST_BARS)
    bars = [sum(rows[start : start + width]) for start in range(0, len(rows), width)]
    most, mean = max(bars), sum(bars) / len(bars)
    svg = _svg(bars, _edges(len(rows), width, parallelism))
    image = f"![Rows by key group](data:image/svg+xml,{quote(svg, safe=chr(39) + '/:=,-')})"
    groups = f"{width} key groups" if width > 1 else "one key group"
    highest = f"Highest: {most:,} rows, {most / mean:.1f} times the mean."
    return f"{image}\n\nEach bar is {groups}; lines separate subtasks.\n\n{highest}"


def _edges(key_groups: int, width: int, parallelism: int) -> list[int]:
    """Returns the pixels at which the next subtask begins."""
    if parallelism > _MOST_LINES:
        return []
    ranges = (compute_key_group_range_for_operator_index(key_groups, parallelism, i) for i in range(1, parallelism))
    return [each.start * _BAR // width for each in ranges]


def _svg(bars: Sequence[int], edges: Sequence[int]) -> str:
    """Draws the bars as one outline, which takes fewer characters than a rectangle for each."""
    most, at, steps = max(bars), 0, []
    for bar in bars:
        height = -(-bar * _HEIGHT // most)  # rounded up, so that every bar that is not empty is visible
        steps.append(f"v{at - height}h{_BAR}" if height != at else f"h{_BAR}")
        at = height
    lines = "".join(f"M{edge},0v{_HEIGHT}" for edge in edges)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{len(bars) * _BAR}' height='{_HEIGHT}'>"
        f"<path fill='teal' d='M0,{_HEIGHT}{''.join(steps)}V{_HEIGHT}z'/><path stroke='red' d='M0,0{lines}'/></svg>"
    )
