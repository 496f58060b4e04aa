"""Decides which changes of a state's type a restore accepts, and converts old values to the new type.

Flink: the schema evolution of POJO and Avro types. A named row may gain fields, which are null in old values, and lose
fields. A number may become a wider number of its kind. Both also apply inside rows, tuples, lists and maps. What
earlier releases stored as ``Types.BIG_DEC()`` may become any decimal.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.arrow_columns import with_elements
from dagster_flinkpy.common.basic_type_info import BIG_DEC_JSON, StoredBigDecTypeInfo
from dagster_flinkpy.common.decimals import as_stored_before
from dagster_flinkpy.common.type_information import Json
from dagster_flinkpy.common.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.errors import StateSchemaError
from dagster_flinkpy.state.handles import describe_schema

__all__ = [
    "ALLOWED",
    "can_evolve",
    "describe_evolution",
    "evolve",
    "read_alike",
    "schema_mismatch",
    "stored_key_type",
    "upgraded",
]

ALLOWED = (
    "a named row may gain and lose fields, and numbers may become wider (INT to LONG, FLOAT to DOUBLE, DECIMAL(9, 2) "
    "to DECIMAL(12, 2) or BIG_DEC)"
)
"""Describes the allowed changes in messages."""

_WIDER = {
    name: wider
    for names in (("BYTE", "SHORT", "INT", "LONG"), ("FLOAT", "DOUBLE"))
    for i, name in enumerate(names)
    for wider in (frozenset(names[i + 1 :]),)
}


def can_evolve(stored: TypeInformation, declared: TypeInformation) -> bool:
    """Returns whether values of a stored type can be converted to a declared one; True if the types are equal."""
    if stored == declared:
        return True
    if isinstance(stored, DecimalTypeInfo) and isinstance(declared, BasicTypeInfo):
        return declared == Types.BIG_DEC() or (
            isinstance(declared, DecimalTypeInfo)
            and (
                isinstance(stored, StoredBigDecTypeInfo)  # its precision says nothing about its values
                or (
                    declared.scale >= stored.scale
                    and declared.precision - declared.scale >= stored.precision - stored.scale
                )
            )
        )
    if isinstance(stored, BasicTypeInfo) and isinstance(declared, BasicTypeInfo):
        return declared.name in _WIDER.get(stored.name, ())
    if isinstance(stored, RowTypeInfo) and isinstance(declared, RowTypeInfo) and stored.named and declared.named:
        old = dict(zip(stored.field_names, stored.field_types, strict=True))
        new = dict(zip(declared.field_names, declared.field_types, strict=True))
        kept = old.keys() & new.keys()
        return bool(kept) and all(can_evolve(old[name], new[name]) for name in kept)
    if (isinstance(stored, TupleTypeInfo) and isinstance(declared, TupleTypeInfo)) or (
        isinstance(stored, RowTypeInfo)
        and isinstance(declared, RowTypeInfo)
        and stored.field_names == declared.field_names
    ):
        return len(stored.field_types) == len(declared.field_types) and all(
            map(can_evolve, stored.field_types, declared.field_types)
        )
    if isinstance(stored, ListTypeInfo) and isinstance(declared, ListTypeInfo):
        same = stored.to_json()["type"] == declared.to_json()["type"]
        return same and can_evolve(stored.elem_type, declared.elem_type)
    if isinstance(stored, MapTypeInfo) and isinstance(declared, MapTypeInfo):
        return stored.key_type in (declared.key_type, as_stored_before(declared.key_type)) and can_evolve(
            stored.value_type, declared.value_type
        )
    return False


def read_alike(stored: Json, declared: TypeInformation) -> bool:
    """Returns whether what was stored is read as what it was, if both types have the same Arrow type.

    Pickled values are bytes, and ``Types.BIG_DEC()`` is text, in Arrow. Fields of rows may change their order.

    Args:
        stored: The type of the stored values as JSON.
        declared: The type with which they are read.
    """
    return _hidden(stored) == _hidden(declared.to_json())


def _hidden(description: Json, path: str = "") -> list[tuple[str, str]]:
    """Returns the parts of a type that have the Arrow type of another one, each with the names of what it is in."""
    if description["type"] in ("PICKLED_BYTE_ARRAY", BIG_DEC_JSON):
        return [(path, description["type"])]
    fields = description.get("fields", ())
    parts = dict(zip(description.get("names") or [f"f{i}" for i in range(len(fields))], fields, strict=True))
    parts |= {name: description[name] for name in ("element", "key", "value") if name in description}
    return sorted(found for name, part in parts.items() for found in _hidden(part, f"{path}/{name}"))


def describe_evolution(stored: TypeInformation, declared: TypeInformation, name: str = "") -> list[str]:
    """Returns in words for people how a declared type differs from a stored one that can evolve into it.

    Args:
        stored: The stored type.
        declared: The declared type.
        name: The field of a value that has the type. Default: the value itself.
    """
    if stored == declared:
        return []
    if isinstance(stored, (RowTypeInfo, TupleTypeInfo)) and isinstance(declared, (RowTypeInfo, TupleTypeInfo)):
        inside = f"{name}." if name else ""
        old = dict(zip(stored.field_names, stored.field_types, strict=True))
        new = dict(zip(declared.field_names, declared.field_types, strict=True))
        added = [f"field {inside + field!r} is added, null in old values" for field in new if field not in old]
        removed = [f"field {inside + field!r} is removed" for field in old if field not in new]
        kept = [describe_evolution(old[field], new[field], inside + field) for field in old if field in new]
        changes = [*added, *removed, *itertools.chain.from_iterable(kept)]
        return changes or [f"{f'the fields of {name!r}' if name else 'its fields'} are in another order"]
    if isinstance(stored, ListTypeInfo) and isinstance(declared, ListTypeInfo):
        return describe_evolution(stored.elem_type, declared.elem_type, f"{name}[]")
    if isinstance(stored, MapTypeInfo) and isinstance(declared, MapTypeInfo):
        return describe_evolution(stored.value_type, declared.value_type, f"{name}[]")
    return [f"{f'field {name!r}' if name else 'its value'} was {stored}, is now {declared}"]


def stored_key_type(stored: TypeInformation, declared: TypeInformation) -> TypeInformation:
    """Returns the key type of a restored map state, which is the stored one if an earlier release had that type.

    Keys that were ``Types.BIG_DEC()`` have lost their scale. They stay as they are, so 1.10 and 1.1 stay one key.
    """
    return stored if stored == as_stored_before(declared) else declared


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
    convert = f", convert the state with env.migrate_state({operator!r}, ...)" if "kind" in known else ""
    return StateSchemaError(
        f"operator {operator!r}: {what} was {describe_schema(known)} and is now declared as "
        f"{describe_schema(declared)}; declare the old type{convert}, or use a new name (or operator uid) and start "
        f"without the old state{f'; {ALLOWED}' if same_kind else ''}"
    )


def evolve(column: pa.Array[Any], types: Sequence[TypeInformation]) -> pa.Array[Any]:
    """Converts values of the first type to the last one, through the types in between.

    So a field that was removed and added again under the same name is null in old values, as in values that were
    written in between.

    Args:
        column: Values of the first type.
        types: The types declared since, oldest first; each can evolve into the next one.
    """
    for stored, declared in itertools.pairwise(types):
        column = _evolve(column, stored, declared)
    return column


def upgraded(column: pa.Array[Any], declared: TypeInformation) -> pa.Array[Any]:
    """Converts records that an earlier release has written to a column of their type; returns others as they are."""
    stored = as_stored_before(declared)
    return _evolve(column, stored, declared) if column.type == stored.arrow_type else column


def _evolve(column: pa.Array[Any], stored: TypeInformation, declared: TypeInformation) -> pa.Array[Any]:
    if stored == declared:
        return column
    if isinstance(stored, (RowTypeInfo, TupleTypeInfo)) and isinstance(declared, (RowTypeInfo, TupleTypeInfo)):
        structs: Any = column
        missing = column.is_null() if column.null_count else None
        old = dict(zip(stored.field_names, zip(stored.field_types, structs.flatten(), strict=True), strict=True))
        children = [
            _evolve(old[name][1], old[name][0], kind) if name in old else pa.nulls(len(column), kind.arrow_type)
            for name, kind in zip(declared.field_names, declared.field_types, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(declared.arrow_type), mask=missing)
    if isinstance(stored, ListTypeInfo) and isinstance(declared, ListTypeInfo):
        elements = partial(_evolve, stored=stored.elem_type, declared=declared.elem_type)
        return with_elements(column, declared.arrow_type, elements)
    if isinstance(stored, MapTypeInfo) and isinstance(declared, MapTypeInfo):
        keys = partial(_evolve, stored=stored.key_type, declared=declared.key_type)
        values = partial(_evolve, stored=stored.value_type, declared=declared.value_type)
        return with_elements(column, declared.arrow_type, keys, values)
    if isinstance(stored, DecimalTypeInfo) and not isinstance(declared, DecimalTypeInfo):
        return declared.to_arrow(stored.from_arrow(column))
    try:
        return column.cast(declared.arrow_type)
    except pa.ArrowInvalid as error:
        raise StateSchemaError(
            f"a stored value of {stored} does not fit {declared}, which is now declared: {error}; declare a wider type"
        ) from error
