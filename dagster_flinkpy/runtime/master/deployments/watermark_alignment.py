"""Lets sources wait for each other in event time (Flink: ``SourceCoordinator.announceCombinedWatermark``)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK, WatermarkAlignment
from dagster_flinkpy.datastream.operator_specs import SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.epoch import Reached, SubtaskInputs

__all__ = ["WatermarkCoordinator"]


class WatermarkCoordinator:
    """Knows how far the sources of a deployment are in event time, and how far each of them may be.

    Args:
        graph: Their region.
        restored: What its subtasks start from. Default: nothing.
    """

    def __init__(self, graph: JobGraph, restored: SubtaskInputs = MappingProxyType({})) -> None:
        specs = {v.uid: v.spec.watermark_strategy for v in graph.vertices if isinstance(v.spec, SourceSpec)}
        self._params: dict[str, WatermarkAlignment] = {u: s.alignment for u, s in specs.items() if s.alignment}
        nothing: Reached = (None, False, False)
        # All are there at once: one thread hears them while another one looks through them.
        self._subtasks = {u: dict.fromkeys(range(graph.vertex(u).parallelism), nothing) for u in self._params}
        """What subtasks have told, by source and number."""
        self._reached: dict[str, int] = {}
        """How far sources are, or were when they had input."""
        for (uid, _), state in restored.items():
            if uid in self._params and state.watermark is not None and state.watermark < MAX_WATERMARK:
                self._reached[uid] = min(self._reached.get(uid, MAX_WATERMARK), state.watermark)
        self.limits: dict[str, int] = {}
        """How far they may be, by uid."""

    def hear(self, subtask: int, told: Mapping[str, Reached]) -> bool:
        """Takes what a subtask tells of its sources, by uid; returns whether a limit has changed."""
        levels: dict[str, dict[str, int]] = {}
        for uid, reached in told.items():
            self._subtasks[uid][subtask] = reached
        for uid, params in self._params.items():
            subtasks = self._subtasks[uid].values()
            counted = [time for time, reads, _ in subtasks if reads] or [time for time, *_ in subtasks]
            level = min((time for time in counted if time is not None), default=self._reached.get(uid))
            if level is not None:
                levels.setdefault(params.group, {})[uid] = level
            if level is not None and MIN_WATERMARK < level < MAX_WATERMARK:  # its records may have no timestamps
                self._reached[uid] = level
        before, self.limits = self.limits, {}
        for uid, params in self._params.items():
            of_group = levels.get(params.group, {})
            if len(of_group) == sum(each.group == params.group for each in self._params.values()):
                self.limits[uid] = min(min(of_group.values()) + params.max_drift.millis, MAX_WATERMARK)
        return self.limits != before

    @property
    def are_held(self) -> bool:
        """Whether all sources of a group that are reading wait for others, which have read what they were given."""
        groups: dict[str, list[bool]] = {}
        for uid, params in self._params.items():
            groups.setdefault(params.group, []).extend(w for _, reads, w in self._subtasks[uid].values() if reads)
        return any(waits and all(waits) for waits in groups.values())
