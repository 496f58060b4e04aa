"""``flinkpy savepoint`` and what is not ours: ``describe``, ``import``, ``import-spark`` and ``export``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from dagster_flinkpy.cli.common import (
    allow_options,
    endpoint_url_option,
    json_option,
    location_of,
    program_option,
)
from dagster_flinkpy.cli.terminal import console_of_width, lines_of, plain_table
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState
from dagster_flinkpy.flink_savepoint.metadata import FlinkOperator
from dagster_flinkpy.state_processor import FlinkSavepointReader
from dagster_flinkpy.state_processor.flink_export import ExportReport
from dagster_flinkpy.state_processor.flink_reader import FlinkKeyedRows
from dagster_flinkpy.state_processor.import_report import ImportReport
from dagster_flinkpy.state_processor.stored_state import StoredState

__all__ = ["describe_flink_savepoint", "export_flink", "import_flink", "import_spark"]

_program = program_option("The program that goes on")
_to = click.option("--to", "target", metavar="FOLDER", required=True, help="Folder of the new savepoint.")


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


@click.command("import")
@click.argument("path", metavar="FLINK_SAVEPOINT")
@_program
@_to
@click.option(
    "--declared",
    metavar="MODULE:NAME",
    help="Further descriptors of state: a dict of lists by uid, or a function that returns it.",
)
@allow_options
@json_option("what was imported and left behind")
@endpoint_url_option
def import_flink(
    path: str,
    program: str,
    target: str,
    declared: str | None,
    allow_non_restored_state: NonRestoredState,
    endpoint_url: str | None,
    as_json: bool,
) -> None:
    """Make a savepoint for the program from FLINK_SAVEPOINT, a canonical savepoint of Flink.

    The operators must have the uids that they have in Flink. Functions with state are opened in this process, as tasks
    would open them. State that cannot be imported is an error, unless it may be left behind.
    """
    from dagster_flinkpy.orchestration.flink_import import import_savepoint
    from dagster_flinkpy.orchestration.program import load_descriptors, load_program

    with lines_of("savepoint import") as on_progress:
        report = import_savepoint(
            location_of(path, endpoint_url),
            load_program(program),
            location_of(target, endpoint_url),
            declared=None if declared is None else load_descriptors(declared),
            allow_non_restored_state=allow_non_restored_state,
            on_progress=on_progress,
        )
    _print_import(report, "Flink", as_json=as_json)


@click.command("import-spark")
@click.argument("path", metavar="CHECKPOINT")
@_program
@_to
@click.option(
    "--map",
    "mapped",
    metavar="STATE=UID[:STATE]",
    multiple=True,
    help="Where state of Spark goes, such as 0.total=totals:sum; or sources/0=orders. Default: by name. Repeatable.",
)
@allow_options
@json_option("what was imported and left behind")
@endpoint_url_option
def import_spark(
    path: str,
    program: str,
    target: str,
    mapped: tuple[str, ...],
    allow_non_restored_state: NonRestoredState,
    endpoint_url: str | None,
    as_json: bool,
) -> None:
    """Make a savepoint for the program from CHECKPOINT, the checkpointLocation of a stopped Spark streaming query.

    A local Spark 4 reads the state. State that cannot be imported is an error, unless it may be left behind;
    --allow-non-restored-uid takes the id of Spark's operator.
    """
    from dagster_flinkpy.orchestration.program import load_program
    from dagster_flinkpy.orchestration.spark_import import import_spark_checkpoint
    from dagster_flinkpy.spark import sessions

    if wrong := [each for each in mapped if "=" not in each]:
        raise click.BadParameter(f"{wrong[0]!r} is not STATE=UID or STATE=UID:STATE", param_hint="--map")
    with lines_of("savepoint import") as on_progress, sessions.open_session() as session:
        report = import_spark_checkpoint(
            session,
            location_of(path, endpoint_url),
            load_program(program),
            location_of(target, endpoint_url),
            mapping={name: to for name, _, to in (each.partition("=") for each in mapped)},
            allow_non_restored_state=allow_non_restored_state,
            on_progress=on_progress,
        )
    _print_import(report, "Spark", as_json=as_json)


@click.command("export")
@click.argument("path", metavar="PATH")
@_program
@_to
@allow_options
@json_option("what was exported and left behind")
@endpoint_url_option
def export_flink(
    path: str,
    program: str,
    target: str,
    allow_non_restored_state: NonRestoredState,
    endpoint_url: str | None,
    as_json: bool,
) -> None:
    """Make a canonical savepoint of Flink from PATH, on which the program goes on in PyFlink (process mode).

    PATH is a savepoint, a chk-N folder, or the folder of a job. The operators must have uids. State that cannot be
    exported is an error, unless it may be left behind.
    """
    from dagster_flinkpy.orchestration.flink_import import export_savepoint
    from dagster_flinkpy.orchestration.program import load_program

    with lines_of("savepoint export") as on_progress:
        report = export_savepoint(
            location_of(path, endpoint_url),
            load_program(program),
            location_of(target, endpoint_url),
            allow_non_restored_state=allow_non_restored_state,
            on_progress=on_progress,
        )
    rows = [(each.uid, each.name, each.flink_name, f"{each.rows:,}") for each in report.exported]
    _print_report(report, "Flink", rows, as_json=as_json)


def _print_import(report: ImportReport, system: str, *, as_json: bool) -> None:
    rows = [(each.uid, each.name, each.origin, f"{each.rows:,}") for each in report.imported]
    _print_report(report, system, rows, as_json=as_json)


def _print_report(
    report: ImportReport | ExportReport, system: str, rows: Sequence[tuple[str, ...]], *, as_json: bool
) -> None:
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2))
        return
    console, table = Console(stderr=True), plain_table("uid", "state", f"state in {system}", "#rows")
    for each in rows:
        table.add_row(*map(escape, each))
    console.print(table)
    for left in report.left_behind:
        console.print(escape(f"left behind: {left.problem}"), soft_wrap=True)
    click.echo(report.url)
