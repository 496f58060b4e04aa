"""Names of PyFlink 1.x say what replaces them."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("dagster_flinkpy.datastream", "TimeCharacteristic", "give sources a WatermarkStrategy"),
        ("dagster_flinkpy.datastream", "RocksDBStateBackend", "state.backend.type"),
        ("dagster_flinkpy.datastream.connectors", "FlinkKafkaConsumer", "KafkaSource.builder"),
    ],
)
def test_an_import_says_what_to_use_instead(module: str, name: str, instead: str) -> None:
    with pytest.raises(ImportError, match=f"{name} is of PyFlink 1.x, and {module} does not have it: .*{instead}"):
        exec(f"from {module} import {name}")


@pytest.mark.parametrize("module", ["dagster_flinkpy.datastream", "dagster_flinkpy.datastream.connectors"])
def test_other_names_are_missing_as_usual(module: str) -> None:
    assert not hasattr(importlib.import_module(module), "Nothing")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from {module} import Nothing")
