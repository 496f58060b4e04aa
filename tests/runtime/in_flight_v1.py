"""The program whose checkpoint was written by the first release that lets barriers overtake a blocking edge.

Neither it nor what it wrote, ``tests/fixtures/metadata/v1/in-flight``, ever changes.
``python -m tests.runtime.in_flight_v1 FOLDER`` wrote the fixture.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

FIXTURES = Path(__file__).parents[1] / "fixtures" / "metadata" / "v1" / "in-flight"
EPOCHS_BEFORE = 2
RECORDS = [(f"k{i % 3}", i, i) for i in range(16)]
SETTINGS = {"checkpointing": CoordinatorConfig(unaligned=True)}


def program() -> JobGraph:
    stream = events(environment(2), RECORDS, per_epoch=4).blocking()
    return collect_graph(stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts"))


def run(folder: Path, epochs: int | None = None, **options: Any) -> list[Any]:
    """Runs the job for some epochs, or to its end, and returns what it has counted."""
    with HarnessAttempt(program(), folder, config=SETTINGS, **options) as attempt:
        return [r for _ in attempt.run_epochs(epochs) for r in collected(attempt.graph, attempt.collected)]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    run(target, EPOCHS_BEFORE)
    for folder in [target / "cache", *target.rglob(".flinkpy")]:
        shutil.rmtree(folder, ignore_errors=True)
