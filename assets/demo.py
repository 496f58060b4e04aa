"""``python -m assets.demo``: the flights pipeline through Dagster, rescaled half-way, and checked row by row.

February 2013 is read as daily checkpoints: two weeks at parallelism 2, a savepoint, a restore at parallelism 3, and the
other two weeks. Each checkpoint is a run that the checkpoint sensor asked for. All of it is recorded in a Dagster
instance under the home, so that ``dagster dev`` shows it.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from resources import CHECKPOINTS, HOME

DAGSTER_HOME = HOME / "dagster_home"
os.environ["DAGSTER_HOME"] = str(DAGSTER_HOME)

from dagster import BetaWarning, DagsterInstance, ExecuteInProcessResult, build_sensor_context  # noqa: E402
from dagster._core.storage.tags import RUN_KEY_TAG  # noqa: E402

from assets.definitions import DATA, FIRST_DAY, JOB, LAST_DAY, RAW_FILES, defs  # noqa: E402

__all__ = ["main"]

_SETTINGS = "telemetry:\n  enabled: false\nnux:\n  enabled: false\n"
_MOST_TICKS = 300
_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


class Demo:
    """One run of the demo.

    Args:
        instance: Where Dagster records it.
    """

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._sensor = defs.resolve_sensor_def(f"{JOB}_checkpoint_sensor")

    def run_job(self, name: str, config: Mapping[str, Any], tags: Mapping[str, str]) -> ExecuteInProcessResult:
        """Runs a job of the code location; its failure is raised."""
        return defs.resolve_job_def(name).execute_in_process(
            instance=self._instance, run_config={**config, **_QUIET}, tags=dict(tags)
        )

    def materialize_input(self) -> None:
        """Makes the daily files, as the asset that stands for them."""
        defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self._instance, asset_selection=[RAW_FILES], run_config=_QUIET
        )

    def checkpoint(self) -> None:
        """Asks the sensor until it wants a run, and runs it.

        Raises:
            TimeoutError: It does not, and says why.
        """
        for _ in range(_MOST_TICKS):
            context = build_sensor_context(instance=self._instance, resources={"checkpoint_storage": CHECKPOINTS})
            tick = self._sensor.evaluate_tick(context)
            for request in tick.run_requests or []:
                tags = {**request.tags, RUN_KEY_TAG: str(request.run_key)}
                self.run_job(str(request.job_name), request.run_config, tags)
                return
            time.sleep(0.1)
        raise TimeoutError(f"the checkpoint sensor asks for no run: {tick.skip_message}")

    def savepoint(self) -> str:
        """Runs the savepoint job; returns where the savepoint is."""
        result = self.run_job(f"{JOB}_savepoint", {}, {})
        return str(result.output_for_node(f"take_savepoint_of_{JOB}"))

    def restore(self, savepoint: str, parallelism: int) -> None:
        """Runs the restore job."""
        config = {"savepoint_path": savepoint, "parallelism": parallelism}
        self.run_job(f"{JOB}_restore", {"ops": {f"restore_{JOB}": {"config": config}}}, {})


def run(demo: Demo, console: Console, days: int) -> None:
    """Reads so many days, half of them before the restore."""
    half = days // 2
    with _progress(console, days) as advance:
        advance("Spark starts", 0)
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
    """A bar; where there is no terminal, lines."""
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
    """Prints what was committed and what should have been; says whether that is the same."""
    from assets.oracle import compare

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
    """An empty Dagster instance; of an earlier demo only the input stays."""
    for folder in ("checkpoints", "tables", "dagster_home"):
        shutil.rmtree(HOME / folder, ignore_errors=True)
    DAGSTER_HOME.mkdir(parents=True)
    (DAGSTER_HOME / "dagster.yaml").write_text(_SETTINGS)
    with DagsterInstance.get() as instance:
        yield instance


def main() -> int:
    """Runs the demo from scratch; returns the exit code."""
    warnings.simplefilter("ignore", BetaWarning)  # of Dagster, about itself: it copies sensors with their `owners`
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


if __name__ == "__main__":
    sys.exit(main())
