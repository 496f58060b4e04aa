"""The epochs of a job: what each starts from, what it reads, and what the checkpoint at its end says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dagster_flinkpy.checkpoint.instructions import WriteMetadata
from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata, OperatorState
from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.checkpoint.restore import RestorePlan
from dagster_flinkpy.datastream.connectors.base import SplitEnumeratorContext
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.runtime.epoch import Epoch, Interval, SubtaskInput
from dagster_flinkpy.runtime.job_config import JobConfig
from dagster_flinkpy.runtime.partition_input import of_partition
from dagster_flinkpy.runtime.results import EpochResults
from dagster_flinkpy.runtime.split_planner import SplitPlanner
from dagster_flinkpy.runtime.subtask_inputs import inputs_after, inputs_of_plan, states_of_inputs

__all__ = ["EpochPlanner"]


class EpochPlanner:
    """Where an execution attempt is in its input, and with what state; plans the epochs from there on.

    Args:
        graph: The program.
        config: Where the job runs.
        context: Where the split enumerators run, and for whom.
        restored: The checkpoint or savepoint that the job goes on from; None: it starts empty.
        plan: What of it is whose.
    """

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        context: SplitEnumeratorContext,
        restored: CheckpointMetadata | None,
        plan: RestorePlan | None,
    ) -> None:
        self.parent = restored
        """The checkpoint or savepoint that the next epoch goes on from."""
        self.partition: TimePartition | None = None
        """The partition of time that the next epoch reads."""
        coordinators = {uid: o.coordinator_state for uid, o in plan.operators.items()} if plan else {}
        self.splits = SplitPlanner(graph, coordinators, context)
        """Deals out what the sources read."""
        self.ended: dict[int, bool] = {}
        """By checkpoint of what was planned last, whether all input ends with it."""
        self._graph = self._program = graph
        self._config = config
        self._context = context
        self._inputs = inputs_of_plan(plan) if plan else {}
        self._repeated: int | None = None

    def read_partition(self, partition: TimePartition) -> None:
        """Cuts the sources down to a partition of time, which the next epoch reads whole.

        Raises:
            ConfigurationError: A source cannot be read by partition.
        """
        self._program, self.partition = of_partition(self._graph, partition), partition
        self.splits = SplitPlanner(self._program, {}, self._context, whole=True)

    def plan(self, checkpoint_id: int, barriers: int, next_checkpoint: Callable[[], int]) -> list[Interval]:
        """Plans what the barriers end that one Spark job is to carry; they are fewer where the input ends.

        Args:
            checkpoint_id: Of the first barrier.
            barriers: How many there may be.
            next_checkpoint: Gives the id of each further one.

        Raises:
            SourceReadError: The input cannot be listed.
        """
        intervals = [self.splits.plan(checkpoint_id)]
        while len(intervals) < barriers and not self.splits.ends(intervals[-1]):
            self.splits.assume_read(intervals[-1])
            intervals.append(self.splits.plan(next_checkpoint()))
        self.ended = {interval.checkpoint_id: self.splits.ends(interval) for interval in intervals}
        return intervals

    def plan_drain(self, checkpoint_id: int) -> list[Interval]:
        """Plans an epoch that reads nothing and ends all input."""
        self.ended = {checkpoint_id: True}
        return [Interval(checkpoint_id, {}, frozenset(self.splits.uids))]

    def repeat(self, checkpoint_id: int) -> EpochResults:
        """The state as it is, once more, as from an epoch that has read nothing."""
        assert self.parent is not None
        self._repeated, self.ended = checkpoint_id, {checkpoint_id: self.parent.end_of_input}
        self.splits.snapshot(checkpoint_id)
        return EpochResults(acknowledged={checkpoint_id: states_of_inputs(self._graph, self._inputs)})

    def epoch(self, intervals: Sequence[Interval]) -> Epoch:
        """What the tasks of the Spark job are told that carries the barriers of these intervals."""
        first, last = intervals[0], intervals[-1]
        inputs = dict(self._inputs)
        for task, splits in first.splits.items():
            inputs[task] = replace(inputs.get(task, SubtaskInput()), splits=splits)
        config, checkpointing = self._config, self._config.checkpointing
        # No Spark job follows the end of input that could process what is in flight.
        unaligned = checkpointing.unaligned and not self.ended[last.checkpoint_id]
        return Epoch(
            graph=self._program,
            job_id=config.job_id,
            checkpoint_id=first.checkpoint_id,
            attempt=self._context.attempt,
            job_storage=config.storage.child(config.job_id),
            inputs=inputs,
            ended_sources=first.ended_sources,
            later=tuple(intervals[1:]),
            mode=checkpointing.mode,
            alignment_timeout=checkpointing.aligned_timeout if unaligned else None,
            latency_interval=config.latency_tracking_interval,
            state_backend=checkpointing.state_backend,
            partition=None if self.partition is None else self.partition.key,
            cache_dir=config.cache_dir or str(Path(tempfile.gettempdir()) / "flinkpy-cache"),
            restored=None if self.parent is None else self.parent.checkpoint_id,
        )

    def metadata(self, write: WriteMetadata, properties: Mapping[str, Any]) -> CheckpointMetadata:
        """What the checkpoint at the end of an epoch says.

        Args:
            write: What was acknowledged.
            properties: JSON values; those that are None are left out.
        """
        operators = tuple(
            OperatorState(
                uid=v.uid,
                name=v.name,
                parallelism=v.parallelism,
                max_parallelism=v.max_parallelism,
                coordinator_state=write.coordinator_states.get(v.uid),
                subtasks=write.states[v.uid],
            )
            for v in self._graph.vertices
        )
        return CheckpointMetadata(
            job_id=self._config.job_id,
            checkpoint_id=write.checkpoint_id,
            kind=CheckpointKind.CHECKPOINT,  # a savepoint is a copy of it
            parent_id=None if self.parent is None else self.parent.checkpoint_id,
            timestamp_ms=write.trigger_ms,
            partition=None if self.partition is None else self.partition.key,
            fencing_token=self._context.attempt,
            graph_fingerprint=self._graph.fingerprint,
            end_of_input=self.ended[write.checkpoint_id],
            operators=operators,
            properties={name: value for name, value in properties.items() if value is not None},
            master_states=dict(write.master_states),
        )

    def partition_end(self, metadata: CheckpointMetadata, kept: Iterable[PartitionEnd]) -> PartitionEnd | None:
        """The end state of a partition of time that a checkpoint is; None: it is none.

        Args:
            metadata: The checkpoint.
            kept: The end states that the job keeps.
        """
        if self.partition is not None:
            return PartitionEnd(self.partition.key, self.partition.ordinal, metadata.checkpoint_id, metadata.parent_id)
        if metadata.checkpoint_id != self._repeated:
            return None
        # The same state once more, such as at another parallelism: the next partition is to start from this one.
        same = (end for end in kept if end.checkpoint_id == metadata.parent_id)
        return next((replace(end, checkpoint_id=metadata.checkpoint_id) for end in same), None)

    def go_on_from(self, metadata: CheckpointMetadata) -> None:
        """The next epoch starts from what the one of this checkpoint has left."""
        self.parent, self._inputs = metadata, inputs_after(metadata)
