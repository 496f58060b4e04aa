"""Determines what each subtask starts from: the state of a checkpoint, taken at the same or another parallelism."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.checkpoint.restore import RestorePlan, SubtaskAssignment, reassign_operator_state
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.epoch import SubtaskInput
from dagster_flinkpy.state.handles import DistributionMode, OperatorStateHandle

__all__ = ["SubtaskInputs", "inputs_after", "inputs_of_plan", "states_of_inputs"]

SubtaskInputs = dict[tuple[str, int], SubtaskInput]
"""Inputs by uid and subtask; subtasks without an entry start empty."""


def inputs_of_plan(plan: RestorePlan) -> SubtaskInputs:
    """Returns the inputs after a restore."""
    return {(uid, s.index): _input(s, s.operator_state) for uid, o in plan.operators.items() for s in o.subtasks}


def inputs_after(states: Mapping[Subtask, SubtaskState]) -> SubtaskInputs:
    """Returns the inputs of the same job after an epoch that all its subtasks have acknowledged."""
    by_uid: dict[str, list[SubtaskState]] = {}
    for task in sorted(states):
        by_uid.setdefault(task.uid, []).append(states[task])
    inputs: SubtaskInputs = {}
    for uid, subtasks in by_uid.items():
        reassigned = reassign_operator_state([s.operator_state for s in subtasks], len(subtasks))
        inputs |= {(uid, s.index): _input(s, handles) for s, handles in zip(subtasks, reassigned, strict=True)}
    return inputs


def _input(state: SubtaskState | SubtaskAssignment, operator_state: tuple[OperatorStateHandle, ...]) -> SubtaskInput:
    return SubtaskInput(
        keyed=state.keyed,
        watermark=state.watermark,
        operator_state=operator_state,
        raw_keyed=state.raw_keyed,
        channel_state=state.channel_state,
    )


def states_of_inputs(graph: JobGraph, inputs: Mapping[tuple[str, int], SubtaskInput]) -> dict[Subtask, SubtaskState]:
    """Returns the same state as acknowledgements of tasks that have read nothing."""
    states: dict[Subtask, SubtaskState] = {}
    for v in graph.vertices:
        for i in range(v.parallelism):
            given = inputs.get((v.uid, i), SubtaskInput())
            # Every subtask was given all of a union state, so only one of them passes it on.
            operator_state = tuple(
                handle for handle in given.operator_state if i == 0 or handle.mode is not DistributionMode.UNION
            )
            states[Subtask(v.uid, i)] = SubtaskState(
                i,
                keyed=given.keyed,
                operator_state=operator_state,
                raw_keyed=given.raw_keyed,
                watermark=given.watermark,
                channel_state=given.channel_state,
            )
    return states
