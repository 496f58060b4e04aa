"""Options, locations and owner names that several commands share."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable

import click

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.storage import StorageLocation

__all__ = [
    "allow_all_option",
    "allow_uids_option",
    "drain_option",
    "endpoint_url_option",
    "json_option",
    "location_of",
    "owner_of",
    "program_option",
    "recompute_options",
    "savepoint_type_option",
    "target_option",
]

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

program_option = click.option(
    "--program", metavar="MODULE:NAME", help="The program, or the function that builds it; FILE.py:NAME works too."
)
allow_all_option = click.option(
    "--allow-non-restored-state", is_flag=True, help="Leave all state behind whose operator no longer exists."
)
allow_uids_option = click.option(
    "--allow-non-restored-uid",
    "allowed_uids",
    metavar="UID",
    multiple=True,
    help="Leave the state of this operator behind, which no longer exists. Repeatable.",
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


def recompute_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that say what is recomputed: ``recompute``, ``recompute_changed`` and ``since``."""
    for option in reversed(_RECOMPUTE):
        command = option(command)
    return command


def json_option(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
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
