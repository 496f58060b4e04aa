"""Options, locations and owner names that several commands share."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable

import click

from dagster_flinkpy.storage import StorageLocation

endpoint_url_option = click.option(
    "--endpoint-url", metavar="URL", help="Address of an S3 server other than Amazon's, such as http://127.0.0.1:9000."
)


def json_option(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Builds the option ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


def location_of(path: str, endpoint_url: str | None) -> StorageLocation:
    """Returns the folder that an argument names."""
    return StorageLocation(path.rstrip("/"), endpoint_url)


def owner_of(command: str) -> str:
    """Returns the owner that a command enters in the leader record of a job: the command, its user and the host."""
    return f"flinkpy {command} by {getpass.getuser()} on {socket.gethostname()}"
