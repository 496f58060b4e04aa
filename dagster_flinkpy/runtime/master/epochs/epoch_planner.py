"""Plans the epochs of a region: the state each one starts from, and what it reads."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import SubtaskState, without_copies
from dagster_flinkpy.checkpoint.restore import RestorePlan, reassign_operator_state
from dagster_flinkpy.datastream.connectors.base import SplitEnumeratorContext
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSinkSpec, BlockingEdgeSourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.program.partitioned_program import of_partition
from dagster_flinkpy.datastream.program.python_environment import pack
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeInputs, EdgeOutput
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob, SubtaskInputs
from dagster_flinkpy.runtime.master.epochs.operator_coordinators import OperatorCoordinators
from dagster_flinkpy.runtime.master.epochs.split_planner import SplitPlanner
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.results import EpochResults, TaskFailure
from dagster_flinkpy.state.handles import DistributionMode

__all__ = ["EpochPlanner", "inputs_after"]


@dataclass(frozen=True)
class _Left:
    """What an epoch has left, from which others start."""

    checkpoint_id: int | None
    """The first checkpoint that has it; None for empty state."""
    inputs: SubtaskInputs
    ended: bool
    """Whether the input of the region has ended."""
    unwritten: TaskFailure | None = None
    """Why a part of it is not in the store; None if all is there."""


class EpochPlanner:
    """Tracks the input and state of a region, and plans its epochs."""

    def __init__(
        self,
        graph: JobGraph,
        number: int,
        config: JobConfig,
        context: SplitEnumeratorContext,
        restored: CheckpointMetadata | None,
        plan: RestorePlan | None,
    ) -> None:
        self.config = config
        self.fencing_token = context.fencing_token
        self.partition: TimePartition | None = None
        """The time partition that the next epoch reads; None if it reads the next input."""
        coordinators = {u: o.coordinator_state for u, o in plan.operators.items() if o.restored} if plan else {}
        self.splits = SplitPlanner(graph, coordinators, context)
        """Plans the splits that the sources read."""
        continues_from = None if restored is None else restored.checkpoint_id
        self.coordinators = OperatorCoordinators(graph, coordinators, continues_from)
        """The coordinators of the functions."""
        self.ended: dict[int, bool] = {}
        """Whether the region's input ends with a checkpoint, for each one that is not complete yet."""
        self.edge_sinks = frozenset(v.uid for v in graph.vertices if isinstance(v.spec, BlockingEdgeSinkSpec))
        """Uids of the operators that write blocking edges."""
        self.edge_sources = {
            v.uid: v.spec.source.sink_uid for v in graph.vertices if isinstance(v.spec, BlockingEdgeSourceSpec)
        }
        """By uid of each operator that reads a blocking edge, the operator of another region that writes it."""
        self.tasks = tuple(Subtask(v.uid, i) for v in graph.vertices for i in range(v.parallelism))
        """All subtasks of the region."""
        self._graph = self._program = graph
        self.number = number
        self._python = pack(graph.vertices[0].python)
        self._context = context
        uids = {v.uid for v in graph.vertices}
        self.in_flight = _in_flight(plan, self.edge_sources)
        """What the restored checkpoint names of the edges that the region reads."""
        inputs = {task: i for task, i in plan.inputs.items() if task[0] in uids} if plan else {}
        self._start = 0
        """The epoch from whose state the next one starts; 0 for the start of the attempt."""
        self._left = {0: _Left(continues_from, inputs, restored is not None and restored.end_of_input)}
        """What epochs have left; 0 stands for the start of the attempt."""

    @property
    def _state(self) -> _Left:
        return self._left[self._start]

    def read_partition(self, partition: TimePartition) -> None:
        """Restricts the sources to a time partition; the next epoch reads all of it.

        Raises:
            ConfigurationError: A source cannot be read by partition.
        """
        self._program, self.partition = of_partition(self._graph, partition), partition
        self.splits = SplitPlanner(self._program, self.splits.static_positions(), self._context, whole=True)

    def repeat(self, checkpoint_id: int) -> EpochResults:
        """Returns the current state as the results of an epoch that has read nothing."""
        self.coordinators.repeat(checkpoint_id, self._start)
        return self._current(checkpoint_id)

    def overtake(self, checkpoint_id: int) -> EpochResults:
        """Returns the current state for a checkpoint that does not wait for the epoch that is read."""
        self.coordinators.overtake(checkpoint_id, self._start)
        return self._current(checkpoint_id)

    def _current(self, checkpoint_id: int) -> EpochResults:
        self.ended[checkpoint_id] = self._state.ended
        self.splits.snapshot(checkpoint_id)
        return EpochResults(_states_of(self._graph, self._state.inputs), self._state.unwritten)

    def empty_epoch(self, checkpoint_id: int) -> EpochInput:
        """Returns an epoch that reads nothing, at which sources that have ended stay ended."""
        return EpochInput(checkpoint_id, {}, frozenset(self.splits.all_uids if self._state.ended else ()))

    def job(self, epoch: EpochInput, restarts: int = 0) -> EpochJob:
        """Returns the Spark job that reads an epoch."""
        config, checkpointing, state = self.config, self.config.checkpointing, self._state
        # After the end of input no Spark job follows that could process in-flight records, and one of another time
        # partition would write them as its own. Of an epoch that is open, the barriers say whether its input ends.
        unaligned = checkpointing.unaligned and self.partition is None and not self.splits.ends(epoch)
        return EpochJob(
            graph=self._program,
            job_id=config.job_id,
            epoch=epoch,
            fencing_token=self.fencing_token,
            job_storage=config.storage.child(config.job_id),
            inputs=state.inputs,
            restarts=restarts,
            mode=checkpointing.mode,
            alignment_timeout=checkpointing.aligned_timeout if unaligned else None,
            latency_interval=config.latency_tracking_interval,
            state_backend=checkpointing.state_backend,
            managed_memory=checkpointing.managed_memory,
            partition=None if self.partition is None else self.partition.key,
            cache_dir=config.cache_dir or str(Path(tempfile.gettempdir()) / "flinkpy-cache"),
            restored=state.checkpoint_id,
            start=self._start,
            declines=checkpointing.tolerable_failed > 0 and self.partition is None,
            unwritten=None if state.unwritten is None else state.unwritten.error,
            buffer_timeout=None if (timeout := config.exchange.buffer_timeout) is None else timeout.total_seconds(),
            region=self.number,
            python=self._python,
        )

    def advance(self, checkpoint_id: int, results: EpochResults, *, ended: bool | None) -> None:
        """Lets the next epoch start from the state that a Spark job has left.

        Its input ends with the epoch or not; if that is None, the job has read nothing.
        """
        ended = self._state.ended if ended is None else ended
        self._start = checkpoint_id
        self._left[checkpoint_id] = _Left(checkpoint_id, inputs_after(results.states), ended, results.declined)

    def unwritten_at(self, epoch: int) -> TaskFailure | None:
        """Returns why a part of the state is not in the store that an epoch has left; None if all is there."""
        return self._left[epoch].unwritten

    def acknowledged_with(self, epoch: int, checkpoint_id: int) -> None:
        """Notes which checkpoint has a state first, so that user functions are told of it."""
        self._left[epoch] = replace(self._left[epoch], checkpoint_id=checkpoint_id)

    def rewind(self, checkpoint_id: int) -> None:
        """Lets the next epoch start from an earlier state."""
        self._start = checkpoint_id

    def forget_before(self, checkpoint_id: int) -> None:
        """Forgets the states before the one that a complete checkpoint has."""
        self._left = {number: left for number, left in self._left.items() if number >= checkpoint_id}
        self.coordinators.forget_before(checkpoint_id)

    def coordinator_states(self, checkpoint_id: int) -> dict[str, Any]:
        """Returns the states of enumerators and coordinators at the barrier of a checkpoint, by uid."""
        return self.splits.take_states(checkpoint_id) | self.coordinators.take_states(checkpoint_id)


def _in_flight(plan: RestorePlan | None, edge_sources: Mapping[str, str]) -> EdgeInputs:
    outputs: dict[int, dict[str, EdgeOutput]] = {}
    for uid, sink in edge_sources.items():
        for stored in plan.operators[uid].in_flight if plan is not None else ():
            output = EdgeOutput.from_json(stored)
            outputs.setdefault(output.checkpoint_id, {})[sink] = output
    return [outputs[checkpoint_id] for checkpoint_id in sorted(outputs)]


def inputs_after(states: Mapping[Subtask, SubtaskState]) -> SubtaskInputs:
    """Returns what the subtasks of a job start from after an epoch that all of them have acknowledged."""
    by_uid: dict[str, list[SubtaskState]] = {}
    for task in sorted(states):
        by_uid.setdefault(task.uid, []).append(states[task])
    inputs: dict[tuple[str, int], SubtaskState] = {}
    for uid, acknowledged in by_uid.items():
        subtasks = without_copies(acknowledged)
        reassigned = reassign_operator_state([s.operator_state for s in subtasks], len(subtasks))
        for state, handles in zip(subtasks, reassigned, strict=True):
            kept = replace(state, operator_state=handles, splits=(), committables=(), metrics={})
            inputs[uid, state.index] = kept
    return inputs


def _states_of(graph: JobGraph, inputs: SubtaskInputs) -> dict[Subtask, SubtaskState]:
    """Returns the same state as acknowledgements of tasks that have read nothing."""
    states: dict[Subtask, SubtaskState] = {}
    for v in graph.vertices:
        for i in range(v.parallelism):
            given = inputs.get((v.uid, i), SubtaskState(i))
            # Every subtask was given all of a union state, so only one of them passes it on.
            handles = (each for each in given.operator_state if i == 0 or each.mode is not DistributionMode.UNION)
            states[Subtask(v.uid, i)] = replace(given, operator_state=tuple(handles))
    return states
