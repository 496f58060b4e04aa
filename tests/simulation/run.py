"""Runs one seed: attempts come and go, cross each other and crash, and at the end one runs in peace."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

from dagster_flinkpy.checkpoint import savepoint
from dagster_flinkpy.datastream.state_recovery import RecoveryClaimMode
from dagster_flinkpy.errors import (
    CommittableLostError,
    CorruptMetadataError,
    CorruptStateError,
    FlinkPyError,
    RestoreError,
    StateSchemaError,
)
from dagster_flinkpy.runtime import job as job_loop
from dagster_flinkpy.storage import lease
from tests.simulation.invariants import Invariants
from tests.simulation.job import SimulatedAttempt, simulate_in
from tests.simulation.mutations import MUTATIONS
from tests.simulation.world import URL, Actor, Chaos, SerialExecutor, World

__all__ = ["Outcome", "simulate"]

_NEVER = (CommittableLostError, CorruptMetadataError, CorruptStateError, RestoreError, StateSchemaError)
"""Nothing is damaged in the simulation, so nobody may say so."""
_PEACEFUL_TRIES = 12


@dataclass(frozen=True)
class Outcome:
    """What came of a seed."""

    seed: int
    violation: str | None
    digest: str
    """Of all that happened: the same for every run of the seed."""
    steps: int
    attempts: int
    checkpoints: int
    trace: tuple[str, ...]


class _Supervisor:
    """Starts attempts, as Dagster would, and people do: also while another one is running."""

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world = world
        self._invariants = invariants
        self._drivers: list[Actor] = []
        self._num_retained = world.rng.choice((1, 1, 2, 3))
        self.attempts = 0
        self._finished = False

    def run(self) -> None:
        world, rng = self._world, self._world.rng
        for _ in range(rng.randint(1, 6)):
            self._start()
            patience = world.now_ms + rng.choice((500, 5_000, 30_000, 400_000))
            world.wait_for(self._all_over, until_ms=patience)
        # Zombies may still come back, but nothing fails any more.
        world.chaos = Chaos(switch=world.chaos.switch)
        for _ in range(_PEACEFUL_TRIES):
            self._finished = False
            self._start(peaceful=True)
            world.wait_for(lambda: self._drivers[-1].over)
            if self._finished and world.wait_for(self._all_over, world.now_ms + 1_000_000):
                break
        # Whatever zombies have left is cleared up by an attempt that has nothing else to do.
        world.wait_for(lambda: world.alone)
        self._start(peaceful=True)
        world.wait_for(lambda: world.alone)
        self._invariants.check_end()

    def _all_over(self) -> bool:
        return all(driver.over for driver in self._drivers)

    def _start(self, *, peaceful: bool = False) -> None:
        self.attempts += 1
        name = f"attempt-{self.attempts}"
        rng = self._world.rng
        options: dict[str, Any] = {}
        if not peaceful and rng.random() < 0.3:
            options["parallelism"] = rng.randint(1, 3)
        if not peaceful and self._invariants.savepoints and rng.random() < 0.3:
            options["restore_from"] = rng.choice(sorted(self._invariants.savepoints))
        elif not peaceful and self._invariants.kept and rng.random() < 0.15:
            checkpoint_id = rng.choice(self._invariants.kept)
            self._invariants.asked_for.add(checkpoint_id)
            options["restore_from"] = f"chk-{checkpoint_id}"
            options["claim_mode"] = rng.choice((RecoveryClaimMode.NO_CLAIM, RecoveryClaimMode.CLAIM))
        width = rng.randint(1, 3)

        def drive() -> None:
            world = self._world
            world.current.skew_ms = rng.randrange(-600_000, 600_000) if rng.random() < 0.3 else 0
            attempt = SimulatedAttempt(world, name, width=width, num_retained=self._num_retained, **options)
            try:
                with attempt:
                    if attempt.restored is not None and options:
                        attempt.commit_restored()
                    while not attempt.finished:
                        attempt.run_epoch(barriers=rng.choice((1, 1, 1, 2, 3)))
                        if not peaceful and rng.random() < 0.2:
                            target = rng.choice((None, f"{URL}/elsewhere"))
                            self._invariants.keep_savepoint(attempt.savepoint(target))
                    self._finished = True
            except _NEVER as error:
                # What somebody has asked for may have been subsumed meanwhile.
                if not (isinstance(error, RestoreError) and options.get("restore_from", "").startswith("chk-")):
                    world.report(f"{name}: {type(error).__name__}: {error}")
            except FlinkPyError as error:
                world.note(f"{type(error).__name__}: {str(error).splitlines()[0]}")
                if peaceful and not isinstance(error, job_loop.FencedError):
                    world.note("though nothing failed")

        self._drivers.append(self._world.spawn(name, drive))


@contextmanager
def _one_thread(world: World) -> Iterator[None]:
    """Clock, pools of threads and random names of the library follow the world."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("dagster_flinkpy.") and hasattr(module, "ThreadPoolExecutor"):
                stack.enter_context(mock.patch.object(module, "ThreadPoolExecutor", SerialExecutor))
        stack.enter_context(mock.patch.object(job_loop, "_now", world.clock))
        token_hex = SimpleNamespace(token_hex=lambda n: f"{world.rng.getrandbits(8 * n):0{2 * n}x}")
        for module in (savepoint, lease):
            stack.enter_context(mock.patch.object(module, "secrets", token_hex))
        simulate_in(world)
        yield


def simulate(seed: int, mutation: str | None = None) -> Outcome:
    """Runs one seed to its end, or to the first invariant that does not hold.

    Args:
        seed: All that happens follows from it.
        mutation: A rule of the library to break.
    """
    world = World(seed)
    invariants = Invariants(world)
    supervisor = _Supervisor(world, invariants)
    world.spawn("supervisor", supervisor.run)
    violation: str | None = None
    with _one_thread(world), MUTATIONS[mutation]() if mutation else nullcontext():
        try:
            world.run()
        except AssertionError as error:
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
