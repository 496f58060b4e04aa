"""The records of inputs that a function has not selected yet (Flink: ``MultipleInputSelectionHandler``)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.connectors.reader_source import ReaderSource
from dagster_flinkpy.datastream.input_selection import InputSelectable, InputSelection
from dagster_flinkpy.datastream.operator_specs import SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.runtime.operators.stream_operator import StreamOperator
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.shuffle.wire import Kind
from dagster_flinkpy.runtime.task.barrier_handlers import Channel

__all__ = ["SelectedInputs", "Waiting"]


@dataclass
class Waiting:
    """Something of an input that waits until it is selected."""

    channel: Channel
    kind: Kind
    value: Any
    epoch: int
    read: int = 0
    """How many records of a batch the function has read."""


class SelectedInputs:
    """Keeps what comes, by input, and gives it out record by record, as the function selects."""

    def __init__(
        self,
        operator: StreamOperator,
        function: InputSelectable,
        inputs: Mapping[Channel, int],
        origins: Mapping[Channel, tuple[str, ...]],
        graph: JobGraph,
    ) -> None:
        self._operator, self._function, self._inputs = operator, function, inputs
        self._queues: dict[int, deque[Waiting]] = {i: deque() for i in sorted({*inputs.values()})}
        self._turns = deque(self._queues)
        self._open = {channel: {*each} for channel, each in origins.items()}
        """The origins that have not ended, by channel."""
        self._may_wait = _apart(graph, operator.context.vertex.uid)
        self._planned = _planned(graph, operator.context.vertex.uid)
        self._selected: Set[int] = frozenset()
        self._busy = False

    def blocked(self, open_epoch: bool) -> frozenset[Channel]:
        """Returns the channels that wait until their inputs are selected.

        Args:
            open_epoch: Whether the epoch is an open one. It is only closed when all splits that were given out have
                been read, so an input with such splits does not wait.
        """
        waiting = self._may_wait - self._selected - (self._planned if open_epoch else set())
        return frozenset(channel for channel, i in self._inputs.items() if i in waiting)

    def put(self, number: int, waiting: Waiting) -> None:
        """Takes what has come through a channel of an input. Records in flight may be of one that is not there now."""
        if waiting.kind is Kind.WATERMARK:
            origin, watermark = waiting.value
            if watermark == MAX_WATERMARK:
                self._open[waiting.channel] -= {origin} if origin else self._open[waiting.channel].copy()
        self._queues[number].append(waiting)

    def work_off(self, process: Callable[[Waiting], object]) -> None:
        """Gives out what waits at inputs that are selected, until there is no more.

        Args:
            process: Processes one record, as a batch, or an event. What it calls may come back here, which does
                nothing.
        """
        if self._busy:
            return
        self._busy = True
        self._select()
        while (waiting := self._take()) is not None:
            process(waiting)
            self._select()
        self._busy = False

    def _select(self) -> None:
        selection = self._operator.call("next_selection()", self._function.next_selection)
        uid = self._operator.context.vertex.uid
        if not isinstance(selection, InputSelection):
            raise TypeMismatchError(f"next_selection() of operator {uid!r} returned {selection!r:.100}")
        selected = {i for i in self._queues if selection.is_input_selected(i + 1)}
        if not selected:
            raise ConfigurationError(
                f"next_selection() of operator {uid!r} returned {selection!r}, and it has {len(self._queues)} inputs"
            )
        self._selected = {i for i in selected if not self._has_ended(i)} or {*self._queues}

    def _has_ended(self, number: int) -> bool:
        channels = (channel for channel, i in self._inputs.items() if i == number)
        return not self._queues[number] and not any(self._open[channel] for channel in channels)

    def _take(self) -> Waiting | None:
        for _ in range(len(self._turns)):
            number = self._turns[0]
            self._turns.rotate(-1)
            if number in self._selected and (queue := self._queues[number]):
                return _first_of(queue)
        return None

    def left(self) -> Iterator[Waiting]:
        """Returns the records that have not been read, in the order of each input."""
        return (each for queue in self._queues.values() for each in queue if each.kind is Kind.BUFFER)


def _apart(graph: JobGraph, uid: str) -> Set[int]:
    """Returns the inputs of an operator, or none if something else connects them.

    Then one that waits could hold up, by way of what they have in common, the one that is selected.
    """
    neighbours = defaultdict[str, list[str]](list)
    for edge in graph.edges:
        if uid not in (edge.source, edge.target):
            neighbours[edge.source].append(edge.target)
            neighbours[edge.target].append(edge.source)
    input_of = dict[str, int]()
    for edge in graph.inputs(uid):
        reached = [edge.source]
        for each in reached:
            if input_of.setdefault(each, edge.input_index) != edge.input_index:
                return frozenset()
            reached += [other for other in neighbours.pop(each, []) if other in neighbours]
    return {*input_of.values()}


def _planned(graph: JobGraph, uid: str) -> Set[int]:
    """Returns the inputs of an operator that come, also, from a source whose splits the driver gives out by epochs."""
    planned = set[int]()
    for edge in graph.inputs(uid):
        before = [edge.source]
        for each in before:
            before += [e.source for e in graph.inputs(each) if e.source not in before]
        specs = [graph.vertex(each).spec for each in before]
        if any(isinstance(spec, SourceSpec) and not isinstance(spec.source, ReaderSource) for spec in specs):
            planned.add(edge.input_index)
    return planned


def _first_of(queue: deque[Waiting]) -> Waiting:
    first = queue[0]
    batch: StreamBatch = first.value
    if first.kind is not Kind.BUFFER:
        return queue.popleft()
    record = Waiting(first.channel, first.kind, batch.slice(first.read, first.read + 1), first.epoch)
    first.read += 1
    if first.read == len(batch):
        queue.popleft()
    return record
