"""Proves a change of a program on its job's state and last input, makes it at a barrier, and takes it back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.errors import CheckpointError, ConfigurationError, JobNotFoundError
from dagster_flinkpy.orchestration.flink_job import Environment, FlinkJob, flink_job
from dagster_flinkpy.orchestration.program import (
    RestoreForecast,
    changed_operators,
    check_recomputation,
    forecast,
    program_attempt,
)
from dagster_flinkpy.orchestration.resources import SparkResource
from dagster_flinkpy.orchestration.upgrade.row_difference import RowDifference, compare_rows
from dagster_flinkpy.orchestration.upgrade.shadow import Shadow, positions_of, sinks_of, sources_of
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
    from dagster_flinkpy.checkpoint.recomputation import Recomputation
    from dagster_flinkpy.datastream.program.job_graph import JobGraph

__all__ = ["UpgradeReport", "UpgradeVerdict", "prove_upgrade", "roll_back", "switch_program"]

_MOST_EPOCHS = 1000
"""How many epochs a fork may need to read as much as its job has."""


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
    """The rows of each sink."""
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
) -> UpgradeReport:
    """Runs two versions of a program side by side on forks of a job, and compares what they write.

    The job goes on meanwhile, and its tables are not touched. The forks and their rows are deleted at the end; those of
    a proof that died, at the next one, or by :func:`switch_program` or :func:`roll_back`.

    Args:
        old: The program as the job runs it.
        new: The program as it shall be.
        job: The folder of the job.
        spark: The Spark that runs both.
        owner: Names the caller, for messages of other runs.
        on_progress: Receives one-line progress messages.
        at: ``chk-7``, or a savepoint in the folder of the job, from which both start. Default: the oldest checkpoint
            that the job keeps.
        epochs: How many epochs both run. Default: as many as the job has completed since, or 1.

    Raises:
        ConfigurationError: DuckDB is not installed, the records of a sink have no type, or the job is partitioned by
            time.
        CheckpointError: The job has no checkpoint, or another proof is at work.
        JobGraphError: A program is not valid.
    """
    from dagster_flinkpy.checkpoint.forks.fork import fork_job
    from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
    from dagster_flinkpy.checkpoint.savepoints.stored_savepoints import savepoint_location
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore

    kept = CompletedCheckpointStore(job.open()).retained()
    if not kept:
        raise CheckpointError(f"{job.url} has no completed checkpoint that an upgrade could be tried on")
    at = at or f"chk-{kept[0]}"
    place = job.child(at) if at.startswith("chk-") else savepoint_location(at, job)
    stored = open_checkpoint(place)
    since = stored.metadata.checkpoint_id
    if stored.metadata.partition is not None:
        raise ConfigurationError(
            f"job {job.name!r} is partitioned by time. Fork it, and run the new program on the same partitions"
        )
    epochs = epochs or max(1, sum(each > since for each in kept))
    programs = {"old": _job_of(old, job.name), "new": _job_of(new, job.name)}
    graph = programs["new"].graph
    plan = forecast(graph, stored)
    if plan.problem is not None:
        return UpgradeReport(since, epochs, plan)
    rows, forks = _proof_of(job)
    _clear(rows, *forks.values())
    try:
        ends: dict[str, CheckpointMetadata | None] = {}
        for side, program in programs.items():
            fork_job(job, forks[side].name, at=at, owner=owner)
            on_progress(f"running the {side} program on {forks[side].name}")
            shadow = Shadow(program, forks[side], rows.child(side), spark, owner, on_progress)
            ends[side] = shadow.run(epochs)
        sources = sources_of(graph)
        read = {side: positions_of(end, sources) for side, end in ends.items()}
        problems = [
            f"source {uid!r} was not read equally far by both programs"
            for uid in sources
            if read["old"].get(uid) != read["new"].get(uid)
        ]
        tables = tuple(
            compare_rows(uid, rows.child("old").child(uid), rows.child("new").child(uid), getattr(spec.sink, "key", ()))
            for uid, spec in sinks_of(graph).items()
        )
        if not any(table.before or table.after for table in tables):
            problems.append(f"no rows were written in {epochs} epochs; give more, or an older checkpoint")
        return UpgradeReport(since, epochs, plan, tables, tuple(problems))
    finally:
        _clear(rows, *forks.values())


def switch_program(
    new: Environment | FlinkJob,
    job: StorageLocation,
    *,
    spark: SparkResource,
    owner: str = "switch_program",
    on_progress: Callable[[str], None] = lambda line: None,
    keep: str | None = None,
    recompute: Collection[str] = (),
    recompute_changed: bool = False,
    since: str | None = None,
) -> int:
    """Brings a job's state at its last barrier to a new program, before any record is read. No run may be active.

    The runs that follow must be those of the new program. Sinks go on where the old program has stopped, because it is
    the same job. The state of the old program is kept as a fork, to which :func:`roll_back` goes back.

    Args:
        new: The new program.
        job: The folder of the job.
        spark: The Spark of the job.
        owner: Names the caller, for messages of other runs.
        on_progress: Receives one-line progress messages.
        keep: Name of the fork. Default: ``{job}_before``. One that is there is disposed of, unless the job has this
            program already and has read nothing since: then it is of a switch that died.
        recompute: Uids of operators whose state cannot be kept, or must not be. They, all that follow, and what
            pipelined edges connect with these start empty. In the first epoch after the switch they read again what
            the blocking edges before them have kept (``blocking(retain=...)``), or from then on their sources from
            the beginning. The other operators keep their state and go on. When it has been read, sinks behind them
            delete the rows that they had written for the same epochs. Default: all operators keep their state.
        recompute_changed: Whether to recompute, besides, all operators that have changed since the latest checkpoint
            in their code, their settings or what they read, that are new, or that do not fit their state. Code that
            their functions call is not compared. Default: False.
        since: ``chk-7``: what is recomputed needs no input from before this checkpoint, and the rows up to it stay.
            Default: it needs all input since the beginning of the job.

    Returns:
        The id of the checkpoint from which the new program continues.

    Raises:
        CheckpointError: A run may be active, or the job has no checkpoint.
        RestoreError: The state does not fit the program, or a blocking edge has not kept what would be read again;
            nothing is changed.
        ConfigurationError: There is no such operator to recompute, it is unknown which ones have changed or none has,
            ``since`` cannot be used, the job is partitioned by time, or a sink cannot replace its rows; nothing is
            changed.
        SourceReadError: What a blocking edge has kept cannot be read, or has other fields than the program has there;
            nothing is changed.
    """
    from dagster_flinkpy.checkpoint.forks.fork import fork_job
    from dagster_flinkpy.checkpoint.offline import refuse_beside_run
    from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
    from dagster_flinkpy.common.clock import current_millis

    refuse_beside_run(job, current_millis())
    program, fork = _job_of(new, job.name), job.parent.child(keep or f"{job.name}_before")
    kept, latest = (CompletedCheckpointStore(each.open()).latest() for each in (fork, job))
    if recompute_changed and latest is not None:
        recompute = {*recompute, *changed_operators(program.graph, open_checkpoint(job))}
    recomputation = _recomputation(program, job, latest, recompute, since)
    _clear_dead_proof(job)
    if kept is None or not _is_repeated(program.graph, latest, kept):
        _clear(None, fork)
        fork_job(job, fork.name, owner=owner)
    options: dict[str, Any] = {"owner": owner, "on_progress": on_progress, "recomputation": recomputation}
    with program_attempt(program, job, spark=spark, **options) as attempt:
        return attempt.commit_restored().checkpoint_id


def _is_repeated(graph: JobGraph, latest: CheckpointMetadata | None, kept: CheckpointMetadata) -> bool:
    """Returns whether a switch that died has changed the job already, so that the fork has the state before it."""
    from dagster_flinkpy.checkpoint.evolution import evolution_since
    from dagster_flinkpy.checkpoint.recomputation import TO_REPLACE

    if latest is None or latest.graph_fingerprint != graph.fingerprint or evolution_since(latest, graph).changes:
        return False
    sources = sources_of(graph)
    return TO_REPLACE in latest.properties or positions_of(kept, sources) == positions_of(latest, sources)


def _recomputation(
    program: FlinkJob, job: StorageLocation, latest: CheckpointMetadata | None, uids: Collection[str], since: str | None
) -> Recomputation | None:
    """Returns what a switch recomputes, and checks that it can."""
    from dagster_flinkpy.checkpoint.head import read_head
    from dagster_flinkpy.checkpoint.recomputation import partitioned_error, recomputation_of

    if not uids and since is not None:
        raise ConfigurationError("since says from where operators are recomputed: name them with recompute")
    if not uids or latest is None:
        return None
    head = read_head(job.open())
    if head is not None and head[0].partitions:  # the latest checkpoint may be of none, such as that of another switch
        raise partitioned_error(job.name)
    recomputation = recomputation_of(latest, program.graph, uids, since)
    check_recomputation(program, job, latest, recomputation)
    return recomputation


def roll_back(
    old: Environment | FlinkJob,
    job: StorageLocation,
    *,
    spark: SparkResource,
    owner: str = "roll_back",
    on_progress: Callable[[str], None] = lambda line: None,
    kept: str | None = None,
) -> int:
    """Brings a job back to its old program, as long as the fork of :func:`switch_program` is kept.

    What the new program has read meanwhile, the old one reads on the fork, without writing it to the tables: the new
    program has. So the old program continues where the new one has stopped, and no row is missing or doubled.

    Args:
        old: The old program.
        job: The folder of the job. No run may be active.
        spark: The Spark of the job.
        owner: Names the caller, for messages of other runs.
        on_progress: Receives one-line progress messages.
        kept: Name of the fork. Default: ``{job}_before``.

    Returns:
        The id of the checkpoint from which the old program continues.

    Raises:
        CheckpointError: A run may be active, or the old program cannot read exactly as far as the new one: let the job
            read all of its input first.
        JobNotFoundError: There is no such fork.
    """
    from dagster_flinkpy.checkpoint.forks.fork import FORKED_AT
    from dagster_flinkpy.checkpoint.offline import refuse_beside_run, trigger_savepoint
    from dagster_flinkpy.checkpoint.recomputation import TO_REPLACE
    from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
    from dagster_flinkpy.common.clock import current_millis

    refuse_beside_run(job, current_millis())
    _clear_dead_proof(job)
    fork = job.parent.child(kept or f"{job.name}_before")
    program = _job_of(old, job.name)
    before, latest = (CompletedCheckpointStore(each.open()).latest() for each in (fork, job))
    if before is None:
        raise JobNotFoundError(f"there is no fork {fork.url} to go back to")
    # Sources that are to be read again are behind the fork.
    unread = latest is not None and TO_REPLACE in latest.properties
    if latest is None or not (unread and latest.parent_id == before.properties.get(FORKED_AT)):
        _read_up_to(latest, Shadow(program, fork, None, spark, owner, on_progress), job)
    savepoint = replace(fork, url=trigger_savepoint(fork))
    # Whoever can write the fork can write the job: its pickled state is the job's own.
    how = {"restore_from": savepoint.url, "allow_pickled_state": True}
    with program_attempt(old, job, spark=spark, owner=owner, on_progress=on_progress, **how) as attempt:
        checkpoint_id = attempt.commit_restored().checkpoint_id
    dispose_savepoint(savepoint, owner=owner, now_ms=current_millis())
    return checkpoint_id


def _job_of(program: Environment | FlinkJob, name: str) -> FlinkJob:
    return program if isinstance(program, FlinkJob) else flink_job(program, name)


def _read_up_to(latest: CheckpointMetadata | None, shadow: Shadow, job: StorageLocation) -> None:
    """Lets the old program read on the fork what its job has read, and what both recompute."""
    from dagster_flinkpy.checkpoint.recomputation import TO_REPLACE

    sources = sources_of(shadow.job.graph)

    def state(metadata: CheckpointMetadata | None) -> tuple[dict[str, Any], bool]:
        return positions_of(metadata, sources), metadata is not None and TO_REPLACE in metadata.properties

    goal, waits = state(latest)
    with shadow.attempt() as attempt:
        read, has = state(attempt.latest)
        for _ in range(_MOST_EPOCHS):
            if read == goal and (waits or not has):
                return
            if attempt.finished:
                break
            attempt.run_epoch()
            before, (read, has) = (read, has), state(attempt.latest)
            if (read, has) == before:
                break
    unequal = ", ".join(repr(uid) for uid in sources if read.get(uid) != goal.get(uid))
    raise CheckpointError(
        f"the old program has not read the sources {unequal} exactly as far as job {job.name!r}, so rows would be "
        "missing or doubled. Run the job until it has read all of its input, and try again"
    )


def _proof_of(job: StorageLocation) -> tuple[StorageLocation, dict[str, StorageLocation]]:
    """Returns where a proof writes rows, and the fork of each side."""
    forks = {side: job.parent.child(f"{job.name}_proof_{side}") for side in ("old", "new")}
    return job.parent.child(f"{job.name}_proof_rows"), forks


def _clear_dead_proof(job: StorageLocation) -> None:
    rows, forks = _proof_of(job)
    with suppress(CheckpointError):  # it may be alive
        _clear(rows, *forks.values())


def _clear(rows: StorageLocation | None, *forks: StorageLocation) -> None:
    """Deletes forks and rows that are left, such as those of a proof that died."""
    from dagster_flinkpy.checkpoint.forks.job_disposal import dispose_job

    for fork in forks:
        try:
            dispose_job(fork)
        except JobNotFoundError:
            continue
    if rows is not None:
        store = rows.open()
        store.delete_many([info.key for info in store.list()])
