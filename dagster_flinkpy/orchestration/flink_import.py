"""Brings a savepoint of Flink along: reads it with the types of a program, and imports it; and back again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dagster_flinkpy.checkpoint.state_migration import state_version
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState
from dagster_flinkpy.datastream.operator_specs import SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import StateDescriptor
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.flink_job import Environment, flink_job
from dagster_flinkpy.runtime.declared_state import DeclaredOperator, declared_state
from dagster_flinkpy.state.handles import TIMERS
from dagster_flinkpy.state.layout import TableLayout
from dagster_flinkpy.state_processor.flink_columns import DeclaredState
from dagster_flinkpy.state_processor.flink_export import ExportReport, ExportTarget, export_to_flink
from dagster_flinkpy.state_processor.flink_import import import_flink_savepoint
from dagster_flinkpy.state_processor.flink_reader import Declarations, FlinkSavepointReader, declarations_of
from dagster_flinkpy.state_processor.import_report import ImportReport, ImportTarget
from dagster_flinkpy.state_processor.reader import read_savepoint
from dagster_flinkpy.storage import StorageLocation

__all__ = ["declarations_of_program", "export_savepoint", "import_savepoint", "import_targets"]


def declarations_of_program(program: Environment) -> Declarations:
    """Returns what state a program declares, for :class:`FlinkSavepointReader`.

    Its functions are opened in this process, as tasks would open them, and closed again.

    Args:
        program: The program.

    Raises:
        JobGraphError: The program is not valid.
        UserFunctionError: A function cannot be opened here.
    """
    found = declared_state(flink_job(program, "import").graph)
    keyed = {uid: [_declared(layout, ttl) for layout, ttl in each.tables] for uid, each in found.items()}
    return Declarations(keyed, {uid: each.broadcast for uid, each in found.items()})


def import_savepoint(
    source: StorageLocation,
    program: Environment,
    target: StorageLocation,
    *,
    declared: Mapping[str, Iterable[StateDescriptor]] | None = None,
    allow_non_restored_state: NonRestoredState = False,
    on_progress: Callable[[str], None] = lambda line: None,
) -> ImportReport:
    """Imports a savepoint of Flink for a program. The job starts on the new savepoint with ``restore_from``.

    The functions of the program are opened in this process, as tasks would open them, and closed again.

    Args:
        source: The folder of Flink's savepoint.
        program: The program, whose operators have the uids that they have in Flink.
        target: The folder of the new savepoint.
        declared: Descriptors of further state by uid: of state that functions do not ask for in ``open()``, such as
            ``global_state()`` of windows. Default: none.
        allow_non_restored_state: Whether to leave behind state that cannot be imported: True for any, or the uids of
            the operators whose state may be. Default: it is an error.
        on_progress: Receives one-line messages.

    Raises:
        UnsupportedSavepointError: There is state that cannot be imported. The message names each, and says why.
        TypeMismatchError: The program declares state differently.
        CorruptStateError: A file is missing or damaged.
        ConfigurationError: The target has a savepoint already, or must not be used.
        JobGraphError: The program is not valid.
        UserFunctionError: A function cannot be opened here.
    """
    return import_flink_savepoint(
        source,
        target,
        import_targets(flink_job(program, "import").graph, declared),
        allow_non_restored_state=allow_non_restored_state,
        on_progress=on_progress,
    )


def import_targets(graph: JobGraph, declared: Mapping[str, Iterable[StateDescriptor]] | None) -> list[ImportTarget]:
    """Returns the operators of a program with the state that they declare. Functions are opened in this process.

    Args:
        graph: The program.
        declared: Descriptors of further state by uid.

    Raises:
        UserFunctionError: A function cannot be opened here.
    """
    more = declarations_of(declared or {})
    found = declared_state(graph)
    return [_target(found[vertex.uid], more, state_version(vertex, None)) for vertex in graph.vertices]


def export_savepoint(
    source: StorageLocation,
    program: Environment,
    target: StorageLocation,
    *,
    allow_non_restored_state: NonRestoredState = False,
    on_progress: Callable[[str], None] = lambda line: None,
) -> ExportReport:
    """Writes a canonical savepoint of Flink, on which the same program goes on in PyFlink's process mode.

    The functions of the program are opened in this process, as tasks would open them, and closed again.

    Args:
        source: A savepoint, checkpoint or job of this library.
        program: The program, whose operators have the uids that they have in Flink.
        target: The folder of Flink's savepoint.
        allow_non_restored_state: Whether to leave behind state that cannot be exported: True for any, or the uids of
            the operators whose state may be. Default: it is an error.
        on_progress: Receives one-line messages.

    Raises:
        UnsupportedSavepointError: There is state that cannot be exported. The message names each, and says why.
        CorruptStateError: A file is missing or damaged.
        ConfigurationError: The target has a savepoint already, or ``source`` is one of Flink.
        JobGraphError: The program is not valid.
        UserFunctionError: A function cannot be opened here.
    """
    reader = read_savepoint(source)
    if isinstance(reader, FlinkSavepointReader):
        raise ConfigurationError(f"{source.url} is a savepoint of Flink already")
    targets = [
        ExportTarget(
            uid,
            {layout.name: ttl for layout, ttl in each.tables},
            each.vertex.spec.source if isinstance(each.vertex.spec, SourceSpec) else None,
        )
        for uid, each in declared_state(flink_job(program, "export").graph).items()
    ]
    return export_to_flink(
        reader, target, targets, allow_non_restored_state=allow_non_restored_state, on_progress=on_progress
    )


def _target(operator: DeclaredOperator, more: Declarations, version: int) -> ImportTarget:
    vertex, layouts = operator.vertex, [layout for layout, _ in operator.tables]
    known = [_declared(layout, ttl) for layout, ttl in operator.tables]
    names = {each.name for each in known}
    timers = {layout.namespace_type for layout in layouts if layout.kind == "TIMER"}
    namespaces = {layout.name: layout.namespace_type for layout in layouts}
    for name in TIMERS.values():
        for namespace in timers:  # timers of the other kind have the same namespace
            namespaces.setdefault(name, namespace)
    return ImportTarget(
        vertex.uid,
        vertex.max_parallelism if vertex.max_parallelism_set else None,
        layouts[0].key_type if layouts else None,
        [*known, *(each for each in more.keyed.get(vertex.uid, ()) if each.name not in names)],
        namespaces,
        [*operator.broadcast, *more.broadcast.get(vertex.uid, ())],
        vertex.spec.source if isinstance(vertex.spec, SourceSpec) else None,
        version,
    )


def _declared(layout: TableLayout, ttl: int | None) -> DeclaredState:
    return DeclaredState(layout.name, layout.kind, layout.value_type, layout.map_key_type, ttl, layout.key_type)
