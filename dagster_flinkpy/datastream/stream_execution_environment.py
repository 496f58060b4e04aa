"""Where a program starts (``pyflink.datastream.stream_execution_environment``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.data_stream import DataStream
from dagster_flinkpy.datastream.execution import ExecutionSettings, JobExecutionResult, get_executor
from dagster_flinkpy.datastream.job_graph import JobEdge, JobGraph, JobVertex, build_job_graph
from dagster_flinkpy.datastream.operators import CollectSpec, OperatorSpec, SourceSpec
from dagster_flinkpy.datastream.transformation import Input, Transformation
from dagster_flinkpy.errors import ConfigurationError, ParallelismError
from dagster_flinkpy.key_groups import compute_default_max_parallelism

__all__ = ["CheckpointConfig", "StreamExecutionEnvironment"]


@dataclass
class CheckpointConfig:
    """Checkpoint settings of a program."""

    interval: timedelta | None = None
    """Time between two checkpoints; None: no periodic trigger."""
    storage_dir: str | None = None
    """Where checkpoints go: a directory or ``s3://bucket/prefix``."""

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> CheckpointConfig:
        """Sets where checkpoints go."""
        self.storage_dir = checkpoint_path
        return self


class StreamExecutionEnvironment:
    """Collects the operators of a program and runs them."""

    def __init__(self) -> None:
        self._transformations: list[Transformation] = []
        self._parallelism = 1
        self._max_parallelism: int | None = None
        self._checkpoint_config = CheckpointConfig()

    @staticmethod
    def get_execution_environment() -> StreamExecutionEnvironment:
        """A new, empty environment."""
        return StreamExecutionEnvironment()

    # --- settings ----------------------------------------------------------------------------------------------------

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Sets the number of subtasks of operators without one of their own; 1 by default."""
        self._parallelism = parallelism
        return self

    def get_parallelism(self) -> int:
        """The default number of subtasks."""
        return self._parallelism

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """Sets the number of key groups of operators without one of their own."""
        self._max_parallelism = max_parallelism
        return self

    def get_max_parallelism(self) -> int | None:
        """The default number of key groups; None: from the parallelism, by Flink's rule."""
        return self._max_parallelism

    def enable_checkpointing(self, interval: int) -> StreamExecutionEnvironment:
        """Wishes for a checkpoint each ``interval`` milliseconds; `build_checkpoint_sensor` reads it."""
        if interval < 10:
            raise ConfigurationError(f"checkpoint interval must be at least 10 ms, not {interval}")
        self._checkpoint_config.interval = timedelta(milliseconds=interval)
        return self

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
        return self.from_source(source, WatermarkStrategy.no_watermarks(), "Collection Source")

    # --- the program -------------------------------------------------------------------------------------------------

    def _add(
        self,
        name: str,
        spec: OperatorSpec,
        inputs: Sequence[tuple[Input, ...]],
        output_type: TypeInformation | None,
    ) -> DataStream:
        transformation = Transformation(name, spec, list(inputs), output_type or PickledBytesTypeInfo())
        self._transformations.append(transformation)
        return DataStream(self, transformation)

    def get_job_graph(self) -> JobGraph:
        """The program as a validated graph.

        Raises:
            JobGraphError: uids, parallelisms or edges are wrong.
        """
        return self._build(self._transformations)

    def _build(self, transformations: Sequence[Transformation]) -> JobGraph:
        uids = _uids(transformations)
        vertices = [self._vertex(t, uids[id(t)]) for t in transformations]
        edges: list[JobEdge] = []
        for t in transformations:
            for index, united in enumerate(t.inputs):
                for i in united:
                    source = uids[id(i.transformation)]
                    edge_id = len(edges)
                    edges.append(
                        JobEdge(edge_id, source, uids[id(t)], index, i.partitioner, i.type_info, i.side_output)
                    )
        return build_job_graph(vertices, edges)

    def _vertex(self, t: Transformation, uid: str) -> JobVertex:
        parallelism = self._parallelism if t.parallelism is None else t.parallelism
        max_parallelism = self._max_parallelism if t.max_parallelism is None else t.max_parallelism
        try:
            key_groups = compute_default_max_parallelism(parallelism) if max_parallelism is None else max_parallelism
        except ParallelismError as e:
            raise ParallelismError(f"operator {uid!r}: {e}") from e
        return JobVertex(
            uid=uid,
            name=t.name,
            spec=t.spec,
            parallelism=parallelism,
            max_parallelism=key_groups,
            max_parallelism_set=max_parallelism is not None,
            output_type=t.output_type,
            side_outputs=tuple(t.side_outputs.items()),
            uid_set=t.uid is not None,
            parallelism_set=t.parallelism is not None,
            slot_sharing_group=t.slot_sharing_group,
        )

    def _settings(self, job_name: str | None) -> ExecutionSettings:
        return ExecutionSettings(job_name or "flink-job", self._checkpoint_config.storage_dir)

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Runs the program until its input has ended and all sinks have committed."""
        return get_executor().execute(self.get_job_graph(), self._settings(job_name))

    def _execute_and_collect(self, inputs: tuple[Input, ...], job_name: str | None, limit: int | None) -> Iterator[Any]:
        collect = Transformation("Collect", CollectSpec(), [inputs], inputs[0].type_info)
        graph = self._build([*self._transformations, collect])
        records = get_executor().execute_and_collect(graph, self._settings(job_name))
        return islice(records, limit)


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
