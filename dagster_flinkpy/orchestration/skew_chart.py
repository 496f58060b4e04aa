"""A picture of how keyed state is spread over key groups, for Dagster's page.

It is below 1,000 characters: the page shows longer Markdown behind a link only.
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
    """Markdown with a picture of rows by key group.

    Args:
        rows: For each key group; at least one is not 0.
        parallelism: Subtasks that share the key groups; up to 16 are told apart by lines.
    """
    width = -(-len(rows) // _MOST_BARS)
    bars = [sum(rows[start : start + width]) for start in range(0, len(rows), width)]
    most, mean = max(bars), sum(bars) / len(bars)
    svg = _svg(bars, _edges(len(rows), width, parallelism))
    image = f"![Rows by key group](data:image/svg+xml,{quote(svg, safe=chr(39) + '/:=,-')})"
    groups = f"{width} key groups" if width > 1 else "a key group"
    highest = f"Highest: {most:,} rows, {most / mean:.1f} times the mean."
    return f"{image}\n\nA bar is {groups}, a line parts subtasks.\n\n{highest}"


def _edges(key_groups: int, width: int, parallelism: int) -> list[int]:
    """Where the next subtask begins, in pixels."""
    if parallelism > _MOST_LINES:
        return []
    ranges = (compute_key_group_range_for_operator_index(key_groups, parallelism, i) for i in range(1, parallelism))
    return [each.start * _BAR // width for each in ranges]


def _svg(bars: Sequence[int], edges: Sequence[int]) -> str:
    """An outline that goes up and down from bar to bar; shorter than a rectangle for each."""
    most, at, steps = max(bars), 0, []
    for bar in bars:
        height = -(-bar * _HEIGHT // most)  # what there is can be seen
        steps.append(f"v{at - height}h{_BAR}" if height != at else f"h{_BAR}")
        at = height
    lines = "".join(f"M{edge},0v{_HEIGHT}" for edge in edges)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{len(bars) * _BAR}' height='{_HEIGHT}'>"
        f"<path fill='teal' d='M0,{_HEIGHT}{''.join(steps)}V{_HEIGHT}z'/><path stroke='red' d='M0,0{lines}'/></svg>"
    )
