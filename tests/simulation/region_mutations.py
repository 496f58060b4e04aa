"""Breaks rules of jobs with several regions, and adds them to the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeSegments
from dagster_flinkpy.runtime.master import job_state
from dagster_flinkpy.runtime.master.commits.completion_chain import CompletionChain
from dagster_flinkpy.runtime.master.job_failover import JobFailover
from dagster_flinkpy.runtime.master.job_messages import DiscardRead
from dagster_flinkpy.runtime.master.job_state import JobState
from dagster_flinkpy.runtime.master.regions.region_state import RegionState
from tests.simulation.mutations import ONE_STREAM, Wrapped, mutation
from tests.simulation.partition_mutations import MUTATIONS
from tests.simulation.program import here

__all__ = ["MUTATIONS"]

_TWO_REGIONS = {**ONE_STREAM, "regions": 1, "unaligned": 0}
_LOSING = {**_TWO_REGIONS, "segment_loss": 0.05, "restarts": 1}


@mutation("a region does not wait for its input", RegionState, "_written", "KeyError", **_TWO_REGIONS)
def _(real: Wrapped, region: RegionState, epoch: Any) -> bool:
    return True


@mutation("a region reads an epoch twice", RegionState, "_input", "no uninterrupted run would", **_TWO_REGIONS)
def _(real: Wrapped, region: RegionState, checkpoint_id: int) -> Any:
    kept = [number for each in region.before for number in each.outputs]
    return real(region, min(kept, default=checkpoint_id))


@mutation(
    "the acknowledgement of a region is lost",
    JobState,
    "_acknowledge",
    "stopped before the epoch began",
    **_TWO_REGIONS,
)
def _(real: Wrapped, state: JobState, region: RegionState, acknowledged: Any) -> None:
    if not region.before:
        real(state, region, acknowledged)


@mutation("segments are deleted when they are read", JobState, "_acknowledge", "is not complete", **_TWO_REGIONS)
def _(real: Wrapped, state: JobState, region: RegionState, acknowledged: Any) -> None:
    real(state, region, acknowledged)
    if region.before:
        written = {uid: [acknowledged.checkpoint_id] for each in region.before for uid in each.planner.edge_sinks}
        state._tell(DiscardRead(written, frozenset()))


@mutation("a lost segment does not restart its producer", JobFailover, "_failure", "though it is lost", **_LOSING)
def _(real: Wrapped, failover: JobFailover, *args: Any) -> Any:
    return replace(real(failover, *args), lost={})


@mutation(
    "a region reads the former segments of a producer that runs again",
    RegionState,
    "rewind",
    "though it is lost",
    **_LOSING,
)
def _(real: Wrapped, region: RegionState, checkpoint_id: int, *, rewritten: bool) -> None:
    real(region, checkpoint_id, rewritten=False)


@mutation(
    "what all have acknowledged is run again without the others",
    JobFailover,
    "_unavailable",
    "",
    **{**_LOSING, "unaligned": 1, "lags": 0.7},
)
def _(real: Wrapped, failover: JobFailover, *args: Any) -> str:
    return ""


@mutation("checkpoints complete side by side", CompletionChain, "proceed", "complete in their order", **_TWO_REGIONS)
def _(real: Wrapped, chain: CompletionChain) -> Any:
    current, chain.current = chain.current, None
    declined = real(chain)
    chain.current = chain.current or current
    return declined


_OVERTAKEN = {**_TWO_REGIONS, "unaligned": 1, "lags": 0.7, "diamond": 0}


@mutation(
    "what a region is reading counts as read before the barrier",
    RegionState,
    "_acknowledge_in_flight",
    "in flight",
    **_OVERTAKEN,
)
def _(real: Wrapped, region: RegionState, checkpoint_id: int) -> Any:
    found = real(region, checkpoint_id)
    reading = len(region._current.found) if region._current is not None else 0
    return replace(found, in_flight=[(uid, outputs[reading:]) for uid, outputs in found.in_flight])


@mutation(
    "what was written since the barrier before is not named",
    RegionState,
    "_acknowledge_in_flight",
    "in flight",
    **_OVERTAKEN,
)
def _(real: Wrapped, region: RegionState, checkpoint_id: int) -> Any:
    found = real(region, checkpoint_id)
    return replace(found, in_flight=[(uid, outputs[:-1]) for uid, outputs in found.in_flight])


@mutation(
    "the state of a Spark job belongs to a checkpoint, but its rows do not",
    RegionState,
    "_acknowledge_in_flight",
    "but the files have",
    **_OVERTAKEN,
)
def _(real: Wrapped, region: RegionState, checkpoint_id: int) -> Any:
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
    job_state,
    "diagnosed",
    "over and over",
    **{**_OVERTAKEN, "segment_loss": 0.05, "restarts": 1},
)
def _(real: Wrapped, error: BaseException, latest: Any) -> BaseException:
    return error
