"""Sessions with the default trigger give what the general operator gives, and each continues from the other's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Row
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import (
    AggregateFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
)
from dagster_flinkpy.datastream.window import (
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SessionWindowTimeGapExtractor,
)
from dagster_flinkpy.errors import UserFunctionError
from dagster_flinkpy.runtime.operators.windows import general_windower
from dagster_flinkpy.state import session_table
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.session_table import SessionTable
from dagster_flinkpy.state_processor import read_savepoint
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, ManualClock, collect_all, collect_graph, collected
from tests.runtime.programs import EVENT, environment, event_time, events

FIRED = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.LIST(Types.LONG())])
STAMPED = Types.TUPLE([Types.LONG(), Types.STRING()])
LATE = OutputTag("late", EVENT)
LONGS = Types.LIST(Types.LONG())


class GeneralSessions(EventTimeSessionWindows):
    """The same windows, in the operator that calls assigner and trigger for each record."""


class GeneralDynamicSessions(DynamicEventTimeSessionWindows):
    """As above."""


class GeneralProcessingTimeSessions(ProcessingTimeSessionWindows):
    """As above."""


class ByValue(SessionWindowTimeGapExtractor):
    def extract(self, element):
        return element.value % 9 + 1


ASSIGNERS: dict[str, tuple[Any, Any]] = {
    "fixed": (EventTimeSessionWindows(6), GeneralSessions(6)),
    "dynamic": (DynamicEventTimeSessionWindows(ByValue()), GeneralDynamicSessions(ByValue())),
}


class InOrder(AggregateFunction):
    """The values, in the order of the calls."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return [*accumulator, value.value]

    def get_result(self, accumulator):
        return [len(accumulator), *accumulator]

    def merge(self, acc_a, acc_b):
        return [*acc_a, -1, *acc_b]


class Mixed(ReduceFunction):
    """A number that depends on the order of the values."""

    def reduce(self, value1, value2):
        return Row(key=value1.key, time=value2.time, value=(31 * value1.value + value2.value) % 10_007)


class Describe(ProcessWindowFunction):
    def process(self, key, context, elements):
        values = [v for e in elements for v in (e if isinstance(e, list) else [e.value])]
        yield key, context.window().start, context.window().end, values


class Ends(Describe):
    """Counts the windows that have ended, over all keys of the subtask."""

    ended = 0

    def clear(self, context):
        Ends.ended += 1


class Stamped(ProcessFunction):
    def process_element(self, value, ctx):
        yield ctx.timestamp(), repr(value)


CONTENTS: dict[str, Any] = {
    "elements": lambda windowed: windowed.process(Describe(), FIRED),
    "aggregated": lambda windowed: windowed.aggregate(InOrder(), accumulator_type=LONGS, output_type=LONGS),
    "aggregated, with a function": lambda windowed: windowed.aggregate(InOrder(), Ends(), LONGS, FIRED),
    "reduced": lambda windowed: windowed.reduce(Mixed()),
    "summed": lambda windowed: windowed.sum("value"),
}


def graph_of(source: Any, assigner: Any, contents: str, lateness: int) -> Any:
    windowed = source.key_by("key").window(assigner).allowed_lateness(lateness).side_output_late_data(LATE)
    fired = CONTENTS[contents](windowed).uid("window")
    late = fired.get_side_output(LATE).process(Stamped(), STAMPED).uid("late")
    return collect_graph(fired.process(Stamped(), STAMPED).uid("fired").union(late))


def run(
    graphs: list[Any], folder: Path, turns: list[int], rescale: dict[int, int], *, live: bool
) -> tuple[list[Any], Any]:
    """Runs epoch after epoch, each with one of the graphs, and returns what comes out in order, and the state.

    Args:
        graphs: The programs.
        folder: Where checkpoints go.
        turns: The graph of each epoch, again and again.
        rescale: Number of the epoch -> parallelism from there on.
        live: Whether tasks live.
    """
    records, job, finished, before = [], 0, False, 1
    while not finished:
        graph, parallelism = graphs[turns[job % len(turns)]], rescale.get(job, before)
        changed = parallelism if parallelism != before else None
        with HarnessAttempt(graph, folder, live=live, parallelism=changed) as attempt:
            if changed is not None and attempt.restored is not None:
                attempt.commit_restored()
            finished = attempt.finished
            while not finished:
                attempt.run_epoch()
                records.append(collected(attempt.graph, attempt.collected))
                finished = attempt.finished
                job += 1
                if turns[job % len(turns)] != turns[(job - 1) % len(turns)] or job in rescale:
                    break
            number = attempt._store.load(attempt._store.retained()[-1]).checkpoint_id
        before = parallelism
    state = {
        (s.uid, s.name): sorted(
            repr({k: v for k, v in row.items() if k not in ("subtask", "expires_at")}) for row in s.to_pylist()
        )
        for s in read_savepoint(str(folder / "job" / f"chk-{number}")).states
    }
    return records, {name: rows for name, rows in state.items() if rows}


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(0, 99)), max_size=60),
    per_epoch=st.integers(1, 25),
    batch_size=st.integers(1, 20),
    disorder=st.sampled_from([1, 1, 4, 100]),
    bound=st.sampled_from([0, 5, 100]),
    assigner=st.sampled_from(sorted(ASSIGNERS)),
    contents=st.sampled_from(sorted(CONTENTS)),
    lateness=st.sampled_from([0, 0, 7]),
    turns=st.lists(st.integers(0, 1), min_size=1, max_size=4),
    rescale=st.dictionaries(st.integers(1, 4), st.integers(1, 3), max_size=2),
    live=st.booleans(),
    full=st.booleans(),
)
def test_the_quick_way_fires_and_stores_what_the_general_one_does(
    records: list[tuple[str, int, int]],
    per_epoch: int,
    batch_size: int,
    disorder: int,
    bound: int,
    assigner: str,
    contents: str,
    lateness: int,
    turns: list[int],
    rescale: dict[int, int],
    live: bool,
    full: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    records = sorted(records, key=lambda record: record[1] // disorder)
    graphs = []
    for each in ASSIGNERS[assigner]:
        source = events(
            environment(), records, per_epoch=per_epoch, batch_size=batch_size, strategy=event_time(bound)
        ).set_parallelism(1)
        graphs.append(graph_of(source, each, contents, lateness))

    def outcome(turns: list[int]) -> Any:
        Ends.ended = 0
        fired, state = run(graphs, tmp_path_factory.mktemp("sessions"), turns, rescale, live=live)
        # Several subtasks write in any order.
        return [sorted(each) if rescale else each for each in fired], state, Ends.ended

    expected = outcome([1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_table, "_SPARE_SESSIONS", 0)  # Ended sessions are forgotten soon.
        patch.setattr(general_windower, "_MANY_WINDOWS", 0)  # Those of each key are kept.
        if full:  # State is written out early, before each batch.
            patch.setattr(ColumnarKeyedStateBackend, "is_full", True)
        assert outcome([0, *turns]) == expected


@pytest.mark.parametrize("contents", ["elements", "summed"])
def test_sessions_that_have_ended_leave_room_in_an_epoch(
    contents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A session of "a" goes on while many of "b" and "c" end.
    records = [(key, time, time) for time in range(0, 400, 4) for key in "abc" if key == "a" or time % 20 == 0]
    numbered: list[tuple[int, int]] = []

    def compact(sessions: SessionTable) -> None:
        before = len(sessions)
        whole(sessions)
        if len(sessions) < before:
            numbered.append((before, len(sessions)))

    whole = SessionTable.compact
    monkeypatch.setattr(SessionTable, "compact", compact)
    monkeypatch.setattr(session_table, "_SPARE_SESSIONS", 0)

    def fired(assigner: Any, folder: str) -> Any:
        source = events(environment(), records, per_epoch=len(records), batch_size=3, strategy=event_time(0))
        return run([graph_of(source, assigner, contents, 0)], tmp_path / folder, [0], {}, live=False)

    quick, general = (fired(each, f"{i}") for i, each in enumerate(ASSIGNERS["fixed"]))
    assert quick == general
    assert len(numbered) > 3


@pytest.mark.parametrize("contents", ["elements", "aggregated, with a function", "summed"])
def test_sessions_of_processing_time(contents: str, tmp_path: Path) -> None:
    records = [("ab"[i % 5 == 4], 0, i) for i in range(12)]
    times = [1, 6, 6, 13, 14, 30, 20, 20, 31, 90, 91, 200]  # The clock is set back once.

    def fired(assigner: Any, folder: str) -> list[Any]:
        clock = ManualClock()
        source = events(environment(), records, per_epoch=1, strategy=WatermarkStrategy.no_watermarks())
        found = []
        graph = graph_of(source, assigner, contents, 0)
        with HarnessAttempt(graph, tmp_path / folder, clock=clock) as attempt:
            for clock.time in times:
                attempt.run_epoch()
                found.append(collected(attempt.graph, attempt.collected))
        return found

    found = fired(ProcessingTimeSessionWindows(8), "quick")
    assert found == fired(GeneralProcessingTimeSessions(8), "general")
    assert sum(map(len, found)) > 3


def test_many_sessions_of_a_key_are_merged_by_one_record(tmp_path: Path) -> None:
    # All but the last record are ten sessions, from the newest to the oldest. They touch the session of the last one.
    records = [("a", 10 * i, i) for i in reversed(range(10))] + [("a", 1, 50)]

    class Long(SessionWindowTimeGapExtractor):
        def extract(self, element):
            return 200 if element.value == 50 else 2

    source = events(environment(), records, batch_size=4, strategy=event_time(1000))
    windowed = source.key_by("key").window(EventTimeSessionWindows.with_dynamic_gap(Long()))
    fired = windowed.aggregate(InOrder(), accumulator_type=LONGS, output_type=LONGS)
    (values,) = collect_all(fired, tmp_path)
    assert [value for value in values[1:] if value != -1] == [*range(10), 50]


def test_a_session_without_event_time_is_an_error(tmp_path: Path) -> None:
    source = events(environment(), [("a", 1, 1)], strategy=WatermarkStrategy.no_watermarks())
    windowed = source.key_by("key").window(EventTimeSessionWindows(5))
    with pytest.raises(UserFunctionError, match="has no event time"):
        collect_all(windowed.reduce(Mixed()), tmp_path)
