from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.runtime.task.task_metrics import TaskTimes


def times_of(busy_us: int, idle_us: int, back_pressured_us: int) -> dict[str, int]:
    return {"busy_us": busy_us, "idle_us": idle_us, "back_pressured_us": back_pressured_us}


OPERATORS = ("source", "map", "count", "sink")


class Clock:
    def __init__(self) -> None:
        self.nanos = 0

    def __call__(self) -> int:
        return self.nanos

    def pass_by(self, micros: int) -> None:
        self.nanos += micros * 1_000


def test_an_operator_is_busy_held_up_by_those_behind_it_or_idle() -> None:
    clock = Clock()
    times = TaskTimes(clock)
    clock.pass_by(1)  # Spark brings the input
    times.enter("map")
    clock.pass_by(10)
    times.enter("sink")
    clock.pass_by(200)
    times.leave()
    clock.pass_by(3_000)
    times.leave()
    for _ in times.given([b"output"]):
        clock.pass_by(40_000)  # Spark takes the output
    assert times.take("map") == times_of(busy_us=3_010, idle_us=1, back_pressured_us=40_200)
    assert times.take("sink") == times_of(busy_us=200, idle_us=3_011, back_pressured_us=40_000)
    clock.pass_by(7)
    assert times.take("map") == times_of(0, 7, 0), "each call begins anew"


def test_a_source_that_is_in_the_middle_of_its_input_waits_for_spark_too() -> None:
    clock = Clock()
    times = TaskTimes(clock)
    times.enter("source")
    clock.pass_by(5)
    for _ in times.given([1, 2]):
        clock.pass_by(30)
    clock.pass_by(5)
    times.leave()
    assert times.take("source") == times_of(busy_us=10, idle_us=0, back_pressured_us=60)


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What happens to a task, and how long each of it takes in microseconds."""
    happenings = st.sampled_from(("enter", "leave", "give", "take"))
    return draw(st.lists(st.tuples(happenings, st.integers(0, 1_000)), max_size=40))


@given(lives())
def test_each_moment_of_an_operator_counts_once(life: list[tuple[str, int]]) -> None:
    clock = Clock()
    times, running = TaskTimes(clock), list[str]()
    expected = {uid: Counter[str]() for uid in OPERATORS}

    def pass_by(micros: int, given_out: bool = False) -> None:
        clock.pass_by(micros)
        for uid in OPERATORS:
            state = "idle"
            if given_out or uid in running[:-1]:
                state = "held"
            elif running and uid == running[-1]:
                state = "busy"
            expected[uid][state] += micros

    def outputs() -> Iterator[int]:
        yield 1

    for happening, micros in life:
        if happening == "enter" and len(running) < len(OPERATORS):
            times.enter(OPERATORS[len(running)])
            running.append(OPERATORS[len(running)])
        elif happening == "leave" and running:
            times.leave()
            running.pop()
        elif happening == "give":
            for _ in times.given(outputs()):
                pass_by(micros, given_out=True)
        elif happening == "take":
            for uid in OPERATORS:
                found, counted = times.take(uid), expected[uid]
                assert found == times_of(counted["busy"], counted["idle"], counted["held"])
                counted.clear()
        pass_by(micros)
