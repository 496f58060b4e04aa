"""The coordinator of a source in Flink's shape: each split is in one place, whatever fails."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors.sources.source_coordinator import SourceCoordinator, Tell, unpacked
from dagster_flinkpy.datastream.connectors.base import SourceSplit, SplitEnumeratorContext
from dagster_flinkpy.datastream.connectors.source import (
    InputStatus,
    JsonSerializer,
    Source,
    SourceReader,
    SourceReaderContext,
    SplitEnumerator,
)
from dagster_flinkpy.datastream.connectors.source import SplitEnumeratorContext as Context
from dagster_flinkpy.errors import ConfigurationError
from tests.examples import examples

SPLITS = 6


class Numbers(SplitEnumerator):
    """Assigns numbers when it is asked, and one more at each checkpoint."""

    def __init__(self, context: Context, left: list[int]) -> None:
        self.context, self.left = context, left
        self.heard: list[Any] = []

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None) -> None:
        if self.left:
            self.context.assign_split(self.left.pop(0), subtask_id)
        else:
            self.context.signal_no_more_splits(subtask_id)

    def add_splits_back(self, splits: Sequence[Any], subtask_id: int) -> None:
        self.left += splits

    def add_reader(self, subtask_id: int) -> None:
        self.heard.append(("reader", subtask_id))

    def handle_source_event(self, subtask_id: int, event: Any) -> None:
        self.heard.append((subtask_id, event))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self.left:
            self.context.assign_split(self.left.pop(), 0)

    def snapshot_state(self) -> Any:
        return self.left


class NumbersSource(Source):
    produced_type = Types.LONG()

    def create_enumerator(self, context: Context) -> SplitEnumerator:
        self.enumerator = Numbers(context, list(range(SPLITS)))
        return self.enumerator

    def restore_enumerator(self, context: Context, checkpoint: Any) -> SplitEnumerator:
        self.enumerator = Numbers(context, checkpoint)
        return self.enumerator

    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        raise NotImplementedError


class World:
    """A coordinator with small stand-ins for its readers, which read a split whenever one of them is asked to."""

    def __init__(self) -> None:
        self.parallelism, self.tries, self.checkpoint_id = 2, 0, 0
        self.held: dict[int, list[int]] = {}
        self.read: list[int] = []
        self.log: list[list[list[SourceSplit]]] = []
        self.stored: tuple[Any, dict[int, list[int]], list[int]] = (None, {}, [])
        self.start(None)

    def start(self, state: Any) -> None:
        self.source = NumbersSource()
        self.coordinator = SourceCoordinator(self.source, json.loads(json.dumps(state)), lambda: 0.0)
        self.coordinator.start(SplitEnumeratorContext("job", 1, NotImplemented, parallelism=self.parallelism))
        self.log = []

    def tell(self, told: list[list[SourceSplit]]) -> None:
        for subtask, each in enumerate(told):
            values = [s.properties["value"] for s in each if s.properties["tell"] == Tell.SPLIT]
            self.held.setdefault(subtask, []).extend(unpacked(JsonSerializer(), value) for value in values)

    def take_back(self) -> None:
        if self.log:
            self.coordinator.on_epoch_read([s for told in self.log[-1] for s in told])

    def part(self) -> None:
        self.take_back()
        self.coordinator.receive(str(self.tries), [(i, {}) for i in range(self.parallelism) if not self.held.get(i)])
        self.log.append(self.coordinator.plan_part(self.parallelism))
        self.tell(self.log[-1])

    def reads(self) -> None:
        for own in self.held.values():
            self.read += own[:1]
            del own[:1]

    def checkpoint(self) -> None:
        self.take_back()
        self.store()
        self.coordinator.notify_checkpoint_complete(self.checkpoint_id)

    def store(self) -> None:
        self.checkpoint_id += 1
        self.stored = copy.deepcopy((self.coordinator.snapshot_state(), self.held, self.read))
        self.log = []
        state, held, read = self.stored
        left = unpacked(JsonSerializer(), state["enumerator"])
        back = [unpacked(JsonSerializer(), each) for each in state["splits"]]
        assert sorted([*left, *back, *(n for own in held.values() for n in own), *read]) == list(range(SPLITS))

    def epoch(self) -> None:
        self.checkpoint()
        told = self.coordinator.plan_epoch(self.parallelism)
        self.tell(told)
        self.reads()
        answers = [
            SourceSplit("", {"tell": Tell.ANSWER, "subtask": i, "status": status.value, "events": [i]})
            for i, each in enumerate(told)
            if each
            for status in [InputStatus.MORE_AVAILABLE if self.held.get(i) else InputStatus.NOTHING_AVAILABLE]
        ]
        self.coordinator.on_epoch_read(answers)
        self.store()

    def abandon(self) -> None:
        """An epoch is planned, and a checkpoint is taken that does not have it."""
        self.checkpoint()
        self.coordinator.plan_epoch(self.parallelism)
        self.store()

    def fail(self) -> None:
        """A reader fails: all start again, and are told again what they were told since the checkpoint."""
        self.tries += 1
        self.held, self.read = copy.deepcopy(self.stored[1:])
        for told in self.log:
            self.tell(told)

    def fail_attempt(self, parallelism: int = 2) -> None:
        self.tries += 1
        state, held, self.read = copy.deepcopy(self.stored)
        self.parallelism = parallelism
        self.held = {}
        for i, n in enumerate(n for own in held.values() for n in own):
            self.held.setdefault(i % parallelism, []).append(n)
        self.start(state)

    def rescale(self) -> None:
        self.fail_attempt(5 - self.parallelism)


ACTS = ("part", "part", "reads", "checkpoint", "epoch", "abandon", "fail", "rescale")


@settings(max_examples=examples(300), deadline=None)
@given(acts=st.lists(st.sampled_from(ACTS), max_size=25))
def test_each_split_is_left_or_on_its_way_or_held_or_read(acts: list[str]) -> None:
    world = World()
    for act in acts:
        getattr(world, act)()
    for _ in range(4 * SPLITS):
        world.part()
        world.reads()
    world.checkpoint()
    assert sorted(world.read) == list(range(SPLITS)), "all are read in the end"


def coordinator(now: list[float]) -> tuple[SourceCoordinator, Numbers]:
    source = NumbersSource()
    made = SourceCoordinator(source, None, lambda: now[0])
    made.start(SplitEnumeratorContext("job", 1, NotImplemented, parallelism=2))
    return made, source.enumerator


def status(subtask: int) -> tuple[int, dict[str, Any]]:
    return subtask, {"status": InputStatus.END_OF_INPUT.value}


def test_the_end_of_readers_that_have_failed_does_not_count() -> None:
    made, _ = coordinator([0.0])
    made.receive("first", [status(0)])
    made.plan_part(2)
    made.receive("second", [status(1)])
    made.plan_part(2)
    assert not made.exhausted, "reader 0 has started again, and reads again"
    made.receive("second", [status(0)])
    ((_, end), _) = made.plan_part(2)
    assert made.exhausted and end.properties["tell"] == Tell.END
    assert not made.snapshot_state()["ended"], "nobody has read it yet"
    made.on_epoch_read([])
    assert made.snapshot_state()["ended"]


def test_an_epoch_that_is_not_open_asks_for_all_splits_and_hears_readers_at_its_end() -> None:
    made, enumerator = coordinator([0.0])

    def tells() -> list[list[str]]:
        return [[s.properties["tell"] for s in told] for told in made.plan_epoch(2)]

    def answer(subtask: int, status: InputStatus, *events: Any) -> SourceSplit:
        return SourceSplit("", {"tell": "answer", "subtask": subtask, "status": status.value, "events": list(events)})

    assert tells() == [["split", "split", "split", "no more splits", "poll"]] * 2
    nothing, end = InputStatus.NOTHING_AVAILABLE, InputStatus.END_OF_INPUT
    made.on_epoch_read([answer(0, nothing, "x"), answer(1, nothing)])
    enumerator.context.assign_split(7, 1)
    assert tells() == [["no more splits", "poll"], ["split", "no more splits", "poll"]]
    assert enumerator.heard == [("reader", 0), ("reader", 1), (0, "x")]
    made.on_epoch_read([answer(0, nothing), answer(1, end)])
    assert tells() == [[], []], "nobody has anything, so a run that reads what is there can end"
    made.on_epoch_read([])
    assert tells() == [["no more splits", "poll"]] * 2, "a reader may have something again"
    made.on_epoch_read([answer(0, end), answer(1, end)])
    assert not made.exhausted
    assert tells() == [["no more splits", "end"]] * 2
    assert made.exhausted


def answers(*events: Any) -> list[SourceSplit]:
    said = {"tell": "answer", "status": InputStatus.NOTHING_AVAILABLE.value}
    return [
        SourceSplit("", {**said, "subtask": 0, "events": list(events)}),
        SourceSplit("", {**said, "subtask": 1, "events": []}),
    ]


def test_what_readers_have_said_at_a_barrier_is_heard_though_an_open_epoch_follows() -> None:
    made, enumerator = coordinator([0.0])
    made.plan_epoch(2)
    made.on_epoch_read(answers("at the barrier"))
    made.receive("tasks", [(0, {"host": "here"}), (0, {"event": "later"})])
    made.plan_part(2)
    assert enumerator.heard[-3:] == [(0, "at the barrier"), ("reader", 0), (0, "later")]


def test_a_reader_that_has_more_is_given_nothing_and_others_not_too_much() -> None:
    made, enumerator = coordinator([0.0])
    enumerator.left = list(range(10_000))
    assert [len(told) for told in made.plan_epoch(2)] == [1001, 1001]
    more, nothing = InputStatus.MORE_AVAILABLE.value, InputStatus.NOTHING_AVAILABLE.value
    said = [{"tell": "answer", "subtask": i, "status": each, "events": []} for i, each in enumerate([more, nothing])]
    made.on_epoch_read([SourceSplit("", each) for each in said])
    assert [len(told) for told in made.plan_epoch(2)] == [1, 1001]


def test_a_reader_that_starts_again_hears_again_that_there_are_no_more_splits() -> None:
    made, enumerator = coordinator([0.0])
    enumerator.context.signal_no_more_splits(1)
    assert [[s.properties["tell"] for s in told] for told in made.plan_part(2)] == [[], [Tell.NO_MORE_SPLITS]]
    made.receive("again", [(1, {"host": "somewhere"}), (0, {"host": "there"})])
    assert [[s.properties["tell"] for s in told] for told in made.plan_part(2)] == [[], [Tell.NO_MORE_SPLITS]]
    assert enumerator.heard == [("reader", 1), ("reader", 0)]
    assert enumerator.context.registered_readers()[0].location == "there"


def test_calls_are_made_when_they_are_due() -> None:
    now, heard = [0.0], list[Any]()
    made, enumerator = coordinator(now)

    def look() -> float:
        if now[0] > 5:
            raise OSError("gone")
        return now[0]

    enumerator.context.call_async(look, lambda *found: heard.append(found), timedelta(seconds=1), timedelta(seconds=2))
    for now[0] in (0.0, 1.0, 2.0, 3.5, 4.0, 6.0):
        made.plan_part(2)
    assert heard[:2] == [(1.0, None), (3.5, None)]
    assert [type(each) for each in heard[2]] == [type(None), OSError]


def test_what_is_no_json_is_refused() -> None:
    _, enumerator = coordinator([0.0])
    with pytest.raises(ConfigurationError, match="get_split_serializer"):
        enumerator.context.assign_split({1, 2}, 0)
    with pytest.raises(ConfigurationError, match="no value of JSON"):
        enumerator.context.send_event_to_source_reader(0, b"x")
    with pytest.raises(ValueError, match="there is no reader 2"):
        enumerator.context.assign_split(1, 2)
