"""The master hooks of a job, on the driver (Flink: ``MasterHooks``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.datastream.master_hook import MasterTriggerRestoreHook
from dagster_flinkpy.errors import CheckpointError, RestoreError

__all__ = ["MasterHooks"]


class MasterHooks:
    """Calls hooks, and says in whose name they failed.

    Args:
        hooks: Each with an identifier of its own.
    """

    def __init__(self, hooks: Sequence[MasterTriggerRestoreHook]) -> None:
        self._hooks = {hook.get_identifier(): hook for hook in hooks}

    @property
    def identifiers(self) -> tuple[str, ...]:
        """Of the hooks."""
        return tuple(self._hooks)

    def __iter__(self) -> Iterator[MasterTriggerRestoreHook]:
        return iter(self._hooks.values())

    def trigger(self, identifier: str, checkpoint_id: int, timestamp_ms: int) -> Any:
        """What a hook gives for a checkpoint.

        Raises:
            CheckpointError: It raised, or what it gave is not JSON.
        """
        try:
            state = self._hooks[identifier].trigger_checkpoint(checkpoint_id, timestamp_ms)
            return json.loads(json.dumps(state, allow_nan=False))
        except Exception as error:
            raise CheckpointError(
                f"master hook {identifier!r} failed at checkpoint {checkpoint_id}: {type(error).__name__}: {error}"
            ) from error

    def restore(self, restored: CheckpointMetadata | None, *, allow_non_restored_state: bool) -> None:
        """Gives the hooks their state (Flink: ``MasterHooks.restoreMasterHooks``).

        Args:
            restored: What the job goes on from; None: nothing, so the hooks are reset.
            allow_non_restored_state: Leaves state behind whose hook is gone.

        Raises:
            RestoreError: A hook raised, or is gone.
        """
        states = restored.master_states if restored else {}
        unmatched = sorted(states.keys() - self._hooks.keys())
        if unmatched and not allow_non_restored_state:
            raise RestoreError(
                f"there is state of master hook {unmatched[0]!r}, but the program has no such hook. Add it again with "
                "env.get_checkpoint_config().add_master_hook(...), or set allow_non_restored_state to leave it behind."
            )
        for identifier, hook in self._hooks.items():
            try:
                if restored is None:
                    hook.reset()
                else:
                    hook.restore_checkpoint(restored.checkpoint_id, states.get(identifier))
            except Exception as error:
                raise RestoreError(
                    f"master hook {identifier!r} could not be restored: {type(error).__name__}: {error}"
                ) from error

    def close(self) -> None:
        """Closes them; what they raise then is of no interest any more."""
        for hook in self:
            with suppress(Exception):
                hook.close()
