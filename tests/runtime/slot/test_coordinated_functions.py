"""Functions and their coordinators send each other events: each counts once, whatever fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common import Types
from dagster_flinkpy.common.exchange_options import ExchangeOptions
from dagster_flinkpy.datastream import (
    CheckpointedFunction,
    CoordinatedFunction,
    MapFunction,
    OperatorCoordinator,
    ProcessFunction,
    ReduceFunction,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ListStateDescriptor
from dagster_flinkpy.datastream.window import CountTumblingWindowAssigner
from dagster_flinkpy.errors import ConfigurationError, UserFunctionError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt, collect_graph
from tests.runtime.programs import environment, events
from tests.runtime.slot.test_live_failures import restarts

RECORDS = [(f"k{i % 5}", i, i) for i in range(60)]
VALUES = list(range(60))


class Forwards(OperatorCoordinator):
    """Keeps what subtasks say, and passes it on to the next subtask."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.gateways: dict[int, Any] = {}
        self.story: list[str] = []

    def start(self, context: Any) -> None:
        self._subtasks = context.current_parallelism()
        self.story.append(f"start of {context.operator_uid}")

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
        self.heard.append(event["value"])
        self.gateways[(subtask + 1) % self._subtasks].send_event(event["value"])

    def checkpoint_coordinator(self, checkpoint_id: int) -> Any:
        return {"heard": sorted(self.heard)}

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.story.append(f"reset to {checkpoint_id}")
        self.heard = [] if state is None else [*state["heard"]]

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
        assert (gateway.subtask, gateway.attempt) == (subtask, attempt)
        self.gateways[subtask] = gateway

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: BaseException | None) -> None:
        self.story.append(f"{subtask} failed in attempt {attempt}")
        del self.gateways[subtask]


class Says(ProcessFunction, CoordinatedFunction, CheckpointedFunction):
    """Tells the coordinator each value, and keeps what others have told it."""

    def __init__(self, folder: Path, raises_at: int | None = None) -> None:
        self._folder, self._raises_at = folder, raises_at

    def create_coordinator(self) -> OperatorCoordinator:
        return Forwards()

    def initialize_state(self, context: Any) -> None:
        self._state = context.get_operator_state_store().get_list_state(ListStateDescriptor("got", Types.LONG()))
        self._got = [*self._state.get()]

    def open(self, runtime_context: Any) -> None:
        self._context = runtime_context

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        if value.value == self._raises_at and self._context.get_attempt_number() == 0:
            raise ValueError("boom")
        self._context.send_event_to_coordinator({"value": value.value})
        yield value.value

    def handle_operator_event(self, event: Any) -> None:
        self._got.append(event)

    def snapshot_state(self, context: Any) -> None:
        self._state.update(self._got)
        name = f"{context.get_checkpoint_id()}-{self._context.get_index_of_this_subtask()}"
        (self._folder / name).write_text(" ".join(map(str, self._got)))


def program(function: Any, parallelism: int = 2) -> JobGraph:
    stream = events(environment(), RECORDS, per_epoch=7).rebalance()
    return collect_graph(stream.process(function, Types.LONG()).uid("says").set_parallelism(parallelism))


def state_of(metadata: Any) -> Any:
    return metadata.operator("says").coordinator_state


def check(folder: Path, epoch: Any, parallelism: int = 2) -> list[int]:
    """Checks the cut of a checkpoint, and returns what the coordinator has heard before it."""
    stored = state_of(epoch.metadata)
    heard = stored["state"]["heard"]
    got = [int(v) for i in range(parallelism) for v in (folder / f"{epoch.checkpoint_id}-{i}").read_text().split()]
    assert Counter(got + [event for _, event in stored["events"]]) == Counter(heard), "each once: taken or in flight"
    return heard


@pytest.mark.short
@pytest.mark.parametrize("raises_at", [None, 5, 31], ids=str)
@pytest.mark.parametrize("how", [{}, {"limit": 3}, {"periodic": True}], ids=str)
def test_a_checkpoint_has_each_event_once(tmp_path: Path, how: dict[str, Any], raises_at: int | None) -> None:
    graph = program(Says(tmp_path, raises_at))
    checkpointing = CoordinatorConfig(interval=timedelta(milliseconds=10))
    config = {"checkpointing": checkpointing, "failover": restarts(3)}
    heard: list[int] = []
    with HarnessAttempt(graph, tmp_path / "job", live=True, threads=True, config=config) as attempt:
        while not attempt.finished:
            for epoch in attempt.run_epochs(**{"limit": 1, **how}):
                heard = check(tmp_path, epoch)
    assert heard == VALUES


def test_another_run_goes_on_with_what_the_checkpoint_has(tmp_path: Path) -> None:
    heard: list[int] = []
    for _ in range(4):
        with HarnessAttempt(program(Says(tmp_path)), tmp_path / "job", live=True, threads=True) as attempt:
            for epoch in attempt.run_epochs(3):
                heard = check(tmp_path, epoch)
    assert heard == VALUES


class Coordinates(OperatorCoordinator):
    """Does something when it hears of a value."""

    def __init__(self, does: Any) -> None:
        self._does = does

    def start(self, context: Any) -> None:
        self._context = context

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
        self._does(self._context, event)


class Tells(MapFunction, CoordinatedFunction):
    def __init__(self, does: Any) -> None:
        self._does = does

    def create_coordinator(self) -> OperatorCoordinator:
        return Coordinates(self._does)

    def open(self, runtime_context: Any) -> None:
        self._tell = runtime_context.send_event_to_coordinator

    def map(self, value: Any) -> Any:
        self._tell(value.value)
        return value.value


def mapped(does: Any, *, keyed: bool = False) -> JobGraph:
    stream = events(environment(), RECORDS, per_epoch=7)
    on = stream.key_by("key") if keyed else stream
    return collect_graph(on.map(Tells(does), Types.LONG()).uid("tells"))


def raises(context: Any, event: Any) -> None:
    raise ValueError(f"not {event}")


def fails_the_job(context: Any, event: Any) -> None:
    context.fail_job(ValueError(f"not {event}"))


@pytest.mark.parametrize("does", [raises, fails_the_job])
@pytest.mark.parametrize("keyed", [False, True])
def test_an_error_of_a_coordinator_names_its_operator(tmp_path: Path, does: Any, keyed: bool) -> None:
    attempt = HarnessAttempt(mapped(does, keyed=keyed), tmp_path, live=True, threads=True)
    with attempt, pytest.raises(UserFunctionError, match=r"the coordinator of operator 'tells' raised ValueError: not"):
        list(attempt.run_epochs())


def test_a_spark_job_for_each_epoch_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"operator 'tells' has a coordinator, .*execution\.exchange"):
        HarnessAttempt(mapped(raises), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_auto_chooses_tasks_that_live_and_says_why(tmp_path: Path) -> None:
    lines: list[str] = []
    config = JobConfig("job", StorageLocation(str(tmp_path)), exchange=ExchangeOptions(), in_process=True)
    graph = mapped(lambda context, event: None)
    with JobAttempt(graph, config, owner="test", on_progress=lines.append) as attempt:
        attempt.run_epoch()
    why = "tasks live in slots (execution.exchange: pipelined), because operator 'tells' has a coordinator"
    assert f"job 'job': {why}" in lines


class Least(ReduceFunction, CoordinatedFunction):
    def create_coordinator(self) -> OperatorCoordinator:
        raise AssertionError("it is refused")

    def reduce(self, value1: Any, value2: Any) -> Any:
        return min(value1, value2)


def test_a_function_that_cannot_have_a_coordinator_is_refused_when_it_opens(tmp_path: Path) -> None:
    stream = events(environment(), RECORDS).map(lambda row: row.value, Types.LONG()).key_by(lambda v: v % 2)
    graph = collect_graph(stream.window(CountTumblingWindowAssigner(2)).reduce(Least()).uid("least"))
    attempt = HarnessAttempt(graph, tmp_path, live=True)
    with attempt, pytest.raises(ConfigurationError, match=r"operator 'least' cannot have a coordinator"):
        list(attempt.run_epochs())
