"""``flinkpy savepoint describe`` of a savepoint of Flink."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.markup import escape

from dagster_flinkpy.cli.terminal import console_of_width, plain_table
from dagster_flinkpy.flink_savepoint.metadata import FlinkOperator
from dagster_flinkpy.state_processor import FlinkSavepointReader
from dagster_flinkpy.state_processor.flink_reader import FlinkKeyedRows
from dagster_flinkpy.state_processor.stored_state import StoredState

__all__ = ["describe_flink_savepoint"]


def describe_flink_savepoint(savepoint: FlinkSavepointReader, uid: str | None, *, as_json: bool) -> None:
    """Shows what a savepoint of Flink says of itself. No value is read.

    Args:
        savepoint: The savepoint.
        uid: Uid or id of the only operator to show. Default: all.
        as_json: Whether to write JSON instead of tables.
    """
    operators = [_described(savepoint, each) for each in savepoint.metadata.operators]
    if uid is not None:
        wanted = savepoint.metadata.operator(uid)
        if wanted is None:
            raise click.ClickException(
                f"no operator has uid {uid!r}; the operators are: {', '.join(savepoint.operators)}"
            )
        operators = [each for each in operators if each["id"] == wanted.id]
    if as_json:
        metadata = savepoint.metadata
        found = {"flink_metadata_version": metadata.version, "checkpoint_id": metadata.checkpoint_id}
        click.echo(json.dumps({**found, "operators": operators}, indent=2))
        return
    console = console_of_width()
    console.print(
        f"[bold]savepoint of Flink[/] with metadata of version {savepoint.metadata.version}, "
        f"checkpoint {savepoint.metadata.checkpoint_id}"
    )
    table = plain_table("operator", "name", "#parallelism", "#max parallelism", "format", "#bytes")
    states = plain_table("operator", "state", "kind", "columns")
    for each in operators:
        shown = each["uid"] or each["id"]
        numbers = (f"{each[name]:,}" for name in ("parallelism", "max_parallelism"))
        table.add_row(*map(escape, (shown, each["name"], *numbers, each["format"] or "-", f"{each['bytes']:,}")))
        for state in each["states"]:
            columns = ", ".join(f"{name} {kind}" for name, kind in state["columns"].items())
            states.add_row(*map(escape, (shown, state["name"], state["kind"], columns)))
    console.print(table)
    if states.row_count:
        console.print(states)
    problems = [problem for each in operators for problem in each["unreadable"]]
    if problems:
        console.print("\n[bold]cannot be read:[/]")
    for problem in problems:
        console.print(escape(problem), soft_wrap=True)
    if any(each["python"] for each in operators):
        console.print(
            "\nPyFlink's process mode does not write the types of values, so they are shown as bytes, and a value as a "
            "list. The program knows them: 'flinkpy state read' and 'flinkpy state sql' take --program MODULE:NAME.",
            soft_wrap=True,
        )


def _described(savepoint: FlinkSavepointReader, operator: FlinkOperator) -> dict[str, Any]:
    uid = savepoint.uid_of(operator)
    states = [state for state in savepoint.states if state.uid == uid]
    handles = [each.keyed for each in operator.subtasks if each.keyed is not None]
    streams = [each.stream for each in handles] + [each.operator_stream for each in operator.subtasks]
    return {
        "id": operator.id,
        "uid": "" if uid == operator.id else uid,
        "name": operator.name,
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "fully_finished": operator.fully_finished,
        "format": handles[0].format.value if handles else "",
        "bytes": sum(stream.size for stream in (*streams, operator.coordinator) if stream is not None),
        "states": [_state(each) for each in states],
        "unreadable": [each.problem for each in savepoint.unreadable if each.operator.id == operator.id],
        "python": any(isinstance(each, FlinkKeyedRows) and each.in_python for each in states),
    }


def _state(state: StoredState) -> dict[str, Any]:
    columns = {name: str(kind).replace("Types.", "") for name, kind in state.types.items()}
    return {"name": state.name, "kind": state.kind, "columns": columns}
