"""The environment in which a program is declared (``pyflink.datastream.stream_execution_environment``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_flinkpy.common.arguments import check_argument, check_name, check_number
from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.common.decimals import check_has_scale
from dagster_flinkpy.common.execution_config import ExecutionConfig
from dagster_flinkpy.common.former_names import missing_method
from dagster_flinkpy.common.job_client import JobClient
from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.connectors import source as flink
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.reader_source import ReaderSource
from dagster_flinkpy.datastream.connectors.spark import PartitionedSparkSource, SparkSource
from dagster_flinkpy.datastream.data_stream import DataStream
from dagster_flinkpy.datastream.execution_mode import RuntimeExecutionMode
from dagster_flinkpy.datastream.operator_specs import (
    SourceSpec,
    SparkSourceSpec,
)
from dagster_flinkpy.datastream.program.event_time import check_timestamp_field
from dagster_flinkpy.datastream.program.execution import JobExecutionResult, spark_row_type
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.program.program import StreamProgram
from dagster_flinkpy.datastream.program.program_options import apply_options
from dagster_flinkpy.datastream.program.python_dependencies import PythonArchive
from dagster_flinkpy.datastream.slot_sharing_group import SlotSharingGroup
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.key_groups import check_whole_number

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_flinkpy.datastream.connectors.spark import DataFrameFactory
    from dagster_flinkpy.datastream.state import StateDescriptor

__all__ = ["StreamExecutionEnvironment"]

E = TypeVar("E", bound=Enum)


class StreamExecutionEnvironment:
    """Declares a program and runs it.

    Examples:
        >>> from dagster_flinkpy.common import Types
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> numbers = env.from_collection([1, 2, 3], Types.LONG()).uid("numbers")
        >>> doubled = numbers.map(lambda number: number * 2, Types.LONG()).uid("doubled")
        >>> [vertex.uid for vertex in env.get_job_graph().vertices]
        ['numbers', 'doubled']
    """

    def __init__(self) -> None:
        self._program = StreamProgram(self, DataStream)

    if not TYPE_CHECKING:  # type checkers report a missing attribute themselves

        def __getattr__(self, name: str) -> Any:
            raise missing_method(self, name)

    @staticmethod
    def get_execution_environment(configuration: Configuration | None = None) -> StreamExecutionEnvironment:
        """Returns a new, empty environment.

        Args:
            configuration: See :meth:`configure`.
        """
        env = StreamExecutionEnvironment()
        if configuration is not None:
            env.configure(configuration)
        return env

    # --- settings ----------------------------------------------------------------------------------------------------

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Sets the default number of subtasks of the operators declared from now on; initially 1."""
        check_whole_number("parallelism", parallelism)
        self._program.parallelism = parallelism
        return self

    def get_parallelism(self) -> int:
        """Returns the default number of subtasks."""
        return self._program.parallelism

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """Sets the default number of key groups of operators."""
        check_whole_number("max_parallelism", max_parallelism)
        self._program.max_parallelism = max_parallelism
        return self

    def get_max_parallelism(self) -> int:
        """Returns the default number of key groups, or -1 if it follows from the parallelism by Flink's rule."""
        return -1 if self._program.max_parallelism is None else self._program.max_parallelism

    def configure(self, configuration: Configuration) -> None:
        """Applies options; one that is not known has no effect, and a `NoEffectWarning` names one like it.

        Known are ``parallelism.default``, ``pipeline.max-parallelism``, ``pipeline.strict``,
        ``pipeline.global-job-parameters``, ``metrics.latency.interval``, ``metrics.reporters``,
        ``metrics.reporter.*``, ``execution.require-all-slots``,
        ``execution.runtime-mode``, ``state.backend.type`` (``columnar`` by default, or ``hashmap``),
        ``table.exec.mini-batch.enabled`` (a running ``sum``, ``min``, ``max``, ``count`` or ``mean`` of numbers gives
        one result per key and epoch, without event time, instead of one per record),
        ``restart-strategy.*``, ``jobmanager.execution.failover-strategy``; with the prefix ``execution.checkpointing.``
        ``interval``, ``dir``, ``mode``, ``timeout``, ``min-pause``, ``max-concurrent-checkpoints``,
        ``tolerable-failed-checkpoints``, ``unaligned.enabled``, ``aligned-checkpoint-timeout`` and
        ``externalized-checkpoint-retention``; and for ``env.execute()`` only
        ``pipeline.name``, ``execution.local`` (tasks run in this process, without Spark),
        ``execution.state-recovery.path``,
        ``execution.state-recovery.claim-mode`` and ``execution.state-recovery.ignore-unclaimed-state`` (``true``, or
        the uids whose state may be left behind, with ``;`` between them).

        Raises:
            ConfigurationError: The value of an option is invalid, or the option was removed.
        """
        check_argument("configure()", configuration, Configuration, "a Configuration")
        apply_options(self._program, configuration)

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        """Sets whether results come record by record, or once at the end of bounded input."""
        wanted = "a RuntimeExecutionMode, such as RuntimeExecutionMode.BATCH"
        check_argument("set_runtime_mode()", execution_mode, RuntimeExecutionMode, wanted)
        self._program.set_runtime_mode(execution_mode)
        return self

    def enable_checkpointing(self, interval: int, mode: CheckpointingMode | None = None) -> StreamExecutionEnvironment:
        """Requests a checkpoint every ``interval`` milliseconds. `build_checkpoint_sensor` triggers them.

        Args:
            interval: Milliseconds.
            mode: The guarantee for records after a failure. Default: EXACTLY_ONCE.
        """
        check_number("enable_checkpointing()", interval, "milliseconds, such as 60_000 for a minute")
        self._program.checkpoint_config.set_checkpoint_interval(interval)
        if mode is not None:
            self._program.checkpoint_config.set_checkpointing_mode(mode)
        return self

    def get_config(self) -> ExecutionConfig:
        """Returns the settings that are not about checkpoints."""
        return self._program.config

    def get_checkpoint_interval(self) -> int:
        """Returns the milliseconds between two checkpoints, or -1 if there is no periodic trigger."""
        return self._program.checkpoint_config.get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Returns the guarantee for records after a failure."""
        return self._program.checkpoint_config.get_checkpointing_mode()

    def migrate_state(
        self,
        uid: str,
        from_version: int,
        function: Callable[[dict[str, pa.Table]], Mapping[StateDescriptor | str, pa.Table]],
    ) -> StreamExecutionEnvironment:
        """Says how stored keyed state becomes what the program now declares, beyond types that become wider.

        The state of an operator has a version, which checkpoints record: 0 at first, and one more after each migration.
        When a run starts on older state, the functions from its version on are called one after the other, before any
        record is read. State that is at the version of the program is left alone. Not in PyFlink.

        The function gets some keys at a time, with all their states: a dict of Arrow tables by name, with the columns
        ``key`` and ``value``, for map state ``map_key``, and for state with a time to live ``expires_at``. It returns
        all states that there shall be, by the descriptors with which the program declares them, or by the name of a
        state whose types stay. Tables may be empty. Timers and operator state stay as they are. Keys may be left out,
        but their type cannot change.

        Args:
            uid: Uid of the operator.
            from_version: The version of the state that the function takes.
            function: Changes the state. It runs on the driver.

        Raises:
            ConfigurationError: The version is negative, or has a function already.

        Examples:
            .. code-block:: python

                TOTALS = ValueStateDescriptor("totals", Types.DOUBLE())  # was "total", in cents


                def in_euros(states):
                    total = states["total"]
                    value = pc.divide(total["value"].cast(pa.float64()), 100)
                    return {TOTALS: total.set_column(1, "value", value)}


                env.migrate_state("sums", 0, in_euros)
        """
        if type(from_version) is not int or from_version < 0:
            raise ConfigurationError(f"migrate_state: the version is {from_version!r}, but they count from 0")
        known = self._program.migrations.setdefault(uid, {})
        if from_version in known:
            raise ConfigurationError(f"migrate_state: operator {uid!r} has a migration from version {from_version}")
        known[from_version] = function
        return self

    def register_slot_sharing_group(self, slot_sharing_group: SlotSharingGroup) -> StreamExecutionEnvironment:
        """Says what a slot of a slot-sharing group has, for the operators that refer to the group by name."""
        wanted = "a SlotSharingGroup, from SlotSharingGroup.builder(name)"
        check_argument("register_slot_sharing_group()", slot_sharing_group, SlotSharingGroup, wanted)
        self._program.slot_sharing_groups[slot_sharing_group.get_name()] = slot_sharing_group
        return self

    def disable_operator_chaining(self) -> StreamExecutionEnvironment:
        """Has no effect: the edges decide which operators are chained, and chaining does not change results."""
        no_effect("disable_operator_chaining()", "the edges decide which operators are chained")
        return self

    def set_buffer_timeout(self, timeout_millis: int) -> StreamExecutionEnvironment:
        """Sets after how long a live task sends records that have not filled a buffer; 100 ms by default.

        It acts if tasks live (``execution.exchange``). With Spark's shuffle, buffers are sent when they are full, and
        at barriers.

        Args:
            timeout_millis: Milliseconds; 0 sends after each step of a task, and -1 only full buffers.

        Raises:
            ConfigurationError: The timeout is below -1.
        """
        if timeout_millis < -1:
            raise ConfigurationError(f"the buffer timeout is -1, or at least 0, not {timeout_millis} ms")
        timeout = None if timeout_millis == -1 else timedelta(milliseconds=timeout_millis)
        config = self._program.config
        config.exchange = replace(config.exchange, buffer_timeout=timeout)
        return self

    def add_jars(self, *jars_path: str) -> None:
        """Has no effect: no operator runs in a JVM."""
        no_effect("add_jars()", "no operator runs in a JVM")

    def add_python_file(self, file_path: str) -> None:
        """Makes modules importable here and in the functions on the workers.

        Args:
            file_path: A ``.py``, ``.zip`` or ``.whl`` file, or a folder of modules.
        """
        check_argument("add_python_file()", file_path, (str, os.PathLike), "a path")
        path = os.path.abspath(file_path)
        sys.path.insert(0, os.path.dirname(path) if path.endswith(".py") else path)
        python = self._program.python
        self._program.python = replace(python, files=(*python.files, path))

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """Unpacks an archive in the working directory of the functions on the workers, for data and packages.

        A function then opens ``"prices.zip/table.csv"``, or ``"prices/table.csv"`` with ``target_dir="prices"``.

        Args:
            archive_path: A ``.zip``, ``.tar``, ``.tar.gz`` or ``.tgz`` file.
            target_dir: Name of the folder to unpack it into. Default: the name of the file.

        Raises:
            ConfigurationError: The folder is not a plain name.
        """
        check_argument("add_python_archive()", archive_path, (str, os.PathLike), "a path")
        path = os.path.abspath(archive_path)
        target = target_dir or os.path.basename(path)
        if os.path.basename(target) != target or target in (".", ".."):
            raise ConfigurationError(f"the target folder of an archive is one name without '/', not {target!r}")
        python = self._program.python
        self._program.python = replace(python, archives=(*python.archives, PythonArchive(path, target)))

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """Installs packages on the workers with pip, once for each content of the file, before functions run.

        Args:
            requirements_file_path: A ``requirements.txt`` file.
            requirements_cache_dir: A folder of downloaded packages to install from. Default: the package index, which
                the workers must reach.
        """
        check_argument("set_python_requirements()", requirements_file_path, (str, os.PathLike), "a path")
        self._program.python = replace(
            self._program.python,
            requirements=os.path.abspath(requirements_file_path),
            requirements_cache=None if requirements_cache_dir is None else os.path.abspath(requirements_cache_dir),
        )

    def close(self) -> None:
        """Has no effect: the environment holds no resources."""

    def get_checkpoint_config(self) -> CheckpointConfig:
        """Returns the checkpoint settings."""
        return self._program.checkpoint_config

    def warn_of_script_settings(self) -> None:
        """Issues a `NoEffectWarning` for each setting that only :meth:`execute` follows. Dagster calls it."""
        program, resource = self._program, "in Dagster, the CheckpointStorageResource sets it"
        for setting, is_set, because in (
            ("execution.checkpointing.dir", program.checkpoint_config.storage_dir is not None, resource),
            ("pipeline.name", program.job_name is not None, "the name that is given to flink_job() counts"),
            ("execution.local", program.local, "in Dagster, the SparkResource says where tasks run"),
            ("execution.state-recovery.path", program.savepoint_path is not None, "run the job {job}_restore"),
            (
                "execution.state-recovery.ignore-unclaimed-state",
                bool(program.allow_non_restored_state),
                "set allow_non_restored_state in the configuration of a run",
            ),
        ):
            if is_set:
                no_effect(f"option {setting!r}", because, stacklevel=4)

    # --- sources -----------------------------------------------------------------------------------------------------

    def from_source(
        self,
        source: Source | flink.Source,
        watermark_strategy: WatermarkStrategy,
        source_name: str,
        type_info: TypeInformation | None = None,
    ) -> DataStream:
        """Returns a stream of the records of a source.

        Args:
            source: The source.
            watermark_strategy: How event times and watermarks are assigned.
            source_name: The name of the operator.
            type_info: The type of the records, which is the one that the source produces.

        Raises:
            ConfigurationError: The source or the strategy is not a `Source` or `WatermarkStrategy`, or the source
                produces records of another type.
            JobGraphError: The records have no field of the strategy's name, or one that is no time.
        """
        if isinstance(source, flink.Source):
            source = ReaderSource(source)
        if not isinstance(source, Source):
            raise ConfigurationError(f"from_source() needs a source, such as ParquetSource(...), not {source!r}")
        if not isinstance(watermark_strategy, WatermarkStrategy):
            raise ConfigurationError(
                "from_source() needs a WatermarkStrategy, such as WatermarkStrategy.no_watermarks(), "
                f"not {watermark_strategy!r}"
            )
        if type_info not in (None, source.produced_type):
            raise ConfigurationError(
                f"from_source() of {source_name!r}: the source produces {source.produced_type}, not {type_info}; leave "
                "out type_info, and convert the records with map()"
            )
        return self._source(source_name, SourceSpec(source, watermark_strategy), source.produced_type)

    def from_collection(self, collection: Sequence[Any], type_info: TypeInformation | None = None) -> DataStream:
        """Returns a stream of the values of a collection. Without ``type_info`` they are pickled."""
        check_argument("from_collection()", collection, Iterable, "a collection of records, such as a list")
        type_info = type_info or PickledBytesTypeInfo()
        source = CollectionSource(list(collection), type_info)
        stream = self.from_source(source, WatermarkStrategy.no_watermarks(), "Collection Source")
        return stream.set_parallelism(1)  # Flink: forceNonParallel

    def read_text_file(self, file_path: str, charset_name: str = "UTF-8") -> DataStream:
        """Returns a stream of the lines of a file, or of the files in a folder.

        Args:
            file_path: A local path or ``s3://bucket/prefix``.
            charset_name: The encoding of the files.
        """
        from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat

        check_name("read_text_file()", file_path)
        source = FileSource.for_record_stream_format(StreamFormat.text_line_format(charset_name), file_path).build()
        return self.from_source(source, WatermarkStrategy.no_watermarks(), "Text File Source")

    def from_spark(
        self,
        df_factory: DataFrameFactory,
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "Spark Source",
        type_info: RowTypeInfo | None = None,
        *,
        bounded: bool | None = None,
    ) -> DataStream:
        """Returns a stream of the rows of a Spark DataFrame; not in PyFlink.

        The DataFrame is computed once, in the epoch that reads it. If that epoch fails, it is computed again, and
        nothing from the first attempt is visible. The rows of a partition stay in order.

        Args:
            df_factory: Takes the ``SparkSession`` of the job and returns the DataFrame. It is called on the driver.
                In a job with a time-window ``partitions_def`` it has a second argument, the `TimePartition` to read.
            watermark_strategy: How event times and watermarks are assigned. Default: there are none, and the event time
                of joined streams waits for these rows only while they are read.
            source_name: The name of the operator.
            type_info: The columns to read, by name, and their types, which may be wider. Default: all columns; Spark is
                asked for their types when the program is declared. Required in a Dagster code location, which loads
                without Spark.
            bounded: Whether the input ends when the DataFrame has been read. If not, each run reads all of it in its
                first epoch. Default: the input ends if ``env.execute()`` runs the program. In Dagster each run reads
                it.

        Raises:
            ConfigurationError: No ``Types`` fits the type of a column, or the type is required and missing.
            UserFunctionError: The factory raised an error.
            TypeMismatchError: The factory did not return a DataFrame that can be read.
        """
        partitioned = _takes_partition(df_factory)
        if type_info is None:
            if partitioned:
                raise ConfigurationError(
                    f"operator {source_name!r}: declare the columns of the DataFrame of a partition, such as "
                    "type_info=Types.ROW_NAMED([...], [...])"
                )
            type_info = spark_row_type("spark_source_type", df_factory, operator=source_name)
        check_has_scale(type_info, f"operator {source_name!r}: type_info")
        kind = PartitionedSparkSource if partitioned else SparkSource
        source = kind(df_factory, type_info, bounded=bounded)
        strategy = watermark_strategy or WatermarkStrategy.no_watermarks().with_idleness(Duration.of_millis(1))
        return self._source(source_name, SparkSourceSpec(source, strategy), type_info)

    def _source(self, name: str, spec: SourceSpec, output_type: TypeInformation) -> DataStream:
        check_timestamp_field(spec.watermark_strategy, output_type)
        return self._program.stream(self._program.add(name, spec, output_type=output_type))

    # --- the program -------------------------------------------------------------------------------------------------

    def get_job_graph(self) -> JobGraph:
        """Returns the program as a validated graph; issues a `MissingUidWarning` if stateful operators have no uid.

        Raises:
            JobGraphError: The uids, parallelisms or edges are wrong.
        """
        return self._program.get_job_graph()

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Runs the program until its input has ended and all sinks have committed.

        As in Flink, the environment is empty afterwards. Later declarations form a new program.

        Args:
            job_name: The name of the job. Default: that of the option ``pipeline.name``, or ``flink-job``.

        Raises:
            JobGraphError: The uids, parallelisms or edges are wrong, or checkpoints are kept and stateful operators
                have no uid. If no checkpoints are kept, that is only a `MissingUidWarning`, and sources and sinks need
                no uid.
        """
        return self._program.execute(job_name)

    def execute_async(self, job_name: str = "Flink Streaming Job") -> JobClient:
        """Begins to run the program on a thread of this process, and returns its client at once.

        The job ends when its input ends, when the client stops or cancels it, or with this process. As in Flink, the
        environment is empty afterwards.

        Args:
            job_name: The name of the job.

        Raises:
            JobGraphError: See :meth:`execute`. Errors of the run are those of
                ``client.get_job_execution_result().result()``.
        """
        return self._program.execute_async(job_name)


def _takes_partition(df_factory: DataFrameFactory) -> bool:
    """Returns whether a factory of `from_spark` has a second argument, without a default."""
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = signature(df_factory).parameters.values()
    except (TypeError, ValueError):  # a callable written in C has no signature
        return False
    return sum(p.kind in positional and p.default is Parameter.empty for p in parameters) > 1
