"""What an operator with static inputs takes first. The rules are pure."""

from __future__ import annotations

from collections.abc import Callable, Set

from dagster_flinkpy.runtime.task.barrier_handlers import Barrier, Channel, Element, Event

__all__ = ["StaticFirst"]


class StaticFirst:
    """Keeps other input back until static inputs have brought everything, once in the life of a task.

    Args:
        channels: All channels of the operator.
        static: Those of its static inputs; none if it has no others.
    """

    def __init__(self, channels: Set[Channel], static: Set[Channel]) -> None:
        self._static = set(static)
        """Those that have not brought everything."""
        self.waiting: Set[Channel] = channels - self._static if static else frozenset()
        """The channels that wait."""
        self._early: list[Element | Barrier] = []
        """What has come from them."""

    def keeps(self, event: Element | Barrier) -> bool:
        """Returns whether an event comes too early, and keeps it in this case."""
        if event.channel not in self.waiting:
            return False
        self._early.append(event)
        return True

    def release(self, event: Event, is_silent: Callable[[Channel], bool]) -> list[Element | Barrier]:
        """Returns the events whose time has come with an event of a static input, if any."""
        if isinstance(event, Barrier):
            self._static.discard(event.channel)
        self._static = {channel for channel in self._static if not is_silent(channel)}
        if self._static:
            return []
        self.waiting = frozenset()
        early, self._early = self._early, []
        return early
