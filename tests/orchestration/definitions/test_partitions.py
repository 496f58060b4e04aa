"""Which partitions a job can have."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import (
    DynamicPartitionsDefinition,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    StaticPartitionsDefinition,
)

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import flink_assets
from tests.orchestration.runs.test_partitioned_run import WEEK, letters


@pytest.mark.parametrize(
    "partitions",
    [
        StaticPartitionsDefinition(["acme", "globex"]),
        DynamicPartitionsDefinition(name="tenants"),
        MultiPartitionsDefinition({"day": WEEK, "tenant": StaticPartitionsDefinition(["acme"])}),
    ],
    ids=lambda partitions: type(partitions).__name__,
)
def test_partitions_without_an_order_are_refused_with_what_to_do_instead(
    tmp_path: Path, partitions: PartitionsDefinition
) -> None:
    message = f"a {type(partitions).__name__}, .* must be time windows.* for each of them with another name, or make it"
    with pytest.raises(ConfigurationError, match=message):
        flink_assets(letters(tmp_path), name="letters", partitions_def=partitions)
