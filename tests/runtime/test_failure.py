"""User functions that fail: the error says what happened, and where."""

from __future__ import annotations

import builtins
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy import errors
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from dagster_flinkpy.datastream import KeyedProcessFunction, ProcessFunction
from dagster_flinkpy.datastream.data_stream import DataStream
from dagster_flinkpy.errors import (
    FlinkPyError,
    PythonWorkerLostError,
    SegmentLostError,
    StorageError,
    TypeMismatchError,
    UserFunctionError,
    message_of,
    shorten,
)
from dagster_flinkpy.orchestration.failure import as_failure
from dagster_flinkpy.runtime import failure
from dagster_flinkpy.runtime.failure import (
    TaskError,
    error_from_json,
    error_in_task,
    error_to_json,
    reported,
    user_error,
)
from tests.runtime.harness import HarnessAttempt, collect_graph
from tests.runtime.programs import EVENT, environment, events

RECORDS = [("a", 0, 1), ("b", 1, 2), ("a", 2, 3)]
LONG = 5_000_000
GROUP = "BaseExceptionGroup: both (1 sub-exception)" if sys.version_info >= (3, 11) else "Own: a group"


@pytest.fixture(autouse=True)
def tasks_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tasks do what they do in a worker, where an interruption is only an error of the function."""
    monkeypatch.setattr(failure, "on_worker", lambda: True)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def raise_mute() -> None:
    raise Mute


def raise_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("not to be pickled")


class Own(BaseException):
    """An exception of a user that is no Exception."""


class Foreign(StorageError):
    """A user's class below one of the library's."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.bucket, self.lock = "a", threading.Lock()


def raise_deep() -> None:
    raise_deep()


def raise_group() -> None:
    group = getattr(builtins, "BaseExceptionGroup", None)  # since Python 3.11
    raise Own("a group") if group is None else group("both", [SystemExit(1)])


def raises(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


def raise_long() -> None:
    raise ValueError("x" * LONG)


def at(key: str, action: Callable[[], Any]) -> Callable[[Any], Any]:
    def function(event: Any) -> Any:
        if event.key == key:
            action()
        return event

    return function


class Process(ProcessFunction):
    def __init__(self, action: Callable[[Any], Any]) -> None:
        self._action = action

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self._action(value)


class KeyedProcess(KeyedProcessFunction):
    def __init__(self, action: Callable[[Any], Any]) -> None:
        self._action = action

    def process_element(self, value: Any, ctx: Any) -> Any:
        return [self._action(value)]


def as_map(stream: DataStream, function: Callable[[Any], Any]) -> DataStream:
    return stream.map(function, EVENT)


def as_filter(stream: DataStream, function: Callable[[Any], Any]) -> DataStream:
    return stream.filter(lambda event: function(event) is not None)


def as_flat_map(stream: DataStream, function: Callable[[Any], Any]) -> DataStream:
    return stream.flat_map(lambda event: [function(event)], EVENT)


def as_keyed_process(stream: DataStream, function: Callable[[Any], Any]) -> DataStream:
    return stream.key_by(lambda event: event.key, Types.STRING()).process(KeyedProcess(function), EVENT)


def as_key_by(stream: DataStream, function: Callable[[Any], Any]) -> DataStream:
    return stream.key_by(lambda event: function(event).key, Types.STRING()).process(KeyedProcess(lambda e: e), EVENT)


def fail(folder: Path, program: Callable[[DataStream], DataStream]) -> FlinkPyError:
    stream = program(events(environment(1), RECORDS, batch_size=10)).uid("it")
    with HarnessAttempt(collect_graph(stream), folder) as attempt, pytest.raises(FlinkPyError) as raised:
        attempt.run_epoch()
    return raised.value


@pytest.mark.parametrize("operator", [as_map, as_filter, as_flat_map, as_keyed_process])
@pytest.mark.parametrize(
    ("action", "said"),
    [
        (lambda: sys.exit(3), "raised SystemExit: 3 "),
        (raise_keyboard_interrupt, "raised KeyboardInterrupt "),
        (raises(GeneratorExit()), "raised GeneratorExit "),
        (raises(Own("away")), "raised Own: away "),
        (raise_group, f"raised {GROUP} "),
        (raises(MemoryError()), "raised MemoryError "),
        (lambda: raises(Unpicklable("it"))(), "raised Unpicklable: it "),
        (raise_deep, "raised RecursionError: maximum recursion depth exceeded "),
        (raise_mute, "raised Mute: <Mute, whose str() raised RuntimeError> "),
    ],
)
def test_the_error_names_operator_and_record(
    tmp_path: Path, operator: Callable[..., DataStream], action: Callable[[], Any], said: str
) -> None:
    error = fail(tmp_path, lambda stream: operator(stream, at("b", action)))
    assert isinstance(error, UserFunctionError)
    assert (error.operator, error.subtask, error.value) == ("it", 0, "Row(key='b', time=1, value=2)")
    assert error.key == ("'b'" if operator is as_keyed_process else None)
    message = str(error.args[0])
    assert "of operator 'it'" in message and f"{said}(value: Row(key='b', time=1, value=2))" in message
    ends = not any(name in said for name in ("Mute", "MemoryError", "Unpicklable", "RecursionError"))
    assert ("must not end its process" in message) == ends


@pytest.mark.parametrize("operator", [as_map, as_filter, as_flat_map, as_keyed_process])
@pytest.mark.parametrize("key", ["a", "b"])
def test_next_without_a_default_is_an_error_and_not_the_end_of_the_batch(
    tmp_path: Path, operator: Callable[..., DataStream], key: str
) -> None:
    error = fail(tmp_path, lambda stream: operator(stream, at(key, lambda: next(iter(())))))
    assert isinstance(error, UserFunctionError)
    assert error.value is not None and f"key='{key}'" in error.value
    assert "StopIteration" in str(error)


def test_a_key_selector_that_ends_its_process_is_named(tmp_path: Path) -> None:
    error = fail(tmp_path, lambda stream: as_key_by(stream, at("b", lambda: sys.exit())))
    assert "key_by in front of operator 'it', subtask 0, raised SystemExit" in str(error)


@pytest.mark.parametrize("process", [Process, KeyedProcess])
def test_a_process_function_that_returns_a_number_is_told_what_to_return(tmp_path: Path, process: Any) -> None:
    class Number(process):  # type: ignore[misc]
        def process_element(self, value: Any, ctx: Any) -> Any:
            return 7

    def program(stream: DataStream) -> DataStream:
        keyed = stream.key_by(lambda event: event.key) if process is KeyedProcess else stream
        return keyed.process(Number(None), Types.LONG())

    error = fail(tmp_path, program)
    assert isinstance(error, TypeMismatchError)
    message = "a function of operator 'it' returned 7, of type int, instead of records: `yield` them, or return a list"
    assert str(error) == f"{message} of them"


def test_a_flat_map_that_returns_a_number_is_told_what_to_return(tmp_path: Path) -> None:
    error = fail(tmp_path, lambda stream: stream.flat_map(lambda event: 7, Types.LONG()))
    assert isinstance(error, TypeMismatchError) and "returned 7, of type int" in str(error)


def test_a_step_failure_names_the_operator_of_a_dead_worker() -> None:
    failure = as_failure(PythonWorkerLostError("a Python worker died", operator="it", subtask=2))
    assert failure.allow_retries and failure.description == "a Python worker died"
    assert (failure.metadata["operator"].value, failure.metadata["subtask"].value) == ("it", 2)


ENDINGS = [GeneratorExit, SystemExit, KeyboardInterrupt, StopIteration, Own, Unpicklable, MemoryError]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("method", ["open", "close", "on_timer", "extract_timestamp", "a generator", "key_by"])
def test_no_method_of_a_function_can_end_its_task_in_silence(
    tmp_path: Path, method: str, ending: type[BaseException]
) -> None:
    class Function(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            if method == "open":
                raise ending

        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(1)
            yield value
            if method == "a generator":
                raise ending

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            if method == "on_timer":
                raise ending

        def close(self) -> None:
            if method == "close":
                raise ending

    class Time(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            if method == "extract_timestamp":
                raise ending
            return int(value.time)

    def key(event: Any) -> str:
        if method == "key_by":
            raise ending
        return str(event.key)

    def program(stream: DataStream) -> DataStream:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Time())
        timed = stream.assign_timestamps_and_watermarks(strategy).uid("time")
        return timed.key_by(key, Types.STRING()).process(Function(), EVENT)

    error = fail(tmp_path, program)
    assert isinstance(error, UserFunctionError)
    assert error.operator == ("time" if method in ("extract_timestamp", "key_by") else "it")
    assert ending.__name__ in str(error.args[0]) or "StopIteration" in error.user_traceback


# --- errors as data ---------------------------------------------------------------------------------------------------


def made(kind: type[FlinkPyError], texts: Callable[[], str], number: int) -> FlinkPyError:
    """Returns an error of a class with all the fields that the class has."""
    parameters = inspect.signature(kind).parameters.values()
    named = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    return kind(texts(), **{n: number if "int" in str(p.annotation) else texts() for n, p in named.items()})


KINDS = [kind for name in errors.__all__ if issubclass(kind := getattr(errors, name), FlinkPyError)]


@given(st.sampled_from(KINDS), st.data(), st.integers(0, 9))
def test_errors_reach_the_driver_with_class_message_and_fields(
    kind: type[FlinkPyError], data: st.DataObject, number: int
) -> None:
    error = made(kind, lambda: data.draw(st.text(max_size=60)), number)
    again = error_from_json(error_to_json(error, "", number))
    assert (type(again), again.args) == (kind, (message_of(error),))
    assert vars(again) == {**vars(error), **({"subtask": number} if kind is UserFunctionError else {})}
    with pytest.raises(TaskError) as raised, reported():
        raise error
    java = "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    text = f"{java}{''.join(traceback.format_exception(raised.value))}\n\tat org.apache.spark.Task.run(Task.scala:1)"
    told = error_in_task(RuntimeError(text))
    assert (type(told), told and told.args) == (kind, (message_of(error),))


def test_of_a_users_class_the_class_of_the_library_is_known() -> None:
    again = error_from_json(error_to_json(Foreign("no bucket"), "it", 0))
    assert (type(again), str(again), vars(again)) == (StorageError, "no bucket", {"bucket": "a"})
    assert error_in_task(ValueError("dagster_flinkpy.errors.StorageError: said a user")) is None


def test_a_lost_segment_is_named_by_data() -> None:
    again = error_from_json(error_to_json(SegmentLostError("gone", edge="a.exchange", key="1-1/x.arrow")))
    assert isinstance(again, SegmentLostError) and (again.edge, again.key) == ("a.exchange", "1-1/x.arrow")


# --- long texts -------------------------------------------------------------------------------------------------------


def test_long_texts_of_user_code_are_cut(tmp_path: Path) -> None:
    error = fail(tmp_path, lambda stream: as_map(stream, at("b", raise_long)))
    assert len(str(error)) < 50_000
    failure = as_failure(error)
    assert len(failure.description or "") < 5_000
    assert all(len(str(value.value)) < 50_000 for value in failure.metadata.values())


def test_values_and_keys_are_cut_and_shown_whatever_their_repr_does() -> None:
    error = user_error(ValueError(), what="map()", operator="it", subtask=0, key="k" * LONG, value=Unshowable())
    assert error.value == "<Unshowable, whose repr() raised RuntimeError>"
    assert error.key is not None and len(error.key) < 600
    assert str(error.args[0]).endswith("raised ValueError (value: <Unshowable, whose repr() raised RuntimeError>)")
    again = error_from_json(error_to_json(error, "first of the chain", 0))
    assert isinstance(again, UserFunctionError)
    assert (str(again), again.key, again.value) == (str(error), error.key, error.value)


@pytest.mark.parametrize("kind", [FlinkPyError, StorageError, TypeMismatchError])
def test_messages_of_all_errors_are_cut(kind: type[FlinkPyError]) -> None:
    assert len(str(kind("x" * LONG))) < 11_000
    assert str(kind("short")) == "short"


@given(st.text(max_size=200), st.integers(min_value=40, max_value=100))
def test_what_is_shortened_keeps_its_ends(text: str, characters: int) -> None:
    short, half = shorten(text, characters), (characters - 40) // 2
    assert len(short) <= characters and (short == text) == (len(text) <= characters)
    assert short.startswith(text[:half]) and short.endswith(text[len(text) - half :])


def test_progress_lines_are_cut(tmp_path: Path) -> None:
    lines: list[str] = []
    with HarnessAttempt(collect_graph(events(environment(1), RECORDS)), tmp_path, on_progress=lines.append) as attempt:
        attempt._progress("x" * LONG)
    assert len(lines[-1]) < 3_000


def test_a_step_failure_says_that_the_restart_strategy_has_given_up() -> None:
    error = UserFunctionError("it raised")
    assert "suppressed_by" not in as_failure(error).metadata and as_failure(error).allow_retries
    error.suppressed_by = "all 3 restarts of the fixed-delay strategy are used up"
    failure = as_failure(error)
    assert not failure.allow_retries
    assert failure.metadata["suppressed_by"].value == error.suppressed_by
