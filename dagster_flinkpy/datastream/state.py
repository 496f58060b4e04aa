"""State a function may keep, and the descriptors that declare it (``pyflink.datastream.state``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from dagster_flinkpy.common.typeinfo import ListTypeInfo, MapTypeInfo, TypeInformation
from dagster_flinkpy.datastream.functions import AggregateFunction, ReduceFunction
from dagster_flinkpy.datastream.state_ttl import StateTtlConfig
from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AppendingState",
    "BroadcastState",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "MergingState",
    "OperatorStateStore",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "ReducingStateDescriptor",
    "State",
    "StateDescriptor",
    "StateTtlConfig",
    "ValueState",
    "ValueStateDescriptor",
]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class State(ABC):
    """State of the current key."""

    @abstractmethod
    def clear(self) -> None:
        """Forgets the value of the current key."""


class AppendingState(State, Generic[IN, OUT]):
    """State that takes values one by one."""

    @abstractmethod
    def get(self) -> OUT | None:
        """What the values of the current key have become."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Takes a value."""


class MergingState(AppendingState[IN, OUT]):
    """State whose contents can be merged."""


class ValueState(State, Generic[T]):
    """One value per key."""

    @abstractmethod
    def value(self) -> T | None:
        """The value of the current key, or None."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Replaces the value; None clears it."""


class ListState(MergingState[T, Iterable[T]]):
    """A list per key."""

    @abstractmethod
    def get(self) -> Iterable[T]:
        """The elements of the current key; empty where there are none."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Appends an element."""

    @abstractmethod
    def add_all(self, values: list[T]) -> None:
        """Appends elements."""

    @abstractmethod
    def update(self, values: list[T]) -> None:
        """Replaces the list; an empty one clears it."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class MapState(State, Generic[K, V]):
    """A map per key; entries are read, written and stored one by one."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """The value of an entry, or None."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Sets an entry."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Sets entries; pairs of key and value will do, too, which is what works in PyFlink."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Drops an entry; one that is not there is fine."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is such an entry."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """All entries."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """The keys of all entries."""

    @abstractmethod
    def values(self) -> Iterable[V]:
        """The values of all entries."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no entry."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class ReducingState(MergingState[T, T]):
    """A value per key into which every added one is reduced."""

    @abstractmethod
    def get(self) -> T | None:
        """The reduced value, or None where nothing was added."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Reduces a value into the state."""


class AggregatingState(MergingState[IN, OUT]):
    """An accumulator per key."""

    @abstractmethod
    def get(self) -> OUT | None:
        """The result for the accumulator, or None where nothing was added."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Adds a value to the accumulator."""


class ReadOnlyBroadcastState(State, Generic[K, V]):
    """A map that is equal at all subtasks, to be read only."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """The value of an entry, or None."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is such an entry."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """All entries, in the order in which they were first put."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """The keys of all entries."""

    @abstractmethod
    def values(self) -> Iterable[V]:
        """The values of all entries."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no entry."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class BroadcastState(ReadOnlyBroadcastState[K, V]):
    """A map that is equal at all subtasks, for the function must do the same with each broadcast record everywhere."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Sets an entry."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Sets entries; pairs of key and value will do, too, which is what works in PyFlink."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Drops an entry; one that is not there is fine."""

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


class OperatorStateStore(ABC):
    """The operator state of a subtask: state without keys. Names are unique within an operator."""

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """A map that is equal at all subtasks."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list whose elements are dealt out over all subtasks when the parallelism changes."""

    @abstractmethod
    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list of which every subtask gets the elements of all when it is restored: at the start of each epoch."""


class StateDescriptor:
    """Name and type of a state. The name is unique within an operator."""

    def __init__(self, name: str, type_info: TypeInformation) -> None:
        if not name or not isinstance(name, str):
            raise ConfigurationError(f"a state needs a name, not {name!r}")
        if not isinstance(type_info, TypeInformation):
            raise ConfigurationError(
                f"state {name!r} needs a type from Types.*, not {type_info!r}; "
                "for any Python value say Types.PICKLED_BYTE_ARRAY()"
            )
        self.name = name
        self.type_info = type_info
        self.ttl_config: StateTtlConfig | None = None

    def get_name(self) -> str:
        """The name."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Lets the state expire. State that was stored with a time to live needs one, and the other way round.

        Args:
            ttl_config: How long it lives.
        """
        if not isinstance(ttl_config, StateTtlConfig):
            raise ConfigurationError(f"state {self.name!r} needs a StateTtlConfig, not {ttl_config!r}")
        self.ttl_config = ttl_config

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.type_info!r})"


class ValueStateDescriptor(StateDescriptor):
    """Declares a :class:`ValueState`.

    Args:
        name: Unique within the operator.
        value_type_info: Type of the value.
    """

    def __init__(self, name: str, value_type_info: TypeInformation) -> None:
        super().__init__(name, value_type_info)


class ListStateDescriptor(StateDescriptor):
    """Declares a :class:`ListState`; ``type_info`` is that of the list.

    Args:
        name: Unique within the operator.
        elem_type_info: Type of one element.
    """

    def __init__(self, name: str, elem_type_info: TypeInformation) -> None:
        super().__init__(name, ListTypeInfo(elem_type_info))
        self.elem_type_info = elem_type_info


class MapStateDescriptor(StateDescriptor):
    """Declares a :class:`MapState`; ``type_info`` is that of the map.

    Args:
        name: Unique within the operator.
        key_type_info: Type of an entry's key.
        value_type_info: Type of an entry's value.
    """

    def __init__(self, name: str, key_type_info: TypeInformation, value_type_info: TypeInformation) -> None:
        super().__init__(name, MapTypeInfo(key_type_info, value_type_info))
        self.key_type_info = key_type_info
        self.value_type_info = value_type_info


class _ReduceCallable(ReduceFunction):
    """A plain callable as a :class:`ReduceFunction`."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def reduce(self, value1: Any, value2: Any) -> Any:
        return self._function(value1, value2)


class ReducingStateDescriptor(StateDescriptor):
    """Declares a :class:`ReducingState`.

    Args:
        name: Unique within the operator.
        reduce_function: Combines two values; a :class:`ReduceFunction` or a callable.
        type_info: Type of the value.
    """

    def __init__(
        self, name: str, reduce_function: ReduceFunction | Callable[[Any, Any], Any], type_info: TypeInformation
    ) -> None:
        super().__init__(name, type_info)
        if not isinstance(reduce_function, ReduceFunction):
            if not callable(reduce_function):
                raise ConfigurationError(
                    f"state {name!r} needs a ReduceFunction or a callable, not {reduce_function!r}"
                )
            reduce_function = _ReduceCallable(reduce_function)
        self.reduce_function = reduce_function

    def get_reduce_function(self) -> ReduceFunction:
        """What combines two values."""
        return self.reduce_function


class AggregatingStateDescriptor(StateDescriptor):
    """Declares an :class:`AggregatingState`.

    Args:
        name: Unique within the operator.
        agg_function: Creates, fills and reads the accumulator.
        state_type_info: Type of the accumulator.
    """

    def __init__(self, name: str, agg_function: AggregateFunction, state_type_info: TypeInformation) -> None:
        super().__init__(name, state_type_info)
        if not isinstance(agg_function, AggregateFunction):
            raise ConfigurationError(f"state {name!r} needs an AggregateFunction, not {agg_function!r}")
        self.agg_function = agg_function

    def get_agg_function(self) -> AggregateFunction:
        """What creates, fills and reads the accumulator."""
        return self.agg_function
