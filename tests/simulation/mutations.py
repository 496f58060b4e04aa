"""Rules of the library, broken one at a time: the simulation has to notice each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

from dagster_flinkpy.checkpoint import shared_state_registry
from dagster_flinkpy.checkpoint import store as completed_checkpoint_store
from dagster_flinkpy.checkpoint.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.head import HEAD_KEY, Head, read_head
from dagster_flinkpy.checkpoint.pending import AcknowledgeResult, PendingCheckpoint
from dagster_flinkpy.checkpoint.shared_state_registry import SharedStateRegistry
from dagster_flinkpy.checkpoint.stimuli import Acknowledge, HeadReplaced
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.connectors.staged_files import StagedFileCommitter
from dagster_flinkpy.errors import CorruptMetadataError, StorageError
from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.job import JobAttempt
from dagster_flinkpy.runtime.split_planner import SplitPlanner
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.storage import ObjectStore, lease

__all__ = ["MUTATIONS"]

Wrapped = Callable[..., Any]
Mutation = Callable[[], AbstractContextManager[Any]]

MUTATIONS: dict[str, Mutation] = {}
"""By what is broken."""


def _mutation(what: str, owner: Any, name: str) -> Callable[[Wrapped], Wrapped]:
    """Registers a function that stands for a method; its first argument is the method itself."""

    def register(function: Wrapped) -> Wrapped:
        real = getattr(owner, name)

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return function(real, *args, **kwargs)

        MUTATIONS[what] = lambda: mock.patch.object(owner, name, stand_in)
        return function

    return register


# --- fencing ----------------------------------------------------------------------------------------------------------


@_mutation("HEAD is replaced without If-Match", completed_checkpoint_store, "put_if")
def _(real: Wrapped, store: ObjectStore, key: str, data: bytes, if_match: str | None) -> str:
    return store.put(key, data) if key == HEAD_KEY else real(store, key, data, if_match)


@_mutation("nothing is written on a condition", completed_checkpoint_store, "put_if")
def _(real: Wrapped, store: ObjectStore, key: str, data: bytes, if_match: str | None) -> str:
    return store.put(key, data)


@_mutation("a takeover leaves HEAD as it is", completed_checkpoint_store, "put_if")
def _(real: Wrapped, store: ObjectStore, key: str, data: bytes, if_match: str | None) -> str:
    if key == HEAD_KEY and if_match is not None:
        found = read_head(store)
        if found is not None and found[0].checkpoint_id == Head.from_bytes(data, key).checkpoint_id:
            return if_match
    return real(store, key, data, if_match)


def _unfenced(owner: Any, name: str, value: Any) -> Mutation:
    """Besides, nobody looks whether a newer attempt took over."""

    def broken() -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(mock.patch.object(lease, "check", lambda store, leader: None))
        stack.enter_context(mock.patch.object(owner, name, value))
        return stack

    return broken


MUTATIONS |= {
    "state files are named by content only, and who deletes them is not fenced": _unfenced(Epoch, "written_by", ""),
    "an attempt aborts what newer ones have staged, and is not fenced": _unfenced(
        StagedFileCommitter, "_is_mine", lambda committer, key: True
    ),
}


# --- completing -------------------------------------------------------------------------------------------------------


@_mutation("sinks commit before the metadata is written", JobAttempt, "_write_metadata")
def _(real: Wrapped, attempt: JobAttempt) -> None:
    attempt._commit(attempt._metadata)
    real(attempt)


@_mutation("sinks commit before HEAD is replaced", JobAttempt, "_finalize")
def _(real: Wrapped, attempt: JobAttempt, checkpoint_id: int, write: Wrapped, done: Any) -> Any:
    if isinstance(done, HeadReplaced):
        attempt._commit(attempt._metadata)
    return real(attempt, checkpoint_id, write, done)


@_mutation("older checkpoints are subsumed before the new one is added", CompletedCheckpointStore, "complete")
def _(real: Wrapped, store: CompletedCheckpointStore, attempt: Any, *args: Any, **kwargs: Any) -> None:
    store.store.delete_many([f"chk-{number}/_metadata" for number in attempt.head.retained])
    real(store, attempt, *args, **kwargs)


@_mutation("an unknown outcome is taken for a failure", JobAttempt, "_finalize")
def _(real: Wrapped, attempt: JobAttempt, *args: Any) -> Any:
    answer = real(attempt, *args)
    return replace(answer, unknown_outcome=False) if hasattr(answer, "unknown_outcome") else answer


@_mutation("a file is deleted that a retained checkpoint names", SharedStateRegistry, "unregister_unused")
def _(real: Wrapped, registry: SharedStateRegistry, retained: Any) -> set[str]:
    files: set[str] = real(registry, ())
    return files


@_mutation("an unclaimed checkpoint loses files that a later one has named", shared_state_registry, "_written_for")
def _(real: Wrapped, path: str, checkpoint_id: int) -> int:
    return checkpoint_id


# --- messages ---------------------------------------------------------------------------------------------------------


@_mutation("an acknowledgement of another attempt is taken", CheckpointCoordinator, "handle")
def _(real: Wrapped, coordinator: CheckpointCoordinator, stimulus: Any) -> Any:
    if isinstance(stimulus, Acknowledge):
        stimulus = replace(stimulus, message=replace(stimulus.message, attempt=coordinator._attempt))
    return real(coordinator, stimulus)


@_mutation("an acknowledgement of another job is taken", CheckpointCoordinator, "handle")
def _(real: Wrapped, coordinator: CheckpointCoordinator, stimulus: Any) -> Any:
    if isinstance(stimulus, Acknowledge):
        stimulus = replace(stimulus, message=replace(stimulus.message, job_id=coordinator._job_id))
    return real(coordinator, stimulus)


@_mutation("a second acknowledgement replaces the first", PendingCheckpoint, "acknowledge")
def _(real: Wrapped, pending: PendingCheckpoint, task: Any, state: Any) -> AcknowledgeResult:
    result: AcknowledgeResult = real(pending, task, state)
    if result is AcknowledgeResult.DUPLICATE:
        pending._states[task] = state
    return result


# --- the next attempt -------------------------------------------------------------------------------------------------


@_mutation("the id counter is not advanced", CompletedCheckpointStore, "assign_checkpoint_id")
def _(real: Wrapped, store: CompletedCheckpointStore, attempt: Any) -> int:
    return (attempt.head.checkpoint_id or 0) + 1


@_mutation("the newest metadata is restored instead of what HEAD names", CompletedCheckpointStore, "begin_attempt")
def _(real: Wrapped, store: CompletedCheckpointStore, *args: Any, **kwargs: Any) -> Any:
    attempt = real(store, *args, **kwargs)
    try:
        attempt.latest = store.load(max(entry.checkpoint_id for entry in store.list_checkpoints()))
    except (ValueError, StorageError, CorruptMetadataError):
        return attempt
    return attempt


@_mutation("a restore does not commit what the last checkpoint has prepared", JobAttempt, "_recover")
def _(real: Wrapped, attempt: JobAttempt, latest: Any) -> None:
    attempt._abort_lingering()


@_mutation("sources start from the beginning after a restore", SplitPlanner, "__init__")
def _(real: Wrapped, planner: SplitPlanner, graph: Any, restored: Any, *args: Any, **kwargs: Any) -> None:
    real(planner, graph, {}, *args, **kwargs)


@_mutation("a rescale hands all rows of a file to each subtask", RunHandle, "clip")
def _(real: Wrapped, handle: RunHandle, key_groups: Any) -> RunHandle:
    return handle
