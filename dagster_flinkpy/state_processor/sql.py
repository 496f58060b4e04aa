"""SQL queries over the state in a savepoint or checkpoint, run by DuckDB."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
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
from dagster_flinkpy.state_processor.sql_plan import QueryPlan, plan_query
from dagster_flinkpy.state_processor.stored_state import KeyedStateRows, StoredState

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["key_from_text", "query_state"]

_PARSE = "select json_serialize_sql(?, skip_empty := true, skip_null := true)"
_WINDOW = Types.TUPLE([Types.LONG(), Types.LONG()])
"""How a time window is stored."""
_BOUNDS = ("window_start", "window_end")
_INTEGERS = (Types.BYTE(), Types.SHORT(), Types.INT(), Types.LONG())


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
