"""Strict reading of JSON values: a value of the wrong type is an error, and is never converted."""

from __future__ import annotations

from typing import Any

__all__ = ["Json", "boolean", "extra_fields", "integer", "sequence", "text"]

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys."""


def extra_fields(cls: type[Any], data: dict[str, Json]) -> dict[str, Json]:
    """Returns the fields that a class does not know."""
    known = cls.__dataclass_fields__
    return {key: value for key, value in data.items() if key not in known or key == "extra"}


def integer(value: Json) -> int:
    """Returns a whole number.

    Raises:
        TypeError: The value has another type.
    """
    if type(value) is not int:
        raise TypeError(f"{value!r} should be a whole number")
    return value


def boolean(value: Json) -> bool:
    """Returns true or false.

    Raises:
        TypeError: The value has another type.
    """
    if type(value) is not bool:
        raise TypeError(f"{value!r} should be true or false")
    return value


def text(value: Json) -> str:
    """Returns text.

    Raises:
        TypeError: The value has another type.
    """
    if type(value) is not str:
        raise TypeError(f"{value!r} should be text")
    return value


def sequence(value: Json) -> tuple[Json, ...]:
    """Returns the items of a list.

    Raises:
        TypeError: The value has another type.
    """
    if type(value) is not list:
        raise TypeError(f"{value!r} should be a list")
    return tuple(value)
