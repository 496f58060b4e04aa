"""Stateful programs in Python, beside those of other engines: seven programs, one input, one output.

Ours runs on a warm Spark session, takes a checkpoint for each slice of the input, and writes Parquet files. Its time
has the fixed costs of the Spark job. Peers take no checkpoints unless their settings say so, and discard their output;
their rate is the difference of two runs of different length in one warmed-up process, so that their start does not
count. Each peer's output on a small input must equal ours before it is timed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from benchmarks.report import line
from benchmarks.stateful import ours
from benchmarks.stateful.checker import parquet_rows
from benchmarks.stateful.input import Input
from benchmarks.stateful.peers import PEERS, Peer, Rates, measure
from benchmarks.stateful.programs import PROGRAMS
from benchmarks.stateful.rules import PARTITIONS

EVENTS, KEYS, PER_CHECKPOINT, ROUNDS = 1_000_000, 10_000, 100_000, 3
CHECKED_EVENTS, CHECKED_KEYS, CHECKED_PER_SLICE, CHECKED_STEP = 20_000, 500, 5_000, 10

Lines = list[dict[str, Any]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this benchmark."""
    parser.add_argument("--program", nargs="*", choices=PROGRAMS, help="default: all")
    parser.add_argument("--events", type=int, default=EVENTS, help="events of our runs; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each of ours runs; default: %(default)s")


def run(
    peers: tuple[str, ...] = (),
    *,
    program: Sequence[str] | None = None,
    events: int = EVENTS,
    rounds: int = ROUNDS,
) -> Iterator[dict[str, Any]]:
    """Yields the rates of each program, and the ratios to those of the peers.

    Args:
        peers: Names of :data:`~benchmarks.stateful.peers.PEERS` that begin with one of these run, too.
        program: The programs. Default: all.
        events: Number of events of our runs.
        rounds: How often each of ours runs; the median counts.
    """
    names = tuple(program or PROGRAMS)
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as temporary:
        folder = Path(temporary)
        small = Input(folder / "small", CHECKED_EVENTS, CHECKED_KEYS, CHECKED_PER_SLICE, step=CHECKED_STEP)
        rates = _ours(folder, small, names, events, rounds)
        for name in names:
            yield from _rates(name, rates[name], _settings(events, rounds))
        for peer in PEERS:
            if not peer.name.startswith(tuple(peers)) or not peers:
                continue
            for name in filter(peer.programs.__contains__, names):
                wanted = parquet_rows(folder / "small" / name / "output")
                try:
                    theirs = measure(peer, name, folder, small, wanted, KEYS)
                except (RuntimeError, TimeoutExpired) as error:
                    print(f"{peer.what} has failed, {name} is left out: {error}", file=sys.stderr)
                    continue
                yield from _versus(peer, name, rates[name], theirs, _settings(events, rounds))


def _ours(folder: Path, small: Input, names: Iterable[str], events: int, rounds: int) -> dict[str, Rates]:
    source = Input(folder / "input", events, KEYS, min(PER_CHECKPOINT, events), csv_too=False)
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with ours.session(folder / "spark"):
        for name in names:
            ours.run_program(name, small, folder / "small" / name, PARTITIONS)  # also warms up
        for number in range(rounds):
            for name in names:
                measured[name].append(ours.run_program(name, source, folder / f"{name}-{number}", PARTITIONS))
    rates = {}
    for name, each in measured.items():
        rows = source.rows(*PROGRAMS[name].tables)
        seconds, cpu_seconds = (statistics.median(values) for values in zip(*each, strict=True))
        rates[name] = Rates(rows / seconds, rows / cpu_seconds)
    return rates


def _settings(events: int, rounds: int) -> dict[str, Any]:
    return {
        "events": events,
        "keys": KEYS,
        "parallelism": PARTITIONS,
        "events per checkpoint": PER_CHECKPOINT,
        "source": "Parquet",
        "sink": "Parquet, in transactions",
        "rounds": rounds,
    }


def _rates(name: str, rates: Rates, settings: dict[str, Any], side: str = "") -> Lines:
    metric = f"stateful.{name}{side}"
    return [
        line(f"{metric}_rows_per_s", rates.per_second, "rows/s", settings=settings),
        line(f"{metric}_rows_per_cpu_s", rates.per_cpu_second, "rows/CPU s", settings=settings),
    ]


def _versus(peer: Peer, name: str, own: Rates, theirs: Rates, settings: dict[str, Any]) -> Lines:
    few, many = peer.events(name)
    tuning = {**peer.settings, "events": many - few}
    both = {"ours": settings, "peer": tuning}
    ratios = ((own.per_second / theirs.per_second, ""), (own.per_cpu_second / theirs.per_cpu_second, "_cpu"))
    return [
        *_rates(name, theirs, tuning, f"_{peer.name}"),
        *(
            line(
                f"stateful.{name}_vs_{peer.name}{suffix}",
                ratio,
                f"ratio of rate{' by CPU time' if suffix else ''}",
                peer=peer.what,
                bar=f">= {peer.bars[PROGRAMS[name].kind]}",
                settings=both,
            )
            for ratio, suffix in ratios
        ),
    ]
