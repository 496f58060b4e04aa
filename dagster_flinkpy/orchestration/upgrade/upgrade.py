"""Brings a job to another version of its program at a barrier, and takes it back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.errors import CheckpointError, ConfigurationError, JobNotFoundError
from dagster_flinkpy.orchestration.flink_job import Environment, FlinkJob, job_of
from dagster_flinkpy.orchestration.program import (
    check_recomputation,
    program_attempt,
    to_recompute,
    written_operators,
)
from dagster_flinkpy.orchestration.resources import SparkResource
from dagster_flinkpy.orchestration.upgrade.proof import clear_dead_proof
from dagster_flinkpy.orchestration.upgrade.reached import Reached, with_timers
from dagster_flinkpy.orchestration.upgrade.shadow import MOST_EPOCHS, Shadow, delete_forks, sinks_of, sources_of
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
    from dagster_flinkpy.checkpoint.recomputation import Recomputation
    from dagster_flinkpy.datastream.program.job_graph import JobGraph

__all__ = ["roll_back", "switch_program"]


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
            replace the rows that they had written for the same epochs. Default: all operators keep their state.
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
            ``since`` cannot be used, the job is partitioned by time, a sink cannot replace its rows, ``keep`` names
            another job, or it is unknown of which version the state in that fork is; nothing is changed.
        SourceReadError: What a blocking edge has kept cannot be read, or has other fields than the program has there;
            nothing is changed.
    """
    from dagster_flinkpy.checkpoint.forks.fork import check_fork, fork_job
    from dagster_flinkpy.checkpoint.offline import refuse_beside_run
    from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
    from dagster_flinkpy.common.clock import current_millis

    refuse_beside_run(job, current_millis())
    program, fork = job_of(new, job.name), job.parent.child(keep or f"{job.name}_before")
    check_fork(fork, job)
    kept, latest = (CompletedCheckpointStore(each.open()).latest() for each in (fork, job))
    recomputation = None
    if latest is not None:
        uids = to_recompute(program.graph, open_checkpoint(job), recompute, recompute_changed, since)
        recomputation = _recomputation(program, job, latest, uids, since)
    clear_dead_proof(job)
    if kept is None or not _is_repeated(program.graph, job, latest, kept):
        _delete_copy(fork, owner)
        delete_forks(None, fork)
        fork_job(job, fork.name, owner=owner)
    options: dict[str, Any] = {"owner": owner, "on_progress": on_progress, "recomputation": recomputation}
    with program_attempt(program, job, spark=spark, **options) as attempt:
        return attempt.commit_restored().checkpoint_id


def _is_repeated(
    graph: JobGraph, job: StorageLocation, latest: CheckpointMetadata | None, kept: CheckpointMetadata
) -> bool:
    """Returns whether the fork has the state before this program: a switch to it died, or nothing was read since.

    Raises:
        ConfigurationError: It is unknown.
    """
    from dagster_flinkpy.checkpoint.evolution import Change, evolution_since

    if latest is None or latest.read_by != kept.read_by:
        return False
    if kept.ancestors[:1] == ((job.name, latest.checkpoint_id),):
        return True  # the job has the same state, and no other version since
    found = written_operators(evolution_since(latest, graph), graph)
    if latest.graph_fingerprint != graph.fingerprint or any(
        each.change not in (Change.UNCHANGED, Change.UNKNOWN) for each in found
    ):
        return False
    if unknown := [each.uid for each in found if not each.compared]:
        raise ConfigurationError(
            f"it is unknown whether {', '.join(map(repr, unknown))} changed since checkpoint {latest.checkpoint_id}, "
            f"so nobody knows whether {kept.job_id!r} has the state of the version before this one, or of an older "
            "one. Keep the state in a fork of another name; if this repeats a switch that died, let the job run: it "
            "has the new version"
        )
    return True


def _recomputation(
    program: FlinkJob, job: StorageLocation, latest: CheckpointMetadata, uids: Collection[str], since: str | None
) -> Recomputation | None:
    """Returns what a switch recomputes, and checks that it can."""
    from dagster_flinkpy.checkpoint.recomputation import recomputation_of

    if not uids:
        return None
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
        CheckpointError: A run may be active, or has gone on meanwhile, or the old program cannot read exactly as far as
            the new one: let the job read all of its input first. Or the new one has read without a source that the old
            one has, was drained, has records in flight, or is at another event time, or the old one has timers of
            processing time.
        JobNotFoundError: There is no such fork, or no job.
        ConfigurationError: ``kept`` names a job that is no fork of this one, or the job is partitioned by time and has
            run partitions since.
    """
    from dagster_flinkpy.checkpoint.forks.fork import check_fork, fork_job
    from dagster_flinkpy.checkpoint.head import read_head
    from dagster_flinkpy.checkpoint.offline import refuse_beside_run, trigger_savepoint
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
    from dagster_flinkpy.common.clock import current_millis

    refuse_beside_run(job, current_millis())
    clear_dead_proof(job)
    fork = job.parent.child(kept or f"{job.name}_before")
    check_fork(fork, job)
    program = job_of(old, job.name)
    before, latest = (CompletedCheckpointStore(each.open()).latest() for each in (fork, job))
    if before is None or latest is None:
        raise JobNotFoundError(f"there is no {'job ' + job.url if before else 'fork ' + fork.url} to go back to")
    head, unchanged = read_head(job.open()), latest.read_by == before.read_by
    if head is not None and head[0].partitions and not unchanged:
        raise ConfigurationError(
            f"job {job.name!r} is partitioned by time, and what was run since the switch is not read on the fork: "
            "deploy the old program and run these partitions again, which replaces their rows"
        )
    if not unchanged:
        _refuse_processing_time(before, job)
    # The fork stays as it is if this dies or is refused.
    copy = _delete_copy(fork, owner)
    fork_job(fork, copy.name, owner=owner)
    try:
        if not unchanged:
            _read_up_to(latest, Shadow(program, copy, None, spark, owner, on_progress), job)
        # Whoever can write the fork can write the job: its pickled state is the job's own.
        how = {"restore_from": trigger_savepoint(copy), "allow_pickled_state": True}
        with program_attempt(old, job, spark=spark, owner=owner, on_progress=on_progress, **how) as attempt:
            _check_waited(job, latest)
            return attempt.commit_restored().checkpoint_id
    finally:
        _delete_copy(fork, owner)


def _delete_copy(fork: StorageLocation, owner: str) -> StorageLocation:
    """Deletes the fork of a fork on which a roll-back reads, and returns its place.

    Raises:
        CheckpointError: A roll-back may be at work.
        ConfigurationError: Another job has its name.
    """
    from dagster_flinkpy.checkpoint.forks.fork import check_fork
    from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
    from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import list_savepoints
    from dagster_flinkpy.common.clock import current_millis

    copy = fork.parent.child(f"{fork.name}_back")
    check_fork(copy, fork)
    for _, name in list_savepoints(copy.open()):
        dispose_savepoint(copy.child(name), owner=owner, now_ms=current_millis())
    delete_forks(None, copy)
    return copy


def _check_waited(job: StorageLocation, latest: CheckpointMetadata) -> None:
    """Checks that no run has gone on since a checkpoint. The caller leads the job, so none goes on now."""
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore

    now = CompletedCheckpointStore(job.open()).latest()
    if now is None or now.checkpoint_id != latest.checkpoint_id:
        raise CheckpointError(
            f"a run of job {job.name!r} has gone on while the old program read what the new one had read, so rows "
            "would be doubled. Let no run begin, such as of a schedule, and try again"
        )


def _refuse_processing_time(metadata: CheckpointMetadata | None, job: StorageLocation) -> None:
    """Checks that no timers fire by the clock: which ones have since the switch cannot be repeated."""
    from dagster_flinkpy.state.handles import PROCESSING_TIMERS

    if timed := with_timers(metadata, PROCESSING_TIMERS):
        raise CheckpointError(
            f"operators {', '.join(map(repr, timed))} of the old program have timers of processing "
            f"time. Some have fired in job {job.name!r} since the switch, and would fire again, so rows would be "
            "doubled or missing. Switch to the old program instead, which goes on from the state of the new one"
        )


def _refuse_in_flight(latest: CheckpointMetadata, job: StorageLocation) -> None:
    """Checks that all rows of what was read are in the tables."""
    from dagster_flinkpy.checkpoint.reports.in_flight import has_in_flight

    if has_in_flight(latest):
        raise CheckpointError(
            f"checkpoint {latest.checkpoint_id} of job {job.name!r} has records in flight: barriers are unaligned, "
            "or a function has not selected them. Their rows are not in the tables yet, and the old program would not "
            "write them. Let the job run until a checkpoint has none: without new input, or with aligned barriers"
        )


def _read_up_to(latest: CheckpointMetadata, shadow: Shadow, job: StorageLocation) -> None:
    """Lets the old program read on a fork what its job has read, and what both recompute."""
    sources, sinks = sources_of(shadow.job.graph), sinks_of(shadow.job.graph)
    goal = Reached.by(latest, sources, job)
    if gone := [uid for uid in sources if uid not in goal.read]:
        raise CheckpointError(
            f"job {job.name!r} has gone on without the sources {', '.join(map(repr, gone))} of the old program, so "
            "nobody has written the rows of what they gave meanwhile, and the old program would not, either. Go on "
            "with another new version, or run the old program on a fork that writes to tables of its own"
        )
    _refuse_in_flight(latest, job)
    others: list[str] | None = None  # whose timers have fired otherwise when all was read; None: it has not been yet
    with shadow.attempt() as attempt:
        now = Reached.by(attempt.latest, sources, shadow.fork)
        for _ in range(MOST_EPOCHS):
            others = now.fired_otherwise(goal, sinks) if now.read == goal.read else others
            if now.read == goal.read and not others and now.is_over(goal):
                _refuse_processing_time(attempt.latest, job)
                return
            if attempt.finished:
                break
            attempt.run_epoch()
            before, now = now, Reached.by(attempt.latest, sources, shadow.fork)
            if now == before:
                break
    if others is not None and goal.ended:
        raise CheckpointError(
            f"job {job.name!r} was drained since the switch, so its timers and windows have fired. Those of the old "
            "program would fire again, and double their rows. Go on with the new one"
        )
    if now.read == goal.read and others:
        raise CheckpointError(
            f"the old program is at another event time than job {job.name!r} in {', '.join(map(repr, others))}, "
            "although it has read the same, because it has read it in other epochs. Some windows or timers have fired "
            "in one of them only, so rows would be doubled or missing. Switch to the old program instead, which goes "
            "on from the state of the new one"
        )
    if now.read == goal.read:
        raise CheckpointError(
            f"the old program has read what job {job.name!r} has, but is not done with it: records are in flight, or "
            "rows wait for what is recomputed. Go on with the new one"
        )
    unequal = ", ".join(repr(uid) for uid in sources if now.read.get(uid) != goal.read.get(uid))
    raise CheckpointError(
        f"the old program has not read the sources {unequal} exactly as far as job {job.name!r}, so rows would be "
        "missing or doubled. Run the job until it has read all of its input, and try again"
    )
