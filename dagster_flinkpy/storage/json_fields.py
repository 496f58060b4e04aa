"""Reads the fields of small JSON records strictly: a wrong type or an impossible number is a ``ValueError``."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["MAX_LONG", "MAX_TIMESTAMP_MS", "integer", "items", "load_object", "optional_integer", "text"]

MAX_LONG = 2**63 - 1
"""The greatest number that a field can hold."""
MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The end of the year 9999, in milliseconds since 1970: no ``datetime`` is later."""


def load_object(data: bytes) -> dict[str, Any]:
    """Parses a JSON object.

    Raises:
        ValueError: The data is not JSON, too deeply nested, or not an object.
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if type(value) is not dict:
        raise ValueError("it is not a JSON object")
    return value


def integer(record: dict[str, Any], name: str, least: int = 0, most: int = MAX_LONG) -> int:
    """Returns a whole number within a range, both ends included.

    Raises:
        ValueError: It is missing, not a whole number, or out of range.
    """
    value = _field(record, name)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {_short(value)}, not a whole number from {least} to {most}")
    return value


def optional_integer(record: dict[str, Any], name: str, least: int = 0) -> int | None:
    """Returns the same as :func:`integer`, or None if the field is null or missing."""
    return None if record.get(name) is None else integer(record, name, least)


def text(record: dict[str, Any], name: str) -> str:
    """Returns a string.

    Raises:
        ValueError: It is missing, or not a string.
    """
    value = _field(record, name)
    if type(value) is not str:
        raise ValueError(f"{name} is {_short(value)}, not text")
    return value


def items(record: dict[str, Any], name: str) -> list[Any]:
    """Returns a list, which is empty if the field is missing.

    Raises:
        ValueError: It is not a list.
    """
    value = record.get(name, [])
    if type(value) is not list:
        raise ValueError(f"{name} is {_short(value)}, not a list")
    return value


def _field(record: dict[str, Any], name: str) -> Any:
    if name not in record:
        raise ValueError(f"it has no {name}")
    return record[name]


def _short(value: Any) -> str:
    if type(value) is int and value.bit_length() > 128:
        return "a number of very many digits"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}..."
