"""Runs the examples in docstrings."""

from __future__ import annotations

import doctest
import pkgutil
from collections.abc import Iterator
from importlib import import_module

import pytest

import dagster_flinkpy.common
import dagster_flinkpy.datastream


def modules() -> Iterator[str]:
    yield from ("dagster_flinkpy.key_groups", "dagster_flinkpy.key_hashes", "dagster_flinkpy.metrics")
    yield from (
        f"dagster_flinkpy.checkpoint.{name}" for name in ("partitions", "reports.skew", "coordinator.statistics")
    )
    yield "dagster_flinkpy.common.restart_strategies"
    for package in (dagster_flinkpy.common, dagster_flinkpy.datastream):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield module.name


@pytest.mark.parametrize("name", list(modules()))
def test_examples_give_what_they_say(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_there_are_examples() -> None:
    with_examples = [name for name in modules() if doctest.testmod(import_module(name)).attempted]
    assert "dagster_flinkpy.datastream.stream_execution_environment" in with_examples
