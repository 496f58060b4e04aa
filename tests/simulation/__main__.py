"""``python -m tests.simulation --seed 7`` replays a seed and prints what happens; ``--seeds 10000`` runs many seeds."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.simulation.run import Outcome, simulate
from tests.simulation.source_mutations import MUTATIONS

_NOTICED = Path(__file__).with_name("noticed.json")
"""By mutation, the first seed that is tried: one that notices it, or did so before the library was changed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed, and print everything that happens")
    parser.add_argument("--seeds", type=int, default=300, help="number of seeds (default: 300)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--live", action="store_true", help="with live tasks in slots, instead of stand-ins for tasks")
    parser.add_argument(
        "--mutation",
        choices=list(MUTATIONS),
        metavar="RULE",
        help="break this rule of the library (see source_mutations.py)",
    )
    parser.add_argument(
        "--mutations", action="store_true", help="break each rule in turn; the simulation must notice all of them"
    )
    parser.add_argument("--known", action="store_true", help="only rules of which a seed is known that notices them")
    parser.add_argument("--write", action="store_true", help="note the seeds that notice them, for the next time")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    args = parser.parse_args()
    logging.getLogger("dagster_flinkpy").addHandler(logging.NullHandler())  # a store that fails is meant to
    seeds = range(args.first, args.first + args.seeds)
    if args.mutations:
        known = json.loads(_NOTICED.read_text())
        names = [name for name in MUTATIONS if name in known or not args.known]
        return _break_rules(names, args.seeds, args.workers, write=args.write)
    if args.seed is not None:
        outcome = simulate(args.seed, args.mutation, live=args.live)
        print("\n".join(outcome.trace))
        return _report(outcome)
    started = time.monotonic()
    failed: list[Outcome] = []
    attempts = checkpoints = requests = 0
    with ProcessPoolExecutor(args.workers) as pool:
        for outcome in pool.map(partial(simulate, mutation=args.mutation, live=args.live), seeds):
            attempts += outcome.attempts
            checkpoints += outcome.checkpoints
            requests += outcome.steps
            if outcome.violation is not None:
                failed.append(outcome)
                print(f"seed {outcome.seed}: {outcome.violation}", flush=True)
    print(
        f"seeds {args.first} to {args.first + args.seeds - 1}: {len(failed)} failed; {attempts} attempts, "
        f"{checkpoints} completed checkpoints, {requests} requests, in {time.monotonic() - started:.0f} s"
    )
    if failed:
        print(f"replay: python -m tests.simulation{' --live' if args.live else ''} --seed {failed[0].seed}")
    return 1 if failed else 0


def _break_rules(names: list[str], seeds: int, workers: int, *, write: bool) -> int:
    missed, started, noticed = 0, time.monotonic(), json.loads(_NOTICED.read_text())
    ranges = [range(first, first + seeds) for first in (noticed.get(name, 0) for name in names)]
    with ProcessPoolExecutor(workers) as pool:
        for name, outcome in zip(names, pool.map(_first_violation, names, ranges), strict=True):
            found = (
                f"seed {outcome.seed}: {(outcome.violation or '').strip().splitlines()[-1]}" if outcome else "MISSED"
            )
            print(f"{name}: {found}", flush=True)
            missed += outcome is None
            noticed |= {name: outcome.seed} if outcome else {}
    if write:
        _NOTICED.write_text(json.dumps({name: noticed[name] for name in MUTATIONS if name in noticed}, indent=1) + "\n")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{len(names) - missed} of {len(names)} broken rules were noticed within {seeds} seeds, in "
        f"{time.monotonic() - started:.0f} s, with {used.ru_utime + used.ru_stime:.0f} s of processor time"
    )
    return 1 if missed else 0


def _first_violation(mutation: str, seeds: range) -> Outcome | None:
    for seed in seeds:
        outcome = simulate(seed, mutation)
        if outcome.violation is None:
            continue
        if re.search(MUTATIONS[mutation].noticed, outcome.violation):
            return outcome
        if not outcome.violation.startswith("Violation"):
            raise RuntimeError(f"{mutation!r} breaks more than its rule: {outcome.violation}")
    return None


def _report(outcome: Outcome) -> int:
    print(
        f"seed {outcome.seed}: {outcome.violation or 'all invariants held'} ({outcome.attempts} attempts, "
        f"{outcome.checkpoints} completed checkpoints, {outcome.steps} requests, trace {outcome.digest[:12]})"
    )
    return 1 if outcome.violation else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of the replay
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
