"""Determines what each subtask starts from: the state of a checkpoint, taken at the same or another parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.checkpoint.restore import RestorePlan, reassign_operator_state
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.state.handles import DistributionMode

__all__ = ["SubtaskInputs", "inputs_after", "inputs_of_plan", "states_of_inputs"]

SubtaskInputs = dict[tuple[str, int], SubtaskState]
"""Inputs by uid and subtask; subtasks without an entry start empty."""


def inputs_of_plan(plan: RestorePlan) -> SubtaskInputs:
    """Returns the inputs after a restore."""
    return {(uid, s.index): s for uid, o in plan.operators.items() for s in o.subtasks}


def inputs_after(states: Mapping[Subtask, SubtaskState]) -> SubtaskInputs:
    """Returns the inputs of the same job after an epoch that all its subtasks have acknowledged."""
    by_uid: dict[str, list[SubtaskState]] = {}
    for task in sorted(states):
        by_uid.setdefault(task.uid, []).append(states[task])
    inputs: SubtaskInputs = {}
    for uid, subtasks in by_uid.items():
        reassigned = reassign_operator_state([s.operator_state for s in subtasks], len(subtasks))
        for state, handles in zip(subtasks, reassigned, strict=True):
            kept = replace(state, operator_state=handles, splits=(), committables=(), metrics={})
            inputs[uid, state.index] = kept
    return inputs


def states_of_inputs(graph: JobGraph, inputs: Mapping[tuple[str, int], SubtaskState]) -> dict[Subtask, SubtaskState]:
    """Returns the same state as acknowledgements of tasks that have read nothing."""
    states: dict[Subtask, SubtaskState] = {}
    for v in graph.vertices:
        for i in range(v.parallelism):
            given = inputs.get((v.uid, i), SubtaskState(i))
            # Every subtask was given all of a union state, so only one of them passes it on.
            handles = (each for each in given.operator_state if i == 0 or each.mode is not DistributionMode.UNION)
            states[Subtask(v.uid, i)] = replace(given, operator_state=tuple(handles))
    return states
