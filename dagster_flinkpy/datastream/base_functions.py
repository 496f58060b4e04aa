"""The functions that a state descriptor may hold, without the life cycle of a user function.

`functions` adds that: its ``open`` takes a runtime context, which provides the state that descriptors declare.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["BaseAggregateFunction", "BaseReduceFunction"]


class BaseReduceFunction(ABC):
    """Combines two values into one of the same type."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Returns the combination of both values."""


class BaseAggregateFunction(ABC):
    """Folds values into an accumulator."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Returns an empty accumulator."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Adds a value and returns the accumulator."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Returns the result of an accumulator."""

    @abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Returns an accumulator with the values of both."""
