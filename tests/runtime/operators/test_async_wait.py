"""Asynchronous functions: order, capacity, timeouts, retries, failures."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Row, Time, Types, WatermarkStrategy
from dagster_flinkpy.datastream import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    DataStream,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.async_retry_predicates import (
    empty_result_predicate,
    exception_type_predicate,
    has_exception_predicate,
)
from dagster_flinkpy.datastream.async_retry_strategies import ExponentialBackoffDelayRetryStrategy
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError, UserFunctionError
from dagster_flinkpy.runtime.operators import async_wait_operator
from dagster_flinkpy.testing import run_local
from tests.examples import examples
from tests.runtime.harness import collect_graph, run_job
from tests.runtime.programs import EVENT, environment, events

LONG = Types.LONG()


def numbers(*values: int) -> DataStream:
    return StreamExecutionEnvironment.get_execution_environment().from_collection(list(values), LONG)


def results(stream: DataStream) -> list[Any]:
    (found,) = run_local(stream._upstream.program.environment, stream)
    return found


def callers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("asynchronous calls")]


class Tenfold(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        await asyncio.sleep(0)
        return [value * 10]


class Repeated(AsyncFunction):
    """Returns a record as often as it says, after the more turns of the loop the smaller it is."""

    async def async_invoke(self, value: int) -> list[int]:
        for _ in range(50 - value):
            await asyncio.sleep(0)
        return [value] * (value % 3)


class WithTime(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timestamp()


@settings(max_examples=examples(20))
@given(st.lists(st.integers(0, 49), min_size=1, max_size=30), st.integers(1, 10))
def test_like_a_flat_map_with_event_time(values: list[int], capacity: int) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    sales = Types.ROW_NAMED(["at"], [LONG])
    records = env.from_collection([Row(v) for v in values], sales).assign_timestamps_and_watermarks(by_time)
    records = records.map(lambda row: row.at, LONG)
    ordered = AsyncDataStream.ordered_wait(records, Repeated(), Time.seconds(60), capacity, LONG)
    unordered = AsyncDataStream.unordered_wait(records, Repeated(), Time.seconds(60), capacity, LONG)
    expected = [(v, v) for v in values for _ in range(v % 3)]
    found = run_local(env, ordered.process(WithTime()), unordered.process(WithTime()))
    assert found[0] == expected
    assert sorted(found[1]) == sorted(expected)


def test_results_come_in_the_order_of_completion_or_of_records() -> None:
    class Latest(AsyncFunction):
        def open(self, runtime_context: Any) -> None:
            self.done: dict[int, asyncio.Event] = {}

        async def async_invoke(self, value: int) -> list[int]:
            mine = self.done.setdefault(value, asyncio.Event())
            if value < 3:
                await self.done.setdefault(value + 1, asyncio.Event()).wait()
            mine.set()
            return [value]

    assert results(AsyncDataStream.unordered_wait(numbers(1, 2, 3), Latest(), Time.seconds(60))) == [3, 2, 1]
    assert results(AsyncDataStream.ordered_wait(numbers(1, 2, 3), Latest(), Time.seconds(60))) == [1, 2, 3]


def test_no_more_calls_than_the_capacity() -> None:
    class Counting(AsyncFunction):
        running = 0

        async def async_invoke(self, value: int) -> list[int]:
            self.running += 1
            seen = 0
            for _ in range(5):
                seen = max(seen, self.running)
                await asyncio.sleep(0)
            self.running -= 1
            return [seen]

    seen = results(AsyncDataStream.unordered_wait(numbers(*range(20)), Counting(), Time.seconds(60), capacity=4))
    assert max(seen) == 4


def test_a_timeout_is_answered_by_the_function_or_fails() -> None:
    class Hanging(AsyncFunction):
        async def async_invoke(self, value: int) -> list[int]:
            if value == 2:
                await asyncio.Event().wait()
            return [value]

    class Answering(Hanging):
        def timeout(self, value: int) -> list[int]:
            return [-value]

    assert results(AsyncDataStream.ordered_wait(numbers(1, 2, 3), Answering(), Time.milliseconds(50))) == [1, -2, 3]
    with pytest.raises(UserFunctionError, match=r"^timeout\(\) of operator .* raised TimeoutError: .*\(value: 2\)"):
        results(AsyncDataStream.ordered_wait(numbers(1, 2, 3), Hanging(), Time.milliseconds(50)))


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_a_call_does_when_it_is_cancelled_does_not_count(goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job hung for ever, or failed."""

    class Stubborn(AsyncFunction):
        async def async_invoke(self, value: int) -> list[int]:
            while value == 2:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if not goes_on:
                        raise OSError("the connection is closed") from None
            return [value]

        def timeout(self, value: int) -> list[int]:
            return [-value]

    monkeypatch.setattr(async_wait_operator, "_PATIENCE", 0.01)
    assert results(AsyncDataStream.ordered_wait(numbers(1, 2, 3), Stubborn(), Time.milliseconds(50))) == [1, -2, 3]


def test_no_timeout_is_waited_for() -> None:
    assert results(AsyncDataStream.ordered_wait(numbers(1), Tenfold(), Time.milliseconds(0))) == [10]


class Flaky(AsyncFunction):
    """Fails, or returns nothing, the first times."""

    def __init__(self, failures: int, error: type[Exception] | None) -> None:
        self.failures, self.error, self.calls = failures, error, 0

    async def async_invoke(self, value: int) -> list[int]:
        self.calls += 1
        if self.calls <= self.failures:
            if self.error is not None:
                raise self.error("not yet")
            return []
        return [value, self.calls]


def is_io(error: Exception) -> bool:
    return exception_type_predicate(error, OSError)


@pytest.mark.parametrize("error", [OSError, None])
def test_calls_are_tried_again(error: type[Exception] | None) -> None:
    for strategy in (
        AsyncRetryStrategy.fixed_delay(3, 1, empty_result_predicate, is_io),
        AsyncRetryStrategy.exponential_backoff(3, 1, 4, 2.0, empty_result_predicate, has_exception_predicate),
    ):
        flaky = Flaky(3, error)
        found = AsyncDataStream.ordered_wait_with_retry(numbers(7), flaky, Time.seconds(60), strategy, 1, LONG)
        assert results(found) == [7, 4]


def test_calls_are_not_tried_again_for_ever_nor_after_other_errors() -> None:
    strategy = AsyncRetryStrategy.fixed_delay(2, 1, empty_result_predicate, is_io)

    def attempts(function: AsyncFunction[Any, Any]) -> list[Any]:
        wait = AsyncDataStream.unordered_wait_with_retry
        return results(wait(numbers(7), function, Time.seconds(60), strategy, 1, LONG))

    assert attempts(Flaky(3, None)) == []
    with pytest.raises(UserFunctionError, match="raised OSError: not yet"):
        attempts(Flaky(3, OSError))
    with pytest.raises(UserFunctionError, match="raised ValueError: not yet"):
        attempts(Flaky(1, ValueError))
    with pytest.raises(UserFunctionError, match="raised OSError: not yet"):
        results(AsyncDataStream.unordered_wait(numbers(7), Flaky(1, OSError), Time.seconds(60)))


def test_the_timeout_bounds_all_attempts() -> None:
    strategy = AsyncRetryStrategy.fixed_delay(1_000_000, 3_600_000, empty_result_predicate, None)
    hour = AsyncDataStream.unordered_wait_with_retry(numbers(7), Flaky(2, None), Time.milliseconds(50), strategy)
    with pytest.raises(UserFunctionError, match=r"timeout\(\)"):
        results(hour)


def test_delays_grow_to_their_limit_for_each_record() -> None:
    strategy = ExponentialBackoffDelayRetryStrategy(9, 10, 50, 2.0, empty_result_predicate, None)
    assert [strategy.get_backoff_time_millis(n) for n in (1, 2, 3, 4, 5, 1)] == [10, 20, 40, 50, 50, 10]


class Failing(AsyncFunction):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def async_invoke(self, value: int) -> list[int]:
        if value == 2:
            raise self.error
        await asyncio.Event().wait()
        return []


@pytest.mark.parametrize(
    "error", [ValueError("no"), TimeoutError("no"), asyncio.CancelledError("no"), SystemExit("no"), KeyboardInterrupt()]
)
def test_an_error_ends_the_other_calls_and_names_the_record(error: BaseException) -> None:
    with pytest.raises(UserFunctionError, match=rf"raised {type(error).__name__}") as raised:
        results(AsyncDataStream.unordered_wait(numbers(1, 2, 3), Failing(error), Time.seconds(3600)))
    assert (raised.value.value, "async_invoke()" in str(raised.value)) == ("2", True)
    assert not callers()


@pytest.mark.parametrize("returned", [None, 7, "text", (1, 2), Row(1), {1: 2}])
def test_what_is_no_list_is_refused(returned: Any) -> None:
    class Wrong(AsyncFunction):
        async def async_invoke(self, value: int) -> Any:
            return returned

    with pytest.raises(TypeMismatchError, match=r"async_invoke\(\) of operator .* must return a list"):
        results(AsyncDataStream.ordered_wait(numbers(1), Wrong(), Time.seconds(1)))


def test_in_a_thread_whose_event_loop_runs() -> None:
    async def notebook() -> list[Any]:
        return results(AsyncDataStream.ordered_wait(numbers(1, 2), Tenfold(), Time.seconds(60)))

    assert asyncio.run(notebook()) == [10, 20]


def test_what_functions_leave_running_is_ended() -> None:
    class Leaving(AsyncFunction):
        ended = 0

        async def async_invoke(self, value: int) -> list[int]:
            self.task = asyncio.create_task(self.background())
            await asyncio.sleep(0)
            return [value]

        async def background(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)

    ended: list[int] = []
    assert results(AsyncDataStream.ordered_wait(numbers(1), Leaving(), Time.seconds(60))) == [1]
    assert not callers()


def test_epochs_and_another_parallelism(tmp_path: Path) -> None:
    records = [(f"k{i % 3}", i, i) for i in range(30)]

    class Value(AsyncFunction):
        async def async_invoke(self, value: Any) -> list[Any]:
            await asyncio.sleep(0)
            return [value, value] if value.value % 2 else []

    stream = events(environment(2), records, per_epoch=7).rebalance()
    waited = AsyncDataStream.unordered_wait(stream, Value(), Time.seconds(60), 3, EVENT).uid("wait")
    found = run_job(collect_graph(waited), tmp_path, rescale_at={2: 3})
    assert sorted(row.value for row in found) == sorted(2 * [v for _, _, v in records if v % 2])


WRONG = {
    "not a function": (lambda s: AsyncDataStream.ordered_wait(s, len, Time.seconds(1)), "need an AsyncFunction"),
    "its class": (lambda s: AsyncDataStream.ordered_wait(s, Tenfold, Time.seconds(1)), r"instance, Tenfold\(\)"),
    "not a stream": (lambda s: AsyncDataStream.ordered_wait([1], Tenfold(), Time.seconds(1)), "a DataStream, not"),
    "capacity": (lambda s: AsyncDataStream.ordered_wait(s, Tenfold(), Time.seconds(1), 0), "capacity must be"),
    "seconds": (lambda s: AsyncDataStream.ordered_wait(s, Tenfold(), 10), r"timeout must be a Time.*Time.seconds\(10"),
    "negative": (lambda s: AsyncDataStream.ordered_wait(s, Tenfold(), Time.seconds(-1)), "timeout must be"),
    "strategy": (
        lambda s: AsyncDataStream.ordered_wait_with_retry(s, Tenfold(), Time.seconds(1), None),
        "need an AsyncRetryStrategy",
    ),
    "retries for ever": (
        lambda s: AsyncDataStream.ordered_wait_with_retry(
            s, Tenfold(), Time.seconds(0), AsyncRetryStrategy.fixed_delay(1, 1, empty_result_predicate, None)
        ),
        "need a timeout greater than 0",
    ),
    "attempts": (lambda s: AsyncRetryStrategy.fixed_delay(0, 1, None, None), "max_attempts .* greater than 0, not 0"),
    "delay": (lambda s: AsyncRetryStrategy.exponential_backoff(1, 1, 1, "2", None, None), "multiplier .* not '2'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments(what: str) -> None:
    call, message = WRONG[what]
    with pytest.raises(ConfigurationError, match=message):
        call(numbers(1))


def test_functions_that_are_not_asynchronous() -> None:
    class Plain(AsyncFunction):
        def async_invoke(self, value: int) -> list[int]:  # type: ignore[override]
            return [value]

    class AsyncTimeout(Tenfold):
        async def timeout(self, value: int) -> list[int]:  # type: ignore[override]
            return [value]

    for function, method in ((Plain(), "async_invoke"), (AsyncTimeout(), "timeout")):
        with pytest.raises(ConfigurationError, match=rf"declare {method}\(\)"):
            AsyncDataStream.ordered_wait(numbers(1), function, Time.seconds(1))
