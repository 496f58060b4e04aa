"""Breaks rules of epochs that are open, of stops amid a split, and of sources in Flink's shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dagster_flinkpy.connectors.sources.source_coordinator import SourceCoordinator, Tell, unpacked
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.master.epochs.open_epoch import OpenEpoch
from dagster_flinkpy.runtime.operators.source_operator import SourceOperator
from dagster_flinkpy.runtime.operators.source_reader_operator import SourceReaderOperator
from dagster_flinkpy.runtime.task.stream_task import StreamTask
from tests.simulation.live_mutations import ALIGNED, LOSING, MUTATIONS, live_mutation
from tests.simulation.mutations import Wrapped

__all__ = ["MUTATIONS"]

_WRONG = "but the files have"
_TWICE = f"{_WRONG}|in two places|that has it|given back twice"
_OPEN: dict[str, Any] = {**ALIGNED, "regions": 0.0}
"""Epochs are open, and nothing fails."""
_AMID = {**_OPEN, "sources": ("resumed",)}
_AGAIN: dict[str, Any] = {**LOSING, "regions": 0.0, "unaligned": 0.0}
"""Epochs are open, and tried again."""
_READERS = {"sources": ("readers",)}


# --- epochs that are open ---------------------------------------------------------------------------------------------


@live_mutation("a source that has stopped amid a split is taken to have read it", OpenEpoch, "_look", _WRONG, _AMID)
def _(real: Wrapped, epoch: OpenEpoch, closed: bool, stops: Mapping[Any, Any]) -> EpochInput:
    part: EpochInput = real(epoch, closed, {})
    return part


@live_mutation(
    "the rest of a split begins where the split does", EpochInput, "read_splits", f"{_WRONG}|was assigned", _AMID
)
def _(real: Wrapped, epoch: EpochInput) -> dict[str, list[SourceSplit]]:
    found: dict[str, list[SourceSplit]] = real(epoch)
    return {uid: [s if s.finished else replace(s, offset=0) for s in splits] for uid, splits in found.items()}


@live_mutation(
    "an epoch that runs again does not stop where it did", OpenEpoch, "begin", _WRONG, {**_AGAIN, **_AMID, **LOSING}
)
def _(real: Wrapped, epoch: OpenEpoch) -> EpochInput:
    return replace(real(epoch), stops={})


@live_mutation(
    "an epoch that runs again ends with its first part",
    OpenEpoch,
    "begin",
    _WRONG,
    {**_AGAIN, "sources": ("late", "resumed")},
)
def _(real: Wrapped, epoch: OpenEpoch) -> EpochInput:
    part: EpochInput = real(epoch)
    epoch._to_give.clear()
    return part


@live_mutation("a barrier passes the last records of an open epoch", StreamTask, "_read", f"{_WRONG}|IndexError", _OPEN)
def _(real: Wrapped, task: StreamTask, epoch: EpochInput) -> Iterator[None]:
    if not epoch.open:
        sources = [each for each in task._tasks.values() if isinstance(each.operator, SourceOperator)]
        for each in task._entered(sources):
            each.trigger(epoch.checkpoint_id)
    yield from real(task, replace(epoch, open=True))


# --- readers ----------------------------------------------------------------------------------------------------------


@live_mutation(
    "the position of a reader is that before its last records",
    SourceReaderOperator,
    "_poll",
    _WRONG,
    {**ALIGNED, **_READERS},
)
def _(real: Wrapped, operator: SourceReaderOperator) -> None:
    reader: Any = operator._reader
    before = type(reader).snapshot_state(reader, 0)
    real(operator)
    reader.snapshot_state = lambda checkpoint_id: before


@live_mutation(
    "what a reader has emitted comes behind the barrier", SourceReaderOperator, "_emit", _WRONG, {**ALIGNED, **_READERS}
)
def _(real: Wrapped, operator: SourceReaderOperator) -> None:
    if operator._status is not None and operator._output.size % 2:
        real(operator)


@live_mutation(
    "splits are given back that readers have", SourceCoordinator, "on_epoch_read", _TWICE, {**ALIGNED, **_READERS}
)
def _(real: Wrapped, coordinator: SourceCoordinator, splits: Sequence[SourceSplit]) -> None:
    given = coordinator._given
    real(coordinator, splits)
    coordinator._given = given


@live_mutation(
    "splits are given back when a slot is lost, and told its readers again",
    SourceCoordinator,
    "receive",
    _TWICE,
    {**_AGAIN, **_READERS},
)
def _(real: Wrapped, coordinator: SourceCoordinator, deployment: str, messages: Sequence[Any]) -> None:
    if coordinator._deployment not in (None, deployment):
        told = [(reader, value) for reader, tell, value in coordinator._given if tell is Tell.SPLIT]
        coordinator._give_back([(reader, unpacked(coordinator._splits, value)) for reader, value in told])
    real(coordinator, deployment, messages)


@live_mutation(
    "an event that the enumerator has is sent again",
    SourceReaderOperator,
    "_forget_answered",
    "comes twice",
    {**ALIGNED, **_READERS, "regions": 1.0},
)
def _(real: Wrapped, operator: SourceReaderOperator) -> None:
    pass
