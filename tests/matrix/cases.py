"""Cases that hypothesis generates: programs, and ways to run them that must not change the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.matrix.programs import BOUND, LIVE, ORDERED, SEVERAL_INPUTS, Input, Leg, Path_, Program, Sources
from tests.matrix.run import Settings

__all__ = ["any_order", "in_order", "live_only", "three_inputs"]

_EPOCH = 2 * BOUND
"""Milliseconds from one epoch to the next in programs without late records."""


def _records(times: st.SearchStrategy[int], most: int) -> st.SearchStrategy[Any]:
    record = st.tuples(st.sampled_from("abc"), times, st.integers(0, 9))
    return st.lists(record, max_size=most).map(tuple)


def _some(legs: list[Leg]) -> st.SearchStrategy[tuple[Leg, ...]]:
    return st.lists(st.sampled_from(legs), min_size=1, max_size=2, unique=True).map(tuple)


def _settings(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[Settings]:
    return st.builds(
        Settings,
        parallelism=st.integers(1, 4),
        epochs=st.integers(1, 4),
        heap=st.booleans(),
        swaps=st.booleans(),
        small=st.booleans(),
        attempts=st.booleans(),
        task_slots=st.integers(1, 3),
        crashes=st.frozensets(st.integers(0, 2), max_size=1),
        raises=st.frozensets(st.integers(0, 20), max_size=2),
        **more,
    )


_rescale = st.dictionaries(st.integers(1, 3), st.integers(1, 4), max_size=1)
_savepoints = st.frozensets(st.integers(1, 3), max_size=1)


@st.composite
def in_order(draw: st.DrawFn) -> tuple[Program, Settings]:
    """Records may be late. Only one subtask of the source reads at a time, and channels are read in Spark's order.

    Then the late records, and the order of a key's records, are the same however the job is run.
    """
    split = _records(st.integers(0, 120), 7)
    epochs = draw(st.lists(st.lists(split, max_size=1).map(tuple), min_size=1, max_size=5))
    legs = [leg for leg in Leg if leg not in SEVERAL_INPUTS | LIVE | {Leg.SIDES, Leg.ASYNC}]
    program = Program(
        (Input(tuple(epochs), draw(st.booleans())),),
        draw(st.sampled_from([Path_.DIRECT, Path_.MAP, Path_.STAMPED])),
        draw(_some(legs)),
        ends=draw(st.booleans()),
        spoils=draw(st.booleans()),
    )
    if not program.ends and draw(st.booleans()):
        settings = draw(_settings(rescale=_rescale, partitions=st.just(True)))
    else:
        settings = draw(_settings(rescale=_rescale, savepoints=_savepoints))
    if program.ends:
        one_by_one = [each for each in Sources if each is not Sources.SLICED]
        settings = replace(settings, sources=draw(st.sampled_from(one_by_one)))
    # Readers do not take turns, unless there is only one. Of live tasks, each operator has one channel.
    if (live := draw(st.booleans())) or settings.sources is Sources.READERS:
        return program, replace(settings, live=live, parallelism=1, rescale={})
    return program, settings


@st.composite
def any_order(draw: st.DrawFn) -> tuple[Program, Settings]:
    """Sources are read in parallel, in any order. No record is late, and no result depends on the order."""
    inputs = []
    for _ in range(draw(st.integers(1, 3))):
        epochs = []
        for number in range(draw(st.integers(1, 4))):
            times = st.integers(number * _EPOCH, number * _EPOCH + BOUND)
            epochs.append(tuple(draw(st.lists(_records(times, 4), max_size=3))))
        inputs.append(Input(tuple(epochs), draw(st.booleans())))
    legs = [leg for leg in Leg if leg not in ORDERED]
    program = Program(tuple(inputs), draw(st.sampled_from(Path_)), draw(_some(legs)), spoils=draw(st.booleans()))
    order = st.none() | st.integers(0, 999)
    common = {"order": order, "savepoints": _savepoints, "live": st.booleans(), "sources": st.sampled_from(Sources)}
    common |= {"slow": st.booleans(), "running": st.booleans(), "drift": st.none() | st.integers(0, _EPOCH)}
    settings = draw(
        _settings(unaligned=st.just(True), lags=st.booleans(), rescale=_rescale, **common)
        | _settings(at_least_once=st.booleans(), rescale=_rescale, **common)
    )
    if LIVE & {*program.legs}:
        settings = replace(settings, live=True, at_least_once=False)
    return program, settings


def three_inputs() -> st.SearchStrategy[tuple[Program, Settings]]:
    """As `any_order`, of an operator with three inputs; with fewer sources some of them read the same one."""
    return any_order().map(lambda case: (replace(case[0], legs=(Leg.JOIN_THREE,)), case[1]))


def live_only() -> st.SearchStrategy[tuple[Program, Settings]]:
    """As `any_order`, of an operator whose tasks must live."""

    def with_leg(case: tuple[Program, Settings], leg: Leg) -> tuple[Program, Settings]:
        return replace(case[0], legs=(leg,)), replace(case[1], live=True, at_least_once=False)

    return st.builds(with_leg, any_order(), st.sampled_from(sorted(LIVE, key=lambda leg: leg.value)))
