"""Breaks rules of the library one at a time. The simulation must notice each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from unittest import mock

from dagster_flinkpy.checkpoint import claims, leadership, shared_state_registry
from dagster_flinkpy.checkpoint import starting_point as restoring
from dagster_flinkpy.checkpoint import store as completed_checkpoint_store
from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator.instructions import NotifyAborted
from dagster_flinkpy.checkpoint.coordinator.pending import AcknowledgeResult, PendingCheckpoint
from dagster_flinkpy.checkpoint.coordinator.stimuli import Acknowledge, MetadataWriteFailed
from dagster_flinkpy.checkpoint.head import HEAD_KEY, Head, read_head
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.savepoints import savepoint
from dagster_flinkpy.checkpoint.shared_state_registry import SharedStateRegistry
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.traces import Traces
from dagster_flinkpy.connectors.commit.staged_files import FileNames
from dagster_flinkpy.errors import CorruptMetadataError, StorageError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master import job as job_loop
from dagster_flinkpy.runtime.master.commits.checkpoint_steps import CheckpointSteps
from dagster_flinkpy.runtime.master.commits.completion_chain import CompletionChain
from dagster_flinkpy.runtime.master.commits.transactions import Transactions
from dagster_flinkpy.runtime.master.epochs.split_planner import SplitPlanner
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.master.job_master import JobMaster
from dagster_flinkpy.runtime.master.job_state import JobState
from dagster_flinkpy.runtime.master.mailbox import Lane
from dagster_flinkpy.runtime.master.regions.region_runner import JobRunner
from dagster_flinkpy.runtime.master.requests import savepoints
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.storage import ObjectStore, lease
from tests.simulation import upkeep

__all__ = ["CALM", "MUTATIONS", "ONE_STREAM", "Mutation", "Wrapped", "mutation"]

Wrapped = Callable[..., Any]

CALM = dict.fromkeys(
    (
        *("crash", "pause", "fail_before", "fail_after", "outage", "retried", "late_list", "clock_jump"),
        *("task_fails", "task_hangs", "step_hangs", "speculation", "stray_messages"),
    ),
    0.0,
)
"""Nothing fails: a rule about a rare event is noticed sooner where that event is the only trouble."""
ONE_STREAM = {**CALM, **dict.fromkeys(("partitioned", "restore", "retry", "savepoint", "upkeep", "requests"), 0.0)}
"""Attempts only run epochs."""
GOES_BACK = {**ONE_STREAM, "goes_back": 0.9, "regions": 0}
"""Nothing fails, and attempts start from kept checkpoints."""


@dataclass(frozen=True)
class Mutation:
    """A broken rule."""

    apply: Callable[[], AbstractContextManager[Any]]
    noticed: str
    """Matches a part of the message of the violation, to prove that this rule is missed and not another one."""
    chaos: Mapping[str, Any] = field(default_factory=dict)
    """Chances of events, to create worlds in which the rule matters more often."""
    live: bool = False
    """Whether it is a rule of live tasks."""


MUTATIONS: dict[str, Mutation] = {}
"""The mutations, by what they break."""


def mutation(
    what: str, owner: Any, name: str, noticed: str, *, live: bool = False, **chaos: Any
) -> Callable[[Wrapped], Wrapped]:
    """Registers a function that replaces a method. Its first argument is the original method."""

    def register(function: Wrapped) -> Wrapped:
        real = getattr(owner, name)

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return function(real, *args, **kwargs)

        MUTATIONS[what] = Mutation(lambda: mock.patch.object(owner, name, stand_in), noticed, chaos, live)
        return function

    return register


# --- fencing ----------------------------------------------------------------------------------------------------------


@mutation("HEAD is replaced without If-Match", completed_checkpoint_store, "put_if", "HEAD went back")
def _(real: Wrapped, store: ObjectStore, key: str, data: bytes, if_match: str | None) -> str:
    return store.put(key, data) if key == HEAD_KEY else real(store, key, data, if_match)


@mutation("nothing is written on a condition", completed_checkpoint_store, "put_if", "went back")
def _(real: Wrapped, store: ObjectStore, key: str, data: bytes, if_match: str | None) -> str:
    return store.put(key, data)


@mutation(
    "a takeover leaves HEAD as it is",
    leadership,
    "put_if",
    "has to commit it",
    **{**ONE_STREAM, "crash": 0.01, "pause": 0.02, "regions": 0},
)
def _(real: Wrapped, store: ObjectStore, key: str, data: bytes, if_match: str | None) -> str:
    if key == HEAD_KEY and if_match is not None:
        found = read_head(store)
        if found is not None and found[0].checkpoint_id == Head.from_bytes(data, key).checkpoint_id:
            return if_match
    return real(store, key, data, if_match)


def _unfenced(owner: Any, name: str, value: Any, noticed: str, **chaos: Any) -> Mutation:
    """Registers a mutation that also never checks whether a newer attempt took over."""

    def broken() -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(mock.patch.object(lease, "check", lambda store, leader: lease.Leader(*lease._read(store))))
        stack.enter_context(mock.patch.object(owner, name, value))
        return stack

    return Mutation(broken, noticed, chaos)


MUTATIONS |= {
    "state files are named by content only, and who deletes them is not fenced": _unfenced(
        EpochJob,
        "writer_of",
        lambda job, checkpoint: "",
        "names it",
        **{**ONE_STREAM, "crash": 0.005, "pause": 0.05, "regions": 0},
    ),
    "an attempt aborts what newer ones have staged, and is not fenced": _unfenced(
        FileNames, "mine", lambda names, key: True, "whose upload is gone"
    ),
}


# --- completing -------------------------------------------------------------------------------------------------------


@mutation(
    "sinks commit before the metadata is written",
    CheckpointSteps,
    "write_metadata",
    "became visible, but no completed checkpoint names it",
)
def _(real: Wrapped, steps: CheckpointSteps, metadata: CheckpointMetadata) -> Any:
    steps.commit(metadata)
    return real(steps, metadata)


@mutation(
    "sinks commit before HEAD is replaced",
    CheckpointSteps,
    "replace_head",
    "became visible, but no completed checkpoint names it",
)
def _(real: Wrapped, steps: CheckpointSteps, metadata: CheckpointMetadata, *args: Any) -> Any:
    steps.commit(metadata)
    return real(steps, metadata, *args)


@mutation(
    "older checkpoints are subsumed before the new one is added",
    CompletedCheckpointStore,
    "complete",
    "/_metadata was deleted, but retained checkpoint",
)
def _(real: Wrapped, store: CompletedCheckpointStore, attempt: Any, *args: Any, **kwargs: Any) -> None:
    store.store.delete_many([f"chk-{number}/_metadata" for number in attempt.head.retained])
    real(store, attempt, *args, **kwargs)


@mutation(
    "an unknown outcome is taken for a failure",
    CheckpointSteps,
    "_finalize",
    "was aborted, but completed checkpoint|whose upload is gone",
    **{**ONE_STREAM, "fail_after": 0.1, "outage": 1, "regions": 0},
)
def _(real: Wrapped, steps: CheckpointSteps, *args: Any) -> Any:
    outcome = real(steps, *args)
    if isinstance(outcome.stimulus, MetadataWriteFailed):
        return replace(outcome, stimulus=replace(outcome.stimulus, unknown_outcome=False))
    return outcome


@mutation(
    "transactions are aborted although HEAD may name them",
    JobState,
    "_advance",
    "was aborted, but completed checkpoint|whose upload is gone",
    **{**ONE_STREAM, "fail_after": 0.1, "outage": 1, "regions": 0},
)
def _(real: Wrapped, state: JobState) -> None:
    state._outcome_unknown = False
    real(state)


@mutation(
    "transactions of a checkpoint that is being completed are aborted",
    JobMaster,
    "_perform",
    "was aborted, but completed checkpoint|whose upload is gone",
    **{**ONE_STREAM, "task_fails": 0.05, "switch": 0.95, "restarts": 0, "tolerates": 0, "regions": 1},
)
def _(real: Wrapped, master: JobMaster, instruction: Any) -> None:
    real(master, instruction)
    if isinstance(instruction, NotifyAborted):
        master._mailbox.submit(Lane.TRIGGER, master._steps.transactions.abort_after_failure)


@mutation(
    "a checkpoint completes after one before it has failed",
    CompletionChain,
    "end",
    "but the files have",
    **{**CALM, "fail_before": 0.04, "partitioned": 0, "tolerates": 0, "requests": 0, "regions": 0},
)
def _(real: Wrapped, chain: CompletionChain) -> None:
    waiting = list(chain.waiting)
    real(chain)
    chain.broken = False
    chain.waiting.extend(waiting)


@mutation(
    "a file is deleted that a retained checkpoint names",
    SharedStateRegistry,
    "unregister_unused",
    "was deleted, but retained checkpoint",
)
def _(real: Wrapped, registry: SharedStateRegistry, retained: Any) -> set[str]:
    files: set[str] = real(registry, ())
    return files


@mutation(
    "an unclaimed checkpoint loses files that a later one has named",
    shared_state_registry,
    "_written_for",
    "was deleted, but retained checkpoint",
    **{**GOES_BACK, "savepoint": 0.3, "stop": 0.5},
)
def _(real: Wrapped, path: str, checkpoint_id: int) -> int:
    return checkpoint_id


# --- savepoints, and whose they are -----------------------------------------------------------------------------------


@mutation(
    "subsuming and sweeping ignore native savepoints",
    claims,
    "_named",
    "-native was deleted",
)
def _(real: Wrapped, *args: Any) -> Any:
    return iter(())


@mutation(
    "a native savepoint is kept although its checkpoint was subsumed meanwhile",
    savepoint,
    "read_head",
    "which does not exist",
    **{**ONE_STREAM, "crash": 0.005, "pause": 0.03, "upkeep": 0.6, "verbs": ("trigger_savepoint",), "native": 1},
)
def _(real: Wrapped, store: ObjectStore) -> Any:
    return Head(0, unclaimed=tuple(range(1_000))), ""


@mutation(
    "a savepoint has to commit what its checkpoint has", savepoints, "without_committables", "has something to commit"
)
def _(real: Wrapped, metadata: CheckpointMetadata) -> CheckpointMetadata:
    return metadata


@mutation(
    "a claimed savepoint is deleted before the job has its own checkpoint",
    JobAttempt,
    "_begin",
    "of savepoint",
    restore=0.8,
)
def _(real: Wrapped, attempt: JobAttempt) -> None:
    real(attempt)
    attempt._restore.dispose_claimed(attempt._owner, job_loop._now())


@mutation(
    "claiming a native savepoint deletes files that it shares with checkpoints",
    restoring,
    "dispose_savepoint",
    "was deleted",
    **{**ONE_STREAM, "savepoint": 0.5, "stop": 0.5, "drain": 0, "native": 1, "restore": 1, "regions": 0},
)
def _(real: Wrapped, location: Any, **options: Any) -> None:
    files = savepoint.load_savepoint(location.open()).files()
    real(location, **options)
    replace(location, url=location.url.rpartition("/")[0]).open().delete_many(sorted(files))


@mutation(
    "a restored checkpoint is claimed though it was not to be",
    Attempt,
    "leave_unclaimed",
    "to its owner",
    **{**GOES_BACK, "crash": 0.003, "savepoint": 0.2, "stop": 0.5},
)
def _(real: Wrapped, attempt: Attempt, checkpoint_id: int) -> None:
    attempt.claim(checkpoint_id)


@mutation(
    "a checkpoint is disposed of with files that later ones name",
    CompletedCheckpointStore,
    "dispose",
    "was deleted, but retained checkpoint",
    **{**GOES_BACK, "upkeep": 0.8, "verbs": ("dispose_checkpoint",)},
)
def _(real: Wrapped, store: CompletedCheckpointStore, attempt: Attempt, checkpoint_id: int) -> None:
    files = store.load(checkpoint_id).files()
    real(store, attempt, checkpoint_id)
    store.store.delete_many(sorted(files))


@mutation(
    "a retried run restores its savepoint again",
    JobAttempt,
    "__init__",
    "which an earlier try has restored",
    **{**CALM, "retry": 0.5, "restore": 1, "savepoint": 0.9, "stop": 0, "deleting": 0, "partitioned": 0},
)
def _(real: Wrapped, attempt: JobAttempt, *args: Any, **options: Any) -> None:
    real(attempt, *args, **{**options, "run_id": None})


@mutation(
    "a stopped job continues when it is rescaled",
    JobAttempt,
    "_begin",
    "continues a job that was stopped",
    **{**ONE_STREAM, "savepoint": 0.5, "stop": 1, "drain": 0},
)
def _(real: Wrapped, attempt: JobAttempt) -> None:
    real(attempt)
    attempt.stopped = False


@mutation(
    "a fenced attempt calls what others have deleted damaged",
    JobRunner,
    "_cause",
    "CorruptStateError",
    **{**ONE_STREAM, "task_hangs": 0.3, "regions": 0},
)
def _(real: Wrapped, region: JobRunner, error: Any) -> Any:
    return error


@mutation(
    "a sweep deletes what an active epoch has written",
    upkeep,
    "sweep",
    "which does not exist",
    **{**ONE_STREAM, "upkeep": 0.8, "verbs": ("sweep",)},
)
def _(real: Wrapped, store: ObjectStore, grace: timedelta, **options: Any) -> Any:
    return real(store, timedelta(0), **options)


@mutation("a sweep leaves files that nothing names", upkeep, "sweep", "was not swept")
def _(real: Wrapped, *args: Any, **options: Any) -> Any:
    return real(*args, **{**options, "dry_run": True})


@mutation(
    "draining does not end the input of the tasks",
    SplitPlanner,
    "plan",
    "does not end the input",
    **{**ONE_STREAM, "savepoint": 0.5, "stop": 1, "drain": 1},
)
def _(real: Wrapped, planner: SplitPlanner, *args: Any, drain: bool, **options: Any) -> Any:
    epoch = real(planner, *args, drain=drain, **options)
    return replace(epoch, ended_sources=frozenset()) if drain else epoch


# --- what becomes of checkpoints when a run ends ----------------------------------------------------------------------


@mutation(
    "checkpoints of a stopped job are deleted",
    Attempt,
    "discards_checkpoints",
    "knows any more",
    **{**ONE_STREAM, "savepoint": 0.5, "stop": 1, "drain": 0, "deleting": 1},
)
def _(real: Wrapped, attempt: Attempt, retention: Any, error: Any, *, finished: bool) -> bool:
    return finished and bool(retention.discards_on_finish)


@mutation(
    "checkpoints are deleted that have something to commit",
    Attempt,
    "discards_checkpoints",
    "was committed",
    **{**ONE_STREAM, "deleting": 1, "fail_before": 0.05, "outage": 0.9, "restarts": 0, "tolerates": 0, "regions": 0},
)
def _(real: Wrapped, attempt: Attempt, retention: Any, error: Any, *, finished: bool) -> bool:
    return error is not None and bool(retention.discards_on_failure)


# --- messages ---------------------------------------------------------------------------------------------------------


@mutation("an acknowledgement of another attempt is taken", CheckpointCoordinator, "handle", "but counted")
def _(real: Wrapped, coordinator: CheckpointCoordinator, stimulus: Any) -> Any:
    if isinstance(stimulus, Acknowledge):
        stimulus = replace(stimulus, message=replace(stimulus.message, fencing_token=coordinator._fencing_token))
    return real(coordinator, stimulus)


@mutation("an acknowledgement of another job is taken", CheckpointCoordinator, "handle", "but counted")
def _(real: Wrapped, coordinator: CheckpointCoordinator, stimulus: Any) -> Any:
    if isinstance(stimulus, Acknowledge):
        stimulus = replace(stimulus, message=replace(stimulus.message, job_id=coordinator._job_id))
    return real(coordinator, stimulus)


@mutation(
    "an acknowledgement of the second barrier is taken for the first", CheckpointCoordinator, "handle", "but counted"
)
def _(real: Wrapped, coordinator: CheckpointCoordinator, stimulus: Any) -> Any:
    pending = coordinator.pending
    if isinstance(stimulus, Acknowledge) and stimulus.message.checkpoint_id in pending:
        stimulus = replace(stimulus, message=replace(stimulus.message, checkpoint_id=min(pending)))
    return real(coordinator, stimulus)


@mutation("a second acknowledgement replaces the first", PendingCheckpoint, "acknowledge", "but counted")
def _(real: Wrapped, pending: PendingCheckpoint, task: Any, state: Any) -> AcknowledgeResult:
    result: AcknowledgeResult = real(pending, task, state)
    if result is AcknowledgeResult.DUPLICATE:
        pending._states[task] = state
    return result


# --- the next attempt -------------------------------------------------------------------------------------------------


@mutation(
    "the id counter is not advanced",
    CompletedCheckpointStore,
    "assign_checkpoint_id",
    "although only this attempt may use its id",
    **{**ONE_STREAM, "crash": 0.01, "tolerates": 0, "regions": 0},
)
def _(real: Wrapped, store: CompletedCheckpointStore, attempt: Any) -> int:
    return (attempt.head.checkpoint_id or 0) + 1


@mutation(
    "the newest metadata is restored instead of what HEAD names",
    CompletedCheckpointStore,
    "begin_attempt",
    "no completed checkpoint names it",
    **{**ONE_STREAM, "crash": 0.01, "fail_before": 0.02, "regions": 0},
)
def _(real: Wrapped, store: CompletedCheckpointStore, *args: Any, **kwargs: Any) -> Any:
    attempt = real(store, *args, **kwargs)
    try:
        attempt.latest = store.load(max(entry.checkpoint_id for entry in store.list_checkpoints()))
    except (ValueError, StorageError, CorruptMetadataError):
        return attempt
    return attempt


@mutation(
    "a restore does not commit what the last checkpoint has prepared",
    Transactions,
    "recover",
    "has to commit it",
)
def _(real: Wrapped, transactions: Transactions, commit: Any, **options: Any) -> tuple[int, int]:
    return 0, transactions.abort_lingering()


@mutation(
    "what a finished job has left open is not aborted",
    Transactions,
    "abort_left_open",
    "neither committed nor aborted",
    **{**ONE_STREAM, "speculation": 0.5},
)
def _(real: Wrapped, transactions: Transactions) -> None:
    pass


@mutation("a job whose HEAD is lost starts from nothing", leadership, "find_traces", "went back", lost_head=1)
def _(real: Wrapped, store: ObjectStore) -> Traces:
    return Traces()


@mutation("sources start from the beginning after a restore", SplitPlanner, "__init__", "but counted")
def _(real: Wrapped, planner: SplitPlanner, graph: Any, restored: Any, *args: Any, **kwargs: Any) -> None:
    real(planner, graph, {}, *args, **kwargs)


@mutation(
    "a rescale hands all rows of a file to each subtask",
    RunHandle,
    "clip",
    "has key groups 0 to",
    **{**ONE_STREAM, "crash": 0.01, "restarts": 0, "tolerates": 0, "regions": 0},
)
def _(real: Wrapped, handle: RunHandle, key_groups: Any) -> RunHandle:
    return handle
