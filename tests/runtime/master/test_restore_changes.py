"""A changed program continues with the state of the operators that kept their uid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import CheckpointedFunction, DataStream, MapFunction, RuntimeExecutionMode
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ListStateDescriptor
from dagster_flinkpy.datastream.window import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
)
from dagster_flinkpy.errors import RestoreError, StateSchemaError
from dagster_flinkpy.orchestration.program import forecast
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, environment, events


class Gap(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return 20


RECORDS = [("a", 1, 1), ("b", 2, 2), ("a", 3, 3), ("a", 4, 4), ("b", 5, 5), ("a", 6, 6)]


def program(*uids: str) -> JobGraph:
    """Returns a program with one counting operator per uid, in this order. Rows name their operator."""
    stream = events(environment(2), RECORDS, per_epoch=3)
    counts = [counted(stream, uid) for uid in uids]
    return collect_graph(counts[0].union(*counts[1:]) if len(counts) > 1 else counts[0])


def counted(stream: DataStream, uid: str) -> DataStream:
    rows = stream.map(lambda v: v, EVENT).key_by("key").process(CountPerKey(), COUNTED).uid(uid)
    return rows.map(lambda row, uid=uid: (f"{uid}/{row[0]}", row[1], row[2]), COUNTED)


def run(graph: JobGraph, folder: Path, **options: Any) -> dict[str, int]:
    """Runs one epoch, and returns the last count of each key."""
    with HarnessAttempt(graph, folder, **options) as attempt:
        attempt.run_epoch()
        rows = collected(attempt.graph, attempt.collected)
    return {name: max(count for other, count, _ in rows if other == name) for name, _, _ in rows}


def test_operators_may_be_reordered_and_added(tmp_path: Path) -> None:
    assert run(program("one", "two"), tmp_path) == {"one/a": 2, "one/b": 1, "two/a": 2, "two/b": 1}
    again = run(program("new", "two", "one"), tmp_path)
    assert again == {"new/a": 2, "new/b": 1, "two/a": 4, "two/b": 2, "one/a": 4, "one/b": 2}


@pytest.mark.parametrize(("parallelism", "allowed"), [(None, True), (1, ["one"]), (3, {"one", "other"})])
def test_operators_may_be_removed_if_their_state_may_be_lost(
    tmp_path: Path, parallelism: int | None, allowed: Any
) -> None:
    run(program("one", "two"), tmp_path)
    with (
        pytest.raises(RestoreError, match=r"operator 'one'.*allow_non_restored_state"),
        HarnessAttempt(program("two"), tmp_path),
    ):
        pass
    with (
        pytest.raises(RestoreError, match=r"operator 'one'.*set allow_non_restored_state to \['one'\]"),
        HarnessAttempt(program("two"), tmp_path, allow_non_restored_state=["two"]),
    ):
        pass
    options = {"allow_non_restored_state": allowed, "parallelism": parallelism}
    assert run(program("two"), tmp_path, **options) == {"two/a": 4, "two/b": 2}


@pytest.mark.parametrize("keyed", [True, False])
def test_the_position_of_a_source_is_not_lost_to_another_operator_with_its_uid(tmp_path: Path, keyed: bool) -> None:
    """All input would be read again, by a source that is new."""
    with HarnessAttempt(collect_graph(events(environment(), RECORDS, per_epoch=3, uid="read")), tmp_path) as attempt:
        attempt.run_epoch()
    stream = events(environment(), RECORDS, per_epoch=3, uid="other")
    stream = stream.key_by("key").process(CountPerKey(), COUNTED) if keyed else stream.map(lambda v: v, EVENT)
    graph = collect_graph(stream.uid("read"))
    with pytest.raises(RestoreError, match=r"operator 'read'.* another uid, or set"), HarnessAttempt(graph, tmp_path):
        pass
    with HarnessAttempt(graph, tmp_path, allow_non_restored_state=["read"]) as attempt:
        attempt.run_epoch()
        assert len(collected(attempt.graph, attempt.collected)) == 3


class Kept(MapFunction, CheckpointedFunction):
    """Keeps a list."""

    def initialize_state(self, context: Any) -> None:
        self._list = context.get_operator_state_store().get_list_state(ListStateDescriptor("list", Types.LONG()))

    def snapshot_state(self, context: Any) -> None:
        self._list.add(1)

    def map(self, value: Any) -> Any:
        return value


def test_keyed_state_is_not_lost_to_an_operator_without_keys(tmp_path: Path) -> None:
    """Its checkpoints would be without it. What a keyed operator does not ask for stays in them, as in Flink."""
    run(program("one"), tmp_path)
    without_keys = collect_graph(events(environment(2), RECORDS, per_epoch=3).map(Kept(), EVENT).uid("one"))
    says = "operator 'one', but the job's operator with this uid has no keyed state"
    with pytest.raises(RestoreError, match=says), HarnessAttempt(without_keys, tmp_path):
        pass
    with HarnessAttempt(without_keys, tmp_path, allow_non_restored_state=["one"]) as attempt:
        attempt.run_epoch()


def test_what_has_changed_is_told_once(tmp_path: Path) -> None:
    def said(*uids: str) -> list[str]:
        lines: list[str] = []
        run(program(*uids), tmp_path, on_progress=lines.append, allow_non_restored_state=["one"])
        return [line for line in lines if "operator" in line or "changed" in line]

    assert said("one", "two") == said("two", "one") == []
    assert said("two", "new") == [
        "what changed since checkpoint 2 of job 'job': 1 added, 1 changed, 1 removed",
        "operator 'new' added; starts empty",
        "operator 'collect' changed: input was map of one, map of two, is now map of new, map of two",
        "operator 'one' removed; its state is dropped (8 rows)",
    ]
    assert said("two", "new") == []


MS = Time.milliseconds
WINDOWS: dict[str, Any] = {
    "windows of event time": lambda: TumblingEventTimeWindows.of(MS(10)),
    "sessions of event time": lambda: EventTimeSessionWindows.with_gap(MS(10)),
    "windows of processing time": lambda: SlidingProcessingTimeWindows.of(MS(7_200_000), MS(3_600_000)),
    "sessions of processing time": lambda: ProcessingTimeSessionWindows.with_gap(MS(3_600_000)),
    "windows of 3 records": lambda: CountTumblingWindowAssigner.of(3),
    "windows of 9 records": lambda: CountTumblingWindowAssigner.of(9),
    "windows of 9 records, one every 3": lambda: CountSlidingWindowAssigner.of(9, 3),
}


def windowed(assigner: Any) -> JobGraph:
    stream = events(environment(), RECORDS, per_epoch=3)
    return collect_graph(stream.key_by("key").window(assigner).sum("value").uid("sums"))


@pytest.mark.short
@pytest.mark.parametrize("before", WINDOWS)
@pytest.mark.parametrize("now", WINDOWS)
def test_windows_of_another_kind_than_those_that_are_open_are_refused(tmp_path: Path, before: str, now: str) -> None:
    """They would stay in state and never fire, although the log says that the state is kept."""
    with HarnessAttempt(windowed(WINDOWS[before]()), tmp_path) as attempt:
        attempt.run_epoch()
    graph = windowed(WINDOWS[now]())
    found = forecast(graph, open_checkpoint(StorageLocation(str(tmp_path / "job"))))
    if before == now:
        assert found.problem is None, found.problem
        with HarnessAttempt(graph, tmp_path) as attempt:
            attempt.run_epoch()
        return
    says = rf"operator 'sums': its state is of {before}, and the program has {now}: the open ones would never fire"
    with pytest.raises(StateSchemaError, match=says) as refused, HarnessAttempt(graph, tmp_path):
        pass
    assert found.problem == str(refused.value)


@pytest.mark.parametrize(
    ("before", "now", "sums"),
    [
        (TumblingEventTimeWindows.of(MS(10)), SlidingEventTimeWindows.of(MS(20), MS(10)), {("a", 4), ("b", 2)}),
        (EventTimeSessionWindows.with_gap(MS(20)), EventTimeSessionWindows.with_dynamic_gap(Gap()), {("a", 14)}),
    ],
)
def test_windows_that_are_open_are_not_lost_if_their_kind_stays(
    tmp_path: Path, before: Any, now: Any, sums: set[tuple[str, int]]
) -> None:
    with HarnessAttempt(windowed(before), tmp_path) as attempt:
        attempt.run_epoch()
    with HarnessAttempt(windowed(now), tmp_path) as attempt:
        attempt.run_epoch()
        assert sums <= {(row.key, row.value) for row in collected(attempt.graph, attempt.collected)}


def test_timers_of_a_process_function_send_no_result_of_a_reduction_that_has_its_uid_now(tmp_path: Path) -> None:
    class Timed(CountPerKey):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(value.time + 2)
            return super().process_element(value, ctx)

    stream = events(environment(), RECORDS, per_epoch=3).key_by("key")
    with HarnessAttempt(collect_graph(stream.process(Timed(), COUNTED).uid("counts")), tmp_path) as attempt:
        attempt.run_epoch()
    stream = events(environment(), RECORDS, per_epoch=3).key_by("key")
    reduced = stream.reduce(lambda a, b: Row(a.key, b.time, a.value + b.value)).uid("counts")
    with HarnessAttempt(collect_graph(reduced), tmp_path) as attempt:
        attempt.run_epoch()
        rows = [tuple(row) for row in collected(attempt.graph, attempt.collected)]
    assert rows == [("a", 4, 4), ("b", 5, 5), ("a", 6, 10)], "a result for each record"


def reduced(mode: RuntimeExecutionMode, reduce: Any) -> JobGraph:
    env = environment()
    env.set_runtime_mode(mode)
    return collect_graph(reduce(events(env, RECORDS, per_epoch=3).key_by("key")).uid("sums"))


@pytest.mark.parametrize(
    "reduce",
    [lambda keyed: keyed.sum("value"), lambda keyed: keyed.reduce(lambda a, b: Row(a.key, a.time, a.value + b.value))],
    ids=["sum", "reduce"],
)
@pytest.mark.parametrize("to_batch", [True, False])
def test_a_job_goes_on_in_another_mode(tmp_path: Path, reduce: Any, to_batch: bool) -> None:
    first, then = RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH
    if not to_batch:
        first, then = then, first
    with HarnessAttempt(reduced(first, reduce), tmp_path) as attempt:
        attempt.run_epoch()
    with HarnessAttempt(reduced(then, reduce), tmp_path) as attempt:
        attempt.run_epoch()
        assert attempt.finished
        rows = [tuple(row) for row in collected(attempt.graph, attempt.collected)]
    last = [("a", 1, 14), ("b", 2, 7)]
    assert rows == (last if to_batch else [("a", 1, 8), ("b", 2, 7), ("a", 1, 14)])
