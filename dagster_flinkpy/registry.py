"""Names what executes a declaration by its import string, and imports it when it is first needed.

So a module that declares does not import the one that executes, and a Dagster code location loads neither Spark nor the
clients of stores that it does not use. ``dagster_flinkpy/__init__.py`` registers everything.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dagster_flinkpy.errors import ConfigurationError

__all__ = ["register", "resolve"]

_registered: dict[str, str] = {}


def register(name: str, import_string: str) -> None:
    """Registers what executes something, as ``"module:attribute"``. A later registration replaces an earlier one."""
    _registered[name] = import_string


def resolve(name: str) -> Any:
    """Imports what is registered under a name.

    Raises:
        ConfigurationError: Nothing is registered under it.
    """
    if name not in _registered:
        raise ConfigurationError(f"nothing is registered to execute {name!r}; import dagster_flinkpy itself first")
    module, _, attribute = _registered[name].partition(":")
    return getattr(import_module(module), attribute)
