"""Another engine that runs Nexmark queries in SQL, in a process of its own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.nexmark.generator import FILE_EVENTS
from benchmarks.nexmark.program import Used
from benchmarks.nexmark.queries import QUERIES, build
from benchmarks.peers.process import answers
from dagster_flinkpy.datastream import StreamExecutionEnvironment

__all__ = ["Peer"]


@dataclass(frozen=True, eq=False)
class Peer:
    """Another engine.

    Args:
        name: Its name in metrics.
        what: Its name for people.
        program: The file that its Python runs.
        python: Returns its Python.
        sql: The queries that it can run.
        settings: How it is tuned.
        in_batches: Whether it can commit after a number of files; otherwise it takes no checkpoints.
        bar: How many times its rate ours must be for a stateful query.
        mean_bar: The same for the geometric mean.
        closed_only: Fields with a time, by query. Only results whose time is long before the end are compared, because
            the engine does not write windows that are open when the input ends.
    """

    name: str
    what: str
    program: Path
    python: Callable[[], Path]
    sql: Mapping[str, str]
    settings: dict[str, str]
    in_batches: bool
    bar: float
    mean_bar: float | None = None
    closed_only: Mapping[str, str] = field(default_factory=dict)

    def files_per_batch(self, checkpoint_every: int | None) -> int | None:
        """Returns how many files of each table make a micro-batch, or None for all.

        Args:
            checkpoint_every: The events between two checkpoints; None for one, at the end.

        Raises:
            SystemExit: They are not a number of whole files.
        """
        if checkpoint_every is None or not self.in_batches:
            return None
        files, more = divmod(checkpoint_every, FILE_EVENTS)
        if more or not files:
            raise SystemExit(f"{self.what} takes files of {FILE_EVENTS} events: pass a multiple to --checkpoint-every")
        return files

    def used(
        self, names: Sequence[str], warm: Path, few: Path, all_: Path, parallelism: int, files_per_batch: int | None
    ) -> Iterator[tuple[str, Used, Used]]:
        """Yields what each query takes for few and for all events, after a run to warm up.

        All run in one process; another one goes on after a query that fails, which is told and left out. There are no
        checkpoints but what a micro-batch needs.
        """
        left = list(names)
        while left:
            try:
                for runs in self._answers(left, [warm, few, all_], parallelism, files_per_batch, measure=True):
                    less, more = (Used(seconds, cpu) for cpu, seconds in runs[1:])
                    yield left.pop(0), less, more
            except RuntimeError as error:
                print(f"{self.what} has failed, {left.pop(0)} is left out: {error}", file=sys.stderr)

    def results(
        self, names: Sequence[str], folder: Path, parallelism: int, files_per_batch: int | None = None
    ) -> Iterator[pa.Table]:
        """Yields the result of each query, with the columns of ours."""
        answers = self._answers(names, [folder], parallelism, files_per_batch, measure=False)
        for name, rows in zip(names, answers, strict=True):
            yield pa.table({f: [_value(f, each[i]) for each in rows] for i, f in enumerate(_fields(name))})

    def _answers(
        self, names: Sequence[str], folders: list[Path], parallelism: int, files_per_batch: int | None, *, measure: bool
    ) -> Iterator[Any]:
        queries = []
        for name in names:
            reads = {table: list(columns) for table, columns in QUERIES[name].reads.items()}
            append = not QUERIES[name].key and QUERIES[name].deterministic
            queries.append({"sql": self.sql[name], "reads": reads, "append": append})
        order = {
            "queries": queries,
            "folders": [str(each) for each in folders],
            "parallelism": parallelism,
            "files_per_batch": files_per_batch,
            "configuration": self.settings,
            "measure": measure,
        }
        with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as scratch:
            yield from answers(self.python(), self.program, {**order, "scratch": scratch})


def _fields(name: str) -> list[str]:
    made = build(name, StreamExecutionEnvironment.get_execution_environment(), Path("/"))
    return list(made.get_type().get_field_names())  # type: ignore[attr-defined]


def _value(name: str, value: Any) -> Any:
    if name == "day":
        return date.fromisoformat(value)
    return Decimal(value) if name == "price" and isinstance(value, str) else value
