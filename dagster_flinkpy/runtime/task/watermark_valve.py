"""Event time of an input gate. Pure: no I/O, no Arrow, no clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["BEFORE", "WatermarkValve"]

C = TypeVar("C", bound=Hashable)

BEFORE = -1
"""The epoch of what was in flight when the Spark job started."""


@dataclass
class _Origin:
    watermarks: dict[Hashable, int] = field(default_factory=dict)
    """By channel."""
    idle: dict[Hashable, int] = field(default_factory=dict)
    """Idle channels, and the epoch in which they are."""
    reached: int = MIN_WATERMARK

    def idle_in(self, epoch: int) -> bool:
        return all(self.idle.get(channel, BEFORE - 1) >= epoch for channel in self.watermarks)

    def advance(self, epoch: int) -> None:
        counting = [w for c, w in self.watermarks.items() if self.idle.get(c, BEFORE - 1) < epoch]
        self.reached = max(self.reached, min(counting) if counting else max(self.watermarks.values()))


class WatermarkValve(Generic[C]):
    """How far event time is, by what came through the channels (Flink: ``StatusWatermarkValve``).

    Each watermark belongs to an origin: the source that made it, or the operator that assigns timestamps. The event
    time of an origin is the minimum over the channels that it comes through. An idle channel does not count; when all
    are idle, the greatest is reached. The event time of the gate is the minimum over its origins. One that is idle in
    all channels does not count, nor one that has ended; if no other one is left, the greatest of the idle ones is
    reached, and the last watermark when all have ended. Event time never goes back.

    What differs from Flink comes from idleness being planned for an epoch, instead of being guessed by a timeout:

    - Origins are kept apart. Where only some subtasks of a source come through a gate, and they are idle, the others
      are not behind what they read next: a gate downstream that sees all subtasks still waits for that source.
    - Idleness ends with its epoch. As soon as one channel is in the next one, every other channel counts until it says
      that it is idle there, too. So it makes no difference how many barriers a Spark job carries, nor who is heard
      first.
    - A channel that is active again counts at once, even if it is behind the gate, which then waits for it.

    Args:
        channels: All channels of all inputs, each with the origins that come through it; all start active, without
            watermark.
        watermark: Event time reached before, e.g. in the epoch that was restored.
    """

    def __init__(self, channels: Mapping[C, Iterable[str]], watermark: int = MIN_WATERMARK) -> None:
        self._origins: dict[str, _Origin] = {}
        for channel, origins in channels.items():
            for origin in origins:
                self._origins.setdefault(origin, _Origin()).watermarks[channel] = MIN_WATERMARK
        self._epoch = BEFORE
        """That of the channel which is furthest."""
        self.watermark = watermark

    @property
    def origins(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._origins)

    def reached(self, origin: str) -> int:
        """Event time of an origin."""
        return self._origins[origin].reached

    def idle_in(self, origin: str, epoch: int) -> bool:
        """Whether no channel will bring anything more of an origin up to the end of an epoch."""
        return self._origins[origin].idle_in(epoch)

    def all_idle_in(self, epoch: int) -> bool:
        """Whether every origin is idle up to the end of an epoch, or has ended; and not all have ended."""
        open_origins = [o for o in self._origins.values() if o.reached != MAX_WATERMARK]
        return bool(open_origins) and all(o.idle_in(epoch) for o in open_origins)

    def on_watermark(self, channel: C, origin: str, watermark: int, epoch: int) -> bool:
        """Takes a watermark, which makes its channel active; says whether the watermark of the gate has risen.

        Args:
            channel: Where it comes from.
            origin: Who made it; one that is not known is ignored.
            watermark: Event time in milliseconds.
            epoch: How many barriers of this Spark job the channel brought before it.
        """
        known = self._origins.get(origin)
        if known is None or channel not in known.watermarks:
            return False
        known.watermarks[channel] = max(known.watermarks[channel], watermark)
        known.idle.pop(channel, None)
        return self._advance(known, epoch)

    def on_status(self, channel: C, origin: str, idle: bool, epoch: int) -> bool:
        """Takes the status of an origin in a channel, up to the channel's next barrier; as :meth:`on_watermark`."""
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
