"""Tasks that live and fail, or are ended: in slots of this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.datastream import MapFunction
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import CheckpointError, UserFunctionError
from dagster_flinkpy.runtime.master.deployments import job_exchange, pipelined_region
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.slot.deployment import SlotDeployment
from dagster_flinkpy.runtime.slot.task_executor import SlotDescriptor
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, events

RECORDS = [(f"k{i % 3}", i, i) for i in range(20)]
OPTIONS = ExchangeOptions(ExchangeMode.PIPELINED, heartbeat_interval=timedelta(seconds=1))


class Noted(MapFunction):
    """Notes in a folder how often it is opened and closed, and does something at the record of a time.

    Args:
        folder: The folder.
        at: What it does there.
        on_close: What it does when it is closed.
    """

    def __init__(
        self, folder: Path, at: Callable[[int], None] = lambda attempt: None, on_close: Callable[[], None] = bool
    ) -> None:
        self._folder, self._at, self._on_close = folder, at, on_close

    def open(self, runtime_context: Any) -> None:
        self._attempt, self._subtask = runtime_context.get_attempt_number(), runtime_context.get_index_of_this_subtask()
        self._note("open")

    def map(self, value: Any) -> Any:
        if value.time == 13:
            self._at(self._attempt)
        return value

    def close(self) -> None:
        self._note("close")
        self._on_close()

    def _note(self, what: str) -> None:
        with (self._folder / "notes").open("a") as file:
            file.write(f"{what} {self._attempt}.{self._subtask}\n")


def notes(folder: Path) -> list[str]:
    return sorted((folder / "notes").read_text().splitlines())


def raise_first(attempt: int) -> None:
    if attempt == 0:
        raise ValueError("boom")


def raise_always(attempt: int) -> None:
    raise ValueError("boom")


def program(folder: Path, function: MapFunction) -> tuple[JobGraph, FolderSink]:
    """Five epochs of four records, with keyed state and a sink."""
    env, sink = environment(2), FolderSink(folder / "sink")
    stream = events(env, RECORDS, per_epoch=4).map(function, EVENT).uid("map")
    stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts").sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


def assert_exact(sink: FolderSink) -> None:
    """Checks that each record was counted once. The order of two records of a key in an epoch is not determined."""
    numbers = {key: [value for name, _, value in RECORDS if name == key] for key in ("k0", "k1", "k2")}
    rows = sink.rows()
    assert [(key, count) for key, count, _ in rows] == [
        (key, i + 1) for key, values in numbers.items() for i in range(len(values))
    ]
    last = {key: total for key, _, total in rows}
    assert last == {key: sum(values) for key, values in numbers.items()}
    assert sink.staged() == []


class LiveAttempt(JobAttempt):
    """An attempt whose regions run on threads, as on Spark, in slots of this process."""

    def __init__(self, graph: JobGraph, folder: Path, *, lines: list[str] | None = None, **config: Any) -> None:
        config = {"exchange": OPTIONS, **config}
        job = JobConfig("job", StorageLocation(str(folder / "store")), in_process=True, **config)
        super().__init__(graph, job, owner="test", on_progress=None if lines is None else lines.append)


class OnRestart(logging.Filter):
    """Calls something when the master has noticed a failure."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def filter(self, record: logging.LogRecord) -> bool:
        self._act()
        return True


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[SlotDescriptor]:
    """Returns what slots are told when they start, and checks that no thread is left of them."""
    start, told = job_exchange.start_here, list[SlotDescriptor]()

    def noted(descriptor: SlotDescriptor) -> Any:
        told.append(descriptor)
        return start(descriptor)

    monkeypatch.setattr(job_exchange, "start_here", noted)
    return told


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if isinstance(thread, threading._DummyThread):  # of Flight, while it calls Python
            continue
        if thread.name.startswith("flinkpy-snapshot-"):  # the process keeps them
            continue
        thread.join(20)
        assert not thread.is_alive(), thread.name


def restarts(number: int) -> FailoverConfig:
    return FailoverConfig(FixedDelayRestart(number, timedelta(0)))


def test_an_error_of_a_function_names_it_and_is_typed(tmp_path: Path) -> None:
    graph, sink = program(tmp_path, Noted(tmp_path, raise_always))
    with LiveAttempt(graph, tmp_path) as attempt, pytest.raises(UserFunctionError, match="boom") as raised:
        list(attempt.run_epochs())
    assert (raised.value.operator, raised.value.subtask) == ("map", 0)
    assert "raise_always" in raised.value.user_traceback
    assert len(sink.rows()) == 12  # of three epochs
    assert sink.staged() == []


def test_a_region_restarts_in_the_same_slots_and_loses_and_doubles_nothing(
    tmp_path: Path, started: list[SlotDescriptor]
) -> None:
    graph, sink = program(tmp_path, Noted(tmp_path, raise_first))
    with LiveAttempt(graph, tmp_path, failover=restarts(1)) as attempt:
        list(attempt.run_epochs())
        assert attempt._deployed.failover.graph.restarts == 1
    assert_exact(sink)
    assert sorted(descriptor.name for descriptor in started) == ["default-0", "default-1"]
    assert notes(tmp_path) == sorted(f"{what} {n}.{i}" for what in ("open", "close") for n in (0, 1) for i in (0, 1))


def test_restarts_are_counted(tmp_path: Path) -> None:
    graph, _ = program(tmp_path, Noted(tmp_path, raise_always))
    with LiveAttempt(graph, tmp_path, failover=restarts(2)) as attempt:
        with pytest.raises(UserFunctionError, match="boom"):
            list(attempt.run_epochs())
        assert attempt._deployed.failover.graph.restarts == 2


def raise_at_the_end() -> None:
    raise ValueError("cannot close")


def test_functions_are_closed_once_and_an_error_of_it_is_reported(tmp_path: Path) -> None:
    graph, sink = program(tmp_path, Noted(tmp_path, on_close=raise_at_the_end))
    with pytest.raises(UserFunctionError, match="cannot close") as raised, LiveAttempt(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    assert raised.value.operator == "map"
    assert_exact(sink)
    assert notes(tmp_path) == ["close 0.0", "close 0.1", "open 0.0", "open 0.1"]


class Blocked:
    """A function of the tests that waits until it is let go."""

    reached, go = threading.Event(), threading.Event()

    def __call__(self, attempt: int) -> None:
        Blocked.reached.set()
        if attempt == 0:
            assert Blocked.go.wait(60)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Blocked, "reached", threading.Event())
    monkeypatch.setattr(Blocked, "go", threading.Event())
    yield Blocked
    Blocked.go.set()


def block(attempt: int) -> None:
    from tests.runtime.slot.test_live_failures import Blocked as known

    known()(attempt)


def test_a_run_that_is_ended_cancels_its_tasks(tmp_path: Path, blocked: Any) -> None:
    graph, sink = program(tmp_path, Noted(tmp_path, block))

    def end() -> None:
        assert blocked.reached.wait(60)
        attempt.terminate(KeyboardInterrupt())
        blocked.go.set()

    with pytest.raises(KeyboardInterrupt), LiveAttempt(graph, tmp_path) as attempt:
        ends = threading.Thread(target=end)
        ends.start()
        list(attempt.run_epochs())
    ends.join()
    assert len(sink.rows()) == 12
    assert sink.staged() == []
    assert notes(tmp_path) == ["close 0.0", "close 0.1", "open 0.0", "open 0.1"]


class EachNoted(Noted):
    """Notes each record, and does something at the first one."""

    def map(self, value: Any) -> Any:
        self._note("map")
        if value.time == 0:
            self._at(self._attempt)
        return value


def test_a_run_that_is_ended_does_not_wait_for_the_rest_of_a_batch(
    tmp_path: Path, blocked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function may take seconds for each record, as one that asks a model."""
    real, cut = SlotDeployment.cut, threading.Event()

    def noted(deployment: SlotDeployment) -> None:
        real(deployment)
        cut.set()

    monkeypatch.setattr(SlotDeployment, "cut", noted)
    env = environment(1)
    stream = events(env, RECORDS, per_epoch=len(RECORDS)).rebalance()
    stream.map(EachNoted(tmp_path, block), EVENT).uid("map").sink_to(FolderSink(tmp_path / "sink")).uid("sink")

    def end() -> None:
        assert blocked.reached.wait(60)
        attempt.terminate(KeyboardInterrupt())
        assert cut.wait(60)
        blocked.go.set()

    with pytest.raises(KeyboardInterrupt), LiveAttempt(env.get_job_graph(), tmp_path) as attempt:
        ends = threading.Thread(target=end)
        ends.start()
        list(attempt.run_epochs())
    ends.join()
    assert notes(tmp_path) == ["close 0.0", "map 0.0", "open 0.0"]


def test_a_slot_whose_tasks_do_not_give_up_is_replaced(
    tmp_path: Path, blocked: Any, started: list[SlotDescriptor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelined_region, "_CANCEL_SECONDS", 0.2)
    graph, sink = program(tmp_path, Noted(tmp_path, block))
    lines: list[str] = []
    checkpointing = CoordinatorConfig(timeout=timedelta(seconds=2))
    with LiveAttempt(graph, tmp_path, lines=lines, checkpointing=checkpointing, failover=restarts(3)) as attempt:
        list(attempt.run_epochs())
        blocked.go.set()
    assert_exact(sink)
    assert sorted(descriptor.name for descriptor in started) == ["default-0", "default-0", "default-1"]
    assert any("slot default-0 did not give up" in line for line in lines)


def test_a_job_that_takes_too_long_ends(tmp_path: Path, blocked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined_region, "_CANCEL_SECONDS", 0.2)
    graph, sink = program(tmp_path, Noted(tmp_path, block))
    checkpointing = CoordinatorConfig(timeout=timedelta(seconds=2))
    with (
        pytest.raises(CheckpointError, match="0:00:02"),
        LiveAttempt(graph, tmp_path, checkpointing=checkpointing) as attempt,
    ):
        try:
            list(attempt.run_epochs())
        finally:
            blocked.go.set()
    assert len(sink.rows()) == 12
