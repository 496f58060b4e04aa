"""What a task receives from others while all of them run (Flink: ``InputGate``, ``RemoteInputChannel``)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping

from dagster_flinkpy.errors import CheckpointError
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow

__all__ = ["InputGate"]

Channel = tuple[int, int]
"""Id of the edge and index of the upstream subtask."""


class _InputChannel:
    __slots__ = ("blocked", "grant", "listed", "rows")

    def __init__(self, grant: Callable[[], None]) -> None:
        self.rows: deque[WireRow] = deque()
        self.grant = grant
        self.blocked = False
        self.listed = False
        """Whether it is among the channels to read."""


class InputGate:
    """The channels of one task. Any thread puts rows in; the thread of the slot takes them out, channel by channel.

    A channel has room for a few buffers. When one is processed, its producer gets the credit back.

    Args:
        channels: By channel, what gives a credit back to its producer; called on the thread of the slot.
        wake: Called when there is something to take.
        room: For how many buffers each channel has room.
    """

    def __init__(self, channels: Mapping[Channel, Callable[[], None]], wake: Callable[[], object], room: int) -> None:
        self._channels = {channel: _InputChannel(grant) for channel, grant in channels.items()}
        self._ready: deque[_InputChannel] = deque()
        self._taken: list[_InputChannel] = []
        """Those of the buffers whose credits are not given back."""
        self._wake = wake
        self._lock = threading.Lock()
        self._room, self._buffers = room * len(channels), 0

    @property
    def channels(self) -> Collection[Channel]:
        """All of its channels."""
        return self._channels.keys()

    @property
    def usage(self) -> float:
        """The share of its room that is in use (Flink: ``inPoolUsage``)."""
        return self._buffers / self._room

    def put(self, row: WireRow) -> None:
        """Takes a row of a channel.

        Raises:
            CheckpointError: The gate does not have the channel.
        """
        if (channel := self._channels.get((row.edge, row.channel))) is None:
            raise CheckpointError(f"a gate received data of channel {(row.edge, row.channel)}, which it does not have")
        with self._lock:
            self._buffers += row.kind is Kind.BUFFER
            channel.rows.append(row)
            if not channel.listed and not channel.blocked:
                channel.listed = True
                self._ready.append(channel)
        self._wake()

    @property
    def is_available(self) -> bool:
        """Whether there is a row to take."""
        return bool(self._ready)

    def poll(self) -> WireRow | None:
        """Returns the next row of the channel whose turn it is, or None if there is none."""
        with self._lock:
            if not self._ready:
                return None
            channel = self._ready.popleft()
            row = channel.rows.popleft()
            self._buffers -= row.kind is Kind.BUFFER
            channel.listed = bool(channel.rows)
            if channel.listed:
                self._ready.append(channel)
        if row.kind is Kind.BUFFER:
            self._taken.append(channel)
        return row

    def grant(self) -> None:
        """Gives back the credits for what was taken out, because it is processed, but for the last few records."""
        for channel in self._taken:
            channel.grant()
        self._taken.clear()

    def block(self, channels: set[Channel]) -> None:
        """Takes nothing out of these channels, and of all others again. What they hold stays where it is."""
        with self._lock:
            for name, channel in self._channels.items():
                channel.blocked = name in channels
                channel.listed = bool(channel.rows) and not channel.blocked
            self._ready = deque(channel for channel in self._channels.values() if channel.listed)
