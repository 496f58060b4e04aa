"""Live tasks in slots that nothing drives but the test: it says who works, what arrives, and who hears of an epoch."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.datastream import DataStream, SlotSharingGroup
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows, TumblingProcessingTimeWindows
from dagster_flinkpy.errors import SlotLostError
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.exchange.places import Places, input_channels, output_channels
from dagster_flinkpy.runtime.master.deployments.pipelined_region import places_of
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.runtime.shipping import dump_job, load_job
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.runtime.slot.deployment import _TIMER_SECONDS, SlotDeployment, Turns
from dagster_flinkpy.runtime.slot.pipelined_task import PipelinedTask
from dagster_flinkpy.runtime.task.task_metrics import TaskTimes
from tests.examples import examples
from tests.runtime.harness import collect_graph, collected, make_job
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, environment, events

EPOCHS = 5
RECORDS = [(f"k{i % 5}", i, 1) for i in range(24)]


class _Link:
    """A connection, on which things arrive when the test says so."""

    ask_at = inf

    def __init__(self, target: str, network: deque[WireRow]) -> None:
        self._target, self._network = target, network
        self._rows: list[WireRow] = []
        self.is_lost = False

    def add(self, row: WireRow) -> None:
        self._rows.append(row)

    def open(self) -> None:
        pass

    def await_answer(self) -> None:
        pass

    def flush(self) -> None:
        if self._rows and self.is_lost:
            raise SlotLostError(f"slot {self._target} is gone")
        self._network.extend(self._rows)
        self._rows.clear()

    def cancel(self) -> None:
        pass


class Slots:
    """The slots of a job, whose messages wait until the test lets them arrive.

    Args:
        job: The first epoch.
        later: The others.
        per_process: How many of Flink's slots share one.
    """

    def __init__(self, job: EpochJob, later: list[EpochInput], per_process: int = 1) -> None:
        self.epochs = [job.epoch, *later]
        places = places_of(job.graph, per_process=per_process)
        self.names = sorted(set(places.values()))
        self.rows: list[WireRow] = []
        self._network: defaultdict[tuple[str, str], deque[WireRow]] = defaultdict(deque)
        self._links: dict[tuple[str, str], _Link] = {}
        self._mails: dict[str, deque[Callable[[], None]]] = {name: deque() for name in self.names}
        self._begun = dict.fromkeys(self.names, 0)
        program = dump_job(replace(job, pipelined=True, buffer_timeout=0.0))
        self._turns = {name: Turns() for name in self.names}
        self._slots = {name: self._create(name, program, places) for name in self.names}
        for slot in self._slots.values():
            slot.open()

    def _create(self, name: str, program: bytes, places: Places) -> SlotDeployment:
        def link(target: str, deployment: SlotDeployment) -> Any:
            made = self._links[name, target] = _Link(target, self._network[name, target])
            return made

        return SlotDeployment(
            "deployment",
            lambda: load_job(program),
            places,
            name,
            link=link,
            to_driver=self.rows.append,
            later=self._mails[name].append,
            wake=lambda: None,
        )

    def begin(self, name: str) -> None:
        """A slot hears of its next epoch."""
        number = self._begun[name]
        if number < len(self.epochs):
            self._begun[name] += 1
            self._slots[name].in_all(lambda task: task.begin(self.epochs[number]))

    def work(self, name: str) -> None:
        """A slot does a round of steps."""
        mails, slot = self._mails[name], self._slots[name]
        while mails:
            mails.popleft()()
        turns = self._turns[name]
        turns.next_round()
        for _ in slot.steps(turns):
            pass
        slot.rest(turns.any_ready)

    def lose(self, name: str) -> None:
        """Nobody reaches a slot any more."""
        for (_, target), link in self._links.items():
            link.is_lost |= target == name

    def cancel(self, name: str) -> None:
        """A slot is to give up what it does."""
        self._slots[name].cut()

    def arrive(self, name: str) -> None:
        """Whatever is under way to a slot arrives: rows, and credits."""
        for (_, target), rows in self._network.items():
            while target == name and rows:
                self._slots[name].put(rows.popleft())
        for sender in self._slots.values():
            if credits := sender.credits.pop(name, None):
                rows_of_credits = [(*channel, number) for channel, number in credits.items()]
                self._slots[name].add_credits(np.array(rows_of_credits, dtype=np.int32))

    def run_to_the_end(self, tasks: int) -> list[EpochResults]:
        """Lets everything happen that is left, and returns the results for each checkpoint."""
        for _ in range(2_000):
            for name in self.names:
                self.begin(name)
                self.arrive(name)
                self.work(name)
            results = [EpochResults.of(self.rows, epoch.checkpoint_id) for epoch in self.epochs]
            if (failure := results[0].failure) is not None:
                raise failure.error
            if all(len(each.states) == tasks for each in results):
                return results
        raise AssertionError(f"the tasks wait for each other: {[len(each.states) for each in results]} of {tasks}")


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    readers=st.integers(1, 3),
    counters=st.integers(1, 3),
    rebalances=st.booleans(),
    mode=st.sampled_from(["aligned", "unaligned", "at least once"]),
    small=st.booleans(),
    per_process=st.integers(1, 3),
    steps=st.lists(st.tuples(st.sampled_from(["begin", "work", "arrive"]), st.integers(0, 2)), max_size=60),
)
# The slot without a source gets the barrier of an epoch of which it has not heard.
@example(
    readers=1,
    counters=2,
    rebalances=False,
    mode="aligned",
    small=False,
    per_process=1,
    steps=[("begin", 0), ("begin", 1), ("begin", 0), *[("work", 0)] * 12, ("arrive", 1), ("work", 1)],
)
@example(
    readers=1,
    counters=2,
    rebalances=False,
    mode="unaligned",
    small=False,
    per_process=1,
    steps=[("begin", 0), ("begin", 1), ("begin", 0), ("begin", 0), *[("work", 0)] * 18, ("arrive", 1), ("work", 1)],
)
def test_whoever_is_first_the_outcome_is_the_same(
    readers: int,
    counters: int,
    rebalances: bool,
    mode: str,
    small: bool,
    per_process: int,
    steps: list[tuple[str, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stream = events(environment(counters), RECORDS, per_epoch=6).set_parallelism(readers)
    if rebalances:
        stream = stream.rebalance().map(lambda v: v, EVENT).uid("map")
    graph = collect_graph(stream.key_by("key").process(CountPerKey(), COUNTED).uid("count"))
    (source,) = (v for v in graph.vertices if v.uid == "events")
    enumerator = source.spec.source.create_enumerator(None)
    epochs = []
    for number in range(1, EPOCHS + 1):
        shares = enumerator.plan_epoch(readers)  # nothing is left for the last one, but what is in flight before it
        enumerator.on_epoch_read([replace(split, finished=True) for share in shares for split in share])
        ended = frozenset({"events"} if number == EPOCHS else ())
        epochs.append(EpochInput(number, {("events", i): tuple(splits) for i, splits in enumerate(shares)}, ended))
    assert enumerator.exhausted
    job = make_job(graph, tmp_path_factory.mktemp("job"), inputs={})
    job = replace(
        job,
        epoch=epochs[0],
        mode=CheckpointingMode.AT_LEAST_ONCE if mode == "at least once" else CheckpointingMode.EXACTLY_ONCE,
        alignment_timeout=timedelta(0) if mode == "unaligned" else None,
    )
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr("dagster_flinkpy.runtime.slot.deployment.CREDIT", 1)
            patch.setattr("dagster_flinkpy.runtime.slot.pipelined_task._ROWS_AT_ONCE", 1)
            patch.setattr("dagster_flinkpy.runtime.shuffle.record_writer.BUFFER_SIZE", 1)
        slots = Slots(job, epochs[1:], per_process)
        for what, number in steps:
            getattr(slots, what)(slots.names[number % len(slots.names)])
        results = slots.run_to_the_end(sum(v.parallelism for v in graph.vertices))
    for each in results:
        each.check_consistent()
    seen = Counter[str]()
    expected = []
    for key, _, _ in RECORDS:
        seen[key] += 1
        expected.append((key, seen[key], seen[key]))
    assert sorted(collected(graph, results[-1].collected)) == sorted(expected)
    for task, state in results[-1].states.items():
        assert state.watermark is not None or task.uid == "collect"
        if task.uid in ("events", "count"):  # the others may be chained
            assert ("in_pool_usage" in state.metrics) is (task.uid == "count")


def counting(folder: Path) -> EpochJob:
    """Returns the job of a program that counts events by key, with all of its input in the first epoch."""
    return of_events(folder, events(environment(2), RECORDS).key_by("key").process(CountPerKey(), COUNTED).uid("count"))


def of_events(folder: Path, stream: DataStream) -> EpochJob:
    graph = collect_graph(stream)
    source = graph.vertex("events").spec.source
    splits = {("events", i): tuple(each) for i, each in enumerate(source.create_enumerator(None).plan_epoch(2))}
    return replace(make_job(graph, folder, inputs={}), epoch=EpochInput(1, splits))


def test_a_slot_looks_at_the_clock_only_where_time_alone_gives_something_to_do(tmp_path: Path) -> None:
    def job(make: Callable[[DataStream], DataStream]) -> EpochJob:
        return of_events(tmp_path, make(events(environment(2), RECORDS)))

    passed = job(lambda stream: stream.rebalance().map(lambda event: event, EVENT).uid("map"))
    by_event = job(lambda stream: stream.key_by("key").window(TumblingEventTimeWindows(5)).count().uid("windows"))
    by_clock = job(lambda stream: stream.key_by("key").window(TumblingProcessingTimeWindows(5)).count().uid("windows"))
    aligning = replace(passed, alignment_timeout=timedelta(1))
    waits = {inf: [passed, by_event], _TIMER_SECONDS: [by_clock, aligning, counting(tmp_path)]}
    for seconds, jobs in waits.items():
        for each in jobs:
            slot, _ = Slots(each, [])._slots.values()
            slot.rest(worked=False)  # sends what functions may have emitted when they were opened
            assert slot.rest(worked=False) == seconds


def test_what_a_step_sends_leaves_before_the_next_step(tmp_path: Path) -> None:
    slots = Slots(counting(tmp_path), [])
    first, second = slots.names
    slots.begin(first)
    for _ in range(2):
        slots._turns[first].next_round()
        steps = slots._slots[first].steps(slots._turns[first])
        next(steps)
        if slots._network[first, second]:
            break
    assert slots._network[first, second], "the source has sent records, which the tasks of the second slot wait for"
    assert list(steps), "there are tasks that have not run yet"


@pytest.mark.parametrize("cancelled", [False, True])
def test_credits_for_a_slot_that_is_gone_end_the_deployment_and_not_the_slot(
    cancelled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_flinkpy.runtime.slot.deployment.CREDIT", 1)
    monkeypatch.setattr("dagster_flinkpy.runtime.shuffle.record_writer.BUFFER_SIZE", 1)
    slots = Slots(counting(tmp_path), [])
    first, second = slots.names
    slots.begin(first)
    for _ in range(10):
        slots.work(first)
    slots.arrive(second)
    for _ in range(10):
        slots.work(second)  # it has room again
    slots.lose(second)
    if cancelled:
        slots.cancel(first)
    slots.arrive(first)
    slots.work(first)
    failure = EpochResults.of(slots.rows, 1).failure
    assert (failure is None) == cancelled
    assert failure is None or isinstance(failure.error, SlotLostError)


def test_a_source_that_waits_for_room_is_back_pressured_whatever_else_the_slot_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_flinkpy.runtime.slot.deployment.CREDIT", 1)
    monkeypatch.setattr("dagster_flinkpy.runtime.shuffle.record_writer.BUFFER_SIZE", 1)
    slots = Slots(counting(tmp_path), [])
    first = slots._slots[slots.names[0]]
    task = next(task for task in first.tasks.values() if task.stage == 0)
    slots.begin(slots.names[0])
    while task.is_available:
        slots.work(slots.names[0])
    assert task._reading is not None, "the other slot gives no credits"
    nanos = [0]
    task.times = TaskTimes(lambda: nanos[0])
    for _ in range(3):
        nanos[0] += 1_000_000
        first.in_all(PipelinedTask.on_processing_time)
        nanos[0] += 1_000_000
        first.rest(worked=False)
    nanos[0] += 1_000_000
    task.resume()
    assert task.times.take("events") == {"busy_us": 0, "idle_us": 0, "back_pressured_us": 7_000}


# --- places -----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(readers=st.integers(1, 4), counters=st.integers(1, 4), per_process=st.integers(1, 5))
def test_what_one_task_sends_to_is_what_another_receives_from(
    readers: int, counters: int, per_process: int, tmp_path: Path
) -> None:
    stream = events(environment(counters), RECORDS).set_parallelism(readers)
    graph = collect_graph(stream.key_by("key").process(CountPerKey(), COUNTED).uid("count"))
    places = places_of(graph, per_process=per_process)
    sent = {
        (edge.id, index, target)
        for uid, index in places
        for edge, target in output_channels(graph, [graph.vertex(uid)], index)
    }
    received = {
        (edge.id, sender, index)
        for uid, index in places
        for edge, sender in input_channels(graph, [graph.vertex(uid)], index)
    }
    assert sent == received
    for edge, sender, target in sent:
        assert (graph.edges[edge].source, sender) in places
        assert (graph.edges[edge].target, target) in places
    numbers = [{index for (_, index), slot in places.items() if slot == name} for name in set(places.values())]
    assert sorted(index for each in numbers for index in each) == list(range(max(readers, counters))), "all, once"
    assert max(map(len, numbers)) <= per_process
    assert max(map(len, numbers)) - min(map(len, numbers)) <= 1, "they are spread evenly"


def test_operators_of_different_groups_share_no_slot_whatever_stage_they_are_in() -> None:
    env = environment(2)
    counted = (
        events(env, RECORDS).key_by("key").process(CountPerKey(), COUNTED).uid("count").slot_sharing_group("heavy")
    )
    others = events(env, RECORDS, uid="others").slot_sharing_group("others").map(lambda record: record, EVENT)
    others.uid("copies").key_by("key").process(CountPerKey(), COUNTED).uid("count-others")
    counted.map(lambda count: count, COUNTED).uid("last")
    slots = places_of(env.get_job_graph())
    assert {uid: slot for (uid, index), slot in slots.items() if index == 1} == {
        "events": "default-1",
        "count": "heavy-1",
        "last": "heavy-1",
        "others": "others-1",
        "copies": "others-1",
        "count-others": "others-1",
    }


def test_slots_of_a_group_that_asks_for_resources_share_no_process() -> None:
    env = environment(4)
    model = SlotSharingGroup.builder("model").set_cpu_cores(1).set_task_heap_memory_mb(64).build()
    events(env, RECORDS).key_by("key").process(CountPerKey(), COUNTED).uid("count").slot_sharing_group(model)
    places = places_of(env.get_job_graph(), per_process=4)
    assert len({places["events", index] for index in range(4)}) == 1
    assert len({places["count", index] for index in range(4)}) == 4
