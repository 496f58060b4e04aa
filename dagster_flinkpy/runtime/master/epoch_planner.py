"""Plans the epochs of a job: the state each one starts from, what it reads, and the metadata of its checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dagster_flinkpy.checkpoint.instructions import WriteMetadata
from dagster_flinkpy.checkpoint.messages import Subtask
from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_program import operator_program
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.checkpoint.restore import RestorePlan
from dagster_flinkpy.datastream.connectors.base import SplitEnumeratorContext
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.runtime.epoch import Epoch, EpochJob, SubtaskInput
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.partition_input import of_partition
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.runtime.master.split_planner import SplitPlanner
from dagster_flinkpy.runtime.master.subtask_inputs import inputs_after, inputs_of_plan, states_of_inputs
from dagster_flinkpy.runtime.python_environment import pack

__all__ = ["EpochPlanner"]


class EpochPlanner:
    """Tracks the input and state of an execution attempt, and plans its epochs.

    Args:
        graph: The program.
        config: Where the job runs.
        context: Tells split enumerators which job and attempt they work for.
        restored: The checkpoint or savepoint that the job continues from; None if it starts empty.
        plan: The restored state by operator; None if the job starts empty.
    """

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        context: SplitEnumeratorContext,
        restored: CheckpointMetadata | None,
        plan: RestorePlan | None,
    ) -> None:
        self.config = config
        self.fencing_token = context.fencing_token
        self.parent = restored
        """The last completed checkpoint, or the restored checkpoint or savepoint; None if there is neither."""
        self.partition: TimePartition | None = None
        """The time partition that the next epoch reads; None if it reads the next input."""
        coordinators = {u: o.coordinator_state for u, o in plan.operators.items() if o.restored} if plan else {}
        self.splits = SplitPlanner(graph, coordinators, context)
        """Plans the splits that the sources read."""
        self.ended: dict[int, bool] = {}
        """Whether all input ends with a checkpoint, for each one that is not complete yet."""
        self._graph = self._program = graph
        # An operator without an explicit uid has a generated one, which another operator may have tomorrow.
        self._programs = {v.uid: operator_program(graph, v.uid) for v in graph.vertices if v.uid_set}
        self._python = pack(graph.vertices[0].python)
        self._context = context
        self._continues_from = None if restored is None else restored.checkpoint_id
        self._inputs = inputs_of_plan(plan) if plan else {}
        self._repeated: int | None = None

    def read_partition(self, partition: TimePartition) -> None:
        """Restricts the sources to a time partition; the next epoch reads all of it.

        Raises:
            ConfigurationError: A source cannot be read by partition.
        """
        self._program, self.partition = of_partition(self._graph, partition), partition
        self.splits = SplitPlanner(self._program, {}, self._context, whole=True)

    def plan(self, checkpoint_id: int, before: Epoch | None = None) -> Epoch:
        """Plans the input up to a barrier.

        Args:
            checkpoint_id: The checkpoint of the barrier.
            before: The previous epoch of the same Spark job, which has not run yet, or None.

        Raises:
            SourceReadError: The input cannot be listed.
        """
        if before is not None:
            self.splits.assume_read(before)
        epoch = self.splits.plan(checkpoint_id)
        self.ended[checkpoint_id] = self.splits.ends(epoch)
        return epoch

    def plan_drain(self, checkpoint_id: int) -> Epoch:
        """Plans an epoch that reads nothing and ends all input."""
        self.ended[checkpoint_id] = True
        return Epoch(checkpoint_id, {}, frozenset(self.splits.uids))

    def repeat(self, checkpoint_id: int) -> EpochResults:
        """Returns the current state as the results of an epoch that has read nothing."""
        assert self.parent is not None
        self._repeated, self.ended[checkpoint_id] = checkpoint_id, self.parent.end_of_input
        self.splits.snapshot(checkpoint_id)
        return EpochResults(acknowledged={checkpoint_id: states_of_inputs(self._graph, self._inputs)})

    def job(self, epochs: Sequence[Epoch], restarts: int = 0) -> EpochJob:
        """Returns the Spark job that reads these epochs in order.

        Args:
            epochs: The epochs.
            restarts: How often the region has restarted in this execution attempt. Default: 0.
        """
        first, last = epochs[0], epochs[-1]
        inputs = dict(self._inputs)
        for task, splits in first.splits.items():
            inputs[task] = replace(inputs.get(task, SubtaskInput()), splits=splits)
        config, checkpointing = self.config, self.config.checkpointing
        # After the end of input no Spark job follows that could process in-flight records.
        unaligned = checkpointing.unaligned and not self.ended[last.checkpoint_id]
        return EpochJob(
            graph=self._program,
            job_id=config.job_id,
            checkpoint_id=first.checkpoint_id,
            fencing_token=self.fencing_token,
            job_storage=config.storage.child(config.job_id),
            inputs=inputs,
            ended_sources=first.ended_sources,
            later=tuple(epochs[1:]),
            restarts=restarts,
            mode=checkpointing.mode,
            alignment_timeout=checkpointing.aligned_timeout if unaligned else None,
            latency_interval=config.latency_tracking_interval,
            state_backend=checkpointing.state_backend,
            partition=None if self.partition is None else self.partition.key,
            cache_dir=config.cache_dir or str(Path(tempfile.gettempdir()) / "flinkpy-cache"),
            restored=self._continues_from,
            python=self._python,
        )

    def metadata(self, write: WriteMetadata, properties: Mapping[str, Any]) -> CheckpointMetadata:
        """Returns the metadata of the checkpoint at the end of an epoch.

        Args:
            write: The acknowledged state.
            properties: Properties of the checkpoint, as JSON values; those that are None are left out.
        """
        operators = tuple(
            OperatorState(
                uid=v.uid,
                name=v.name,
                parallelism=v.parallelism,
                max_parallelism=v.max_parallelism,
                coordinator_state=write.coordinator_states.get(v.uid),
                subtasks=write.states[v.uid],
                program=self._programs.get(v.uid),
            )
            for v in self._graph.vertices
        )
        return CheckpointMetadata(
            job_id=self.config.job_id,
            checkpoint_id=write.checkpoint_id,
            kind=CheckpointKind.CHECKPOINT,  # a savepoint is a copy of it
            parent_id=None if self.parent is None else self.parent.checkpoint_id,
            timestamp_ms=write.trigger_ms,
            partition=None if self.partition is None else self.partition.key,
            fencing_token=self.fencing_token,
            graph_fingerprint=self._graph.fingerprint,
            end_of_input=self.ended[write.checkpoint_id],
            operators=operators,
            properties={name: value for name, value in properties.items() if value is not None},
            master_states=dict(write.master_states),
        )

    def partition_end(self, metadata: CheckpointMetadata, kept: Iterable[PartitionEnd]) -> PartitionEnd | None:
        """Returns the entry for the end state of a time partition, or None if a checkpoint is no end state.

        Args:
            metadata: The checkpoint.
            kept: The end states that the job keeps.
        """
        if self.partition is not None:
            return PartitionEnd(self.partition.key, self.partition.ordinal, metadata.checkpoint_id, metadata.parent_id)
        if metadata.checkpoint_id != self._repeated:
            return None
        # A repeated checkpoint has the same state, such as at another parallelism. The next partition starts from it.
        same = (end for end in kept if end.checkpoint_id == metadata.parent_id)
        return next((replace(end, checkpoint_id=metadata.checkpoint_id) for end in same), None)

    def advance(self, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> None:
        """Lets the next epoch start from the acknowledged state of a checkpoint."""
        self._continues_from, self._inputs = checkpoint_id, inputs_after(states)

    def completed(self, metadata: CheckpointMetadata) -> None:
        """Records that a checkpoint is complete."""
        self.parent = metadata
        del self.ended[metadata.checkpoint_id]
