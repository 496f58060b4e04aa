"""Breaks rules of jobs with several regions, and adds them to the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeSegments
from dagster_flinkpy.runtime.master import job_master
from dagster_flinkpy.runtime.master.completion_chain import CompletionChain
from dagster_flinkpy.runtime.master.job_master import JobMaster
from dagster_flinkpy.runtime.master.mailbox import Lane
from dagster_flinkpy.runtime.master.region_execution import RegionExecution
from dagster_flinkpy.runtime.master.region_restarts import RegionRestarts
from tests.simulation.mutations import ONE_STREAM, Wrapped, mutation
from tests.simulation.partition_mutations import MUTATIONS
from tests.simulation.program import here

__all__ = ["MUTATIONS"]

_TWO_REGIONS = {**ONE_STREAM, "regions": 1, "unaligned": 0}
_LOSING = {**_TWO_REGIONS, "segment_loss": 0.05, "restarts": 1}


@mutation("a region does not wait for its input", RegionExecution, "_written", "KeyError", **_TWO_REGIONS)
def _(real: Wrapped, region: RegionExecution, epochs: Any) -> bool:
    return True


@mutation("a region reads an epoch twice", RegionExecution, "_input", "no uninterrupted run would", **_TWO_REGIONS)
def _(real: Wrapped, region: RegionExecution, checkpoint_id: int) -> Any:
    kept = [number for each in region.before for number in each._outputs]
    return real(region, min(kept, default=checkpoint_id))


@mutation(
    "the acknowledgement of a region is lost",
    JobMaster,
    "_acknowledge",
    "stopped before the epoch began",
    **_TWO_REGIONS,
)
def _(real: Wrapped, master: JobMaster, region: RegionExecution, checkpoint_id: int, states: Any) -> None:
    if not region.before:
        real(master, region, checkpoint_id, states)


@mutation("segments are deleted when they are read", JobMaster, "_acknowledge", "is not complete", **_TWO_REGIONS)
def _(real: Wrapped, master: JobMaster, region: RegionExecution, checkpoint_id: int, states: Any) -> None:
    real(master, region, checkpoint_id, states)
    if region.before:
        written = {uid: [checkpoint_id] for each in region.before for uid in each.planner.edge_sinks}
        master._mailbox.submit(Lane.STORE, partial(master._discard_read, written, frozenset()))


@mutation("a lost segment does not restart its producer", RegionRestarts, "_failure", "though it is lost", **_LOSING)
def _(real: Wrapped, restarts: RegionRestarts, *args: Any) -> Any:
    return replace(real(restarts, *args), lost={})


@mutation(
    "a region reads the former segments of a producer that runs again",
    RegionExecution,
    "rewind",
    "though it is lost",
    **_LOSING,
)
def _(real: Wrapped, region: RegionExecution, checkpoint_id: int, *, rewritten: bool) -> None:
    real(region, checkpoint_id, rewritten=False)


@mutation(
    "what all have acknowledged is run again without the others",
    RegionRestarts,
    "_unavailable",
    "",
    **{**_LOSING, "unaligned": 1, "lags": 0.7},
)
def _(real: Wrapped, restarts: RegionRestarts, epochs: Mapping[int, int]) -> str:
    return ""


@mutation("checkpoints complete side by side", CompletionChain, "proceed", "complete in their order", **_TWO_REGIONS)
def _(real: Wrapped, chain: CompletionChain) -> None:
    current, chain.current = chain.current, None
    real(chain)
    chain.current = chain.current or current


_OVERTAKEN = {**_TWO_REGIONS, "unaligned": 1, "lags": 0.7, "diamond": 0}


@mutation(
    "what a region is reading counts as read before the barrier",
    RegionExecution,
    "_acknowledge_in_flight",
    "in flight",
    **_OVERTAKEN,
)
def _(real: Wrapped, region: RegionExecution, checkpoint_id: int) -> Any:
    found = real(region, checkpoint_id)
    reading = len(region._current.found) if region._current is not None else 0
    return replace(found, in_flight=[(uid, outputs[reading:]) for uid, outputs in found.in_flight])


@mutation(
    "what was written since the barrier before is not named",
    RegionExecution,
    "_acknowledge_in_flight",
    "in flight",
    **_OVERTAKEN,
)
def _(real: Wrapped, region: RegionExecution, checkpoint_id: int) -> Any:
    found = real(region, checkpoint_id)
    return replace(found, in_flight=[(uid, outputs[:-1]) for uid, outputs in found.in_flight])


@mutation(
    "the state of a Spark job belongs to a checkpoint, but its rows do not",
    RegionExecution,
    "_acknowledge_in_flight",
    "but the files have",
    **_OVERTAKEN,
)
def _(real: Wrapped, region: RegionExecution, checkpoint_id: int) -> Any:
    found = real(region, checkpoint_id)
    return replace(found, states={task: replace(state, committables=()) for task, state in found.states.items()})


@mutation(
    "segments go when their epoch is complete, even if a checkpoint names them",
    EdgeSegments,
    "discard_read",
    "but retained checkpoint .* names it",
    **_OVERTAKEN,
)
def _(real: Wrapped, segments: EdgeSegments, written: Any, named: Any) -> None:
    real(segments, written, ())


@mutation(
    "what old checkpoints name goes with them, even if a newer one names it",
    OperatorState,
    "segments",
    "but retained checkpoint|which does not exist",
    **_OVERTAKEN,
)
def _(real: Wrapped, operator: OperatorState) -> set[str]:
    return set() if here().current.name.endswith("/store") else real(operator)


@mutation(
    "a job goes back to a checkpoint that names a lost segment",
    job_master,
    "diagnosed",
    "over and over",
    **{**_OVERTAKEN, "segment_loss": 0.05, "restarts": 1},
)
def _(real: Wrapped, error: BaseException, latest: Any) -> BaseException:
    return error
