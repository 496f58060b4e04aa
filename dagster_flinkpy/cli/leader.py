"""``flinkpy leader``: shows which run leads a job, and releases the leadership."""

from __future__ import annotations

import json

import click
from rich.markup import escape
from rich.table import Table

from dagster_flinkpy.checkpoint.offline import release_leadership
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.cli.common import endpoint_url_option, json_option, owner_of
from dagster_flinkpy.cli.terminal import console_of_width, time_of
from dagster_flinkpy.common.clock import current_millis, datetime_of_millis
from dagster_flinkpy.storage import StorageLocation

__all__ = ["leader"]


@click.group()
def leader() -> None:
    """Show which run leads a job, or release its leadership.

    A run waits until the one that leads has ended; if that one has died, for a few seconds. So the leadership rarely
    needs to be released by hand.
    """


@leader.command("show")
@click.argument("directory", metavar="DIR")
@json_option("the leader")
@endpoint_url_option
def show_leader(directory: str, endpoint_url: str | None, as_json: bool) -> None:
    """Show which run leads the job in DIR, or led it last, and when its lease expires or expired."""
    record = CompletedCheckpointStore(StorageLocation(directory, endpoint_url).open()).leader()
    if record is None:
        raise click.ClickException(f"no run has ever led the job in {directory}")
    until = datetime_of_millis(record.expires_at)
    alive = record.alive(current_millis())
    if as_json:
        click.echo(json.dumps({**record.to_json(), "alive": alive}, indent=2))
        return
    if record.expires_at == 0:
        lease = "released"
    else:
        lease = f"until {time_of(until)}" if alive else f"expired at {time_of(until)}: the run was killed or hangs"
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("owner", escape(record.owner)),
        ("host", escape(record.host) or "-"),
        ("process", str(record.pid or "-")),
        ("run", escape(record.led_by) or "-"),
        ("token", str(record.token)),
        ("since", time_of(datetime_of_millis(record.acquired_at))),
        ("lease", lease),
        ("committed up to", "-" if record.committed is None else f"checkpoint {record.committed}"),
    ):
        facts.add_row(f"[bold]{name}[/]", value)
    console_of_width().print(facts)


@leader.command("release")
@click.argument("directory", metavar="DIR")
@click.option(
    "--force", is_flag=True, help="Release the leadership even if the run may be alive. Its current epoch is lost."
)
@endpoint_url_option
def release_leader(directory: str, force: bool, endpoint_url: str | None) -> None:
    """Take the leadership of the job in DIR from the run that holds it.

    That run can no longer complete a checkpoint or commit anything.
    """
    location = StorageLocation(directory, endpoint_url)
    record = CompletedCheckpointStore(location.open()).leader()
    if record is not None and record.alive(current_millis()) and not force:
        raise click.ClickException(f"{record.owner!r} may be running; use --force to take the leadership from it")
    former = release_leadership(location, owner=owner_of("leader release"), now_ms=current_millis())
    if former is None:
        raise click.ClickException(f"no run has ever led the job in {directory}")
    click.echo(f"{former.owner!r} (token {former.token}) no longer leads the job")
