"""The cut of a coordinator's checkpoint, for any order of events and barriers."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import (
    CoordinatedFunction,
    MapFunction,
    OperatorCoordinator,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import ConfigurationError, UserFunctionError
from dagster_flinkpy.runtime.master.epochs.operator_coordinators import OperatorCoordinators
from tests.examples import examples
from tests.runtime.harness import collect_graph

STORY: list[str] = []


class Answers(OperatorCoordinator):
    """Answers each event, and keeps all it has heard."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.gateways: dict[int, Any] = {}

    def start(self, context: Any) -> None:
        STORY.append("start")

    def close(self) -> None:
        STORY.append("close")

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
        self.heard.append([subtask, event])
        self.gateways[event % len(self.gateways)].send_event(event)

    def checkpoint_coordinator(self, checkpoint_id: int) -> Any:
        return [*self.heard]

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        STORY.append(f"reset to {checkpoint_id}")
        self.heard = [] if state is None else [*state]

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        STORY.append(f"reset of subtask {subtask} to {checkpoint_id}")

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: BaseException | None) -> None:
        STORY.append(f"attempt {attempt} of subtask {subtask} failed: {reason}")

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
        STORY.append(f"attempt {attempt} of subtask {subtask} ready")
        self.gateways[subtask] = gateway

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        STORY.append(f"complete {checkpoint_id}")

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        STORY.append(f"aborted {checkpoint_id}")


class Function(MapFunction, CoordinatedFunction):
    def create_coordinator(self) -> OperatorCoordinator:
        return Answers()

    def map(self, value: Any) -> Any:
        return value


def graph(parallelism: int, function: Function | None = None) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    numbers = env.from_collection([1], Types.LONG()).uid("numbers").rebalance()
    return collect_graph(numbers.map(function or Function(), Types.LONG()).uid("f").set_parallelism(parallelism))


class World:
    """Subtasks whose messages, and the events to them, are on their way until a step lets them arrive."""

    def __init__(self, parallelism: int, restored: Any = None, restored_id: int | None = None) -> None:
        STORY.clear()
        states = {} if restored is None else {"f": restored}
        self.coordinators = OperatorCoordinators(graph(parallelism), states, restored_id)
        self.parallelism, self.said = parallelism, 0
        self.states: dict[int, list[tuple[list[int], list[int]]]] = {}
        """What the subtasks had said and got at their barriers, by checkpoint."""
        self.deploy(0, 0, [([], []) for _ in range(parallelism)])

    def deploy(self, start: int, attempt: int, states: list[tuple[list[int], list[int]]]) -> None:
        self.up: list[deque[dict[str, Any]]] = [deque() for _ in range(self.parallelism)]
        self.down: list[deque[int]] = [deque() for _ in range(self.parallelism)]
        self.now = [([*said], [*got]) for said, got in states]
        self.taken, self.barriers = [0] * self.parallelism, [start] * self.parallelism
        self.coordinators.reset(start, None)
        self.coordinators.ready(attempt, lambda uid, i, event: self.down[i].append(event))

    def say(self, i: int) -> None:
        self.said += 1
        self.now[i][0].append(self.said)
        self.up[i].append({"uid": "f", "subtask": i, "event": self.said})

    def barrier(self, i: int) -> None:
        self.barriers[i] += 1
        said, got = self.now[i]
        of_all = self.states.setdefault(self.barriers[i], [([], []) for _ in range(self.parallelism)])
        of_all[i] = ([*said], [*got])
        self.up[i].append({"uid": "f", "subtask": i, "barrier": self.barriers[i], "taken": self.taken[i]})

    def hear(self, i: int) -> None:
        if self.up[i]:
            assert self.coordinators.on_message(self.up[i].popleft())
            self.coordinators.work()

    def take(self, i: int) -> None:
        if self.down[i]:
            self.now[i][1].append(self.down[i].popleft())
            self.taken[i] += 1

    def check(self, checkpoint_id: int) -> None:
        """Checks that the coordinator and its subtasks agree at a checkpoint."""
        stored = self.coordinators.take_states(checkpoint_id)["f"]
        assert stored is not None
        for i, (said, _) in enumerate(self.states[checkpoint_id]):
            assert [event for subtask, event in stored["state"] if subtask == i] == said
        for i, (_, got) in enumerate(self.states[checkpoint_id]):
            sent = [event for _, event in stored["state"] if event % self.parallelism == i]
            assert got + [event for subtask, event in stored["events"] if subtask == i] == sent


STEPS = st.tuples(st.sampled_from(["say", "barrier", "hear", "take", "restart"]), st.integers(0, 2))


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 3), st.lists(STEPS, max_size=80))
def test_each_event_is_on_one_side_of_a_checkpoint(parallelism: int, steps: list[tuple[str, int]]) -> None:
    world, attempt = World(parallelism), 0
    for step, number in steps:
        i = number % parallelism
        done = [n for n in range(1, min(world.barriers) + 1) if _has(world, n)]
        if step == "restart":
            attempt, start = attempt + 1, done[-1] if done else 0
            world.deploy(start, attempt, world.states[start] if start else [([], []) for _ in range(parallelism)])
            world.states = {n: states for n, states in world.states.items() if n <= start}
        else:
            getattr(world, step)(i)
    for i in range(parallelism):
        while world.barriers[i] < max(world.barriers):
            world.barrier(i)
        while world.up[i]:
            world.hear(i)
    for checkpoint_id in range(1, max(world.barriers) + 1):
        world.check(checkpoint_id)


def _has(world: World, checkpoint_id: int) -> bool:
    try:
        return bool(world.coordinators.take_states(checkpoint_id))
    except KeyError:
        return False


def test_a_restart_is_told_in_the_order_of_flink() -> None:
    world = World(2)
    world.coordinators.on_notified("notify_checkpoint_aborted", 1)
    world.coordinators.on_notified("notify_checkpoint_subsumed", 0)
    world.coordinators.on_notified("notify_checkpoint_complete", 2)
    world.coordinators.work()
    world.coordinators.reset(0, UserFunctionError("boom"))
    world.coordinators.ready(1, lambda uid, i, event: None)
    world.coordinators.close()
    assert STORY == [
        "start",
        "attempt 0 of subtask 0 ready",
        "attempt 0 of subtask 1 ready",
        "aborted 1",
        "complete 2",
        "attempt 0 of subtask 0 failed: boom",
        "attempt 0 of subtask 1 failed: boom",
        "reset to -1",
        "reset of subtask 0 to -1",
        "reset of subtask 1 to -1",
        "attempt 1 of subtask 0 ready",
        "attempt 1 of subtask 1 ready",
        "close",
    ]


def test_events_in_flight_are_sent_again_after_a_restore() -> None:
    world = World(2, {"state": [[0, 7]], "events": [[1, 7]]}, 5)
    assert STORY[:2] == ["reset to 5", "start"]
    assert [list(each) for each in world.down] == [[], [7]]


def test_what_subtasks_say_before_their_executions_are_known_waits_for_that() -> None:
    """Records that were in flight at a checkpoint are processed as soon as their subtask runs."""
    world = World(1)
    world.coordinators.reset(0, UserFunctionError("boom"))
    world.say(0)
    world.hear(0)
    assert not world.coordinators.has_mail
    attempts, sent = list[int](), list[Any]()
    coordinator = world.coordinators._holders["f"]._coordinator
    real = coordinator.handle_event_from_operator
    coordinator.handle_event_from_operator = lambda i, attempt, event: (
        attempts.append(attempt) or real(i, attempt, event)
    )
    world.coordinators.ready(7, lambda uid, i, event: sent.append(event))
    assert world.coordinators.has_mail
    world.coordinators.work()
    assert (attempts, sent) == ([7], [1])


@pytest.mark.parametrize("late", [False, True])
def test_a_barrier_that_overtakes_an_epoch_of_its_number_changes_nothing_of_what_that_leaves(late: bool) -> None:
    """A region that lags reads an epoch while the checkpoint with its number passes."""
    world = World(1)
    world.say(0)
    world.barrier(0)
    for _ in range(0 if late else 2):
        world.hear(0)
    world.coordinators.overtake(1, 0)
    for _ in range(2 if late else 0):
        world.hear(0)
    assert world.coordinators.take_states(1) == {"f": None}
    assert world.coordinators.snapshot_in(1, "notify_checkpoint_complete") is None
    world.coordinators.overtake(3, 1)
    world.coordinators.overtake(4, 1)
    told = [(3, "complete"), (4, "complete"), (3, "subsumed"), (5, "complete"), (1, "aborted"), (6, "aborted")]
    found = [world.coordinators.snapshot_in(number, f"notify_checkpoint_{news}") for number, news in told]
    assert found == [1, None, None, 5, None, 6]
    world.coordinators.repeat(2, 1)
    for checkpoint_id in (1, 2):
        stored = world.coordinators.take_states(checkpoint_id)["f"]
        assert stored is not None and stored["state"] == [[0, 1]]


def test_an_event_for_a_subtask_that_is_gone_is_not_lost() -> None:
    with pytest.raises(ConfigurationError, match=r"event for subtask 1, .*handle_undelivered_event"):
        World(1, {"state": [[0, 7]], "events": [[1, 7]]}, 5)


def test_an_event_to_an_execution_that_is_gone_goes_nowhere() -> None:
    gateways: list[Any] = []

    class Keeps(Answers):
        def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
            gateways.append(gateway)

    class Kept(Function):
        def create_coordinator(self) -> OperatorCoordinator:
            return Keeps()

    coordinators, sent = OperatorCoordinators(graph(1, Kept()), {}, None), list[Any]()
    for attempt in range(2):
        coordinators.reset(0, None)
        coordinators.ready(attempt, lambda uid, i, event: sent.append(event))
    for event, gateway in enumerate(gateways):
        gateway.send_event(event)
    assert sent == [1]
