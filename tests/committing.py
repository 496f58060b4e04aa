"""Commits as jobs do, without the pauses between two tries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from dagster_flinkpy.runtime.master.commits import commit_retries

__all__ = ["commit_requests"]


def commit_requests(*args: Any, wait: Callable[[float], object] = lambda seconds: None, **kwargs: Any) -> int:
    """Calls the function of this name, and ``wait`` with the seconds of each pause."""
    with mock.patch.object(commit_retries, "_sleep", wait):
        return commit_retries.commit_requests(*args, **kwargs)
