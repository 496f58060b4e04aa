"""``flinkpy job fork``, ``forks`` and ``dispose``: jobs that continue from the state of others."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.markup import escape

from dagster_flinkpy.checkpoint.forks.fork import fork_job, list_forks
from dagster_flinkpy.checkpoint.forks.job_disposal import dispose_job
from dagster_flinkpy.checkpoint.traces import find_traces
from dagster_flinkpy.cli.common import endpoint_url_option, json_option, location_of, owner_of
from dagster_flinkpy.cli.terminal import console_of_width, plain_table, time_of
from dagster_flinkpy.errors import JobNotFoundError

__all__ = ["dispose", "fork", "forks"]


@click.command("fork")
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


@click.command("forks")
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


@click.command("dispose")
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
