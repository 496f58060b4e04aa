"""``flinkpy job show``, ``list`` and ``history``: how jobs are executed."""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from dagster_flinkpy.checkpoint.execution_report import ExecutionReport, RunReport, read_execution_report
from dagster_flinkpy.checkpoint.job_metrics import JobMetrics, stored_job_metrics
from dagster_flinkpy.checkpoint.phases import CheckpointPhases
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.cli.common import endpoint_url_option, json_option
from dagster_flinkpy.cli.metrics_table import metrics_table
from dagster_flinkpy.cli.terminal import console_of_width, plain_table, time_of
from dagster_flinkpy.common.clock import current_millis, datetime_of_millis
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.storage import ObjectStore, StorageLocation

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

    A run stores this after a checkpoint, at most every ten seconds, when something restarts, and when it ends. The
    numbers of operators are those of the last checkpoint.
    """
    store = StorageLocation(directory, endpoint_url).open()
    if as_json:
        if watch:
            raise click.UsageError("--watch and --json do not go together")
        _print_json(store)
        return
    console = console_of_width()
    shown, goes_on = _shown(store)
    if not watch:
        console.print(shown)
        return
    with Live(shown, console=console, auto_refresh=False) as live:
        while goes_on:
            _wait(_WATCH_SECONDS)
            shown, goes_on = _shown(store)
            live.update(shown, refresh=True)


def _print_json(store: ObjectStore) -> None:
    report = _report(store)
    phases, metrics = _numbers(store)
    facts = report.to_json()
    del facts["earlier"]
    facts |= {"killed": _killed(store, report.run), "phases": None if phases is None else phases.by_name()}
    facts["metrics"] = {} if metrics is None else {each.uid: dict(each.total) for each in metrics.operators}
    facts["job_metrics"] = {} if metrics is None else dict(metrics.job)
    click.echo(json.dumps(facts, indent=2))


def _numbers(store: ObjectStore) -> tuple[CheckpointPhases | None, JobMetrics | None]:
    """Returns the phases of the last checkpoint that has some, and the metrics of the last one."""
    checkpoints = CompletedCheckpointStore(store)
    phases = next((each.phases for each in reversed(checkpoints.statistics().history) if each.phases), None)
    return phases, stored_job_metrics(checkpoints)


def _shown(store: ObjectStore) -> tuple[Group, bool]:
    """Returns what is shown of a job, and whether its run goes on."""
    report = _report(store)
    run, killed = report.run, _killed(store, report.run)
    phases, metrics = _numbers(store)
    parts: list[RenderableType] = [_facts(run, killed, metrics)]
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
    if report.failures:
        parts.append(_failures(report))
    return Group(*parts), not (killed or JobStatus[run.status].is_terminal_state())


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
        facts = [{"job": n, **run.to_json(), "killed": _killed(store, run)} for n, (store, run) in jobs.items()]
        click.echo(json.dumps(facts, indent=2))
        return
    table = plain_table("job", "status", "since", "#restarts", "#checkpoint", "owner", "error")
    for name, (store, run) in jobs.items():
        table.add_row(escape(name), *_row(run, _killed(store, run)))
    console_of_width().print(table)


@click.command("history")
@click.argument("directory", metavar="DIR")
@json_option("the runs")
@endpoint_url_option
def job_history(directory: str, endpoint_url: str | None, as_json: bool) -> None:
    """Show the last runs of the job in DIR, and the failures and earlier executions of the last one."""
    store = StorageLocation(directory, endpoint_url).open()
    report = _report(store)
    if as_json:
        every = [run.to_json() for run in (*report.earlier, report.run)]
        facts = report.to_json()
        executions = {each["uid"]: each["prior"] for each in facts["vertices"]}
        click.echo(json.dumps({"runs": every, "failures": facts["failures"], "prior_executions": executions}, indent=2))
        return
    console = console_of_width()
    runs = plain_table("run", "status", "began", "#restarts", "#checkpoint", "owner", "error")
    for run in (*report.earlier, report.run):
        killed = run is report.run and _killed(store, run)
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


def _report(store: ObjectStore) -> ExecutionReport:
    report, _ = read_execution_report(store)
    if report is None:
        raise click.ClickException(f"no run has stored how the job in {store.url} was executed")
    return report


def _killed(store: ObjectStore, run: RunReport) -> bool:
    """Returns whether a run has not ended, as far as is known, but does not lead the job any more."""
    if JobStatus[run.status].is_terminal_state():
        return False
    leader = CompletedCheckpointStore(store).leader()
    return leader is None or leader.token != run.token or not leader.alive(current_millis())


def _row(run: RunReport, killed: bool) -> tuple[str, ...]:
    checkpoint = "-" if run.checkpoint_id is None else str(run.checkpoint_id)
    return _status(run, killed), _time(run.began_ms), str(run.restarts), checkpoint, escape(run.owner), run.error


def _status(run: RunReport, killed: bool) -> str:
    return f"{run.status} when it was killed" if killed else run.status


def _facts(run: RunReport, killed: bool, metrics: JobMetrics | None) -> Table:
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("status", f"{_status(run, killed)}, as of {_time(run.at_ms)}"),
        ("run", f"{escape(run.owner)}, since {_time(run.began_ms)}, token {run.token}"),
        ("restarts", str(run.restarts)),
        ("last checkpoint", "-" if run.checkpoint_id is None else str(run.checkpoint_id)),
        ("local state", _local_state(metrics)),
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
