"""Programs that are run by partitions in time."""

from __future__ import annotations

from dataclasses import replace

from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.datastream.functions import function_of
from dagster_flinkpy.datastream.input_selection import InputSelectable
from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSourceSpec, OperatorSpec, SinkSpec, SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["check_partitioned", "of_partition", "replaces_no_partition"]


def check_partitioned(graph: JobGraph, partition: TimePartition) -> None:
    """Checks that all sources can be read, and all sinks written, by partition.

    Blocking edges have what the regions before them have read.

    Raises:
        ConfigurationError: A source or a sink cannot, or two sinks replace the rows of each other. The message names
            them.
    """
    _check_targets(graph)
    for vertex in graph.vertices:
        spec = vertex.spec
        if function_of(spec, InputSelectable) is not None:
            raise ConfigurationError(
                f"operator {vertex.uid!r} selects its inputs, so the job cannot have partitions_def: what it has not "
                "selected at the end of a partition would become part of the next one"
            )
        if not isinstance(spec, SourceSpec) or isinstance(spec, BlockingEdgeSourceSpec) or spec.static:
            continue
        if not isinstance(spec.source, PartitionedSource):
            kind = type(spec.source).__name__
            raise ConfigurationError(
                f"source {vertex.uid!r} ({kind}) cannot be read by partition, so the job cannot have partitions_def: "
                "use a source that can, such as ParquetSource(partition_format=...), make it a PartitionedSource, or "
                "call static() on the stream if each partition needs all of it, as of a table of master data"
            )
        spec.source.check_partition(partition)


def _check_targets(graph: JobGraph) -> None:
    """Checks that sinks replace the rows of a partition, and not what another one has just written for it."""
    by_uri = dict[str, str]()
    for vertex in graph.vertices:
        sink = vertex.spec.sink if isinstance(vertex.spec, SinkSpec) else None
        if not isinstance(sink, TwoPhaseCommittingSink):
            continue
        if sink.replaces_whole_partitions is False:
            raise replaces_no_partition(vertex.uid, type(sink).__name__)
        if not sink.replaces_whole_partitions or not sink.uri():
            continue
        uri = str(sink.uri())
        if (other := by_uri.setdefault(uri, vertex.uid)) != vertex.uid:
            raise ConfigurationError(
                f"sinks {other!r} and {vertex.uid!r} have a partition_column and both write to {uri}: each would "
                "replace the rows that the other one has written for the partition. Write both streams with one sink, "
                "as in one.union(other).sink_to(...), or give each a table of its own"
            )


def replaces_no_partition(uid: str, kind: str) -> ConfigurationError:
    """Returns the error that a sink, or its committer, cannot replace the rows of a partition."""
    return ConfigurationError(
        f"sink {uid!r} ({kind}) cannot replace the rows of a partition that runs again, so the job cannot have "
        "partitions_def: give a DeltaSink, IcebergSink or PostgresSink partition_column=... and no key, write files, "
        "or leave out partitions_def. A sink of your own needs a committer with replace_partition"
    )


def of_partition(graph: JobGraph, partition: TimePartition) -> JobGraph:
    """Returns the program with each source restricted to a partition.

    Raises:
        ConfigurationError: A source cannot be read by partition.
    """
    check_partitioned(graph, partition)
    specs: dict[str, OperatorSpec] = {}
    for vertex in graph.vertices:
        spec = vertex.spec
        if isinstance(spec, SourceSpec) and isinstance(spec.source, PartitionedSource) and not spec.static:
            specs[vertex.uid] = replace(spec, source=spec.source.for_partition(partition))
    return graph.with_specs(specs)
