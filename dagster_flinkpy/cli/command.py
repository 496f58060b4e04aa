"""The command ``flinkpy``: its groups, and how errors are shown."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import click

from dagster_flinkpy.cli.checkpoints import checkpoints
from dagster_flinkpy.cli.doctor import doctor
from dagster_flinkpy.cli.job import job
from dagster_flinkpy.cli.job_page import job_ui
from dagster_flinkpy.cli.job_reports import job_history, list_jobs, show_job
from dagster_flinkpy.cli.job_upgrade import rollback, switch, upgrade
from dagster_flinkpy.cli.leader import leader
from dagster_flinkpy.cli.savepoint import savepoint
from dagster_flinkpy.cli.state import state
from dagster_flinkpy.cli.transactions import transactions
from dagster_flinkpy.errors import FlinkPyError

__all__ = ["main"]


class _Commands(click.Group):
    """Prints an error of the library without a traceback, in the lines of its message."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever reads the output has enough, such as `head`
            raise
        except (FlinkPyError, OSError) as error:
            lines = (" ".join(line.split()) for line in str(error).splitlines())
            raise click.ClickException("\n".join(filter(None, lines)) or type(error).__name__) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dagster-flinkpy")
def main() -> None:
    """Show and manage the checkpoints, savepoints and state of dagster-flinkpy jobs.

    DIR and PATH are local paths or s3://bucket/prefix.
    """
    if sys.stdout is None:  # closed by the shell, as with `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not know bars or names


for _command in (show_job, list_jobs, job_history, job_ui, upgrade, switch, rollback):
    job.add_command(_command)
for _command in (job, checkpoints, savepoint, leader, state, transactions, doctor):
    main.add_command(_command)
