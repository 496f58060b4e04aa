"""Nexmark: the queries of an auction site, beside Flink SQL and Spark. https://github.com/nexmark/nexmark.

Each query is a job from Parquet files to nowhere, or to Parquet files with ``--output``. What a run of a tenth of the
events takes is subtracted, so that what a job takes to start does not count; both come after a run to warm up, with all
events or the tenth if that is long enough, on each side. CPU time counts more than the clock: it means the same while
other work runs on the machine.
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
    from benchmarks.nexmark.peer import Peer
    from benchmarks.nexmark.program import Used

SHARE = 10
"""The run that is subtracted has one in so many events."""
WARM = 500_000
"""Events that are enough to warm up."""
OPEN = 20_000
"""Milliseconds at the end of the events in which windows may be open."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this benchmark."""
    parser.add_argument("--query", nargs="*", metavar="Q", help="queries, such as q5; default: all")
    parser.add_argument("--events", type=int, default=1_000_000, help="events to generate; default: %(default)s")
    parser.add_argument("--input", type=Path, metavar="DIR", help="where events are kept; default: they are not")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where results go; those of peers must equal them")
    parser.add_argument("--parallelism", type=int, default=2, help="default: %(default)s")
    every = "default: one checkpoint, at the end. Spark commits as often; it needs a multiple of 500,000"
    parser.add_argument("--checkpoint-every", type=int, metavar="EVENTS", help=every)
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
    files = {peer: peer.files_per_batch(checkpoint_every) for peer in _peers(peers)}
    few = max(events // SHARE, 50)
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as scratch:
        os.environ[RUNTIME_DIR_VARIABLE] = scratch  # a Spark server of our own, whose CPU time is ours
        folder = input or Path(scratch) / "events"
        generator.write(folder / "few", generator.Events(few))
        generator.write(folder / "all", generator.Events(events))
        warm = folder / ("few" if few >= WARM else "all")
        ours: dict[str, Used] = {}
        for name in names:
            out = None if output is None else output / name
            program.run(name, warm, plain)
            less = program.used(partial(program.run, name, folder / "few", plain))
            ours[name] = program.used(partial(program.run, name, folder / "all", whole, out)) - less
            yield from _rates(name, "", events - few, ours[name], asdict(whole) | {"events": events})
        for peer, of_batch in files.items():
            yield from _beside(peer, ours, folder, warm, parallelism, of_batch, events, few, output)


def _peers(names: Sequence[str]) -> list[Peer]:
    from benchmarks.nexmark.flink_sql import FLINK_SQL
    from benchmarks.nexmark.spark_sql import SPARK

    return [peer for name, peer in (("flinksql", FLINK_SQL), ("spark", SPARK)) if name in names]


def _beside(
    peer: Peer,
    ours: dict[str, Used],
    folder: Path,
    warm: Path,
    parallelism: int,
    files: int | None,
    events: int,
    few: int,
    output: Path | None,
) -> Iterator[dict[str, Any]]:
    from benchmarks.nexmark import generator, results
    from benchmarks.nexmark.queries import QUERIES

    names, ratios = [name for name in ours if name in peer.sql], []
    measured = peer.used(names, warm, folder / "few", folder / "all", parallelism, files)
    tuning = dict(peer.settings)
    if peer.in_batches:
        tuning["files of a table per micro-batch"] = "all" if files is None else str(files)
    for name, less, more in measured:
        theirs, stateful = more - less, QUERIES[name].stateful
        yield from _rates(name, f"{peer.name}_", events - few, theirs, tuning)
        bar, cpu_ratio = f">= {peer.bar}" if stateful else "", theirs.cpu_seconds / ours[name].cpu_seconds
        rate_ratio = theirs.seconds / ours[name].seconds
        versus = f"nexmark.{name}_vs_{peer.name}"
        yield line(versus, rate_ratio, "ratio of rate", peer=peer.what, bar=bar)
        yield line(f"{versus}_cpu", cpu_ratio, "ratio of CPU time", peer=peer.what, bar=bar)
        ratios += [cpu_ratio] if stateful else []
    if ratios:
        mean, bar = statistics.geometric_mean(ratios), "" if peer.mean_bar is None else f">= {peer.mean_bar}"
        unit = "geometric mean of stateful queries"
        yield line(f"nexmark.vs_{peer.name}_cpu", mean, unit, peer=peer.what, bar=bar)
    if output is None:
        return
    closed = generator.Events(events).end - OPEN
    same = [name for name in names if QUERIES[name].deterministic]
    for name, result in zip(same, peer.results(same, folder / "all", parallelism, files), strict=True):
        pair = [results.read(output / name), result]
        if name in peer.closed_only:
            pair = [results.before(each, peer.closed_only[name], closed) for each in pair]
        if found := results.differences(QUERIES[name], *pair):
            raise AssertionError(f"{name} differs from {peer.what}: {found}")
        yield line(f"nexmark.{name}_equals_{peer.name}", 1, "whether results are equal", peer=peer.what, bar=">= 1")


def _rates(name: str, side: str, events: int, used: Used, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        line(f"nexmark.{name}_{side}events_per_s", events / used.seconds, "events/s", settings=settings),
        line(f"nexmark.{name}_{side}events_per_cpu_s", events / used.cpu_seconds, "events/CPU s", settings=settings),
    ]
