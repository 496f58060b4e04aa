"""Small programs, and a fake attempt without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch, OperatorReport, SubtaskReport
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.functions import KeyedProcessFunction, RuntimeContext
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.runtime.master.job import JobConfig

END_OF_TIME = 2**63 - 1


class Count(KeyedProcessFunction):
    """Counts how often each word was seen so far.

    Args:
        poison: A word that raises.
    """

    def __init__(self, poison: str | None = None) -> None:
        self._poison = poison

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Any:
        if value == self._poison:
            raise ValueError(f"{value} is poison")
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value, count


def word_count(
    table: Path, words: list[str], *, function: KeyedProcessFunction | None = None, per_epoch: int | None = None
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(16)
    source = CollectionSource(words, Types.STRING(), records_per_epoch=per_epoch)
    counts = (
        env.from_source(source, WatermarkStrategy.no_watermarks(), "words")
        .uid("words")
        .key_by(lambda word: word, Types.STRING())
        .process(function or Count(), output_type=Types.TUPLE([Types.STRING(), Types.LONG()]))
        .name("count")
        .uid("count")
    )
    counts.sink_to(ParquetSink(str(table))).name("table").uid("table")
    return env


def parts(table: Path, *names: str) -> StreamExecutionEnvironment:
    """A program with a part for each name, which no edge joins: a source and a table."""
    env = StreamExecutionEnvironment.get_execution_environment()
    for name in names:
        source = CollectionSource(["x", "y", "z"], Types.STRING(), records_per_epoch=1)
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), name).uid(name)
        stream.sink_to(ParquetSink(str(table / name))).uid(f"{name}_table")
    return env


class FakeAttempt:
    """What the orchestration floor asks of an attempt; remembers how it was made.

    Args:
        epochs: Checkpoints until the input ends.
        error: Raised instead of the first epoch.
    """

    made: list[FakeAttempt]
    stopped = False
    stopped_with: str | None = None
    partition_ends = ()

    def __init__(self, graph: JobGraph, config: JobConfig, *, epochs: int, error: Exception | None, **options: Any):
        self.graph, self.config, self.options = graph, config, options
        self.token = 7
        self.exited = False
        self.periodic = 0
        self.savepoint_target: str | None = None
        self.format_type: SavepointFormatType | None = None
        self._left, self._error, self._id = epochs, error, 41
        self.restored = self._metadata(41)

    @staticmethod
    def factory(epochs: int = 3, error: Exception | None = None) -> Callable[..., FakeAttempt]:
        FakeAttempt.made = []

        def make(graph: JobGraph, config: JobConfig, **options: Any) -> FakeAttempt:
            FakeAttempt.made.append(FakeAttempt(graph, config, epochs=epochs, error=error, **options))
            return FakeAttempt.made[-1]

        return make

    execution = None

    def __enter__(self) -> FakeAttempt:
        return self

    def __exit__(self, *_: object) -> None:
        self.exited = True

    @property
    def finished(self) -> bool:
        return self._left == 0

    def refuse_input_after_end(self) -> None:
        pass

    def terminate(self, error: BaseException) -> None:
        raise AssertionError("nobody terminates it")

    def run_epoch(self) -> CompletedEpoch:
        if self._error is not None:
            raise self._error
        self._left -= 1
        self._id += 1
        return self._epoch(self._id)

    def run_epochs(
        self, limit: int | None = None, *, periodic: bool = False, continuous: bool = False, goes_on: bool = False
    ) -> Iterator[CompletedEpoch]:
        taken = 0
        while self._left and (limit is None or taken < limit):
            self.periodic += periodic
            taken += 1
            yield self.run_epoch()

    def commit_restored(self) -> CompletedEpoch:
        if self._error is not None:
            raise self._error
        return self._epoch(50)

    def savepoint(
        self, target: str | None = None, format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    ) -> str:
        self.savepoint_target, self.format_type = target, format_type
        return f"{target or 's3://bucket/flights'}/savepoint-words-1"

    def stop_with_savepoint(
        self,
        target: str | None = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
        *,
        drain: bool = False,
    ) -> str:
        self.drained = drain
        self.latest = self._metadata(42)
        return self.savepoint(target, format_type)

    def _metadata(self, checkpoint_id: int) -> CheckpointMetadata:
        operators = tuple(
            OperatorState(
                v.uid, v.name, 2, 16, subtasks=(SubtaskState(0, splits=({"split_id": "1"},)), SubtaskState(1))
            )
            for v in self.graph.vertices
        )
        return CheckpointMetadata(
            "words", checkpoint_id, CheckpointKind.CHECKPOINT, None, 0, None, 7, "f", self._left == 0, operators, {}
        )

    def _epoch(self, checkpoint_id: int) -> CompletedEpoch:
        subtasks = (SubtaskReport(0, (0, 7), 3, 300, 30, 5, 6), SubtaskReport(1, None, 0, 0, 0, 0, 0))
        watermark = END_OF_TIME if self._left == 0 else 1_360_000_000_000
        operators = tuple(
            OperatorReport(v.uid, 5, 6, 300, 30, 3, watermark, 6 if v.uid.endswith("table") else None, subtasks)
            for v in self.graph.vertices
        )
        url = f"s3://bucket/words/chk-{checkpoint_id}/_metadata"
        return CompletedEpoch(checkpoint_id, self._metadata(checkpoint_id), url, 1500, operators)
