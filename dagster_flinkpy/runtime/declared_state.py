"""Finds out which state a program declares: opens its functions as tasks would, without input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedStateOperator
from dagster_flinkpy.runtime.restore_trial import opened, trial_job
from dagster_flinkpy.state.layout import TableLayout

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

    Raises:
        UserFunctionError: A function cannot be opened here.
        ConfigurationError: A function cannot be sent to workers.
    """
    with trial_job(graph) as job:
        return {vertex.uid: _declared(job, vertex) for vertex in job.graph.vertices}


def _declared(job: EpochJob, vertex: JobVertex) -> DeclaredOperator:
    spec = vertex.spec
    if not spec.keeps_state or isinstance(spec, (SourceSpec, SinkSpec, CollectSpec, PrintSpec)):
        return DeclaredOperator(vertex)
    broadcast = spec.broadcast_state if isinstance(spec, (BroadcastProcessSpec, KeyedBroadcastProcessSpec)) else ()
    with opened(job, vertex) as (operator, _):
        tables = operator.backend.declared() if isinstance(operator, KeyedStateOperator) else ()
        return DeclaredOperator(vertex, tuple(tables), broadcast)
