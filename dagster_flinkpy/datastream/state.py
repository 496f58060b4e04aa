"""State that functions keep, and the descriptors that declare it (``pyflink.datastream.state``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.typeinfo import ListTypeInfo, MapTypeInfo, TypeInformation
from dagster_flinkpy.datastream.base_functions import BaseAggregateFunction, BaseReduceFunction
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
        """Removes the value of the current key."""


class AppendingState(State, Generic[IN, OUT]):
    """State to which values are added one by one."""

    @abstractmethod
    def get(self) -> OUT | None:
        """Returns the result of the values added for the current key."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Adds a value."""


class MergingState(AppendingState[IN, OUT]):
    """State whose contents can be merged."""


class ValueState(State, Generic[T]):
    """One value per key."""

    @abstractmethod
    def value(self) -> T | None:
        """Returns the value of the current key, or None."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Sets the value. None clears it."""


class ListState(MergingState[T, Iterable[T]]):
    """A list per key."""

    @abstractmethod
    def get(self) -> Iterable[T]:
        """Returns the elements of the current key, or nothing if there are none."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Appends an element."""

    @abstractmethod
    def add_all(self, values: list[T]) -> None:
        """Appends elements."""

    @abstractmethod
    def update(self, values: list[T]) -> None:
        """Replaces the list. An empty list clears the state."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class _ReadMap(State, Generic[K, V]):
    """A map that is read."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Returns the value of an entry, or None."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Returns whether the map has this key."""

    @abstractmethod
    def items(self) -> Iterator[tuple[K, V]]:
        """Returns an iterator over all entries."""

    @abstractmethod
    def keys(self) -> Iterator[K]:
        """Returns an iterator over the keys of all entries."""

    @abstractmethod
    def values(self) -> Iterator[V]:
        """Returns an iterator over the values of all entries."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Returns whether the map is empty."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return self.keys()


class _WrittenMap(_ReadMap[K, V]):
    """A map that is read and written."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Sets an entry."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Sets entries. Pairs of key and value are accepted as well, as in PyFlink."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Removes an entry, if it exists."""

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


class MapState(_WrittenMap[K, V]):
    """A map per key, whose entries are read, written and stored separately."""


class ReducingState(MergingState[T, T]):
    """A value per key, into which each added value is reduced."""

    @abstractmethod
    def get(self) -> T | None:
        """Returns the reduced value, or None if nothing was added."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Reduces a value into the state."""


class AggregatingState(MergingState[IN, OUT]):
    """An accumulator per key."""

    @abstractmethod
    def get(self) -> OUT | None:
        """Returns the result of the accumulator, or None if nothing was added."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Adds a value to the accumulator."""


class ReadOnlyBroadcastState(_ReadMap[K, V]):
    """A read-only map that is the same in all subtasks. Its entries are in the order in which they were first put."""


class BroadcastState(_WrittenMap[K, V], ReadOnlyBroadcastState[K, V]):
    """A map that is the same in all subtasks, because each must treat a broadcast record in the same way."""


class OperatorStateStore(ABC):
    """Provides access to operator state, which belongs to a subtask and not to a key. Names are unique per operator."""

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """Returns a map that is the same in all subtasks."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Returns a list whose elements are redistributed over all subtasks when the parallelism changes."""

    @abstractmethod
    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Returns a list. A restore, or the start of an epoch in Spark jobs, gives every subtask the elements of all.

        So replace it with ``update()`` in each snapshot: what is only added to comes back from each subtask.
        """


class StateDescriptor:
    """Declares the name and type of a state. The name is unique within an operator."""

    def __init__(self, name: str, type_info: TypeInformation) -> None:
        if not name or not isinstance(name, str):
            raise ConfigurationError(f"a state needs a name, not {name!r}")
        if not isinstance(type_info, TypeInformation):
            raise ConfigurationError(
                f"state {name!r} needs a type from Types.*, not {type_info!r}; "
                "for any Python value use Types.PICKLED_BYTE_ARRAY()"
            )
        self.name = name
        self.type_info = type_info
        self.ttl_config: StateTtlConfig | None = None

    def get_name(self) -> str:
        """Returns the name."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Lets the state expire. State stored with a time to live cannot be restored without one, nor vice versa.

        Args:
            ttl_config: When it expires.
        """
        if not isinstance(ttl_config, StateTtlConfig):
            raise ConfigurationError(f"state {self.name!r} needs a StateTtlConfig, not {ttl_config!r}")
        self.ttl_config = ttl_config

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.type_info!r})"


class ValueStateDescriptor(StateDescriptor):
    """Declares a `ValueState`.

    Args:
        name: Unique within the operator.
        value_type_info: The type of the value.
    """

    def __init__(self, name: str, value_type_info: TypeInformation) -> None:
        super().__init__(name, value_type_info)


class ListStateDescriptor(StateDescriptor):
    """Declares a `ListState`; ``type_info`` is the type of the list.

    Args:
        name: Unique within the operator.
        elem_type_info: The type of an element.
    """

    def __init__(self, name: str, elem_type_info: TypeInformation) -> None:
        super().__init__(name, ListTypeInfo(elem_type_info))
        self.elem_type_info = elem_type_info


class MapStateDescriptor(StateDescriptor):
    """Declares a `MapState`; ``type_info`` is the type of the map.

    Args:
        name: Unique within the operator.
        key_type_info: The type of the keys.
        value_type_info: The type of the values.
    """

    def __init__(self, name: str, key_type_info: TypeInformation, value_type_info: TypeInformation) -> None:
        super().__init__(name, MapTypeInfo(key_type_info, value_type_info))
        self.key_type_info = key_type_info
        self.value_type_info = value_type_info


class _ReduceCallable(BaseReduceFunction):
    """Wraps a plain callable as a reduce function."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    @property
    def reduce(self) -> Callable[[Any, Any], Any]:
        """The callable itself, because a method that calls it would double the cost of a call."""
        return self._function


class ReducingStateDescriptor(StateDescriptor):
    """Declares a `ReducingState`.

    Args:
        name: Unique within the operator.
        reduce_function: Combines two values: a `ReduceFunction` or a callable.
        type_info: The type of the value.
    """

    def __init__(
        self, name: str, reduce_function: BaseReduceFunction | Callable[[Any, Any], Any], type_info: TypeInformation
    ) -> None:
        super().__init__(name, type_info)
        if not isinstance(reduce_function, BaseReduceFunction):
            if not callable(reduce_function) or isinstance(reduce_function, type):
                wanted = "a ReduceFunction or a callable"
                check_argument(f"state {name!r}", reduce_function, BaseReduceFunction, wanted)
            reduce_function = _ReduceCallable(reduce_function)
        self.reduce_function = reduce_function

    def get_reduce_function(self) -> BaseReduceFunction:
        """Returns the function that combines two values."""
        return self.reduce_function


class AggregatingStateDescriptor(StateDescriptor):
    """Declares an `AggregatingState`.

    Args:
        name: Unique within the operator.
        agg_function: Creates, fills and reads the accumulator.
        state_type_info: The type of the accumulator.
    """

    def __init__(self, name: str, agg_function: BaseAggregateFunction, state_type_info: TypeInformation) -> None:
        super().__init__(name, state_type_info)
        check_argument(f"state {name!r}", agg_function, BaseAggregateFunction, "an AggregateFunction")
        self.agg_function = agg_function

    def get_agg_function(self) -> BaseAggregateFunction:
        """Returns the function that creates, fills and reads the accumulator."""
        return self.agg_function
