"""The messages of the exchange, and who may send them.

Driver and slots, and slots among each other, talk in calls of Arrow Flight. A frame is the metadata of a message of
Flight: a JSON object, a newline, and a body. What opens a call is such an object, too, with the token of the execution
attempt.
"""

from __future__ import annotations

import hmac
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.errors import SlotProtocolError

__all__ = ["authenticated", "command", "credits_of", "frame", "of_credits", "parse"]

Json = dict[str, Any]


def frame(kind: str, body: bytes = b"", **fields: Any) -> bytes:
    """Returns a message.

    Args:
        kind: What it is about.
        body: Data that is not JSON. Default: none.
        fields: What can be said in JSON.
    """
    return json.dumps({"kind": kind, **fields}).encode() + b"\n" + body


def parse(message: pa.Buffer) -> tuple[Json, bytes]:
    """Returns the fields of a message, with its kind, and its body.

    Raises:
        SlotProtocolError: It is no such message.
    """
    head, _, body = message.to_pybytes().partition(b"\n")
    try:
        fields = json.loads(head)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        raise SlotProtocolError("a message of the exchange is damaged, or comes from another program")
    return fields, body


def command(token: str, **fields: Any) -> bytes:
    """Returns what opens a call.

    Args:
        token: The token of the execution attempt.
        fields: Who calls, and what about.
    """
    return json.dumps({"token": token, **fields}).encode()


def authenticated(message: bytes | None, token: str) -> Json:
    """Returns the fields of what opened a call, if the caller has the token.

    Raises:
        SlotProtocolError: The caller does not have it.
    """
    try:
        fields = json.loads(message or b"")
    except ValueError:
        fields = None
    claimed = fields.get("token") if isinstance(fields, dict) else None
    if not isinstance(claimed, str) or not hmac.compare_digest(claimed.encode(), token.encode()):
        raise SlotProtocolError("the caller does not have the token of this execution attempt")
    assert isinstance(fields, dict)
    return fields


def of_credits(credits: dict[tuple[int, int, int], int]) -> bytes:
    """Encodes how many buffers each channel has room for again.

    Args:
        credits: The number by edge, index of the sender, and index of the receiver.
    """
    return np.array([(*channel, number) for channel, number in credits.items()], dtype=np.int32).tobytes()


def credits_of(message: pa.Buffer) -> npt.NDArray[np.int32]:
    """Decodes what :func:`of_credits` returned: rows of edge, sender, receiver and number.

    Raises:
        SlotProtocolError: It is no such message.
    """
    if message.size % 16:
        raise SlotProtocolError("a message of credits is damaged")
    return np.frombuffer(message, dtype=np.int32).reshape(-1, 4)
