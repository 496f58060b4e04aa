"""``flinkpy``: a look at checkpoints, savepoints and the state in them, and what is done to savepoints.

Without Spark or Dagster, unless a program is given.
"""

from __future__ import annotations

import getpass
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dagster_flinkpy.checkpoint.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata, OperatorState
from dagster_flinkpy.checkpoint.offline import (
    release_leadership,
    restore_savepoint,
    stop_with_savepoint,
    trigger_savepoint,
)
from dagster_flinkpy.checkpoint.skew import rows_by_key_group, skew
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.stored_checkpoint import open_checkpoint
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.checkpoint.verify import restore_drill, verify_checkpoint
from dagster_flinkpy.common.configuration import parse_duration
from dagster_flinkpy.datastream.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.datastream.state_recovery import RecoveryClaimMode
from dagster_flinkpy.doctor import Verdict, diagnose
from dagster_flinkpy.errors import CorruptMetadataError, FlinkPyError
from dagster_flinkpy.state_processor import StoredState, read_savepoint
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from dagster_flinkpy.terminal import bar, console_of_width, plain_table, progress, time_of, watermark_of

if TYPE_CHECKING:
    from dagster_flinkpy.runtime.job import JobAttempt

__all__ = ["main"]


class _Commands(click.Group):
    """Errors of the library end the command with one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (FlinkPyError, OSError) as error:
            message = str(error) or type(error).__name__
            raise click.ClickException(" ".join(message.split())) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dagster-flinkpy")
def main() -> None:
    """Checkpoints, savepoints and state of dagster-flinkpy jobs.

    DIR and PATH are local, or s3://bucket/prefix.
    """


@main.group()
def checkpoints() -> None:
    """Completed checkpoints of jobs."""


@main.group()
def savepoint() -> None:
    """Single savepoints and checkpoints."""


@main.group()
def leader() -> None:
    """Which run leads a job. A run that takes over fences the one before, so nobody has to release anything."""


@main.group()
def state() -> None:
    """The state in savepoints and checkpoints."""


_endpoint_url = click.option(
    "--endpoint-url", metavar="URL", help="S3 server other than Amazon's, such as http://127.0.0.1:9000."
)


def _as_json(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


@main.command()
@click.option("--storage", metavar="DIR", help="Where checkpoints are to be kept; it is looked at, too.")
@click.option("--remote", metavar="URL", help="Spark Connect server, such as sc://host:15002. Default: a local one.")
@_endpoint_url
def doctor(storage: str | None, remote: str | None, endpoint_url: str | None) -> None:
    """Look whether this machine can run jobs, and say what to do where it cannot."""
    location = None if storage is None else StorageLocation(storage, endpoint_url)
    colours = {Verdict.FINE: "green", Verdict.WARNING: "yellow", Verdict.BROKEN: "red"}
    console = console_of_width()
    broken = False
    with console.status("looking ..."):
        for finding in diagnose(location, remote=remote):
            broken |= finding.verdict is Verdict.BROKEN
            mark = f"[{colours[finding.verdict]}]{finding.verdict.value:>7}[/]"
            console.print(f"{mark}  [bold]{finding.what}[/]: {escape(finding.detail)}")
            if finding.advice:
                console.print(f"         [bold]->[/] {escape(finding.advice)}")
    if broken:
        raise SystemExit(1)


@checkpoints.command("list")
@click.argument("directory", metavar="DIR")
@_as_json("them")
@_endpoint_url
def list_checkpoints(directory: str, endpoint_url: str | None, as_json: bool) -> None:
    """List the checkpoints of the job in DIR, or of all jobs in the checkpoint storage DIR."""
    store = StorageLocation(directory, endpoint_url).open()
    jobs = _jobs(store)
    if not jobs:
        raise click.ClickException(f"no job has checkpoints in {store.url}; give the folder of a job, or the one above")
    rows = [(job, entry) for job, checkpoints in jobs.items() for entry in checkpoints.list_checkpoints()]
    if as_json:
        facts = [
            {
                "job": job,
                "checkpoint_id": entry.checkpoint_id,
                "status": entry.status.value,
                "completed": entry.last_modified.isoformat(),
                "path": f"{jobs[job].store.url}/{entry.path}",
            }
            for job, entry in rows
        ]
        click.echo(json.dumps(facts, indent=2))
        return
    table = plain_table("job", "#checkpoint", "status", "completed", "#state bytes", "end of input", "path")
    for job, entry in rows:
        try:
            metadata = jobs[job].load(entry.path)
            facts_of = [f"{metadata.state_bytes:,}", "yes" if metadata.end_of_input else "no"]
        except CorruptMetadataError:
            facts_of = ["[red]damaged[/]", ""]
        when = time_of(entry.last_modified)
        table.add_row(job, str(entry.checkpoint_id), entry.status.value, when, *facts_of, entry.path)
    console_of_width().print(table)


@checkpoints.command("sweep")
@click.argument("directory", metavar="DIR")
@click.option("--older-than", default="1 d", show_default=True, help="Grace time, longer than any epoch takes.")
@click.option("--dry-run", is_flag=True, help="Delete nothing, only count.")
@_endpoint_url
def sweep_checkpoints(directory: str, older_than: str, dry_run: bool, endpoint_url: str | None) -> None:
    """Delete what no checkpoint and no savepoint of the job in DIR needs: files of failed epochs and dead attempts."""
    store, grace = StorageLocation(directory, endpoint_url).open(), parse_duration(older_than)
    with progress("looking" if dry_run else "deleting", "files") as advance:
        result = sweep(store, grace, dry_run=dry_run, on_deleted=advance)
    verb = "would delete" if dry_run else "deleted"
    click.echo(f"{verb} {result.files:,} files, {result.bytes:,} bytes")


@checkpoints.command("stats")
@click.argument("directory", metavar="DIR")
@_as_json("them")
@_endpoint_url
def checkpoint_statistics(directory: str, endpoint_url: str | None, as_json: bool) -> None:
    """Show the statistics of the job in DIR: counts, and the last checkpoints, failed ones too."""
    statistics = CompletedCheckpointStore(StorageLocation(directory, endpoint_url).open()).statistics()
    if as_json:
        click.echo(json.dumps(statistics.to_json(), indent=2))
        return
    console, counts = console_of_width(), statistics.counts
    console.print(f"{counts.completed} completed, {counts.failed} failed, {counts.restored} restored")
    numbers = plain_table("", "#last", "#min", "#p50", "#p99", "#max")
    for number in ("duration_ms", "state_bytes", "alignment_ms"):
        if (s := statistics.summary(number)) is not None:
            numbers.add_row(number, *(f"{value:,}" for value in (s.last, s.minimum, s.p50, s.p99, s.maximum)))
    console.print(numbers)
    table = plain_table(
        *("#checkpoint", "triggered", "kind", "status", "#duration ms"),
        *("#state bytes", "#growth", "#alignment ms", "acknowledged"),
    )
    for each, growth in statistics.with_growth():
        status = each.status.value if each.reason is None else f"{each.status.value} ({each.reason.name})"
        table.add_row(
            str(each.checkpoint_id),
            time_of(datetime.fromtimestamp(each.trigger_ms / 1000, timezone.utc)),
            each.kind.value,
            status,
            *(f"{value:,}" for value in (each.duration_ms, each.state_bytes)),
            "-" if growth is None else f"{growth:+,}",
            f"{each.alignment_ms:,}",
            f"{each.acknowledged}/{each.tasks}",
        )
    console.print(table)


@leader.command("show")
@click.argument("directory", metavar="DIR")
@_as_json("it")
@_endpoint_url
def show_leader(directory: str, endpoint_url: str | None, as_json: bool) -> None:
    """Show which run leads the job in DIR, or did last, and until when it has promised to live."""
    record = CompletedCheckpointStore(StorageLocation(directory, endpoint_url).open()).leader()
    if record is None:
        raise click.ClickException(f"nobody has ever led the job in {directory}")
    until = datetime.fromtimestamp(record.expires_at / 1000, timezone.utc)
    alive = record.alive(_now_ms())
    if as_json:
        click.echo(json.dumps({**asdict(record), "alive": alive}, indent=2))
        return
    if record.expires_at == 0:
        lease = "released"
    else:
        lease = f"until {time_of(until)}" if alive else f"ran out at {time_of(until)}: the run was killed, or hangs"
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("owner", escape(record.owner)),
        ("token", str(record.token)),
        ("since", time_of(datetime.fromtimestamp(record.acquired_at / 1000, timezone.utc))),
        ("lease", lease),
        ("committed up to", "-" if record.committed is None else f"checkpoint {record.committed}"),
    ):
        facts.add_row(f"[bold]{name}[/]", value)
    console_of_width().print(facts)


@leader.command("release")
@click.argument("directory", metavar="DIR")
@click.option("--force", is_flag=True, help="Even if the run may be alive; its epoch is lost.")
@_endpoint_url
def release_leader(directory: str, force: bool, endpoint_url: str | None) -> None:
    """Take the leadership of the job in DIR away from the run that has it: it completes and commits nothing more."""
    location = StorageLocation(directory, endpoint_url)
    record = CompletedCheckpointStore(location.open()).leader()
    if record is not None and record.alive(_now_ms()) and not force:
        raise click.ClickException(f"{record.owner!r} may be at work; --force takes the leadership from it")
    former = release_leadership(location, owner=_owner("leader release"), now_ms=_now_ms())
    if former is None:
        raise click.ClickException(f"nobody has ever led the job in {directory}")
    click.echo(f"{former.owner!r} (token {former.token}) leads the job no more")


_target = click.option("--target", metavar="PATH", help="Folder that gets it. Default: that of the job.")
_type = click.option(
    "--type",
    "format_type",
    type=click.Choice([each.name.lower() for each in SavepointFormatType]),
    default="canonical",
    show_default=True,
    callback=lambda context, option, name: SavepointFormatType[name.upper()],
    help="native: refers to files of the job's checkpoints, beside which it must be.",
)
_program = click.option(
    "--program", metavar="MODULE:NAME", help="The program, or the function that builds it. Also FILE.py:NAME."
)
_remote = click.option("--remote", metavar="URL", help="Spark Connect server for the program. Default: a local one.")


def _folder(path: str | None, endpoint_url: str | None) -> StorageLocation | None:
    return None if path is None else _location(path, endpoint_url)


@contextmanager
def _attempt(program: str, job: StorageLocation, remote: str | None, what: str, **options: Any) -> Iterator[JobAttempt]:
    """An attempt of the program, as a Dagster job makes one; what goes on is told on standard error."""
    from dagster_flinkpy.orchestration.program import load_program, program_attempt
    from dagster_flinkpy.orchestration.resources import SparkResource

    spark = SparkResource() if remote is None else SparkResource(mode="remote", remote=remote)
    console = Console(stderr=True)

    def tell(line: str) -> None:
        console.print(escape(line), soft_wrap=True)

    with (
        console.status(f"{what} ..."),
        program_attempt(
            load_program(program), job, spark=spark, owner=_owner(what), on_progress=tell, **options
        ) as attempt,
    ):
        yield attempt


@savepoint.command("trigger")
@click.argument("directory", metavar="DIR")
@_target
@_type
@_endpoint_url
def trigger(directory: str, target: str | None, format_type: SavepointFormatType, endpoint_url: str | None) -> None:
    """Keep the latest checkpoint of the job in DIR as a savepoint; print its path. A run may be at work."""
    click.echo(trigger_savepoint(_location(directory, endpoint_url), _folder(target, endpoint_url), format_type))


@savepoint.command("stop")
@click.argument("directory", metavar="DIR")
@_target
@_type
@click.option("--drain", is_flag=True, help="End event time first, so that all timers fire; needs --program.")
@_program
@_remote
@_endpoint_url
def stop(
    directory: str,
    target: str | None,
    format_type: SavepointFormatType,
    drain: bool,
    program: str | None,
    remote: str | None,
    endpoint_url: str | None,
) -> None:
    """Stop the job in DIR with a savepoint; print its path. Runs find the job finished until one is restored."""
    job, folder, what = _location(directory, endpoint_url), _folder(target, endpoint_url), "savepoint stop"
    if program is not None:
        with _attempt(program, job, remote, what) as attempt:
            path = attempt.stop_with_savepoint(None if folder is None else folder.url, format_type, drain=drain)
    elif drain:
        raise click.UsageError("--drain fires timers, which needs the program: --program module:function")
    else:
        path = stop_with_savepoint(job, folder, format_type, owner=_owner(what), now_ms=_now_ms())
    click.echo(path)


@savepoint.command("restore")
@click.argument("path", metavar="PATH")
@click.argument("directory", metavar="DIR")
@click.option("--allow-pickled-state", is_flag=True, help="Whoever wrote it can run code in the job.")
@_program
@click.option("--parallelism", type=click.IntRange(min=1), help="Subtasks per operator from now on; needs --program.")
@click.option(
    "--allow-non-restored-state", is_flag=True, help="Leave behind state whose operator is gone; needs --program."
)
@click.option(
    "--claim-mode",
    type=click.Choice([each.name.lower() for each in RecoveryClaimMode]),
    help="Whose it is afterwards; needs --program. Default: its owner's, no_claim.",
)
@_remote
@_endpoint_url
def restore(
    path: str,
    directory: str,
    allow_pickled_state: bool,
    program: str | None,
    parallelism: int | None,
    allow_non_restored_state: bool,
    claim_mode: str | None,
    remote: str | None,
    endpoint_url: str | None,
) -> None:
    """Make the savepoint in PATH the latest checkpoint of the job in DIR, which need not exist yet.

    Without --program nobody looks whether it fits the program; the next run does.
    """
    job, savepoint, what = _location(directory, endpoint_url), _location(path, endpoint_url), "savepoint restore"
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
        raise click.UsageError("--parallelism, --allow-non-restored-state and --claim-mode need --program")
    else:
        checkpoint_id = restore_savepoint(
            job, savepoint, owner=_owner(what), now_ms=_now_ms(), allow_pickled_state=allow_pickled_state
        )
    click.echo(f"{directory} goes on from {path}, now its checkpoint {checkpoint_id}")


@savepoint.command("dispose")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@_endpoint_url
def dispose(paths: tuple[str, ...], endpoint_url: str | None) -> None:
    """Delete the savepoint in each PATH, or a chk-N that was left unclaimed."""
    with progress("deleting", "savepoints", len(paths)) as advance:
        for path in paths:
            dispose_savepoint(_location(path, endpoint_url), owner=_owner("savepoint dispose"), now_ms=_now_ms())
            advance(1)
            click.echo(f"{path} is deleted")


@savepoint.command("verify")
@click.argument("path", metavar="PATH")
@click.option("--drill", is_flag=True, help="Also read it as a restore at another parallelism would.")
@_endpoint_url
def verify(path: str, drill: bool, endpoint_url: str | None) -> None:
    """Compare the checksums of all state files in PATH: a savepoint, a chk-N folder, or a job."""
    stored = open_checkpoint(_location(path, endpoint_url))
    with progress("reading", "files", len(stored.metadata.files())) as advance:
        found = verify_checkpoint(stored.metadata, stored.files.open(), on_read=advance)
    if found.problems:
        raise click.ClickException("; ".join(found.problems))
    click.echo(f"{found.files:,} files, {found.bytes:,} bytes: all have their checksums")
    if drill:
        with progress("restoring", "subtasks") as advance:
            result = restore_drill(stored.metadata, stored.files.open(), on_read=advance)
        rows = sum(result.after.values())
        click.echo(f"{rows:,} rows of keyed state and timers, the same at parallelism {result.parallelism}")


def _owner(what: str) -> str:
    return f"flinkpy {what} by {getpass.getuser()} on {socket.gethostname()}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _jobs(store: ObjectStore) -> dict[str, CompletedCheckpointStore]:
    """The job at the root of a store, else the jobs in its folders."""
    root = CompletedCheckpointStore(store)
    if root.list_checkpoints():
        return {store.url.rpartition("/")[2]: root}
    below = {folder.rstrip("/"): CompletedCheckpointStore(store.child(folder)) for folder in store.list_folders()}
    return {name: checkpoints for name, checkpoints in below.items() if checkpoints.list_checkpoints()}


@savepoint.command("describe")
@click.argument("path", metavar="PATH")
@click.option("--uid", help="Show the subtasks of this operator.")
@_as_json("all of the metadata")
@_endpoint_url
def describe_savepoint(path: str, uid: str | None, endpoint_url: str | None, as_json: bool) -> None:
    """Show what PATH holds: a savepoint, a chk-N folder, or a job, of which it is the latest checkpoint."""
    metadata = open_checkpoint(_location(path, endpoint_url)).metadata
    if as_json:
        click.echo(json.dumps(metadata.to_json(), indent=2))
        return
    console = console_of_width()
    if uid is not None:
        _print_subtasks(metadata, uid, console)
        return
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(metadata):
        facts.add_row(f"[bold]{name}[/]", value)
    console.print(facts)
    names = "uid|name|#parallelism|#max parallelism|states|#rows|#bytes|#splits|#to commit|watermark"
    table = plain_table(*names.split("|"))
    for operator in metadata.operators:
        table.add_row(*_operator_row(operator))
    console.print(table)


def _print_subtasks(metadata: CheckpointMetadata, uid: str, console: Console) -> None:
    operator = metadata.operator(uid)
    if operator is None:
        known = ", ".join(each.uid for each in metadata.operators)
        raise click.ClickException(f"no operator has uid {uid!r}; there are: {known}")
    table = plain_table("#subtask", "key groups", "#rows", "#bytes", "#records in", "#records out", "rows")
    loads = [subtask.keyed.rows if subtask.keyed else 0 for subtask in operator.subtasks]
    for subtask, rows in zip(operator.subtasks, loads, strict=True):
        groups, numbers = subtask.keyed.key_groups if subtask.keyed else None, subtask.metrics
        table.add_row(
            str(subtask.index),
            "-" if groups is None else f"{groups.start}..{groups.end}",
            *(f"{value:,}" for value in (rows, subtask.state_bytes)),
            *(f"{int(numbers.get(name, 0)):,}" for name in ("records_in", "records_out")),
            bar(rows, max(loads)),
        )
    console.print(table)
    by_group = rows_by_key_group(operator)
    for what, values in (("subtasks", loads), ("key groups", by_group)):
        if (uneven := skew(values)) is not None:
            console.print(f"skew of {what}: the largest has {uneven:.2f} times the mean")


def _location(path: str, endpoint_url: str | None) -> StorageLocation:
    return StorageLocation(path.rstrip("/"), endpoint_url)


def _facts(metadata: CheckpointMetadata) -> list[tuple[str, str]]:
    return [
        ("job", metadata.job_id),
        (metadata.kind.value, str(metadata.checkpoint_id)),
        ("parent", "-" if metadata.parent_id is None else str(metadata.parent_id)),
        ("taken", time_of(datetime.fromtimestamp(metadata.timestamp_ms / 1000, timezone.utc))),
        ("attempt", str(metadata.fencing_token)),
        *([] if metadata.partition is None else [("partition", metadata.partition)]),
        ("end of input", "yes" if metadata.end_of_input else "no"),
        ("state", f"{metadata.state_bytes:,} bytes in {len(metadata.files())} files"),
    ]


def _operator_row(operator: OperatorState) -> list[str]:
    tables = [table for subtask in operator.subtasks if subtask.keyed for table in subtask.keyed.tables]
    handles = [handle for subtask in operator.subtasks for handle in subtask.operator_state]
    watermarks = [subtask.watermark for subtask in operator.subtasks]
    known = [watermark for watermark in watermarks if watermark is not None]
    return [
        operator.uid,
        operator.name,
        str(operator.parallelism),
        str(operator.max_parallelism),
        ", ".join(dict.fromkeys([table.name for table in tables] + [handle.name for handle in handles])) or "-",
        f"{sum(table.rows for table in tables):,}",
        f"{operator.state_bytes:,}",
        str(sum(len(subtask.splits) for subtask in operator.subtasks)),
        str(sum(len(subtask.committables) for subtask in operator.subtasks)),
        watermark_of(min(known)) if len(known) == len(watermarks) and known else "-",
    ]


@state.command("read")
@click.argument("path", metavar="PATH")
@click.option("--uid", required=True, help="Uid of the operator.")
@click.option("--state", "name", required=True, help="Name of the state.")
@click.option("--format", "form", type=click.Choice(["table", "json", "parquet"]), default="table", show_default=True)
@click.option("--output", type=click.Path(dir_okay=False), help="File to write. Default: the terminal.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many rows. Default: 20 of a table, else all.")
@_endpoint_url
def read_state(
    path: str, uid: str, name: str, form: str, output: str | None, limit: int | None, endpoint_url: str | None
) -> None:
    """Print a state in PATH: a savepoint, a chk-N folder, or a job, of which it is the latest checkpoint.

    json is one object per line. Values that were pickled are shown as bytes, and are never unpickled.
    """
    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE")
    stored = read_savepoint(_location(path, endpoint_url)).state(uid, name)
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


def _by_subtask(stored: StoredState) -> Iterator[pa.Table]:
    for subtask, rows in zip(stored.subtasks, stored.to_tables(), strict=True):
        yield rows.add_column(0, "subtask", pa.array([subtask] * rows.num_rows, pa.int32()))


def _limited(tables: Iterator[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    """The first rows, and at least one table, so that the columns are known."""
    for table in tables:
        yield table if limit is None else table.slice(0, limit)
        if limit is not None:
            limit -= table.num_rows
            if limit <= 0:
                return


def _print_rows(schema: pa.Schema, tables: Iterator[pa.Table], console: Console) -> None:
    numbers = {f.name for f in schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)}
    table = plain_table(*(f"#{name}" if name in numbers else name for name in schema.names))
    for rows in tables:
        for row in rows.to_pylist():
            table.add_row(*("" if value is None else _cell(value) for value in row.values()))
    console.print(table)


def _cell(value: Any) -> str:
    return escape(json.dumps(value, default=_plain) if isinstance(value, (dict, list, bytes)) else str(value))


def _plain(value: Any) -> str:
    """What JSON has no type for."""
    return value.hex() if isinstance(value, bytes) else str(value)
