"""``flinkpy state``: the state in savepoints and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import click
import pyarrow as pa
from rich.console import Console
from rich.markup import escape

from dagster_flinkpy.cli.common import endpoint_url_option, location_of
from dagster_flinkpy.cli.terminal import console_of_width, plain_table
from dagster_flinkpy.state_processor import FlinkSavepointReader, SavepointReader, StoredState, read_savepoint

__all__ = ["state"]


@click.group()
def state() -> None:
    """Read the state in savepoints and checkpoints."""


_program = click.option(
    "--program",
    metavar="MODULE:NAME",
    help="For a savepoint of Flink: the program, whose functions are opened here to learn the types of their state.",
)


def _savepoint(path: str, program: str | None, endpoint_url: str | None) -> SavepointReader | FlinkSavepointReader:
    found = read_savepoint(location_of(path, endpoint_url))
    if program is None:
        return found
    if not isinstance(found, FlinkSavepointReader):
        raise click.UsageError("--program is for savepoints of Flink; this one has its types")
    from dagster_flinkpy.orchestration.flink_import import declarations_of_program
    from dagster_flinkpy.orchestration.program import load_program

    return FlinkSavepointReader(found.savepoint, declarations_of_program(load_program(program)))


@state.command("read")
@click.argument("path", metavar="PATH")
@click.option("--uid", required=True, help="Uid of the operator.")
@click.option("--state", "name", required=True, help="Name of the state.")
@click.option("--format", "form", type=click.Choice(["table", "json", "parquet"]), default="table", show_default=True)
@click.option("--output", type=click.Path(dir_okay=False), help="File to write. Default: standard output.")
@click.option(
    "--limit", type=click.IntRange(min=0), help="Maximum number of rows. Default: 20 for a table, otherwise all."
)
@_program
@endpoint_url_option
def read_state(
    path: str,
    uid: str,
    name: str,
    form: str,
    output: str | None,
    limit: int | None,
    program: str | None,
    endpoint_url: str | None,
) -> None:
    """Print a state in PATH: a savepoint, a chk-N folder, or the folder of a job for its latest checkpoint.

    json writes one object per line. Pickled values are shown as bytes and never unpickled.
    """
    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE")
    stored = _savepoint(path, program, endpoint_url).state(uid, name)
    if limit is None and form == "table":
        limit = 20
    tables = _limited(_by_subtask(stored), limit)
    first = next(tables)
    tables = chain([first], tables)
    if form == "parquet":
        import pyarrow.parquet as pq

        with pq.ParquetWriter(output, first.schema) as writer:
            for table in tables:
                writer.write_table(table)
        return
    with click.open_file(output or "-", "w") as file:
        if form == "json":
            for table in tables:
                for row in table.to_pylist():
                    file.write(json.dumps(row, default=_plain) + "\n")
        else:
            _print_rows(first.schema, tables, console_of_width(file))


@state.command("sql")
@click.argument("path", metavar="PATH")
@click.argument("query")
@click.option(
    "--key",
    "keys",
    multiple=True,
    help="Read only this key. Write a string as it is, any other key as JSON. Repeatable.",
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@_program
@endpoint_url_option
def query(
    path: str, query: str, keys: tuple[str, ...], form: str, program: str | None, endpoint_url: str | None
) -> None:
    """Run a SELECT statement over the states in PATH, with DuckDB.

    Each state is a table UID.STATE with the columns that "state read" prints, such as:

    flinkpy state sql s3://shop/checkpoints/orders "select key, value from totals.total order by value desc limit 10"
    """
    from dagster_flinkpy.state_processor.sql import query_state

    rows = query_state(_savepoint(path, program, endpoint_url), query, keys=keys)
    if form == "json":
        for row in rows.to_pylist():
            click.echo(json.dumps(row, default=_plain))
    else:
        _print_rows(rows.schema, iter([rows]), console_of_width())


def _by_subtask(stored: StoredState) -> Iterator[pa.Table]:
    for position, subtask in enumerate(stored.subtasks):
        for rows in stored.read_parts(position):
            yield rows.add_column(0, "subtask", pa.array([subtask] * rows.num_rows, pa.int32()))


def _limited(tables: Iterator[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    """Yields the first rows, and at least one table so that the columns are known."""
    for table in tables:
        yield table if limit is None else table.slice(0, limit)
        if limit is not None:
            limit -= table.num_rows
            if limit <= 0:
                return


def _print_rows(schema: pa.Schema, tables: Iterator[pa.Table], console: Console) -> None:
    numbers = {f.name for f in schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)}
    table = plain_table(*(f"#{escape(name)}" if name in numbers else escape(name) for name in schema.names))
    for rows in tables:
        for row in rows.to_pylist():
            table.add_row(*("" if value is None else _cell(value) for value in row.values()))
    console.print(table)


def _cell(value: Any) -> str:
    return escape(json.dumps(value, default=_plain) if isinstance(value, (dict, list, bytes)) else str(value))


def _plain(value: Any) -> str:
    """Converts a value for which JSON has no type."""
    return value.hex() if isinstance(value, bytes) else str(value)
