"""Finds what is wrong with event time before a program runs: fields that are no times, inputs that hold it back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dagster_flinkpy.common.basic_type_info import BasicTypeInfo
from dagster_flinkpy.common.composite_type_info import RowTypeInfo, TupleTypeInfo
from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.common.type_information import TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream.operator_specs import (
    OperatorSpec,
    SourceSpec,
    TimestampsSpec,
    WindowSpec,
)
from dagster_flinkpy.datastream.program.job_graph import JobEdge, JobGraph, JobVertex
from dagster_flinkpy.datastream.window_triggers import (
    ContinuousEventTimeTrigger,
    EventTimeTrigger,
    PurgingTrigger,
    Trigger,
)
from dagster_flinkpy.errors import JobGraphError, StalledEventTimeWarning

__all__ = [
    "EventTimeStall",
    "check_timestamp_field",
    "find_stalls",
    "warn_of_stalls",
    "with_later_idleness",
    "without_event_time",
]

_WITHOUT_TIMERS = "dagster_flinkpy.datastream.functions"
"""The module of the `on_timer` methods that do nothing."""


@dataclass(frozen=True)
class EventTimeStall:
    """An operator that event time never passes, because one of its inputs gives none and does not end."""

    uid: str
    """The operator."""
    silent: tuple[str, ...]
    """Uids of the sources that give no event time."""
    waiting: tuple[str, ...]
    """Uids of the operators whose windows or timers never fire: itself, or behind it."""
    others: bool = True
    """Whether other inputs have event time."""

    def __str__(self) -> str:
        sources, waiting = (", ".join(map(repr, uids)) for uids in (self.silent, self.waiting))
        gives, it = ("gives no watermarks and does", "it") if len(self.silent) == 1 else ("give none and do", "them")
        what = (
            f"event time never passes operator {self.uid!r}: source {sources} {gives} not end, so windows and timers "
            f"of {waiting} never fire. Give {it} a strategy with watermarks"
        )
        if not self.others:
            return f"{what}, such as WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(5))"
        return (
            f"{what}, or WatermarkStrategy.no_watermarks().with_idleness(Duration.of_minutes(1)), with which others do "
            f"not wait for {it}"
        )


def check_timestamp_field(strategy: WatermarkStrategy, type_info: TypeInformation) -> None:
    """Raises `JobGraphError` if the field that is to give the event time of records is missing or no time."""
    name = strategy.timestamp_assigner
    if not isinstance(name, str):
        return
    what = f"with_timestamp_assigner({name!r})"
    if not isinstance(type_info, RowTypeInfo | TupleTypeInfo):
        raise JobGraphError(
            f"{what} needs records with fields, not {type_info}: declare output_type=Types.ROW_NAMED(...) on the "
            "operator before it, or give a TimestampAssigner"
        )
    fields = dict(zip(type_info.field_names, type_info.field_types, strict=True))
    if name not in fields:
        raise JobGraphError(f"{what}: no such field; the stream has {list(fields)}")
    kind = fields[name]
    if not isinstance(kind, BasicTypeInfo) or not kind.arrow_name.startswith(("int", "timestamp")):
        raise JobGraphError(
            f"{what}: the field is {kind}; it must be a whole number, the milliseconds since 1970, or a "
            "Types.SQL_TIMESTAMP() or Types.INSTANT(): convert it with map(), or give a TimestampAssigner"
        )


def with_later_idleness(vertices: Sequence[JobVertex], edges: Iterable[JobEdge]) -> list[JobVertex]:
    """Tells sources of the operators behind them that assign event time.

    Only a source knows that it has nothing to read, so it takes the idle timeout of such an operator, which is idle
    when all of its inputs are. If another one has none, its records would become late, so then none counts; nor does
    it if somebody waits for watermarks that the source makes itself.

    Args:
        vertices: The operators, in topological order.
        edges: Their edges.
    """
    later: dict[str, set[tuple[bool, Duration | None]]] = {vertex.uid: set() for vertex in vertices}
    inputs: dict[str, list[str]] = {vertex.uid: [] for vertex in vertices}
    heeded: set[str] = set()
    """Operators whose output somebody reads who waits for event time, with no other in between that assigns it."""
    for edge in edges:
        inputs[edge.target].append(edge.source)
    told: list[JobVertex] = []
    for vertex in reversed(vertices):
        spec, behind = vertex.spec, later[vertex.uid]
        assigns = isinstance(spec, TimestampsSpec) and _generates(spec.watermark_strategy)
        if isinstance(spec, TimestampsSpec):
            behind = behind | {(assigns, spec.watermark_strategy.idle_timeout)}
        for source in inputs[vertex.uid]:
            later[source] |= behind
        if not assigns and (spec.keyed or vertex.uid in heeded):
            heeded.update(inputs[vertex.uid])
        if type(spec) is SourceSpec and behind:  # a DataFrame is read once, and does not hold back others afterwards
            strategy, timeouts = spec.watermark_strategy, {timeout for _, timeout in behind}
            held = strategy.idle_timeout is None and _generates(strategy) and vertex.uid in heeded
            takes = None not in timeouts and not held
            longest = max(filter(None, {strategy.idle_timeout, *(timeouts if takes else ())}), default=None)
            timed_later = any(generates for generates, _ in behind)
            strategy = replace(strategy, idle_timeout=longest)
            vertex = replace(vertex, spec=replace(spec, watermark_strategy=strategy, timed_later=timed_later))
        told.append(vertex)
    return told[::-1]


def find_stalls(graph: JobGraph) -> list[EventTimeStall]:
    """Returns where one input holds back the event time of others for ever, and windows for which no input gives any.

    Args:
        graph: The program.
    """
    gives: dict[str, bool] = {}
    silent: dict[str, frozenset[str]] = {}
    found: list[EventTimeStall] = []
    for vertex in graph.vertices:
        uid, spec = vertex.uid, vertex.spec
        inputs = list(dict.fromkeys(edge.source for edge in graph.inputs(uid)))
        gives[uid] = any(gives[each] for each in inputs)
        silent[uid] = frozenset().union(*(silent[each] for each in inputs))
        if isinstance(spec, SourceSpec):
            gives[uid] = _generates(spec.watermark_strategy)
            idle = spec.watermark_strategy.idle_timeout is not None
            if not (gives[uid] or idle or spec.static) and getattr(spec.source, "bounded", None) is False:
                silent[uid] = frozenset([uid])
        elif isinstance(spec, TimestampsSpec) and _generates(spec.watermark_strategy):
            gives[uid], silent[uid] = True, frozenset()
        known = any(gives[each] and silent[each] for each in inputs)
        if gives[uid] and silent[uid] and not known:
            waiting = tuple(each for each in _from(graph, uid) if _uses_event_time(graph.vertex(each).spec))
            if waiting:
                found.append(EventTimeStall(uid, tuple(sorted(silent[uid])), waiting))
    for uid, sources in without_event_time(graph).items():
        spec = graph.vertex(uid).spec
        if isinstance(spec, WindowSpec) and _fires_by_event_time(spec.trigger):
            found.append(EventTimeStall(uid, sources, (uid,), others=False))
    return found


def without_event_time(graph: JobGraph) -> dict[str, tuple[str, ...]]:
    """Returns the operators whose inputs never give event time, with the uids of the sources that do not end.

    Args:
        graph: The program.
    """
    gives: dict[str, bool] = {}  # or will give it at the end of the input
    endless: dict[str, frozenset[str]] = {}
    for vertex in graph.vertices:  # in topological order
        uid, spec = vertex.uid, vertex.spec
        inputs = [edge.source for edge in graph.inputs(uid)]
        gives[uid] = any(gives[each] for each in inputs)
        endless[uid] = frozenset().union(*(endless[each] for each in inputs))
        if isinstance(spec, SourceSpec | TimestampsSpec):
            gives[uid] |= _generates(spec.watermark_strategy)
        if isinstance(spec, SourceSpec):
            ends = getattr(spec.source, "bounded", None) is not False
            gives[uid] |= ends
            endless[uid] = frozenset() if ends else frozenset([uid])
    return {uid: tuple(sorted(sources)) for uid, sources in endless.items() if sources and not gives[uid]}


def warn_of_stalls(graph: JobGraph, stacklevel: int) -> None:
    """Issues a `StalledEventTimeWarning` for each operator that event time never passes.

    Args:
        graph: The program.
        stacklevel: As that of `warnings.warn`, which is called here.
    """
    for stall in find_stalls(graph):
        warnings.warn(str(stall), StalledEventTimeWarning, stacklevel=stacklevel)


def _generates(strategy: WatermarkStrategy) -> bool:
    return strategy.max_out_of_orderness is not None


def _from(graph: JobGraph, uid: str) -> Iterable[str]:
    """Returns an operator and those behind it."""
    reached = {uid}
    for vertex in graph.vertices:  # in topological order
        if any(edge.source in reached for edge in graph.inputs(vertex.uid)):
            reached.add(vertex.uid)
    return (vertex.uid for vertex in graph.vertices if vertex.uid in reached)


def _fires_by_event_time(trigger: Trigger[Any, Any]) -> bool:
    while isinstance(trigger, PurgingTrigger):
        trigger = trigger.nested_trigger
    return isinstance(trigger, EventTimeTrigger | ContinuousEventTimeTrigger)


def _uses_event_time(spec: OperatorSpec) -> bool:
    if isinstance(spec, WindowSpec):
        return spec.assigner.is_event_time()
    timers: list[Any] = [getattr(type(function), "on_timer", None) for function in spec.user_functions()]
    return any(timer is not None and timer.__module__ != _WITHOUT_TIMERS for timer in timers)
