"""Breaks rules of the order in which checkpoints complete, and of who restarts; adds them to the others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.coordinator.failures import DiscardedFiles
from dagster_flinkpy.checkpoint.coordinator.instructions import HandOver, NotifyAborted
from dagster_flinkpy.checkpoint.coordinator.stimuli import CoordinatorSnapshotted
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.runtime.master.commits.completion_chain import CompletionChain
from dagster_flinkpy.runtime.master.commits.epoch_outputs import EpochOutputs
from dagster_flinkpy.runtime.master.epochs.epoch_planner import EpochPlanner
from dagster_flinkpy.runtime.master.job_failover import JobFailover
from dagster_flinkpy.runtime.master.job_master import JobMaster
from dagster_flinkpy.runtime.master.job_state import JobState
from dagster_flinkpy.runtime.master.mailbox import Lane
from dagster_flinkpy.runtime.master.regions.region_state import RegionState
from tests.simulation.failover_mutations import MUTATIONS
from tests.simulation.mutations import ONE_STREAM, Wrapped, mutation

__all__ = ["MUTATIONS"]

_TOLERANT = {**ONE_STREAM, "fail_before": 0.04, "savepoint": 0.1, "tolerates": 1, "regions": 0}
_IN_FLIGHT = {
    **ONE_STREAM,
    **{"regions": 1, "diamond": 0, "unaligned": 1, "tolerates": 1, "goes_back": 0, "deleting": 0, "lost_head": 0},
    **{"fail_after": 0.0187, "outage": 0.52, "retried": 0.03, "switch": 0.3, "segment_loss": 0, "retry": 0.3},
    **{"speculation": 0.08, "stray_messages": 0.466},
}
"""As in a world in which it was noticed, because few worlds notice it."""
_EXPIRING = {**ONE_STREAM, "regions": 1, "tolerates": 1, "stray_messages": 0.4}
"""Stray messages say that the timeout has passed while regions have not acknowledged."""
_LOSING = {**ONE_STREAM, "regions": 1, "unaligned": 0, "segment_loss": 0.05, "restarts": 1}


# --- the id of the next checkpoint ------------------------------------------------------------------------------------


@mutation(
    "an id that was taken in advance is given to two checkpoints",
    CompletedCheckpointStore,
    "assign_checkpoint_id",
    "CheckpointIdAssigned",
    **ONE_STREAM,
)
def _(real: Wrapped, store: CompletedCheckpointStore, attempt: Attempt) -> int:
    reserved = attempt.reserved_ids
    number: int = real(store, attempt)
    attempt.reserved_ids = reserved
    return number


# --- completing -------------------------------------------------------------------------------------------------------


@mutation(
    "state is deleted that the next checkpoint takes over",
    JobMaster,
    "_perform",
    "was deleted, but retained|which does not exist|CorruptStateError",
    **_TOLERANT,
)
def _(real: Wrapped, master: JobMaster, instruction: Any) -> None:
    real(master, instruction)
    if isinstance(instruction, NotifyAborted) and instruction.tolerated:
        known = master.state.coordinator._files
        files = known._named_by_latest.union(*known._handed_over.values())
        master._mailbox.submit(Lane.STORE, partial(master._steps.store.store.delete_many, sorted(files)))


@mutation(
    "nobody takes over from a checkpoint that has expired",
    CompletionChain,
    "hand_over_expired",
    "but the files have|nobody has committed|is lost",
    **_EXPIRING,
)
def _(real: Wrapped, chain: CompletionChain) -> bool:
    if chain.current is not None or not chain.waiting or not isinstance(chain.waiting[0], HandOver):
        return False
    chain.waiting.popleft()
    return True


@mutation(
    "files of an expired checkpoint go before the next one names them",
    DiscardedFiles,
    "hand_over",
    "was deleted, but retained|which does not exist|CorruptStateError",
    **_EXPIRING,
)
def _(real: Wrapped, files: DiscardedFiles, checkpoint_id: int, names: Any) -> None:
    files.discard(names)


@mutation(
    "a checkpoint that failed is not handed over to the next one",
    CompletionChain,
    "hand_over",
    "but the files have",
    **_TOLERANT,
)
def _(real: Wrapped, chain: CompletionChain, checkpoint_id: int | None) -> None:
    current = chain.current
    if current is not None and current.checkpoint_id == checkpoint_id:
        chain.current, chain.replacing_head = None, False


@mutation(
    "what is in flight is acknowledged behind a checkpoint that failed",
    JobState,
    "_on_acknowledged",
    "but the files have",
    **_IN_FLIGHT,
)
def _(real: Wrapped, state: JobState, region: RegionState, ended: Any) -> None:
    settle = RegionState.settle

    def acknowledged(reader: RegionState) -> list[Any]:
        for told in settle(reader):
            state._drive(CoordinatorSnapshotted(state._turn.now_ms, *told))
        return []

    with mock.patch.object(RegionState, "settle", acknowledged):
        real(state, region, ended)


@mutation(
    "subsuming deletes what the next checkpoint takes over",
    CompletedCheckpointStore,
    "subsume",
    "which does not exist|CorruptStateError",
    **{**ONE_STREAM, "fail_before": 0.06, "savepoint": 0.3, "tolerates": 1},
)
def _(real: Wrapped, store: CompletedCheckpointStore, attempt: Attempt, *args: Any) -> None:
    attempt.unfinished.clear()
    real(store, attempt, *args)


@mutation("rows are taken over twice", EpochOutputs, "publish", "whose upload is gone", **_TOLERANT)
def _(real: Wrapped, outputs: EpochOutputs, checkpoint_id: int) -> Any:
    failed = outputs._failed
    published = real(outputs, checkpoint_id)
    outputs._failed = failed
    return published


@mutation(
    "the newest acknowledged checkpoint completes first", CompletionChain, "proceed", "but the files have", **ONE_STREAM
)
def _(real: Wrapped, chain: CompletionChain) -> Any:
    if chain.current is None and len(chain.waiting) > 1:
        chain.waiting.rotate(1)
    return real(chain)


# --- restarts ---------------------------------------------------------------------------------------------------------


@mutation(
    "who has read what is written anew does not restart",
    JobFailover,
    "_failure",
    "does not name segment|though it is lost",
    **_LOSING,
)
def _(real: Wrapped, failover: JobFailover, *args: Any) -> Any:
    return replace(real(failover, *args), begun={})


@mutation(
    "acknowledgements of regions that run again stay",
    RegionState,
    "acknowledged_from",
    "has acknowledged last",
    **_LOSING,
)
def _(real: Wrapped, region: RegionState, checkpoint_id: int) -> list[int]:
    return []


@mutation(
    "a region that runs again starts from its newest state",
    EpochPlanner,
    "rewind",
    "but its operator state has|but counted",
    **_LOSING,
)
def _(real: Wrapped, planner: EpochPlanner, checkpoint_id: int) -> None:
    pass


@mutation(
    "a region that runs twice again has its first plan the second time",
    RegionState,
    "on_acknowledged",
    "though it is lost|written anew",
    **_LOSING,
)
def _(real: Wrapped, region: RegionState, ended: Any) -> Any:
    epoch = region._current
    acknowledged = real(region, ended)
    assert epoch is not None
    epoch.stale = False
    return acknowledged
