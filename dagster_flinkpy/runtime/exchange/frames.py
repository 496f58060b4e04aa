"""The messages of the exchange, and who may send them.

Driver and slots, and slots among each other, talk in calls of Arrow Flight. A frame is the metadata of a message of
Flight: a JSON object, a newline, and a body. What opens a call is such an object, too. The token of the execution
attempt is a header of the call, so that nothing is read of who does not have it.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as flight

from dagster_flinkpy.errors import ConfigurationError, SlotProtocolError
from dagster_flinkpy.runtime.shuffle.wire import MAX_PAYLOAD

__all__ = ["ALIVE", "TokenCheck", "calling", "credits_of", "frame", "of_credits", "opened", "opening", "parse"]

Json = dict[str, Any]

ALIVE = b"alive"
"""What a slot asks another one now and then, and its answer."""

_HEADER = "authorization"


def frame(kind: str, body: bytes = b"", **fields: Any) -> bytes:
    """Returns a message.

    Raises:
        ConfigurationError: The body is too large.
    """
    if len(body) > MAX_PAYLOAD:
        raise ConfigurationError(
            f"the program, or the input of an epoch, has {len(body)} bytes, and a slot can be sent at most "
            f"{MAX_PAYLOAD}: read large data from files instead, or in open()"
        )
    return json.dumps({"kind": kind, **fields}).encode() + b"\n" + body


def parse(message: pa.Buffer) -> tuple[Json, bytes]:
    """Returns the fields of a message, with its kind, and its body.

    Raises:
        SlotProtocolError: It is no such message.
    """
    head, _, body = message.to_pybytes().partition(b"\n")
    return _fields(head, "a message of the exchange", kind=str), body


def calling(token: str) -> flight.FlightCallOptions:
    """Returns the options of a call, with the token of the execution attempt."""
    return flight.FlightCallOptions(headers=[(_HEADER.encode(), f"Bearer {token}".encode())])


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without the token of the execution attempt, before anything of them is read."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[Any]]) -> None:
        """Looks at a call that comes in.

        Raises:
            FlightUnauthenticatedError: It does not have the token.
        """
        given = (headers.get(_HEADER) or [""])[0]
        given = given if isinstance(given, bytes) else given.encode(errors="replace")
        if not hmac.compare_digest(given, self._expected):
            raise flight.FlightUnauthenticatedError("the caller does not have the token of this execution attempt")


def opening(**fields: Any) -> flight.FlightDescriptor:
    """Returns what opens a call: who calls, and what about."""
    return flight.FlightDescriptor.for_command(json.dumps(fields).encode())


def opened(message: bytes | None, **expected: type) -> Json:
    """Returns the fields of what opened a call, which must have some of these types.

    Raises:
        SlotProtocolError: It is no such message.
    """
    return _fields(message or b"", "what opened a call of the exchange", **expected)


def _fields(data: bytes, what: str, **expected: type) -> Json:
    try:
        fields = json.loads(data)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not all(isinstance(fields.get(name), kind) for name, kind in expected.items()):
        raise SlotProtocolError(f"{what} is damaged, or comes from another program")
    return fields


def of_credits(credits: dict[tuple[int, int, int], int]) -> bytes:
    """Encodes how many buffers each channel has room for again."""
    return np.array([(*channel, number) for channel, number in credits.items()], dtype=np.int32).tobytes()


def credits_of(message: pa.Buffer) -> npt.NDArray[np.int32]:
    """Decodes what :func:`of_credits` returned: rows of edge, sender, receiver and number.

    Raises:
        SlotProtocolError: It is no such message.
    """
    if message.size % 16:
        raise SlotProtocolError("a message of credits is damaged")
    return np.frombuffer(message, dtype=np.int32).reshape(-1, 4)
