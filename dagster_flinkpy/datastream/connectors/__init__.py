"""Sources and sinks (``pyflink.datastream.connectors``)."""

from dagster_flinkpy.datastream.connectors.base import Sink, Source
from dagster_flinkpy.datastream.connectors.file_system import (
    BucketAssigner,
    FileSink,
    FileSource,
    FileSourceBuilder,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)
from dagster_flinkpy.datastream.connectors.number_seq import NumberSequenceSource

__all__ = [
    "BucketAssigner",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "NumberSequenceSource",
    "OutputFileConfig",
    "RollingPolicy",
    "Sink",
    "Source",
    "StreamFormat",
]
