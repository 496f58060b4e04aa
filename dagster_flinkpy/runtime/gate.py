"""The input gate of an operator: watermarks and barriers of its channels. Pure: no I/O, no Arrow, no clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK

__all__ = ["BarrierAligner", "WatermarkValve"]

Channel = Hashable


class WatermarkValve:
    """The minimum of the watermarks of all active channels, never backwards (Flink: ``StatusWatermarkValve``).

    Args:
        channels: All channels; all start active.
        watermark: Event time reached before, e.g. in the epoch that was restored.
    """

    def __init__(self, channels: Sequence[Channel], watermark: int = MIN_WATERMARK) -> None:
        self._watermarks: dict[Channel, int] = dict.fromkeys(channels, MIN_WATERMARK)
        self._idle: set[Channel] = set()
        self.watermark = watermark

    @property
    def idle(self) -> bool:
        """Whether no channel is active."""
        return len(self._idle) == len(self._watermarks)

    def on_watermark(self, channel: Channel, watermark: int) -> bool:
        """Takes a channel's watermark; says whether the watermark of the gate has risen."""
        self._watermarks[channel] = max(self._watermarks[channel], watermark)
        self._idle.discard(channel)
        return self._advance()

    def on_status(self, channel: Channel, idle: bool) -> bool:
        """Takes a channel's status; says whether the watermark of the gate has risen."""
        if idle:
            self._idle.add(channel)
        else:
            self._idle.discard(channel)
        return self._advance()

    def _advance(self) -> bool:
        active = [w for c, w in self._watermarks.items() if c not in self._idle]
        risen = bool(active) and min(active) > self.watermark
        if risen:
            self.watermark = min(active)
        return risen


class BarrierAligner:
    """Waits until the barrier of a checkpoint has come through every channel.

    An epoch ends with its barrier, so nothing follows it in a channel; what does is an error of the transport. Mirrors
    the aligned case of Flink's ``SingleCheckpointBarrierHandler``.
    """

    def __init__(self, channels: Iterable[Channel], checkpoint_id: int) -> None:
        self._open = set(channels)
        self._checkpoint_id = checkpoint_id

    @property
    def aligned(self) -> bool:
        """Whether every channel has brought the barrier."""
        return not self._open

    @property
    def missing(self) -> set[Channel]:
        """Channels the barrier has not come through."""
        return set(self._open)

    def check_open(self, channel: Channel) -> None:
        """Refuses records behind a barrier.

        Raises:
            ValueError: The channel is unknown or its barrier has passed.
        """
        if channel not in self._open:
            raise ValueError(f"channel {channel} brought data behind barrier {self._checkpoint_id}")

    def on_barrier(self, channel: Channel, checkpoint_id: int) -> bool:
        """Takes a barrier; says whether it was the last one.

        Raises:
            ValueError: It is a barrier of another checkpoint, or the second one of a channel.
        """
        if checkpoint_id != self._checkpoint_id:
            raise ValueError(f"channel {channel} brought barrier {checkpoint_id} in epoch {self._checkpoint_id}")
        self.check_open(channel)
        self._open.discard(channel)
        return not self._open
