from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState, without_copies
from dagster_flinkpy.checkpoint.restore import reassign_operator_state
from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import (
    CheckpointedFunction,
    FlatMapFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedProcessFunction,
    MapFunction,
)
from dagster_flinkpy.datastream.connectors.base import CommittingSinkWriter, Sink, SinkWriter, WriterInitContext
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from dagster_flinkpy.errors import (
    ConfigurationError,
    CorruptMetadataError,
    CorruptStateError,
    MissingUidError,
    RestoreError,
    StateSchemaError,
    TypeMismatchError,
    UnsupportedKeyTypeError,
    UserFunctionError,
)
from dagster_flinkpy.state.files.operator_state import read_partitions, write_partitions
from dagster_flinkpy.state.files.state_files import file_of
from dagster_flinkpy.state.handles import DistributionMode, OperatorStateHandle
from dagster_flinkpy.state.operator_state_backend import OperatorStateBackend
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, collect_all, collect_graph, collected, run_job
from tests.runtime.programs import environment, events

NUMBERS = ListStateDescriptor("numbers", Types.LONG())


def numbers(parallelism: int, count: int = 12, per_epoch: int = 4) -> Any:
    env = environment(parallelism)
    source = CollectionSource(list(range(count)), Types.LONG(), records_per_epoch=per_epoch)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers").set_parallelism(1)


class Buffer(FlatMapFunction, CheckpointedFunction):
    """Holds records back until it has five, like the example in Flink's documentation."""

    union = False

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store = context.get_operator_state_store()
        self._stored = store.get_union_list_state(NUMBERS) if self.union else store.get_list_state(NUMBERS)
        self._buffer = list(self._stored.get())
        self._first = (context.is_restored(), context.get_restored_checkpoint_id())

    def flat_map(self, value: int) -> Iterable[Any]:
        self._buffer.append(value)
        if len(self._buffer) >= 5:
            yield list(self._buffer)
            self._buffer.clear()

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        assert context.get_checkpoint_id() > 0
        self._stored.update(self._buffer)


def restored_numbers(state: OperatorState | None, folder: Path) -> list[list[int]]:
    assert state is not None
    store = LocalObjectStore(folder / "job")
    schema = pa.schema([("value", pa.int64())])
    return [
        read_partitions(handle.partitions, schema, store, "test").column("value").to_pylist()
        for subtask in state.subtasks
        for handle in subtask.operator_state
    ]


@pytest.mark.parametrize("rescale_at", [{}, {1: 2}, {1: 3, 2: 1}])
def test_no_element_of_a_list_is_lost_or_twice(tmp_path: Path, rescale_at: dict[int, int]) -> None:
    stream = numbers(1, count=40, per_epoch=7).rebalance().flat_map(Buffer()).uid("buffer")
    got = run_job(collect_graph(stream), tmp_path, rescale_at=rescale_at)
    emitted = [n for chunk in got for n in chunk]
    assert len(set(emitted)) == len(emitted)
    with HarnessAttempt(collect_graph(stream), tmp_path) as attempt:
        assert attempt.restored is not None
        kept = [n for part in restored_numbers(attempt.restored.operator("buffer"), tmp_path) for n in part]
    assert sorted(emitted + kept) == list(range(40))


def test_functions_know_what_they_were_restored_from(tmp_path: Path) -> None:
    class Tell(MapFunction, CheckpointedFunction):
        def initialize_state(self, context: FunctionInitializationContext) -> None:
            self.restored = context.is_restored(), context.get_restored_checkpoint_id()

        def open(self, runtime_context: Any) -> None:
            assert isinstance(self.restored, tuple)  # initialize_state() comes before open()

        def map(self, value: Any) -> Any:
            return self.restored

        def snapshot_state(self, context: FunctionSnapshotContext) -> None:
            pass

    stream = numbers(1, count=3, per_epoch=1).map(Tell()).uid("tell")
    assert run_job(collect_graph(stream), tmp_path) == [(False, None), (True, 1), (True, 2)]


class Offsets(MapFunction, CheckpointedFunction):
    """Keeps the offset of each subtask. Every subtask sees the offsets of all."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        descriptor = ListStateDescriptor("offsets", Types.ROW_NAMED(["subtask", "count"], [Types.LONG(), Types.LONG()]))
        self._state = context.get_operator_state_store().get_union_list_state(descriptor)
        self._known = sorted((row.subtask, row.count) for row in self._state)

    def open(self, runtime_context: Any) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()
        self._count = dict(self._known).get(self._subtask, 0)

    def map(self, value: int) -> Any:
        self._count += 1
        return self._known

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._state.clear()
        self._state.add(Row(subtask=self._subtask, count=self._count))


def test_every_subtask_gets_all_of_a_union_state(tmp_path: Path) -> None:
    stream = numbers(2, count=12, per_epoch=4).rebalance().map(Offsets()).uid("offsets")
    got = run_job(collect_graph(stream), tmp_path, rescale_at={2: 3})
    assert got[:4] == [[]] * 4
    assert got[4:8] == [[(0, 2), (1, 2)]] * 4
    assert all(len(known) == 2 for known in got[8:])
    assert {known[0] for known in got[8:]} == {(0, 4)}


@pytest.mark.parametrize("ask", [True, False])
def test_a_union_state_that_nobody_changes_does_not_grow(tmp_path: Path, ask: bool) -> None:
    class Fill(MapFunction, CheckpointedFunction):
        def initialize_state(self, context: FunctionInitializationContext) -> None:
            self.context = context
            if ask or not context.is_restored():
                self.state = context.get_operator_state_store().get_union_list_state(NUMBERS)
                if not context.is_restored():
                    self.state.add_all([1, 2])

        def map(self, value: Any) -> Any:
            return list(self.state.get()) if ask else None

        def snapshot_state(self, context: FunctionSnapshotContext) -> None:
            pass

    stream = numbers(2, count=16, per_epoch=4).rebalance().map(Fill()).uid("fill")
    run_job(collect_graph(stream), tmp_path, rescale_at={2: 3, 3: 1})
    with HarnessAttempt(collect_graph(stream), tmp_path) as attempt:
        assert attempt.restored is not None
        assert restored_numbers(attempt.restored.operator("fill"), tmp_path) == [[1, 2, 1, 2]]


@pytest.mark.parametrize("live", [False, True])
def test_what_one_subtask_drops_of_a_union_state_the_others_still_have(tmp_path: Path, live: bool) -> None:
    class Mine(MapFunction, CheckpointedFunction):
        """Keeps the last record of its subtask, and writes only when that changes."""

        def initialize_state(self, context: FunctionInitializationContext) -> None:
            self.state = context.get_operator_state_store().get_union_list_state(NUMBERS)
            self.last: int | None = None

        def map(self, value: int) -> Any:
            self.last = value
            return sorted(self.state.get())

        def snapshot_state(self, context: FunctionSnapshotContext) -> None:
            if self.last is not None:
                self.state.update([self.last])

    def subtask(value: int, subtasks: int) -> int:
        return value % subtasks if value < 4 else 0

    stream = numbers(2, count=8, per_epoch=2).partition_custom(subtask, lambda value: value).map(Mine()).uid("mine")
    got: list[Any] = []
    for _ in range(4):
        with HarnessAttempt(collect_graph(stream), tmp_path, live=live) as attempt:
            if attempt.restored is not None:
                attempt.commit_restored()
            attempt.run_epoch()
            got.append(collected(attempt.graph, attempt.collected))
    # Only the first subtask gets records after 3.
    assert got == [[[], []], [[0, 1]] * 2, [[2, 3]] * 2, [[2, 3, 5]] * 2]


class Raw(KeyedProcessFunction, CheckpointedFunction):
    """Keeps raw state: a partition per subtask, and the keys that each key group has seen."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.parts = sorted(p.get_stream().read() for p in context.get_raw_operator_state_inputs())
        self.groups = {p.get_key_group_id(): p.get_stream().read() for p in context.get_raw_keyed_state_inputs()}
        self.count = context.get_keyed_state_store().get_state(ValueStateDescriptor("count", Types.LONG()))

    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value.key, self.count.value(), self.parts, self.groups

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        out = context.get_raw_operator_state_output()
        out.start_new_partition()
        assert out.write(b"subtask ") == 8
        out.write(str(self.subtask).encode())
        assert out.get_number_of_partitions() == 1
        keyed = context.get_raw_keyed_operator_state_output()
        for group in keyed.get_key_group_list():
            if group % 2:
                keyed.start_new_key_group(group)
                keyed.write(self.groups.get(group, b"") + bytes([group]) * 3)


def test_raw_state_is_redistributed_by_partition_and_by_key_group(tmp_path: Path) -> None:
    records = [(key, n, 1) for n in range(4) for key in "abcdef"]
    stream = events(environment(2), records, per_epoch=6).key_by("key").process(Raw()).uid("raw")
    got = run_job(collect_graph(stream), tmp_path, rescale_at={1: 3, 2: 1})
    assert [r[1] for r in got if r[0] == "a"] == [1, 2, 3, 4]
    epochs = [got[i : i + 6] for i in range(0, 24, 6)]
    assert all(parts == [] and groups == {} for _, _, parts, groups in epochs[0])
    second = {tuple(parts) for _, _, parts, _ in epochs[1]}
    assert second <= {(), (b"subtask 0",), (b"subtask 1",)}
    for n, epoch in enumerate(epochs[1:], start=1):
        groups = {g: data for _, _, _, each in epoch for g, data in each.items()}
        assert all(data == bytes([g]) * 3 * n and g % 2 for g, data in groups.items())
    assert epochs[2][0][2] == [b"subtask 0", b"subtask 1", b"subtask 2"]
    assert set(epochs[2][0][3]) == set(range(1, 16, 2))


def test_wrong_use_of_raw_state(tmp_path: Path) -> None:
    def failing(snapshot: Any, keyed: bool = True) -> Any:
        class Wrong(Raw):
            def snapshot_state(self, context: FunctionSnapshotContext) -> None:
                snapshot(context)

        return events(environment(), [("a", 0, 0)]).key_by("key").process(Wrong())

    with pytest.raises(ConfigurationError, match="key group 99: this subtask has key groups 0 to 15"):
        collect_all(failing(lambda c: c.get_raw_keyed_operator_state_output().start_new_key_group(99)), tmp_path)
    with pytest.raises(ConfigurationError, match="start_new_key_group"):
        collect_all(failing(lambda c: c.get_raw_keyed_operator_state_output().write(b"x")), tmp_path)
    with pytest.raises(ConfigurationError, match="must be bytes, not 'text'"):
        collect_all(failing(lambda c: c.get_raw_operator_state_output().write("text")), tmp_path)

    class Unkeyed(Buffer):
        def snapshot_state(self, context: FunctionSnapshotContext) -> None:
            context.get_raw_keyed_operator_state_output()

    with pytest.raises(ConfigurationError, match="'flatmap' has no raw keyed state"):
        collect_all(numbers(1).flat_map(Unkeyed()), tmp_path)


class ListWriter(CommittingSinkWriter, CheckpointedFunction):
    """Keeps the number of written records in operator state."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._state = context.get_operator_state_store().get_list_state(NUMBERS)
        self._total = sum(self._state)

    def write(self, column: pa.Array) -> None:
        self._total += len(column)

    def prepare_commit(self) -> list[Any]:
        (self._folder / "total").write_text(str(self._total))
        return []

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._state.update([self._total])

    def abort(self) -> None:
        pass


class CountingSink(Sink):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def validate(self, type_info: TypeInformation | None) -> None:
        pass

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> SinkWriter:
        return ListWriter(self._folder)


class RememberingSource(CollectionSource, CheckpointedFunction):
    """Keeps in operator state how many epochs it has read."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._state = context.get_operator_state_store().get_list_state(NUMBERS)
        self._epochs = sum(self._state) + 1

    def read(self, split: Any) -> Any:
        for column, offset in super().read(split):
            yield pa.array([self._epochs] * len(column), type=pa.int64()), offset

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._state.update([self._epochs])


def test_sources_and_sink_writers_have_operator_state(tmp_path: Path) -> None:
    env = environment()
    source = RememberingSource([0] * 6, Types.LONG(), records_per_epoch=2)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "source").uid("source")
    stream.sink_to(CountingSink(tmp_path)).uid("sink")
    assert run_job(collect_graph(stream), tmp_path) == [1, 1, 2, 2, 3, 3]
    assert (tmp_path / "total").read_text() == "6"


def test_a_function_with_state_needs_a_uid() -> None:
    with pytest.raises(MissingUidError, match="FlatMap"):
        collect_graph(numbers(1).flat_map(Buffer())).require_uids()


def test_state_is_not_left_behind_unseen(tmp_path: Path) -> None:
    def graph(function: Any) -> JobGraph:
        return collect_graph(numbers(1).flat_map(function).uid("buffer"))

    with HarnessAttempt(graph(Buffer()), tmp_path) as attempt:
        attempt.run_epoch()
    with (
        pytest.raises(RestoreError, match="operator 'buffer', but the job's operator with this uid keeps no state"),
        HarnessAttempt(graph(lambda v: [v]), tmp_path),
    ):
        pass


def test_errors_of_the_functions_name_the_operator(tmp_path: Path) -> None:
    class Wrong(Buffer):
        def initialize_state(self, context: FunctionInitializationContext) -> None:
            raise RuntimeError("no")

    class WrongLater(Buffer):
        def snapshot_state(self, context: FunctionSnapshotContext) -> None:
            raise RuntimeError("no")

    class WrongValue(Buffer):
        def snapshot_state(self, context: FunctionSnapshotContext) -> None:
            self._stored.update(["text"])

    with pytest.raises(UserFunctionError, match=r"initialize_state\(\) of operator 'buffer' .* RuntimeError: no"):
        collect_all(numbers(1).flat_map(Wrong()).uid("buffer"), tmp_path)
    with pytest.raises(UserFunctionError, match=r"snapshot_state\(\) of operator 'buffer' .* raised RuntimeError: no"):
        collect_all(numbers(1).flat_map(WrongLater()).uid("buffer"), tmp_path)
    with pytest.raises(TypeMismatchError, match=r"operator 'buffer': operator state 'numbers': .*'text'"):
        collect_all(numbers(1).flat_map(WrongValue()).uid("buffer"), tmp_path)


# --- the backend alone ------------------------------------------------------------------------------------------------


def backend(folder: Path, restored: Any = ()) -> OperatorStateBackend:
    return OperatorStateBackend("op", LocalObjectStore(folder), restored)


def test_a_state_has_one_mode_and_type(tmp_path: Path) -> None:
    first = backend(tmp_path)
    first.get_list_state(NUMBERS).add(1)
    assert first.get_list_state(NUMBERS) is first.get_list_state(NUMBERS)
    restored = first.snapshot()
    for again in (first, backend(tmp_path, restored)):
        with pytest.raises(
            StateSchemaError, match=r"'op': operator state 'numbers' was .*SPLIT_DISTRIBUTE.*UNION"
        ) as error:
            again.get_union_list_state(NUMBERS)
        assert "wider" not in str(error.value) and "{" not in str(error.value)
        with pytest.raises(StateSchemaError, match="'numbers' was"):
            again.get_list_state(ListStateDescriptor("numbers", Types.STRING()))
        with pytest.raises(StateSchemaError, match="'numbers' was"):
            again.get_broadcast_state(MapStateDescriptor("numbers", Types.LONG(), Types.LONG()))
    limited = ListStateDescriptor("limited", Types.LONG())
    limited.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())
    for descriptor, message in (
        (ValueStateDescriptor("v", Types.LONG()), "needs a ListStateDescriptor"),
        (limited, "only keyed state can have"),
        (ListStateDescriptor("_raw", Types.LONG()), "cannot be called"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            first.get_list_state(descriptor)  # the first case is not a list


def test_broadcast_state_is_one_for_equal_descriptors(tmp_path: Path) -> None:
    state = backend(tmp_path)
    rules = MapStateDescriptor("rules", Types.LONG(), Types.LONG())
    state.get_broadcast_state(rules).put(1, 2)
    assert state.get_read_only_broadcast_state(rules) is state.get_read_only_broadcast_state(rules)
    assert state.get_broadcast_state(MapStateDescriptor("rules", Types.LONG(), Types.LONG())).get(1) == 2
    with pytest.raises(StateSchemaError, match=r"was BROADCAST of .*LONG.* and is now declared"):
        state.get_broadcast_state(MapStateDescriptor("rules", Types.LONG(), Types.STRING()))
    assert state.get_read_only_broadcast_state(rules).get(1) == 2


@pytest.mark.parametrize(
    ("kind", "keys", "same"),
    [
        (Types.LONG(), [2, 1], 2),
        (Types.DOUBLE(), [0.0, -0.0, 1.5], -0.0),
        (Types.BIG_DEC(), [Decimal("1.10"), Decimal("1.1")], Decimal("1.1")),
        (Types.TUPLE([Types.LONG(), Types.STRING()]), [(1, "a"), (1, None)], (1, None)),
        (Types.ROW_NAMED(["a"], [Types.LONG()]), [Row(a=2), Row(a=1)], Row(1)),
    ],
)
def test_keys_of_broadcast_state(tmp_path: Path, kind: TypeInformation, keys: list[Any], same: Any) -> None:
    rules = MapStateDescriptor("rules", kind, Types.LONG())
    store = backend(tmp_path)
    state, view = store.get_broadcast_state(rules), store.get_read_only_broadcast_state(rules)
    for i, key in enumerate(keys):
        state.put(key, i)
    for each in (state, view, backend(tmp_path, store.snapshot()).get_read_only_broadcast_state(rules)):
        assert list(map(repr, each.keys())) == list(map(repr, keys))
        assert list(each.values()) == [each.get(key) for key in keys] == list(range(len(keys)))
        assert list(each.items()) == list(zip(each.keys(), each.values(), strict=True))
        assert each.contains(same) and not each.is_empty()
    last = view.get(same)
    state.remove(same)
    assert view.get(same) is None and last not in view.values() and not view.contains(same)
    state.clear()
    assert view.is_empty()


@pytest.mark.parametrize("read", ["get", "contains"])
def test_a_key_of_broadcast_state_that_is_none_is_named(tmp_path: Path, read: str) -> None:
    store = backend(tmp_path)
    view = store.get_read_only_broadcast_state(MapStateDescriptor("rules", Types.LONG(), Types.LONG()))
    with pytest.raises(UnsupportedKeyTypeError, match=r"key \[1\] of broadcast state 'rules'"):
        getattr(view, read)([1])
    for write in (lambda: view.put(1, value=2), lambda: view.__setitem__(1, 2), lambda: view.remove(1), view.clear):
        with pytest.raises(ConfigurationError, match="can only be written in process_broadcast_element"):
            write()


def test_a_list_is_what_lists_are(tmp_path: Path) -> None:
    state = backend(tmp_path).get_list_state(NUMBERS)
    assert list(state.get()) == []
    state.add(1)
    state.add_all([2, 3])
    assert list(state) == [1, 2, 3]
    got = state.get()
    got.append(9)  # a copy
    assert list(state) == [1, 2, 3]
    state.update([5])
    assert list(state) == [5]
    state.clear()
    assert list(state) == []


def test_unchanged_state_is_not_written_again(tmp_path: Path) -> None:
    first = backend(tmp_path)
    first.get_list_state(NUMBERS).add_all(list(range(10_000)))
    (handle,) = first.snapshot()
    assert first.snapshot() == (handle,)
    path = file_of(handle.partitions[0])
    assert path is not None
    (tmp_path / path).unlink()
    assert backend(tmp_path, (handle,)).snapshot() == (handle,)  # and not read unless requested
    with pytest.raises(CorruptStateError, match="is missing"):
        backend(tmp_path, (handle,)).get_list_state(NUMBERS)
    (tmp_path / path).write_bytes(b"other")
    with pytest.raises(CorruptStateError, match="does not match its checksum"):
        backend(tmp_path, (handle,)).get_list_state(NUMBERS)


@pytest.mark.parametrize(
    "partition", [{"arrow": "no base64"}, {"arrow": "AAAA"}, {"file": 5}, {}, 7, None, {"arrow": None}]
)
def test_what_is_no_partition_is_refused(tmp_path: Path, partition: Any) -> None:
    handle = OperatorStateHandle(
        "numbers", DistributionMode.SPLIT_DISTRIBUTE, (partition,), {"value": Types.LONG().to_json()}
    )
    with pytest.raises((CorruptStateError, CorruptMetadataError), match=r"operator state|SHA-256"):
        backend(tmp_path, (handle,)).get_list_state(NUMBERS)


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, "0" * 63, ""])
def test_a_file_has_the_name_of_its_checksum(name: str) -> None:
    with pytest.raises(CorruptMetadataError, match="SHA-256"):
        file_of({"file": name})


def test_the_writer_is_part_of_the_name(tmp_path: Path) -> None:
    store, table = LocalObjectStore(tmp_path), pa.table({"value": pa.array(range(50_000))})
    for written_by in ("1-7", "2-7"):
        (partition,) = write_partitions(table, store, split=False, written_by=written_by)
        assert file_of(partition) == f"shared/{written_by}-{partition['file']}.parquet"
        assert read_partitions([partition], table.schema, store, "test").equals(table)
    assert len(list((tmp_path / "shared").glob("*.parquet"))) == 2
    with pytest.raises(CorruptMetadataError, match="writer"):
        file_of({**partition, "by": "../x"})


def test_no_file_is_written_that_no_partition_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.state.files.operator_state.INLINE_BELOW", 0)
    table = pa.table({"value": pa.array([], pa.int64())})
    assert write_partitions(table, LocalObjectStore(tmp_path), split=True) == ()
    assert not list(tmp_path.rglob("*.parquet"))


@given(
    values=st.lists(st.one_of(st.none(), st.text(max_size=50)), max_size=40),
    large=st.booleans(),
    split=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
def test_what_is_written_is_read(tmp_path: Path, values: list[str | None], large: bool, split: bool) -> None:
    store = LocalObjectStore(tmp_path)
    values = values * (1000 if large else 1)
    table = pa.table({"value": pa.array(values, type=pa.string())})
    partitions = write_partitions(table, store, split=split)
    assert len(partitions) == (len(values) if split else 1)
    assert read_partitions(partitions, table.schema, store, "test").column("value").to_pylist() == values
    if split and values:
        some = partitions[1:3] + partitions[:1]
        expected = values[1:3] + values[:1]
        assert read_partitions(some, table.schema, store, "test").column("value").to_pylist() == expected


def passed_on(snapshots: list[tuple[OperatorStateHandle, ...]]) -> list[tuple[OperatorStateHandle, ...]]:
    """Returns what a checkpoint has of the states of subtasks."""
    acknowledged = [SubtaskState(i, operator_state=each).to_json() for i, each in enumerate(snapshots)]
    return [each.operator_state for each in without_copies(map(SubtaskState.from_json, acknowledged))]


@given(
    parallelisms=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    data=st.data(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
def test_all_modes_over_epochs_restores_and_rescales(tmp_path: Path, parallelisms: list[int], data: Any) -> None:
    texts = ListStateDescriptor("split", Types.STRING()), ListStateDescriptor("union", Types.STRING())
    rules = MapStateDescriptor("rules", Types.LONG(), Types.STRING())
    split: list[str] = []
    union: list[str] = []
    broadcast: dict[int, str] = {}
    snapshots: list[Any] = []
    for epoch, parallelism in enumerate(parallelisms):
        given_state = reassign_operator_state(snapshots, parallelism) if snapshots else [()] * parallelism
        subtasks = [backend(tmp_path, state) for state in given_state]
        assert sorted(e for b in subtasks for e in b.get_list_state(texts[0])) == sorted(split)
        assert all(sorted(b.get_union_list_state(texts[1])) == sorted(union) for b in subtasks)
        assert all(dict(b.get_broadcast_state(rules).items()) == broadcast for b in subtasks)
        keys = data.draw(st.dictionaries(st.integers(0, 5), st.sampled_from(["x", "y" * 30_000]), max_size=3))
        gone = data.draw(st.integers(0, 5))
        broadcast = {k: v for k, v in {**broadcast, **keys}.items() if k != gone}
        change = data.draw(st.lists(st.booleans(), min_size=parallelism, max_size=parallelism))
        # What one subtask has dropped, others may still have. They pass it on, but not several times.
        union = [f"{epoch}/{i}" for i in range(parallelism) if change[i]] + ([] if all(change) else union)
        for i, b in enumerate(subtasks):
            new = data.draw(st.lists(st.sampled_from(["a", "b", "c" * 30_000]), max_size=3))
            b.get_list_state(texts[0]).add_all(new)
            split += new
            if change[i]:
                b.get_union_list_state(texts[1]).update([f"{epoch}/{i}"])
            state = b.get_broadcast_state(rules)
            state.put_all(keys)
            state.remove(gone)
        snapshots = passed_on([b.snapshot() for b in subtasks])


def test_rescaled_state_goes_through_collected_records(tmp_path: Path) -> None:
    stream = numbers(3, count=30, per_epoch=6).rebalance().flat_map(Buffer()).uid("buffer")
    graph = collect_graph(stream)
    with HarnessAttempt(graph, tmp_path) as attempt:
        attempt.run_epoch()
        assert collected(graph, attempt.collected) == []
        target = attempt.savepoint()
    with HarnessAttempt(graph, tmp_path, job_id="two", restore_from=target, parallelism=1) as attempt:
        attempt.commit_restored()
        attempt.run_epoch()
        assert [len(chunk) for chunk in collected(attempt.graph, attempt.collected)] == [7, 5]


@pytest.mark.parametrize("live", [False, True])
def test_each_barrier_takes_a_snapshot(tmp_path: Path, live: bool) -> None:
    stream = numbers(1, count=20, per_epoch=4).rebalance().flat_map(Buffer()).uid("buffer")
    graph = collect_graph(stream)
    emitted: list[int] = []
    kept: list[list[int]] = []
    with HarnessAttempt(graph, tmp_path, live=live) as attempt:
        for epoch in attempt.run_epochs():
            emitted += [n for chunk in collected(graph, attempt.collected) for n in chunk]
            kept += restored_numbers(epoch.metadata.operator("buffer"), tmp_path)
            assert sorted(emitted + kept[-1]) == list(range(4 * epoch.checkpoint_id))
        assert attempt.finished
    assert [len(part) for part in kept] == [4, 3, 2, 1, 0]
