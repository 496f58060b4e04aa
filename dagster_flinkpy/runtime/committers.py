"""The committers of a job's sinks: second phase of their commits, on the driver (Flink: ``CommitterOperator``)."""

from __future__ import annotations

from collections.abc import Iterator

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    CommitterInitContext,
    SinkCommitter,
    TwoPhaseCommittingSink,
)
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.operators import SinkSpec
from dagster_flinkpy.errors import CommittableLostError, ConfigurationError

__all__ = ["Committers"]


class Committers:
    """One committer for each sink that has something to commit.

    Args:
        graph: The program.
        job_id: The job.
        attempt: Fencing token of the execution attempt.
    """

    def __init__(self, graph: JobGraph, job_id: str, attempt: int) -> None:
        self._committers: dict[str, SinkCommitter] = {
            v.uid: v.spec.sink.create_committer(CommitterInitContext(job_id, v.uid, attempt))
            for v in graph.vertices
            if isinstance(v.spec, SinkSpec) and isinstance(v.spec.sink, TwoPhaseCommittingSink)
        }

    @property
    def uids(self) -> tuple[str, ...]:
        """Of the sinks."""
        return tuple(self._committers)

    def __iter__(self) -> Iterator[SinkCommitter]:
        return iter(self._committers.values())

    def check_partitioned(self) -> None:
        """Refuses sinks that cannot replace a partition: once its checkpoint is complete, no attempt could commit it.

        Raises:
            ConfigurationError: Names the sink.
        """
        for uid, committer in self._committers.items():
            if type(committer).replace_partition is SinkCommitter.replace_partition:
                raise ConfigurationError(
                    f"sink {uid!r} ({type(committer).__qualname__}) cannot be written by partition: it has no "
                    "replace_partition method, which a partition that is run again needs"
                )

    def commit(self, metadata: CheckpointMetadata) -> int:
        """Commits a completed checkpoint; says how many of its committables had been committed before.

        One of a time partition takes the place of what older checkpoints have committed to that partition. Between the
        two a reader sees both.

        Raises:
            CommittableLostError: One is gone; all others are committed.
            SinkCommitError: One cannot be committed.
        """
        before, lost = 0, None
        for uid, committer in self._committers.items():
            if requests := _requests(metadata, uid):
                try:
                    before += committer.commit(requests)
                except CommittableLostError as e:
                    lost = lost or e
        if lost is not None:
            raise lost
        if metadata.partition is not None:
            for committer in self._committers.values():
                committer.replace_partition(metadata.partition, metadata.checkpoint_id)
        return before

    def lingering(self, latest: CheckpointMetadata | None) -> dict[str, int]:
        """How much is open that the latest checkpoint does not name, by uid."""
        return {
            uid: committer.lingering(_requests(latest, uid) if latest else [])
            for uid, committer in self._committers.items()
        }

    def abort_lingering(self, latest: CheckpointMetadata | None) -> int:
        """Aborts what is open and the latest checkpoint does not name; says how much that was."""
        return sum(
            committer.abort_lingering(_requests(latest, uid) if latest else [])
            for uid, committer in self._committers.items()
        )


def _requests(metadata: CheckpointMetadata, uid: str) -> list[CommitRequest]:
    operator = metadata.operator(uid)
    return [
        CommitRequest(metadata.checkpoint_id, s.index, c)
        for s in (operator.subtasks if operator else ())
        for c in s.committables
    ]
