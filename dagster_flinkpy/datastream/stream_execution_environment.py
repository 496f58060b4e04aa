"""Where a program starts (``pyflink.datastream.stream_execution_environment``)."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_flinkpy.common.configuration import Configuration, parse_duration
from dagster_flinkpy.common.execution_config import ExecutionConfig
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.spark import SparkSource
from dagster_flinkpy.datastream.data_stream import DataStream
from dagster_flinkpy.datastream.execution import ExecutionSettings, JobExecutionResult, get_executor, spark_row_type
from dagster_flinkpy.datastream.execution_mode import RuntimeExecutionMode
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from dagster_flinkpy.datastream.job_graph import JobEdge, JobGraph, JobVertex, build_job_graph
from dagster_flinkpy.datastream.operators import (
    CollectSpec,
    OperatorSpec,
    ReduceSpec,
    SinkSpec,
    SourceSpec,
    SparkSourceSpec,
    TimestampsSpec,
)
from dagster_flinkpy.datastream.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.state_recovery import RecoveryClaimMode
from dagster_flinkpy.datastream.transformation import Input, Transformation
from dagster_flinkpy.errors import ConfigurationError, MissingUidWarning, ParallelismError
from dagster_flinkpy.key_groups import compute_default_max_parallelism

if TYPE_CHECKING:
    from dagster_flinkpy.datastream.connectors.spark import DataFrameFactory

__all__ = ["StreamExecutionEnvironment"]

E = TypeVar("E", bound=Enum)


class StreamExecutionEnvironment:
    """Collects the operators of a program and runs them."""

    def __init__(self) -> None:
        self._transformations: list[Transformation] = []
        self._runtime_mode = RuntimeExecutionMode.STREAMING
        self._parallelism = 1
        self._max_parallelism: int | None = None
        self._checkpoint_config = CheckpointConfig()
        self._savepoint_path: str | None = None
        self._allow_non_restored_state = False
        self._config = ExecutionConfig()
        self._warned_of: set[str] = set()

    @staticmethod
    def get_execution_environment(configuration: Configuration | None = None) -> StreamExecutionEnvironment:
        """A new, empty environment.

        Args:
            configuration: See :meth:`configure`.
        """
        env = StreamExecutionEnvironment()
        if configuration is not None:
            env.configure(configuration)
        return env

    # --- settings ----------------------------------------------------------------------------------------------------

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Sets the number of subtasks of operators declared from now on without one of their own; 1 by default."""
        self._parallelism = parallelism
        return self

    def get_parallelism(self) -> int:
        """The default number of subtasks."""
        return self._parallelism

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """Sets the number of key groups of operators without one of their own."""
        self._max_parallelism = max_parallelism
        return self

    def get_max_parallelism(self) -> int:
        """The default number of key groups; -1: from the parallelism, by Flink's rule."""
        return -1 if self._max_parallelism is None else self._max_parallelism

    def configure(self, configuration: Configuration) -> None:
        """Takes the options that there are here; all others are left alone.

        They are ``parallelism.default``, ``pipeline.max-parallelism``, ``execution.runtime-mode``,
        ``state.backend.type`` (``columnar`` by default, or ``hashmap``),
        ``execution.checkpointing.interval``, ``execution.checkpointing.dir``, ``pipeline.strict``,
        ``execution.checkpointing.barriers-per-job`` and
        ``execution.checkpointing.externalized-checkpoint-retention``; and of ``env.execute()`` alone
        ``execution.state-recovery.path``, ``execution.state-recovery.claim-mode`` and
        ``execution.state-recovery.ignore-unclaimed-state``.
        """
        options = configuration.to_dict()
        if "parallelism.default" in options:
            self.set_parallelism(configuration.get_integer("parallelism.default", 1))
        if "pipeline.max-parallelism" in options:
            self.set_max_parallelism(configuration.get_integer("pipeline.max-parallelism", 128))
        if "pipeline.strict" in options:
            self._config.set_strict(configuration.get_boolean("pipeline.strict", False))
        if "execution.runtime-mode" in options:
            self.set_runtime_mode(RuntimeExecutionMode[options["execution.runtime-mode"].upper()])
        if "execution.checkpointing.interval" in options:
            self._checkpoint_config.interval = parse_duration(options["execution.checkpointing.interval"])
        if "state.backend.type" in options:
            self._checkpoint_config.state_backend = _option(StateBackendType, options["state.backend.type"])
        if "execution.checkpointing.dir" in options:
            self._checkpoint_config.storage_dir = options["execution.checkpointing.dir"]
        if "execution.checkpointing.barriers-per-job" in options:
            barriers = configuration.get_integer("execution.checkpointing.barriers-per-job", 1)
            self._checkpoint_config.set_barriers_per_job(barriers)
        if "execution.checkpointing.externalized-checkpoint-retention" in options:
            name = options["execution.checkpointing.externalized-checkpoint-retention"]
            self._checkpoint_config.retention = _option(ExternalizedCheckpointRetention, name)
        if "execution.state-recovery.claim-mode" in options:
            name = options["execution.state-recovery.claim-mode"]
            self._checkpoint_config.claim_mode = _option(RecoveryClaimMode, name)
        if "execution.state-recovery.path" in options:
            self._savepoint_path = options["execution.state-recovery.path"]
        if "execution.state-recovery.ignore-unclaimed-state" in options:
            self._allow_non_restored_state = configuration.get_boolean(
                "execution.state-recovery.ignore-unclaimed-state", False
            )

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        """Sets whether results come record by record, or once at the end of bounded input."""
        self._runtime_mode = execution_mode
        return self

    def enable_checkpointing(self, interval: int, mode: CheckpointingMode | None = None) -> StreamExecutionEnvironment:
        """Wishes for a checkpoint each ``interval`` milliseconds; `build_checkpoint_sensor` reads it.

        Args:
            interval: Milliseconds.
            mode: EXACTLY_ONCE by default.
        """
        self._checkpoint_config.set_checkpoint_interval(interval)
        if mode is not None:
            self._checkpoint_config.set_checkpointing_mode(mode)
        return self

    def get_config(self) -> ExecutionConfig:
        """Other settings."""
        return self._config

    def get_checkpoint_interval(self) -> int:
        """Milliseconds between two checkpoints; -1: there is no periodic trigger."""
        return self._checkpoint_config.get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """What a record counts for after a failure."""
        return self._checkpoint_config.get_checkpointing_mode()

    def disable_operator_chaining(self) -> StreamExecutionEnvironment:
        """Accepted without effect: what is chained follows from the edges, and has no effect on results."""
        return self

    def set_buffer_timeout(self, timeout_millis: int) -> StreamExecutionEnvironment:
        """Accepted without effect: buffers are sent when they are full, and at barriers."""
        return self

    def add_jars(self, *jars_path: str) -> None:
        """Accepted without effect: no operator here runs in a JVM."""

    def add_python_file(self, file_path: str) -> None:
        """Makes modules of a file or folder importable; what functions use of them travels to the workers.

        Args:
            file_path: A folder of modules, or a ``.py`` or ``.zip`` file.
        """
        folder = os.path.dirname(file_path) if file_path.endswith(".py") else file_path
        sys.path.insert(0, os.path.abspath(folder))

    def close(self) -> None:
        """Accepted without effect: the environment holds nothing open."""

    def get_checkpoint_config(self) -> CheckpointConfig:
        """The checkpoint settings."""
        return self._checkpoint_config

    # --- sources -----------------------------------------------------------------------------------------------------

    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy,
        source_name: str,
        type_info: TypeInformation | None = None,
    ) -> DataStream:
        """A stream of the records of a source.

        Args:
            source: The source.
            watermark_strategy: Where event time and watermarks come from.
            source_name: Name of the operator.
            type_info: Type of the records, where it is not what the source says.
        """
        return self._add(source_name, SourceSpec(source, watermark_strategy), [], type_info or source.produced_type)

    def from_collection(self, collection: Sequence[Any], type_info: TypeInformation | None = None) -> DataStream:
        """A stream of the values of a collection. Without ``type_info`` they travel pickled."""
        type_info = type_info or PickledBytesTypeInfo()
        source = CollectionSource(list(collection), type_info)
        stream = self.from_source(source, WatermarkStrategy.no_watermarks(), "Collection Source")
        return stream.set_parallelism(1)  # Flink: forceNonParallel

    def read_text_file(self, file_path: str, charset_name: str = "UTF-8") -> DataStream:
        """A stream of the lines of a file, or of the files in a folder.

        Args:
            file_path: A local path or ``s3://bucket/prefix``.
            charset_name: Their encoding.
        """
        from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat

        source = FileSource.for_record_stream_format(StreamFormat.text_line_format(charset_name), file_path).build()
        return self.from_source(source, WatermarkStrategy.no_watermarks(), "Text File Source")

    def from_spark(
        self,
        df_factory: DataFrameFactory,
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "Spark Source",
        type_info: RowTypeInfo | None = None,
    ) -> DataStream:
        """A stream of the rows of a Spark DataFrame, which is bounded; not in PyFlink.

        The DataFrame is computed once, in the epoch that reads it. Should that epoch fail, it is computed again, and
        nothing of the first time is visible. The rows of one partition stay in order.

        Args:
            df_factory: Makes the DataFrame from the ``SparkSession`` that the job runs on. It is called on the driver.
            watermark_strategy: Where event time and watermarks come from. Default: there are none.
            source_name: Name of the operator.
            type_info: Columns to read, by name, with the types to cast them to. Default: all columns of the DataFrame,
                for which Spark is asked when the program is declared; a Dagster code location, which loads without
                Spark, has to say.

        Raises:
            ConfigurationError: A column has a type that no ``Types`` holds, or the type is to be said.
            UserFunctionError: The factory failed.
            TypeMismatchError: It did not give a DataFrame that can be read.
        """
        if type_info is None:
            type_info = spark_row_type("spark_source_type", df_factory, operator=source_name)
        source = SparkSource(df_factory, type_info)
        strategy = watermark_strategy or WatermarkStrategy.no_watermarks()
        return self._add(source_name, SparkSourceSpec(source, strategy), [], type_info)

    # --- the program -------------------------------------------------------------------------------------------------

    def _add(
        self,
        name: str,
        spec: OperatorSpec,
        inputs: Sequence[tuple[Input, ...]],
        output_type: TypeInformation | None,
    ) -> DataStream:
        output_type = output_type or PickledBytesTypeInfo()
        transformation = Transformation(name, spec, list(inputs), output_type, default_parallelism=self._parallelism)
        self._transformations.append(transformation)
        return DataStream(self, transformation)

    def get_job_graph(self) -> JobGraph:
        """The program as a validated graph; a `MissingUidWarning` if stateful operators have no uid.

        Raises:
            JobGraphError: uids, parallelisms or edges are wrong.
        """
        graph = self._build(self._transformations)
        self._warn_of_missing_uids(graph.without_uid(), stacklevel=3)
        return graph

    def _warn_of_missing_uids(self, missing: Sequence[JobVertex], stacklevel: int) -> None:
        """Names each operator once, however often the program is built."""
        missing = [v for v in missing if v.uid not in self._warned_of]
        if missing:
            self._warned_of |= {v.uid for v in missing}
            warnings.warn(
                "stateful operators have no uid: "
                + ", ".join(f"{v.name} ({v.spec.kind})" for v in missing)
                + ". Where checkpoints are kept that is an error: their state is found again only as long as the "
                "program stays as it is. Call .uid('...') on each.",
                MissingUidWarning,
                stacklevel=stacklevel,
            )

    def _build(self, roots: Sequence[Transformation]) -> JobGraph:
        transformations = _upstream(roots)
        uids = _uids(transformations)
        vertices = [self._vertex(t, uids[id(t)]) for t in transformations]
        edges: list[JobEdge] = []
        for t in transformations:
            for index, united in enumerate(t.inputs):
                for i in united:
                    source = uids[id(i.transformation)]
                    edge_id = len(edges)
                    edge = JobEdge(edge_id, source, uids[id(t)], index, i.partitioner, i.type_info, i.side_output)
                    edges.append(replace(edge, blocking=i.blocking))
        graph = build_job_graph(vertices, edges)
        if self._config.is_strict():
            graph.require_uids()
        return graph

    def _vertex(self, t: Transformation, uid: str) -> JobVertex:
        default = self._parallelism if t.default_parallelism is None else t.default_parallelism
        parallelism = default if t.parallelism is None else t.parallelism
        max_parallelism = self._max_parallelism if t.max_parallelism is None else t.max_parallelism
        try:
            key_groups = compute_default_max_parallelism(parallelism) if max_parallelism is None else max_parallelism
        except ParallelismError as e:
            raise ParallelismError(f"operator {uid!r}: {e}") from e
        return JobVertex(
            uid=uid,
            name=t.name,
            spec=self._fit(t.spec),
            parallelism=parallelism,
            max_parallelism=key_groups,
            max_parallelism_set=max_parallelism is not None,
            output_type=t.output_type,
            side_outputs=tuple(t.side_outputs.items()),
            uid_set=t.uid is not None,
            parallelism_set=t.parallelism is not None,
            slot_sharing_group=t.slot_sharing_group,
            job_parameters=tuple(self._config.get_global_job_parameters().items()),
            strict=self._config.is_strict(),
        )

    def _fit(self, spec: OperatorSpec) -> OperatorSpec:
        """The operator as it is in this runtime mode."""
        if self._runtime_mode is not RuntimeExecutionMode.BATCH:
            return spec
        if isinstance(spec, (SourceSpec, TimestampsSpec)):
            return replace(spec, watermark_strategy=replace(spec.watermark_strategy, max_out_of_orderness=None))
        return replace(spec, final_only=True) if isinstance(spec, ReduceSpec) else spec

    def _settings(self, job_name: str | None) -> ExecutionSettings:
        return ExecutionSettings(
            job_name or "flink-job",
            self._checkpoint_config.storage_dir,
            savepoint_path=self._savepoint_path,
            allow_non_restored_state=self._allow_non_restored_state,
            latency_tracking_interval=timedelta(milliseconds=self._config.get_latency_tracking_interval()),
            checkpointing=self._checkpoint_config,
        )

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Runs the program until its input has ended and all sinks have committed.

        The environment then forgets it, as in Flink: what is declared next is another program.

        Raises:
            JobGraphError: uids, parallelisms or edges are wrong; where checkpoints are kept, also if stateful operators
                have no uid. Elsewhere that is a `MissingUidWarning`, if they are no sources and sinks.
        """
        graph = self._take([], stacklevel=4)
        return get_executor().execute(graph, self._settings(job_name))

    def _execute_and_collect(self, inputs: tuple[Input, ...], job_name: str | None) -> Iterator[Any]:
        graph = self._take([Transformation("Collect", CollectSpec(), [inputs], inputs[0].type_info)], stacklevel=5)
        return get_executor().execute_and_collect(graph, self._settings(job_name))

    def _take(self, more: Sequence[Transformation], stacklevel: int) -> JobGraph:
        """The program, to be run; the environment forgets it."""
        graph = self._build([*self._transformations, *more])
        self._transformations.clear()
        if self._checkpoint_config.storage_dir is None:
            # What state there is ends with the program, so where sources and sinks have come to does not matter.
            stateful = [v for v in graph.without_uid() if not isinstance(v.spec, (SourceSpec, SinkSpec))]
            self._warn_of_missing_uids(stateful, stacklevel)
        else:
            graph.require_uids()
        self._warned_of.clear()
        return graph


def _upstream(roots: Sequence[Transformation]) -> list[Transformation]:
    """The operators and all that they read, inputs first."""
    found: dict[int, Transformation] = {}

    def visit(t: Transformation) -> None:
        if id(t) not in found:
            for united in t.inputs:
                for i in united:
                    visit(i.transformation)
            found[id(t)] = t

    for t in roots:
        visit(t)
    return list(found.values())


def _option(kind: type[E], name: str) -> E:
    """The member of an enum that an option names, in capitals or not, with ``-`` or ``_``."""
    try:
        return kind[name.strip().upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(member.name for member in kind)
        raise ConfigurationError(f"{name!r} is not a {kind.__name__}; there are {known}") from None


def _uids(transformations: Sequence[Transformation]) -> dict[int, str]:
    """The uid of each operator; without one it is the name, numbered where it occurs again."""
    taken = {t.uid for t in transformations if t.uid is not None}
    uids: dict[int, str] = {}
    for t in transformations:
        if t.uid is not None:
            uids[id(t)] = t.uid
        else:
            base = re.sub(r"[^a-z0-9]+", "_", t.name.lower()).strip("_") or t.spec.kind
            n = 1
            while (uid := base if n == 1 else f"{base}_{n}") in taken:
                n += 1
            taken.add(uid)
            uids[id(t)] = uid
    return uids
