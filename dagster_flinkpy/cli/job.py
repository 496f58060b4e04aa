"""``flinkpy job``: asks a running job for something; ``fork``, ``forks`` and ``dispose``."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from dagster_flinkpy.checkpoint.forks.fork import fork_job, list_forks
from dagster_flinkpy.checkpoint.forks.job_disposal import dispose_job
from dagster_flinkpy.checkpoint.requests import Answer, JobRequests, Order, RequestKind
from dagster_flinkpy.checkpoint.traces import find_traces
from dagster_flinkpy.cli.common import (
    drain_option,
    endpoint_url_option,
    json_option,
    location_of,
    owner_of,
    savepoint_type_option,
    target_option,
)
from dagster_flinkpy.cli.terminal import console_of_width, plain_table, time_of
from dagster_flinkpy.common.configuration import parse_duration
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import JobNotFoundError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["ask_job", "job"]


@click.group()
def job() -> None:
    """Ask the running job in DIR for something, or look at its runs.

    A request goes through the store. A run looks for requests every two seconds. Without a running job, 'flinkpy
    savepoint' works on the stored checkpoints.
    """


def _timeout(context: click.Context, option: click.Parameter, value: str) -> timedelta:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_timeout_option = click.option(
    "--timeout",
    default="10 min",
    show_default=True,
    callback=_timeout,
    metavar="DURATION",
    help="How long to wait. A request that no run has taken by then is withdrawn.",
)


def ask_job(location: StorageLocation, what: str, timeout: timedelta, **order: Any) -> Answer:
    """Asks a running job for something, and waits for the answer.

    Args:
        location: The folder of the job.
        what: The command, as the owner of the request.
        timeout: How long to wait.
        **order: The arguments of :class:`~dagster_flinkpy.checkpoint.requests.Order`.

    Raises:
        RequestFailedError: No run is at work, or it has refused the request, or has not answered in time.
    """
    asker = JobRequests(location, owner_of(what))
    with Console(stderr=True).status(escape(f"waiting for the run of {location.url} ...")):
        return asker.ask(Order(**order), timeout)


def folder_url(path: str | None, endpoint_url: str | None) -> str | None:
    """Returns the URL of the folder that an option names."""
    return None if path is None else location_of(path, endpoint_url).url


@job.command("checkpoint")
@click.argument("directory", metavar="DIR")
@_timeout_option
@endpoint_url_option
def checkpoint(directory: str, timeout: timedelta, endpoint_url: str | None) -> None:
    """Take a checkpoint now, whatever the checkpoint interval, and print its path."""
    location = location_of(directory, endpoint_url)
    answer = ask_job(location, "job checkpoint", timeout, kind=RequestKind.CHECKPOINT)
    click.echo(f"{location.url}/chk-{answer.checkpoint_id}")


@job.command("savepoint")
@click.argument("directory", metavar="DIR")
@target_option
@savepoint_type_option
@_timeout_option
@endpoint_url_option
def savepoint(
    directory: str, target: str | None, format_type: SavepointFormatType, timeout: timedelta, endpoint_url: str | None
) -> None:
    """Take a savepoint of the running job, and print its path. The job runs on."""
    answer = ask_job(
        location_of(directory, endpoint_url),
        "job savepoint",
        timeout,
        kind=RequestKind.SAVEPOINT,
        target=folder_url(target, endpoint_url),
        format_type=format_type,
    )
    click.echo(answer.savepoint)


@job.command("stop")
@click.argument("directory", metavar="DIR")
@target_option
@savepoint_type_option
@drain_option
@_timeout_option
@endpoint_url_option
def stop(
    directory: str,
    target: str | None,
    format_type: SavepointFormatType,
    drain: bool,
    timeout: timedelta,
    endpoint_url: str | None,
) -> None:
    """Stop the running job with a savepoint, and print its path.

    The job stays stopped until a savepoint is restored.
    """
    answer = ask_job(
        location_of(directory, endpoint_url),
        "job stop",
        timeout,
        kind=RequestKind.STOP,
        target=folder_url(target, endpoint_url),
        format_type=format_type,
        drain=drain,
    )
    click.echo(answer.savepoint)


@job.command("cancel")
@click.argument("directory", metavar="DIR")
@_timeout_option
@endpoint_url_option
def cancel(directory: str, timeout: timedelta, endpoint_url: str | None) -> None:
    """Cancel the running job at once. What it has read since its last checkpoint is read again by the next run."""
    ask_job(location_of(directory, endpoint_url), "job cancel", timeout, kind=RequestKind.CANCEL)
    click.echo(f"the run of {directory} was cancelled")


@job.command("rescale")
@click.argument("directory", metavar="DIR")
@click.argument("parallelism", type=click.IntRange(min=1))
@_timeout_option
@endpoint_url_option
def rescale(directory: str, parallelism: int, timeout: timedelta, endpoint_url: str | None) -> None:
    """Give the operators of the running job PARALLELISM subtasks, from its next checkpoint on.

    Operators that set their own parallelism keep it. Later runs keep the new one.
    """
    location = location_of(directory, endpoint_url)
    ask_job(location, "job rescale", timeout, kind=RequestKind.RESCALE, parallelism=parallelism)
    click.echo(f"{directory} runs with parallelism {parallelism}")


@job.command("fork")
@click.argument("directory", metavar="DIR")
@click.option("--as", "name", required=True, metavar="NAME", help="Name of the new job. Its folder is beside DIR.")
@click.option(
    "--at",
    metavar="chk-N|SAVEPOINT",
    help="Checkpoint, or savepoint in DIR, to continue from. Default: the latest checkpoint.",
)
@endpoint_url_option
def fork(directory: str, name: str, at: str | None, endpoint_url: str | None) -> None:
    """Create a job NAME that continues from the state of the job in DIR, which may be running.

    No state is copied. Give NAME a program whose sinks write elsewhere: it refuses to write to the tables of DIR.
    """
    job = location_of(directory, endpoint_url)
    checkpoint_id = fork_job(job, name, at=at, owner=owner_of("job fork"))
    click.echo(f"{job.parent.child(name).url} continues from checkpoint {checkpoint_id}")


@job.command("forks")
@click.argument("directory", metavar="DIR")
@json_option("the forks")
@endpoint_url_option
def forks(directory: str, endpoint_url: str | None, as_json: bool) -> None:
    """List the forks of the job in DIR."""
    job = location_of(directory, endpoint_url)
    found = list_forks(job)
    if not found and not find_traces(job.open()).found:
        raise JobNotFoundError(f"there is no job in {job.url}")
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2, default=lambda when: when.isoformat()))
        return
    table = plain_table("fork", "forked", "#latest checkpoint", "#files of the job it needs")
    for each in found:
        when = "-" if each.forked_at is None else time_of(each.forked_at)
        when = when if each.finished else f"not finished, {when}"
        latest = "-" if each.checkpoint_id is None else str(each.checkpoint_id)
        table.add_row(escape(each.job_id), when, latest, f"{each.files:,}")
    console_of_width().print(table)


@job.command("dispose")
@click.argument("directory", metavar="DIR")
@click.option("--yes", is_flag=True, help="Do not ask.")
@endpoint_url_option
def dispose(directory: str, yes: bool, endpoint_url: str | None) -> None:
    """Delete the job in DIR with its checkpoints, such as a fork that is not needed any more. Its tables stay.

    Files that forks of the job need stay until these no longer need them.
    """
    job = location_of(directory, endpoint_url)
    if not yes and (traces := find_traces(job.open())).found:
        click.confirm(f"Delete {job.url} for ever, with {traces}?", abort=True, err=True)
    dispose_job(job, owner=owner_of("job dispose"))
    need = ", ".join(each.job_id for each in list_forks(job) if each.files)
    click.echo(f"{directory} is deleted" + (f", but for files that its forks need: {need}" if need else ""))
