"""The master hooks of a job, on the driver (Flink: ``MasterHooks``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.datastream.checkpointing.master_hook import MasterTriggerRestoreHook
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState, may_stay_behind
from dagster_flinkpy.errors import CheckpointError, CheckpointTimeoutError, RestoreError, message_of
from dagster_flinkpy.runtime.failure import DRIVER_EXCEPTIONS
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["MasterHooks"]


class MasterHooks:
    """Calls the master hooks of a job; errors name the hook that failed or hung."""

    def __init__(self, hooks: Sequence[MasterTriggerRestoreHook], watchdog: Watchdog) -> None:
        self._hooks = {hook.get_identifier(): hook for hook in hooks}
        self._watchdog = watchdog

    @property
    def identifiers(self) -> tuple[str, ...]:
        """Identifiers of the hooks."""
        return tuple(self._hooks)

    def __iter__(self) -> Iterator[MasterTriggerRestoreHook]:
        return iter(self._hooks.values())

    def trigger(self, identifier: str, checkpoint_id: int, timestamp_ms: int) -> Any:
        """Calls a hook for a checkpoint and returns its state.

        Raises:
            CheckpointError: The hook raised, or its state is not JSON.
            CheckpointTimeoutError: The hook hangs.
        """
        hook = self._hooks[identifier]
        try:
            state = self._watchdog.run(
                f"master hook {identifier!r} at checkpoint {checkpoint_id}",
                hook.trigger_checkpoint,
                checkpoint_id,
                timestamp_ms,
            )
            return json.loads(json.dumps(state, allow_nan=False))
        except CheckpointTimeoutError:
            raise
        except DRIVER_EXCEPTIONS as error:
            raise CheckpointError(
                f"master hook {identifier!r} failed at checkpoint {checkpoint_id}: {type(error).__name__}: "
                f"{message_of(error)}"
            ) from error

    def restore(self, restored: CheckpointMetadata | None, *, allow_non_restored_state: NonRestoredState) -> None:
        """Passes the hooks their restored state, or resets them if there is none (Flink: ``restoreMasterHooks``).

        Raises:
            RestoreError: A hook raised, or there is state of a hook that is gone.
            CheckpointTimeoutError: A hook hangs.
        """
        states = restored.master_states if restored else {}
        gone = sorted(states.keys() - self._hooks.keys())
        unmatched = [identifier for identifier in gone if not may_stay_behind(allow_non_restored_state, identifier)]
        if unmatched:
            raise RestoreError(
                f"there is state of master hook {unmatched[0]!r}, but the program has no such hook. Add the hook with "
                "env.get_checkpoint_config().add_master_hook(...), or set allow_non_restored_state to "
                f"[{unmatched[0]!r}] to leave its state behind."
            )
        for identifier, hook in self._hooks.items():
            try:
                if restored is None:
                    self._watchdog.run(f"resetting master hook {identifier!r}", hook.reset)
                else:
                    what, state = f"restoring master hook {identifier!r}", states.get(identifier)
                    self._watchdog.run(what, hook.restore_checkpoint, restored.checkpoint_id, state)
            except CheckpointTimeoutError:
                raise
            except DRIVER_EXCEPTIONS as error:
                raise RestoreError(
                    f"master hook {identifier!r} could not be restored: {type(error).__name__}: {message_of(error)}"
                ) from error

    def close(self) -> None:
        """Closes the hooks and ignores what they raise. If one hangs, the others are not called."""
        for identifier, hook in self._hooks.items():
            with suppress(*DRIVER_EXCEPTIONS):
                self._watchdog.run(f"closing master hook {identifier!r}", hook.close)
