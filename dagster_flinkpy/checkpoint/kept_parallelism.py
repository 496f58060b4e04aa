"""Decides the parallelism of a job that continues from a checkpoint, and explains the decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.datastream.program.job_graph import JobGraph

__all__ = ["PARALLELISM", "SettledParallelism", "settle_parallelism"]

PARALLELISM = "parallelism"
"""Property of a checkpoint: the parallelism that the last rescale set, which is kept until the next one."""
_MOST_NAMED = 5


@dataclass(frozen=True)
class SettledParallelism:
    """The parallelism that a run uses."""

    graph: JobGraph
    """The program at that parallelism."""
    kept: int | None
    """The parallelism that the run's checkpoints record for later runs; None if the program decides."""
    told: tuple[str, ...] = ()
    """Messages of the run, if the parallelism may surprise someone."""


def settle_parallelism(
    program: JobGraph, restored: CheckpointMetadata | None, asked: int | None = None
) -> SettledParallelism:
    """Decides the parallelism of a run.

    The parallelism that the run asks for takes precedence over the one that the last rescale set, and that one over the
    program's. Both apply only to operators that do not set their own parallelism.

    Args:
        program: The program as written.
        restored: The checkpoint or savepoint that the run continues from; None if it starts empty.
        asked: The parallelism that the run, or a job such as rescale, asks for; None if it asks for none.

    Raises:
        ParallelismError: The parallelism is above a max parallelism that the program sets.
    """
    noted = None if restored is None else restored.properties.get(PARALLELISM)
    kept = asked if asked is not None else noted if isinstance(noted, int) else None
    if kept is None:
        return SettledParallelism(program, None, _told_of_program(program, restored))
    graph = program.with_parallelism(kept)
    told = []
    changed = {v.uid: v.parallelism for v in program.vertices if v.parallelism != graph.vertex(v.uid).parallelism}
    if changed:
        programs = ", ".join(map(str, sorted({*changed.values()})))
        if asked is not None:
            told.append(
                f"parallelism {kept}, set by this run, takes precedence over the program's {programs}; later runs keep "
                "it until the job is rescaled again or starts empty"
            )
        else:
            told.append(
                f"parallelism {kept}, set by the last rescale, takes precedence over the program's {programs}; "
                "rescale the job to change it"
            )
    own = {v.uid: v.parallelism for v in program.vertices if v.uid_set and v.parallelism_set and v.parallelism != kept}
    if asked is not None and own:
        told.append(f"operators that set their own parallelism keep it: {_listed(own)}")
    return SettledParallelism(graph, kept, tuple(told))


def _told_of_program(program: JobGraph, restored: CheckpointMetadata | None) -> tuple[str, ...]:
    if restored is None:
        return ()
    stored = {o.uid: o.parallelism for o in restored.operators}
    new = {
        v.uid: f"{stored[v.uid]} -> {v.parallelism}"
        for v in program.vertices
        if stored.get(v.uid, v.parallelism) != v.parallelism
    }
    if not new:
        return ()
    what = f"{restored.kind.value} {restored.checkpoint_id}"
    return (f"parallelism set by the program, which differs from that of {what}: {_listed(new)}",)


def _listed(by_uid: Mapping[str, object]) -> str:
    named = [f"{uid!r} ({value})" for uid, value in by_uid.items()]
    more = [f"{len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    return ", ".join(named[:_MOST_NAMED] + more)
