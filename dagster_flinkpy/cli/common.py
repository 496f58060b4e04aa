"""Options, locations and owner names that several commands share."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import click

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME
from dagster_flinkpy.cli.terminal import lines_of
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.storage import StorageLocation

__all__ = [
    "allow_options",
    "drain_option",
    "endpoint_url_option",
    "json_option",
    "location_of",
    "owner_of",
    "program_option",
    "recompute_options",
    "remote_option",
    "run_options",
    "savepoint_type_option",
    "target_option",
]

_Command = Callable[..., None]

endpoint_url_option = click.option(
    "--endpoint-url", metavar="URL", help="Address of an S3 server other than Amazon's, such as http://127.0.0.1:9000."
)

target_option = click.option(
    "--target", metavar="PATH", help="Folder to write the savepoint to. Default: the folder of the job."
)
savepoint_type_option = click.option(
    "--type",
    "format_type",
    type=click.Choice([each.name.lower() for each in SavepointFormatType]),
    default="canonical",
    show_default=True,
    callback=lambda context, option, name: SavepointFormatType[name.upper()],
    help="canonical: self-contained. native: refers to files of the job's checkpoints and must stay next to them.",
)
drain_option = click.option(
    "--drain", is_flag=True, help="Advance event time to its end first, so that all timers fire."
)

remote_option = click.option("--remote", metavar="URL", help="Spark Connect server, sc://host. Default: a local one.")

_ALLOW = (
    click.option(
        "--allow-non-restored-state",
        "allow_all",
        is_flag=True,
        help="Leave all state behind whose operator no longer exists.",
    ),
    click.option(
        "--allow-non-restored-uid",
        "allowed_uids",
        metavar="UID",
        multiple=True,
        help="Leave the state of this operator behind, which no longer exists. Repeatable.",
    ),
)
_RECOMPUTE = (
    click.option(
        "--recompute",
        metavar="UID",
        multiple=True,
        help="Let this operator and all that follow start empty, and read their input again. Repeatable.",
    ),
    click.option(
        "--recompute-changed",
        is_flag=True,
        help="Recompute all operators that have changed since the latest checkpoint, too.",
    ),
    click.option(
        "--since",
        metavar="chk-N",
        help="Read again only what came after this checkpoint. Default: all input of the job.",
    ),
)


def program_option(
    what: str = "The program", option: str = "--program", *, required: bool = True
) -> Callable[[_Command], _Command]:
    """Builds an option that names a program."""
    text = f"{what}, or the function that builds it; FILE.py:NAME works too."
    return click.option(option, metavar="MODULE:NAME", required=required, help=text)


def allow_options(command: _Command) -> _Command:
    """Adds the options that say which state may be left behind, as one argument: ``allow_non_restored_state``."""

    @wraps(command)
    def with_both(*, allow_all: bool, allowed_uids: tuple[str, ...], **options: Any) -> None:
        command(allow_non_restored_state=allow_all or allowed_uids, **options)

    return _with(_ALLOW, with_both)


def recompute_options(command: _Command) -> _Command:
    """Adds the options that say what is recomputed: ``recompute``, ``recompute_changed`` and ``since``."""
    return _with(_RECOMPUTE, command)


def _with(options: Sequence[Callable[[_Command], _Command]], command: _Command) -> _Command:
    for option in reversed(options):
        command = option(command)
    return command


def json_option(what: str) -> Callable[[_Command], _Command]:
    """Builds the option ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


def location_of(path: str, endpoint_url: str | None) -> StorageLocation:
    """Returns the folder that an argument names; the ``_metadata`` in it stands for the folder."""
    return StorageLocation(path.rstrip("/").removesuffix(f"/{METADATA_NAME}"), endpoint_url)


def owner_of(command: str) -> str:
    """Returns the owner that a command enters in the leader record of a job: the command, its user and the host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container, it may have no name
        user = f"uid {os.getuid()}"
    return f"flinkpy {command} by {user} on {socket.gethostname()}"


@contextmanager
def run_options(what: str, remote: str | None) -> Iterator[dict[str, Any]]:
    """Yields the options of a run that a command starts. Its progress goes to the terminal.

    Args:
        what: The command, as the owner of the run.
        remote: The Spark Connect server. Default: a local one.
    """
    from dagster_flinkpy.orchestration.resources import SparkResource

    spark = SparkResource() if remote is None else SparkResource(mode="remote", remote=remote)
    with lines_of(what) as on_progress:
        yield {"spark": spark, "owner": owner_of(what), "on_progress": on_progress}
