"""``flinkpy job upgrade``, ``switch`` and ``rollback``: another version of a job's program, with proof."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape

from dagster_flinkpy.cli.common import (
    endpoint_url_option,
    json_option,
    location_of,
    program_option,
    recompute_options,
    remote_option,
    run_options,
)
from dagster_flinkpy.cli.terminal import console_of_width, plain_table

if TYPE_CHECKING:
    from dagster_flinkpy.orchestration.upgrade import UpgradeReport

__all__ = ["rollback", "switch", "upgrade"]

_EXIT_UNKNOWN, _EXIT_DIFFERENT = 3, 4


@click.command("upgrade")
@click.argument("directory", metavar="DIR")
@program_option("The program as the job runs it", "--from")
@program_option("The program as it shall be", "--to")
@click.option("--at", metavar="chk-N|SAVEPOINT", help="Where both start. Default: the oldest checkpoint that is kept.")
@click.option("--epochs", type=click.IntRange(min=1), help="Epochs that both run. Default: those completed since.")
@recompute_options
@remote_option
@json_option("the report")
@endpoint_url_option
def upgrade(
    directory: str,
    at: str | None,
    epochs: int | None,
    remote: str | None,
    endpoint_url: str | None,
    as_json: bool,
    **more: Any,
) -> None:
    """Run two versions of a program on the last input of the job in DIR, and compare the rows of their sinks.

    Both run on forks, and write to a folder beside DIR, which is deleted afterwards. The job goes on, and its tables
    are not touched. Exits with 0 if the rows are the same, with 1 if the new program cannot continue from the state,
    with 3 if nothing can be said, and with 4 if rows differ.
    """
    from dagster_flinkpy.orchestration.program import load_program
    from dagster_flinkpy.orchestration.upgrade import UpgradeVerdict, prove_upgrade

    old, new = load_program(more.pop("from")), load_program(more.pop("to"))
    with run_options("job upgrade", remote) as options:
        report = prove_upgrade(old, new, location_of(directory, endpoint_url), at=at, epochs=epochs, **options, **more)
    if as_json:
        facts = {
            "verdict": report.verdict.value,
            "since": report.since,
            "epochs": report.epochs,
            "plan": report.plan.to_json(),
            "problems": report.problems,
            "tables": [{**asdict(table), "same": table.same} for table in report.tables],
        }
        click.echo(json.dumps(facts, indent=2, default=str))
    else:
        _print(report, console_of_width())
    exits = {
        UpgradeVerdict.SAME: 0,
        UpgradeVerdict.REFUSED: 1,
        UpgradeVerdict.UNKNOWN: _EXIT_UNKNOWN,
        UpgradeVerdict.DIFFERENT: _EXIT_DIFFERENT,
    }
    click.get_current_context().exit(exits[report.verdict])


@click.command("switch")
@click.argument("directory", metavar="DIR")
@program_option("The new program", "--to")
@click.option("--keep", metavar="NAME", help="Name of the fork with the old state. Default: DIR's name and _before.")
@recompute_options
@remote_option
@endpoint_url_option
def switch(
    directory: str,
    to: str,
    keep: str | None,
    remote: str | None,
    endpoint_url: str | None,
    **recompute: Any,
) -> None:
    """Bring the state of the job in DIR to a new program, before the next record is read. No run may be at work.

    Deploy the new program before the next run. 'flinkpy job rollback' goes back as long as the fork is kept.
    """
    from dagster_flinkpy.orchestration.program import load_program
    from dagster_flinkpy.orchestration.upgrade import switch_program

    with run_options("job switch", remote) as options:
        options |= {"keep": keep, **recompute}
        checkpoint_id = switch_program(load_program(to), location_of(directory, endpoint_url), **options)
    click.echo(f"the new program continues {directory} from checkpoint {checkpoint_id}")


@click.command("rollback")
@click.argument("directory", metavar="DIR")
@program_option("The old program", "--to")
@click.option("--kept", metavar="NAME", help="Name of the fork with the old state. Default: DIR's name and _before.")
@remote_option
@endpoint_url_option
def rollback(directory: str, to: str, kept: str | None, remote: str | None, endpoint_url: str | None) -> None:
    """Bring the job in DIR back to its old program, which has kept its state in a fork. No run may be at work.

    The old program first reads on the fork what the new one has read meanwhile, without writing it.
    """
    from dagster_flinkpy.orchestration.program import load_program
    from dagster_flinkpy.orchestration.upgrade import roll_back

    with run_options("job rollback", remote) as options:
        checkpoint_id = roll_back(load_program(to), location_of(directory, endpoint_url), kept=kept, **options)
    click.echo(f"the old program continues {directory} from checkpoint {checkpoint_id}")


def _print(report: UpgradeReport, console: Console) -> None:
    for line in (*report.plan.evolution.lines, *report.plan.parallelism, *report.plan.of_recomputation):
        console.print(escape(line), soft_wrap=True)
    rows = plain_table("sink", "#rows before", "#rows after", "#only before", "#only after", "#changed keys", "columns")
    for each in report.tables:
        counts = (each.before, each.after, each.only_before, each.only_after)
        changed = "-" if each.changed_keys is None else f"{each.changed_keys:,}"
        rows.add_row(escape(each.sink), *(f"{n:,}" for n in counts), changed, escape("; ".join(each.columns)))
    if report.tables:
        console.print(rows)
    for each in report.tables:
        for side, examples in (("before", each.examples_before), ("after", each.examples_after)):
            for example in examples:
                console.print(escape(f"{each.sink}, only {side}: {example}"), soft_wrap=True)
    for problem in (*report.problems, *filter(None, [report.plan.problem])):
        console.print(escape(problem), soft_wrap=True)
    console.print(f"{report.verdict.value}: checkpoint {report.since} and {report.epochs} epochs")
