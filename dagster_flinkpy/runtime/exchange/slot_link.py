"""A stream of rows from one slot to another over Arrow Flight; credits come back on the same call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as flight

from dagster_flinkpy.errors import SlotLostError
from dagster_flinkpy.runtime.exchange.frames import ALIVE, credits_of
from dagster_flinkpy.runtime.shuffle.wire import WIRE_SCHEMA, WireRow, batch_of

__all__ = ["CONNECT_SECONDS", "SlotLink"]

_SEND_BYTES = 4 << 20
"""Rows are sent when they have this size, without waiting for the end of a step."""

CONNECT_SECONDS = 20.0
"""How long another slot may take to answer."""


class SlotLink:
    """Sends rows to one slot. The thread of the slot uses it, unless a method says otherwise.

    A write waits as long as the network is slower than the tasks. Credits bound what the other slot has to hold, so it
    takes whatever arrives.

    Args:
        slot: The other slot, in words for people.
        client: A client of it.
        call: What opens the call.
        options: The options of the call.
        ask_seconds: How often it asks whether the other slot is there.
        on_credits: Takes credits, see :func:`credits_of`, on a thread of the link.
        on_lost: Called with an error when the other side has ended the call, or does not answer any more; on any
            thread.
    """

    def __init__(
        self,
        slot: str,
        client: flight.FlightClient,
        call: flight.FlightDescriptor,
        options: flight.FlightCallOptions,
        ask_seconds: float,
        on_credits: Callable[[npt.NDArray[np.int32]], None],
        on_lost: Callable[[SlotLostError], None],
    ) -> None:
        self._slot, self._client, self._call, self._options = slot, client, call, options
        self._ask_seconds = ask_seconds
        self._on_credits, self._on_lost = on_credits, on_lost
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._payloads: list[pa.Buffer] = []
        self._bytes = 0
        self._closed = False
        self._ended = False
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self.ask_at = 0.0
        """When :meth:`flush` asks the other slot again whether it is there, in seconds of the monotonic clock."""
        self._asked = 0.0
        """Since when it has been asked, and has not answered; 0: it has."""
        self._writing = 0.0
        """Since when a write waits; 0: none does."""

    def open(self) -> None:
        """Opens the call, and does not wait until the other slot has answered.

        Raises:
            SlotLostError: The other slot cannot be reached.
        """
        try:
            self._writer, self._reader = self._client.do_exchange(self._call, self._options)
            self._writer.begin(WIRE_SCHEMA)
            threading.Thread(target=self._read, name=f"credits of {self._slot}", daemon=True).start()
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            raise self._lost(error) from error

    def await_answer(self) -> None:
        """Waits until the other slot has answered.

        Raises:
            SlotLostError: It does not, or refuses.
        """
        if not self._answered.wait(CONNECT_SECONDS):
            self.cancel()
            raise self._lost(TimeoutError(f"it has not answered for {CONNECT_SECONDS:g} s"))

    def _lost(self, error: BaseException) -> SlotLostError:
        return SlotLostError(f"{self._slot} cannot be reached: {error}")

    def _read(self) -> None:
        try:
            for chunk in self._reader:
                self._asked = 0.0
                self._answered.set()
                if chunk.app_metadata is not None and chunk.app_metadata != ALIVE:
                    self._on_credits(credits_of(chunk.app_metadata))
            error: BaseException = EOFError("it has ended the call")
        except Exception as raised:
            error = raised
        with self._lock:  # nobody may write or read while the call is closed
            self._ended = True
            with suppress(pa.ArrowException, flight.FlightError, OSError):
                self._writer.close()
            with suppress(pa.ArrowException, flight.FlightError, OSError):
                self._client.close()
        if not self._closed:
            self._on_lost(self._lost(error))
        self._answered.set()

    def look(self, timeout: float) -> None:
        """Ends the call if the other slot takes or answers nothing for some seconds. Any thread may call it."""
        now = time.monotonic()
        silent = max(now - since if since else 0.0 for since in (self._asked, self._writing))
        if silent > timeout and not self._closed:
            self.cancel()
            self._on_lost(self._lost(TimeoutError(f"it has not answered for {silent:.1f} s")))

    def add(self, row: WireRow) -> None:
        """Takes a row, which leaves with the next :meth:`flush` at the latest."""
        self._rows.append((row.target, row.edge, row.channel, row.seq, int(row.kind)))
        self._payloads.append(row.payload)
        self._bytes += row.payload.size
        if self._bytes >= _SEND_BYTES:
            self.flush()

    def flush(self) -> None:
        """Sends the rows that were added, and asks now and then whether the other slot is there.

        Raises:
            SlotLostError: The other slot is gone.
        """
        if (now := time.monotonic()) >= self.ask_at:
            self.ask_at, self._asked = now + self._ask_seconds, self._asked or now
            self._write(lambda: self._writer.write_metadata(ALIVE))
        if self._rows:
            batch = batch_of(self._rows, self._payloads)
            self._rows, self._payloads, self._bytes = [], [], 0
            self._write(lambda: self._writer.write_batch(batch))

    def _write(self, write: Callable[[], object]) -> None:
        try:
            with self._lock:
                if self._ended:
                    raise OSError("the call has ended")
                self._writing = time.monotonic()
                try:
                    write()
                finally:
                    self._writing = 0.0
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            raise self._lost(error) from error

    def cancel(self) -> None:
        """Ends the call, and a write that waits. Any thread may call it."""
        self._closed = True
        self._answered.set()
        with suppress(pa.ArrowException, flight.FlightError, OSError, AttributeError):  # it may not have begun
            self._reader.cancel()
