"""Makes a savepoint of this library from the checkpoint of a Spark query, for a program that goes on from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import ListTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns.column_casts import fit_column
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState
from dagster_flinkpy.datastream.connectors.file_system import FileSource
from dagster_flinkpy.datastream.connectors.kafka_source import KafkaSource
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError, UnsupportedSavepointError
from dagster_flinkpy.state.handles import EVENT_TIMERS, PROCESSING_TIMERS
from dagster_flinkpy.state.layout import TableLayout
from dagster_flinkpy.state_processor.bootstrap import keyed_rows
from dagster_flinkpy.state_processor.flink_columns import DeclaredState
from dagster_flinkpy.state_processor.flink_sources import file_place
from dagster_flinkpy.state_processor.import_report import (
    ImportedState,
    ImportReport,
    ImportTarget,
    LeftBehind,
    check_rows,
    left_behind,
)
from dagster_flinkpy.state_processor.spark_checkpoint import QuerySource, SparkCheckpoint, SparkState
from dagster_flinkpy.state_processor.writer import write_savepoint
from dagster_flinkpy.storage import StorageLocation

__all__ = ["import_spark_state"]

_MAX_PARALLELISM = 128
_SINGLE = ("VALUE", "REDUCING", "AGGREGATING")
_TIMERS = {"EventTime": EVENT_TIMERS, "ProcessingTime": PROCESSING_TIMERS}


def import_spark_state(
    checkpoint: SparkCheckpoint,
    target: StorageLocation,
    operators: Sequence[ImportTarget],
    *,
    mapping: Mapping[str, str] | None = None,
    allow_non_restored_state: NonRestoredState = False,
    on_progress: Callable[[str], None] = lambda line: None,
) -> ImportReport:
    """Writes a savepoint with the state and the positions of a Spark streaming query.

    Names and types are looked at before anything is written. About 500,000 rows, or one of Spark's state partitions,
    are in memory at a time.

    Args:
        checkpoint: The checkpoint of the query.
        target: The folder of the new savepoint.
        operators: The operators of the program.
        mapping: Where state goes that is not found by its name: from ``STATE`` or ``OPERATOR.STATE`` of Spark to
            ``UID`` or ``UID:STATE`` of the program, and from ``sources/N`` to the uid of a source.
        allow_non_restored_state: Whether to leave behind state that cannot be imported: True for any, or the ids of
            Spark's operators, and ``sources/N``, whose state may be. Default: it is an error.
        on_progress: Receives one-line messages.

    Raises:
        UnsupportedSavepointError: There is state that cannot be imported. The message names each, and says why.
        TypeMismatchError: A value does not fit the type that the program declares.
        CorruptStateError: A file is missing or damaged.
        ConfigurationError: ``mapping`` names what does not exist, or the target must not be used.
    """
    plan = _QueryPlan(checkpoint, operators, mapping or {})
    left = left_behind(
        plan.problems,
        allow_non_restored_state,
        f"{checkpoint.location.url} has state that cannot be imported",
        "ID for one of Spark's operators or sources",
    )
    writer = write_savepoint()
    for uid, operator in plan.used().items():
        max_parallelism, position = operator.max_parallelism or _MAX_PARALLELISM, plan.positions.get(uid)
        writer.with_operator(uid, 1, max_parallelism, position, operator.state_version)
    for each in plan.keyed:
        writer.with_keyed_tables(each.uid, each.layout, each.tables(checkpoint, on_progress))
    url = writer.write(target)
    imported = tuple(plan.imported())
    check_rows(target, imported)
    return ImportReport(url, imported, left)


@dataclass
class _QueryStateImport:
    """The import of one state, or of one field of it."""

    uid: str
    layout: TableLayout
    state: SparkState
    field: int | None
    """The number of the only field of the value to take."""
    ttl_ms: int | None
    rows: int = 0

    def tables(self, checkpoint: SparkCheckpoint, on_progress: Callable[[str], None]) -> Iterator[pa.Table]:
        """Yields the rows as those of a state table, all in key group 0."""
        expires = current_millis() + (self.ttl_ms or 0)
        for table in checkpoint.read(self.state):
            rows = keyed_rows(self.layout, self.columns(table), expires)
            self.rows += len(rows)
            on_progress(f"{self.uid}.{self.layout.name}: {self.rows:,} rows")
            yield rows

    def columns(self, table: pa.Table) -> dict[str, pa.Array[Any]]:
        """Returns the columns of a state table in the types of the program.

        Raises:
            TypeMismatchError: They do not fit.
            UnsupportedSavepointError: A key is null.
        """
        layout, what = self.layout, f"Spark's state {self.state.full_name}"
        found = {name: table.column(name).combine_chunks() for name in table.column_names}
        if self.field is not None:
            found["value"] = found["value"].flatten()[self.field]
        value = layout.value_type.elem_type if isinstance(layout.value_type, ListTypeInfo) else layout.value_type
        types = {"key": layout.key_type, "map_key": layout.map_key_type, "value": value}
        columns = {
            name: column if (kind := types.get(name)) is None else _fitted(column, kind, f"{what}, {name}")
            for name, column in found.items()
        }
        for name in ("key", "map_key"):
            if name in columns and _has_null(columns[name]):
                raise UnsupportedSavepointError(f"{what} has a null in a {name}, which keys here cannot have")
        return columns


class _QueryPlan:
    """What happens to the state and the sources of a query."""

    def __init__(
        self, checkpoint: SparkCheckpoint, operators: Sequence[ImportTarget], mapping: Mapping[str, str]
    ) -> None:
        self._checkpoint = checkpoint
        self._targets = {
            each.uid: replace(each, states=[state for state in each.states if state.kind != "TIMER"])
            for each in operators
        }
        self.keyed: list[_QueryStateImport] = []
        self.positions: dict[str, dict[str, Any]] = {}
        self._sources: dict[str, QuerySource] = {}
        self.problems = [
            LeftBehind(str(number), problem) for number, problems in checkpoint.problems.items() for problem in problems
        ]
        self._wanted = self._resolved(mapping)
        for state in sorted(checkpoint.states, key=lambda each: each.kind == "TIMER"):
            try:
                (self._plan_timers if state.kind == "TIMER" else self._plan_state)(state)
            except (UnsupportedSavepointError, TypeMismatchError) as error:
                self.problems.append(LeftBehind(str(state.operator), str(error)))
        for source in checkpoint.sources:
            try:
                self._plan_source(source)
            except UnsupportedSavepointError as error:
                self.problems.append(LeftBehind(source.name, str(error)))

    def used(self) -> dict[str, ImportTarget]:
        """Returns the operators of the program that get something."""
        uids = {*(each.uid for each in self.keyed), *self.positions}
        return {uid: target for uid, target in self._targets.items() if uid in uids}

    def imported(self) -> Iterator[ImportedState]:
        """Yields what was written."""
        for each in self.keyed:
            yield ImportedState(each.uid, each.layout.name, each.state.full_name, each.rows, True)
        for uid, source in self._sources.items():
            yield ImportedState(uid, "position", source.name, 1)

    def _resolved(self, mapping: Mapping[str, str]) -> dict[str, str]:
        """Returns the mapping by full names.

        Raises:
            ConfigurationError: It names what does not exist, or could be several.
        """
        names: dict[str, tuple[str, ...]]
        names = {each.full_name: (each.full_name, each.name, str(each.operator)) for each in self._checkpoint.states}
        names |= {each.name: (each.name,) for each in self._checkpoint.sources}
        found: dict[str, str] = {}
        for name, wanted in mapping.items():
            meant = [full for full, short in names.items() if name in short]
            if len(meant) != 1:
                raise ConfigurationError(
                    f"{name!r} is {'several of' if meant else 'none of'} what the checkpoint has: {', '.join(names)}"
                )
            if not any(wanted in (uid, *(f"{uid}:{s.name}" for s in t.states)) for uid, t in self._targets.items()):
                raise ConfigurationError(f"{name!r} cannot go to {wanted!r}; {self._known()}")
            found[meant[0]] = wanted
        return found

    def _known(self) -> str:
        states = [f"{uid}:{state.name} ({state.kind})" for uid, each in self._targets.items() for state in each.states]
        sources = [uid for uid, each in self._targets.items() if each.source is not None]
        return (
            f"the program has the state {', '.join(states) or 'none'}, and the sources {', '.join(sources) or 'none'}"
        )

    # --- state --------------------------------------------------------------------------------------------------------

    def _plan_state(self, state: SparkState) -> None:
        wanted = self._wanted.get(state.full_name)
        found = [
            (target, choice)
            for target in self._targets.values()
            if target.key_type is not None and (choice := _choice(state, target, wanted))
        ]
        if len(found) != 1:
            many = ", ".join(f"{target.uid}:{declared.name}" for target, choice in found for _, declared in choice)
            none = _missing(state, list(self._targets.values())) or "nothing in the program has its name and kind"
            raise UnsupportedSavepointError(
                f"state {state}: {f'it could be {many}' if found else none}. "
                f"Say where it goes with mapping (--map {state.full_name}=UID:STATE); {self._known()}"
            )
        target, choice = found[0]
        made: list[_QueryStateImport] = []
        for field, declared in choice:
            if state.ttl and declared.ttl_ms is None:
                raise UnsupportedSavepointError(
                    f"state {state}: it expires in Spark, and {target.uid}:{declared.name} does not: enable its "
                    "time to live"
                )
            layout = _layout(target, declared)
            new = _QueryStateImport(target.uid, layout, state, field, declared.ttl_ms)
            if any((each.uid, each.layout.name) == (new.uid, layout.name) for each in [*self.keyed, *made]):
                raise UnsupportedSavepointError(
                    f"state {state}: {new.uid}:{layout.name} is already made of other state; say where each goes with "
                    "mapping (--map)"
                )
            new.columns(state.schema.empty_table())
            made.append(new)
        self.keyed += made

    def _plan_timers(self, state: SparkState) -> None:
        wanted = self._wanted.get(state.full_name)
        uids = (
            {each.uid for each in self.keyed if each.state.operator == state.operator} if wanted is None else {wanted}
        )
        if len(uids) != 1 or (target := self._targets.get(next(iter(uids)))) is None or target.key_type is None:
            raise UnsupportedSavepointError(
                f"state {state}: it is not known which operator of the program has these timers. Say which with "
                f"mapping (--map {state.full_name}=UID); {self._known()}"
            )
        name = _TIMERS[state.time_mode]
        if target.namespaces.get(name) is not None:
            raise UnsupportedSavepointError(f"state {state}: operator {target.uid!r} of the program has windows")
        new = _QueryStateImport(target.uid, TableLayout(name, "TIMER", target.key_type), state, None, None)
        new.columns(state.schema.empty_table())
        self.keyed.append(new)

    # --- sources ------------------------------------------------------------------------------------------------------

    def _plan_source(self, source: QuerySource) -> None:
        if source.offset is None:
            return
        uids = [uid for uid, each in self._targets.items() if each.source is not None]
        wanted = self._wanted.get(source.name)
        if wanted is not None and wanted not in uids:
            raise UnsupportedSavepointError(f"{source.name}: operator {wanted!r} of the program is not a source")
        if wanted is None and (len(uids) != 1 or len(self._checkpoint.sources) != 1):
            raise UnsupportedSavepointError(
                f"{source.name}: it is not known which source of the program it is. Say which with mapping "
                f"(--map {source.name}=UID); {self._known()}"
            )
        uid = wanted or uids[0]
        if uid in self.positions:
            raise UnsupportedSavepointError(f"{source.name}: {self._sources[uid].name} is source {uid!r} already")
        self.positions[uid] = _position(source, self._targets[uid].source)
        self._sources[uid] = source


def _choice(state: SparkState, target: ImportTarget, wanted: str | None) -> list[tuple[int | None, DeclaredState]]:
    """Returns which states of an operator a state of Spark becomes, each with the number of the field, or none."""
    kinds = _SINGLE if state.kind == "VALUE" else (state.kind,)
    fit = [each for each in target.states if each.kind in kinds]
    if wanted not in (None, target.uid):
        return [(None, each) for each in fit if f"{target.uid}:{each.name}" == wanted]
    if state.variable:
        return [(None, each) for each in fit if each.name == state.name]
    value = state.schema.field("value").type
    names = [field.name for field in value] if pa.types.is_struct(value) else []
    by_name = {each.name: each for each in fit}
    if names and len(set(names)) == len(names) and all(name in by_name for name in names):
        return [(number, by_name[name]) for number, name in enumerate(names)]
    return [(None, fit[0])] if wanted is not None and len(fit) == 1 else []


def _missing(state: SparkState, targets: Sequence[ImportTarget]) -> str:
    """Returns for which columns of an aggregation an operator that has some has no state; empty if none has any."""
    value = state.schema.field("value").type
    names = [field.name for field in value] if pa.types.is_struct(value) and not state.variable else []
    for target in targets:
        left = [name for name in names if name not in {each.name for each in target.states}]
        if 0 < len(left) < len(names):
            return f"{target.uid!r} has no state called {', '.join(left)}, and takes all columns, or one state of rows"
    return ""


def _layout(target: ImportTarget, declared: DeclaredState) -> TableLayout:
    if target.namespaces.get(declared.name) is not None:
        raise UnsupportedSavepointError(
            f"{target.uid}:{declared.name} is state of windows of the program, and no state of Spark becomes that"
        )
    assert target.key_type is not None
    return TableLayout(
        declared.name,
        declared.kind,
        target.key_type,
        None,
        declared.map_key_type,
        declared.value_type,
        declared.ttl_ms is not None,
    )


def _fitted(column: pa.Array[Any], kind: TypeInformation, what: str) -> pa.Array[Any]:
    """Converts a column of Spark, in which a single key or value is a struct with one field."""
    if not pa.types.is_struct(column.type):
        return fit_column(column, kind, what)
    names, fields = [field.name for field in column.type], column.flatten()  # with the nulls of the struct
    if isinstance(kind, RowTypeInfo) and kind.named and len(fields) > 1:
        if sorted(names) != sorted(kind.field_names) or len(set(names)) < len(names):
            raise TypeMismatchError(f"{what}: declared {kind}, but Spark has the fields {', '.join(names)}")
        fields = [fields[names.index(name)] for name in kind.field_names]
    if isinstance(kind, (RowTypeInfo, TupleTypeInfo)) and len(fields) == len(kind.field_types):
        parts = [
            _fitted(each, part, f"{what}, field {name!r}")
            for each, part, name in zip(fields, kind.field_types, kind.field_names, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind.arrow_type), mask=column.is_null())
    if len(fields) != 1:
        raise TypeMismatchError(f"{what}: declared {kind}, but Spark has {column.type}")
    return _fitted(fields[0], kind, what)


def _has_null(column: pa.Array[Any]) -> bool:
    inner = column.flatten() if pa.types.is_struct(column.type) else ()
    return column.null_count > 0 or any(map(_has_null, inner))


def _position(source: QuerySource, into: Any) -> dict[str, Any]:
    """Returns where a source of the program goes on.

    Raises:
        UnsupportedSavepointError: It is another kind of source, or does not have the files.
    """
    if source.files is not None and isinstance(into, FileSource):
        roots = [StorageLocation(each if isinstance(each, str) else each.url) for each in into.paths]
        names = ["/".join(file_place(unquote(file), roots, source.name)) for file in source.files]
        return {"found": names, "open": [], "listed": True, "ended": False}
    offsets = source.offset
    topics = isinstance(offsets, dict) and all(isinstance(each, dict) for each in offsets.values())
    if source.files is None and topics and isinstance(into, KafkaSource):
        if into.bounded:
            raise UnsupportedSavepointError(f"{source.name} does not end in Spark, but the program's source ends")
        found = [[topic, int(part), after] for topic, parts in offsets.items() for part, after in parts.items()]
        if any(type(after) is not int or after < 0 for _, _, after in found):
            raise UnsupportedSavepointError(
                f"{source.name} has the offset {offsets!r}, with a partition not yet looked up"
            )
        return {"next": found, "stops": [], "open": [], "ended": False}
    raise UnsupportedSavepointError(
        f"{source.name} has the offset {offsets!r}, which a {type(into).__name__} cannot go on from, only a FileSource "
        "of files, or a KafkaSource of Kafka. Without its position, the source begins anew, and what the query has "
        "read counts again: let it begin behind that, as with since=... of a ParquetSource, or move those files away"
    )
