"""A stream of rows from one slot to another over Arrow Flight; credits come back on the same call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as flight

from dagster_flinkpy.errors import SlotLostError
from dagster_flinkpy.runtime.exchange.frames import credits_of
from dagster_flinkpy.runtime.shuffle.wire import WIRE_SCHEMA, WireRow, batch_of

__all__ = ["SlotLink"]

_SEND_BYTES = 4 << 20
"""Rows are sent when they have this size, without waiting for the end of a step."""

CONNECT_SECONDS = 20.0
"""How long another slot may take to answer."""


class SlotLink:
    """Sends rows to one slot. The thread of the slot uses it; only `cancel` may come from others.

    A write waits as long as the network is slower than the tasks. Credits bound what the other slot has to hold, so it
    takes whatever arrives.

    Args:
        slot: The name of the other slot, for messages.
        location: Its address, such as ``grpc://10.0.0.7:40001``.
        call: What opens the call.
        options: The options of the call.
        on_credits: Takes credits, see :func:`credits_of`, on a thread of the link.
        on_lost: Called with an error when the other side has ended the call, on a thread of the link.
    """

    def __init__(
        self,
        slot: str,
        location: str,
        call: flight.FlightDescriptor,
        options: flight.FlightCallOptions,
        on_credits: Callable[[npt.NDArray[np.int32]], None],
        on_lost: Callable[[SlotLostError], None],
    ) -> None:
        self._slot, self._location, self._call, self._options = slot, location, call, options
        self._on_credits, self._on_lost = on_credits, on_lost
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._payloads: list[pa.Buffer] = []
        self._bytes = 0
        self._closed = False
        self._ended = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Opens the call.

        Raises:
            SlotLostError: The other slot does not answer, or refuses.
        """
        try:
            self._client = flight.connect(self._location)
            self._writer, self._reader = self._client.do_exchange(self._call, self._options)
            self._writer.begin(WIRE_SCHEMA)
            threading.Thread(target=self._read, name=f"credits of {self._slot}", daemon=True).start()
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> SlotLostError:
        return SlotLostError(f"slot {self._slot} at {self._location} cannot be reached: {error}")

    def _read(self) -> None:
        try:
            for chunk in self._reader:
                if chunk.app_metadata is not None:
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

    def add(self, row: WireRow) -> None:
        """Takes a row, which leaves with the next :meth:`flush` at the latest."""
        self._rows.append((row.target, row.edge, row.channel, row.seq, int(row.kind)))
        self._payloads.append(row.payload)
        self._bytes += row.payload.size
        if self._bytes >= _SEND_BYTES:
            self.flush()

    def flush(self) -> None:
        """Sends the rows that were added.

        Raises:
            SlotLostError: The other slot is gone.
        """
        if not self._rows:
            return
        batch = batch_of(self._rows, self._payloads)
        self._rows, self._payloads, self._bytes = [], [], 0
        try:
            with self._lock:
                if self._ended:
                    raise OSError("the call has ended")
                self._writer.write_batch(batch)
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            raise self._lost(error) from error

    def cancel(self) -> None:
        """Ends the call, and a write that waits. Any thread may call it."""
        self._closed = True
        with suppress(pa.ArrowException, flight.FlightError, OSError, AttributeError):  # it may not have begun
            self._reader.cancel()
