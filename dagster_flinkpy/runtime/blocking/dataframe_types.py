"""Calls user functions that return DataFrames, and checks the DataFrames and their types."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, Types
from dagster_flinkpy.connectors.columns.column_casts import check_cast, type_info_of
from dagster_flinkpy.datastream.connectors.spark import ROWTIME
from dagster_flinkpy.errors import (
    ConfigurationError,
    FlinkPyError,
    InputTypeError,
    TypeMismatchError,
    UserFunctionError,
)
from dagster_flinkpy.runtime.failure import error_in_task
from dagster_flinkpy.runtime.throwables import fails_always
from dagster_flinkpy.spark.sessions import open_session
from dagster_flinkpy.spark.user_modules import user_modules_by_value
from dagster_flinkpy.spark.versions import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from dagster_flinkpy.datastream.connectors.spark import DataFrameFunction

__all__ = ["frame_of", "frame_schema", "select_columns", "type_of_source", "type_of_transform", "user_frames"]

_MAX_PRECISION = 38
"""The maximum number of digits of Spark's decimals."""


def type_of_source(df_factory: Callable[[Any], Any], operator: str) -> RowTypeInfo:
    """Returns the type of the rows of a DataFrame for `from_spark`."""
    with open_session(own=True) as spark, user_frames(operator):
        return _type_of(frame_of(df_factory, spark, operator), operator)


def type_of_transform(
    function: DataFrameFunction, input_type: RowTypeInfo | TupleTypeInfo, operator: str
) -> RowTypeInfo:
    """Returns the type of the rows of a DataFrame for `transform_spark`, without event time."""
    with open_session(own=True) as spark, user_frames(operator):
        empty = spark.createDataFrame([], frame_schema(input_type, operator))
        return _type_of(frame_of(function, empty, operator), operator, without=ROWTIME)


@contextmanager
def user_frames(operator: str) -> Iterator[None]:
    """Inside the context, DataFrames of the user can be created and run.

    Pickles the user's modules by value, and raises typed errors.

    Raises:
        UserFunctionError: A function on the driver or on the executors failed, or Spark refused the DataFrame.
    """
    from pyspark import cloudpickle

    try:
        with user_modules_by_value(cloudpickle):
            yield
    except FlinkPyError:
        raise
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise error_in_task(error) or UserFunctionError(
            f"the DataFrame of operator {operator!r} failed: {type(error).__name__}: {first}",
            operator=operator,
            user_traceback="".join(traceback.format_exception(error)),
            permanent=fails_always(error),
        ) from error


def frame_of(function: Callable[[Any], Any], argument: Any, operator: str) -> DataFrame:
    """Calls a user function that returns a DataFrame.

    Raises:
        InputTypeError: The function returns something else, or a DataFrame that is unbounded, or has duplicate
            columns or none.
    """
    from pyspark.sql import DataFrame

    frame = function(argument)
    if not isinstance(frame, DataFrame):
        raise InputTypeError(
            f"operator {operator!r}: the function must return a Spark DataFrame, not {frame!r}, "
            f"which is {type(frame).__name__}"
        )
    if frame.isStreaming:
        raise InputTypeError(
            f"operator {operator!r}: the DataFrame is a stream of Spark; use spark.read instead of spark.readStream"
        )
    twice = [name for i, name in enumerate(frame.columns) if name in frame.columns[:i]]
    if twice or not frame.columns:
        what = f"two columns {twice[0]!r}" if twice else "no columns"
        raise InputTypeError(f"operator {operator!r}: the DataFrame has {what}; it needs columns with unique names")
    return frame


def select_columns(frame: DataFrame, type_info: RowTypeInfo, operator: str, *, rowtime: bool) -> DataFrame:
    """Selects the columns of a type in its order, then event time if it is wanted and there, and calls them 0, 1, ...

    Raises:
        InputTypeError: A column is missing or has a type that does not fit, or event time is not an integer.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegralType

    if missing := [name for name in type_info.field_names if name not in frame.columns]:
        raise InputTypeError(
            f"operator {operator!r}: the DataFrame has no column {', '.join(map(repr, missing))}; "
            f"its columns are {', '.join(map(repr, frame.columns))}"
        )
    for name, declared in zip(type_info.field_names, type_info.field_types, strict=True):
        there = arrow_type(frame.schema[name].dataType)
        try:
            check_cast(name, there, declared.arrow_type, declared)
        except TypeMismatchError as error:
            raise InputTypeError(f"operator {operator!r}, the DataFrame: {error}, or in Spark") from error
    # Spark Connect takes a column 'a.b' of mapInArrow for a field, and 'a' and 'A' may be the same to Spark.
    numbers = {name: str(number) for number, name in enumerate(frame.columns)}
    columns = [F.col(numbers[name]) for name in type_info.field_names]
    if rowtime and ROWTIME in frame.columns:
        kind = frame.schema[ROWTIME].dataType
        if not isinstance(kind, IntegralType):
            raise InputTypeError(
                f"operator {operator!r}: column {ROWTIME!r} of the DataFrame is {kind.simpleString()}; "
                "event time must be int milliseconds, such as unix_millis(...)"
            )
        columns.append(F.col(numbers[ROWTIME]).cast("bigint"))
    return frame.toDF(*numbers.values()).select(*columns)


def _type_of(frame: DataFrame, operator: str, without: str | None = None) -> RowTypeInfo:
    from pyspark.errors import PySparkException

    names, types = [], []
    for field in frame.schema:
        if field.name != without:
            try:
                types.append(type_info_of(arrow_type(field.dataType), field.name, instants=True))
            except (PySparkException, ConfigurationError) as error:
                raise ConfigurationError(
                    f"operator {operator!r}: column {field.name!r} of the DataFrame is "
                    f"{field.dataType.simpleString()}, for which there is no type in Types: cast it, or leave it out"
                ) from error
            names.append(field.name)
    return Types.ROW_NAMED(names, types)


def frame_schema(type_info: RowTypeInfo | TupleTypeInfo, operator: str) -> StructType:
    """Returns the schema of a DataFrame of records, with event time as the last column.

    Raises:
        ConfigurationError: Spark has no type for a field. The message names it.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import LongType, StructType

    schema = StructType()
    for field, declared in zip(cast(pa.StructType, type_info.arrow_type), type_info.field_types, strict=True):
        try:
            if _has_wide_decimal(field.type):
                raise ConfigurationError(f"its decimals have more than {_MAX_PRECISION} digits")
            schema.add(field.name, from_arrow_type(field.type, prefer_timestamp_ntz=True))
        except (PySparkException, ConfigurationError) as error:
            raise ConfigurationError(
                f"operator {operator!r}: field {field.name!r} of the stream is {declared}, for which Spark has no "
                f"type ({error}); use map() to convert it first"
            ) from error
    return schema.add(ROWTIME, LongType())


def _has_wide_decimal(arrow_type: pa.DataType) -> bool:
    inner = [arrow_type.field(i).type for i in range(arrow_type.num_fields)]
    return (pa.types.is_decimal(arrow_type) and arrow_type.precision > _MAX_PRECISION) or any(
        map(_has_wide_decimal, inner)
    )
