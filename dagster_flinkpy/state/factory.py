"""Creates the state object and the table for a descriptor."""

from __future__ import annotations

from typing import Any

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.state.handles import StateKind
from dagster_flinkpy.state.list_table import ListTable, TtlListTable
from dagster_flinkpy.state.map_table import MapTable
from dagster_flinkpy.state.pane_states import PaneState
from dagster_flinkpy.state.pane_table import PaneListTable, PaneTable
from dagster_flinkpy.state.slot_table import KeyedSlotState, SlotTable, make_slot_state
from dagster_flinkpy.state.states import (
    KeyedFoldState,
    KeyedListState,
    KeyedMapState,
    KeyedValueState,
    make_map_state,
)
from dagster_flinkpy.state.tables import CellTable
from dagster_flinkpy.state.ttl import (
    TtlCellTable,
    TtlFoldState,
    TtlListState,
    TtlMapState,
    TtlMapTable,
    TtlRules,
    TtlSlotState,
    TtlSlotTable,
    TtlValueState,
)
from dagster_flinkpy.state.value_folds import fold_values

__all__ = ["InternalState", "kind_of", "make_panes", "make_state"]

InternalState = (
    KeyedSlotState
    | KeyedValueState
    | KeyedListState
    | KeyedFoldState
    | KeyedMapState
    | TtlValueState
    | TtlListState
    | TtlFoldState
)
"""Every state object has a ``table`` and ``set_current_namespace``."""

_KINDS: dict[type[StateDescriptor], StateKind] = {
    ValueStateDescriptor: "VALUE",
    ListStateDescriptor: "LIST",
    MapStateDescriptor: "MAP",
    ReducingStateDescriptor: "REDUCING",
    AggregatingStateDescriptor: "AGGREGATING",
}


def kind_of(descriptor: StateDescriptor) -> StateKind:
    """Returns the kind of keyed state that a descriptor declares.

    Raises:
        ConfigurationError: It declares none.
    """
    kind = next((kind for known, kind in _KINDS.items() if isinstance(descriptor, known)), None)
    if kind is None:
        raise ConfigurationError(f"state {descriptor.name!r}: a {type(descriptor).__name__} is not for keyed state")
    return kind


def make_state(descriptor: StateDescriptor, namespace_type: TypeInformation | None, *where: Any) -> InternalState:
    """Returns the state of a descriptor, with its table.

    Args:
        descriptor: The state that the user declared.
        namespace_type: The type of the namespace, or None for state without one.
        where: The first arguments of an ``OverlayTable``.

    Raises:
        ConfigurationError: The descriptor is not for keyed state.
        UnsupportedKeyTypeError: The type of the namespace or map key cannot identify rows.
    """
    config = descriptor.ttl_config
    rules = None if config is None or not config.is_enabled() else TtlRules(config, where[1].now)
    if isinstance(descriptor, MapStateDescriptor):
        types = {
            "namespace_type": namespace_type,
            "map_key_type": descriptor.key_type_info,
            "value_type": descriptor.value_type_info,
        }
        if rules is not None:
            return TtlMapState(TtlMapTable(*where, "MAP", **types), rules)
        return make_map_state(MapTable(*where, "MAP", **types))
    kind = kind_of(descriptor)
    types = {"namespace_type": namespace_type, "value_type": descriptor.type_info}
    if isinstance(descriptor, ListStateDescriptor):
        if rules is not None:
            return TtlListState(TtlListTable(*where, kind, **types), rules)
        return KeyedListState(ListTable(*where, kind, **types))
    if rules is not None:
        if kind == "VALUE" and namespace_type is None:
            return TtlSlotState(TtlSlotTable(*where, kind, **types), rules)
        stamped = TtlCellTable(*where, kind, **types)
        return (
            TtlValueState(stamped, rules) if kind == "VALUE" else TtlFoldState(stamped, rules, fold_values(descriptor))
        )
    if kind == "VALUE" and namespace_type is None:
        return make_slot_state(SlotTable(*where, kind, **types))
    table = CellTable(*where, kind, **types)
    return KeyedValueState(table) if kind == "VALUE" else KeyedFoldState(table, fold_values(descriptor))


def make_panes(descriptor: StateDescriptor, *where: Any, **types: Any) -> PaneState:
    """Returns the list, reducing or aggregating state of windows, with its table; see :func:`make_state`."""
    kind = kind_of(descriptor)
    table = (PaneListTable if kind == "LIST" else PaneTable)(*where, kind, **types)
    return PaneState(table, fold_values(descriptor))
