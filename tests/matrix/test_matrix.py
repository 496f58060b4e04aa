"""Compares jobs that hypothesis generates with one uninterrupted run of the same program at parallelism 1."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.examples import examples
from tests.matrix.cases import any_order, in_order, live_only, three_inputs
from tests.matrix.programs import Input, Leg, Path_, Program, Sources
from tests.matrix.run import Settings, check

pytestmark = pytest.mark.smoke

properties = settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)


_UNITED = Program(
    (Input((((("a", 1, 1), ("a", 2, 2), ("a", 3, 3)),),)), Input((((("b", 1, 4), ("b", 2, 5), ("b", 3, 6)),),))),
    Path_.DIRECT,
    (Leg.STATE,),
    spoils=True,
)


@properties
@given(case=in_order())
def test_how_a_job_is_run_changes_neither_what_comes_out_nor_what_is_late(case: tuple[Program, Settings]) -> None:
    check(*case)


@properties
@given(case=any_order())
# Before the last epoch all tasks are deployed again, because it is aligned. A checkpoint names what they wrote before.
@example(
    case=(
        Program((Input((((("a", 0, 3),),), ((("b", 45, 2),),), ((("a", 90, 1),),))),), Path_.BLOCKING, (Leg.STATE,)),
        Settings(parallelism=2, unaligned=True, live=True),
    )
)
# Each of the two inputs has a map of its own in one stage. A full channel of one must not stop the other.
@example(
    case=(
        Program(
            (
                Input(
                    (
                        ((), (("b", 48, 4),), (("a", 59, 0), ("b", 46, 7), ("c", 46, 9), ("c", 55, 3)), ()),
                        ((("c", 97, 4), ("c", 99, 6)), (("c", 81, 3),), (("a", 85, 3), ("c", 89, 2))),
                    ),
                    idleness=True,
                ),
                Input(((), ((),)), idleness=True),
            ),
            Path_.REBALANCE,
            (Leg.SLIDING, Leg.ODD_KEYS),
        ),
        Settings(parallelism=3, epochs=3, small=True, savepoints=frozenset({1}), live=True, raises=frozenset({7, 20})),
    )
)
# Both sources are in one task: each may stop amid a split, and no reader waits for that of the other one.
@example(case=(_UNITED, Settings(live=True, sources=Sources.STOPPED)))
@example(case=(_UNITED, Settings(live=True, sources=Sources.READERS)))
# A reader that has read all is idle until its source ends. One window is still held by a subtask that is idle, too.
@example(
    case=(
        Program((Input((((), (("c", 80, 0),)),)),), Path_.DIRECT, (Leg.TWICE,)),
        Settings(parallelism=2, unaligned=True, live=True, task_slots=1, sources=Sources.READERS),
    )
)
# One source sends to two inputs. The one that is not selected must not hold up the other one.
@example(
    case=(
        Program(
            (
                Input((((("c", 15, 5),), (), (("c", 15, 5),)),), idleness=True),
                Input((((),), ((), (), ()), ()), idleness=True),
            ),
            Path_.STAMPED,
            (Leg.RULES, Leg.SELECT_THREE),
        ),
        Settings(parallelism=2, order=487, small=True, attempts=True, live=True, sources=Sources.READERS),
    )
)
# An input with planned splits that is not selected must not keep an open epoch from its end.
@example(
    case=(
        Program(
            inputs=(
                Input(
                    epochs=(((("b", 9, 4), ("b", 0, 6)), (("a", 19, 0), ("a", 15, 7), ("a", 15, 7), ("b", 18, 4))),),
                    idleness=True,
                ),
                Input(epochs=((),), idleness=False),
                Input(epochs=((), ((),)), idleness=True),
            ),
            path=Path_.DIRECT,
            legs=(Leg.SELECT_THREE,),
            ends=True,
            spoils=True,
        ),
        Settings(
            parallelism=2,
            epochs=3,
            order=882,
            unaligned=True,
            lags=True,
            at_least_once=False,
            heap=False,
            swaps=False,
            small=True,
            attempts=False,
            crashes=frozenset({2}),
            rescale={1: 2},
            savepoints=frozenset(),
            partitions=False,
            live=True,
            sources=Sources.STOPPED,
            raises=frozenset(),
        ),
    )
)
# In an open epoch, no subtask may be idle before the rows of another part have arrived.
@example(
    case=(
        Program(
            inputs=(
                Input(
                    epochs=(
                        ((("c", 13, 3), ("b", 16, 6), ("b", 2, 1), ("c", 0, 6)), (("c", 20, 4),)),
                        ((("a", 50, 2), ("b", 40, 2), ("a", 42, 3), ("a", 52, 0)),),
                        ((), (("b", 97, 0), ("b", 80, 1), ("c", 99, 2), ("b", 94, 5)), ()),
                        ((("c", 135, 9), ("a", 127, 2)),),
                    ),
                    idleness=True,
                ),
            ),
            path=Path_.REBALANCE,
            legs=(Leg.SLIDING, Leg.COLUMNS_OWN),
            ends=True,
            spoils=False,
        ),
        Settings(
            parallelism=4,
            epochs=1,
            order=None,
            unaligned=True,
            lags=False,
            at_least_once=False,
            heap=False,
            swaps=True,
            small=False,
            attempts=True,
            crashes=frozenset(),
            rescale={},
            savepoints=frozenset(),
            partitions=False,
            live=True,
            sources=Sources.STOPPED,
            raises=frozenset({2, 6}),
        ),
    )
)
# A record in flight at a checkpoint is processed as soon as its subtask runs, before the coordinator knows that.
@example(
    case=(
        Program(
            (
                Input((((("a", 16, 0), ("a", 4, 0)), (), (("a", 14, 0),)),), idleness=True),
                Input(
                    (
                        ((("a", 2, 0),),),
                        ((("a", 40, 0), ("a", 41, 0)), (("a", 54, 0), ("a", 45, 0), ("a", 46, 0))),
                        ((("a", 85, 0), ("a", 93, 0), ("a", 96, 0), ("a", 86, 0)),),
                        ((), (), (("a", 137, 0), ("a", 134, 0))),
                    ),
                    idleness=False,
                ),
                Input(
                    (
                        (),
                        (
                            (("a", 53, 0), ("a", 45, 0), ("a", 51, 0), ("a", 50, 0)),
                            (("c", 53, 0), ("a", 58, 6)),
                            (("b", 58, 5), ("a", 55, 6), ("b", 55, 9)),
                        ),
                        (
                            (("c", 96, 6), ("c", 88, 4), ("a", 100, 6), ("a", 95, 1)),
                            (("b", 84, 5), ("a", 96, 9), ("c", 91, 2), ("a", 91, 7)),
                        ),
                    ),
                    idleness=True,
                ),
            ),
            Path_.REBALANCE,
            (Leg.TOLD,),
            ends=True,
        ),
        Settings(parallelism=4, epochs=2, order=99, unaligned=True, small=True, attempts=True, live=True, task_slots=2),
    )
)
# Both maps are in one task. One that has passed a barrier must not fill the channel that waits for the other one.
@example(
    case=(
        Program(
            inputs=(
                Input(
                    epochs=(
                        ((("c", 10, 7), ("b", 8, 0), ("a", 7, 8), ("c", 20, 4)),),
                        ((),),
                        (
                            (("c", 100, 4), ("b", 92, 4), ("c", 100, 8), ("b", 87, 7)),
                            (("a", 89, 0), ("b", 83, 6), ("c", 87, 5), ("c", 81, 7)),
                        ),
                        ((("a", 139, 8), ("a", 121, 9), ("b", 133, 5), ("c", 129, 1)), (("a", 123, 2),)),
                    ),
                    idleness=False,
                ),
                Input(
                    epochs=(
                        ((("c", 15, 9), ("c", 12, 5), ("a", 13, 8), ("a", 14, 2)),),
                        ((("b", 59, 7), ("b", 48, 8)),),
                    ),
                    idleness=True,
                ),
            ),
            path=Path_.REBALANCE,
            legs=(Leg.TOLD, Leg.JOIN_THREE),
            ends=True,
            spoils=True,
        ),
        Settings(
            parallelism=3,
            epochs=4,
            order=103,
            unaligned=True,
            lags=True,
            at_least_once=False,
            heap=False,
            swaps=False,
            small=True,
            attempts=True,
            crashes=frozenset(),
            rescale={},
            savepoints=frozenset(),
            partitions=False,
            live=True,
            sources=Sources.PLANNED,
            raises=frozenset({16, 20}),
        ),
    )
)
# A window's timers have fired and are stored as such, beside the stored timers: read again, nothing is left of them.
@example(
    case=(
        Program(
            inputs=(
                Input(
                    epochs=(
                        (),
                        (
                            (("a", 55, 0), ("a", 54, 0), ("a", 54, 0), ("a", 44, 0)),
                            (("a", 59, 0), ("a", 58, 0), ("a", 43, 0), ("a", 47, 0)),
                        ),
                        (),
                        ((("a", 121, 0), ("a", 140, 0), ("a", 130, 0), ("a", 140, 0)), (), ()),
                    ),
                ),
                Input(epochs=(((), (("a", 16, 0), ("a", 0, 0), ("a", 0, 0), ("a", 0, 0))), (), (), ())),
                Input(epochs=(((), (("a", 0, 0), ("a", 0, 0), ("b", 13, 0)), ()), ())),
            ),
            path=Path_.DIRECT,
            legs=(Leg.STATE, Leg.SLIDING_REDUCED),
            ends=True,
        ),
        Settings(parallelism=1, epochs=1, unaligned=True, small=True, live=True),
    )
)
def test_the_order_in_which_channels_are_read_changes_nothing(case: tuple[Program, Settings]) -> None:
    check(*case)


@settings(properties, max_examples=examples(10))
@given(case=live_only())
def test_how_a_job_with_a_coordinator_or_selected_inputs_is_run_changes_nothing(case: tuple[Program, Settings]) -> None:
    check(*case)


@settings(properties, max_examples=examples(10))
@given(case=three_inputs())
def test_how_a_job_with_an_operator_of_three_inputs_is_run_changes_nothing(case: tuple[Program, Settings]) -> None:
    check(*case)
