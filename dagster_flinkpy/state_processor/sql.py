"""SQL queries over the state in a savepoint or checkpoint, run by DuckDB.

Only the tables, columns and keys are read that a query needs, as far as its syntax tree is certain.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.arrow_columns import wide_decimals_as_text
from dagster_flinkpy.common.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.state_processor.flink_reader import FlinkKeyedRows, FlinkSavepointReader
from dagster_flinkpy.state_processor.reader import SavepointReader
from dagster_flinkpy.state_processor.stored_state import KeyedStateRows, StoredState

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["QueryPlan", "key_from_text", "plan_query", "query_state"]

_PARSE = "select json_serialize_sql(?, skip_empty := true, skip_null := true)"
_WINDOW = Types.TUPLE([Types.LONG(), Types.LONG()])
"""How a time window is stored."""
_BOUNDS = ("window_start", "window_end")
_INTEGERS = (Types.BYTE(), Types.SHORT(), Types.INT(), Types.LONG())
_ANY_COLUMN = ("STAR", "POSITIONAL_REFERENCE", "SHOW_REF", "PIVOT")
"""Classes and types of nodes that may stand for columns that they do not name."""
_PLAIN_TABLE = {"type", "alias", "query_location", "query_location_length", "catalog_name", "schema_name", "table_name"}
_PLAIN_TABLE |= {"qualified_name"}
"""Properties of a table that is not sampled and whose columns are not renamed."""
_STRUCTS = {"key", "value", "namespace", "map_key"}
"""Columns that may be structs."""
_PLAIN_TYPES = {"INTEGER", "BIGINT", "VARCHAR"}
"""DuckDB's types of whole numbers and text."""


def query_state(savepoint: SavepointReader | FlinkSavepointReader, query: str, *, keys: Iterable[str] = ()) -> pa.Table:
    """Runs a query over the states of a savepoint. Each state is a view ``uid.state``: ``select * from totals.total``.

    Of keyed state and operator state with one name, it is the keyed one. State and timers of time windows also have
    ``window_start`` and ``window_end``, timestamps in UTC.

    Only the states that occur in the query are read, and of these only the columns that it names. A condition
    ``key = 42`` or ``key in (...)`` of a query over a single state reads the rows of these keys only, and only the
    parts of large files that can contain them.

    Args:
        savepoint: The savepoint or checkpoint.
        query: One SELECT statement in DuckDB's SQL. Quote names that contain anything but letters, digits and ``_``. Of
            columns with one name, the second one is called ``name_1``.
        keys: Keys as text (see :func:`key_from_text`). Only their rows are read, and only the parts of large files that
            can contain them. Default: all rows.

    Raises:
        ConfigurationError: DuckDB is not installed, the text is not a query, it names a state that does not exist, or
            names differ in the case of letters only.
        TypeMismatchError: A key does not have the type of the state's keys.
        CorruptStateError: A file is missing or damaged; the message names it.
    """
    try:
        import duckdb
    except ImportError as e:
        raise ConfigurationError("queries need DuckDB: pip install 'dagster-flinkpy[sql]'") from e
    keys = list(keys)
    with duckdb.connect(":memory:", config={"enable_external_access": False}) as connection:
        try:
            tree = json.loads(connection.execute(_PARSE, [query]).fetchall()[0][0])
            if tree["error"]:
                raise ConfigurationError(f"this is not a query: {tree['error_message']}")
            plan = plan_query(tree)
            views: list[str] = []
            for number, state in enumerate(savepoint.states):
                if {(state.uid, state.name), ("", state.name)} & plan.tables:
                    connection.execute(f"create schema if not exists {_quoted(state.uid)}")
                    target = f"{_quoted(state.uid)}.{_quoted(state.name)}"
                    _check_told_apart(views := [*views, target], "states", "Query one of them alone")
                    connection.register(f"_state_{number}", _rows(state, keys, plan))
                    connection.execute(f"create view if not exists {target} as from _state_{number}")
            rows = connection.sql(query).to_arrow_table()
            return rows.rename_columns(_told_apart(rows.column_names))
        except duckdb.CatalogException as e:
            names = ", ".join(f"{_shown(s.uid)}.{_shown(s.name)}" for s in savepoint.states) or "none"
            raise ConfigurationError(f"{str(e).splitlines()[0]} The states are: {names}") from e
        except duckdb.Error as e:
            raise ConfigurationError(f"the query failed: {e}") from e


def key_from_text(text: str, key_type: TypeInformation) -> Any:
    """Parses a key that a person typed.

    Args:
        text: A string without quotes, or any other value as JSON: ``42``, ``true``, ``["a", 1]`` for a tuple or row.
        key_type: Type of the keys.

    Raises:
        TypeMismatchError: The text is not a key of this type.
    """
    if key_type == Types.STRING():
        return text
    try:
        value = _typed(json.loads(text, parse_float=Decimal), key_type)
    except ValueError as e:
        raise TypeMismatchError(f"{text!r} is not a key of type {key_type}: write it as JSON") from e
    if isinstance(key_type, RowTypeInfo) and isinstance(value, list):
        return Row(*value)
    if isinstance(key_type, TupleTypeInfo) and isinstance(value, list):
        return tuple(value)
    if isinstance(key_type, BasicTypeInfo) and isinstance(value, (list, dict)):
        raise TypeMismatchError(f"{text!r} is not a key of type {key_type}")
    return value


def _typed(value: Any, kind: TypeInformation) -> Any:
    """Returns a key of JSON with its numbers as floats, except for decimals."""
    if isinstance(kind, (RowTypeInfo, TupleTypeInfo)) and isinstance(value, list):
        types = [*kind.field_types, *[Types.DOUBLE()] * len(value)]  # the wrong number of values is an error later
        return [_typed(each, field) for each, field in zip(value, types, strict=False)]
    decimals = kind == Types.BIG_DEC() or isinstance(kind, DecimalTypeInfo)
    return float(value) if isinstance(value, Decimal) and not decimals else value


def _rows(state: StoredState, texts: list[str], plan: QueryPlan) -> pa.Table:
    """Reads what a query needs of a state."""
    has_windows = state.types.get("namespace") == _WINDOW
    columns = plan.columns([*state.schema.names, *(_BOUNDS if has_windows else ())])
    bounds = [name for name in columns if has_windows and name in _BOUNDS]
    if bounds:
        columns = list(dict.fromkeys(["namespace", *(name for name in columns if name not in bounds)]))
    if isinstance(state, (KeyedStateRows, FlinkKeyedRows)):
        key_type = state.types["key"]
        if texts:
            state = state.for_keys([key_from_text(text, key_type) for text in texts])
        elif plan.keys is not None and _are_keys(plan.keys, key_type):
            state = state.for_keys(plan.keys)
    rows = wide_decimals_as_text(state.read_columns(columns))
    for field in rows.schema:
        _check_fields(field.type, f"fields in {field.name!r} of state {state.name!r}")
    for name in bounds:
        rows = rows.append_column(name, _bound(rows, _BOUNDS.index(name)))
    return rows


def _check_fields(kind: pa.DataType, what: str) -> None:
    parts = [kind.field(i) for i in range(kind.num_fields)]
    _check_told_apart([part.name for part in parts], what, 'Read the state with "flinkpy state read"')
    for part in parts:
        _check_fields(part.type, what)


def _check_told_apart(names: Sequence[str], what: str, advice: str) -> None:
    """Refuses names for which DuckDB would take each other: those that differ in ASCII letters' case only."""
    known: dict[bytes, str] = {}
    for name in names:
        if (other := known.setdefault(name.encode().lower(), name)) != name:
            raise ConfigurationError(f"SQL does not tell the {what} {other!r} and {name!r} apart. {advice}")


def _told_apart(names: Sequence[str]) -> list[str]:
    """Gives columns of one name, as those of joined states, numbers, as DuckDB does: a row is a dict of its columns."""
    found: list[str] = []
    for name in names:
        other = (f"{name}_{number}" for number in itertools.count(1))
        found.append(name if name not in found else next(each for each in other if each not in {*names, *found}))
    return found


def _bound(rows: pa.Table, which: int) -> pa.Array[Any]:
    """Returns the start or the end of windows, in UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    millis: Any = pc.struct_field(rows.column("namespace").combine_chunks(), which)
    return millis.cast(pa.timestamp("ms"))


def _are_keys(values: Sequence[int | str], key_type: TypeInformation) -> bool:
    """Returns whether DuckDB compares keys with these values without a conversion."""
    plain = str if key_type == Types.STRING() else int if key_type in _INTEGERS else None
    if plain is None or not all(type(value) is plain for value in values):
        return False
    try:
        key_type.to_arrow(values)
    except TypeMismatchError:  # out of range: no row has it
        return False
    return True


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _shown(name: str) -> str:
    return name if name.isidentifier() else _quoted(name)


@dataclass(frozen=True)
class QueryPlan:
    """What a query reads."""

    tables: frozenset[tuple[str, str]]
    """Schema, or nothing, and name of each table."""
    _words: frozenset[str] | None
    """All words of the query, in lower case; None if it may use columns that it does not name."""
    keys: tuple[int | str, ...] | None
    """The keys that all rows of the result have; None: any."""

    def columns(self, names: list[str]) -> list[str]:
        """Returns the columns of a table that the query may use: at least one."""
        if self._words is None:
            return names
        return [name for name in names if name.lower() in self._words] or names[:1]


def plan_query(tree: Any) -> QueryPlan:
    """Finds out what a query reads.

    Args:
        tree: What DuckDB's ``json_serialize_sql`` says, without empty and null values. Of a node that is not known,
            nothing is concluded, so the plan reads more than necessary.
    """
    nodes = list(_nodes(tree))
    tables = [node for node in nodes if node.get("type") == "BASE_TABLE"]
    plain = all(node.keys() <= _PLAIN_TABLE for node in tables)
    named = {name.lower() for node in tables for name in (node.get("alias"), node["table_name"]) if name}
    whole_rows = any(
        columns[-1].lower() in named for node in nodes if (columns := node.get("column_names")) and columns[-1]
    )
    unnamed = any(
        node.get("class") in _ANY_COLUMN
        or node.get("type") in _ANY_COLUMN
        or node.get("ref_type", "REGULAR") not in ("REGULAR", "CROSS")
        for node in nodes
    )
    words = frozenset(_words(tree)) if plain and not whole_rows and not unnamed else None
    statements = tree["statements"]
    single = plain and len(tables) == len(statements) == 1
    return QueryPlan(
        frozenset((node.get("schema_name", ""), node["table_name"]) for node in tables),
        words,
        _keys_of(statements[0]["node"]) if single else None,
    )


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from _nodes(each)


def _words(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree.lower()
    elif isinstance(tree, (dict, list)):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from _words(each)


def _keys_of(select: dict[str, Any]) -> tuple[int | str, ...] | None:
    """Returns the keys that the condition of a plain SELECT allows."""
    table = select.get("from_table", {})
    if select.get("type") != "SELECT_NODE" or table.get("type") != "BASE_TABLE" or select.get("sample"):
        return None
    name, schema = table["table_name"].lower(), table.get("schema_name", "").lower()
    alias = table.get("alias", "").lower()
    prefixes: list[tuple[str, ...]] = [(alias,)] if alias else [(name,), (schema, name)]
    # A field `key` of a struct looks like the key of a table that is called like the struct.
    names = [(*prefix, "key") for prefix in prefixes if prefix[0] not in _STRUCTS]
    return _allowed(select.get("where_clause", {}), {("key",), *names})


def _allowed(condition: dict[str, Any], key: set[tuple[str, ...]]) -> tuple[int | str, ...] | None:
    kind, children = condition.get("type"), condition.get("children", [])
    if kind == "CONJUNCTION_AND":
        return next((keys for child in children if (keys := _allowed(child, key)) is not None), None)
    if kind == "COMPARE_EQUAL":
        children = [condition["left"], condition["right"]]
        if not _is_key(children[0], key):
            children.reverse()
    elif kind != "COMPARE_IN":
        return None
    if len(children) < 2 or not _is_key(children[0], key):
        return None
    found = [literal for child in children[1:] if (literal := _literal(child)) is not None]
    return tuple(found) if len(found) == len(children) - 1 else None


def _is_key(node: dict[str, Any], key: set[tuple[str, ...]]) -> bool:
    return tuple(name.lower() for name in node.get("column_names", ())) in key


def _literal(node: dict[str, Any]) -> int | str | None:
    """Returns a whole number or text; None for anything else. DuckDB 1 and 2 write them in different ways."""
    if node.get("class") != "CONSTANT":
        return None
    literal, value = node.get("literal", {}), node.get("value", {})
    if literal.get("kind") == "INTEGER":
        return int(literal["text"])
    if literal.get("kind") == "STRING":
        return str(literal.get("text", ""))
    kind = value.get("type", {}).get("id")
    plain = value.get("value", "" if kind == "VARCHAR" and not value.get("is_null") else None)  # empty: left out
    return plain if type(plain) in (int, str) and kind in _PLAIN_TYPES else None
