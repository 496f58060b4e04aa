"""Finds sources of a program that read what its sinks write, or of which one takes the input of another."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any, cast

from dagster_flinkpy.checkpoint.locations.savepoint_target import key_below
from dagster_flinkpy.connectors.commit.table_sink import TableSink
from dagster_flinkpy.connectors.files.parquet_source import ParquetSource
from dagster_flinkpy.connectors.lake.lake_sink import LakeSink
from dagster_flinkpy.connectors.postgres.change_source import PostgresChangeSource
from dagster_flinkpy.connectors.sources.input_files import is_hidden
from dagster_flinkpy.datastream.connectors.file_system import FileSink, FileSource
from dagster_flinkpy.datastream.operator_specs import SinkSpec, SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph, JobVertex
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["check_input_conflicts"]

_SERVER = ("service", "host", "hostaddr", "port", "dbname")
"""What conninfo says of the server and its database; not who connects, and how."""


def check_input_conflicts(graph: JobGraph, job_id: str) -> None:
    """Checks that no source of a program reads the files that a sink of it writes, and none the slot of another.

    Args:
        graph: The program.
        job_id: The job; names of files begin with it.

    Raises:
        ConfigurationError: One does; the message names both.
    """
    sinks = [each for each in graph.vertices if isinstance(each.spec, SinkSpec)]
    sources = [each for each in graph.vertices if isinstance(each.spec, SourceSpec)]
    _check_slots(sources)
    for sink, source in product(sinks, sources):
        assert isinstance(sink.spec, SinkSpec)
        assert isinstance(source.spec, SourceSpec)
        written = _written(sink.spec.sink)
        if written is None:
            continue
        folder, suffix = written
        for read, pattern in _read(source.spec.source):
            below = key_below(folder, read)
            key = f"{below}/{job_id}.{sink.uid}.0{suffix}".lstrip("/")
            if below is not None and fnmatch.fnmatchcase(key, pattern) and not is_hidden(key):
                raise ConfigurationError(
                    f"sink {sink.uid!r} writes into {folder.url}, where source {source.uid!r} finds its input "
                    f"({read.url}), so the job would read its own rows as new ones, again and again. Give the sink a "
                    "folder outside of it"
                )


def _check_slots(sources: Iterable[JobVertex]) -> None:
    users = dict[tuple[str, ...], str]()
    for vertex in sources:
        source = vertex.spec.source if isinstance(vertex.spec, SourceSpec) else None
        if isinstance(source, PostgresChangeSource):
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict

            given = dict[str, Any]()
            with suppress(ProgrammingError):  # the source says so when it connects
                given = conninfo_to_dict(source.conninfo)
            slot = source.slot, *(str(given.get(each)) for each in _SERVER)
            if (other := users.setdefault(slot, vertex.uid)) != vertex.uid:
                raise ConfigurationError(
                    f"sources {other!r} and {vertex.uid!r} read from the same replication slot, {source.slot!r}: what "
                    "one of them has read, the server deletes, and the other one misses it. Give each a slot of its "
                    "own. They may share a publication"
                )


def _written(sink: Any) -> tuple[StorageLocation, str] | None:
    """Returns the folder into which a sink writes files, and how their names end."""
    if isinstance(sink, TableSink):
        return sink.location, sink.suffix
    if isinstance(sink, LakeSink):
        return sink.location, ".parquet"
    if isinstance(sink, FileSink):
        return StorageLocation(sink.base_path), sink.output_file_config.part_suffix
    return None


def _read(source: Any) -> Iterator[tuple[StorageLocation, str]]:
    """Yields the folders in which a source finds new files, and the pattern of their paths."""
    if isinstance(source, ParquetSource) and source.until is None and source.partition_format is None:
        yield source.location, source.pattern
    if isinstance(source, FileSource):
        for path in source.paths:
            yield StorageLocation(path) if isinstance(path, str) else cast("StorageLocation", path), "*"
