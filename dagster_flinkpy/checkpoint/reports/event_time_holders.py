"""Finds what an operator's event time waits for, from the watermarks in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from dagster_flinkpy.checkpoint.reports.execution_report import VertexReport
from dagster_flinkpy.checkpoint.reports.job_metrics import OperatorMetrics
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["OperatorEventTime", "event_times"]


@dataclass(frozen=True)
class OperatorEventTime:
    """The event time of an operator, in milliseconds since 1970; None before the first watermark."""

    input: int | None
    output: int | None
    inputs: Mapping[str, int | None]
    """What each operator before it has sent, by uid."""
    held_by: str | None
    """The operator that generates the watermarks for which this one waits: the source that is furthest behind, as a
    rule. None for that one, if all input has ended, and if nothing has event time."""


def event_times(vertices: Iterable[VertexReport], metrics: Iterable[OperatorMetrics]) -> dict[str, OperatorEventTime]:
    """Returns the event time of each operator.

    Idle inputs and those that have ended hold nothing back. A checkpoint does not say which are idle, but an operator
    that is ahead of one of its inputs does not wait for it.

    Args:
        vertices: The operators with their inputs, as a run has stored them.
        metrics: Their metrics.
    """
    inputs = {each.uid: [edge.uid for edge in each.inputs] for each in vertices}
    ours = {each.uid: each.total.get("currentInputWatermark") for each in metrics}
    sent = {each.uid: each.total.get("currentOutputWatermark") for each in metrics}

    def counts(uid: str, before: str) -> bool:
        reached, given = ours[uid], sent.get(before)
        return given != MAX_WATERMARK and (reached is None or (given is not None and given >= reached))

    def generated_by(uid: str) -> str | None:
        """Returns the operator that generates the watermarks that hold back those of an operator."""
        reached, given = ours.get(uid), sent.get(uid)
        if not inputs.get(uid) or (given is not None and (reached is None or given > reached)):
            return uid
        waits = [each for each in inputs[uid] if counts(uid, each)]
        slowest = min(waits, key=lambda each: MIN_WATERMARK if (w := sent.get(each)) is None else w, default=None)
        return None if slowest is None else generated_by(slowest)

    @cache
    def has_time(uid: str) -> bool:
        return sent.get(uid) is not None or any(map(has_time, inputs.get(uid, ())))

    return {
        uid: OperatorEventTime(
            _whole(ours[uid]),
            _whole(sent[uid]),
            {each: _whole(sent.get(each)) for each in inputs.get(uid, ())},
            found if has_time(uid) and (found := generated_by(uid)) != uid else None,
        )
        for uid in ours
    }


def _whole(watermark: int | float | None) -> int | None:
    return None if watermark is None else int(watermark)
