"""Names of PyFlink that are absent say what replaces them."""

from __future__ import annotations

import copy
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common import ExecutionConfig, former_names
from dagster_flinkpy.datastream import CheckpointConfig, StreamExecutionEnvironment

MODULES = ["dagster_flinkpy.common", "dagster_flinkpy.datastream", "dagster_flinkpy.datastream.connectors"]


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("dagster_flinkpy.common", "RestartStrategies", "'restart-strategy.type'"),
        ("dagster_flinkpy.datastream", "TimeCharacteristic", "give sources a WatermarkStrategy"),
        ("dagster_flinkpy.datastream", "RocksDBStateBackend", "state.backend.type"),
        ("dagster_flinkpy.datastream", "ExternalizedCheckpointCleanup", "use ExternalizedCheckpointRetention"),
        ("dagster_flinkpy.datastream.connectors", "FlinkKafkaConsumer", "KafkaSource.builder"),
        ("dagster_flinkpy.datastream.connectors.kafka", "FlinkKafkaProducer", "KafkaSink.builder"),
        ("dagster_flinkpy.datastream.connectors.file_system", "BulkFormat", "use ParquetSource"),
        ("dagster_flinkpy.datastream.formats.csv", "CsvSchema", r"CsvReaderFormat\.for_row_type"),
    ],
)
def test_an_import_says_what_to_use_instead(module: str, name: str, instead: str) -> None:
    with pytest.raises(ImportError, match=f"{module} does not have PyFlink's {name}: .*{instead}"):
        exec(f"from {module} import {name}")


@pytest.mark.parametrize("module", ["common", "datastream"])
def test_each_public_class_of_pyflink_that_is_absent_says_what_to_use_instead(module: str) -> None:
    pyflink = json.loads((Path(__file__).parents[1] / "pyflink" / "signatures.json").read_text())
    ours = importlib.import_module(f"dagster_flinkpy.{module}")
    internal = {"AssignerWithPeriodicWatermarksWrapper"}
    for name in pyflink[module].keys() - set(ours.__all__) - internal:
        with pytest.raises(ImportError, match=f"does not have PyFlink's {name}: "):
            getattr(ours, name)


@pytest.mark.parametrize(
    ("module", "instead"),
    [("datastream.connectors.jdbc", "use PostgresSink"), ("table", "no Table API"), ("table.udf", "no Table API")],
)
def test_an_import_of_a_module_says_what_to_use_instead(module: str, instead: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"does not have PyFlink's module .*: .*{instead}"):
        importlib.import_module(f"dagster_flinkpy.{module}")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'dagster_flinkpy\.nothing'"):
        importlib.import_module("dagster_flinkpy.nothing")


def test_what_replaces_a_name_can_be_imported() -> None:
    named = set()
    for name, text in (
        former_names._INSTEAD | former_names._INSTEAD_OF_METHODS | former_names._INSTEAD_OF_MODULES
    ).items():
        for module in re.findall(r"import it from ([\w.]+\w)", text):
            named.add((name, module))
        for first, second, module in re.findall(
            r"(\w+)(?:\.builder\(\))?(?: and (\w+))? of (dagster_flinkpy[\w.]*\w)", text
        ):
            named |= {(each, module) for each in (first, second) if each}
    assert len(named) > 15
    for name, module in named:
        assert hasattr(importlib.import_module(module), name), (name, module)


@pytest.mark.parametrize("module", MODULES)
def test_other_names_are_missing_as_usual(module: str) -> None:
    assert not hasattr(importlib.import_module(module), "Nothing")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from {module} import Nothing")


@pytest.mark.parametrize(
    ("owner", "method", "instead"),
    [
        (StreamExecutionEnvironment.get_execution_environment(), "set_python_executable", "set PYSPARK_PYTHON"),
        (ExecutionConfig(), "set_parallelism", "of the environment"),
        (CheckpointConfig(), "enable_externalized_checkpoints", "use set_externalized_checkpoint_retention"),
    ],
)
def test_settings_say_what_to_use_instead_of_a_method(owner: Any, method: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{method}': .*{instead}"):
        getattr(owner, method)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        owner.nothing()
    assert copy.deepcopy(owner) is not owner


def test_methods_of_the_environment_say_what_to_use_instead() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(AttributeError, match=r"no attribute 'set_stream_time_characteristic': .* WatermarkStrategy"):
        env.set_stream_time_characteristic(1)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        env.nothing()  # type: ignore[attr-defined]
