"""``flinkpy savepoint``: works on single savepoints and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.offline import restore_savepoint, stop_with_savepoint, trigger_savepoint
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.reports.in_flight import in_flight
from dagster_flinkpy.checkpoint.reports.job_metrics import operator_metrics
from dagster_flinkpy.checkpoint.reports.skew import rows_by_key_group, skew
from dagster_flinkpy.checkpoint.requests import DEFAULT_TIMEOUT, JobRequests, RequestKind
from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.savepoints.savepoint import load_savepoint
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.verify import restore_drill, verify_checkpoint
from dagster_flinkpy.cli.common import (
    allow_options,
    drain_option,
    endpoint_url_option,
    json_option,
    location_of,
    owner_of,
    program_option,
    recompute_options,
    remote_option,
    run_options,
    savepoint_type_option,
    target_option,
)
from dagster_flinkpy.cli.flink_savepoint import describe_flink_savepoint, export_flink, import_flink, import_spark
from dagster_flinkpy.cli.job import ask_job
from dagster_flinkpy.cli.terminal import bar, console_of_width, plain_table, progress, time_of, watermark_of
from dagster_flinkpy.common.clock import current_millis, datetime_of_millis
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState, RecoveryClaimMode
from dagster_flinkpy.errors import FlinkPyError, JobNotRunningError
from dagster_flinkpy.metrics import LATE_RECORDS_DROPPED, user_metrics
from dagster_flinkpy.state_processor import FlinkSavepointReader, read_savepoint
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from dagster_flinkpy.orchestration.program import RestoreForecast
    from dagster_flinkpy.runtime.master.job import JobAttempt

__all__ = ["savepoint"]


@click.group()
def savepoint() -> None:
    """Work on single savepoints and checkpoints."""


_UNKNOWN = 3
"""Exit code of a plan that does not know whether a restore would work."""


def _folder(path: str | None, endpoint_url: str | None) -> StorageLocation | None:
    return None if path is None else location_of(path, endpoint_url)


@contextmanager
def _attempt(program: str, job: StorageLocation, remote: str | None, what: str, **options: Any) -> Iterator[JobAttempt]:
    """Runs an execution attempt of the program, as a Dagster job does. Shows its progress on standard error."""
    from dagster_flinkpy.orchestration.program import load_program, program_attempt

    with run_options(what, remote) as run, program_attempt(load_program(program), job, **run, **options) as attempt:
        yield attempt


@savepoint.command("trigger")
@click.argument("directory", metavar="DIR")
@target_option
@savepoint_type_option
@endpoint_url_option
def trigger(directory: str, target: str | None, format_type: SavepointFormatType, endpoint_url: str | None) -> None:
    """Keep the latest checkpoint of the job in DIR as a savepoint, and print its path.

    The job may be running.
    """
    click.echo(trigger_savepoint(location_of(directory, endpoint_url), _folder(target, endpoint_url), format_type))


@savepoint.command("stop")
@click.argument("directory", metavar="DIR")
@target_option
@savepoint_type_option
@drain_option
@program_option(required=False)
@remote_option
@endpoint_url_option
def stop(
    directory: str,
    target: str | None,
    format_type: SavepointFormatType,
    drain: bool,
    program: str | None,
    remote: str | None,
    endpoint_url: str | None,
) -> None:
    """Stop the job in DIR with a savepoint, and print its path.

    A run that is at work is asked to stop, as by 'flinkpy job stop'. Otherwise --drain needs --program. The job stays
    stopped until a savepoint is restored.
    """
    job, folder, what = location_of(directory, endpoint_url), _folder(target, endpoint_url), "savepoint stop"
    if JobRequests(job, owner_of(what)).running() is not None:
        options = {"target": None if folder is None else folder.url, "format_type": format_type, "drain": drain}
        with suppress(JobNotRunningError):  # it ended before it took the request
            click.echo(ask_job(job, what, DEFAULT_TIMEOUT, kind=RequestKind.STOP, **options).savepoint)
            return
    if program is not None:
        with _attempt(program, job, remote, what) as attempt:
            path = attempt.stop_with_savepoint(None if folder is None else folder.url, format_type, drain=drain)
    elif drain:
        raise click.UsageError("--drain fires timers, which needs the program: add --program MODULE:NAME")
    else:
        path = stop_with_savepoint(job, folder, format_type, owner=owner_of(what), now_ms=current_millis())
    click.echo(path)


@savepoint.command("restore")
@click.argument("path", metavar="PATH")
@click.argument("directory", metavar="DIR")
@click.option(
    "--allow-pickled-state", is_flag=True, help="Restore pickled state. Whoever wrote it can run code in the job."
)
@program_option(required=False)
@click.option("--parallelism", type=click.IntRange(min=1), help="Subtasks per operator from now on. Needs --program.")
@allow_options
@click.option(
    "--claim-mode",
    type=click.Choice([each.name.lower() for each in RecoveryClaimMode]),
    help="Who owns the savepoint afterwards: the job (claim), or still you (no_claim, the default). Needs --program.",
)
@remote_option
@endpoint_url_option
def restore(
    path: str,
    directory: str,
    allow_pickled_state: bool,
    program: str | None,
    parallelism: int | None,
    allow_non_restored_state: NonRestoredState,
    claim_mode: str | None,
    remote: str | None,
    endpoint_url: str | None,
) -> None:
    """Make the savepoint in PATH the latest checkpoint of the job in DIR, which need not exist yet.

    Without --program, the next run is the first to check whether the savepoint fits the program.
    """
    job, savepoint, what = location_of(directory, endpoint_url), location_of(path, endpoint_url), "savepoint restore"
    if program is not None:
        options: dict[str, Any] = {
            "restore_from": savepoint.url,
            "parallelism": parallelism,
            "claim_mode": RecoveryClaimMode.NO_CLAIM if claim_mode is None else RecoveryClaimMode[claim_mode.upper()],
            "allow_non_restored_state": allow_non_restored_state,
            "allow_pickled_state": allow_pickled_state,
        }
        with _attempt(program, job, remote, what, **options) as attempt:
            checkpoint_id = attempt.commit_restored().checkpoint_id
    elif parallelism is not None or allow_non_restored_state or claim_mode is not None:
        raise click.UsageError(
            "--parallelism, --allow-non-restored-state, --allow-non-restored-uid and --claim-mode need --program"
        )
    else:
        since = _checkpoint_to_go_back_to(job, savepoint)
        checkpoint_id = restore_savepoint(
            job, savepoint, owner=owner_of(what), now_ms=current_millis(), allow_pickled_state=allow_pickled_state
        )
        if since is not None:
            after = f" since checkpoint {since}" if since else ""
            click.echo(
                f"what sinks have committed{after} stays, and is written again beside it when its "
                "input is read again, unless they replace rows: delete it before the job goes on",
                err=True,
            )
    click.echo(f"{directory} continues from {path}, now its checkpoint {checkpoint_id}")


def _checkpoint_to_go_back_to(job: StorageLocation, savepoint: StorageLocation) -> int | None:
    """Returns the last checkpoint of the job that a savepoint knows of, 0 if none; None if no later one has rows."""
    with suppress(FlinkPyError):  # the restore says so, or mends it
        latest, kept = CompletedCheckpointStore(job.open()).latest(), load_savepoint(savepoint.open())
        partitioned = latest is not None and latest.end_of is not None  # what runs again replaces its rows
        if latest is not None and not partitioned and latest.checkpoint_id > (since := kept.last_of(job.name)):
            return since
    return None


@savepoint.command("plan")
@click.argument("path", metavar="PATH")
@program_option()
@click.option("--parallelism", type=click.IntRange(min=1), help="Subtasks per operator that the run would use.")
@allow_options
@click.option(
    "--allow-pickled-state", is_flag=True, help="Let functions read pickled state. Whoever wrote it can run code here."
)
@recompute_options
@json_option("the plan")
@endpoint_url_option
def plan(
    path: str,
    program: str,
    parallelism: int | None,
    allow_non_restored_state: NonRestoredState,
    allow_pickled_state: bool,
    endpoint_url: str | None,
    as_json: bool,
    **recompute: Any,
) -> None:
    """Show what would happen if the program started on the state in PATH, without starting it.

    PATH is a savepoint, a chk-N folder, or the folder of a job. Functions with state are opened in this process, as
    tasks would open them. Exits with 1 if the restore would fail, and with 3 if that cannot be found out here.
    """
    from dagster_flinkpy.orchestration.program import load_program, plan_restore

    stored = open_checkpoint(location_of(path, endpoint_url))
    options = {"allow_pickled_state": allow_pickled_state, **recompute}
    found = plan_restore(load_program(program), stored, parallelism, allow_non_restored_state, **options)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        _print_plan(found, console_of_width())
    if found.problem is not None:
        raise click.ClickException(found.problem)
    if found.unknown:
        click.echo(f"Unknown whether all state fits: {'; '.join(found.unknown)}", err=True)
        raise click.exceptions.Exit(_UNKNOWN)


def _print_plan(found: RestoreForecast, console: Console) -> None:
    table = plain_table("uid", "operator", "state", "#rows", "what changed")
    for each in found.evolution.operators:
        row = (each.uid, each.change.value, each.state.value, f"{each.rows:,}", "; ".join(each.details) or "-")
        table.add_row(*map(escape, row))
    console.print(table)
    for line in (*found.evolution.remarks, *found.parallelism, *found.of_recomputation):
        console.print(escape(line))


@savepoint.command("dispose")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@endpoint_url_option
def dispose(paths: tuple[str, ...], endpoint_url: str | None) -> None:
    """Delete the savepoint in each PATH, or a chk-N folder that a job restored without claiming it."""
    with progress("deleting", "savepoints", len(paths)) as advance:
        for path in paths:
            dispose_savepoint(
                location_of(path, endpoint_url), owner=owner_of("savepoint dispose"), now_ms=current_millis()
            )
            advance(1)
            click.echo(f"deleted {path}")


@savepoint.command("verify")
@click.argument("path", metavar="PATH")
@click.option("--drill", is_flag=True, help="Also read the state as a restore at another parallelism would.")
@endpoint_url_option
def verify(path: str, drill: bool, endpoint_url: str | None) -> None:
    """Verify the checksums of all state files in PATH: a savepoint, a chk-N folder, or the folder of a job."""
    stored = open_checkpoint(location_of(path, endpoint_url))
    with progress("reading", "files", len(stored.metadata.files())) as advance:
        found = verify_checkpoint(stored.metadata, stored.files.open(), on_read=advance)
    if found.problems:
        raise click.ClickException("; ".join(found.problems))
    small = "" if found.files else "; small state is in _metadata itself"
    click.echo(f"{found.files:,} files, {found.bytes:,} bytes: all checksums match{small}")
    if drill:
        with progress("restoring", "subtasks") as advance:
            result = restore_drill(stored.metadata, stored.files.open(), on_read=advance)
        rows = sum(result.after.values())
        click.echo(f"{rows:,} rows of keyed state and timers, the same at parallelism {result.parallelism}")


@savepoint.command("describe")
@click.argument("path", metavar="PATH")
@click.option("--uid", help="Show only this operator, with its subtasks.")
@json_option("the metadata (with --uid, that of the operator)")
@endpoint_url_option
def describe_savepoint(path: str, uid: str | None, endpoint_url: str | None, as_json: bool) -> None:
    """Show the contents of PATH: a savepoint, a chk-N folder, or the folder of a job for its latest checkpoint.

    PATH may be a savepoint of Flink.
    """
    found = read_savepoint(location_of(path, endpoint_url))
    if isinstance(found, FlinkSavepointReader):
        describe_flink_savepoint(found, uid, as_json=as_json)
        return
    metadata = found.metadata
    if uid is not None:
        metadata = replace(metadata, operators=(_operator(metadata, uid),))
    if as_json:
        click.echo(json.dumps(metadata.to_json(), indent=2))
        return
    console = console_of_width()
    if uid is not None:
        _print_subtasks(metadata.operators[0], console)
        return
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(metadata):
        facts.add_row(f"[bold]{name}[/]", escape(value))
    console.print(facts)
    names = "uid|name|#parallelism|#max parallelism|states|#rows|#bytes|#splits|#to commit|watermark"
    table = plain_table(*names.split("|"))
    for operator in metadata.operators:
        table.add_row(*map(escape, _operator_row(operator)))
    console.print(table)
    if flying := in_flight(metadata):
        segments = plain_table("edge", "not read by", "#epochs", "#segments", "#records", "#bytes")
        for each in flying:
            counts = (each.epochs, each.segments, each.records, each.bytes)
            segments.add_row(each.edge, each.uid, *(f"{count:,}" for count in counts))
        console.print("\n[bold]in flight[/] on blocking edges, because barriers were unaligned:")
        console.print(segments)
    metrics = plain_table("uid", "metric", "#value")
    for operator in metadata.operators:
        for metric, number in _metrics(operator.subtasks).items():
            metrics.add_row(operator.uid, escape(metric), f"{number:,}")
    if metrics.row_count:
        console.print(metrics)


savepoint.add_command(import_flink)
savepoint.add_command(import_spark)
savepoint.add_command(export_flink)


def _operator(metadata: CheckpointMetadata, uid: str) -> OperatorState:
    operator = metadata.operator(uid)
    if operator is None:
        known = ", ".join(each.uid for each in metadata.operators)
        raise click.ClickException(f"no operator has uid {uid!r}; the uids are: {known}")
    return operator


def _print_subtasks(operator: OperatorState, console: Console) -> None:
    measured = operator_metrics(operator).subtasks
    shown = {title: name for title, name in _BY_SUBTASK.items() if any(name in each for each in measured)}
    table = plain_table("#subtask", "key groups", "#rows", "#bytes", *(f"#{title}" for title in shown), "rows")
    loads = [subtask.rows for subtask in operator.subtasks]
    for subtask, rows in zip(operator.subtasks, loads, strict=True):
        groups, numbers = subtask.keyed.key_groups if subtask.keyed else None, measured[subtask.index]
        table.add_row(
            str(subtask.index),
            "-" if groups is None else f"{groups.start}..{groups.end}",
            *(f"{value:,}" for value in (rows, subtask.state_bytes)),
            *(f"{int(numbers.get(name, 0)):,}" for name in shown.values()),
            bar(rows, max(loads)),
        )
    console.print(table)
    by_subtask = [_metrics([subtask]) for subtask in operator.subtasks]
    metrics = plain_table("metric", *(f"#subtask {subtask.index}" for subtask in operator.subtasks))
    for name in dict.fromkeys(name for values in by_subtask for name in values):
        metrics.add_row(escape(name), *(f"{values[name]:,}" if name in values else "-" for values in by_subtask))
    if metrics.row_count:
        console.print(metrics)
    by_group = rows_by_key_group(operator)
    for what, values in (("subtasks", loads), ("key groups", by_group)):
        if (uneven := skew(values)) is not None:
            console.print(f"skew of {what}: the largest is {uneven:.2f} times the mean")


_BY_SUBTASK = {
    "records in": "numRecordsIn",
    "records out": "numRecordsOut",
    "bytes in": "numBytesIn",
    "bytes out": "numBytesOut",
    "busy ms/s": "busyTimeMsPerSecond",
    "idle ms/s": "idleTimeMsPerSecond",
    "back-pressured ms/s": "backPressuredTimeMsPerSecond",
}


def _metrics(subtasks: Iterable[SubtaskState]) -> dict[str, int | float]:
    """Returns the number of late records dropped, and the metrics of user functions."""
    found = [subtask.metrics for subtask in subtasks]
    late = [int(metrics[LATE_RECORDS_DROPPED]) for metrics in found if LATE_RECORDS_DROPPED in metrics]
    return {**({LATE_RECORDS_DROPPED: sum(late)} if late else {}), **user_metrics(found)}


def _facts(metadata: CheckpointMetadata) -> list[tuple[str, str]]:
    return [
        ("job", metadata.job_id),
        (metadata.kind.value, str(metadata.checkpoint_id)),
        ("parent", "-" if metadata.parent_id is None else str(metadata.parent_id)),
        ("taken", time_of(datetime_of_millis(metadata.timestamp_ms))),
        ("attempt", str(metadata.fencing_token)),
        *([] if metadata.end_of is None else [("partition", metadata.end_of)]),
        ("end of input", "yes" if metadata.end_of_input else "no"),
        ("state", f"{metadata.state_bytes:,} bytes in {len(metadata.files())} files"),
    ]


def _operator_row(operator: OperatorState) -> list[str]:
    names = [table.name for table in operator.tables]
    names += [handle.name for subtask in operator.subtasks for handle in subtask.operator_state]
    watermarks = operator.watermarks  # an idle subtask, and one that has read nothing, do not hold event time back
    return [
        operator.uid,
        operator.name,
        str(operator.parallelism),
        str(operator.max_parallelism),
        ", ".join(dict.fromkeys(names)) or "-",
        f"{operator.rows:,}",
        f"{operator.state_bytes:,}",
        str(sum(len(subtask.splits) for subtask in operator.subtasks)),
        str(sum(len(subtask.committables) for subtask in operator.subtasks)),
        watermark_of(min(watermarks)) if watermarks else "-",
    ]
