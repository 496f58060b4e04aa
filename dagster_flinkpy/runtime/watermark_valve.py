"""Event time of an input gate: the minimum over its channels. Pure: no I/O, no Arrow, no clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK

__all__ = ["WatermarkValve"]


class WatermarkValve:
    """The minimum of the watermarks of the channels that count, never backwards (Flink: ``StatusWatermarkValve``).

    An idle channel does not count. One that is behind the gate, because it was idle while the others went on, does not
    count until it has caught up. When all are idle the gate goes on to the greatest of their watermarks.

    Args:
        channels: All channels of all inputs; all start active, without watermark.
        watermark: Event time reached before, e.g. in the epoch that was restored.
    """

    def __init__(self, channels: Iterable[Hashable], watermark: int = MIN_WATERMARK) -> None:
        self._watermarks: dict[Hashable, int] = dict.fromkeys(channels, MIN_WATERMARK)
        self._idle: set[Hashable] = set()
        self._behind: set[Hashable] = set()
        self._was_idle: set[Hashable] = set()
        self.watermark = watermark

    @property
    def idle(self) -> bool:
        """Whether no channel is active."""
        return len(self._idle) == len(self._watermarks)

    def on_watermark(self, channel: Hashable, watermark: int) -> bool:
        """Takes a channel's watermark, which makes it active; says whether the watermark of the gate has risen."""
        self._watermarks[channel] = max(self._watermarks[channel], watermark)
        self._idle.discard(channel)
        return self._advance(channel)

    def on_status(self, channel: Hashable, idle: bool) -> bool:
        """Takes a channel's status; says whether the watermark of the gate has risen."""
        if idle:
            self._idle.add(channel)
            self._was_idle.add(channel)
        else:
            self._idle.discard(channel)
        return self._advance(channel)

    def _advance(self, channel: Hashable) -> bool:
        own = self._watermarks[channel]
        # Only one that was idle can be behind. Others hold the gate back, also where a restore left them less event
        # time than the gate: their records are still to come, and would be late behind the others' last watermark.
        if channel in self._was_idle and MIN_WATERMARK < own < self.watermark:
            self._behind.add(channel)
        else:
            self._behind.discard(channel)
        counting = [w for c, w in self._watermarks.items() if c not in self._idle and c not in self._behind]
        if self.idle:
            reached = max(self._watermarks.values(), default=MIN_WATERMARK)
        else:
            reached = min(counting, default=MIN_WATERMARK)
        risen = reached > self.watermark
        if risen:
            self.watermark = reached
        return risen
