"""Which tests need something that not every version of PySpark has."""

from __future__ import annotations

import importlib.metadata

import pytest

__all__ = ["since"]


def since(version: str, what: str) -> pytest.MarkDecorator:
    """Skips a test with an older PySpark.

    Args:
        version: The first that can run it, such as ``4.1``.
        what: What the older ones lack.
    """
    installed = importlib.metadata.version("pyspark")
    older = [*map(int, installed.split(".")[:2])] < [*map(int, version.split("."))]
    return pytest.mark.skipif(older, reason=f"PySpark {installed} has no {what}")
