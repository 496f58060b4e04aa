"""Starts attempts like Dagster and people do, also while another one is running."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from dagster_flinkpy.checkpoint.head import HEAD_KEY
from dagster_flinkpy.datastream.checkpointing.state_recovery import RecoveryClaimMode
from dagster_flinkpy.errors import (
    CheckpointError,
    CommittableLostError,
    CorruptMetadataError,
    CorruptStateError,
    FencedError,
    FlinkPyError,
    HeadLostError,
    JobCancelledError,
    NamedSegmentLostError,
    RestoreError,
    StateSchemaError,
)
from tests.simulation.edges import put_back
from tests.simulation.invariants import Asked, Invariants
from tests.simulation.job import SimulatedAttempt
from tests.simulation.program import JOB, PARTITION_SPLITS, PARTITIONS, SourceShape, ordinals, partition
from tests.simulation.upkeep import GRACE, Upkeep, is_no_end_state
from tests.simulation.world import Actor, Chaos, World

__all__ = ["Supervisor"]

_NEVER = (CommittableLostError, CorruptMetadataError, CorruptStateError, RestoreError, StateSchemaError)
"""Errors that must not occur, because nothing is damaged in the simulation."""
_PEACEFUL_TRIES = 12


@dataclass(frozen=True)
class _Run:
    """What an attempt has to do. A retried run gives another attempt the same task."""

    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the attempt."""
    asked: Asked = field(default_factory=Asked)
    partitions: tuple[int, ...] = ()
    """Ordinals of the partitions that it reads."""
    peaceful: bool = False

    @property
    def restore_from(self) -> str:
        return self.options.get("restore_from") or ""


class Supervisor:
    """The actor that starts all others.

    Args:
        world: The world.
        invariants: The invariants, which learn what attempts are asked to do.
    """

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world = world
        self._invariants = invariants
        self._scenario = invariants.scenario
        self._upkeep = Upkeep(world, invariants)
        self._drivers: list[Actor] = []
        self.attempts = 0
        self._runs = 0
        self._finished = False

    def run(self) -> None:
        world, rng = self._world, self._world.rng
        run = None
        for _ in range(rng.randint(1, 6)):
            run = run if run is not None and rng.random() < world.chaos.retry else self._draw_run()
            self._start(run)
            while rng.random() < world.chaos.requests:
                self._upkeep.ask()
            while rng.random() < world.chaos.upkeep:
                world.sleep(rng.choice((0.1, 1, 10, 100)))
                self._upkeep.start()
            patience = world.now_ms + rng.choice((500, 5_000, 30_000, 400_000))
            world.wait_for(self._all_over, until_ms=patience)
            if rng.random() < 0.05:
                world.sleep(1.5 * GRACE.total_seconds())
        # Zombies may still come back, but nothing fails any longer.
        world.chaos = Chaos(switch=world.chaos.switch, lost_head=world.chaos.lost_head)
        for _ in range(_PEACEFUL_TRIES):
            self._finished = False
            self._start(self._what_is_left())
            world.wait_for(lambda: self._drivers[-1].over)
            if self._finished and world.wait_for(self._all_over, world.now_ms + 1_000_000):
                break
        world.wait_for(lambda: world.alone)
        if rng.random() < world.chaos.lost_head:
            self._lose_head()
        # An attempt that has nothing else to do cleans up what zombies have left.
        self._start(self._what_is_left())
        world.wait_for(lambda: world.alone)
        self._invariants.check_end()
        if rng.random() < 0.3:
            world.sleep(1.5 * GRACE.total_seconds())
            self._upkeep.sweep_in_peace()
            world.wait_for(lambda: world.alone)
            self._invariants.check_swept()

    def _all_over(self) -> bool:
        return all(driver.over for driver in self._drivers)

    # --- what to run --------------------------------------------------------------------------------------------------

    def _draw_run(self) -> _Run:
        rng, savepoints = self._world.rng, self._invariants.savepoints
        options: dict[str, Any] = {}
        asked = Asked()
        if rng.random() < 0.3:
            options["parallelism"] = rng.randint(1, 3)
        claim_mode = rng.choice(tuple(RecoveryClaimMode))
        if savepoints.there and rng.random() < self._world.chaos.restore:
            url = rng.choice(savepoints.there)
            options |= {"restore_from": url, "claim_mode": claim_mode}
            asked = Asked(savepoints.checkpoint_id(url))
        elif self._invariants.kept and rng.random() < self._world.chaos.goes_back:
            checkpoint_id = rng.choice(self._invariants.kept)
            options |= {"restore_from": f"chk-{checkpoint_id}", "claim_mode": claim_mode}
            leaves = None if claim_mode is RecoveryClaimMode.CLAIM else checkpoint_id
            asked = Asked(checkpoint_id, leaves=leaves)
        if asked.start and not self._scenario.partitioned and rng.random() < 0.5:
            self._runs += 1
            asked.run_id = options["run_id"] = f"run-{self._runs}"
        run = _Run(options, asked)
        return self._of_partitions(run) if self._scenario.partitioned and rng.random() < 0.9 else run

    def _of_partitions(self, run: _Run) -> _Run:
        """Makes a run over a range of partitions, from their start state unless the run says otherwise."""
        rng, invariants = self._world.rng, self._invariants
        if run.asked.start:
            first = invariants.completed[run.asked.start].read // PARTITION_SPLITS
        else:
            ends = invariants.head.partitions if invariants.head is not None else ()
            run = self._after(rng.choice((0, *(p + 1 for p in ordinals(ends) if p + 1 < PARTITIONS))), run)
            first = run.partitions[0]
        return replace(run, partitions=tuple(range(first, rng.randint(first, PARTITIONS))))

    def _after(self, first: int, run: _Run) -> _Run:
        """Starts a run from the end state before a partition, as a run does by default."""
        if first == 0:
            return replace(run, options={**run.options, "start_empty": True}, asked=Asked(None), partitions=(0,))
        assert self._invariants.head is not None
        before = ordinals(self._invariants.head.partitions)[first - 1]
        options = {"restore_from": f"chk-{before.checkpoint_id}", "claim_mode": RecoveryClaimMode.CLAIM}
        return replace(run, options={**run.options, **options}, asked=Asked(before.checkpoint_id), partitions=(first,))

    def _what_is_left(self) -> _Run:
        """Returns the run that is needed to reach the end."""
        invariants, run = self._invariants, _Run(peaceful=True)
        head, latest = invariants.head, invariants.latest
        if self._scenario.partitioned:
            done = {each.metadata.partition for each in invariants.completed.values()}
            missing = next((p for p in range(PARTITIONS) if partition(p).key not in done), None)
            if missing is None:
                return run
            ends = [p + 1 for p in ordinals(head.partitions)] if head is not None else []
            first = max((p for p in ends if p <= missing), default=0)
            return replace(self._after(first, run), partitions=tuple(range(first, PARTITIONS)))
        if latest is None or not latest.metadata.stopped or latest.metadata.end_of_input:
            return run
        number = latest.metadata.checkpoint_id
        options = {"restore_from": f"chk-{number}", "claim_mode": RecoveryClaimMode.CLAIM}
        return replace(run, options=options, asked=Asked(number))

    # --- attempts -----------------------------------------------------------------------------------------------------

    def _start(self, run: _Run) -> None:
        self.attempts += 1
        name = f"attempt-{self.attempts}"
        asked = self._invariants.asked[name] = replace(run.asked)
        if run.options.get("claim_mode") is RecoveryClaimMode.CLAIM and run.restore_from.startswith("chk-"):
            self._invariants.released.add(asked.start or 0)

        def drive() -> None:
            world, rng = self._world, self._world.rng
            world.current.process.skew_ms = rng.randrange(-600_000, 600_000) if rng.random() < 0.3 else 0
            periodic = 0.1 if self._scenario.source is SourceShape.WHOLE else 0.8  # otherwise epochs can be open
            interval = timedelta(seconds=rng.choice((1, 20))) if rng.random() < periodic else None
            options = {"width": rng.randint(1, 3), "interval": interval, **run.options}
            never_began = world.cores.never_began
            attempt = self._upkeep.attempt = SimulatedAttempt(world, self._scenario, name, **options)
            try:
                with attempt:
                    self._drive(attempt, run, asked)
                    self._finished = True
                if attempt.finished and attempt.aborted_open and world.pair and not world.lists_late:
                    self._invariants.check_nothing_is_open()
            except _NEVER as error:
                # The requested checkpoint may have been subsumed, claimed or disposed of meanwhile.
                gone = run.restore_from in self._invariants.savepoints.given_up
                gone = gone or is_no_end_state(error, self._scenario)
                if not gone and not (isinstance(error, RestoreError) and run.restore_from.startswith("chk-")):
                    world.report(f"{name}: {type(error).__name__}: {error}")
            except FlinkPyError as error:
                if isinstance(error, NamedSegmentLostError):
                    put_back(error)
                world.note(f"{type(error).__name__}: {str(error).splitlines()[0]}")
                # The tasks of a zombie have, or had, all of them.
                waits = not world.cores.free or world.cores.never_began > never_began
                if run.peaceful and not waits and not isinstance(error, (FencedError, JobCancelledError)):
                    world.report(f"{name} failed, though nothing fails any more: {error}")

        self._drivers.append(self._world.spawn(name, drive))

    def _lose_head(self) -> None:
        """Removes HEAD for a while. No attempt may begin or change anything until it is back."""
        world, objects, key = self._world, self._world.bucket.objects, f"{JOB}/{HEAD_KEY}"
        head = objects.pop(key, None)
        if head is None:
            return
        world.note("HEAD is lost")
        before = dict(objects)
        self.attempts += 1
        name = f"attempt-{self.attempts}"
        self._invariants.asked[name] = Asked()

        def begin() -> None:
            with suppress(HeadLostError), SimulatedAttempt(world, self._scenario, name, width=1):
                world.report(f"{name} begins, though HEAD is lost")

        attempt = world.spawn(name, begin)
        world.wait_for(lambda: attempt.over)
        if objects != before:
            world.report(f"{name} changed something, though HEAD is lost")
        objects[key] = head

    def _drive(self, attempt: SimulatedAttempt, run: _Run, asked: Asked) -> None:
        """Does with an attempt what the code of a run does."""
        rng = self._world.rng
        if "restore_from" in run.options and run.options.get("claim_mode") is RecoveryClaimMode.CLAIM:
            self._claimed(run.restore_from, attempt._owner)
        if attempt.restored is not None and run.options and not run.partitions:
            attempt.commit_restored()
        for ordinal in run.partitions:
            attempt.run_epoch(partition=partition(ordinal))
            if self._savepoints(attempt, run, asked):
                return
        while not self._scenario.partitioned and not attempt.finished:
            if rng.random() < 0.6:
                periodic = attempt.config.checkpointing.interval is not None and rng.random() < 0.5
                epochs = attempt.run_epochs(rng.choice((None, 2, 5)), periodic=periodic)
                for _ in epochs:
                    if rng.random() < 0.1:
                        break  # a running step continues
                epochs.close()
            elif attempt.config.checkpointing.interval is not None:
                list(attempt.run_epochs(1, periodic=True))
            else:
                try:
                    attempt.run_epoch()
                except CheckpointError:
                    if attempt._deployed.master.error is not None or not attempt.finished:
                        raise
                    return  # it was stopped before
            if self._savepoints(attempt, run, asked):
                return

    def _claimed(self, path: str, owner: str) -> None:
        if not path.startswith("chk-"):
            self._invariants.savepoints.claim(path, owner)

    def _savepoints(self, attempt: SimulatedAttempt, run: _Run, asked: Asked) -> bool:
        """Sometimes takes a savepoint. Returns whether the job was stopped with it."""
        rng, chaos, savepoints = self._world.rng, self._world.chaos, self._invariants.savepoints
        if run.peaceful or rng.random() > chaos.savepoint:
            return False
        target, format_type = self._upkeep.draw_savepoint()
        self._world.current.process.sluggish = 10
        if rng.random() < chaos.stop:
            asked.ends_input = rng.random() < chaos.drain
            savepoints.add(
                attempt.stop_with_savepoint(target, format_type, drain=asked.ends_input), drained=asked.ends_input
            )
            return True
        savepoints.add(attempt.savepoint(target, format_type))
        self._world.current.process.sluggish = 1
        return False
