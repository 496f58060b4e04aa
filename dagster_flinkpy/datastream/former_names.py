"""Names that PyFlink 1.x had and 2.x has not, with what replaces them."""

from __future__ import annotations

__all__ = ["missing"]

_BACKEND = "set the option 'state.backend.type' to 'hashmap' or 'rocksdb'"
_FORMER = {
    "TimeCharacteristic": "leave it and set_stream_time_characteristic() out, and give sources a WatermarkStrategy: "
    "event time is always on",
    "FlinkKafkaConsumer": "use KafkaSource.builder() of dagster_flinkpy.datastream.connectors.kafka",
    "FlinkKafkaProducer": "use KafkaSink.builder() of dagster_flinkpy.datastream.connectors.kafka",
    "FlinkKinesisConsumer": "use KinesisSource of dagster_flinkpy.connectors",
    "JdbcSink": "use PostgresSink of dagster_flinkpy.connectors",
    "MemoryStateBackend": _BACKEND,
    "FsStateBackend": _BACKEND,
    "RocksDBStateBackend": _BACKEND,
}


def missing(module: str, name: str) -> Exception:
    """Returns the error for a name that a module does not have.

    For a name of PyFlink 1.x that is an `ImportError` with what replaces it. Python would drop the text of an
    `AttributeError` when the name is imported.

    Args:
        module: The module.
        name: The name.
    """
    if name in _FORMER:
        return ImportError(f"{name} is of PyFlink 1.x, and {module} does not have it: {_FORMER[name]}", name=name)
    return AttributeError(f"module {module!r} has no attribute {name!r}")
