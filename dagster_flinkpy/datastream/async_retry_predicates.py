"""Predicates for retry strategies (``pyflink.datastream.async_retry_predicates``)."""

from __future__ import annotations

from typing import Any

__all__ = ["empty_result_predicate", "exception_type_predicate", "has_exception_predicate"]


def empty_result_predicate(result: list[Any] | None) -> bool:
    """Returns whether a call had no result."""
    return not result


def has_exception_predicate(error: BaseException | None) -> bool:
    """Returns whether a call failed."""
    return error is not None


def exception_type_predicate(error: BaseException | None, expected_error_type: type[BaseException]) -> bool:
    """Returns whether a call failed with an error of a type. Bind the type with a ``lambda``."""
    return isinstance(error, expected_error_type)
