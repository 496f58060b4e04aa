"""Files as source and sink (``pyflink.datastream.connectors.file_system``).

These are declarations. The registry names the code that reads and writes the files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from zoneinfo import ZoneInfo

from dagster_flinkpy.common.arguments import check_argument, check_name, check_number
from dagster_flinkpy.common.former_names import missing
from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.common.serialization import Encoder, check_charset
from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.datastream.connectors.base import (
    Committer,
    CommitterInitContext,
    CommittingSinkWriter,
    Json,
    Source,
    SourceSplit,
    SplitEnumerator,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.datastream.connectors.epoch_limits import EpochLimits
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import call_registered

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BucketAssigner",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "OutputFileConfig",
    "RollingPolicy",
    "StreamFormat",
]


class FileLocation(Protocol):
    """A `StorageLocation`: a path with an endpoint or keys of its own."""

    @property
    def url(self) -> str:
        """Its URL."""


def _absolute(path: str) -> str:
    """Returns an absolute path, because workers have another working directory."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)", path):  # a folder `file:` here would get what is meant for elsewhere
        raise ConfigurationError(f"{path!r} must be s3://bucket/prefix, file:///dir or a path")
    return path if "://" in path else os.path.abspath(path)


@dataclass(frozen=True)
class StreamFormat:
    """How a file becomes records: lines of text, or what a subclass makes of them."""

    charset_name: str

    @property
    def produced_type(self) -> TypeInformation:
        """The type of the records."""
        return Types.STRING()

    def kinds(self) -> set[str]:
        """Dagster kinds of a source with this format."""
        return {"file"}

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> StreamFormat:
        """Makes each line a record, without its line end."""
        return StreamFormat(check_charset(charset_name))


class FileSourceBuilder:
    """Builds a `FileSource`.

    Args:
        stream_format: How a file becomes records.
        paths: Files and folders.
    """

    def __init__(self, stream_format: StreamFormat, paths: tuple[str | FileLocation, ...]) -> None:
        self._source = FileSource(stream_format, paths)

    def monitor_continuously(self, discovery_interval: Duration) -> FileSourceBuilder:
        """Also reads files that arrive later.

        Args:
            discovery_interval: How long a job that runs on waits before it lists the folders again, if there was no new
                file. A run lists them when it begins; one whose tasks do not live, also when an epoch begins.
        """
        check_argument(
            "monitor_continuously()", discovery_interval, Duration, "a Duration, such as Duration.of_minutes(1)"
        )
        if discovery_interval.millis <= 0:
            raise ConfigurationError(f"discovery_interval must be positive, not {discovery_interval.millis} ms")
        interval = timedelta(milliseconds=discovery_interval.millis)
        self._source = replace(self._source, bounded=False, discovery_interval=interval)
        return self

    def process_static_file_set(self) -> FileSourceBuilder:
        """Reads the files that exist when the program starts, then ends. Files that arrive later are an error."""
        self._source = replace(self._source, bounded=True)
        return self

    def set_max_records_per_epoch(self, records: int) -> FileSourceBuilder:
        """Sets the maximum number of lines between two barriers, over all subtasks. Default: all that exist.

        The driver reads the input of each epoch to count its lines, so `set_max_bytes_per_epoch` is cheaper. Flink has
        no such method.
        """
        limits = EpochLimits.checked("FileSource", records, self._source.limits.bytes)
        self._source = replace(self._source, limits=limits)
        return self

    def set_max_bytes_per_epoch(self, size: int) -> FileSourceBuilder:
        """Sets the maximum number of bytes between two barriers, over all subtasks. Default: all that exist.

        They are counted in unpacked files. The driver unpacks the input of an epoch itself to count them; files that
        are not compressed it does not read. Flink has no such method.
        """
        limits = EpochLimits.checked("FileSource", self._source.limits.records, size)
        self._source = replace(self._source, limits=limits)
        return self

    def build(self) -> FileSource:
        """Returns the source."""
        return self._source


@dataclass(frozen=True)
class FileSource(Source):
    """Reads text files. Files in folders are skipped if their name starts with ``.`` or ``_``.

    Links in local folders are followed; one that leads nowhere or back, or to a file that is also read by another name,
    is an error.

    Files whose names end with ``.gz``, ``.bz2`` or ``.zst`` are unpacked; others that are packed are an error. With a
    parallelism above 1, a file of 8 MiB or more is read by several subtasks, in splits that begin and end with a line,
    unless it is compressed, has a charset in which a line end is not one byte, or is CSV with line ends in values.
    """

    stream_format: StreamFormat
    paths: tuple[str | FileLocation, ...]
    """Files and folders, local or ``s3://bucket/prefix``; a `StorageLocation` if S3 needs an endpoint or keys."""
    bounded: bool | None = None
    """Whether the input ends with the files that existed at the start. None: it ends if ``env.execute()`` runs the
    program, and continues from run to run in Dagster."""

    discovery_interval: timedelta = Source.discovery_interval
    resumes_splits = True
    limits: EpochLimits = field(default_factory=EpochLimits)

    @staticmethod
    def for_record_stream_format(stream_format: StreamFormat, *paths: str | FileLocation) -> FileSourceBuilder:
        """Returns a builder of a source that reads files of a format.

        Args:
            stream_format: How a file becomes records.
            paths: Files and folders, as texts or as `StorageLocation`.

        Raises:
            ConfigurationError: There is no path, one is empty, or an argument is something else.
        """
        if not paths:
            raise ConfigurationError("FileSource.for_record_stream_format() needs a path")
        call, wanted = (
            "FileSource.for_record_stream_format()",
            "a StreamFormat, such as StreamFormat.text_line_format()",
        )
        check_argument(call, stream_format, StreamFormat, wanted)
        for path in paths:
            if not hasattr(path, "url"):
                check_name(f"{call} as path", path)
        return FileSourceBuilder(
            stream_format, tuple(_absolute(path) if isinstance(path, str) else path for path in paths)
        )

    @property
    def produced_type(self) -> TypeInformation:
        return self.stream_format.produced_type

    @property
    def content_token(self) -> str:
        return repr(self.stream_format)  # with its columns and settings; splits name the versions of files

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return call_registered("file_enumerator", self, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        return call_registered("file_reader", self, split)

    def folders(self) -> list[str]:
        return [path if isinstance(path, str) else path.url for path in self.paths]

    def continuous(self) -> FileSource:
        return replace(self, bounded=False) if self.bounded is None else self

    def kinds(self) -> set[str]:
        return self.stream_format.kinds()


_MINUTE = 60 * 1000


@dataclass(frozen=True)
class RollingPolicy:
    """When a file is closed and a new one is started. A checkpoint always closes it."""

    part_size: int | None = None
    """The number of bytes after which a file is full, or None if only checkpoints close it."""

    @staticmethod
    def default_rolling_policy(
        part_size: int = 1024 * 1024 * 128, rollover_interval: int = _MINUTE, inactivity_interval: int = _MINUTE
    ) -> RollingPolicy:
        """Closes files at a size.

        Args:
            part_size: The size in bytes.
            rollover_interval: Has no effect: no file outlives its checkpoint.
            inactivity_interval: Has no effect either.
        """
        if (rollover_interval, inactivity_interval) != (_MINUTE, _MINUTE):
            no_effect("rollover_interval, inactivity_interval", "no file outlives its checkpoint")
        check_number("part_size of default_rolling_policy()", part_size, "bytes")
        if part_size <= 0:
            raise ConfigurationError(f"part_size must be positive, not {part_size}")
        return RollingPolicy(part_size)

    @staticmethod
    def on_checkpoint_rolling_policy() -> RollingPolicy:
        """Closes files at checkpoints only."""
        return RollingPolicy()


_DIRECTIVES = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_LETTERS = re.compile("|".join(_DIRECTIVES))


@dataclass(frozen=True)
class BucketAssigner:
    """The folder below the base path that records go to."""

    time_format: str = ""
    """The name of the folder, for ``strftime``; empty for the base path itself."""
    timezone_id: str | None = None

    @staticmethod
    def base_path_bucket_assigner() -> BucketAssigner:
        """Puts all files into the base path."""
        return BucketAssigner()

    @staticmethod
    def date_time_bucket_assigner(format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> BucketAssigner:
        """Puts records into a folder per hour of the time of writing, or per period of another format.

        Args:
            format_str: Java's ``yyyy``, ``MM``, ``dd``, ``HH``, ``mm`` and ``ss``, and text between single quotes;
                other letters are an error, and so are brackets, braces and ``#``.
            timezone_id: A time zone such as ``Europe/Berlin``. Default: that of the machine.
        """
        check_argument("format_str of date_time_bucket_assigner()", format_str, str, "text such as 'yyyy-MM-dd'")
        parts = format_str.split("'")
        time_format = ""
        for i, part in enumerate(parts):
            quoted, part = i % 2, part.replace("%", "%%")
            time_format += part if quoted else _LETTERS.sub(lambda found: _DIRECTIVES[found[0]], part)
        left = "".join(_LETTERS.sub("", part) for part in parts[::2])
        if any(c.isalpha() or c in "[]{}#" for c in left) or len(parts) % 2 == 0 or "''" in format_str:
            raise ConfigurationError(
                f"date_time_bucket_assigner({format_str!r}): use yyyy, MM, dd, HH, mm and ss only, and other letters "
                "and brackets between single quotes: \"'day='yyyy-MM-dd\""
            )
        if timezone_id is not None:
            check_name("timezone_id of date_time_bucket_assigner()", timezone_id)
            try:
                ZoneInfo(timezone_id)
            except (KeyError, OSError, ValueError) as e:
                raise ConfigurationError(
                    f"date_time_bucket_assigner(): unknown time zone {timezone_id!r}; for example 'Europe/Berlin'"
                ) from e
        return BucketAssigner(time_format, timezone_id)

    def bucket_id(self, now: datetime) -> str:
        """Returns the folder at this time, which must have a time zone."""
        zone = None if self.timezone_id is None else ZoneInfo(self.timezone_id)
        return now.astimezone(zone).strftime(self.time_format)


@dataclass(frozen=True)
class OutputFileConfig:
    """The names of the files."""

    part_prefix: str = "part"
    part_suffix: str = ""

    @staticmethod
    def builder() -> OutputFileConfig.OutputFileConfigBuilder:
        """Returns a builder with the prefix ``part`` and no suffix."""
        return OutputFileConfig.OutputFileConfigBuilder()

    def get_part_prefix(self) -> str:
        """Returns the start of file names."""
        return self.part_prefix

    def get_part_suffix(self) -> str:
        """Returns the end of file names."""
        return self.part_suffix

    class OutputFileConfigBuilder:
        """Builds an :class:`OutputFileConfig`."""

        def __init__(self) -> None:
            self.part_prefix = "part"
            self.part_suffix = ""

        def with_part_prefix(self, prefix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Sets the start of file names."""
            check_argument("with_part_prefix()", prefix, str, "text")
            self.part_prefix = prefix
            return self

        def with_part_suffix(self, suffix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Sets the end of file names."""
            check_argument("with_part_suffix()", suffix, str, "text")
            self.part_suffix = suffix
            return self

        def build(self) -> OutputFileConfig:
            """Returns the configuration of the names."""
            return OutputFileConfig(self.part_prefix, self.part_suffix)


@dataclass(frozen=True)
class FileSink(TwoPhaseCommittingSink):
    """Writes records as lines of text. Readers only see files of completed checkpoints.

    Files are named ``{prefix}-{job}.{uid}.{checkpoint}.{subtask}.{execution}-{number}{suffix}``. A subtask without
    records writes none.
    """

    base_path: str
    """A folder, local or ``s3://bucket/prefix``."""
    encoder: Encoder
    bucket_assigner: BucketAssigner = BucketAssigner("%Y-%m-%d--%H")
    """The folders below ``base_path``. Default: one per hour, as in Flink."""
    rolling_policy: RollingPolicy = RollingPolicy()
    output_file_config: OutputFileConfig = OutputFileConfig()

    @staticmethod
    def for_row_format(base_path: str, encoder: Encoder) -> FileSink.RowFormatBuilder:
        """Returns a builder of a sink that writes records one after another.

        Args:
            base_path: A folder, local or ``s3://bucket/prefix``.
            encoder: How a record is written.
        """
        check_name("FileSink.for_row_format() as base_path", base_path)
        wanted = "an Encoder, such as Encoder.simple_string_encoder()"
        check_argument("FileSink.for_row_format()", encoder, Encoder, wanted)
        return FileSink.RowFormatBuilder(FileSink(_absolute(base_path), encoder))

    class RowFormatBuilder:
        """Builds a :class:`FileSink`."""

        def __init__(self, sink: FileSink) -> None:
            self._sink = sink

        def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> FileSink.RowFormatBuilder:
            """Sets the folders below the base path; by default one per hour."""
            wanted = "a BucketAssigner, such as BucketAssigner.base_path_bucket_assigner()"
            check_argument("with_bucket_assigner()", bucket_assigner, BucketAssigner, wanted)
            self._sink = replace(self._sink, bucket_assigner=bucket_assigner)
            return self

        def with_bucket_check_interval(self, interval: int) -> FileSink.RowFormatBuilder:
            """Has no effect: checkpoints end files."""
            no_effect("with_bucket_check_interval()", "checkpoints end files")
            return self

        def with_output_file_config(self, output_file_config: OutputFileConfig) -> FileSink.RowFormatBuilder:
            """Sets the names of files."""
            check_argument("with_output_file_config()", output_file_config, OutputFileConfig, "an OutputFileConfig")
            self._sink = replace(self._sink, output_file_config=output_file_config)
            return self

        def with_rolling_policy(self, rolling_policy: RollingPolicy) -> FileSink.RowFormatBuilder:
            """Sets when files are full."""
            check_argument("with_rolling_policy()", rolling_policy, RollingPolicy, "a RollingPolicy")
            self._sink = replace(self._sink, rolling_policy=rolling_policy)
            return self

        def build(self) -> FileSink:
            """Returns the sink."""
            return self._sink

    def validate(self, type_info: TypeInformation | None) -> None:  # everything can be written as text
        if (prefix := self.output_file_config.part_prefix).startswith(("_", ".")):
            raise ConfigurationError(
                f"files of the FileSink in {self.base_path} would begin with {prefix!r}, and readers ignore files that "
                f"begin with {prefix[0]!r}: choose another with_part_prefix()"
            )

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        return call_registered("file_writer", self, context, type_info)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return call_registered("file_committer", self, context)

    def kinds(self) -> set[str]:
        return {"file"}

    def uri(self) -> str:
        return self.base_path if "://" in self.base_path else Path(self.base_path).as_uri()


def __getattr__(name: str) -> object:
    raise missing(__name__, name)
