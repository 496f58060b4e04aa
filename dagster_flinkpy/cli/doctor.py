"""``flinkpy doctor``."""

from __future__ import annotations

import click
from rich.markup import escape

from dagster_flinkpy.cli.common import endpoint_url_option
from dagster_flinkpy.cli.terminal import console_of_width
from dagster_flinkpy.doctor import Verdict, diagnose
from dagster_flinkpy.storage import StorageLocation

__all__ = ["doctor"]


@click.command()
@click.option("--storage", metavar="DIR", help="Checkpoint storage to check, too.")
@click.option("--spark", metavar="URL", help="Spark Connect server, such as sc://host:15002. Default: a local one.")
@endpoint_url_option
def doctor(storage: str | None, spark: str | None, endpoint_url: str | None) -> None:
    """Check whether this machine and its Spark can run jobs, and say how to fix what is missing."""
    location = None if storage is None else StorageLocation(storage, endpoint_url)
    colours = {Verdict.FINE: "green", Verdict.WARNING: "yellow", Verdict.BROKEN: "red"}
    console = console_of_width()
    broken = False
    with console.status("checking ..."):
        for finding in diagnose(location, remote=spark):
            broken |= finding.verdict is Verdict.BROKEN
            mark = f"[{colours[finding.verdict]}]{finding.verdict.value:>7}[/]"
            console.print(f"{mark}  [bold]{finding.what}[/]: {escape(finding.detail)}")
            if finding.advice:
                console.print(f"         [bold]->[/] {escape(finding.advice)}")
    if broken:
        raise SystemExit(1)
