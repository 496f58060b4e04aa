"""Runs one seed: attempts come and go, overtake each other and crash. At the end one runs undisturbed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

from dagster_flinkpy.checkpoint import requests
from dagster_flinkpy.checkpoint.requests import RequestKind
from dagster_flinkpy.checkpoint.savepoints import savepoint
from dagster_flinkpy.errors import CheckpointTimeoutError, FlinkPyError
from dagster_flinkpy.runtime.master import job as job_loop
from dagster_flinkpy.runtime.master.commits import commit_retries
from dagster_flinkpy.runtime.master.requests import taken_requests
from dagster_flinkpy.runtime.master.requests.taken_requests import TakenRequests
from dagster_flinkpy.runtime.master.watchdog import Watchdog
from dagster_flinkpy.storage import lease
from tests.simulation.invariants import Invariants
from tests.simulation.job import SimulatedState, SimulatedTransactions
from tests.simulation.live_rules import LiveInvariants
from tests.simulation.program import Scenario, simulate_in
from tests.simulation.slots import live_tasks
from tests.simulation.source_mutations import MUTATIONS
from tests.simulation.supervisor import Supervisor
from tests.simulation.world import SerialExecutor, Violation, World

__all__ = ["Outcome", "simulate"]


@dataclass(frozen=True)
class Outcome:
    """The result of a seed."""

    seed: int
    violation: str | None
    digest: str
    """Digest of everything that happened. It is the same for every run of the seed."""
    steps: int
    attempts: int
    checkpoints: int
    trace: tuple[str, ...]


@contextmanager
def _one_thread(world: World, invariants: Invariants) -> Iterator[None]:
    """Makes the clock, the thread pools and the random names of the library follow the world."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("dagster_flinkpy.") and hasattr(module, "ThreadPoolExecutor"):
                stack.enter_context(mock.patch.object(module, "ThreadPoolExecutor", SerialExecutor))
        stack.enter_context(mock.patch.object(savepoint, "in_daemon_threads", _one_by_one))
        stack.enter_context(mock.patch.object(Watchdog, "run", _watchdog(world)))
        for clock in ("_now", "_wall"):
            stack.enter_context(mock.patch.object(job_loop, clock, world.clock))
        stack.enter_context(mock.patch.object(commit_retries, "_sleep", world.sleep))
        stack.enter_context(mock.patch.object(job_loop, "JobState", SimulatedState))
        stack.enter_context(mock.patch.object(job_loop, "Transactions", SimulatedTransactions))
        token_hex = SimpleNamespace(token_hex=lambda n: f"{world.rng.getrandbits(8 * n):0{2 * n}x}")
        look_interval = timedelta(milliseconds=100) if world.chaos.requests else timedelta(minutes=1)
        stack.enter_context(mock.patch.object(taken_requests, "LOOK_INTERVAL", look_interval))
        for module in (savepoint, lease, requests):
            stack.enter_context(mock.patch.object(module, "secrets", token_hex))
        stack.enter_context(mock.patch.object(TakenRequests, "epoch_ended", _epoch_ended(invariants)))
        simulate_in(world)
        yield


def _one_by_one(function: Callable[[Any], object], items: Iterable[Any], number: int) -> None:
    for item in items:
        function(item)


def _epoch_ended(invariants: Invariants) -> Callable[..., None]:
    """Returns a method of the requests that also says which checkpoint is to serve which requests."""
    real = TakenRequests.epoch_ended

    def epoch_ended(requests: TakenRequests, checkpoint_id: int) -> None:
        real(requests, checkpoint_id)
        for request in requests.bound.get(checkpoint_id, ()):
            if request.order.kind is RequestKind.CHECKPOINT:
                invariants.requests.bind(request.request_id, checkpoint_id)

    return epoch_ended


def _watchdog(world: World) -> Callable[..., Any]:
    """Returns a watchdog that runs steps without a thread. A hanging step continues as a separate actor."""

    def run(watchdog: Watchdog, what: str, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if watchdog._hung is not None:
            raise watchdog._hung
        if not world.chaos.step_hangs or world.rng.random() >= world.chaos.step_hangs:
            return step(*args, **kwargs)

        def go_on() -> None:
            world.sleep(world.rng.choice((0.1, 5, 100, 1_000)))
            with suppress(FlinkPyError):
                step(*args, **kwargs)

        world.note(f"{what} hangs")
        if world.rng.random() < 0.7:
            world.spawn(world.current.name, go_on)
        watchdog._hung = CheckpointTimeoutError(what)
        raise watchdog._hung

    return run


def simulate(seed: int, mutation: str | None = None, *, live: bool = False) -> Outcome:
    """Runs one seed to its end, or to the first invariant that does not hold.

    Args:
        seed: Determines everything that happens.
        mutation: A rule of the library to break.
        live: Whether the tasks are the library's own, and live in slots. Default: stand-ins for tasks of Spark.
    """
    broken = MUTATIONS[mutation] if mutation else None
    live = live or (broken is not None and broken.live)
    chaos = dict(broken.chaos) if broken else {}
    world = World(seed, **chaos)
    scenario = Scenario.draw(world.rng, world.chaos)
    invariants = Invariants(world, scenario)
    if live:
        world.chaos = replace(world.chaos.with_live_tasks(world.rng), **chaos)
        invariants = LiveInvariants(world, scenario.with_live_tasks(world.rng, world.chaos))
    supervisor = Supervisor(world, invariants)
    world.spawn("supervisor", supervisor.run)
    violation: str | None = None
    tasks = live_tasks(world) if live else nullcontext()
    with _one_thread(world, invariants), tasks, broken.apply() if broken else nullcontext():
        try:
            world.run()
        except Violation as error:
            violation = f"{type(error).__name__}: {error}"
        except Exception:
            violation = f"unexpected {traceback.format_exc()}"
    return Outcome(
        seed,
        violation,
        world.digest,
        world.steps,
        supervisor.attempts,
        len(invariants.completed),
        tuple(world.trace),
    )
