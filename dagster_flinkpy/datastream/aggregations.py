"""Built-in aggregations that PyFlink does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.batch_function import BatchAggregateFunction
from dagster_flinkpy.datastream.functions import AggregateFunction, ProcessWindowFunction
from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "Aggregation",
    "Aggregations",
    "BatchAggregate",
    "BuiltInAggregate",
    "CountAggregate",
    "MeanAggregate",
    "WithKeyAndWindow",
    "aggregate_of",
    "check_field",
    "check_is_number",
    "field_of",
    "key_fields",
    "result_row",
    "type_of_sum",
]


class CountAggregate(AggregateFunction):
    """Counts records."""

    name = "count"
    accumulator_type = Types.LONG()
    results: Mapping[str, TypeInformation] = {"count": Types.LONG()}
    """The fields of a result."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class MeanAggregate(AggregateFunction):
    """Computes the mean of a field, as a double.

    Args:
        position: The index or name of the field; 0 if the records are plain values.
    """

    name = "mean"
    accumulator_type = Types.TUPLE([Types.DOUBLE(), Types.LONG()])
    results: Mapping[str, TypeInformation] = {"mean": Types.DOUBLE()}

    def __init__(self, position: int | str) -> None:
        self.position: Any = position

    def create_accumulator(self) -> tuple[float, int]:
        return -0.0, 0  # a sum of one value is exactly that value

    def add(self, value: Any, accumulator: tuple[float, int]) -> tuple[float, int]:
        total, count = accumulator
        number = value[self.position] if isinstance(value, (tuple, list, Row)) else value
        return total + number, count + 1

    def get_result(self, accumulator: tuple[float, int]) -> float:
        total, count = accumulator
        return total / count

    def merge(self, acc_a: tuple[float, int], acc_b: tuple[float, int]) -> tuple[float, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


@dataclass(frozen=True)
class Aggregation:
    """One of the aggregations of ``agg()``: what it computes, and of which field. Make it with one of the methods."""

    kind: Literal["count", "sum", "min", "max", "mean"]
    field: int | str | None

    @staticmethod
    def count(field: int | str | None = None) -> Aggregation:
        """Counts records.

        Args:
            field: A boolean field: only records in which it is true count. Default: all do.
        """
        return Aggregation("count", field)

    @staticmethod
    def sum(field: int | str = 0) -> Aggregation:
        """Adds up a field, whose type the sum has.

        Args:
            field: The index or name of the field; 0 if the records are plain values.
        """
        return Aggregation("sum", field)

    @staticmethod
    def min(field: int | str = 0) -> Aggregation:
        """Finds the least value of a field."""
        return Aggregation("min", field)

    @staticmethod
    def max(field: int | str = 0) -> Aggregation:
        """Finds the greatest value of a field."""
        return Aggregation("max", field)

    @staticmethod
    def mean(field: int | str = 0) -> Aggregation:
        """Computes the mean of a field, as a double."""
        return Aggregation("mean", field)


class Aggregations(AggregateFunction):
    """Several aggregations of the same records. The result is a tuple.

    Args:
        each: The aggregations, by the name of their result.
        record_type: The type of the records.

    Raises:
        ConfigurationError: An aggregation does not fit the records; or names of results are not distinct.
    """

    name = "agg"

    def __init__(self, each: Mapping[str, Aggregation], record_type: TypeInformation) -> None:
        if not each:
            raise ConfigurationError("agg() needs a result, such as agg(total=Aggregation.sum('price'))")
        for name, one in each.items():
            if not isinstance(one, Aggregation):
                raise ConfigurationError(f"agg() needs Aggregations, such as Aggregation.count(), not {name}={one!r}")
        self.each = dict(each)
        self.results = {name: _checked(name, one, record_type) for name, one in self.each.items()}
        accumulators: list[tuple[str, TypeInformation]] = []
        for name, one in self.each.items():
            if one.kind == "mean":
                accumulators += [(f"{name}_sum", Types.DOUBLE()), (f"{name}_count", Types.LONG())]
            else:
                accumulators.append((name, self.results[name]))
        names = [name for name, _ in accumulators]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"agg() keeps the state {', '.join(names)}, in which a name repeats; use another")
        self.accumulator_type = RowTypeInfo([kind for _, kind in accumulators], names)

    def create_accumulator(self) -> tuple[Any, ...]:
        return (None,) * len(self.accumulator_type.field_types)

    def add(self, value: Any, accumulator: Any) -> tuple[Any, ...]:
        alone: list[Any] = []
        for one in self.each.values():
            field: Any = one.field
            number = value[field] if field is not None and isinstance(value, (tuple, list, Row)) else value
            if one.kind == "count":
                alone.append(1 if field is None else int(bool(number)))
            elif number is None:
                raise TypeError(f"{one.kind}() of None, in record {value!r}; filter such records out first")
            elif one.kind == "mean":
                alone += [float(number), 1]
            else:
                alone.append(number)
        return self.merge(accumulator, alone)

    def merge(self, acc_a: Any, acc_b: Any) -> tuple[Any, ...]:
        merged: list[Any] = []
        for kind, a, b in zip(self.kinds, acc_a, acc_b, strict=True):
            if a is None or b is None:
                merged.append(b if a is None else a)
            elif kind == "sum":
                merged.append(a + b)
            else:
                merged.append(b if (b < a if kind == "min" else b > a) else a)
        return tuple(merged)

    def get_result(self, accumulator: Any) -> tuple[Any, ...]:
        results: list[Any] = []
        numbers = iter(accumulator)
        for one in self.each.values():
            number = next(numbers)
            if one.kind == "mean":
                count = next(numbers)
                number = None if number is None else number / count
            results.append(number)
        return tuple(results)

    @property
    def kinds(self) -> list[Literal["sum", "min", "max"]]:
        """Returns how each number of an accumulator is merged."""
        kinds: list[Literal["sum", "min", "max"]] = []
        for one in self.each.values():
            if one.kind == "mean":
                kinds += ["sum", "sum"]
            else:
                kinds.append("sum" if one.kind == "count" else one.kind)
        return kinds


def _checked(name: str, one: Aggregation, record_type: TypeInformation) -> TypeInformation:
    """Returns the type of a result.

    Raises:
        ConfigurationError: The field does not exist, or has another type.
    """
    what = f"{one.kind}()"
    if one.kind == "count" and one.field is None:
        return Types.LONG()
    check_field(record_type, one.field or 0, what)
    _, kind = field_of(record_type, one.field or 0)
    if one.kind == "count":
        if kind != Types.BOOLEAN():
            raise ConfigurationError(f"{name}: {what} needs a boolean, but {one.field!r} is {kind} in {record_type}")
        return Types.LONG()
    check_is_number(record_type, one.field or 0, what)
    if one.kind == "mean":
        return Types.DOUBLE()
    assert kind is not None
    if kind == Types.FLOAT():
        raise ConfigurationError(f"{name}: {what} of {one.field!r} is not supported for {kind}; declare a DOUBLE")
    return kind


class BatchAggregate:
    """An aggregation in columns that the user wrote. The result is a row.

    Args:
        function: The aggregation.
        record_type: The type of the records.

    Raises:
        ConfigurationError: The type of its accumulators or results is not a row with names.
    """

    name = "agg"

    def __init__(self, function: BatchAggregateFunction, record_type: TypeInformation) -> None:
        self.function, self.record_type = function, record_type
        self.accumulator_type = _named_row(function, "get_accumulator_type")
        self.result_type = _named_row(function, "get_result_type")
        self.results = dict(zip(self.result_type.field_names, self.result_type.field_types, strict=True))


def _named_row(function: BatchAggregateFunction, method: str) -> RowTypeInfo:
    kind = getattr(function, method)()
    if not isinstance(kind, RowTypeInfo) or not kind.named:
        raise ConfigurationError(
            f"{type(function).__name__}.{method}() returned {kind!r}; it must return a row whose fields have names, "
            "such as Types.ROW_NAMED(['total'], [Types.LONG()])"
        )
    return kind


BuiltInAggregate = CountAggregate | MeanAggregate | Aggregations | BatchAggregate
"""An aggregation whose results have names."""


def aggregate_of(
    function: BatchAggregateFunction | None, each: Mapping[str, Aggregation], record_type: TypeInformation
) -> Aggregations | BatchAggregate:
    """Returns the aggregation that the arguments of ``agg()`` describe.

    Raises:
        ConfigurationError: They describe none, or one that does not fit the records.
    """
    if function is None:
        return Aggregations(each, record_type)
    wanted = "names, such as agg(total=Aggregation.sum('price')), or a BatchAggregateFunction"
    check_argument("agg()", function, BatchAggregateFunction, wanted)
    if each:
        raise ConfigurationError(
            f"agg() takes either a BatchAggregateFunction or names, not both: let {type(function).__name__} compute "
            f"{', '.join(each)}, too, or call agg() twice"
        )
    return BatchAggregate(function, record_type)


class WithKeyAndWindow(ProcessWindowFunction[Any, Any, Any, Any]):
    """Puts the key and the start and end of the window in front of the result.

    Args:
        key_fields: The number of fields of the key; with 0 it is left out.
        flat: Whether the key is a tuple, whose fields are those of the result.
    """

    def __init__(self, key_fields: int, *, flat: bool) -> None:
        self.key_fields, self.flat = key_fields, flat

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        window = context.window()
        (result,) = elements
        fields = key if self.flat else (key,) * self.key_fields
        results = result if isinstance(result, (tuple, Row)) else (result,)
        yield Row(*fields, window.start, window.end, *results)


def result_row(
    keys: Sequence[str], key_types: Sequence[TypeInformation], results: Mapping[str, TypeInformation]
) -> RowTypeInfo:
    """Returns the type of results with the fields of the key in front.

    Raises:
        ConfigurationError: Two fields have one name.
    """
    names = [*keys, *results]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"a result would have two fields {', '.join(twice)}; give one another name")
    return RowTypeInfo([*key_types, *results.values()], names)


def key_fields(
    selector: object, key_type: TypeInformation | None, record_type: TypeInformation, what: str
) -> tuple[list[str], list[TypeInformation], bool]:
    """Returns the names and types of the fields of a key in a result, and whether the key is a tuple of them.

    Args:
        selector: What the stream is keyed by.
        key_type: Type of the key, if declared.
        record_type: The type of the records.
        what: The caller, for the message.

    Raises:
        ConfigurationError: The type of the key is not declared.
    """
    if isinstance(selector, (str, tuple)) and isinstance(record_type, RowTypeInfo):
        names = [selector] if isinstance(selector, str) else list(selector)
        types = [record_type.field_types[record_type.field_names.index(name)] for name in names]
        return names, types, isinstance(selector, tuple)
    if key_type is None:
        raise ConfigurationError(
            f"{what} returns the key with the result, so the type of the key must be known: key by the name of a "
            "field, or give key_by() a key_type"
        )
    if isinstance(key_type, TupleTypeInfo):
        return [f"key_{i}" for i in range(len(key_type.field_types))], list(key_type.field_types), True
    return ["key"], [key_type], False


def type_of_sum(record_type: TypeInformation, position: int | str) -> TypeInformation:
    """Returns the type of records with the sum of a field in it: a decimal gets ten more digits, as in Spark.

    Args:
        record_type: The type of the records.
        position: The index or name of the field.
    """
    index, kind = field_of(record_type, position)
    if not isinstance(kind, DecimalTypeInfo):
        return record_type
    most = 38 if kind.precision <= 38 else 76
    total = Types.DECIMAL(min(kind.precision + 10, most), kind.scale)
    if index is None or not isinstance(record_type, (RowTypeInfo, TupleTypeInfo)):
        return total
    types = [total if i == index else each for i, each in enumerate(record_type.field_types)]
    if isinstance(record_type, TupleTypeInfo):
        return TupleTypeInfo(types)
    return RowTypeInfo(types, record_type.field_names if record_type.named else None)


def field_of(record_type: TypeInformation, position: int | str) -> tuple[int | None, TypeInformation | None]:
    """Returns the index and type of a field: ``(None, type)`` for plain values, ``(None, None)`` if there is none."""
    if isinstance(record_type, (RowTypeInfo, TupleTypeInfo)):
        if isinstance(position, str):
            names = record_type.field_names if isinstance(record_type, RowTypeInfo) else ()
            if position not in names:
                return None, None
            position = names.index(position)
        elif not 0 <= position < len(record_type.field_types):
            return None, None
        return position, record_type.field_types[position]
    if isinstance(record_type, BasicTypeInfo) and position == 0:
        return None, record_type
    return None, None


def check_field(record_type: TypeInformation, position: int | str, what: str) -> None:
    """Checks that records have a field, as far as their type is known.

    Raises:
        ConfigurationError: They have no such field; the message lists the existing ones.
    """
    check_argument(what, position, (int, str), "the index or the name of a field")
    if isinstance(record_type, TupleTypeInfo):
        last = len(record_type.field_types) - 1
        if isinstance(position, str):
            raise ConfigurationError(
                f"{what} of {position!r}: the records are tuples, whose fields have no names; use an index from 0 to "
                f"{last}, or declare them as Types.ROW_NAMED"
            )
        if position > last:
            raise ConfigurationError(f"{what} of {position}: the records are tuples with the fields 0 to {last} only")
    elif isinstance(record_type, RowTypeInfo):
        names = record_type.field_names
        if position not in names if isinstance(position, str) else position >= len(names):
            raise ConfigurationError(f"{what} of {position!r}: the records have the fields {', '.join(names)} only")


_NUMBERS = ("BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE")


def check_is_number(record_type: TypeInformation, position: int | str, what: str) -> None:
    """Checks that a field is an integer or a floating-point number.

    Raises:
        ConfigurationError: It is not a number, or there is no such field.
    """
    check_argument(what, position, (int, str), "the index or the name of a field")
    _, kind = field_of(record_type, position)
    if not isinstance(kind, BasicTypeInfo) or kind.name not in _NUMBERS:
        raise ConfigurationError(
            f"{what} needs a number, but {position!r} is {kind or 'no field'} in {record_type}; name another field, or "
            "declare the type of the records"
        )
