"""Finds the state of jobs that are now parts of one job.

In earlier releases, the regions of a program, and before that the parts that no edge connects, were separate jobs. Such
a program is now one job. If it started from empty state next to the checkpoints of the former jobs, it would read and
commit the same rows again.
"""

from __future__ import annotations

from collections.abc import Iterable

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.storage import StorageLocation, lease

__all__ = ["refuse_former_jobs"]


def refuse_former_jobs(storage: StorageLocation, job_id: str, graph: JobGraph, former: Iterable[str]) -> None:
    """Refuses a job if former jobs have state of its operators, but the job itself does not.

    Args:
        storage: The checkpoint directory, with the folders of the jobs.
        job_id: Id of the job.
        graph: The whole program.
        former: Ids that the jobs of its regions and parts may have had.

    Raises:
        RestoreError: There is such a former job. The message says how to continue.
    """
    jobs = {each: latest for each in (job_id, *former) if (latest := _latest(storage, each)) is not None}
    own = jobs.pop(job_id, None)
    missing = {vertex.uid for vertex in graph.vertices} - _operators(own)
    found = {each: latest for each, latest in jobs.items() if missing & _operators(latest)}
    if not found:
        return
    if own is not None:
        found = {job_id: own, **found}
    names = ", ".join(map(repr, found))
    if len(graph.regions()) > 1:
        raise RestoreError(
            f"job {job_id!r} runs all regions of the program, but their state is in the checkpoints of jobs {names}: "
            "regions used to be separate jobs, each at a checkpoint of its own, so their state does not fit together. "
            "Finish those jobs with the release that wrote them. Or leave their state behind with start_empty or "
            "another checkpoint directory: the job then reads all input again, so let its sinks write elsewhere."
        )
    folders = [storage.child(each) for each in found]
    join = ""
    if all(_has_committed(folder, latest) for folder, latest in zip(folders, found.values(), strict=True)):
        first, *others = (folder.url for folder in folders)
        added = "".join(f".with_operators_of({url!r})" for url in others)
        join = (
            f"Or join their state with write_savepoint({first!r}){added}.write(...) of "
            "dagster_flinkpy.state_processor, and restore that. "
        )
    raise RestoreError(
        f"job {job_id!r} runs all parts of the program, but their state is in the checkpoints of jobs "
        f"{names}: parts that no edge connects used to be separate jobs. To keep them separate, "
        f"make a program of each part, and name it after its job. {join}Or leave the state behind with start_empty."
    )


def _latest(storage: StorageLocation, job_id: str) -> CheckpointMetadata | None:
    return CompletedCheckpointStore(storage.child(job_id).open()).latest()


def _operators(checkpoint: CheckpointMetadata | None) -> set[str]:
    return set() if checkpoint is None else {operator.uid for operator in checkpoint.operators}


def _has_committed(job: StorageLocation, latest: CheckpointMetadata) -> bool:
    """Returns whether a job is known to have committed its latest checkpoint; a savepoint has no open transactions."""
    record = lease.read(job.open())
    return record is not None and record.committed == latest.checkpoint_id
