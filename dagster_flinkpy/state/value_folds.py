"""What reducing, aggregating and list state makes of the values that are added, as Python values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from dagster_flinkpy.common.copies import copied, keeping, taker, taking
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.base_functions import BaseAggregateFunction, BaseReduceFunction
from dagster_flinkpy.datastream.state import AggregatingStateDescriptor, ReducingStateDescriptor, StateDescriptor
from dagster_flinkpy.state.keys import TouchedKeys

__all__ = ["ValueFold", "fold_values"]


class ValueFold(ABC):
    """Makes one value of those that are added.

    Args:
        merge: Merges two of what is held.
        result: Returns the result of what is held.
        held_type: The type of what is held.
    """

    def __init__(
        self, merge: Callable[[Any, Any], Any], result: Callable[[Any], Any], held_type: TypeInformation
    ) -> None:
        self.merge, self.result = keeping(merge, held_type), result

    @abstractmethod
    def add(self, held: Any, value: Any) -> Any:
        """Returns what is held, None if nothing was, after a value was added which others may have, too."""

    @abstractmethod
    def add_each(self, keys: TouchedKeys, held: list[Any], each: Iterable[tuple[int, int, Any]]) -> None:
        """Adds values, in order.

        Args:
            keys: The keys, of which each becomes the current one.
            held: What each place holds; changed.
            each: The seat of the key, the place, which may repeat, and the value, which nobody else has.
        """


class _Reduced(ValueFold):
    def __init__(self, function: BaseReduceFunction, value_type: TypeInformation) -> None:
        super().__init__(function.reduce, lambda value: value, value_type)
        self._take, self._name_fields = taker(value_type), value_type.name_fields

    def add(self, held: Any, value: Any) -> Any:
        if self._take is not None:
            value = self._take(value)
        return value if held is None else self.merge(held, value)

    def add_each(self, keys: TouchedKeys, held: list[Any], each: Iterable[tuple[int, int, Any]]) -> None:
        reduce, name_fields = self.merge, self._name_fields
        for keys.seat, place, value in each:
            stored = held[place]
            held[place] = name_fields(value) if stored is None else reduce(stored, value)


class _Aggregated(ValueFold):
    def __init__(self, function: BaseAggregateFunction, accumulator_type: TypeInformation) -> None:
        super().__init__(function.merge, function.get_result, accumulator_type)
        self._add, self._changes = keeping(function.add, accumulator_type), taker(accumulator_type) is not None
        self._create = taking(function.create_accumulator, accumulator_type)

    def add(self, held: Any, value: Any) -> Any:
        held = self._create() if held is None else held
        return self._add(copied(value) if self._changes else value, held)

    def add_each(self, keys: TouchedKeys, held: list[Any], each: Iterable[tuple[int, int, Any]]) -> None:
        add, create = self._add, self._create
        for keys.seat, place, value in each:
            stored = held[place]
            held[place] = add(value, create() if stored is None else stored)


class _Listed(ValueFold):
    def __init__(self, list_type: TypeInformation) -> None:
        super().__init__(_extended, list, list_type)

    def add(self, held: Any, value: Any) -> Any:
        return [value] if held is None else _extended(held, [value])

    def add_each(self, keys: TouchedKeys, held: list[Any], each: Iterable[tuple[int, int, Any]]) -> None:
        for keys.seat, place, value in each:
            elements = held[place]
            if elements is None:
                held[place] = [value]
            else:
                elements.append(value)


def _extended(one: list[Any], other: list[Any]) -> list[Any]:
    one.extend(other)
    return one


def fold_values(descriptor: StateDescriptor) -> ValueFold:
    """Returns what a reducing, aggregating or list state does with values."""
    if isinstance(descriptor, ReducingStateDescriptor):
        return _Reduced(descriptor.reduce_function, descriptor.type_info)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return _Aggregated(descriptor.agg_function, descriptor.type_info)
    return _Listed(descriptor.type_info)
