"""Finds out whether operators can continue from stored state: creates and opens them as their tasks would.

No record is read, and nothing is written. A restore finds the same, but only in its tasks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from dagster_flinkpy.checkpoint.evolution import refuse_other_windows
from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.checkpoint.restore import OperatorAssignment, assign, restore_targets
from dagster_flinkpy.checkpoint.savepoints.savepoint import has_pickled_values as _is_pickled
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import StoredCheckpoint
from dagster_flinkpy.checkpoint.state_migration import migrated_schemas
from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState
from dagster_flinkpy.datastream.operator_specs import CollectSpec, PrintSpec, SinkSpec, SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph, JobVertex
from dagster_flinkpy.errors import FlinkPyError, UserFunctionError
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.master.epochs.split_planner import create_enumerator
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedStateOperator
from dagster_flinkpy.runtime.operators.operator_factory import create_operator
from dagster_flinkpy.runtime.operators.operator_state_handler import OperatorStateHandler
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext, StreamOperator
from dagster_flinkpy.runtime.shipping import dump_job, loaded_job
from dagster_flinkpy.storage import StorageLocation

__all__ = ["OperatorTrial", "opened", "trial_job", "try_operators"]


@dataclass(frozen=True)
class OperatorTrial:
    """What happens when an operator continues from its state."""

    problem: str | None = None
    """Why it cannot; None if it can, or if that is unknown."""
    unknown: str | None = None
    """Why that could not be found out here; None if it was."""
    changes: tuple[str, ...] = ()
    """How the types of its states have changed."""


def try_operators(
    graph: JobGraph,
    stored: StoredCheckpoint,
    *,
    allow_non_restored_state: NonRestoredState = False,
    allow_pickled_state: bool = False,
) -> Mapping[str, OperatorTrial]:
    """Creates the operators that have state in a checkpoint, and opens their functions in this process.

    Each is one subtask with the state of all key groups. Sinks are not opened, because that may write. Sources are
    given their position, and are not asked for input.

    Args:
        graph: The program, which the checkpoint can be assigned to.
        stored: The checkpoint or savepoint.
        allow_non_restored_state: Whether state without an operator may be left behind, or the uids whose state may.
        allow_pickled_state: Whether functions may read operator state that is pickled. Whoever wrote it can run code
            in this process. Default: operators that have such state are not opened, and it is unknown whether it fits.

    Returns:
        What happens, by uid, for the operators with state.

    Raises:
        ConfigurationError: A function cannot be sent to workers.
    """
    targets = [replace(target, parallelism=1) for target in restore_targets(graph)]
    metadata = migrated_schemas(stored.metadata, graph, stored.files.open())
    plan = assign(metadata, targets, allow_non_restored_state=allow_non_restored_state)
    found: dict[str, OperatorTrial] = {}
    start = {
        "job_id": stored.metadata.job_id,
        "epoch": EpochInput(stored.metadata.checkpoint_id + 1, {}),
        "job_storage": stored.files,
        "inputs": plan.inputs,
        "restored": stored.metadata.checkpoint_id,
    }
    with trial_job(graph, **start) as job:
        for uid, assignment in plan.operators.items():
            if not assignment.restored:
                continue
            # Rows of keyed state are not read, because no key is current.
            pickled = sorted({h.name for s in assignment.subtasks for h in s.operator_state if _is_pickled(h.types)})
            if pickled and not allow_pickled_state:
                names = ", ".join(map(repr, pickled))
                found[uid] = OperatorTrial(unknown=f"operator {uid!r}: operator state {names} is pickled")
            else:
                found[uid] = _try(job, job.graph.vertex(uid), assignment, metadata.operator(uid))
    return found


@contextmanager
def trial_job(graph: JobGraph, **start: Any) -> Iterator[EpochJob]:
    """Provides a job whose operators are not run, with functions of its own, as in tasks."""
    with tempfile.TemporaryDirectory(prefix="flinkpy-plan-") as folder:
        empty = EpochJob(graph, "plan", EpochInput(1, {}), 0, StorageLocation(folder), inputs={}, cache_dir=folder)
        with loaded_job(dump_job(replace(empty, **start))) as shipped:
            yield shipped


def _try(
    job: EpochJob, vertex: JobVertex, assignment: OperatorAssignment, before: OperatorState | None
) -> OperatorTrial:
    spec = vertex.spec
    try:
        refuse_other_windows(before, vertex)
        if isinstance(spec, SourceSpec):
            create_enumerator(vertex.uid, spec, assignment.coordinator_state)
        elif spec.keeps_state and not isinstance(spec, (SinkSpec, CollectSpec, PrintSpec)):
            return OperatorTrial(changes=_open(job, vertex))
    except UserFunctionError as error:
        return OperatorTrial(unknown=str(error))
    except FlinkPyError as error:
        return OperatorTrial(problem=str(error))
    return OperatorTrial()


def _open(job: EpochJob, vertex: JobVertex) -> tuple[str, ...]:
    """Opens an operator on its state. Returns how the types of its states have changed."""
    with opened(job, vertex) as (operator, state):
        changes = list(state.changes)
        if isinstance(operator, KeyedStateOperator):
            changes += operator.backend.changes
        return tuple(changes)


@contextmanager
def opened(job: EpochJob, vertex: JobVertex) -> Iterator[tuple[StreamOperator, OperatorStateHandler]]:
    """Opens an operator as its only task would, and closes it again. The keys of its state have their types.

    Raises:
        UserFunctionError: Its function cannot be opened here.
        StateSchemaError: Its state is of other types.
    """
    alone = replace(vertex, parallelism=1)
    state = OperatorStateHandler(alone, 0, job)
    context = OperatorContext(
        vertex=alone,
        subtask=0,
        job=job,
        execution="plan",
        emit=lambda tag, batch: None,
        collect=lambda *values: None,
        watermark=MIN_WATERMARK,
        epoch=job.epoch,
        state=state,
        send_status=lambda idle: None,
    )
    operator = create_operator(context)
    try:
        operator.open()
        if isinstance(operator, KeyedStateOperator):
            for edge in job.graph.inputs(vertex.uid):
                if (key_type := edge.key_type) is not None:
                    operator.backend.bind_key_type(key_type)
        yield operator, state
    finally:
        with suppress(Exception):  # it has no input, and its function may not expect that
            operator.close()
