"""What a function gets from state, and what it gives to state, is its own: later changes to it change no state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import AggregateFunction
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from dagster_flinkpy.datastream.state_ttl import StateTtlConfig
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.operator_state_backend import OperatorStateBackend
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.state.conftest import HASHMAP, MAX_PARALLELISM

LONG, STRING, ANY = Types.LONG(), Types.STRING(), Types.PICKLED_BYTE_ARRAY()


class Box:
    """A class of the user."""

    def __init__(self, *content: Any) -> None:
        self.content = list(content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self.content == other.content

    def __repr__(self) -> str:
        return f"Box({self.content})"


def _set_first(row: Any) -> None:
    row[0] = 99


CHANGEABLE: dict[str, tuple[TypeInformation, Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (Types.LIST(LONG), lambda: [1, 2], lambda v: v.append(99)),
    "list of rows": (Types.LIST(Types.ROW_NAMED(["a"], [LONG])), lambda: [Row(a=1)], lambda v: _set_first(v[0])),
    "map": (Types.MAP(STRING, LONG), lambda: {"a": 1}, lambda v: v.update(a=99)),
    "map of lists": (Types.MAP(STRING, Types.LIST(LONG)), lambda: {"a": [1]}, lambda v: v["a"].append(99)),
    "row": (Types.ROW_NAMED(["a", "b"], [LONG, STRING]), lambda: Row(a=1, b="x"), _set_first),
    "row without names": (Types.ROW([LONG, STRING]), lambda: Row(1, "x"), _set_first),
    "row of a list": (Types.ROW_NAMED(["a"], [Types.LIST(LONG)]), lambda: Row(a=[1]), lambda v: v.a.append(99)),
    "row as a dict": (Types.ROW_NAMED(["a", "b"], [LONG, LONG]), lambda: {"a": 1, "b": 2}, lambda v: _change(v)),
    "tuple of a list": (Types.TUPLE([LONG, Types.LIST(LONG)]), lambda: (1, [1]), lambda v: v[1].append(99)),
    "tuple as a list": (
        Types.TUPLE([LONG, LONG]),
        lambda: [1, 2],
        lambda v: _set_first(v) if type(v) is list else None,
    ),
    "bytes": (Types.PRIMITIVE_ARRAY(Types.BYTE()), lambda: bytearray(b"ab"), lambda v: _extend(v)),
    "pickled list": (ANY, lambda: [[1], 2], lambda v: v[0].append(99)),
    "pickled dict": (ANY, lambda: {"a": 1}, lambda v: v.update(a=99)),
    "pickled set": (ANY, lambda: {1, 2}, lambda v: v.add(99)),
    "pickled object": (ANY, lambda: Box(1), lambda v: v.content.append(99)),
    "pickled tuple of an object": (ANY, lambda: (1, Box(1)), lambda v: v[1].content.append(99)),
}


def _change(value: Any) -> None:
    value["a"] = 99


def _extend(value: Any) -> None:
    if isinstance(value, bytearray):
        value.extend(b"99")


def plain(value: Any) -> Any:
    """The value as the store would give it back, whatever form it was given in."""
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (Row, tuple, bytearray, bytes)) else value


class Keep(AggregateFunction):
    """Has the last value as its accumulator, and returns it."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_b


def _entries(state: Any) -> Any:
    return next(iter(state.items()))[1]


Form = tuple[Callable[[TypeInformation], StateDescriptor], Callable[[Any, Any], Any], Callable[[Any], Any]]

FORMS: dict[str, Form] = {
    "value": (lambda t: ValueStateDescriptor("s", t), lambda s, v: s.update(v), lambda s: s.value()),
    "list, add": (lambda t: ListStateDescriptor("s", t), lambda s, v: s.add(v), lambda s: s.get()[0]),
    "list, add_all": (lambda t: ListStateDescriptor("s", t), lambda s, v: s.add_all([v]), lambda s: next(iter(s))),
    "list, update": (lambda t: ListStateDescriptor("s", t), lambda s, v: s.update([v]), lambda s: s.get()[0]),
    "map": (lambda t: MapStateDescriptor("s", LONG, t), lambda s, v: s.put(1, v), lambda s: s.get(1)),
    "map, items": (lambda t: MapStateDescriptor("s", LONG, t), lambda s, v: s.put_all({1: v}), _entries),
    "map, values": (
        lambda t: MapStateDescriptor("s", LONG, t),
        lambda s, v: s.__setitem__(1, v),
        lambda s: next(iter(s.values())),
    ),
    "map, index": (lambda t: MapStateDescriptor("s", LONG, t), lambda s, v: s.put(1, v), lambda s: s[1]),
    "reducing, first": (
        lambda t: ReducingStateDescriptor("s", lambda a, b: a, t),
        lambda s, v: s.add(v),
        lambda s: s.get(),
    ),
    "reducing, last": (
        lambda t: ReducingStateDescriptor("s", lambda a, b: b, t),
        lambda s, v: [s.add(v), s.add(v)],
        lambda s: s.get(),
    ),
    "aggregating": (
        lambda t: AggregatingStateDescriptor("s", Keep(), t),
        lambda s, v: s.add(v),
        lambda s: s.get(),
    ),
}

BARRIERS: dict[str, tuple[int, ...]] = {"no barrier": (), "a barrier after each step": (0, 1, 2)}
NO_TTL = None
TTL = StateTtlConfig.new_builder(Time.hours(1)).build()
READS = StateTtlConfig.new_builder(Time.hours(1)).set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite).build()

CASES: list[tuple[str, bool, StateTtlConfig | None, TypeInformation | None]] = [
    ("no barrier", False, NO_TTL, None),
    ("no barrier", False, NO_TTL, LONG),
    ("no barrier", False, TTL, None),
    ("no barrier", False, READS, LONG),
    ("a barrier after each step", False, NO_TTL, None),
    ("a barrier after each step", False, NO_TTL, LONG),
    ("a barrier after each step", True, READS, None),
]
"""Where barriers are, whether the job restarts after each, the time to live, and the type of the namespace."""


@pytest.fixture(params=["columnar", "hashmap"])
def make(request: pytest.FixtureRequest, store: LocalObjectStore, cache: RunCache) -> Callable[..., Any]:
    options: dict[str, Any] = {"columnar": {}, "hashmap": HASHMAP}[request.param]

    def make(restored: Any = None) -> Any:
        backend = ColumnarKeyedStateBackend(
            operator="op",
            key_groups=KeyGroupRange(0, MAX_PARALLELISM - 1),
            max_parallelism=MAX_PARALLELISM,
            store=store,
            cache=cache,
            restored=restored,
            now=lambda: 0,
            **options,
        )
        backend.bind_key_type(LONG)
        return backend

    return make


def _run(
    make: Callable[..., Any],
    form: Form,
    changeable: tuple[TypeInformation, Callable[[], Any], Callable[[Any], Any]],
    barriers: tuple[int, ...],
    *,
    ttl: StateTtlConfig | None,
    namespace: TypeInformation | None,
    restarts: bool,
) -> Any:
    """Gives a value to the state, changes it, reads it, changes what was read, and returns what is read then."""
    declare, give, read = form
    kind, create, change = changeable
    backend, state = make(), None

    def opened() -> Any:
        descriptor = declare(kind)
        if ttl is not None:
            descriptor.enable_time_to_live(ttl)
        found = backend.get_state(descriptor, namespace)
        backend.set_current_key(7)
        if namespace is not None:
            found.set_current_namespace(3)
        return found

    def step(number: int) -> Any:
        nonlocal backend
        if number not in barriers:
            return state
        snapshot = backend.snapshot()
        if not restarts:
            return state
        backend = make(snapshot)
        return opened()

    state = opened()
    value = create()
    give(state, value)
    state = step(0)
    change(value)
    state = step(1)
    change(read(state))
    state = step(2)
    return plain(read(state))


@pytest.mark.short
@pytest.mark.parametrize("form", FORMS)
def test_changes_in_place_change_no_state_wherever_barriers_and_restarts_are(
    make: Callable[..., Any], request: pytest.FixtureRequest, form: str
) -> None:
    few = ["list", "row", "pickled object"]  # for the backend that differs only in how it stores state
    for value in few if "heap" in request.node.name else CHANGEABLE:
        expected = plain(CHANGEABLE[value][1]())
        for barriers, restarts, ttl, namespace in CASES:
            found = _run(
                make,
                FORMS[form],
                CHANGEABLE[value],
                BARRIERS[barriers],
                ttl=ttl,
                namespace=namespace,
                restarts=restarts,
            )
            assert found == expected, (value, barriers, restarts, ttl, namespace)


@pytest.mark.parametrize("value", CHANGEABLE)
@pytest.mark.parametrize("barriers", BARRIERS)
def test_operator_state_is_not_changed_in_place(store: LocalObjectStore, value: str, barriers: str) -> None:
    kind, create, change = CHANGEABLE[value]
    rules, elements = MapStateDescriptor("rules", LONG, kind), ListStateDescriptor("list", kind)
    union = ListStateDescriptor("union", kind)
    backend = OperatorStateBackend("op", store, ())

    def barrier(number: int) -> None:
        nonlocal backend
        if number in BARRIERS[barriers]:
            backend = OperatorStateBackend("op", store, backend.snapshot())

    def readers() -> list[Callable[[], Any]]:
        writable, read_only = backend.get_broadcast_state(rules), backend.get_read_only_broadcast_state(rules)
        return [
            lambda: writable.get(1),
            lambda: next(iter(writable.values())),
            lambda: _entries(writable),
            lambda: read_only.get(1),
            lambda: next(iter(read_only.values())),
            lambda: _entries(read_only),
            *(lambda i=i: backend.get_list_state(elements).get()[i] for i in range(3)),  # type: ignore[misc]
            lambda: backend.get_union_list_state(union).get()[0],
        ]

    given = create()
    backend.get_broadcast_state(rules).put(1, given)
    listed = backend.get_list_state(elements)
    listed.update([given])
    listed.add(given)
    listed.add_all([given])
    backend.get_union_list_state(union).add(given)
    barrier(0)
    change(given)
    barrier(1)
    for read in readers():
        change(read())
    barrier(2)
    assert [plain(read()) for read in readers()] == [plain(create())] * len(readers())


def test_a_default_that_all_keys_share_is_not_changed_by_one_of_them(make: Callable[..., Any]) -> None:
    class Collect(AggregateFunction):
        empty: list[int] = []  # noqa: RUF012 - what users write

        def create_accumulator(self) -> list[int]:
            return self.empty

        def add(self, value: int, accumulator: list[int]) -> list[int]:
            accumulator.append(value)
            return accumulator

        def get_result(self, accumulator: list[int]) -> list[int]:
            accumulator.sort()
            return accumulator

        def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
            return acc_a + acc_b

    backend = make()
    state = backend.get_state(AggregatingStateDescriptor("s", Collect(), Types.LIST(LONG)))
    for key, value in [(1, 5), (2, 6), (1, 4)]:
        backend.set_current_key(key)
        state.add(value)
        state.get().append(99)
    assert Collect.empty == []
    assert [backend.read("s", key) for key in (1, 2)] == [[4, 5], [6]]


def test_an_accumulator_that_a_function_changed_before_it_failed_is_stored_as_it_is(make: Callable[..., Any]) -> None:
    def reduce(held: list[int], other: list[int]) -> list[int]:
        held.append(0)
        raise ValueError(other)

    backend = make()
    descriptor = ReducingStateDescriptor("s", reduce, Types.LIST(LONG))
    state = backend.get_state(descriptor)
    backend.set_current_key(1)
    state.add([1])
    restored = make(backend.snapshot())
    state = restored.get_state(descriptor)
    restored.set_current_key(1)
    with pytest.raises(ValueError, match="2"):
        state.add([2])
    after = make(restored.snapshot())
    after.get_state(descriptor)
    assert restored.read("s", 1) == after.read("s", 1) == [1, 0]


def test_values_that_cannot_change_are_not_copied(make: Callable[..., Any]) -> None:
    backend, text = make(), "a text of some length"
    for kind, value in [(STRING, text), (Types.TUPLE([STRING, LONG]), (text, 10**9))]:
        state = backend.get_state(ValueStateDescriptor(str(kind), kind))
        backend.set_current_key(1)
        state.update(value)
        assert state.value() is value
