"""What happens to a restored checkpoint or savepoint: who owns it, and which of its state may be left behind."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from dagster_flinkpy.errors import ConfigurationError

__all__ = ["NonRestoredState", "RecoveryClaimMode", "may_stay_behind", "non_restored_state_of"]

NonRestoredState = bool | Collection[str]
"""Whether state whose operator no longer exists may be left behind: all of it, none, or that of these uids."""


def may_stay_behind(allowed: NonRestoredState, uid: str) -> bool:
    """Returns whether the state of an operator, or of a master hook, may be left behind.

    Args:
        allowed: True, False, or the uids of operators and identifiers of hooks whose state may.
        uid: Uid of the operator, or identifier of the hook.

    Raises:
        ConfigurationError: ``allowed`` is a string.
    """
    if isinstance(allowed, str):
        raise ConfigurationError(f"allow_non_restored_state={allowed!r} is text; give true, false or a list of uids")
    return allowed if isinstance(allowed, bool) else uid in allowed


def non_restored_state_of(text: str) -> NonRestoredState:
    """Reads the value of an option: ``true``, ``false``, or uids with ``;`` between them."""
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    return tuple(uid.strip() for uid in text.split(";") if uid.strip())


class RecoveryClaimMode(Enum):
    """Who owns a checkpoint or savepoint after it has been restored."""

    CLAIM = "CLAIM"
    """The job, which deletes it as soon as it has completed a checkpoint that no longer needs it."""
    NO_CLAIM = "NO_CLAIM"
    """Its previous owner, who may delete it once the job has completed a checkpoint."""
    LEGACY = "LEGACY"
    """Its previous owner. In Flink, later checkpoints may need its files; here it is the same as NO_CLAIM."""
