"""Runs a program on a fork, with its rows in a folder instead of its tables, or nowhere."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.datastream.connectors.base import Sink, SinkWriter
from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSinkSpec, OperatorSpec, SinkSpec, SourceSpec
from dagster_flinkpy.errors import JobNotFoundError
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.resources import SparkResource, checkpoint_storage
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
    from dagster_flinkpy.checkpoint.recomputation import Recomputation
    from dagster_flinkpy.datastream.program.job_graph import JobGraph
    from dagster_flinkpy.runtime.master.job import JobAttempt

__all__ = ["MOST_EPOCHS", "Shadow", "delete_forks", "positions_of", "sinks_of", "sources_of"]

MOST_EPOCHS = 1000
"""How many epochs a fork may need to read as much as its job has."""


class _NoRows(Sink, SinkWriter):
    """Drops all rows. So no checkpoint of the fork names any, whenever its run dies."""

    def validate(self, type_info: Any) -> None:
        pass

    def create_writer(self, context: Any, type_info: Any) -> SinkWriter:
        return self

    def write(self, column: pa.Array[Any]) -> None:
        pass

    def abort(self) -> None:
        pass


@dataclass(frozen=True)
class Shadow:
    """A program that runs on a fork."""

    job: FlinkJob
    """The program, as a job of any name."""
    fork: StorageLocation
    """The folder of the fork."""
    rows: StorageLocation | None
    """Where the rows of the sinks go, in a folder for each, as Parquet; None: nowhere."""
    spark: SparkResource
    owner: str
    on_progress: Callable[[str], None]
    recomputation: Recomputation | None = None
    """What is recomputed. Default: nothing."""

    def attempt(self) -> JobAttempt:
        """Creates an attempt of the fork.

        Raises:
            ConfigurationError: The records of a sink have no type, so they cannot be compared.
        """
        from dagster_flinkpy.connectors.files.table_sinks import ParquetSink

        graph, specs = self.job.graph, dict[str, OperatorSpec]()
        for uid, spec in sinks_of(graph).items():
            sink = _NoRows() if self.rows is None else ParquetSink(self.rows.child(uid))
            sink.validate(graph.inputs(uid)[0].type_info)
            specs[uid] = replace(spec, sink=sink)
        checkpointing = copy.copy(self.job.checkpointing)
        # Rows in flight would not be compared, and a roll-back would write them again.
        checkpointing.enable_unaligned_checkpoints(False)
        job = replace(self.job, job_id=self.fork.name, graph=graph.with_specs(specs), checkpointing=checkpointing)
        storage = checkpoint_storage(self.fork.parent, 1)
        options: dict[str, Any] = {"owner": self.owner, "on_progress": self.on_progress}
        return job.attempt(storage, self.spark, recomputation=self.recomputation, **options)

    def run(self, epochs: int, start: CheckpointMetadata) -> CheckpointMetadata | None:
        """Runs some epochs, or fewer if the input ends, and returns the last checkpoint.

        Args:
            epochs: How many.
            start: What was forked. If sources are read again, no epoch is run once they are as far.
        """
        again = [] if self.recomputation is None else list(self.recomputation.sources)
        goal = positions_of(start, again)
        with self.attempt() as attempt:
            for _ in range(epochs):
                if attempt.finished:
                    break
                attempt.run_epoch()
                if again and positions_of(attempt.latest, again) == goal:
                    break
            return attempt.latest


def delete_forks(rows: StorageLocation | None, *forks: StorageLocation) -> None:
    """Deletes forks, and the rows in a folder, that are not needed any more.

    Args:
        rows: The folder; None: there are none.
        forks: The forks, as far as there are any.
    """
    from dagster_flinkpy.checkpoint.forks.job_disposal import dispose_job

    for fork in forks:
        with suppress(JobNotFoundError):
            dispose_job(fork)
    if rows is not None:
        store = rows.open()
        store.delete_many([info.key for info in store.list()])


def sinks_of(graph: JobGraph) -> dict[str, SinkSpec]:
    """Returns the sinks of a program, by uid."""
    return {
        v.uid: v.spec
        for v in graph.vertices
        if isinstance(v.spec, SinkSpec) and not isinstance(v.spec, BlockingEdgeSinkSpec)
    }


def positions_of(metadata: CheckpointMetadata | None, sources: Sequence[str]) -> dict[str, Any]:
    """Returns how far a checkpoint has read each source, in a form that can be compared.

    Args:
        metadata: The checkpoint.
        sources: Uids of the sources.
    """
    found = {}
    for operator in () if metadata is None else metadata.operators:
        if operator.uid in sources:
            state = operator.coordinator_state
            if isinstance(state, dict):  # how much there was to read says nothing about what was read
                state = {name: value for name, value in state.items() if name != "lag"}
            # A split that was read to its end is only there until the next checkpoint.
            splits = [split for s in operator.subtasks for split in s.splits if not split.get("finished")]
            splits = sorted(json.dumps(split, sort_keys=True) for split in splits)
            found[operator.uid] = [state, splits]
    return found


def sources_of(graph: JobGraph) -> list[str]:
    """Returns the uids of the sources that read from outside of the program."""
    return [v.uid for v in graph.sources if isinstance(v.spec, SourceSpec)]
