"""``flinkpy checkpoints``: the completed checkpoints of jobs."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.markup import escape

from dagster_flinkpy.checkpoint.recovery import recover_head
from dagster_flinkpy.checkpoint.reports.job_metrics import stored_job_metrics
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.cli.common import endpoint_url_option, json_option, location_of, owner_of
from dagster_flinkpy.cli.terminal import console_of_width, metrics_table, plain_table, progress, time_of
from dagster_flinkpy.common.clock import current_millis, datetime_of_millis
from dagster_flinkpy.common.configuration import parse_duration
from dagster_flinkpy.errors import CorruptMetadataError, JobNotFoundError, ObjectNotFoundError
from dagster_flinkpy.storage import ObjectStore, StorageLocation

__all__ = ["checkpoints"]


@click.group()
def checkpoints() -> None:
    """Completed checkpoints of jobs."""


@checkpoints.command("list")
@click.argument("directory", metavar="DIR")
@json_option("the checkpoints")
@endpoint_url_option
def list_checkpoints(directory: str, endpoint_url: str | None, as_json: bool) -> None:
    """List the checkpoints of the job in DIR, or of all jobs if DIR is a checkpoint storage."""
    store = StorageLocation(directory, endpoint_url).open()
    jobs = _jobs(store)
    if not jobs:
        raise click.ClickException(f"no job has checkpoints in {store.url}; give the folder of a job, or its parent")
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
    table = plain_table("job", "#checkpoint", "status", "completed", "#state bytes", "end of input", "end of", "path")
    for job, entry in rows:
        try:
            metadata = jobs[job].load(entry.path)
            facts_of = [
                f"{metadata.state_bytes:,}",
                "yes" if metadata.end_of_input else "no",
                escape(metadata.end_of or "-"),
            ]
        except ObjectNotFoundError:
            continue  # a newer one has subsumed it meanwhile
        except CorruptMetadataError:
            facts_of = ["[red]damaged[/]", "", ""]
        when = time_of(entry.last_modified)
        table.add_row(escape(job), str(entry.checkpoint_id), entry.status.value, when, *facts_of, entry.path)
    console_of_width().print(table)


@checkpoints.command("sweep")
@click.argument("directory", metavar="DIR")
@click.option(
    "--older-than", default="1 d", show_default=True, help="Minimum age. Must be longer than any savepoint takes."
)
@click.option("--dry-run", is_flag=True, help="Only count; delete nothing.")
@endpoint_url_option
def sweep_checkpoints(directory: str, older_than: str, dry_run: bool, endpoint_url: str | None) -> None:
    """Delete files in DIR, the folder of a job, that no checkpoint or savepoint needs.

    Failed epochs and dead attempts leave such files behind.
    """
    store, grace = StorageLocation(directory, endpoint_url).open(), parse_duration(older_than)
    with progress("searching" if dry_run else "deleting", "files") as advance:
        result = sweep(store, grace, dry_run=dry_run, on_deleted=advance)
    verb = "would delete" if dry_run else "deleted"
    click.echo(f"{verb} {result.files:,} files, {result.bytes:,} bytes")


@checkpoints.command("recover")
@click.argument("directory", metavar="DIR")
@click.option(
    "--checkpoint",
    "checkpoint_id",
    type=click.IntRange(min=1),
    help="Checkpoint to use. Default: the newest intact one.",
)
@click.option("--program", metavar="MODULE:NAME", help="Program whose sinks are asked what they committed.")
@click.option("--force", is_flag=True, help="Even if a later checkpoint was committed. Its rows are committed again.")
@endpoint_url_option
def recover(
    directory: str, checkpoint_id: int | None, program: str | None, force: bool, endpoint_url: str | None
) -> None:
    """Rebuild the lost HEAD of the job in DIR from the newest intact checkpoint.

    Refuses if the leader object shows that a later checkpoint was committed. With --program it also asks the sinks.

    NAME is the program, or a function that builds it. FILE.py:NAME works too.
    """
    job, options = location_of(directory, endpoint_url), dict[str, Any]()
    if program is not None:
        from dagster_flinkpy.orchestration.program import load_program, program_committers

        loaded = load_program(program)

        def last_committed() -> int | None:
            with program_committers(loaded, job) as committers:
                return committers.last_committed()

        options["last_committed"] = last_committed
    with progress("reading", "files") as advance:
        result = recover_head(
            job,
            owner=owner_of("checkpoints recover"),
            now_ms=current_millis(),
            checkpoint_id=checkpoint_id,
            force=force,
            on_read=advance,
            **options,
        )
    click.echo(f"{directory} continues from checkpoint {result.checkpoint_id}")
    for line in result.damaged:
        click.echo(f"damaged: {line}")
    if result.partitions:
        first, last = result.partitions[0], result.partitions[-1]
        click.echo(f"found {len(result.partitions)} end states of partitions, {first} to {last}")
    if result.kept:
        names = ", ".join(f"chk-{i}" for i in result.kept)
        click.echo(
            f"older checkpoints are kept: {names}. 'flinkpy savepoint dispose' deletes those that you do not need"
        )
    if result.ids_after is not None and program is None:
        click.echo(
            f"checkpoint ids up to {result.ids_after} were used later. Usually these checkpoints failed. But if one of "
            "them was completed and is lost, its rows will be committed again. Use --program to ask the sinks."
        )


@checkpoints.command("stats")
@click.argument("directory", metavar="DIR")
@json_option("the statistics")
@endpoint_url_option
def checkpoint_statistics(directory: str, endpoint_url: str | None, as_json: bool) -> None:
    """Show checkpoint statistics of the job in DIR: counts, and its last checkpoints including failed ones."""
    store = CompletedCheckpointStore(StorageLocation(directory, endpoint_url).open())
    statistics = store.statistics()
    if not statistics.history and store.latest() is None:
        raise JobNotFoundError(
            f"no run of a job has stored anything in {store.store.url}. Give the folder of a job: 'flinkpy job list' "
            "shows the jobs of a folder of checkpoints"
        )
    if as_json:
        click.echo(json.dumps(statistics.to_json(), indent=2))
        return
    console, counts = console_of_width(), statistics.counts
    console.print(
        f"{counts.completed} completed, {counts.failed} failed, {counts.restored} restored, {counts.restarts} restarts"
    )
    numbers = plain_table("", "#last", "#min", "#p50", "#p99", "#max")
    for number in ("duration_ms", "state_bytes", "start_delay_ms", "alignment_ms"):
        if (s := statistics.summary(number)) is not None:
            numbers.add_row(number, *(f"{value:,}" for value in (s.last, s.minimum, s.p50, s.p99, s.maximum)))
    console.print(numbers)
    if (phases := next((each.phases for each in reversed(statistics.history) if each.phases), None)) is not None:
        names = phases.by_name()
        times = plain_table("#total ms", *(f"#{name}" for name in names), "#source to commit p50", "#p99")
        latencies = (phases.latency_ms_p50, phases.latency_ms_p99)
        times.add_row(*("-" if n is None else f"{n:,}" for n in (phases.total_ms, *names.values(), *latencies)))
        console.print("phases of the last committed checkpoint, in milliseconds; snapshot and upload are part of Spark")
        console.print(times)
    if (metrics := stored_job_metrics(store)) is not None:
        console.print(f"operators in checkpoint {metrics.checkpoint_id}")
        console.print(metrics_table(metrics.operators))
    table = plain_table(
        *("#checkpoint", "triggered", "kind", "status", "#duration ms"),
        *("#state bytes", "#growth", "#start delay ms", "#alignment ms", "acknowledged"),
    )
    for each, growth in statistics.with_growth():
        status = each.status.value if each.reason is None else f"{each.status.value} ({each.reason.name})"
        table.add_row(
            str(each.checkpoint_id),
            time_of(datetime_of_millis(each.trigger_ms)),
            each.kind.value,
            status,
            *(f"{value:,}" for value in (each.duration_ms, each.state_bytes)),
            "-" if growth is None else f"{growth:+,}",
            f"{each.start_delay_ms:,}",
            f"{each.alignment_ms:,}",
            f"{each.acknowledged}/{each.tasks}",
        )
    console.print(table)


def _jobs(store: ObjectStore) -> dict[str, CompletedCheckpointStore]:
    """Returns the job at the root of a store, or otherwise the jobs in its folders."""
    root = CompletedCheckpointStore(store)
    if root.list_checkpoints():
        return {store.url.rpartition("/")[2]: root}
    below = {folder.rstrip("/"): CompletedCheckpointStore(store.child(folder)) for folder in store.list_folders()}
    return {name: checkpoints for name, checkpoints in below.items() if checkpoints.list_checkpoints()}
