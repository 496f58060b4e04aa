"""Functions made of other functions: what an operator runs where the user gave something simpler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, cast

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
    MapFunction,
    ReduceFunction,
    RuntimeContext,
)

__all__ = [
    "Accumulation",
    "CoFlatMapAdapter",
    "CoMapAdapter",
    "Fold",
    "KeyedCoFlatMapAdapter",
    "KeyedCoMapAdapter",
    "KeyedCoProcessAdapter",
    "KeyedFilterAdapter",
    "KeyedFlatMapAdapter",
    "KeyedMapAdapter",
]

F = TypeVar("F", bound=Function)
Fold = Literal["sum", "min", "max", "min_by", "max_by"]


class _Adapter(Function):
    """Opens and closes the function inside."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def open(self, runtime_context: RuntimeContext) -> None:
        self.function.open(runtime_context)

    def close(self) -> None:
        self.function.close()


class KeyedMapAdapter(_Adapter, KeyedProcessFunction):
    """A MapFunction on a keyed stream: it may use keyed state."""

    function: MapFunction

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        return (self.function.map(value),)


class KeyedFlatMapAdapter(_Adapter, KeyedProcessFunction):
    """A FlatMapFunction on a keyed stream: it may use keyed state."""

    function: FlatMapFunction

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        return self.function.flat_map(value)


class KeyedFilterAdapter(_Adapter, KeyedProcessFunction):
    """A FilterFunction on a keyed stream: it may use keyed state."""

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
    """A CoMapFunction; a result of None is left out, as in PyFlink."""


class KeyedCoMapAdapter(_CoMap, KeyedCoProcessFunction):
    """A CoMapFunction of two keyed streams."""


class _CoFlatMap(_Adapter):
    function: CoFlatMapFunction

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        return self.function.flat_map1(value) or ()

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        return self.function.flat_map2(value) or ()


class CoFlatMapAdapter(_CoFlatMap, CoProcessFunction):
    """A CoFlatMapFunction."""


class KeyedCoFlatMapAdapter(_CoFlatMap, KeyedCoProcessFunction):
    """A CoFlatMapFunction of two keyed streams."""


class KeyedCoProcessAdapter(_Adapter, KeyedCoProcessFunction):
    """A CoProcessFunction of two keyed streams: it may use keyed state and timers of the keys."""

    function: CoProcessFunction

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        return self.function.process_element1(value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        return self.function.process_element2(value, ctx)


class Accumulation(ReduceFunction):
    """Folds one field of the records, or whole plain values (PyFlink: ``KeyedStream._accumulate``).

    ``sum``, ``min`` and ``max`` keep the other fields of the first record; ``min_by`` and ``max_by`` give the first of
    the records with the least, or greatest, field.

    Args:
        fold: What to do.
        position: Index or name of the field; 0 for records that are plain values.
    """

    def __init__(self, fold: Fold, position: int | str) -> None:
        self.fold: Fold = fold
        self.position = position
        self._pick = _PICKS[fold]

    def reduce(self, value1: Any, value2: Any) -> Any:
        if not isinstance(value2, (tuple, list, Row)):
            if self.position != 0:
                raise TypeError(f"{self.fold}({self.position!r}) of records without fields: {value2!r}; use 0")
            return self._pick(value1, value2)
        position = cast(int, self.position)
        if self.fold in ("min_by", "max_by"):
            first, second = value1[position], value2[position]
            return value2 if self._pick(first, second) is second and first != second else value1
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


def _sum(first: Any, second: Any) -> Any:
    return first + second


_PICKS: dict[Fold, Callable[[Any, Any], Any]] = {
    "sum": _sum,
    "min": _least,
    "max": _greatest,
    "min_by": _least,
    "max_by": _greatest,
}
