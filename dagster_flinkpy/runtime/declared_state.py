"""Finds out which state a program declares: opens its functions as tasks would, without input."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.checkpoint.restore import OperatorAssignment, RestorePlan, restore_targets
from dagster_flinkpy.datastream.operator_specs import (
    BroadcastProcessSpec,
    CollectSpec,
    KeyedBroadcastProcessSpec,
    PrintSpec,
    SinkSpec,
    SourceSpec,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph, JobVertex
from dagster_flinkpy.datastream.state import MapStateDescriptor
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.master.epochs.subtask_inputs import inputs_of_plan
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedStateOperator
from dagster_flinkpy.runtime.restore_trial import opened
from dagster_flinkpy.runtime.shipping import dump_job, loaded_job
from dagster_flinkpy.state.layout import TableLayout
from dagster_flinkpy.storage import StorageLocation

__all__ = ["DeclaredOperator", "declared_state"]


@dataclass(frozen=True)
class DeclaredOperator:
    """The state that one operator declares."""

    vertex: JobVertex
    tables: tuple[tuple[TableLayout, int | None], ...] = ()
    """Keyed state and timers, each with its time to live in milliseconds. State that a function asks for with its first
    record only is not among them."""
    broadcast: tuple[MapStateDescriptor, ...] = ()


def declared_state(graph: JobGraph) -> Mapping[str, DeclaredOperator]:
    """Opens the functions of a program in this process, and returns what state they declare, by uid.

    Sources and sinks are not opened.

    Args:
        graph: The program.

    Raises:
        UserFunctionError: A function cannot be opened here.
        ConfigurationError: A function cannot be sent to workers.
    """
    targets = restore_targets(graph)
    plan = RestorePlan(0, {t.uid: OperatorAssignment(t.uid, 1, t.max_parallelism, (SubtaskState(0),)) for t in targets})
    found: dict[str, DeclaredOperator] = {}
    with tempfile.TemporaryDirectory(prefix="flinkpy-plan-") as folder:
        job = EpochJob(
            graph=graph,
            job_id="plan",
            epoch=EpochInput(1, {}),
            fencing_token=0,
            job_storage=StorageLocation(folder),
            inputs=inputs_of_plan(plan),
            restored=None,
            cache_dir=folder,
        )
        with loaded_job(dump_job(job)) as shipped:  # functions of their own, as in tasks
            for vertex in shipped.graph.vertices:
                found[vertex.uid] = _declared(shipped, vertex)
    return found


def _declared(job: EpochJob, vertex: JobVertex) -> DeclaredOperator:
    spec = vertex.spec
    if not spec.keeps_state or isinstance(spec, (SourceSpec, SinkSpec, CollectSpec, PrintSpec)):
        return DeclaredOperator(vertex)
    broadcast = spec.broadcast_state if isinstance(spec, (BroadcastProcessSpec, KeyedBroadcastProcessSpec)) else ()
    with opened(job, vertex) as (operator, _):
        tables = operator.backend.declared() if isinstance(operator, KeyedStateOperator) else ()
        return DeclaredOperator(vertex, tuple(tables), broadcast)
