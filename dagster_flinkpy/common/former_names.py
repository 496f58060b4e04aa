"""Names that PyFlink has, or had in 1.15 to 1.20, and this library has not, with what replaces them."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

__all__ = ["missing", "missing_method"]

_EVENT_TIME = "leave it out, and give sources a WatermarkStrategy: event time is always on"
_BACKEND = "leave it out, or set the option 'state.backend.type' to 'columnar', the default, or 'hashmap'"
_STORAGE = "set the option 'execution.checkpointing.dir', or in Dagster the url of a CheckpointStorageResource"
_RESTART = "set the option 'restart-strategy.type', or in Dagster use build_restart_sensor(assets, strategy=...)"
_KAFKA = "import it from dagster_flinkpy.datastream.connectors.kafka"
_KAFKA_SOURCE = "use KafkaSource.builder() of dagster_flinkpy.datastream.connectors.kafka"
_KAFKA_SINK = "use KafkaSink.builder() of dagster_flinkpy.datastream.connectors.kafka"
_POSTGRES = "use PostgresSink of dagster_flinkpy.connectors"
_PARQUET = "use ParquetSource and ParquetSink of dagster_flinkpy.connectors"
_JSON = "import it from dagster_flinkpy.datastream.formats.json"
_OWN_SOURCE = "write a Source of dagster_flinkpy.datastream.connectors.base, and pass it to from_source()"
_OWN_SINK = "write a Sink of dagster_flinkpy.datastream.connectors.base, and pass it to sink_to()"
_RETENTION = "use set_externalized_checkpoint_retention()"
_SINK = "use sink_to(), such as stream.sink_to(ParquetSink(...))"
_NO_EFFECT = "leave it out: here it would have no effect"

_INSTEAD = {
    # pyflink.common
    "AvroRowDeserializationSchema": "decode the bytes in a function",
    "AvroRowSerializationSchema": "encode the records in a function",
    "ConfigOption": "pass the key as text to Configuration.set_string()",
    "ConfigOptions": "pass the key as text to Configuration.set_string()",
    "CsvBulkWriters": "use CsvSink of dagster_flinkpy.connectors",
    "CsvSchema": "give CsvReaderFormat.for_row_type() the columns, as Types.ROW_NAMED([...], [...])",
    "CsvRowDeserializationSchema": "use CsvReaderFormat of dagster_flinkpy.datastream.formats.csv",
    "CsvRowSerializationSchema": "use CsvSink of dagster_flinkpy.connectors",
    "ExecutionMode": _NO_EFFECT,
    "InputDependencyConstraint": _NO_EFFECT,
    "JobID": "a job id is a str, the name of the job",
    "JsonRowDeserializationSchema": _JSON,
    "JsonRowSerializationSchema": _JSON,
    "RestartStrategies": _RESTART,
    "RestartStrategyConfiguration": _RESTART,
    # pyflink.datastream
    "CheckpointStorage": _STORAGE,
    "CustomCheckpointStorage": _STORAGE,
    "CustomStateBackend": _BACKEND,
    "EmbeddedRocksDBStateBackend": _BACKEND,
    "ExternalizedCheckpointCleanup": "use ExternalizedCheckpointRetention, and set_externalized_checkpoint_retention()",
    "FileSystemCheckpointStorage": _STORAGE,
    "FsStateBackend": _BACKEND,
    "HashMapStateBackend": _BACKEND,
    "JobManagerCheckpointStorage": _STORAGE,
    "MemoryStateBackend": _BACKEND,
    "PredefinedOptions": _NO_EFFECT,
    "RocksDBStateBackend": _BACKEND,
    "SinkFunction": _OWN_SINK,
    "SourceFunction": _OWN_SOURCE,
    "StateBackend": _BACKEND,
    "TimeCharacteristic": _EVENT_TIME,
    # pyflink.datastream.connectors
    "BulkFormat": _PARQUET,
    "BulkWriterFactory": _PARQUET,
    "CassandraSink": _OWN_SINK,
    "Elasticsearch6SinkBuilder": _OWN_SINK,
    "Elasticsearch7SinkBuilder": _OWN_SINK,
    "FileCompactStrategy": _NO_EFFECT,
    "FileCompactor": _NO_EFFECT,
    "FileEnumeratorProvider": _NO_EFFECT,
    "FileSplitAssignerProvider": _NO_EFFECT,
    "FlinkKafkaConsumer": _KAFKA_SOURCE,
    "FlinkKafkaProducer": _KAFKA_SINK,
    "FlinkKinesisConsumer": "use KinesisSource of dagster_flinkpy.connectors",
    "JdbcConnectionOptions": _POSTGRES,
    "JdbcExecutionOptions": _POSTGRES,
    "JdbcSink": _POSTGRES,
    "KafkaOffsetResetStrategy": _KAFKA,
    "KafkaOffsetsInitializer": _KAFKA,
    "KafkaRecordSerializationSchema": _KAFKA,
    "KafkaRecordSerializationSchemaBuilder": _KAFKA,
    "KafkaSink": _KAFKA,
    "KafkaSinkBuilder": _KAFKA,
    "KafkaSourceBuilder": _KAFKA,
    "KafkaTopicPartition": _KAFKA,
    "KafkaTopicSelector": "give the builder of KafkaRecordSerializationSchema a topic",
    "KinesisFirehoseSink": _OWN_SINK,
    "KinesisStreamsSink": _OWN_SINK,
    "PulsarSink": _OWN_SINK,
    "PulsarSource": _OWN_SOURCE,
    "RMQSink": _OWN_SINK,
    "RMQSource": _OWN_SOURCE,
    "Semantic": "use DeliveryGuarantee of dagster_flinkpy.datastream.connectors.base",
    "StreamingFileSink": "use FileSink",
}
_INSTEAD_OF_METHODS = {
    "add_classpaths": _NO_EFFECT,
    "add_sink": _SINK,
    "add_source": _OWN_SOURCE,
    "cache": "write the records into a table, and read that",
    "create_input": _OWN_SOURCE,
    "disable_auto_generated_uids": "use set_strict(True)",
    "disable_generic_types": _NO_EFFECT,
    "enable_changelog_state_backend": _NO_EFFECT,
    "enable_externalized_checkpoints": _RETENTION,
    "get_checkpoint_storage": _STORAGE,
    "get_execution_plan": "use get_job_graph()",
    "get_restart_strategy": _RESTART,
    "get_state_backend": _BACKEND,
    "get_stream_time_characteristic": _EVENT_TIME,
    "register_cached_file": "use add_python_archive(), and open the unpacked file by its name",
    "set_alignment_timeout": "use set_aligned_checkpoint_timeout()",
    "set_checkpoint_storage": _STORAGE,
    "set_default_savepoint_directory": "give trigger_savepoint() of the job client the folder",
    "set_externalized_checkpoint_cleanup": _RETENTION,
    "set_force_unaligned_checkpoints": "use enable_unaligned_checkpoints()",
    "set_max_parallelism": "use set_max_parallelism() of the environment",
    "set_parallelism": "use set_parallelism() of the environment",
    "set_python_executable": "set PYSPARK_PYTHON in the environment of the program: workers run the Python of Spark",
    "set_restart_strategy": _RESTART,
    "set_state_backend": _BACKEND,
    "set_stream_time_characteristic": _EVENT_TIME,
    "set_uid_hash": "use uid()",
    "set_use_snapshot_compression": _NO_EFFECT,
}
_INSTEAD_OF_MODULES = {
    "table": "there is no Table API: declare streams, or use DataFrames of Spark, as with from_spark()",
    "java_gateway": "nothing runs in a JVM",
    "common.restart_strategy": _RESTART,
    "datastream.checkpoint_storage": _STORAGE,
    "datastream.state_backend": _BACKEND,
    "datastream.connectors.cassandra": _OWN_SINK,
    "datastream.connectors.elasticsearch": _OWN_SINK,
    "datastream.connectors.hybrid_source": "union() two sources",
    "datastream.connectors.jdbc": _POSTGRES,
    "datastream.connectors.kinesis": _INSTEAD["FlinkKinesisConsumer"],
    "datastream.connectors.pulsar": _OWN_SOURCE,
    "datastream.connectors.rabbitmq": _OWN_SOURCE,
    "datastream.formats.avro": _INSTEAD["AvroRowDeserializationSchema"],
    "datastream.formats.orc": _PARQUET,
    "datastream.formats.parquet": _PARQUET,
}


class _MissingModules(MetaPathFinder):
    """Is asked last for a module, and tells what replaces one of PyFlink that nobody has found."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        package, _, name = fullname.partition(".")
        if package == __package__.partition(".")[0] and name in _INSTEAD_OF_MODULES:
            said = f"{package} does not have PyFlink's module {name}: {_INSTEAD_OF_MODULES[name]}"
            raise ModuleNotFoundError(said, name=fullname)


sys.meta_path.append(_MissingModules())


def missing(module: str, name: str) -> Exception:
    """Returns the error for a name that a module does not have.

    For a name of PyFlink that is an `ImportError` with what replaces it. Python would drop the text of an
    `AttributeError` when the name is imported.

    Args:
        module: The module.
        name: The name.
    """
    if name in _INSTEAD:
        return ImportError(f"{module} does not have PyFlink's {name}: {_INSTEAD[name]}", name=name)
    return AttributeError(f"module {module!r} has no attribute {name!r}")


def missing_method(owner: object, name: str, instead: str | None = None) -> AttributeError:
    """Returns the error for a method that an object does not have, with what replaces a method of PyFlink.

    Args:
        owner: The object.
        name: The method.
        instead: What to do instead. Default: what is known of PyFlink's method.
    """
    advice = instead or _INSTEAD_OF_METHODS.get(name)
    said = f"{type(owner).__name__!r} object has no attribute {name!r}{f': {advice}' if advice else ''}"
    return AttributeError(said, name=name, obj=owner)
