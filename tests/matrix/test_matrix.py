"""Compares jobs that hypothesis generates with one uninterrupted run of the same program at parallelism 1."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings

from tests.examples import examples
from tests.matrix.cases import any_order, in_order, three_inputs
from tests.matrix.programs import Input, Leg, Path_, Program
from tests.matrix.run import Settings, check

properties = settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
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
def test_the_order_in_which_channels_are_read_changes_nothing(case: tuple[Program, Settings]) -> None:
    check(*case)


@settings(properties, max_examples=examples(10))
@given(case=three_inputs())
def test_how_a_job_with_an_operator_of_three_inputs_is_run_changes_nothing(case: tuple[Program, Settings]) -> None:
    check(*case)
