"""Event time of an input gate. The rules are pure: no I/O, no Arrow and no clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["BEFORE", "WatermarkValve"]

C = TypeVar("C", bound=Hashable)

BEFORE = -1
"""The epoch of elements that were in flight when the Spark job started."""


@dataclass
class _Origin:
    watermarks: dict[Hashable, int] = field(default_factory=dict)
    """The last watermark of each channel."""
    idle: dict[Hashable, int] = field(default_factory=dict)
    """The idle channels, each with the epoch in which it is idle."""
    reached: int = MIN_WATERMARK

    def idle_in(self, epoch: int) -> bool:
        return all(self.idle.get(channel, BEFORE - 1) >= epoch for channel in self.watermarks)

    def advance(self, epoch: int) -> None:
        counting = [w for c, w in self.watermarks.items() if self.idle.get(c, BEFORE - 1) < epoch]
        reached = min(counting) if counting else max(self.watermarks.values())
        if reached == MAX_WATERMARK:  # it ends in each channel: one that is idle has yet to hear of it
            reached = max((w for w in self.watermarks.values() if w != MAX_WATERMARK), default=MAX_WATERMARK)
        self.reached = max(self.reached, reached)


class WatermarkValve(Generic[C]):
    """Determines the event time of a gate from the watermarks of its channels (Flink: ``StatusWatermarkValve``).

    Each watermark belongs to an origin: the source that generated it, or the operator that assigns timestamps. The
    event time of an origin is the minimum of the watermarks in its channels. Idle channels do not count; if all are
    idle, it is their maximum. The event time of the gate is the minimum over its origins. Origins that are idle in all
    channels, or have ended, do not count. If no other origin is left, it is the maximum of the idle ones, or the last
    watermark if all have ended. Event time never goes back.

    There are differences from Flink, because idleness is planned for an epoch instead of being guessed by a timeout:

    - Origins are kept apart. If only some subtasks of a source send to a gate, and they are idle, their next records
      are still not late downstream: a gate that sees all subtasks still waits for that source.
    - Idleness ends with its epoch. As soon as one channel is in the next epoch, every other channel counts until it
      reports that it is idle in that epoch, too. So the order in which channels are read makes no difference.
    - A channel that becomes active again counts at once, even if it is behind the gate. The gate then waits for it.
    - An origin has ended when it has in all channels, idle ones, too. A sender that is idle may hold windows, which
      fire when it hears of the end: their results would be late.

    Args:
        channels: All channels of all inputs, each with the origins that send through it. All start active, without a
            watermark.
        watermark: The event time reached earlier, e.g. in the restored epoch.
    """

    def __init__(self, channels: Mapping[C, Iterable[str]], watermark: int = MIN_WATERMARK) -> None:
        self._origins: dict[str, _Origin] = {}
        for channel, origins in channels.items():
            for origin in origins:
                self._origins.setdefault(origin, _Origin()).watermarks[channel] = MIN_WATERMARK
        self._epoch = BEFORE
        """The epoch of the channel that is furthest ahead."""
        self.watermark = watermark

    @property
    def origins(self) -> tuple[str, ...]:
        """All origins of the gate's channels."""
        return tuple(self._origins)

    def reached(self, origin: str) -> int:
        """Returns the event time of an origin."""
        return self._origins[origin].reached

    def idle_in(self, origin: str, epoch: int) -> bool:
        """Returns whether no channel will deliver anything of an origin until the end of an epoch."""
        return self._origins[origin].idle_in(epoch)

    def is_silent(self, channel: C) -> bool:
        """Returns whether a channel has nothing more of any origin until its next barrier, as far as is known."""
        origins = [each for each in self._origins.values() if channel in each.watermarks]
        return all(
            each.watermarks[channel] == MAX_WATERMARK or each.idle.get(channel, BEFORE - 1) >= self._epoch
            for each in origins
        )

    def all_idle_in(self, epoch: int) -> bool:
        """Returns whether each origin is idle until the end of an epoch or has ended, but not all have ended."""
        open_origins = [o for o in self._origins.values() if o.reached != MAX_WATERMARK]
        return bool(open_origins) and all(o.idle_in(epoch) for o in open_origins)

    def on_watermark(self, channel: C, origin: str, watermark: int, epoch: int) -> bool:
        """Takes a watermark, which makes its channel active.

        Args:
            channel: The channel that it comes from.
            origin: The origin of the watermark; an unknown one is ignored.
            watermark: Event time in milliseconds.
            epoch: How many barriers the channel has delivered to this task before it.

        Returns:
            Whether the event time of the gate has advanced.
        """
        known = self._origins.get(origin)
        if known is not None and channel in known.watermarks:
            known.watermarks[channel] = max(known.watermarks[channel], watermark)
        return self.on_status(channel, origin, False, epoch)

    def on_status(self, channel: C, origin: str, idle: bool, epoch: int) -> bool:
        """Takes the status of an origin in a channel until the channel's next barrier; see :meth:`on_watermark`."""
        known = self._origins.get(origin)
        if known is None or channel not in known.watermarks:
            return False
        if idle:
            known.idle[channel] = epoch
        else:
            known.idle.pop(channel, None)
        return self._advance(known, epoch)

    def _advance(self, origin: _Origin, epoch: int) -> bool:
        self._epoch = max(self._epoch, epoch)
        origin.advance(self._epoch)
        active: list[int] = []
        idle: list[int] = []
        for each in self._origins.values():
            if each.reached != MAX_WATERMARK:
                (idle if each.idle_in(self._epoch) else active).append(each.reached)
        reached = min(active) if active else max(idle, default=MAX_WATERMARK)
        risen = reached > self.watermark
        if risen:
            self.watermark = reached
        return risen
