"""Timers in columns fire at the same time and in the same order as a TimerQueue with the same files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.state.keys import hash_keys
from tests.examples import examples

from .conftest import touch
from .deferred import Deferred

WINDOWS = Types.TUPLE([Types.LONG(), Types.LONG()])
KEY = Types.STRING()
KEYS = ["a", "b", "c", "Aa", "BB"]

Timers = list[tuple[int, str, tuple[int, int]]]


def in_columns(backend: Any, registered: Timers, until: int) -> Timers:
    timers = backend.get_column_timers("timers", WINDOWS)
    if registered:
        column = KEY.to_arrow([key for _, key, _ in registered])
        seats = backend.touch_column(column, hash_keys(KEY, column))
        moments = list(dict.fromkeys((time, window) for time, _, window in registered))
        codes = np.array([moments.index((time, window)) for time, _, window in registered])
        timers.register(seats, codes, [time for time, _ in moments], [window for _, window in moments])
    fired = []
    for time, window, seats in timers.advance_to(until):
        fired += [(time, key, tuple(window)) for key in KEY.from_arrow(backend.key_context.column(seats))]
    return fired


def per_record(backend: Any, registered: Timers, until: int) -> Timers:
    timers = backend.get_timers("timers", WINDOWS)
    touch(backend, KEY, [key for _, key, _ in registered])
    for time, key, window in registered:
        backend.set_current_key(key)
        timers.set_current_namespace(window)
        timers.register(time)
    return [(time, key, tuple(window)) for time, key, window in timers.advance_to(until)]


TIMERS = st.lists(
    st.builds(lambda end, key: (end, key, (end - 5, end)), st.integers(0, 12), st.sampled_from(KEYS)), max_size=10
)


STEPS = st.lists(
    st.tuples(st.tuples(TIMERS, st.integers(0, 12)), st.sampled_from((None, "", "before", "after"))),
    min_size=1,
    max_size=3,
)
"""Steps, each with whether a snapshot begins before it: None, or how that fails."""


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    epochs=st.lists(st.tuples(STEPS, st.booleans()), min_size=1, max_size=5),
    small=st.booleans(),
)
def test_against_a_timer_queue(make_backend, epochs, small):
    """Snapshots of which nobody reads, and that may fail, change nothing."""
    snapshot = expected = None
    options = {"overlay_rows": 1} if small else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_flinkpy.state.backend.run_aside", Deferred)
        if small:
            patch.setattr("dagster_flinkpy.state.timers.timer_table.LOAD_TIMERS", 1)
        for steps, columns in epochs:
            form = in_columns if columns else per_record
            backend = make_backend(snapshot, key_type=KEY, **options)
            model = make_backend(expected, key_type=KEY)
            for step, fails in steps:
                if fails is not None:
                    Deferred.fails = fails
                    backend.begin_snapshot()
                    Deferred.fails = ""
                assert form(backend, *step) == per_record(model, *step)
            snapshot, expected = backend.snapshot(), model.snapshot()


@pytest.mark.parametrize("fires_between", [False, True])
def test_a_stored_timer_that_is_registered_again_leaves_nothing_when_it_has_fired(make_backend, fires_between):
    timer, others = (3, "a", (0, 4)), [(100, f"k{i}", (0, 4)) for i in range(50)]
    backend = make_backend(key_type=KEY)
    in_columns(backend, [timer, *others], 0)
    backend = make_backend(backend.snapshot(), key_type=KEY)
    if fires_between:
        assert in_columns(backend, [], 3) == [timer]
    assert in_columns(backend, [timer], 4) == [timer]
    snapshot = backend.snapshot()
    for start in range(50, 150, 10):  # until all runs are merged
        backend = make_backend(snapshot, key_type=KEY)
        assert in_columns(backend, [(100, f"k{i}", (0, 4)) for i in range(start, start + 10)], 5) == []
        snapshot = backend.snapshot()


def test_twice_registered_fires_once(make_backend):
    timer = (3, "a", (0, 4))
    assert in_columns(make_backend(key_type=KEY), [timer, timer], 5) == [timer]


def test_timers_are_used_in_one_way(make_backend):
    backend = make_backend(key_type=KEY)
    backend.get_timers("timers", WINDOWS)
    with pytest.raises(ConfigurationError, match="by record and by column"):
        backend.get_column_timers("timers", WINDOWS)


def test_moments_that_have_fired_are_forgotten(make_backend: Any) -> None:
    backend = make_backend(key_type=KEY)
    timers = backend.get_column_timers("timers", WINDOWS)
    column = KEY.to_arrow(["a"])
    seats = backend.touch_column(column, hash_keys(KEY, column))
    for time in (3, 1, 2):
        timers.register(seats, np.zeros(1, dtype=np.int64), [time], [(0, time)])
    assert [time for time, _, _ in timers.advance_to(2)] == [1, 2]
    assert timers.size == 1
    timers.register(seats, np.zeros(1, dtype=np.int64), [2], [(0, 2)])  # again, in the past
    assert [time for time, _, _ in timers.advance_to(5)] == [2, 3]
    assert timers.size == 0
