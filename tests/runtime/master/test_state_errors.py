"""Errors in a user's state are typed, and name operator, state, key, field and value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import KeyedProcessFunction
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError, UnsupportedKeyTypeError
from tests.runtime.harness import collect_all
from tests.runtime.programs import environment, events

ROW = Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])
VALUE = ValueStateDescriptor("state", Types.LONG())
LIST = ListStateDescriptor("state", Types.LONG())
MAP = MapStateDescriptor("state", Types.LONG(), ROW)
SUM = ReducingStateDescriptor("state", lambda a, b: a + b, Types.LONG())


class Use(KeyedProcessFunction):
    """Does something with a state."""

    def __init__(self, getter: str, descriptor: StateDescriptor, use: Callable[[Any], Any]) -> None:
        self._getter, self._descriptor, self._use = getter, descriptor, use

    def open(self, runtime_context: Any) -> None:
        self._state = getattr(runtime_context, self._getter)(self._descriptor)

    def process_element(self, value: Any, ctx: Any) -> None:
        self._use(self._state)


def run(function: KeyedProcessFunction, folder: Path) -> None:
    collect_all(events(environment(), [("a", 1, 1)]).key_by("key").process(function).uid("op"), folder)


@pytest.mark.parametrize(
    ("getter", "descriptor", "use", "message"),
    [
        ("get_state", VALUE, lambda s: s.update("x"), "'x'"),
        ("get_state", VALUE, lambda s: s.update(2**63), str(2**63)),
        ("get_state", ValueStateDescriptor("state", ROW), lambda s: s.update(Row("x", "y")), "field 'n': .*'x'"),
        ("get_list_state", LIST, lambda s: s.add_all([1, "x"]), "'x'"),
        ("get_map_state", MAP, lambda s: s.put(1, Row(1, 5)), "field 'text': .*5"),
        ("get_map_state", MAP, lambda s: s.put("x", Row(1, "y")), "'x'"),
        ("get_reducing_state", SUM, lambda s: s.add("x"), "'x'"),
    ],
)
def test_a_value_of_another_type(
    tmp_path: Path, getter: str, descriptor: StateDescriptor, use: Any, message: str
) -> None:
    with pytest.raises(TypeMismatchError, match=rf"operator 'op': state 'state' of key 'a': .*{message}"):
        run(Use(getter, descriptor, use), tmp_path)


def test_a_map_key_that_cannot_be_one(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedKeyTypeError, match=r"map key \[1\] of state 'state'"):
        run(Use("get_map_state", MAP, lambda s: s.put([1], Row(1, "y"))), tmp_path)
    with pytest.raises(UnsupportedKeyTypeError, match="the map key of state 'state'"):
        lists = MapStateDescriptor("state", Types.LIST(Types.LONG()), Types.LONG())
        run(Use("get_map_state", lists, lambda s: None), tmp_path)


@pytest.mark.parametrize(
    ("getter", "wrong", "needed"),
    [
        ("get_state", LIST, "ValueStateDescriptor"),
        ("get_list_state", VALUE, "ListStateDescriptor"),
        ("get_map_state", VALUE, "MapStateDescriptor"),
        ("get_reducing_state", VALUE, "ReducingStateDescriptor"),
        ("get_aggregating_state", VALUE, "AggregatingStateDescriptor"),
        ("get_state", "state", "ValueStateDescriptor"),
    ],
)
def test_a_descriptor_of_another_kind(tmp_path: Path, getter: str, wrong: Any, needed: str) -> None:
    with pytest.raises(ConfigurationError, match=f"operator 'op': this kind of state needs a {needed}, not .*state"):
        run(Use(getter, wrong, lambda s: None), tmp_path)


def test_a_descriptor_is_complete() -> None:
    with pytest.raises(ConfigurationError, match="a state needs a name"):
        ValueStateDescriptor("", Types.LONG())
    with pytest.raises(ConfigurationError, match="needs a type"):
        ValueStateDescriptor("state", int)
    with pytest.raises(ConfigurationError, match="needs an AggregateFunction"):
        AggregatingStateDescriptor("state", None, Types.LONG())
