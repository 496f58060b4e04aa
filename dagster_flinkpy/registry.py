"""What executes a declaration of a floor above: named by import string, imported when it is first needed.

So the floor that declares does not import the one that executes, and a Dagster code location loads neither Spark nor
the clients of stores it does not use. The package's face does the wiring.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dagster_flinkpy.errors import ConfigurationError

__all__ = ["register", "resolve"]

_registered: dict[str, str] = {}


def register(name: str, import_string: str) -> None:
    """Names what executes something, as ``"module:attribute"``; the last one counts."""
    _registered[name] = import_string


def resolve(name: str) -> Any:
    """Imports what is registered under a name.

    Raises:
        ConfigurationError: Nothing is.
    """
    if name not in _registered:
        raise ConfigurationError(f"nothing is registered to execute {name!r}; import dagster_flinkpy itself first")
    module, _, attribute = _registered[name].partition(":")
    return getattr(import_module(module), attribute)
