"""When the call of an asynchronous function is tried again (``pyflink.datastream.async_retry_strategies``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "NO_RETRY_STRATEGY",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "NoRetryStrategy",
    "RetryPredicate",
]

OUT = TypeVar("OUT")
ResultPredicate = Callable[[list[Any]], bool] | None
ExceptionPredicate = Callable[[Exception], bool] | None


class AsyncRetryPredicate(ABC, Generic[OUT]):
    """Says after which outcomes a call is tried again."""

    @abstractmethod
    def result_predicate(self) -> Callable[[list[OUT]], bool] | None:
        """Returns a function that is true for results after which the call is tried again, or None."""

    @abstractmethod
    def exception_predicate(self) -> Callable[[Exception], bool] | None:
        """Returns a function that is true for exceptions after which the call is tried again, or None."""


class AsyncRetryStrategy(ABC, Generic[OUT]):
    """Says whether and when a call is tried again. One object serves all calls of a subtask."""

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Returns whether another attempt may follow this many."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """Returns the milliseconds to wait after this many attempts."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        """Returns after which outcomes a call is tried again."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy[Any]:
        """Returns the strategy that tries each call once."""
        return NO_RETRY_STRATEGY

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate,
        exception_predicate: ExceptionPredicate,
    ) -> AsyncRetryStrategy[Any]:
        """Returns a `FixedDelayRetryStrategy` with these arguments."""
        return FixedDelayRetryStrategy(max_attempts, backoff_time_millis, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate,
        exception_predicate: ExceptionPredicate,
    ) -> AsyncRetryStrategy[Any]:
        """Returns an `ExponentialBackoffDelayRetryStrategy` with these arguments."""
        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class RetryPredicate(AsyncRetryPredicate[OUT]):
    """Two functions, each of which may be None.

    Args:
        result_predicate: Is true for results after which the call is tried again.
        exception_predicate: Is true for exceptions after which the call is tried again.
    """

    def __init__(
        self,
        result_predicate: Callable[[list[OUT]], bool] | None,
        exception_predicate: Callable[[Exception], bool] | None,
    ) -> None:
        self._result_predicate, self._exception_predicate = result_predicate, exception_predicate

    def result_predicate(self) -> Callable[[list[OUT]], bool] | None:
        return self._result_predicate

    def exception_predicate(self) -> Callable[[Exception], bool] | None:
        return self._exception_predicate


class NoRetryStrategy(AsyncRetryStrategy[OUT]):
    """Tries each call once."""

    def can_retry(self, current_attempts: int) -> bool:
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return -1

    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        return RetryPredicate(None, None)


class FixedDelayRetryStrategy(AsyncRetryStrategy[OUT]):
    """Tries a call again after a fixed time.

    Args:
        max_attempts: How often it is tried again.
        backoff_time_millis: Milliseconds before each new attempt.
        result_predicate: Is true for results after which the call is tried again; None: for no result.
        exception_predicate: Is true for exceptions after which the call is tried again; None: for no exception.

    Raises:
        ConfigurationError: A number is not positive.
    """

    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate,
        exception_predicate: ExceptionPredicate,
    ) -> None:
        _check_positive(max_attempts=max_attempts, backoff_time_millis=backoff_time_millis)
        self._max_attempts, self._backoff_time_millis = max_attempts, backoff_time_millis
        self._predicate: RetryPredicate[OUT] = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return self._backoff_time_millis

    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        return self._predicate


class ExponentialBackoffDelayRetryStrategy(AsyncRetryStrategy[OUT]):
    """Tries a call again after a time that grows with each attempt.

    Args:
        max_attempts: How often it is tried again.
        initial_delay: Milliseconds before the second attempt.
        max_retry_delay: The greatest delay, in milliseconds.
        multiplier: What each delay is multiplied by for the next one.
        result_predicate: Is true for results after which the call is tried again; None: for no result.
        exception_predicate: Is true for exceptions after which the call is tried again; None: for no exception.

    Raises:
        ConfigurationError: A number is not positive.
    """

    def __init__(
        self,
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate,
        exception_predicate: ExceptionPredicate,
    ) -> None:
        _check_positive(
            max_attempts=max_attempts,
            initial_delay=initial_delay,
            max_retry_delay=max_retry_delay,
            multiplier=multiplier,
        )
        self._max_attempts, self._multiplier = max_attempts, multiplier
        self._initial_delay, self._max_retry_delay = initial_delay, max_retry_delay
        self._predicate: RetryPredicate[OUT] = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        # From the number of attempts alone: PyFlink multiplies the delay before, which may be that of another record.
        delay: float = self._initial_delay
        for _ in range(1, current_attempts):
            delay = min(delay * self._multiplier, self._max_retry_delay)
        return int(delay)

    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        return self._predicate


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not number > 0:
            raise ConfigurationError(f"{name} of a retry strategy must be a number greater than 0, not {number!r}")


NO_RETRY_STRATEGY: AsyncRetryStrategy[Any] = NoRetryStrategy()
"""Tries each call once."""
