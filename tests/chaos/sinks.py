"""The kill matrix of the sinks: ``python -m tests.chaos.sinks [SINK ...] [--random 50] [--write PAGE]``.

Jobs are killed at each step, and at random times. A fifth of them only sleep (SIGSTOP) while another attempt finishes
the job, and then continue. In the end the table must have each record once, and nothing may be left open.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_flinkpy.errors import FencedError, FlinkPyError
from tests.chaos.sink_job import Order, left_open, run, steps_of
from tests.chaos.sink_targets import RECORDS, TARGETS, Place, Target, running_server
from tests.forks import processes
from tests.waiting import LIMIT

__all__ = ["Case", "Outcome", "named_cases", "random_cases", "run_case", "run_once"]

_SLEEP_SECONDS = 5
"""A sleeping process may hold a lock. After this time it wakes up while the other attempt waits."""
_ATTEMPTS = 4
_SLEEPERS = 5
"""Of so many cases, one sleeps."""
_SIDE_BY_SIDE = 2


@dataclass(frozen=True)
class Case:
    """How a job is killed."""

    step: str = ""
    """A step of the second epoch; empty for a random time."""
    recovery: str = ""
    """A step of the recovery after the first kill, at which the next attempt is killed."""
    sleeps: bool = False
    """Whether the last of these processes sleeps instead."""
    share: float = 0.0
    """The random time, as a share of the time of a straight run."""

    def __str__(self) -> str:
        where = " / recovery ".join(filter(None, (self.step, self.recovery))) or f"at {self.share:.0%}"
        return where + (" (sleeps)" if self.sleeps else "")


@dataclass(frozen=True)
class Outcome:
    """What a case has led to."""

    case: Case
    lost: int
    doubled: int
    left_open: int
    attempts: int
    errors: tuple[str, ...]
    """Errors of the attempts after the kill, and what the sleeper says if it is not that it was fenced."""

    @property
    def exact(self) -> bool:
        return not (self.lost or self.doubled or self.left_open)


def named_cases(target: Target) -> Iterator[Case]:
    """Yields a case for each step, and for each step of a recovery."""
    steps = [(step, "") for step in steps_of(target)]
    steps += [("before commit", step) for step in ("before commit", *target.amid, "after commit", "after abort")]
    steps += [("after pre-commit", step) for step in ("before abort", "after abort")]
    for number, (step, recovery) in enumerate(steps):
        yield Case(step, recovery)
        if number % (_SLEEPERS - 1) == 0:
            yield Case(step, recovery, sleeps=True)


def random_cases(number: int, seed: int = 0) -> Iterator[Case]:
    """Yields cases at random times."""
    times = random.Random(seed)
    for each in range(number):
        yield Case(share=times.random(), sleeps=each % _SLEEPERS == 0)


class _Process:
    """A process that runs an attempt."""

    def __init__(self, order: Order) -> None:
        self._pipe, other = processes.Pipe()
        self._process = processes.Process(target=run, args=(order, other), daemon=True)
        self._process.start()
        other.close()
        self._at_first = self.said()

    def said(self, seconds: float = LIMIT) -> Any:
        """Waits for what the process says next. Returns ``dead`` if it dies instead, or None if the time is over."""
        try:
            return self._pipe.recv() if self._pipe.poll(seconds) else None
        except EOFError:
            return "dead"

    def signal(self, number: int) -> None:
        assert self._process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def end(self) -> None:
        self._process.join(LIMIT)
        if self._process.is_alive():
            self.signal(signal.SIGKILL)
            raise AssertionError("the process does not end")
        self._process.close()
        self._pipe.close()


def _started(case: Case, name: str, place: Place, seconds: float) -> _Process | None:
    """Starts the process of a case and kills it, or lets it sleep. Returns None if it has finished before."""
    if case.recovery:
        _killed_at(Order(name, place, case.step)).end()
        return _killed_at(Order(name, place, case.recovery, recovering=True, sleeps=case.sleeps))
    if case.step:
        return _killed_at(Order(name, place, case.step, sleeps=case.sleeps))
    process = _Process(Order(name, place))
    if (said := process.said(seconds * case.share)) is not None:
        assert said == "finished", said
        process.end()
        return None
    process.signal(signal.SIGSTOP if case.sleeps else signal.SIGKILL)
    return process


def _killed_at(order: Order) -> _Process:
    process = _Process(order)
    said = process.said()
    if said != "caught":
        raise AssertionError(f"the job did not come to step {order.step!r}: {said!r}")
    return process


def run_case(case: Case, name: str, make: Callable[[], Place], seconds: float = 0.0, *, broken: str = "") -> Outcome:
    """Runs a case.

    Args:
        case: The case.
        name: Name of the sink.
        make: Makes a place.
        seconds: How long a straight run takes.
        broken: A rule that attempts after the kill break.
    """
    target = TARGETS[name]
    while True:
        place = make()
        target.prepare(place)
        process = _started(case, name, place, seconds)
        if process is not None:
            break
        seconds *= 0.9  # it was faster this time
    errors, attempts, sleeper = [], 0, process if case.sleeps else None
    if sleeper is None:
        process.end()
    for _ in range(_ATTEMPTS):
        attempts += 1
        other = _Process(Order(name, place, broken=broken))
        said = other.said(_SLEEP_SECONDS if sleeper is not None else LIMIT)
        if said is None and sleeper is not None:
            sleeper.signal(signal.SIGCONT)
            said = other.said()
        other.end()
        if said == "finished":
            break
        if not isinstance(said, FlinkPyError):
            raise AssertionError(f"{name}, {case}: {said!r}") from (said if isinstance(said, Exception) else None)
        errors.append(f"{type(said).__name__}: {said}")
    if sleeper is not None:
        sleeper.signal(signal.SIGCONT)
        said = sleeper.said()
        assert said in ("finished", "dead") or isinstance(said, FlinkPyError), (name, case, said)
        if isinstance(said, FlinkPyError) and not isinstance(said, FencedError):
            errors.append(f"the sleeper: {type(said).__name__}: {said}")
        sleeper.end()
        assert run_once(Order(name, place)) == "finished"  # it aborts what the sleeper has left open
    found, expected = Counter(target.read(place)), Counter(value for _, _, value in RECORDS)
    lost, doubled = expected - found, found - expected
    return Outcome(case, lost.total(), doubled.total(), left_open(target, place), attempts, tuple(errors))


def run_once(order: Order) -> Any:
    """Runs an attempt, and returns what it says in the end: ``finished``, or its error."""
    process = _Process(order)
    said = process.said()
    process.end()
    return said


def _straight_seconds(name: str, make: Callable[[], Place]) -> float:
    """Returns how long a run takes that nothing disturbs."""
    took = []
    for _ in range(3):
        place = make()
        TARGETS[name].prepare(place)
        start = time.monotonic()
        assert run_once(Order(name, place)) == "finished"
        took.append(time.monotonic() - start)
    return min(took)


# --- the whole matrix -------------------------------------------------------------------------------------------------

_BEGIN, _END = "<!-- kill matrix of the sinks: begin -->", "<!-- end -->"


def _row(title: str, outcomes: Sequence[Outcome]) -> str:
    named = sum(bool(outcome.case.step) for outcome in outcomes)
    sums = [sum(getattr(outcome, name) for outcome in outcomes) for name in ("lost", "doubled", "left_open")]
    sleepers = sum(outcome.case.sleeps for outcome in outcomes)
    cells = [title, named, len(outcomes) - named, sleepers, len(outcomes) * len(RECORDS), *sums]
    return "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells) + " |"


def _table(results: dict[str, list[Outcome]]) -> str:
    head = "| sink | kills at a step | at a random time | of them zombies | records | lost | doubled | left open |"
    rows = [_row(TARGETS[name].title, outcomes) for name, outcomes in results.items()]
    return "\n".join([head, "|" + " --- |" * 8, *rows])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.sinks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SINK", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument("--random", type=int, default=50, metavar="N", help="kills at random times; default: 50")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table into this page")
    arguments = parser.parse_args()
    results: dict[str, list[Outcome]] = {}
    for name in arguments.names or TARGETS:
        target = TARGETS[name]
        with tempfile.TemporaryDirectory() as folder, running_server(target.server, Path(folder)) as make:
            seconds = _straight_seconds(name, make)
            cases = [*named_cases(target), *random_cases(arguments.random, arguments.seed)]
            with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
                outcomes = list(pool.map(lambda case: run_case(case, name, make, seconds), cases))  # noqa: B023
        results[name] = outcomes
        for outcome in outcomes:
            if outcome.errors or not outcome.exact:
                print(f"{name}, {outcome}", flush=True)
        print(_row(target.title, outcomes), flush=True)
    if arguments.write:
        page = arguments.write.read_text()
        block = f"{_BEGIN}\n{_table(results)}\n{_END}"
        arguments.write.write_text(re.sub(f"{_BEGIN}.*?{_END}", lambda _: block, page, count=1, flags=re.DOTALL))
    return 0 if all(outcome.exact for each in results.values() for outcome in each) else 1


if __name__ == "__main__":
    sys.exit(main())
