"""What tests of DataFrames share: records, and how jobs are run, inspected and made to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import ProcessFunction
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import StorageError
from tests.runtime.harness import HarnessAttempt, collected

__all__ = ["COUNTED_LONGS", "ID", "RECORDS", "Where", "fail_once", "fails", "parts", "run"]

ID = Types.ROW_NAMED(["id"], [Types.LONG()])
COUNTED_LONGS = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])
RECORDS = [("a", 1, 2), ("b", 2, 3), ("a", 3, 5), ("c", 4, 7), ("b", 50, 1), ("a", 60, 1)]


def run(graph: JobGraph, folder: Path, *, epochs: int | None = None, **options: Any) -> list[Any]:
    """Runs a job to its end or for some epochs, and returns the collected records."""
    records: list[Any] = []
    with HarnessAttempt(graph, folder, **options) as attempt:
        while not attempt.finished and (epochs is None or epochs > 0):
            attempt.run_epoch()
            epochs = None if epochs is None else epochs - 1
            if "collect" in {v.uid for v in graph.vertices}:
                records += collected(attempt.graph, attempt.collected)
    return records


def parts(folder: Path, uid: str) -> list[str]:
    """Returns the names of the attempts that have parts in the store."""
    found = (folder / "job" / "exchange" / uid / "parts").rglob("*.arrow")
    return sorted({path.parent.name.partition(".")[0] for path in found})


def fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the write of the checkpoint fail once, after everything else is done."""
    with_metadata = "dagster_flinkpy.runtime.master.job.CompletedCheckpointStore.write_metadata"

    def fails(*_: Any) -> None:
        raise StorageError("the store is away")

    monkeypatch.setattr(with_metadata, fails)


class Where(ProcessFunction):
    """Emits the subtask of a record, the record, and its event time."""

    def open(self, runtime_context: Any) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield self._subtask, value[0], ctx.timestamp()


def fails(_: Any) -> Any:
    """What makes a DataFrame, and cannot."""
    raise KeyError("no such table")
