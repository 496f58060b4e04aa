"""Maps declarations to the import strings of the code that executes them, which is imported when it is first needed.

So a module that declares something does not import the code that executes it, and a Dagster code location loads neither
Spark nor the clients of stores that it does not use. ``dagster_flinkpy/__init__.py`` registers everything.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeVar

from dagster_flinkpy.errors import ConfigurationError

__all__ = ["call_registered", "register", "resolve"]

T = TypeVar("T")

_registered: dict[str, str] = {}


def register(name: str, import_string: str) -> None:
    """Registers the code for a name, as ``"module:attribute"``. A later registration replaces an earlier one."""
    _registered[name] = import_string


def resolve(name: str) -> Any:
    """Imports and returns what is registered under a name.

    Raises:
        ConfigurationError: Nothing is registered under the name.
    """
    if name not in _registered:
        raise ConfigurationError(f"nothing is registered to execute {name!r}; import dagster_flinkpy first")
    module, _, attribute = _registered[name].partition(":")
    return getattr(import_module(module), attribute)


def call_registered(name: str, *arguments: object) -> T:  # type: ignore[type-var]
    """Calls what is registered under a name, which returns what the caller declares to return.

    Raises:
        ConfigurationError: Nothing is registered under the name.
    """
    found: T = resolve(name)(*arguments)
    return found
