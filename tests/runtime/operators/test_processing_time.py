from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_flinkpy.datastream import KeyedCoProcessFunction, KeyedProcessFunction, ProcessFunction, TimeDomain
from dagster_flinkpy.errors import ConfigurationError, PastTimerError
from tests.runtime.harness import HarnessAttempt, ManualClock, collect_all, collect_graph, collected
from tests.runtime.programs import environment, events


class Scripted(KeyedProcessFunction):
    """Its records are commands: register (value >= 0) or delete (value < 0) the timer for that time."""

    def __init__(self, clock: ManualClock | None = None, after: int = 0) -> None:
        self._clock, self._after = clock, after

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        service = ctx.timer_service()
        if value.value < 0:
            service.delete_processing_time_timer(-value.value)
        else:
            service.register_processing_time_timer(value.value)
        if self._clock is not None:
            self._clock.time = self._after
        yield value.key, "now", service.current_processing_time()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), ctx.time_domain().name, timestamp, ctx.timestamp()


def timers(records: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [r for r in records if r[1] != "now"]


def epochs(
    folder: Path, function: Any, per_epoch: list[list[tuple[str, int, int]]], times: list[int], parallelisms: list[int]
) -> list[list[tuple[Any, ...]]]:
    """Runs each epoch in a separate attempt, at its time and parallelism."""
    clock = function._clock or ManualClock()
    got = []
    for n in range(len(per_epoch)):
        source = events(environment(), [r for each in per_epoch for r in each], per_epoch=len(per_epoch[0]))
        graph = collect_graph(source.key_by("key").process(function).uid("timers"))
        clock.time = times[n]
        with HarnessAttempt(graph, folder, clock=clock, parallelism=parallelisms[n]) as attempt:
            if n:
                attempt.commit_restored()
            attempt.run_epoch()
            got.append(collected(attempt.graph, attempt.collected))
    return got


def test_timers_fire_once_when_their_time_has_passed_and_survive_a_rescale(tmp_path: Path) -> None:
    first = [("a", 1, 100), ("a", 2, 100), ("b", 3, 100), ("b", 4, 300), ("c", 5, 200), ("c", 6, -200)]
    idle = [("z", n, 10_000) for n in range(10, 16)]
    got = epochs(tmp_path, Scripted(), [first, idle, idle, idle], [0, 100, 101, 999], [2, 3, 1, 2])
    assert timers(got[0]) == []
    assert timers(got[1]) == []  # due after its time, not at its time
    fired = "PROCESSING_TIME"
    assert sorted(timers(got[2])) == [("a", fired, 100, 100), ("b", fired, 100, 100)]
    assert timers(got[3]) == [("b", fired, 300, 300)]


def test_a_timer_fires_after_the_batch_in_which_it_became_due(tmp_path: Path) -> None:
    clock = ManualClock()
    records = [("a", 1, 50), ("a", 2, 500), ("a", 3, 501)]
    (got,) = epochs(tmp_path, Scripted(clock, after=51), [records], [0], [1])
    # One batch of three records, then the timer, all in one epoch.
    assert got == [("a", "now", 51)] * 3 + [("a", "PROCESSING_TIME", 50, 50)]


def test_timers_are_due_in_order_of_time_and_may_register_more(tmp_path: Path) -> None:
    class Chain(Scripted):
        def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
            if timestamp < 40:
                ctx.timer_service().register_processing_time_timer(timestamp + 15)
            yield timestamp

    got = epochs(
        tmp_path, Chain(), [[("a", 1, 30), ("a", 2, 10)], [("a", 3, 10_000), ("a", 4, 10_000)]], [0, 50], [1, 1]
    )
    assert [r for r in got[1] if isinstance(r, int)] == [10, 25, 30, 40, 45]


def test_timers_of_both_times_are_apart(tmp_path: Path) -> None:
    clock = ManualClock(10)

    class Both(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_event_time_timer(7)
            ctx.timer_service().register_processing_time_timer(7)
            ctx.timer_service().register_processing_time_timer(8)
            ctx.timer_service().delete_event_time_timer(8)

        def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
            assert isinstance(ctx.time_domain(), TimeDomain)
            yield ctx.time_domain().name, timestamp

    stream = events(environment(), [("a", 5, 0)]).key_by("key").process(Both())
    graph = collect_graph(stream)
    with HarnessAttempt(graph, tmp_path, clock=clock, require_uids=False) as attempt:
        attempt.run_epoch()
        got = collected(attempt.graph, attempt.collected)
    assert got == [("PROCESSING_TIME", 7), ("PROCESSING_TIME", 8), ("EVENT_TIME", 7)]


# --- strict programs --------------------------------------------------------------------------------------------------


class Registers(KeyedProcessFunction):
    """Registers a timer when it sees a record of value 1.

    Args:
        kind: ``event`` or ``processing``.
        time: Time of the timer.
    """

    def __init__(self, kind: str, time: Any) -> None:
        self._kind, self._time = kind, time

    def process_element(self, value: Any, ctx: Any) -> None:
        if value.value:
            getattr(ctx.timer_service(), f"register_{self._kind}_time_timer")(self._time)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp, ctx.time_domain().name


def registered(folder: Path, kind: str, time: Any, *, strict: bool) -> list[Any]:
    """Registers a timer of key b at watermark 99 and clock 1000, and returns the output."""
    env = environment()
    env.get_config().set_strict(strict)
    stream = events(env, [("a", 100, 0), ("b", 101, 1)], batch_size=1)
    graph = collect_graph(stream.key_by("key").process(Registers(kind, time)).uid("op"))
    with HarnessAttempt(graph, folder, clock=ManualClock(1000)) as attempt:
        attempt.run_epoch()
        return collected(attempt.graph, attempt.collected)


PAST = [
    ("event", 99, "event-time timer 99 is not after the watermark, 99"),
    ("event", -5, "event-time timer -5 is not after"),
    ("processing", 999, "processing-time timer 999 is before the current time, 1000"),
]


@pytest.mark.parametrize(("kind", "time", "message"), PAST)
def test_a_timer_in_the_past_fires_at_once_or_is_refused_by_a_strict_program(
    tmp_path: Path, kind: str, time: int, message: str
) -> None:
    assert registered(tmp_path / "lax", kind, time, strict=False) == [("b", time, f"{kind.upper()}_TIME")]
    with pytest.raises(PastTimerError, match=rf"^operator 'op', key 'b': {message}.*pipeline.strict"):
        registered(tmp_path / "strict", kind, time, strict=True)


def test_a_strict_program_has_timers_of_the_future(tmp_path: Path) -> None:
    assert registered(tmp_path / "event", "event", 100, strict=True) == [("b", 100, "EVENT_TIME")]
    assert registered(tmp_path / "processing", "processing", 1000, strict=True) == []


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["event", "processing"])
@pytest.mark.parametrize("time", [1.5, "soon", None, 2**63, -(2**63) - 1])
def test_a_time_that_is_no_long_is_refused(tmp_path: Path, kind: str, time: Any, strict: bool) -> None:
    with pytest.raises(ConfigurationError, match=r"timer of key 'b': its time is .*64-bit int"):
        registered(tmp_path, kind, time, strict=strict)


def test_a_time_may_be_an_integer_of_numpy(tmp_path: Path) -> None:
    assert registered(tmp_path, "event", np.int32(200), strict=True) == [("b", 200, "EVENT_TIME")]


def test_timers_that_are_pending_when_the_input_ends_do_not_fire(tmp_path: Path) -> None:
    stream = events(environment(), [("a", 1, 2**40 * 1000)]).key_by("key").process(Scripted())
    assert timers(collect_all(stream, tmp_path)) == []


def test_timers_of_two_inputs(tmp_path: Path) -> None:
    class Co(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_processing_time_timer(5)

        def process_element2(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().delete_processing_time_timer(5)

        def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
            yield ctx.get_current_key(), ctx.time_domain().name

    env = environment()
    left = events(env, [("a", 1, 0), ("b", 1, 0)], uid="left")
    right = events(env, [("b", 1, 0)], uid="right")
    graph = collect_graph(left.key_by("key").connect(right.key_by("key")).process(Co()))
    with HarnessAttempt(graph, tmp_path, clock=ManualClock(5), require_uids=False) as attempt:
        attempt.run_epoch()
        assert collected(attempt.graph, attempt.collected) == []
    later = HarnessAttempt(graph, tmp_path, clock=ManualClock(6), require_uids=False)
    with later as attempt:
        attempt.run_epoch()
        assert collected(attempt.graph, attempt.collected) == [("a", "PROCESSING_TIME")]


def test_a_stream_without_keys_has_no_timers(tmp_path: Path) -> None:
    class Wrong(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_processing_time_timer(1)

    with pytest.raises(ConfigurationError, match=r"'process' registers a timer, but its stream has no keys"):
        collect_all(events(environment(), [("a", 1, 1)]).process(Wrong()), tmp_path)


@pytest.mark.parametrize("timestamp", ["5", 5.5, None, True, 2**63, -(2**63) - 1])
def test_the_time_of_a_timer_is_a_whole_number_of_milliseconds(tmp_path: Path, timestamp: Any) -> None:
    class Wrong(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_processing_time_timer(timestamp)

    with pytest.raises(ConfigurationError, match=r"timer of key 'a'.* milliseconds"):
        collect_all(events(environment(), [("a", 1, 1)]).key_by("key").process(Wrong()), tmp_path)
