"""What people and schedules do next to the attempts: sweeps, disposals, and savepoints without the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from dagster_flinkpy.checkpoint.offline import (
    release_leadership,
    restore_savepoint,
    stop_with_savepoint,
    trigger_savepoint,
)
from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.sweep import old_savepoints, sweep
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import (
    CorruptMetadataError,
    CorruptStateError,
    FlinkPyError,
    JobCancelledError,
    RestoreError,
)
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.storage import StorageLocation
from tests.simulation.bucket import URL
from tests.simulation.invariants import Asked, Invariants
from tests.simulation.program import JOB, Scenario, SimulatedLocation
from tests.simulation.world import World

__all__ = ["GRACE", "Upkeep", "is_no_end_state"]

_ELSEWHERE = f"{URL}/elsewhere"
GRACE = timedelta(hours=4)
"""Grace time of sweeps: longer than the longest epoch plus the differences of clocks."""

_NEVER = (CorruptMetadataError, CorruptStateError, RestoreError)
"""Errors that must not occur, because nothing is damaged in the simulation."""


def is_no_end_state(error: FlinkPyError, scenario: Scenario) -> bool:
    """Returns whether a restore was refused because partitions start from end states only."""
    return scenario.partitioned and isinstance(error, RestoreError) and "is not the end state of" in str(error)


class Upkeep:
    """Starts one such action at a time, each as a separate actor.

    Args:
        world: The world.
        invariants: The invariants, which learn what an actor wants to delete.
    """

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world = world
        self._invariants = invariants
        self._job = SimulatedLocation(f"{URL}/{JOB}")
        self._started = 0
        self.attempt: JobAttempt | None = None
        """The newest attempt, whose run may be terminated."""

    def start(self) -> None:
        """Begins a random action."""
        verbs: Sequence[Callable[[str], None]] = (
            self._sweep,
            self._dispose_savepoint,
            self._dispose_old_savepoints,
            self._dispose_checkpoint,
            self._trigger_savepoint,
            self._stop,
            self._restore,
            self._release,
        )
        only = self._world.chaos.verbs
        self._spawn(self._world.rng.choice([each for each in verbs if not only or each.__name__.strip("_") in only]))

    def ask(self) -> None:
        """Begins to ask the attempt that is about to run for something."""
        self._spawn(self._ask)

    def draw_savepoint(self) -> tuple[str | None, SavepointFormatType]:
        """Draws target and format of a savepoint. Native ones need listings that are never late."""
        rng = self._world.rng
        if not self._world.lists_late and rng.random() < self._world.chaos.native:
            return None, SavepointFormatType.NATIVE
        return rng.choice((None, _ELSEWHERE)), SavepointFormatType.CANONICAL

    def sweep_in_peace(self) -> None:
        """Sweeps when nothing is running, and all files are old."""
        self._spawn(self._sweep)

    def _spawn(self, verb: Callable[[str], None]) -> None:
        world = self._world
        self._started += 1
        name = f"{verb.__name__.strip('_')}-{self._started}"

        def body() -> None:
            world.current.process.skew_ms = world.rng.randrange(-600_000, 600_000) if world.rng.random() < 0.3 else 0
            world.current.process.sluggish = 5
            try:
                verb(name)
            except _NEVER as error:
                world.report(f"{name}: {type(error).__name__}: {error}")
            except FlinkPyError as error:
                world.note(f"{type(error).__name__}: {str(error).splitlines()[0]}")

        world.spawn(name, body)

    # --- verbs --------------------------------------------------------------------------------------------------------

    def _sweep(self, name: str) -> None:
        if self._invariants.head is None:
            return
        now = datetime.fromtimestamp(self._world.clock() / 1000, timezone.utc)
        swept = sweep(self._job.open(), GRACE, now=now)
        self._world.note(f"swept {swept.files} files")

    def _dispose_savepoint(self, name: str) -> None:
        savepoints = self._invariants.savepoints
        if not savepoints.there:
            return
        url = self._world.rng.choice(savepoints.there)
        savepoints.dispose(url)
        self._dispose(replace(self._job, url=url), name)

    def _dispose_old_savepoints(self, name: str) -> None:
        now = datetime.fromtimestamp(self._world.clock() / 1000, timezone.utc)
        for folder in old_savepoints(self._job.open(), timedelta(minutes=1), now=now):
            location = self._job.child(folder)
            self._invariants.savepoints.dispose(location.url)
            self._dispose(location, name)

    def _dispose_checkpoint(self, name: str) -> None:
        head = self._invariants.head
        if head is None or not head.unclaimed:
            return
        checkpoint_id = self._world.rng.choice(head.unclaimed)
        self._invariants.released.add(checkpoint_id)
        self._asks(name)
        self._dispose(self._job.child(f"chk-{checkpoint_id}"), name)

    def _dispose(self, location: StorageLocation, name: str) -> None:
        try:
            dispose_savepoint(location, owner=name, now_ms=self._world.clock())
        except RestoreError as error:
            self._world.note(f"it is gone already: {error}")

    def _trigger_savepoint(self, name: str) -> None:
        self._invariants.savepoints.add(trigger_savepoint(self._job, *self._draw()))

    def _stop(self, name: str) -> None:
        self._asks(name)
        url = stop_with_savepoint(self._job, *self._draw(), owner=name, now_ms=self._world.clock())
        self._invariants.savepoints.add(url)

    def _restore(self, name: str) -> None:
        savepoints = self._invariants.savepoints
        if not savepoints.there:
            return
        url = self._world.rng.choice(savepoints.there)
        self._asks(name, savepoints.checkpoint_id(url))
        try:
            location, live = (
                replace(self._job, url=url),
                self._invariants.scenario.live,
            )  # in flight, it may be anything
            restore_savepoint(self._job, location, owner=name, now_ms=self._world.clock(), allow_pickled_state=live)
        except _NEVER as error:
            if url in savepoints.there and not is_no_end_state(error, self._invariants.scenario):
                raise
            self._world.note(f"it is gone: {error}")

    def _release(self, name: str) -> None:
        self._asks(name)
        release_leadership(self._job, owner=name, now_ms=self._world.clock())

    def _ask(self, name: str) -> None:
        """Asks the running attempt for something; it may die, be fenced, or take too long meanwhile.

        Or it terminates the attempt.
        """
        world, rng = self._world, self._world.rng
        only = [RequestKind(name) for name in world.chaos.asks]
        kind = rng.choice(only or (RequestKind.SAVEPOINT, *RequestKind))
        if kind is RequestKind.CANCEL and world.now_ms % 2:
            world.sleep(rng.choice((0.1, 1, 5, 30)))
            if self.attempt is not None:
                world.note("terminates the attempt")
                self.attempt.terminate(JobCancelledError("terminated"))
            return
        width = rng.randint(1, 3) if kind is RequestKind.RESCALE else None
        order = Order(kind, parallelism=width)
        if kind in (RequestKind.SAVEPOINT, RequestKind.STOP):
            target, format_type = self.draw_savepoint()
            drain = kind is RequestKind.STOP and rng.random() < world.chaos.drain
            order = replace(order, target=target, format_type=format_type, drain=drain)
        asker = JobRequests(self._job, name, now=world.clock, sleep=world.sleep)
        for _ in range(20):
            if asker.running() is not None:
                break
            world.sleep(rng.choice((0.02, 0.2)))
        answer = asker.ask(order, timedelta(seconds=rng.choice((2, 60, 600))))
        world.note(f"{kind.value}: {answer.checkpoint_id} {answer.savepoint}")
        self._invariants.requests.answered(order, answer)
        if answer.savepoint is not None:
            self._invariants.savepoints.add(answer.savepoint, drained=order.drain)

    # --- shared -------------------------------------------------------------------------------------------------------

    def _asks(self, name: str, start: int = 0) -> None:
        self._invariants.asked[name] = Asked(start, offline=True)

    def _draw(self) -> tuple[StorageLocation | None, SavepointFormatType]:
        target, format_type = self.draw_savepoint()
        return None if target is None else SimulatedLocation(target), format_type
