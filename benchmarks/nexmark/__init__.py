"""Nexmark: the queries of an auction site, beside Flink SQL. https://github.com/nexmark/nexmark.

Each query is a job from Parquet files to nowhere, or to Parquet files with ``--output``. What a run of a tenth of the
events takes is subtracted, so that what a job takes to start does not count. CPU time counts more than the clock: it
means the same while other work runs on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import line
from dagster_flinkpy.spark.server_state import RUNTIME_DIR_VARIABLE

if TYPE_CHECKING:
    from benchmarks.nexmark.program import Used

SHARE = 10
"""The run that is subtracted has one in so many events."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this benchmark."""
    parser.add_argument("--query", nargs="*", metavar="Q", help="queries, such as q5; default: all")
    parser.add_argument("--events", type=int, default=1_000_000, help="events to generate; default: %(default)s")
    parser.add_argument("--input", type=Path, metavar="DIR", help="where events are kept; default: they are not")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where results go; those of peers must equal them")
    parser.add_argument("--parallelism", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--checkpoint-every", type=int, metavar="EVENTS", help="default: one checkpoint, at the end")
    parser.add_argument("--rescale-to", type=int, metavar="P", help="parallelism to continue with after a savepoint")
    parser.add_argument("--local", action="store_true", help="run our tasks in this process, without Spark")


def run(
    peers: tuple[str, ...] = (),
    *,
    query: Sequence[str] | None = None,
    events: int = 1_000_000,
    input: Path | None = None,
    output: Path | None = None,
    parallelism: int = 2,
    checkpoint_every: int | None = None,
    rescale_to: int | None = None,
    local: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yields the rates of each query, and how they compare with those of peers."""
    from benchmarks.nexmark import generator, program
    from benchmarks.nexmark.queries import QUERIES

    names = list(query or QUERIES)
    if unknown := sorted(set(names) - set(QUERIES)):
        raise SystemExit(f"unknown queries {', '.join(unknown)}; the queries are {', '.join(QUERIES)}")
    if rescale_to is not None and checkpoint_every is None:
        raise SystemExit("--rescale-to needs --checkpoint-every: a job is stopped between two checkpoints")
    plain = program.Settings(parallelism, checkpoint_every, local=local)
    whole = replace(plain, rescale_to=rescale_to)
    few = max(events // SHARE, 50)
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as scratch:
        os.environ[RUNTIME_DIR_VARIABLE] = scratch  # a Spark server of our own, whose CPU time is ours
        folder = input or Path(scratch) / "events"
        generator.write(folder / "few", generator.Events(few))
        generator.write(folder / "all", generator.Events(events))
        program.run(names[0], folder / "few", plain)  # warms up
        ours: dict[str, Used] = {}
        for name in names:
            out = None if output is None else output / name
            less = program.used(partial(program.run, name, folder / "few", plain))
            ours[name] = program.used(partial(program.run, name, folder / "all", whole, out)) - less
            yield from _rates(name, "", events - few, ours[name], asdict(whole) | {"events": events})
        if "flinksql" in peers:
            yield from _beside_flink_sql(ours, folder / "all", parallelism, events, few, output)


def _beside_flink_sql(
    ours: dict[str, Used], folder: Path, parallelism: int, events: int, few: int, output: Path | None
) -> Iterator[dict[str, Any]]:
    from benchmarks.nexmark import flink_sql, results
    from benchmarks.nexmark.program import Used
    from benchmarks.nexmark.queries import QUERIES

    peer, ratios = "Flink SQL, state on the heap", []
    # The first run warms up.
    for name, runs in zip(ours, flink_sql.seconds(list(ours), folder, parallelism, [events, few, events]), strict=True):
        less, more = (Used(seconds, cpu) for cpu, seconds in runs[1:])
        theirs, stateful = more - less, QUERIES[name].stateful
        yield from _rates(name, "flink_sql_", events - few, theirs, flink_sql.settings())
        bar, cpu_ratio = ">= 1" if stateful else "", theirs.cpu_seconds / ours[name].cpu_seconds
        rate_ratio = theirs.seconds / ours[name].seconds
        yield line(f"nexmark.{name}_vs_flink_sql", rate_ratio, "ratio of rate", peer=peer, bar=bar)
        yield line(f"nexmark.{name}_vs_flink_sql_cpu", cpu_ratio, "ratio of CPU time", peer=peer, bar=bar)
        ratios += [cpu_ratio] if stateful else []
    if ratios:
        mean = statistics.geometric_mean(ratios)
        yield line("nexmark.vs_flink_sql_cpu", mean, "geometric mean of stateful queries", peer=peer, bar=">= 2")
    if output is None:
        return
    same = [name for name in ours if QUERIES[name].deterministic]
    for name, theirs in zip(same, flink_sql.results(same, folder, parallelism), strict=True):
        if found := results.differences(QUERIES[name], results.read(output / name), theirs):
            raise AssertionError(f"{name} differs from Flink SQL: {found}")
        yield line(f"nexmark.{name}_equals_flink_sql", 1, "whether results are equal", peer="Flink SQL", bar=">= 1")


def _rates(name: str, side: str, events: int, used: Used, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        line(f"nexmark.{name}_{side}events_per_s", events / used.seconds, "events/s", settings=settings),
        line(f"nexmark.{name}_{side}events_per_cpu_s", events / used.cpu_seconds, "events/CPU s", settings=settings),
    ]
