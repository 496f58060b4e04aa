"""Checks of the arguments of a program's calls, so that a wrong one fails where it is passed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "check_argument",
    "check_count",
    "check_installed",
    "check_interval",
    "check_name",
    "check_number",
    "check_settings",
    "names_in",
]


def check_argument(call: str, value: Any, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Checks that an argument has one of some types.

    Args:
        call: The call, for the message, such as ``sink_to()``.
        value: The argument.
        kinds: The types.
        wanted: What to pass, for the message.

    Raises:
        ConfigurationError: It has another type. The message says what to pass.
    """
    if not isinstance(value, kinds):
        shown = repr(value)
        if isinstance(value, type):
            shown = f"the class {value.__name__}"
            if issubclass(value, kinds):
                shown += f": pass an instance, {value.__name__}(...)"
        raise ConfigurationError(f"{call} needs {wanted}, not {shown}")


def check_name(call: str, value: Any) -> None:
    """Checks that an argument is text and not empty.

    Raises:
        ConfigurationError: It is something else.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{call} needs text that is not empty, not {value!r}")


def check_number(call: str, value: Any, unit: str) -> None:
    """Checks that an argument is a whole number.

    Args:
        call: The call, for the message.
        value: The argument.
        unit: What it is a number of, for the message.

    Raises:
        ConfigurationError: It is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigurationError(f"{call} needs a whole number of {unit}, not {value!r}")


def check_count(call: str, name: str, value: Any, unit: str) -> None:
    """Checks that an argument is a whole number, and at least 1.

    Args:
        call: The call, for the message.
        name: The argument, for the message.
        value: Its value.
        unit: What it is a number of, for the message.

    Raises:
        ConfigurationError: It is something else, or less.
    """
    check_number(f"{name} of {call}", value, unit)
    if value < 1:
        raise ConfigurationError(f"{name}={value} of {call} must be at least 1")


def check_interval(call: str, value: Any) -> None:
    """Checks the ``discovery_interval`` of a source.

    Raises:
        ConfigurationError: It is no time, or not positive.
    """
    check_argument(f"discovery_interval of {call}", value, timedelta, "a timedelta, such as timedelta(minutes=5)")
    if value <= timedelta(0):
        raise ConfigurationError(f"discovery_interval={value} of {call} must be positive")


def check_settings(settings: Any) -> None:
    """Checks that the fields of a dataclass that are numbers or times have the types that they are declared with.

    Raises:
        ConfigurationError: One has another type.
    """
    for field in fields(settings):
        kind, _, optional = str(field.type).partition(" | ")
        value, name = getattr(settings, field.name), f"{type(settings).__name__}({field.name}=...)"
        if optional and value is None:
            continue
        if kind == "int":
            check_number(name, value, "what it counts")
        elif kind == "float":
            check_argument(name, value, (int, float), "a number")
        elif kind == "timedelta":
            check_argument(name, value, timedelta, "a timedelta, such as timedelta(minutes=5)")


def names_in(call: str, name: str, value: Any) -> tuple[str, ...]:
    """Returns the names in an argument that is a list of columns.

    Raises:
        ConfigurationError: It is something else, or has a name twice.
    """
    if isinstance(value, str):
        raise ConfigurationError(f"{call} needs a list of columns as {name}, such as [{value!r}]")
    if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        raise ConfigurationError(f"{call} needs a list of columns as {name}, not {value!r}; without any, leave it out")
    if len(set(value)) < len(value):
        raise ConfigurationError(f"{call} has a column twice in {name}: {list(value)}")
    return tuple(value)


def check_installed(what: str, package: str, extra: str) -> None:
    """Checks that a package is installed.

    Args:
        what: What needs it, for the message.
        package: The package, as it is imported or installed.
        extra: The extra of this library that has it.

    Raises:
        ConfigurationError: It is not.
    """
    if find_spec(package.replace("-", "_")) is None:
        raise ConfigurationError(f"{what} needs {package}: pip install 'dagster-flinkpy[{extra}]'")
