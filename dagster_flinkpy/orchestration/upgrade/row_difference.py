"""Compares the rows of two folders of Parquet files, with DuckDB on disk: rows may be more than memory holds."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["RowDifference", "compare_rows"]

_EXAMPLES = 5
_MEMORY = "512MB"
"""What DuckDB uses at most before it writes to disk."""
_FLOATS = re.compile(r"\b(FLOAT|DOUBLE)\b", re.IGNORECASE)
"""In types of DuckDB, and of Arrow, which have lower case."""


@dataclass(frozen=True)
class RowDifference:
    """How the rows of a sink differ. Rows that occur several times are counted as often."""

    sink: str
    """Uid of the sink."""
    before: int
    """Rows that the old program has written."""
    after: int
    """Rows that the new program has written."""
    only_before: int = 0
    """Rows that the new program has not written, or not as often."""
    only_after: int = 0
    """Rows that only the new program has written."""
    changed_keys: int | None = None
    """Keys with rows of both kinds; None if the sink has no key."""
    columns: tuple[str, ...] = ()
    """How the columns differ, in words. The rows are compared in the columns that both have."""
    examples_before: tuple[dict[str, Any], ...] = ()
    """Some rows that only the old program has written."""
    examples_after: tuple[dict[str, Any], ...] = ()

    @property
    def same(self) -> bool:
        """Whether both have written the same rows, in any order."""
        return not (self.only_before or self.only_after or self.columns)


def compare_rows(sink: str, before: StorageLocation, after: StorageLocation, key: Sequence[str] = ()) -> RowDifference:
    """Compares two folders of Parquet files.

    Args:
        sink: Uid of the sink, for the result.
        before: The folder of the old program.
        after: The folder of the new program.
        key: Names of the columns that identify a row. Default: the sink has no key.

    Raises:
        ConfigurationError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ConfigurationError(
            "rows are compared with DuckDB: install the extra with pip install 'dagster-flinkpy[sql]'"
        ) from error
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": _MEMORY,  # above it, DuckDB writes beside its file
        "enable_external_access": False,
    }
    with (
        tempfile.TemporaryDirectory(prefix="flinkpy-rows-") as folder,
        duckdb.connect(str(Path(folder) / "rows.duckdb"), config=settings) as connection,
    ):
        old, new = _load(connection, "old_rows", before), _load(connection, "new_rows", after)
        if not old or not new:
            return _one_sided(connection, sink, old, new)
        return _compared(connection, sink, old, new, [name for name in key if name in old and name in new])


def _load(connection: DuckDBPyConnection, table: str, folder: StorageLocation) -> dict[str, str]:
    """Loads a folder into a table file by file, and returns the types of its columns; none if there are no rows."""
    import pyarrow.parquet as pq

    from dagster_flinkpy.common.arrow_columns import wide_decimals_as_text

    store, columns = folder.open(), dict[str, str]()
    for info in store.list():
        if not info.key.endswith(".parquet"):
            continue
        rows = pq.read_table(io.BytesIO(store.get(info.key)[0]))
        connection.register("file_rows", wide_decimals_as_text(rows))
        if columns:
            connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM file_rows")
            continue
        connection.execute(f"CREATE TABLE {table} AS SELECT * FROM file_rows")
        described = connection.execute(f"DESCRIBE {table}").fetchall()
        wide = {field.name: str(field.type) for field in rows.schema if "decimal256" in str(field.type)}
        columns = {name: wide.get(name, kind) for name, kind, *_ in described}
    return columns


def _one_sided(connection: DuckDBPyConnection, sink: str, old: dict[str, str], new: dict[str, str]) -> RowDifference:
    before = _count(connection, "old_rows") if old else 0
    after = _count(connection, "new_rows") if new else 0
    return RowDifference(
        sink,
        before,
        after,
        before,
        after,
        examples_before=_rows(connection, "old_rows") if old else (),
        examples_after=_rows(connection, "new_rows") if new else (),
    )


def _compared(
    connection: DuckDBPyConnection, sink: str, old: dict[str, str], new: dict[str, str], key: list[str]
) -> RowDifference:
    both = [name for name in old if old[name] == new.get(name)]
    changes = [f"column {name!r} is gone" for name in old if name not in new]
    changes += [f"column {name!r} is new" for name in new if name not in old]
    changes += [
        f"column {name!r} was {old[name]}, is now {new[name]}" for name in old if old[name] != new.get(name, old[name])
    ]
    names = ", ".join(map(_quoted, both)) or "1"
    # To DuckDB 0.0 and -0.0 are equal, but not their texts. NaNs have a sign, too, which means nothing.
    texts = [f"replace({_quoted(name)}::VARCHAR, '-nan', 'nan')" for name in both if _FLOATS.search(old[name])]
    compared = ", ".join([names, *texts])
    for table, one, other in (("only_old", "old_rows", "new_rows"), ("only_new", "new_rows", "old_rows")):
        sql = f"SELECT {compared} FROM {one} EXCEPT ALL SELECT {compared} FROM {other}"
        connection.execute(f"CREATE TABLE {table} AS {sql}")
    changed = None
    if key:
        keys = ", ".join(map(_quoted, key))
        sql = f"SELECT count(*) FROM (SELECT {keys} FROM only_old INTERSECT SELECT {keys} FROM only_new)"
        changed = _number(connection, sql)
    return RowDifference(
        sink,
        _count(connection, "old_rows"),
        _count(connection, "new_rows"),
        _count(connection, "only_old"),
        _count(connection, "only_new"),
        changed,
        tuple(changes),
        _rows(connection, "only_old", names),
        _rows(connection, "only_new", names),
    )


def _count(connection: DuckDBPyConnection, table: str) -> int:
    return _number(connection, f"SELECT count(*) FROM {table}")


def _number(connection: DuckDBPyConnection, sql: str) -> int:
    return int(connection.execute(sql).fetchall()[0][0])


def _rows(connection: DuckDBPyConnection, table: str, names: str = "*") -> tuple[dict[str, Any], ...]:
    """Returns some rows, the first ones in order of their columns, so that those of both sides match."""
    found = connection.sql(f"SELECT {names} FROM {table} ORDER BY ALL LIMIT {_EXAMPLES}")
    return tuple(found.to_arrow_table().to_pylist())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
