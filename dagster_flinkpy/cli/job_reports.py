"""``flinkpy job show``, ``list`` and ``history``: how jobs are executed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from dagster_flinkpy.checkpoint.reports.event_time_holders import OperatorEventTime
from dagster_flinkpy.checkpoint.reports.execution_report import ExecutionReport, RunReport, read_execution_report
from dagster_flinkpy.checkpoint.reports.job_metrics import JobMetrics
from dagster_flinkpy.checkpoint.reports.job_overview import JobOverview, is_killed, job_overview, stored_report
from dagster_flinkpy.cli.common import endpoint_url_option, json_option
from dagster_flinkpy.cli.terminal import console_of_width, metrics_table, plain_table, time_of, watermark_of
from dagster_flinkpy.common.clock import datetime_of_millis
from dagster_flinkpy.storage import StorageLocation

__all__ = ["job_history", "list_jobs", "show_job"]

_STATES = ("CREATED", "SCHEDULED", "DEPLOYING", "RUNNING", "FINISHED", "CANCELING", "CANCELED", "FAILED")
_WATCH_SECONDS = 1.0
_wait = time.sleep


@click.command("show")
@click.argument("directory", metavar="DIR")
@click.option("--watch", is_flag=True, help="Show it again each second, until the run has ended or Ctrl+C.")
@json_option("the job")
@endpoint_url_option
def show_job(directory: str, endpoint_url: str | None, as_json: bool, watch: bool) -> None:
    """Show the last run of the job in DIR: its status, operators, restarts and failures, and where its time goes.

    A run stores this when it begins, after a checkpoint, at most every ten seconds, when something restarts, and when
    it ends. The numbers of operators are those of the last checkpoint. "flinkpy job ui" shows the same as a page.
    """
    store = StorageLocation(directory, endpoint_url).open()
    overview = job_overview(store)
    if as_json:
        if watch:
            raise click.UsageError("--watch and --json do not go together")
        click.echo(json.dumps(overview.to_json(), indent=2))
        return
    console = console_of_width()
    if not watch:
        console.print(_shown(overview))
        return
    with Live(_shown(overview), console=console, auto_refresh=False) as live:
        while overview.goes_on:
            _wait(_WATCH_SECONDS)
            overview = job_overview(store, overview)
            live.update(_shown(overview), refresh=True)


def _shown(overview: JobOverview) -> Group:
    report, phases, metrics = overview.report, overview.phases, overview.metrics
    parts: list[RenderableType] = [_facts(overview)]
    table = plain_table("operator", "name", "#region", "#subtasks", "state", "subtasks by state", "since", "#attempt")
    for each in report.vertices:
        states = ", ".join(f"{each.states[state]} {state}" for state in _STATES if state in each.states)
        numbers = str(each.region), str(each.parallelism)
        table.add_row(
            escape(each.uid), escape(each.name), *numbers, each.state, states, _time(each.since_ms), str(each.attempt)
        )
    parts.append(table)
    if phases is not None:
        names = phases.by_name()
        times = plain_table("last checkpoint: #total ms", *(f"#{name}" for name in names))
        times.add_row(f"{phases.total_ms:,}", *("-" if n is None else f"{n:,}" for n in names.values()))
        parts.append(times)
    if metrics is not None:
        parts.append(metrics_table(metrics.operators))
    if any(each.output is not None for each in overview.event_times.values()):
        parts.append(_event_times(overview.event_times))
    if report.failures:
        parts.append(_failures(report))
    return Group(*parts)


def _event_times(times: Mapping[str, OperatorEventTime]) -> Table:
    table = plain_table("operator", "event time", "waits for", "watermarks of its inputs")
    for uid, each in times.items():
        inputs = ", ".join(f"{escape(before)} {_watermark(sent)}" for before, sent in each.inputs.items())
        table.add_row(escape(uid), _watermark(each.output), escape(each.held_by or "-"), inputs or "-")
    return table


def _watermark(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else watermark_of(milliseconds)


@click.command("list")
@click.argument("directory", metavar="DIR")
@json_option("the jobs")
@endpoint_url_option
def list_jobs(directory: str, endpoint_url: str | None, as_json: bool) -> None:
    """List the jobs in DIR, a checkpoint storage, with the status of their last runs."""
    location = StorageLocation(directory, endpoint_url)
    names = [folder.rstrip("/") for folder in location.open().list_folders("")]
    found = {name: location.child(name).open() for name in names}
    reports = {name: (store, read_execution_report(store)[0]) for name, store in found.items()}
    jobs = {name: (store, report.run) for name, (store, report) in reports.items() if report is not None}
    if not jobs:
        raise click.ClickException(f"no job has stored how it was executed in {directory}")
    if as_json:
        facts = [{"job": n, **asdict(run), "killed": is_killed(store, run)} for n, (store, run) in jobs.items()]
        click.echo(json.dumps(facts, indent=2))
        return
    table = plain_table("job", "status", "since", "#restarts", "#checkpoint", "owner", "error")
    for name, (store, run) in jobs.items():
        table.add_row(escape(name), *_row(run, is_killed(store, run)))
    console_of_width().print(table)


@click.command("history")
@click.argument("directory", metavar="DIR")
@json_option("the runs")
@endpoint_url_option
def job_history(directory: str, endpoint_url: str | None, as_json: bool) -> None:
    """Show the last runs of the job in DIR, and the failures and earlier executions of the last one."""
    store = StorageLocation(directory, endpoint_url).open()
    report = stored_report(store)
    if as_json:
        every = [asdict(run) for run in (*report.earlier, report.run)]
        facts = asdict(report)
        executions = {each["uid"]: each["prior"] for each in facts["vertices"]}
        click.echo(json.dumps({"runs": every, "failures": facts["failures"], "prior_executions": executions}, indent=2))
        return
    console = console_of_width()
    runs = plain_table("run", "status", "began", "#restarts", "#checkpoint", "owner", "error")
    for run in (*report.earlier, report.run):
        killed = run is report.run and is_killed(store, run)
        runs.add_row(f"token {run.token}", *_row(run, killed))
    console.print(runs)
    table = plain_table("operator", "#attempt", "began", "#seconds", "subtasks by state")
    for each in report.vertices:
        for prior in each.prior:
            states = ", ".join(f"{prior.states[state]} {state}" for state in _STATES if state in prior.states)
            seconds = f"{(prior.ended_ms - prior.began_ms) / 1000:,.1f}"
            table.add_row(escape(each.uid), str(prior.attempt), _time(prior.began_ms), seconds, states)
    if table.row_count:
        console.print(table)
    if report.failures:
        console.print(_failures(report))


def _row(run: RunReport, killed: bool) -> tuple[str, ...]:
    checkpoint = "-" if run.checkpoint_id is None else str(run.checkpoint_id)
    return _status(run, killed), _time(run.began_ms), str(run.restarts), checkpoint, escape(run.owner), run.error


def _status(run: RunReport, killed: bool) -> str:
    return f"{run.status} when it was killed" if killed else run.status


def _facts(overview: JobOverview) -> Table:
    run, facts = overview.report.run, Table.grid(padding=(0, 2))
    for name, value in (
        ("status", f"{_status(run, overview.killed)}, as of {_time(run.at_ms)}"),
        ("run", f"{escape(run.owner)}, since {_time(run.began_ms)}, token {run.token}"),
        ("restarts", str(run.restarts)),
        ("last checkpoint", "-" if run.checkpoint_id is None else str(run.checkpoint_id)),
        ("local state", _local_state(overview.metrics)),
    ):
        facts.add_row(f"[bold]{name}[/]", value)
    return facts


def _local_state(metrics: JobMetrics | None) -> str:
    if metrics is None or "localStateTasks" not in metrics.job:
        return "-"
    hits, misses = (
        sum(int(each.total.get(name, 0)) for each in metrics.operators)
        for name in ("localStateHits", "localStateMisses")
    )
    tasks = f"{metrics.job['localStateTaskHits']} of {metrics.job['localStateTasks']} tasks"
    return f"{tasks} ran where their state is, with {hits} of {hits + misses} files"


def _failures(report: ExecutionReport) -> Table:
    table = plain_table("failed at", "#region", "operator", "#subtask", "#attempt", "error")
    for each in report.failures:
        where: list[Any] = [each.region, each.operator, each.subtask]
        shown = ["-" if value is None else escape(str(value)) for value in where]
        table.add_row(_time(each.at_ms), *shown, str(each.attempt), escape(f"{each.error}: {each.message}"))
    return table


def _time(millis: int) -> str:
    return time_of(datetime_of_millis(millis))
