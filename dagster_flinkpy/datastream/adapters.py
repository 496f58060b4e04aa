"""Functions that wrap simpler user functions in the form that an operator runs."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar, cast

from dagster_flinkpy.common.arguments import check_number
from dagster_flinkpy.common.typeinfo import TupleTypeInfo, TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ReduceFunction,
    RuntimeContext,
)
from dagster_flinkpy.errors import JobGraphError

__all__ = [
    "AccumulateType",
    "Accumulation",
    "CoFlatMapAdapter",
    "CoMapAdapter",
    "KeyedCoFlatMapAdapter",
    "KeyedCoMapAdapter",
    "KeyedCoProcessAdapter",
    "KeyedFilterAdapter",
    "KeyedFlatMapAdapter",
    "KeyedMapAdapter",
    "WithKey",
    "projected_type",
]

F = TypeVar("F", bound=Function)
AccumulateType = Literal["sum", "min", "max", "min_by", "max_by"]


class _Adapter(Function):
    """Opens and closes the wrapped function."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def open(self, runtime_context: RuntimeContext) -> None:
        self.function.open(runtime_context)

    def close(self) -> None:
        self.function.close()


class WithKey(MapFunction):
    """Puts the key in front of each record: ``Row(f0=key, f1=record)``.

    Args:
        selector: What the stream is keyed by: a function, a `KeySelector`, or the names of one or more fields.
    """

    def __init__(self, selector: Any) -> None:
        self._selector = selector

    def map(self, value: Any) -> Row:
        selector = self._selector
        if isinstance(selector, str):
            key = getattr(value, selector)
        elif isinstance(selector, tuple):
            key = tuple(getattr(value, name) for name in selector)
        else:
            key = selector.get_key(value) if isinstance(selector, KeySelector) else selector(value)
        return Row(f0=key, f1=value)


class KeyedMapAdapter(_Adapter, KeyedProcessFunction):
    """Wraps a MapFunction on a keyed stream, which may use keyed state."""

    function: MapFunction

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        return (self.function.map(value),)


class KeyedFlatMapAdapter(_Adapter, KeyedProcessFunction):
    """Wraps a FlatMapFunction on a keyed stream, which may use keyed state."""

    function: FlatMapFunction

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        return self.function.flat_map(value)


class KeyedFilterAdapter(_Adapter, KeyedProcessFunction):
    """Wraps a FilterFunction on a keyed stream, which may use keyed state."""

    function: FilterFunction

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        return (value,) if self.function.filter(value) else ()


def _present(result: Any) -> Iterable[Any]:
    return () if result is None else (result,)


class _CoMap(_Adapter):
    function: CoMapFunction

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        return _present(self.function.map1(value))

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        return _present(self.function.map2(value))


class CoMapAdapter(_CoMap, CoProcessFunction):
    """Wraps a CoMapFunction. Results that are None are dropped, as in PyFlink."""


class KeyedCoMapAdapter(_CoMap, KeyedCoProcessFunction):
    """Wraps a CoMapFunction on two keyed streams."""


class _CoFlatMap(_Adapter):
    function: CoFlatMapFunction

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        return self.function.flat_map1(value) or ()

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        return self.function.flat_map2(value) or ()


class CoFlatMapAdapter(_CoFlatMap, CoProcessFunction):
    """Wraps a CoFlatMapFunction."""


class KeyedCoFlatMapAdapter(_CoFlatMap, KeyedCoProcessFunction):
    """Wraps a CoFlatMapFunction on two keyed streams."""


class KeyedCoProcessAdapter(_Adapter, KeyedCoProcessFunction):
    """Wraps a CoProcessFunction on two keyed streams, which may use keyed state and timers."""

    function: CoProcessFunction

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        return self.function.process_element1(value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        return self.function.process_element2(value, ctx)


class Accumulation(ReduceFunction):
    """Folds one field of the records, or the records themselves if they are plain values.

    ``sum``, ``min`` and ``max`` keep the other fields of the first record. ``min_by`` and ``max_by`` return the first
    of the records with the least or greatest field. (PyFlink: ``KeyedStream._accumulate``.)

    Args:
        fold: The operation.
        position: The index or name of the field; 0 if the records are plain values.
    """

    def __init__(self, fold: AccumulateType, position: int | str) -> None:
        self.fold: AccumulateType = fold
        self.position = position
        self._pick = _PICKS[fold]

    def reduce(self, value1: Any, value2: Any) -> Any:
        if not isinstance(value2, (tuple, list, Row)):
            if self.position != 0:
                raise TypeError(f"{self.fold}({self.position!r}) of records without fields: {value2!r}; use 0")
            return self._pick(value1, value2)
        if isinstance(self.position, str) and not isinstance(value2, Row):
            raise TypeError(f"{self.fold}({self.position!r}): {value2!r} has no field names; use an index, such as 1")
        position = cast(int, self.position)
        if self.fold in ("min_by", "max_by"):
            first, second = value1[position], value2[position]
            return value2 if first is not second and self._pick(first, second) is second else value1
        folded = list(value1)
        index = value1._position(position) if isinstance(position, str) and isinstance(value1, Row) else position
        folded[index] = self._pick(value1[position], value2[position])
        if isinstance(value1, tuple):
            return tuple(folded)
        if isinstance(value1, Row):
            return type(value1)._of(folded)
        return folded


def _least(first: Any, second: Any) -> Any:
    return second if second < first else first


def _greatest(first: Any, second: Any) -> Any:
    return second if second > first else first


_EXACT = decimal.Context(prec=100)
"""Python's own context would round sums to 28 digits."""


def _sum(first: Any, second: Any) -> Any:
    if isinstance(first, decimal.Decimal) and isinstance(second, (decimal.Decimal, int)):
        return _EXACT.add(first, second)
    return first + second


_PICKS: dict[AccumulateType, Callable[[Any, Any], Any]] = {
    "sum": _sum,
    "min": _least,
    "max": _greatest,
    "min_by": _least,
    "max_by": _greatest,
}


def projected_type(tuple_type: TypeInformation, field_indexes: Sequence[int]) -> TypeInformation:
    """Returns the type of some fields of tuples.

    Raises:
        JobGraphError: The type is not one of tuples, or has no such field.
        ConfigurationError: What should be an index is no number.
    """
    if not isinstance(tuple_type, TupleTypeInfo):
        raise JobGraphError(f"project() needs a stream of Types.TUPLE(...), not {tuple_type}")
    if not field_indexes:
        raise JobGraphError("project() needs the index of a field, such as project(0)")
    for index in field_indexes:
        check_number("project()", index, "each field: its index")
    if not all(0 <= i < len(tuple_type.field_types) for i in field_indexes):
        raise JobGraphError(f"project{field_indexes}: the stream has {len(tuple_type.field_types)} fields")
    return Types.TUPLE([tuple_type.field_types[i] for i in field_indexes])
