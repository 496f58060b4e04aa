"""One local Spark server for all tests of the runtime, apart from any other of this user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_flinkpy.runtime.server_state import RUNTIME_DIR_VARIABLE
from dagster_flinkpy.runtime.spark import SparkSettings, get_session, stop_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def runtime_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNTIME_DIR_VARIABLE, str(directory))
        yield directory


@pytest.fixture(scope="session")
def spark_settings(runtime_dir: Path) -> Iterator[SparkSettings]:
    settings = SparkSettings(master="local[2]", conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"})
    yield settings
    stop_server(settings)


@pytest.fixture(scope="session")
def spark(spark_settings: SparkSettings) -> Iterator[SparkSession]:
    with get_session(spark_settings) as session:
        yield session
