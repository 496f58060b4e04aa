"""What is wrong with how an operator uses its keyed state."""

from __future__ import annotations

from typing import Any

from dagster_flinkpy.errors import ConfigurationError, StateSchemaError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.handles import Json, describe_schema
from dagster_flinkpy.state.schema_evolution import ALLOWED

__all__ = ["foreign_key", "schema_mismatch", "used_twice"]


def schema_mismatch(operator: str, what: str, known: Json, declared: Json) -> StateSchemaError:
    """Returns the error of a state that is declared with another type than it was.

    Args:
        operator: The uid of the operator.
        what: The state, in words for people.
        known: The types that it was stored with.
        declared: Those that it is declared with now.
    """
    # Only the types of values may change, but not the types of keys or anything else.
    same_kind = "kind" in known and all(
        known.get(p) == declared.get(p) for p in known.keys() | declared.keys() if p != "value"
    )
    return StateSchemaError(
        f"operator {operator!r}: {what} was {describe_schema(known)} and is now declared as "
        f"{describe_schema(declared)}; declare the old type, or use a new name (or operator uid) and start "
        f"without the old state{f'; {ALLOWED}' if same_kind else ''}"
    )


def foreign_key(operator: str, key: Any, group: int, owned: KeyGroupRange) -> ConfigurationError:
    """Returns the error of a key that belongs to another subtask.

    Args:
        operator: The uid of the operator.
        key: The key.
        group: The key group that it belongs to.
        owned: Those of the subtask that got it.
    """
    return ConfigurationError(
        f"operator {operator!r}: key {key!r} belongs to key group {group}, but this subtask owns {owned.start} to "
        f"{owned.end}; the key selector may return different keys for the same record"
    )


def used_twice(operator: str, name: str) -> ConfigurationError:
    """Returns the error of a state that is used by record and by column."""
    return ConfigurationError(
        f"operator {operator!r}: {name!r} is used both by record and by column; use it in one way"
    )
