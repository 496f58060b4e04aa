"""The public classes have PyFlink's names, argument names, order and defaults. Lists what is absent, and why."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.pyflink.signatures import TARGET, signature

pytestmark = pytest.mark.smoke

ABSENT = {
    "No JVM, so no Java class to wrap, no jar, no class path": """
        common.AssignerWithPeriodicWatermarksWrapper common.serialization.BulkWriterFactory
        common.watermark_strategy.AssignerWithPeriodicWatermarksWrapper
        datastream.SinkFunction datastream.SourceFunction datastream.functions.SinkFunction
        datastream.functions.SourceFunction datastream.DataStream.add_sink datastream.KeyedStream.add_sink
        datastream.StreamExecutionEnvironment.add_source datastream.StreamExecutionEnvironment.create_input
        datastream.StreamExecutionEnvironment.add_classpaths datastream.connectors.base.JavaFunctionWrapper
        datastream.connectors.file_system.BulkFormat datastream.connectors.file_system.StreamingFileSink
        datastream.connectors.file_system.FileEnumeratorProvider
        datastream.connectors.file_system.FileSplitAssignerProvider
        datastream.connectors.file_system.FileSourceBuilder.set_file_enumerator
        datastream.connectors.file_system.FileSourceBuilder.set_split_assigner
        common.ExecutionConfig.disable_closure_cleaner common.ExecutionConfig.enable_closure_cleaner
        common.ExecutionConfig.is_closure_cleaner_enabled common.ExecutionConfig.disable_force_avro
        common.ExecutionConfig.enable_force_avro common.ExecutionConfig.is_force_avro_enabled
        common.ExecutionConfig.disable_force_kryo common.ExecutionConfig.enable_force_kryo
        common.ExecutionConfig.is_force_kryo_enabled common.ExecutionConfig.disable_generic_types
        common.ExecutionConfig.enable_generic_types common.ExecutionConfig.has_generic_types_disabled
        common.ExecutionConfig.get_default_kryo_serializer_classes common.ExecutionConfig.get_registered_kryo_types
        common.ExecutionConfig.get_registered_pojo_types
    """,
    "Parquet files are read and written by dagster_flinkpy.connectors": """
        datastream.connectors.file_system.FileSource.for_bulk_file_format
        datastream.connectors.file_system.FileSink.for_bulk_format
        datastream.connectors.file_system.FileSink.BulkFormatBuilder
        datastream.connectors.file_system.FileSink.BaseBuilder
    """,
    "Files of a checkpoint are not joined": """
        datastream.connectors.file_system.FileCompactStrategy datastream.connectors.file_system.FileCompactor
        datastream.connectors.file_system.FileSink.RowFormatBuilder.disable_compact
        datastream.connectors.file_system.FileSink.RowFormatBuilder.enable_compact
    """,
    "A sink is one operator; put others in front of it": """
        datastream.connectors.base.StreamTransformer datastream.connectors.base.SupportsPreprocessing
        datastream.connectors.file_system.FileSink.get_transformer
    """,
    "The state backend is an option, `state.backend.type`; there is one kind of checkpoint storage": """
        datastream.StateBackend datastream.HashMapStateBackend datastream.EmbeddedRocksDBStateBackend
        datastream.CustomStateBackend datastream.PredefinedOptions datastream.CheckpointStorage
        datastream.JobManagerCheckpointStorage datastream.FileSystemCheckpointStorage
        datastream.CustomCheckpointStorage datastream.StreamExecutionEnvironment.enable_changelog_state_backend
        datastream.StreamExecutionEnvironment.is_changelog_state_backend_enabled
        common.ExecutionConfig.is_use_snapshot_compression common.ExecutionConfig.set_use_snapshot_compression
    """,
    "A savepoint is given its folder": """
        datastream.StreamExecutionEnvironment.set_default_savepoint_directory
        datastream.StreamExecutionEnvironment.get_default_savepoint_directory
    """,
    "Deprecated names, or other names of existing things": """
        datastream.CheckpointConfig.get_alignment_timeout datastream.CheckpointConfig.set_alignment_timeout
        datastream.StreamExecutionEnvironment.get_checkpointing_consistency_mode
        datastream.StreamExecutionEnvironment.is_unaligned_checkpoints_enabled
        common.ExecutionConfig.get_max_parallelism common.ExecutionConfig.get_parallelism
        common.ExecutionConfig.set_max_parallelism common.ExecutionConfig.set_parallelism
        datastream.StreamExecutionEnvironment.get_default_local_parallelism
        datastream.StreamExecutionEnvironment.set_default_local_parallelism
    """,
    "Unaligned checkpoints are either on or off": """
        datastream.CheckpointConfig.is_force_unaligned_checkpoints
        datastream.CheckpointConfig.set_force_unaligned_checkpoints
        datastream.StreamExecutionEnvironment.is_force_unaligned_checkpoints
    """,
    "A program runs to its end; Dagster runs it in the background, retries and cancels it": """
        common.JobID common.JobStatus.RECONCILING common.RestartStrategies
        common.RestartStrategyConfiguration common.InputDependencyConstraint
        common.ExecutionConfig.get_task_cancellation_interval common.ExecutionConfig.get_task_cancellation_timeout
        common.ExecutionConfig.set_task_cancellation_interval common.ExecutionConfig.set_task_cancellation_timeout
    """,
    "Chaining follows from the edges; the plan is Dagster's asset graph": """
        datastream.StreamExecutionEnvironment.is_chaining_enabled
        datastream.StreamExecutionEnvironment.is_chaining_of_operators_with_different_max_parallelism_enabled
        datastream.StreamExecutionEnvironment.get_buffer_timeout
        datastream.StreamExecutionEnvironment.get_execution_plan
    """,
    "Workers run the Python of the Spark they run on": """
        datastream.StreamExecutionEnvironment.set_python_executable
        datastream.StreamExecutionEnvironment.register_cached_file
    """,
    "State is found by uid, never by a hash": """
        datastream.DataStream.set_uid_hash datastream.KeyedStream.set_uid_hash datastream.DataStreamSink.set_uid_hash
        common.ExecutionConfig.enable_auto_generated_uids common.ExecutionConfig.disable_auto_generated_uids
        common.ExecutionConfig.has_auto_generated_uids_enabled
    """,
    "A Dagster asset is what keeps the result of a stream": """
        datastream.DataStream.cache datastream.KeyedStream.cache
    """,
    "Latency is measured by the runtime": """
    """,
    "Types make whole columns": """
        common.TypeInformation.from_internal_type common.TypeInformation.need_conversion
        common.TypeInformation.to_internal_type common.serialization.RowFieldExtractorSchema
    """,
    "Metrics take the place of accumulators": """
        common.JobClient.get_accumulators
        common.JobExecutionResult.get_accumulator_result common.JobExecutionResult.get_all_accumulator_results
    """,
    "Options have names only": """
        common.ConfigOption common.ConfigOptions common.Configuration.get_bytearray
        common.Configuration.parse_list_value common.Configuration.set_bytearray
    """,
    "Internals of PyFlink": """
        datastream.functions.AsyncFunctionDescriptor
        datastream.KeyedStream.AccumulateType datastream.output_tag.RowTypeInfo datastream.output_tag.Types
        datastream.window.ContinuousEventTimeTrigger.register_next_fire_timestamp
        datastream.window.ContinuousProcessingTimeTrigger.register_next_fire_timestamp
    """,
}
"""Reason -> names of PyFlink that are deliberately absent."""


def differences(path: str, wanted: dict[str, Any], there: Any) -> Iterator[tuple[str, str]]:
    """Yields name and kind of each difference."""
    for name, member in wanted.items():
        here = f"{path}.{name}"
        if not has(there, name):
            yield here, "absent"
        elif isinstance(member, dict):
            yield from differences(here, member, getattr(there, name))
        elif member is not None and not fits(member, signature(getattr(there, name))):
            yield here, f"wants ({member}), has ({signature(getattr(there, name))})"


def has(there: Any, name: str) -> bool:
    try:
        return hasattr(there, name)
    except ImportError:  # it says what to use instead
        return False


def fits(wanted: str, there: str | None) -> bool:
    """Returns whether all calls that PyFlink accepts are accepted. Further arguments with defaults may follow."""
    if there is None or there == wanted:
        return True
    more = there.removeprefix(wanted).lstrip(", ").split(", ") if there.startswith(wanted) else [""]
    return all("=" in argument or argument.startswith("*") for argument in more)


def found_differences() -> dict[str, str]:
    found: dict[str, str] = {}
    for module, classes in json.loads(TARGET.read_text()).items():
        found |= dict(differences(module, classes, import_module(f"dagster_flinkpy.{module}")))
    return found


def test_the_snapshot_is_of_public_classes() -> None:
    snapshot = json.loads(TARGET.read_text())
    assert snapshot["datastream"]["DataStream"]["key_by"] == "key_selector, key_type=None"
    assert snapshot["common"]["RowKind"].keys() == {"INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE"}
    assert sum(len(classes) for classes in snapshot.values()) > 150


def test_signatures_are_those_of_pyflink() -> None:
    assert {name: how for name, how in found_differences().items() if how != "absent"} == {}


def test_what_is_absent_is_known_and_only_that() -> None:
    known = {name for names in ABSENT.values() for name in names.split()}
    absent = {name for name, how in found_differences().items() if how == "absent"}
    assert sorted(absent - known) == []
    assert sorted(known - absent) == []


def test_a_call_with_an_argument_less_or_another_default_is_found() -> None:
    assert fits("a, b=None", "a, b=None, c=1")
    assert not fits("a, b=None", "a")
    assert not fits("a, b=None", "a, b=1")
    assert not fits("a", "a, b")
    assert signature(inspect.signature) is not None
