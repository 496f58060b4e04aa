from __future__ import annotations

import shutil
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.reports.job_metrics import operator_metrics
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext
from dagster_flinkpy.datastream.checkpointing.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import (
    CheckpointError,
    ConditionalWritesUnsupportedError,
    ConfigurationError,
    MissingUidError,
    RestoreError,
    StorageError,
)
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, collect_graph, collected, random_order, run_job
from tests.runtime.master.jobs import RECORDS, counted_graph, run_epochs, sunk
from tests.runtime.programs import COUNTED, EVENT, environment, events

# --- Arroyo's shape: whatever the epochs and the parallelism, the output is that of one straight run ------------------

BUCKET = 20


class Buckets(KeyedProcessFunction):
    """Sums per bucket of time, which a timer emits. Uses three kinds of state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sums = runtime_context.get_map_state(MapStateDescriptor("sums", Types.LONG(), Types.LONG()))
        self._values = runtime_context.get_list_state(ListStateDescriptor("values", Types.LONG()))
        self._buckets = runtime_context.get_state(ValueStateDescriptor("buckets", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        end = value.time // BUCKET * BUCKET + BUCKET
        if not self._sums.contains(end):
            ctx.timer_service().register_event_time_timer(end)
        self._sums.put(end, (self._sums.get(end) or 0) + value.value)
        self._values.add(value.value)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        number = (self._buckets.value() or 0) + 1
        self._buckets.update(number)
        yield ctx.get_current_key(), number, self._sums.get(timestamp)
        self._sums.remove(timestamp)
        if self._sums.is_empty():
            yield ctx.get_current_key(), -1, sum(self._values.get())
            self._values.clear()


def pipeline(records: list[tuple[str, int, int]], per_epoch: int | None, parallelism: int) -> JobGraph:
    env = environment(parallelism)
    keyed = events(env, records, per_epoch=per_epoch).map(lambda v: v, EVENT).uid("map").key_by("key")
    buckets = keyed.process(Buckets(), COUNTED).uid("buckets")
    windows = keyed.window(TumblingEventTimeWindows(BUCKET)).reduce(lambda a, b: Row(a.key, 0, a.value + b.value))
    return collect_graph(
        buckets.union(windows.uid("windows").map(lambda v: (v.key, -2, v.value), COUNTED).uid("window_rows"))
    )


def timed(steps: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Returns records with their times, of steps with the pauses before them."""
    times = accumulate(pause for _, pause, _ in steps)
    return [(key, time, value) for (key, _, value), time in zip(steps, times, strict=True)]


steps = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 15), st.integers(-9, 9)), min_size=1, max_size=30)


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=steps,
    per_epoch=st.integers(2, 12),
    parallelism=st.integers(1, 4),
    rescales=st.dictionaries(st.integers(1, 8), st.integers(1, 4), max_size=3),
    seed=st.integers(0, 99),
    live=st.booleans(),
)
# The last record is read next to a subtask whose input has ended, after a gate that was restored ahead of both.
@example(
    steps=[
        ("a", p, v) for p, v in zip([14] * 3 + [0] * 3 + [11] + [0] * 5 + [14], [0] * 5 + [3] + [0] * 7, strict=True)
    ],
    per_epoch=3,
    parallelism=1,
    rescales={1: 4, 4: 2},
    seed=0,
    live=False,
)
def test_epochs_and_rescales_change_no_output(
    steps: list[tuple[str, int, int]],
    per_epoch: int,
    parallelism: int,
    rescales: dict[int, int],
    seed: int,
    live: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    records = timed(steps)
    straight = run_job(pipeline(records, None, 1), tmp_path_factory.mktemp("straight"))
    graph = pipeline(records, per_epoch, parallelism)
    folder, order = tmp_path_factory.mktemp("rescaled"), random_order(seed)
    rescaled = run_job(graph, folder, rescale_at=rescales, order=order, live=live)
    sums = [row for row in straight if row[1] != -1]
    assert sorted(row for row in rescaled if row[1] != -1) == sorted(sums)
    # When a key falls silent depends on what is read together. What it has seen does not.
    for rows in (straight, rescaled):
        seen = {key: sum(v for k, n, v in rows if (k, n) == (key, -1)) for key in "abcde"}
        assert seen == {key: sum(v for k, _, v in records if k == key) for key in "abcde"}


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=steps,
    parallelism=st.integers(1, 3),
    unaligned=st.booleans(),
    seed=st.integers(0, 99),
    live=st.booleans(),
)
# A timer removes the only sum, which no snapshot has; the next one is put after a barrier.
@example(
    steps=[("a", 54, 0), ("a", 0, 0), ("a", 0, 0), ("e", 15, 0), ("a", 0, -8), *[("a", 0, 0)] * 11],
    parallelism=1,
    unaligned=False,
    seed=0,
    live=True,
)
def test_barriers_and_unaligned_checkpoints_change_no_output(
    steps: list[tuple[str, int, int]],
    parallelism: int,
    unaligned: bool,
    seed: int,
    live: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    records = timed(steps)
    straight = run_job(pipeline(records, None, 1), tmp_path_factory.mktemp("straight"))
    graph, folder, rows = pipeline(records, 4, parallelism), tmp_path_factory.mktemp("barriers"), []
    config = {"checkpointing": CoordinatorConfig(unaligned=unaligned)}
    finished = False
    while not finished:
        with HarnessAttempt(graph, folder, order=random_order(seed), live=live, config=config) as attempt:
            for _ in attempt.run_epochs(2):
                rows += collected(attempt.graph, attempt.collected)
            finished = attempt.finished
    assert sorted(row for row in rows if row[1] != -1) == sorted(row for row in straight if row[1] != -1)


# --- restore and rescale ----------------------------------------------------------------------------------------------


def test_another_attempt_goes_on_where_the_last_checkpoint_is(tmp_path: Path) -> None:
    graph = counted_graph()
    first = run_epochs(graph, tmp_path, 1)
    assert sorted(first) == sorted((f"k{k}", n, n) for k in range(4) for n in (1, 2))
    rest = run_epochs(graph, tmp_path, 2)
    assert sorted(rest) == sorted((f"k{k}", n, n) for k in range(4) for n in (3, 4, 5, 6))
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert attempt.finished


def test_each_attempt_may_have_another_state_backend(tmp_path: Path) -> None:
    graph, records = counted_graph(), []
    for backend, parallelism in ((StateBackendType.HASHMAP, 2), (StateBackendType.COLUMNAR, 3), (None, 1)):
        checkpointing = CoordinatorConfig(state_backend=backend or StateBackendType.HASHMAP)
        records += run_epochs(graph, tmp_path, 1, config={"checkpointing": checkpointing}, parallelism=parallelism)
    assert sorted(records) == sorted((f"k{k}", n, n) for k in range(4) for n in range(1, 7))


def test_tasks_get_the_limit_of_memory_and_a_checkpoint_says_what_they_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[int | None] = set()
    flush = ColumnarKeyedStateBackend.flush

    def counted_flush(backend: ColumnarKeyedStateBackend) -> None:
        flushed.add(backend._memory.size)
        flush(backend)

    monkeypatch.setattr(ColumnarKeyedStateBackend, "flush", counted_flush)
    records, used = [], []
    for limit in (None, 1):
        config = {"checkpointing": CoordinatorConfig(managed_memory=limit)}
        with HarnessAttempt(counted_graph(), tmp_path / str(limit), config=config) as attempt:
            operator = attempt.run_epoch().metadata.operator("count")
            records.append(sorted(collected(attempt.graph, attempt.collected)))
        used.append([each["managedMemoryUsed"] for each in operator_metrics(operator).subtasks])
    assert 0 < min(used[0]) <= max(used[0]) < 10_000
    assert used[1] == [0, 0]
    assert records[0] == records[1]
    assert flushed == {1}


def test_reports_count_records_and_keys(tmp_path: Path) -> None:
    with HarnessAttempt(counted_graph(), tmp_path) as attempt:
        epoch = attempt.run_epoch()
    count = epoch.operator("count")
    assert (epoch.checkpoint_id, count.records_in, count.records_out, count.keys) == (1, 8, 8, 4)
    assert epoch.operator("events").records_out == 8
    assert count.watermark == 29  # the lesser of the two channels
    assert [s.key_groups for s in count.subtasks] == [(0, 7), (8, 15)]
    assert Path(epoch.metadata_path.removeprefix("file://")).read_bytes()
    with pytest.raises(ConfigurationError, match="'gone'"):
        epoch.operator("gone")


def test_a_derived_max_parallelism_gives_way_to_the_stored_one(tmp_path: Path) -> None:
    run_epochs(counted_graph(parallelism=1, max_parallelism=None), tmp_path, 1)
    wide = counted_graph(parallelism=100, max_parallelism=None)
    assert wide.vertex("count").max_parallelism == 256
    with HarnessAttempt(wide, tmp_path) as attempt:
        assert attempt.graph.vertex("count").max_parallelism == 128


def test_a_max_parallelism_that_was_set_must_be_the_stored_one(tmp_path: Path) -> None:
    run_epochs(counted_graph(max_parallelism=16), tmp_path, 1)
    with pytest.raises(RestoreError, match=r"sets max parallelism 32.* has 16 key groups"):
        run_epochs(counted_graph(max_parallelism=32), tmp_path, 1)


def test_a_rescale_stays_until_the_next_one(tmp_path: Path) -> None:
    graph = counted_graph()
    run_epochs(graph, tmp_path, 1)
    with HarnessAttempt(graph, tmp_path, parallelism=3) as attempt:
        rescaled = attempt.commit_restored()
        assert rescaled.metadata.properties["parallelism"] == 3
    said: list[str] = []
    with HarnessAttempt(graph, tmp_path, on_progress=said.append) as attempt:
        assert attempt.graph.vertex("count").parallelism == 3
        assert len(attempt.run_epoch().operator("count").subtasks) == 3
    assert any("parallelism 3" in line and "takes precedence over the program's" in line for line in said)
    with HarnessAttempt(graph, tmp_path, parallelism=1) as attempt:
        attempt.run_epoch()
        assert attempt.graph.vertex("count").parallelism == 1


def test_the_parallelism_of_the_program_holds_until_a_rescale(tmp_path: Path) -> None:
    run_epochs(counted_graph(parallelism=1), tmp_path, 1)
    said: list[str] = []
    with HarnessAttempt(counted_graph(parallelism=3), tmp_path, on_progress=said.append) as attempt:
        assert len(attempt.run_epoch().operator("count").subtasks) == 3
    assert not any("precedence" in line for line in said)


def test_there_is_nothing_to_complete_without_restored_state(tmp_path: Path) -> None:
    with (
        HarnessAttempt(counted_graph(), tmp_path) as attempt,
        pytest.raises(RestoreError, match="no checkpoint to restore"),
    ):
        attempt.commit_restored()


@pytest.mark.parametrize("name", ["chk-1", "chk-1/_metadata", "{folder}/job/chk-1", "file://{folder}/job/chk-1/"])
def test_a_retained_checkpoint_can_be_restored(tmp_path: Path, name: str) -> None:
    graph, config = counted_graph(), {"checkpointing": CoordinatorConfig(num_retained=5)}
    first = run_epochs(graph, tmp_path, 3, config=config)
    with HarnessAttempt(graph, tmp_path, config=config, restore_from=name.format(folder=tmp_path)) as attempt:
        again = attempt.run_epoch()
        assert (again.checkpoint_id, again.metadata.parent_id) == (4, 1)
        assert attempt.run_epoch().metadata.parent_id == 4
        assert sorted(collected(attempt.graph, attempt.collected)) == sorted(first[16:])


def test_a_checkpoint_that_is_gone_is_answered_with_those_kept(tmp_path: Path) -> None:
    graph = counted_graph()
    run_epochs(graph, tmp_path, 2)
    with pytest.raises(RestoreError, match=r"no checkpoint 'chk-1'; it keeps chk-2"):
        run_epochs(graph, tmp_path, 1, restore_from="chk-1")


def test_a_checkpoint_that_never_completed_cannot_be_restored(tmp_path: Path) -> None:
    """Its state includes records that its sinks never committed."""

    class Dies(HarnessAttempt):
        def _create_metadata(self, write: Any) -> Any:
            metadata = super()._create_metadata(write)
            self._store.write_metadata(self._attempt, metadata)
            raise KeyboardInterrupt

    graph, sink = sunk(tmp_path)
    with HarnessAttempt(graph, tmp_path) as attempt:
        attempt.run_epoch()
    with pytest.raises(KeyboardInterrupt), Dies(graph, tmp_path) as attempt:
        attempt.run_epoch()
    assert (tmp_path / "job/chk-2/_metadata").exists()
    with pytest.raises(RestoreError, match=r"no checkpoint 'chk-2'; it keeps chk-1"):
        run_epochs(graph, tmp_path, 1, restore_from="chk-2")
    with HarnessAttempt(graph, tmp_path) as attempt:
        while not attempt.finished:
            attempt.run_epoch()
    assert sink.rows() == sorted(RECORDS)


def test_a_savepoint_may_be_moved_restored_elsewhere_and_deleted(tmp_path: Path) -> None:
    graph, sink = sunk(tmp_path)
    with HarnessAttempt(graph, tmp_path / "one") as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
        savepoint = attempt.savepoint(str(tmp_path / "savepoints"))
    moved = tmp_path / "moved"
    shutil.move(savepoint.removeprefix("file://"), moved)
    shutil.rmtree(tmp_path / "one")
    with HarnessAttempt(graph, tmp_path / "two", restore_from=str(moved), parallelism=3) as attempt:
        assert attempt.restored is not None
        assert not any(s.committables for o in attempt.restored.operators for s in o.subtasks)
        restored = attempt.commit_restored()
        assert (restored.checkpoint_id, restored.metadata.parent_id) == (3, 2)
    shutil.rmtree(moved)
    with HarnessAttempt(graph, tmp_path / "two") as attempt:
        attempt.run_epoch()
        assert attempt.finished
    assert sink.rows() == sorted(RECORDS)


class _Remember(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self._seen.update({"value": value.value})


def test_pickled_state_of_a_foreign_savepoint_is_restored_only_if_that_is_allowed(tmp_path: Path) -> None:
    env = environment()
    events(env, [("a", 1, 1)]).uid("events").key_by("key").process(_Remember()).uid("remember")
    graph = env.get_job_graph()
    with HarnessAttempt(graph, tmp_path / "one") as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint()
    with HarnessAttempt(graph, tmp_path / "one", restore_from=savepoint) as attempt:  # the job's own
        assert attempt.restored is not None
    with (
        pytest.raises(RestoreError, match=r"pickled state .*flinkpy savepoint restore --allow-pickled-state"),
        HarnessAttempt(graph, tmp_path / "two", restore_from=savepoint),
    ):
        pass
    with HarnessAttempt(graph, tmp_path / "two", restore_from=savepoint, allow_pickled_state=True) as attempt:
        assert attempt.restored is not None


def test_a_savepoint_keeps_keyed_state(tmp_path: Path) -> None:
    graph = counted_graph()
    with HarnessAttempt(graph, tmp_path) as attempt:
        with pytest.raises(CheckpointError, match="no completed checkpoint"):
            attempt.savepoint()
        attempt.run_epoch()
        savepoint = attempt.savepoint()
    records = run_epochs(graph, tmp_path / "other", 1, restore_from=savepoint, parallelism=4)
    assert sorted(records) == sorted((f"k{k}", n, n) for k in range(4) for n in (3, 4))


def test_state_of_a_removed_operator_is_refused_or_left_behind(tmp_path: Path) -> None:
    run_epochs(counted_graph(), tmp_path, 1)
    renamed = counted_graph(uid="renamed")
    with pytest.raises(RestoreError, match=r"state for operator 'count'.*allow_non_restored_state"):
        run_epochs(renamed, tmp_path, 1)
    lines: list[str] = []
    records = run_epochs(renamed, tmp_path, 1, allow_non_restored_state=True, on_progress=lines.append)
    assert sorted(records) == sorted((f"k{k}", n, n) for k in range(4) for n in (1, 2))
    assert "operator 'count' removed; its state is dropped (8 rows)" in lines


# --- what is refused before anything runs -----------------------------------------------------------------------------


def test_stateful_operators_need_uids(tmp_path: Path) -> None:
    stream = environment().from_collection([1], Types.LONG())
    with pytest.raises(MissingUidError):
        HarnessAttempt(collect_graph(stream), tmp_path)
    run_epochs(collect_graph(stream), tmp_path, 1, require_uids=False)


def test_a_store_that_ignores_conditions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LocalObjectStore.put
    monkeypatch.setattr(LocalObjectStore, "put", lambda self, key, data, **conditions: put(self, key, data))
    with pytest.raises(ConditionalWritesUnsupportedError, match="does not honour conditional writes"):
        run_epochs(counted_graph(), tmp_path, 1)
    assert not (tmp_path / "job").exists()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError, match=r"cannot write in .*file: it is a file"):
        run_epochs(counted_graph(), tmp_path / "file" / "checkpoints", 1)
