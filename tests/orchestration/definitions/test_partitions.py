"""Which partitions a job can have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetSpec,
    DagsterInstance,
    DynamicPartitionsDefinition,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    map_asset_specs,
    materialize,
)

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import DeltaSink, PostgresSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Sink
from dagster_flinkpy.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import FlinkTranslator, flink_assets
from dagster_flinkpy.orchestration.definitions.translator import FlinkOperatorData
from tests.orchestration.programs import word_count
from tests.orchestration.runs.test_partitioned_run import WEEK, failure_of, letters


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


def test_partitions_that_a_translator_gives_are_refused(tmp_path: Path) -> None:
    class Weekly(FlinkTranslator):
        def get_asset_spec(self, data: FlinkOperatorData) -> AssetSpec:
            return super().get_asset_spec(data).replace_attributes(partitions_def=WEEK)

    with pytest.raises(
        ConfigurationError, match=r"'letters/letters' has a Daily.*flink_assets\(partitions_def=\.\.\.\)"
    ):
        flink_assets(letters(tmp_path), name="letters", translator=Weekly())


def test_partitions_that_assets_get_later_are_refused(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], in_process: None
) -> None:
    """A run of one day would read all that has arrived."""
    made = flink_assets(word_count(tmp_path / "table", ["a"]), name="words")
    assets = map_asset_specs(lambda spec: spec.replace_attributes(partitions_def=WEEK), made)
    day = WEEK.get_first_partition_key()
    result = materialize(assets, instance=instance, resources=resources, partition_key=day, raise_on_error=False)
    assert "'words/words' has a DailyPartitionsDefinition, of which its job does not know" in failure_of(result)
    assert not (tmp_path / "table").exists()


WORD = Types.ROW_NAMED(["word"], [Types.STRING()])


def topic(folder: str) -> Sink:
    values = KafkaRecordSerializationSchema.builder().set_topic("t").build()
    return KafkaSink.builder().set_bootstrap_servers("b:1").set_record_serializer(values).set_staging(folder).build()


@pytest.mark.parametrize(
    "sink",
    [
        lambda folder: DeltaSink(folder, key=["word"]),
        lambda folder: DeltaSink(folder),
        lambda folder: PostgresSink("host=nowhere", "t", folder, key=["word"]),
        topic,
    ],
    ids=["delta-key", "delta", "postgres-key", "kafka"],
)
def test_sinks_that_cannot_replace_a_partition_are_refused_before_they_create_a_table(
    tmp_path: Path, sink: Callable[[str], Sink]
) -> None:
    def program() -> StreamExecutionEnvironment:
        env = letters(tmp_path / "letters")
        env.from_collection([], WORD).uid("none").static().sink_to(sink(str(tmp_path / "t"))).uid("upserts")
        return env

    message = r"'upserts' \(\w+\) cannot replace .*, so the job cannot have partitions_def: give .* partition_column"
    with pytest.raises(ConfigurationError, match=message):
        flink_assets(program, name="letters", partitions_def=WEEK)
    assert not (tmp_path / "t").exists()
