"""Applies asynchronous functions to streams (``pyflink.datastream.async_data_stream``)."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.async_retry_strategies import NO_RETRY_STRATEGY, AsyncRetryStrategy
from dagster_flinkpy.datastream.data_stream import DataStream
from dagster_flinkpy.datastream.functions import AsyncFunction
from dagster_flinkpy.datastream.operator_specs import AsyncWaitSpec, shown
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["AsyncDataStream"]


class AsyncDataStream:
    """Applies an `AsyncFunction` to a stream: a subtask calls it for many records at once.

    At a barrier, a subtask waits for all calls. So no call is in a checkpoint, and after a failure the calls of the
    epoch run again.

    Examples:
        >>> from dagster_flinkpy.common import Types
        >>> from dagster_flinkpy.datastream import StreamExecutionEnvironment
        >>> from dagster_flinkpy.testing import run_local
        >>> class Doubled(AsyncFunction):
        ...     async def async_invoke(self, value):
        ...         return [2 * value]
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> numbers = env.from_collection([1, 2], Types.LONG())
        >>> run_local(env, AsyncDataStream.ordered_wait(numbers, Doubled(), Time.seconds(5), 100, Types.LONG()))
        [[2, 4]]
    """

    @staticmethod
    def unordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: Time,
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Calls a function for each record, and emits results as they come.

        Results never overtake watermarks.

        Args:
            data_stream: The records.
            async_function: The function.
            timeout: After this time, the results for a record are what ``timeout()`` of the function returns. With 0, a
                call may take any time.
            capacity: How many calls a subtask makes at once.
            output_type: The type of the results. Without it, they are pickled.

        Raises:
            ConfigurationError: An argument is of the wrong kind. The message says which.
        """
        return AsyncDataStream.unordered_wait_with_retry(
            data_stream, async_function, timeout, NO_RETRY_STRATEGY, capacity, output_type
        )

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: Time,
        async_retry_strategy: AsyncRetryStrategy[Any],
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Like `unordered_wait`; calls are tried again as a strategy says, within ``timeout`` for all attempts."""
        spec = _spec(data_stream, async_function, timeout, async_retry_strategy, capacity)
        return data_stream._then("async wait operator", spec, output_type)

    @staticmethod
    def ordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: Time,
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Like `unordered_wait`, but results have the order of the records."""
        return AsyncDataStream.ordered_wait_with_retry(
            data_stream, async_function, timeout, NO_RETRY_STRATEGY, capacity, output_type
        )

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: Time,
        async_retry_strategy: AsyncRetryStrategy[Any],
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Like `ordered_wait`; calls are tried again as a strategy says, within ``timeout`` for all attempts."""
        spec = _spec(data_stream, async_function, timeout, async_retry_strategy, capacity)
        return data_stream._then("async wait operator", replace(spec, ordered=True), output_type)


def _spec(stream: Any, function: Any, timeout: Any, strategy: Any, capacity: Any) -> AsyncWaitSpec:
    if not isinstance(stream, DataStream):
        raise ConfigurationError(f"an asynchronous function needs a DataStream, not {stream!r}")
    if not isinstance(function, AsyncFunction):
        raise ConfigurationError(f"need an AsyncFunction, not {shown(function)}")
    if not inspect.iscoroutinefunction(function.async_invoke):
        raise ConfigurationError(f"declare async_invoke() of {type(function).__name__} with `async def`")
    if inspect.iscoroutinefunction(function.timeout):
        raise ConfigurationError(
            f"declare timeout() of {type(function).__name__} with `def`: it returns records at once"
        )
    if not isinstance(timeout, (Time, Duration)) or timeout.millis < 0:
        raise ConfigurationError(f"timeout must be a Time of at least 0, such as Time.seconds(10), not {timeout!r}")
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise ConfigurationError(f"capacity must be a number of calls, at least 1, not {capacity!r}")
    if not isinstance(strategy, AsyncRetryStrategy):
        raise ConfigurationError(f"need an AsyncRetryStrategy, not {shown(strategy)}")
    if strategy is not NO_RETRY_STRATEGY and not timeout.millis:
        raise ConfigurationError("calls that are tried again need a timeout greater than 0")
    if strategy.get_retry_predicate() is None:
        raise ConfigurationError(f"get_retry_predicate() of {type(strategy).__name__} returned None")
    return AsyncWaitSpec(function, timeout.millis, capacity, strategy)
