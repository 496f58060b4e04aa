"""Runs the flights pipeline in Dagster, rescales it halfway, and checks the result row by row.

February 2013 is read in daily checkpoints: two weeks at parallelism 2, then a savepoint and a restore at parallelism 3,
then the other two weeks. The checkpoint sensor requests each run. Everything is recorded in a Dagster instance under
the demo's home, where ``dagster dev`` shows it.
"""

from __future__ import annotations

import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagster import BetaWarning, DagsterInstance, ExecuteInProcessResult, build_sensor_context
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from assets.definitions import DATA, FIRST_DAY, JOB, LAST_DAY, RAW_FILES, defs
from assets.demo.oracle import compare
from resources import CHECKPOINTS, HOME

__all__ = ["Demo", "main"]

DAGSTER_HOME = HOME / "dagster_home"

_SETTINGS = "telemetry:\n  enabled: false\nnux:\n  enabled: false\n"
_MOST_TICKS = 300
_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


class Demo:
    """One run of the demo.

    Args:
        instance: The Dagster instance that records the run.
    """

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._sensor = defs.resolve_sensor_def(f"{JOB}_checkpoint_sensor")

    def run_job(self, name: str, config: Mapping[str, Any], tags: Mapping[str, str]) -> ExecuteInProcessResult:
        """Runs a job of the code location, and raises its failure."""
        return defs.resolve_job_def(name).execute_in_process(
            instance=self._instance, run_config={**config, **_QUIET}, tags=dict(tags)
        )

    def materialize_input(self) -> None:
        """Writes the daily files by materializing their asset."""
        defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self._instance, asset_selection=[RAW_FILES], run_config=_QUIET
        )

    def checkpoint(self) -> None:
        """Ticks the sensor until it requests a run, and runs it.

        Raises:
            TimeoutError: The sensor requests no run; the message says why.
        """
        for _ in range(_MOST_TICKS):
            context = build_sensor_context(instance=self._instance, resources={"checkpoint_storage": CHECKPOINTS})
            tick = self._sensor.evaluate_tick(context)
            for request in tick.run_requests or []:
                self.run_job(str(request.job_name), request.run_config, request.tags)
                return
            time.sleep(0.1)
        raise TimeoutError(f"the checkpoint sensor requests no run: {tick.skip_message}")

    def savepoint(self) -> str:
        """Runs the savepoint job, and returns the path of the savepoint."""
        result = self.run_job(f"{JOB}_savepoint", {}, {})
        return str(result.output_for_node(f"take_savepoint_of_{JOB}"))

    def restore(self, savepoint: str, parallelism: int) -> None:
        """Runs the restore job."""
        config = {"savepoint_path": savepoint, "parallelism": parallelism}
        self.run_job(f"{JOB}_restore", {"ops": {f"restore_{JOB}": {"config": config}}}, {})


def run(demo: Demo, console: Console, days: int) -> None:
    """Reads a number of days, half of them before the restore."""
    half = days // 2
    with _progress(console, days) as advance:
        advance("starting Spark", 0)
        for _ in range(half):
            demo.checkpoint()
            advance("parallelism 2")
        advance("savepoint", 0)
        savepoint = demo.savepoint()
        advance("restore at parallelism 3", 0)
        demo.restore(savepoint, 3)
        for _ in range(days - half):
            demo.checkpoint()
            advance("parallelism 3")
    console.print(f"Savepoint after day {half}: {savepoint}", soft_wrap=True)


@contextmanager
def _progress(console: Console, days: int) -> Iterator[Callable[..., None]]:
    """Shows a progress bar, or prints lines if there is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("days"))
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=days)
        done = 0

        def advance(what: str, steps: int = 1) -> None:
            nonlocal done
            done += steps
            progress.update(task, advance=steps, description=what)
            if not console.is_terminal:
                console.print(f"{done:2} of {days} days: {what}")

        yield advance


def report(console: Console) -> bool:
    """Prints the committed tables next to the expected ones. Returns whether they are equal."""
    differences = compare(DATA, HOME / "tables", FIRST_DAY, LAST_DAY)
    table = Table("table", title=f"Committed from {FIRST_DAY} to {LAST_DAY}, compared row by row with DuckDB")
    for name in ("rows committed", "expected", "lost", "duplicated"):
        table.add_column(name, justify="right")
    for d in differences:
        table.add_row(d.table, *(f"{n:,}" for n in (d.committed, d.expected, d.lost, d.duplicated)))
    console.print(table)
    lost, duplicated = sum(d.lost for d in differences), sum(d.duplicated for d in differences)
    correct = lost == duplicated == 0
    console.print(f"{lost} lost, {duplicated} duplicated", style="bold green" if correct else "bold red")
    return correct


@contextmanager
def fresh_instance() -> Iterator[DagsterInstance]:
    """Opens an empty Dagster instance. Only the input of an earlier demo is kept."""
    for folder in ("checkpoints", "tables", "dagster_home"):
        shutil.rmtree(HOME / folder, ignore_errors=True)
    DAGSTER_HOME.mkdir(parents=True)
    (DAGSTER_HOME / "dagster.yaml").write_text(_SETTINGS)
    with DagsterInstance.from_config(str(DAGSTER_HOME)) as instance:
        yield instance


def main() -> int:
    """Runs the demo from scratch, and returns the exit code."""
    warnings.simplefilter(
        "ignore", BetaWarning
    )  # Dagster copies sensors with their `owners`, and then warns about its own call
    console = Console()
    with fresh_instance() as instance:
        demo = Demo(instance)
        console.print(f"Preparing the flights of 2013 in {DATA}")
        demo.materialize_input()
        run(demo, console, (LAST_DAY - FIRST_DAY).days + 1)
    correct = report(console)
    dagster = Path(sys.executable).with_name("dagster")
    console.print(f"Look at it: DAGSTER_HOME={DAGSTER_HOME} {dagster} dev -w workspace.yaml", soft_wrap=True)
    return 0 if correct else 1
