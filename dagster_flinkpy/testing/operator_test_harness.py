"""Tests a user function record by record, without Spark."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState, without_copies
from dagster_flinkpy.checkpoint.restore import assign, restore_targets
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import StoredCheckpoint
from dagster_flinkpy.checkpoint.state_migration import migrate, state_version
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TypeInformation
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK, WatermarkStrategy
from dagster_flinkpy.datastream.batch_function import KeyedBatchFunction, KeyedMultipleInputBatchFunction
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.data_stream import DataStream, KeyedStream
from dagster_flinkpy.datastream.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedMultipleInputProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    MultipleInputProcessFunction,
    ProcessFunction,
    ReduceFunction,
)
from dagster_flinkpy.datastream.operator_specs import shown
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.datastream.streams.broadcast import BroadcastStream
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.key_groups import compute_operator_index_for_key_group
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob, SubtaskInputs
from dagster_flinkpy.runtime.master.epochs.epoch_planner import inputs_after
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedStateOperator
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.state.migration import MigrateState
from dagster_flinkpy.state_processor.reader import SavepointReader
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.testing.live_region import LiveRegion, Recorder
from dagster_flinkpy.testing.manual_clock import ManualClock

__all__ = ["HarnessSnapshot", "OperatorTestHarness"]

_JOB = "harness"
_KEYED = (
    ReduceFunction,
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedMultipleInputBatchFunction,
    KeyedMultipleInputProcessFunction,
    KeyedProcessFunction,
)
_MULTIPLE_INPUT = (MultipleInputProcessFunction, KeyedMultipleInputProcessFunction, KeyedMultipleInputBatchFunction)


class _TemporaryStorage:
    """A folder for state files, which is deleted when it is no longer referenced."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="flinkpy-harness-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.cache = str(Path(folder) / "cache")
        self.root = StorageLocation(folder)
        self.job = self.root.child(_JOB)


@dataclass(frozen=True)
class HarnessSnapshot:
    """The state of a harness at a barrier, as :meth:`OperatorTestHarness.snapshot` returns it."""

    metadata: CheckpointMetadata
    """The metadata that a checkpoint of a job would have."""
    _storage: _TemporaryStorage

    @property
    def reader(self) -> SavepointReader:
        """Reads the state as data: ``snapshot.reader.state("operator", "total").to_arrow()``."""
        return SavepointReader(StoredCheckpoint(self.metadata, self._storage.job))


class OperatorTestHarness:
    """Runs a user function as a job would, one record at a time, in this process.

    The function runs in the same operator as in a job: records are split by key, state is columnar, declared types are
    checked, and a snapshot holds what a checkpoint would. As on Spark, each subtask has its own copy of the function,
    and gets a new copy after each snapshot.

    Mirrors Flink's ``KeyedOneInputStreamOperatorTestHarness``, ``KeyedMultiInputStreamOperatorTestHarness`` and
    ``ProcessFunctionTestHarnesses``.

    Examples:
        >>> from dagster_flinkpy.common import Types
        >>> from dagster_flinkpy.datastream import ReduceFunction
        >>> class Longest(ReduceFunction):
        ...     def reduce(self, first, second):
        ...         return max(first, second, key=len)
        >>> with OperatorTestHarness(Longest(), key_by=lambda word: word[0], input_type=Types.STRING()) as harness:
        ...     for word in ["cat", "crane", "cow", "dog"]:
        ...         harness.process_element(word)
        ...     harness.output
        ['cat', 'crane', 'crane', 'dog']

    Args:
        function: A function of the DataStream API for one or several streams, or for a stream and a broadcast stream.
            For windows and several operators, see :meth:`for_stream`.
        key_by: Key selector, for functions with keyed state: a function of the record, or the name of a field. It
            applies to all streams that are not broadcast. A list has one for each.
        input_type: Type of the records of all streams, or a list with a type for each. Default: they are pickled.
        output_type: Type of the output's records, checked as in a job. Default: they are pickled, unless the function
            returns records of its input type.
        side_outputs: Tags of the side outputs to record.
        parallelism: Number of subtasks.
        max_parallelism: Number of key groups.

    Raises:
        ConfigurationError: The harness does not support the function, or a list does not have an element for each
            stream.
    """

    def __init__(
        self,
        function: Any,
        *,
        key_by: Any = None,
        input_type: TypeInformation | list[TypeInformation | None] | None = None,
        output_type: TypeInformation | None = None,
        side_outputs: Sequence[OutputTag] = (),
        parallelism: int = 1,
        max_parallelism: int = 128,
    ) -> None:
        inputs = _number_of_inputs(function)
        broadcast = isinstance(function, (BroadcastProcessFunction, KeyedBroadcastProcessFunction))
        keys = _for_each("key_by", key_by, inputs - broadcast)
        types = _for_each("input_type", input_type, inputs)
        if isinstance(function, _KEYED) and None in keys:
            raise ConfigurationError(f"{type(function).__name__} needs a keyed stream: pass key_by=...")
        if isinstance(function, BroadcastProcessFunction) and keys != [None]:
            raise ConfigurationError(
                f"{type(function).__name__} is for a stream without keys: leave key_by=... out, or make it a "
                "KeyedBroadcastProcessFunction"
            )
        for key, type_info in zip(keys, types, strict=False):
            if isinstance(key, (str, tuple)) and not isinstance(type_info, RowTypeInfo):
                raise ConfigurationError(
                    f"key_by={key!r} needs records with fields: pass input_type=Types.ROW_NAMED(...)"
                )

        def build(*streams: DataStream) -> DataStream:
            keyed = [s.key_by(k) if k is not None else s.rebalance() for s, k in zip(streams, keys, strict=False)]
            if broadcast:
                rules = BroadcastStream(streams[1].broadcast()._upstream, [])  # the function says which state it has
                return keyed[0].connect(rules).process(function, output_type)
            return _apply(function, keyed, output_type)

        self._start(build, types, side_outputs, parallelism, max_parallelism)

    @classmethod
    def for_stream(
        cls,
        build: Callable[..., DataStream],
        *,
        input_type: TypeInformation | list[TypeInformation | None] | None = None,
        side_outputs: Sequence[OutputTag] = (),
        parallelism: int = 1,
        max_parallelism: int = 128,
    ) -> OperatorTestHarness:
        """Runs a part of a program: windows, or several operators in a row.

        Examples:
            >>> from dagster_flinkpy.common import Time, Types
            >>> from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
            >>> def per_minute(words):
            ...     return words.key_by(lambda w: w).window(TumblingEventTimeWindows.of(Time.minutes(1))).count()
            >>> with OperatorTestHarness.for_stream(per_minute, input_type=Types.STRING()) as harness:
            ...     harness.process_element("a", 1_000)
            ...     harness.process_element("a", 2_000)
            ...     harness.process_watermark(60_000)
            ...     len(harness.output)
            1

        Args:
            build: Takes a stream, or as many as ``input_type`` has types, and returns the stream whose records are the
                output.
            input_type: Type of the stream's records, or a list with a type for each of several streams. Default: there
                is one stream, whose records are pickled.
            side_outputs: Tags of the last operator's side outputs to record.
            parallelism: Number of subtasks.
            max_parallelism: Number of key groups.
        """
        if not callable(build):
            raise ConfigurationError(f"for_stream() needs a function that takes a stream, not {build!r}")
        harness = cls.__new__(cls)
        harness._start(
            lambda *streams: build(*(s.rebalance() for s in streams)),
            input_type if isinstance(input_type, list) else [input_type],
            side_outputs,
            parallelism,
            max_parallelism,
        )
        return harness

    def _start(
        self,
        build: Callable[..., DataStream],
        input_types: Sequence[TypeInformation | None],
        side_outputs: Sequence[OutputTag],
        parallelism: int,
        max_parallelism: int,
    ) -> None:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(parallelism).set_max_parallelism(max_parallelism)
        self._sources = [f"input{i}" for i in range(1, len(input_types) + 1)]
        streams = [
            env.from_source(_no_records(type_info), WatermarkStrategy.no_watermarks(), uid, type_info)
            .uid(uid)
            .set_parallelism(1)
            for uid, type_info in zip(self._sources, input_types, strict=True)
        ]
        result = build(*streams)
        operator = result._operator
        operator.uid = self._uid = operator.uid or "operator"
        for tag in side_outputs:
            result.get_side_output(tag)
        self._graph = env.get_job_graph()
        self._clock = ManualClock()
        self._storage = _TemporaryStorage()
        self._checkpoint_id = 0
        self._watermarks: dict[str, int] = {}
        self.watermarks: list[int] = []
        """Watermarks of the output, in milliseconds."""
        self._records: dict[str | None, list[tuple[Any, int | None]]] = {
            tag: [] for tag in [None, *(tag.tag_id for tag in side_outputs)]
        }
        self._begin({})

    def _begin(self, inputs: SubtaskInputs) -> None:
        self._checkpoint_id += 1
        vertex = self._graph.vertex(self._uid)
        recorders = [
            Recorder.of(self._graph, vertex, tag, partial(self._record, tag), partial(self._note, tag))
            for tag in self._records
        ]
        job = EpochJob(
            graph=self._graph,
            job_id=_JOB,
            epoch=EpochInput(self._checkpoint_id, {}),
            fencing_token=1,
            job_storage=self._storage.job,
            inputs=inputs,
            cache_dir=self._storage.cache,
            clock=self._clock,
        )
        self._region = LiveRegion(job, recorders)
        for source, watermark in self._watermarks.items():
            self._region.watermark(source, watermark)

    def _record(self, tag: str | None, batch: StreamBatch) -> None:
        values = batch.type_info.from_arrow(batch.column)
        times = (None if time == NO_TIMESTAMP else time for time in batch.timestamps.tolist())
        self._records[tag] += zip(values, times, strict=True)

    def _note(self, tag: str | None, watermark: int) -> None:
        if tag is None and self.watermarks[-1:] != [watermark]:
            self.watermarks.append(watermark)

    # --- input -------------------------------------------------------------------------------------------------------

    def process_element(self, value: Any, timestamp: int | None = None, input_index: int = 0) -> None:
        """Sends a record into a stream.

        Args:
            value: The record.
            timestamp: Its event time in milliseconds. Default: no timestamp.
            input_index: The index of the stream, from 0.

        Raises:
            ConfigurationError: The timestamp is not a whole number, or there is no such stream.
            UserFunctionError: The function failed; its exception is the cause.
            TypeMismatchError: The record, or a record of the output, does not have the declared type.
        """
        if timestamp is not None:
            _check_time("timestamp", timestamp)
        self._region.element(self._source(input_index), value, NO_TIMESTAMP if timestamp is None else timestamp)

    def process_element1(self, value: Any, timestamp: int | None = None) -> None:
        """Sends a record into the first stream, like :meth:`process_element`."""
        self.process_element(value, timestamp, 0)

    def process_element2(self, value: Any, timestamp: int | None = None) -> None:
        """Sends a record into the second, or broadcast, stream, like :meth:`process_element`."""
        self.process_element(value, timestamp, 1)

    process_broadcast_element = process_element2

    def process_watermark(self, timestamp: int, input_index: int | None = None) -> None:
        """Advances event time of all streams, or of one, and fires the timers and windows that are due.

        Args:
            timestamp: The event time in milliseconds.
            input_index: The index of the stream, from 0. Default: all streams.

        Raises:
            ConfigurationError: It is not a whole number, or there is no such stream.
        """
        _check_time("watermark", timestamp)
        for source in self._sources if input_index is None else [self._source(input_index)]:
            self._watermarks[source] = max(timestamp, self._watermarks.get(source, timestamp))
            self._region.watermark(source, timestamp)

    def process_watermark1(self, timestamp: int) -> None:
        """Advances event time of the first stream only."""
        self.process_watermark(timestamp, 0)

    def process_watermark2(self, timestamp: int) -> None:
        """Advances event time of the second stream only."""
        self.process_watermark(timestamp, 1)

    def end_input(self) -> None:
        """Ends all streams, as a bounded input does: event time reaches its end, and all event-time timers fire."""
        self.process_watermark(MAX_WATERMARK)

    def set_processing_time(self, timestamp: int) -> None:
        """Sets the clock, and fires the processing-time timers up to that time.

        Args:
            timestamp: Milliseconds since 1970. A harness starts at 0.

        Raises:
            ConfigurationError: It is before the current time, or not a whole number.
        """
        _check_time("processing time", timestamp)
        if timestamp < self._clock.time:
            raise ConfigurationError(f"processing time {timestamp} is before the current time, {self._clock.time}")
        self._clock.time = timestamp
        self._region.processing_time(timestamp + 1)

    def _source(self, input_index: int) -> str:
        if input_index not in range(len(self._sources)):
            inputs = "only one input" if len(self._sources) == 1 else f"{len(self._sources)} inputs"
            raise ConfigurationError(f"there is no input {input_index!r} (from 0): the function has {inputs}")
        return self._sources[input_index]

    # --- output ------------------------------------------------------------------------------------------------------

    @property
    def output(self) -> list[Any]:
        """The records of the main output so far."""
        return [value for value, _ in self._records[None]]

    @property
    def output_with_timestamps(self) -> list[tuple[Any, int | None]]:
        """The records of the main output so far, each with its event time in milliseconds, or None."""
        return list(self._records[None])

    def side_output(self, tag: OutputTag) -> list[Any]:
        """The records of a side output so far.

        Raises:
            ConfigurationError: The tag was not passed to the harness, or is not an OutputTag.
        """
        if not isinstance(tag, OutputTag):
            raise ConfigurationError(f"side_output() needs an OutputTag, not {tag!r}")
        if tag.tag_id not in self._records:
            raise ConfigurationError(f"side output {tag.tag_id!r} is not recorded; pass side_outputs=[...]")
        return [value for value, _ in self._records[tag.tag_id]]

    def clear_output(self) -> None:
        """Deletes the recorded output."""
        for records in self._records.values():
            records.clear()
        self.watermarks.clear()

    # --- state -------------------------------------------------------------------------------------------------------

    def state(self, name: str, key: Any, *, uid: str | None = None) -> Any:
        """Reads the keyed state of a key, as the function would see it.

        Args:
            name: Name of the state's descriptor.
            key: The key.
            uid: Uid of the operator, if the harness runs several. Default: the last one.

        Returns:
            The value, or None; a list for list state, a dict for map state.

        Raises:
            ConfigurationError: The operator has no such state, or has one per window. Read that from a snapshot.
        """
        uid = uid or self._uid
        operators = (task.operator for task in self._region.operator_tasks(uid))
        subtasks = [operator for operator in operators if isinstance(operator, KeyedStateOperator)]
        if not subtasks:
            raise ConfigurationError(f"operator {uid!r} has no keyed state")
        vertex = self._graph.vertex(uid)
        group = next((g for s in subtasks if (g := s.backend.key_group_of(key)) is not None), 0)
        owner = compute_operator_index_for_key_group(vertex.max_parallelism, vertex.parallelism, group)
        return subtasks[owner].backend.read(name, key)

    def snapshot(self) -> HarnessSnapshot:
        """Sends a barrier, and returns the state at the barrier. The functions are then opened again."""
        acknowledged = self._region.checkpoint()
        operators = tuple(
            OperatorState(
                uid=v.uid,
                name=v.name,
                parallelism=v.parallelism,
                max_parallelism=v.max_parallelism,
                subtasks=without_copies(
                    acknowledged.get(v.uid, [SubtaskState(0, watermark=self._watermarks.get(v.uid))])
                ),
                state_version=state_version(v, None),
            )
            for v in self._graph.vertices
        )
        metadata = CheckpointMetadata(
            job_id=_JOB,
            checkpoint_id=self._checkpoint_id,
            kind=CheckpointKind.CHECKPOINT,
            parent_id=None,
            timestamp_ms=self._clock.time,
            partition=None,
            fencing_token=1,
            graph_fingerprint=self._graph.fingerprint,
            end_of_input=False,
            operators=operators,
            properties={},
        )
        self._begin(inputs_after({Subtask(o.uid, s.index): s for o in operators for s in o.subtasks}))
        return HarnessSnapshot(metadata, self._storage)

    def restore(
        self, snapshot: HarnessSnapshot, *, parallelism: int | None = None, migrate_state: MigrateState | None = None
    ) -> None:
        """Continues from a snapshot of this harness or another one. The current state is dropped.

        Args:
            snapshot: The snapshot to continue from.
            parallelism: The number of subtasks from now on. Default: the current one.
            migrate_state: The function of ``env.migrate_state`` to test, through which the state of the operator goes.
                Default: those that a stream of :meth:`for_stream` declares.

        Raises:
            ConfigurationError: The argument is not a snapshot.
            RestoreError: The state does not fit the operators.
            UserFunctionError: The migration has failed.
            StateSchemaError: The type of a state has changed in a way that is not allowed.
        """
        if not isinstance(snapshot, HarnessSnapshot):
            raise ConfigurationError(f"restore() needs what snapshot() returned, not {snapshot!r}")
        self._region.close()
        graph = self._graph if parallelism is None else self._rescaled(parallelism)
        metadata, store = snapshot.metadata, snapshot._storage.job.open()
        if migrate_state is not None:
            before = metadata.operator(self._uid)
            version = 0 if before is None else before.state_version
            vertex = replace(graph.vertex(self._uid), migrations=((version, migrate_state),))
            graph = replace(graph, vertices=tuple(vertex if v.uid == self._uid else v for v in graph.vertices))
        metadata = migrate(metadata, graph, store, f"{metadata.checkpoint_id}-0", lambda line: None)
        inputs = assign(metadata, restore_targets(graph)).inputs
        self._graph, self._storage = graph, snapshot._storage
        self._checkpoint_id = max(self._checkpoint_id, snapshot.metadata.checkpoint_id)
        restored = {uid: inputs[uid, 0].watermark for uid in self._sources if (uid, 0) in inputs}
        self._watermarks = {uid: watermark for uid, watermark in restored.items() if watermark is not None}
        self._begin(inputs)

    def _rescaled(self, parallelism: int) -> JobGraph:
        return self._graph.with_parallelism(parallelism)

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Checks the types of the keyed state, and closes the functions.

        Raises:
            TypeMismatchError: A value of keyed state does not have its declared type, so a checkpoint would fail.
        """
        for uid in (vertex.uid for vertex in self._graph.vertices):
            for task in self._region.operator_tasks(uid):
                if isinstance(task.operator, KeyedStateOperator):
                    task.operator.backend.flush()
        self._region.close()

    def __enter__(self) -> OperatorTestHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()


def _no_records(type_info: TypeInformation | None) -> CollectionSource:
    return CollectionSource([], type_info or PickledBytesTypeInfo())


def _check_time(what: str, time: Any) -> None:
    if type(time) is not int or not MIN_WATERMARK <= time <= MAX_WATERMARK:
        raise ConfigurationError(f"the {what} is {time!r}; it must be 64-bit int milliseconds")


def _for_each(what: str, given: Any, inputs: int) -> list[Any]:
    if not isinstance(given, list):
        return [given] * inputs
    if len(given) != inputs:
        raise ConfigurationError(f"{what} is a list of {len(given)}; the function needs {inputs}, one for each input")
    return given


def _number_of_inputs(function: Any) -> int:
    if isinstance(function, _MULTIPLE_INPUT):
        if (inputs := len(function.get_inputs())) < 2:
            raise ConfigurationError(
                f"{type(function).__name__} has functions for {inputs} inputs; it needs two or more"
            )
        return inputs
    two = (
        BroadcastProcessFunction,
        KeyedBroadcastProcessFunction,
        CoFlatMapFunction,
        CoMapFunction,
        CoProcessFunction,
        KeyedCoProcessFunction,
    )
    return 2 if isinstance(function, two) else 1


def _apply(function: Any, streams: Sequence[DataStream], output_type: TypeInformation | None) -> DataStream:
    """Applies the function to its streams, as a program does."""
    if not isinstance(function, (Function, KeyedBatchFunction)):
        raise ConfigurationError(
            f"the harness needs a function object of the DataStream API, such as a KeyedProcessFunction, "
            f"not {shown(function)}"
        )
    first = streams[0]
    match function:
        case CoMapFunction():
            return first.connect(streams[1]).map(function, output_type)
        case CoFlatMapFunction():
            return first.connect(streams[1]).flat_map(function, output_type)
        case CoProcessFunction() | KeyedCoProcessFunction():
            return first.connect(streams[1]).process(function, output_type)
        case MultipleInputProcessFunction() | KeyedMultipleInputProcessFunction():
            return first.connect(*streams[1:]).process(function, output_type)
        case KeyedMultipleInputBatchFunction():
            return first.connect(*streams[1:]).process_batch(function, output_type or PickledBytesTypeInfo())
        case MapFunction():
            return first.map(function, output_type)
        case FlatMapFunction():
            return first.flat_map(function, output_type)
        case FilterFunction():
            return first.filter(function)
        case ProcessFunction():
            return first.process(function, output_type)
        case ReduceFunction() if isinstance(first, KeyedStream):
            return first.reduce(function)
        case KeyedProcessFunction() if isinstance(first, KeyedStream):
            return first.process(function, output_type)
        case KeyedBatchFunction() if isinstance(first, KeyedStream):
            return first.process_batch(
                function, output_type or PickledBytesTypeInfo()
            )  # raises an error that asks for a type
    raise ConfigurationError(
        f"{type(function).__name__} is not a function of one operator; "
        "for windows and several operators use OperatorTestHarness.for_stream()"
    )
