"""Sources and sinks (``pyflink.datastream.connectors``), each imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING

from dagster_flinkpy.common.former_names import missing

if TYPE_CHECKING:
    from dagster_flinkpy.datastream.connectors.base import DeliveryGuarantee, Sink, Source
    from dagster_flinkpy.datastream.connectors.data_generator import DataGeneratorSource, RateLimiterStrategy
    from dagster_flinkpy.datastream.connectors.file_system import (
        BucketAssigner,
        FileSink,
        FileSource,
        FileSourceBuilder,
        OutputFileConfig,
        RollingPolicy,
        StreamFormat,
    )
    from dagster_flinkpy.datastream.connectors.kafka import KafkaSource
    from dagster_flinkpy.datastream.connectors.number_seq import NumberSequenceSource

__all__ = [
    "BucketAssigner",
    "DataGeneratorSource",
    "DeliveryGuarantee",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "KafkaSource",
    "NumberSequenceSource",
    "OutputFileConfig",
    "RateLimiterStrategy",
    "RollingPolicy",
    "Sink",
    "Source",
    "StreamFormat",
]

_ELSEWHERE = {
    "DataGeneratorSource": "data_generator",
    "DeliveryGuarantee": "base",
    "KafkaSource": "kafka",
    "NumberSequenceSource": "number_seq",
    "RateLimiterStrategy": "data_generator",
    "Sink": "base",
    "Source": "base",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise missing(__name__, name)
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'file_system')}"), name)
