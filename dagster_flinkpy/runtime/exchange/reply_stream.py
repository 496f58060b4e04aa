"""The side of a call of Arrow Flight on which a server answers, for other threads than the one that serves the call."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pyarrow as pa

__all__ = ["ReplyStream"]


class ReplyStream:
    """Sends messages to the caller as long as the call goes on. Any thread may use it.

    What a server gets to answer with is gone when the call has ended, and must not be touched any more.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._lock = threading.Lock()

    def send(self, message: bytes) -> None:
        """Sends a message, unless the call has ended. Whoever serves the call notices its loss."""
        with self._lock:
            if self._writer is not None:
                with suppress(pa.ArrowException, OSError):
                    self._writer.write_metadata(message)

    def end(self) -> None:
        """The call ends."""
        with self._lock:
            self._writer = None
