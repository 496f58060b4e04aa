"""Checks that a fork, a copy or a renamed job neither writes nor takes input away where its origin does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from dagster_flinkpy.checkpoint.forks.job_disposal import split_origin
from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.locations.savepoint_target import overlap
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_program import OperatorProgram, operator_program, taken_by
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSinkSpec, SinkSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import AccessDeniedError, ConfigurationError, CorruptMetadataError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.origins import origins_of

__all__ = ["refuse_copy", "refuse_renamed", "refuse_sinks_of", "refuse_sinks_of_origins"]

_SINK = SinkSpec.kind


def refuse_sinks_of_origins(job: StorageLocation, graph: JobGraph) -> None:
    """Checks that the sinks of a fork write to other tables, topics and folders than the jobs it was forked from.

    Nothing is checked if the job is no fork. The ids of its transactions differ anyway, because the job id is in them.

    Args:
        job: The prefix of the job.
        graph: Its program.

    Raises:
        ConfigurationError: A sink writes, or may write, where one of these jobs does; the message names it.
    """
    for owner in dict.fromkeys(split_origin(path)[0] for path in origins_of(job.open())):
        refuse_sinks_of(owner, job, graph)


def refuse_copy(
    latest: CheckpointMetadata | None, job: StorageLocation, graph: JobGraph, progress: Callable[[str], None]
) -> None:
    """Checks that a job whose folder was copied from another one's does not write where that job does.

    If that job is not beside it, the folder may have been renamed, or copied from elsewhere: a message says so.

    Args:
        latest: The latest checkpoint of the job. All that a job completes is its own, however it began.
        job: The prefix of the job.
        graph: Its program.
        progress: Takes one-line messages.

    Raises:
        ConfigurationError: A sink writes, or may write, where that job does; the message names it.
    """
    if latest is None or latest.job_id == job.name:
        return
    refuse_sinks_of(latest.job_id, job, graph, relation="copy")
    progress(
        f"warning: checkpoint {latest.checkpoint_id} was completed by job {latest.job_id!r}, so the folder of job "
        f"{job.name!r} is a copy of that job's. If that job runs anywhere, both write the same rows"
    )


def refuse_renamed(job: StorageLocation, graph: JobGraph) -> None:
    """Checks that a job without checkpoints is not one beside it under a new name, whose rows it would write again.

    Only a program that is the same as a whole counts: others may share their sources and tables.

    Args:
        job: The prefix of the job.
        graph: Its program.

    Raises:
        ConfigurationError: A job beside it has the same program; the message names it.
    """
    if (head := read_head(job.open())) is not None and head[0].checkpoint_id is not None:
        return
    # What operators without a uid do, the next one has; but a sink has no next one.
    ours = {vertex.uid: operator_program(graph, vertex.uid) for vertex in graph.vertices if vertex.uid_set}
    sinks = [ours[uid] for uid, _ in _sinks(graph) if uid in ours]
    places = dict.fromkeys(place for sink in sinks for place in (sink.writes_to, *sink.folders) if place)
    if not places or any("?" in each.settings.values() for each in ours.values()):
        return
    for other, latest in _beside(job):
        if other.name.startswith(f"{job.name}."):
            continue  # a region of an earlier release, which is refused with other advice
        theirs = {each.uid: each.program for each in latest.operators if each.program is not None}
        if theirs.keys() == ours.keys() and all(theirs[uid].settings == ours[uid].settings for uid in ours):
            way = f"run 'flinkpy job fork {other.url} --as {job.name}' and then 'flinkpy job dispose {other.url}'"
            if (kept := read_head(other.open())) is not None and kept[0].partitions:  # a fork has the last one only
                way = f"move {other.url} with all that is in it to {job.url}, so that the ends of its partitions stay"
            raise ConfigurationError(
                f"job {job.name!r} has no checkpoint, and job {other.name!r} beside it has the same program: "
                f"{job.name!r} would read its input again, and write its rows once more to {', '.join(places)}. If it "
                f"is {other.name!r} under a new name, {way}, and it continues. Or give its sinks other places. To "
                "write the rows once more, set start_empty in the config of one run"
            )


def _beside(job: StorageLocation) -> Iterator[tuple[StorageLocation, CheckpointMetadata]]:
    """Yields the jobs beside a job, with their latest checkpoints, as far as this process may read them."""
    with suppress(AccessDeniedError):
        for folder in job.parent.open().list_folders():
            other = job.parent.child(folder.rstrip("/"))
            with suppress(AccessDeniedError, CorruptMetadataError):
                if (latest := CompletedCheckpointStore(other.open()).latest()) is not None:
                    yield other, latest


def refuse_sinks_of(owner: str, job: StorageLocation, graph: JobGraph, *, relation: str = "fork") -> None:
    """Checks that the sinks of a fork write to other tables, topics and folders than one other job.

    And that its sources take nothing away that the other job is still to read.

    Args:
        owner: Id of the job whose tables they must not touch. Its prefix is beside that of the fork.
        job: The prefix of the fork. There need not be anything in it yet.
        graph: The program of the fork.
        relation: What the message calls the fork.

    Raises:
        ConfigurationError: A sink writes, or may write, where the job does, or a source takes from where it reads; the
            message names it.
    """
    latest = CompletedCheckpointStore(job.parent.child(owner).open()).latest()
    if latest is None:
        return  # it was disposed of, and its tables are free
    taken = {each.program.takes_from for each in latest.operators if each.program is not None}
    for vertex in graph.vertices:
        if (place := taken_by(vertex.spec)) and place in taken:
            raise ConfigurationError(
                f"source {vertex.uid!r} reads from {place}, as job {owner!r} does, of which job {job.name!r} is a "
                f"{relation}. What one of them has read is gone there, and the other one would miss it. Give the "
                f"source of the {relation} another place to read, such as a copy of the replication slot that was made "
                f"before the {relation}; or dispose of job {owner!r} if the {relation} replaces it"
            )
    theirs = {
        each.uid: each.program for each in latest.operators if each.program is not None and each.program.kind == _SINK
    }
    for uid, program in _sinks(graph):
        if (same := _touched(job, uid, program, theirs)) is not None:
            where = program.writes_to or ", ".join(program.folders) or "the same place"
            raise ConfigurationError(
                f"sink {uid!r} writes to {where}, as sink {same!r} of job {owner!r} does, of which job {job.name!r} is "
                f"a {relation}. Both would write the same rows. Give the sink of the {relation} another folder, "
                f"schema, table, branch or topic; or dispose of job {owner!r} if the {relation} replaces it"
            )


def _sinks(graph: JobGraph) -> Iterator[tuple[str, OperatorProgram]]:
    for vertex in graph.vertices:
        if isinstance(vertex.spec, SinkSpec) and not isinstance(vertex.spec, BlockingEdgeSinkSpec):
            yield vertex.uid, operator_program(graph, vertex.uid)


def _touched(
    job: StorageLocation, uid: str, program: OperatorProgram, theirs: dict[str, OperatorProgram]
) -> str | None:
    """Returns the sink of the other job that writes to the same place, or None."""
    for other, there in theirs.items():
        if _in_another_branch(program, there):
            continue
        if program.writes_to and program.writes_to == there.writes_to:
            return other
        only_staged = _only_stages_in_folders(program) and _only_stages_in_folders(there)
        if not only_staged and _overlap(job, program.folders, there.folders):
            return other
    there_too = theirs.get(uid)
    unknown = not program.writes_to and not program.folders
    return uid if unknown and there_too is not None and program.settings == there_too.settings else None


def _in_another_branch(program: OperatorProgram, there: OperatorProgram) -> bool:
    """Returns whether two sinks write to two branches of a table: ``folder#branch``, or ``folder`` for ``main``."""
    both = (program, there)
    in_folders = all(each.writes_to.partition("#")[0] in each.folders for each in both)
    classes = {each.settings.get("sink", "").partition("@")[0] for each in both}
    same_table = in_folders and len(classes) == 1 and program.folders == there.folders
    return same_table and program.writes_to != there.writes_to


def _only_stages_in_folders(program: OperatorProgram) -> bool:
    """Returns whether a sink has its table or topic in no folder. Any jobs may stage their rows in one folder.

    What is at a URL of another kind, as that of somebody's own sink, may have its files in these folders.
    """
    return program.writes_to.startswith(("postgresql://", "kafka://"))


def _overlap(job: StorageLocation, ours: Iterable[str], theirs: Iterable[str]) -> bool:
    return any(overlap(job, one, other) for one in ours for other in theirs)
