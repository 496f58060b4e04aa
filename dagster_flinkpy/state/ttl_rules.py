"""Time to live: when state expires, and whether it may still be read (Flink: ``AbstractTtlDecorator``).

Each value, list element or map entry is stored with the time at which it expires, in milliseconds of processing time.
Expired values are dropped when they are read and when runs are merged.
"""

from __future__ import annotations

from collections.abc import Callable

from dagster_flinkpy.datastream.state_ttl import StateTtlConfig

__all__ = ["TtlRules"]


class TtlRules:
    """Decides when state expires, and whether it may still be read.

    Args:
        config: The time to live that the user declared.
        now: Returns processing time in milliseconds.
    """

    def __init__(self, config: StateTtlConfig, now: Callable[[], int]) -> None:
        self.now = now
        self.ttl = config.ttl_millis
        """Milliseconds until a value that is written expires."""
        self.on_read = config.get_update_type() is StateTtlConfig.UpdateType.OnReadAndWrite
        """Whether reading state restarts its time to live."""
        self.return_expired = (
            config.get_state_visibility() is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
        )
        """Whether expired state that was not cleaned up yet may still be returned, once."""

    def expiry(self) -> int:
        """Returns the time at which a value that is written now expires."""
        return self.now() + self.ttl
