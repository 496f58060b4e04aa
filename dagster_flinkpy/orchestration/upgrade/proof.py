"""Proves a change of a program on its job's state and last input, before it is made."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from dagster_flinkpy.errors import CheckpointError, ConfigurationError, RestoreError
from dagster_flinkpy.orchestration.flink_job import Environment, FlinkJob, job_of
from dagster_flinkpy.orchestration.program import RestoreForecast, plan_restore, to_recompute
from dagster_flinkpy.orchestration.resources import SparkResource
from dagster_flinkpy.orchestration.upgrade.row_difference import RowDifference, compare_rows
from dagster_flinkpy.orchestration.upgrade.shadow import (
    MOST_EPOCHS,
    Shadow,
    delete_forks,
    positions_of,
    sinks_of,
    sources_of,
)
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
    from dagster_flinkpy.checkpoint.recomputation import Recomputation
    from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import StoredCheckpoint

__all__ = ["UpgradeReport", "UpgradeVerdict", "clear_dead_proof", "prove_upgrade"]


class UpgradeVerdict(Enum):
    """What a proof has shown."""

    SAME = "same rows"
    DIFFERENT = "rows differ"
    REFUSED = "refused"
    """The new program cannot continue from the state."""
    UNKNOWN = "unknown"
    """Both programs did not read the same, or wrote nothing, so their rows say nothing."""


@dataclass(frozen=True)
class UpgradeReport:
    """What a new program does to the state and with the last input of a job, beside the old one."""

    since: int
    """The checkpoint from which both programs started."""
    epochs: int
    """How many epochs both have run at most."""
    plan: RestoreForecast
    """What becomes of the state."""
    tables: tuple[RowDifference, ...] = ()
    """The rows of each sink of either program."""
    problems: tuple[str, ...] = ()
    """Why the rows cannot be compared; empty if they can."""

    @property
    def verdict(self) -> UpgradeVerdict:
        """The verdict."""
        if self.plan.problem is not None:
            return UpgradeVerdict.REFUSED
        if self.problems:
            return UpgradeVerdict.UNKNOWN
        return UpgradeVerdict.SAME if all(table.same for table in self.tables) else UpgradeVerdict.DIFFERENT


def prove_upgrade(
    old: Environment | FlinkJob,
    new: Environment | FlinkJob,
    job: StorageLocation,
    *,
    spark: SparkResource,
    owner: str = "prove_upgrade",
    on_progress: Callable[[str], None] = lambda line: None,
    at: str | None = None,
    epochs: int | None = None,
    recompute: Collection[str] = (),
    recompute_changed: bool = False,
    since: str | None = None,
) -> UpgradeReport:
    """Runs two versions of a program side by side on forks of a job, and compares what they write.

    The job goes on meanwhile, and its tables are not touched. The forks and their rows are deleted at the end; those of
    a proof that died, at the next one, or by :func:`switch_program` or :func:`roll_back`.

    Barriers are aligned in both, so that at the end no rows are on their way to the sinks.

    If operators are recomputed, both versions recompute them. So the rows of the sinks behind them are compared over
    all epochs that are redone.

    Args:
        old: The program as the job runs it.
        new: The program as it shall be.
        job: The folder of the job.
        spark: The Spark that runs both.
        owner: Names the caller, for messages of other runs.
        on_progress: Receives one-line progress messages.
        at: ``chk-7``, or a savepoint in the folder of the job, from which both start. Default: the oldest checkpoint
            that the job keeps; if operators are recomputed, the latest one.
        epochs: How many epochs both run. Default: as many as the job has completed since, or 1; if sources are read
            again, until they are as far as the job, or at an end.
        recompute: Uids of operators that the switch would recompute, see :func:`switch_program`.
        recompute_changed: Whether it would recompute those that have changed, too.
        since: ``chk-7``: what is recomputed needs no input from before this checkpoint. Default: it needs all.

    Raises:
        ConfigurationError: DuckDB is not installed, the records of a sink have no type, the job is partitioned by
            time, it is unknown what has changed, or nothing has, or another job has the name of a fork of the proof.
        CheckpointError: The job has no checkpoint, or another proof is at work.
        JobGraphError: A program is not valid.
    """
    from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint, savepoint_location
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore

    kept = CompletedCheckpointStore(job.open()).retained()
    if not kept:
        raise CheckpointError(f"{job.url} has no completed checkpoint that an upgrade could be tried on")
    before, after = job_of(old, job.name), job_of(new, job.name)
    uids = to_recompute(after.graph, open_checkpoint(job), recompute, recompute_changed, since)
    at = at or f"chk-{kept[-1 if uids else 0]}"
    stored = open_checkpoint(job.child(at) if at.startswith("chk-") else savepoint_location(at, job))
    first = stored.metadata.checkpoint_id
    if stored.metadata.end_of is not None:
        raise ConfigurationError(
            f"job {job.name!r} is partitioned by time. Fork it, and run the new program on the same partitions"
        )
    plan = plan_restore(after, stored, recompute=uids, since=since if uids else None)
    most = epochs or max(1, sum(each > first for each in kept))
    if plan.recomputation is not None and plan.recomputation.sources and epochs is None:
        most = min(first, MOST_EPOCHS)
    if plan.problem is not None:
        return UpgradeReport(first, most, plan)
    proof = _Proof(job, at, stored, spark, owner, on_progress)
    return proof.report(before, after, plan, most, since)


@dataclass(frozen=True)
class _Proof:
    """Two versions of a program, each on a fork of a job."""

    job: StorageLocation
    at: str
    """The checkpoint or savepoint of the job from which both start."""
    stored: StoredCheckpoint
    spark: SparkResource
    owner: str
    on_progress: Callable[[str], None]

    def report(
        self, old: FlinkJob, new: FlinkJob, plan: RestoreForecast, epochs: int, since: str | None
    ) -> UpgradeReport:
        """Runs both, and compares what they have written."""
        from dagster_flinkpy.checkpoint.forks.fork import fork_job
        from dagster_flinkpy.checkpoint.recomputation import recomputation_of

        first, found = self.stored.metadata.checkpoint_id, plan.recomputation
        again: dict[str, Recomputation | None] = {"old": None, "new": found}
        if found is not None:
            known = {v.uid for v in old.graph.vertices}
            uids = [uid for uid in found.operators if uid in known]
            try:
                again["old"] = recomputation_of(self.stored.metadata, old.graph, uids, since) if uids else None
            except (ConfigurationError, RestoreError) as error:
                return UpgradeReport(first, epochs, plan, (), (f"the old program cannot recompute it: {error}",))
        rows, forks = _places(self.job)
        _clear(self.job)
        try:
            for fork in forks.values():  # both at once: the job goes on, and keeps this checkpoint for a while only
                fork_job(self.job, fork.name, at=self.at, owner=self.owner)
            ends = {
                side: self._end(side, program, again[side], epochs) for side, program in (("old", old), ("new", new))
            }
            problems = _problems(new, ends, again)
            tables = tuple(
                compare_rows(
                    uid, rows.child("old").child(uid), rows.child("new").child(uid), getattr(spec.sink, "key", ())
                )
                for uid, spec in (sinks_of(old.graph) | sinks_of(new.graph)).items()
            )
            if not any(table.before or table.after for table in tables):
                problems.append(f"no rows were written in {epochs} epochs; give more, or an older checkpoint")
            return UpgradeReport(first, epochs, plan, tables, tuple(problems))
        finally:
            delete_forks(rows, *forks.values())

    def _end(
        self, side: str, program: FlinkJob, recomputation: Recomputation | None, epochs: int
    ) -> CheckpointMetadata | None:
        """Runs a version on a fork, and returns the last checkpoint."""
        rows, forks = _places(self.job)
        self.on_progress(f"running the {side} program on {forks[side].name}")
        shadow = Shadow(program, forks[side], rows.child(side), self.spark, self.owner, self.on_progress, recomputation)
        return shadow.run(epochs, self.stored.metadata)


def _problems(
    new: FlinkJob, ends: dict[str, CheckpointMetadata | None], again: dict[str, Recomputation | None]
) -> list[str]:
    """Returns why the rows of both versions cannot be compared."""
    sources = sources_of(new.graph)
    read = {side: positions_of(end, sources) for side, end in ends.items()}
    problems = [
        f"source {uid!r} was not read equally far by both programs"
        for uid in sources
        if read["old"].get(uid) != read["new"].get(uid)
    ]
    redone = {side: {*found.sinks, *found.new_sinks} if found else set() for side, found in again.items()}
    one_sided = [uid for uid in sinks_of(new.graph) if uid in redone["old"] ^ redone["new"]]
    known = {operator.uid for operator in ends["old"].operators} if ends["old"] is not None else set()
    problems += [
        f"all rows before sink {uid!r} are recomputed by only one of the programs, so they cannot be compared"
        for uid in one_sided
        if uid in known
    ]
    return problems


def _places(job: StorageLocation) -> tuple[StorageLocation, dict[str, StorageLocation]]:
    """Returns where a proof writes rows, and the fork of each side."""
    forks = {side: job.parent.child(f"{job.name}_proof_{side}") for side in ("old", "new")}
    return job.parent.child(f"{job.name}_proof_rows"), forks


def _clear(job: StorageLocation) -> None:
    """Deletes the forks and rows of a proof.

    Raises:
        CheckpointError: The proof is alive.
        ConfigurationError: A job of its own has one of their names.
    """
    from dagster_flinkpy.checkpoint.forks.fork import check_fork

    rows, forks = _places(job)
    for place in (rows, *forks.values()):
        check_fork(place, job)
    delete_forks(rows, *forks.values())


def clear_dead_proof(job: StorageLocation) -> None:
    """Deletes what a proof that has died has left.

    Args:
        job: The folder of the job.
    """
    with suppress(CheckpointError, ConfigurationError):  # it may be alive, or somebody else's
        _clear(job)
