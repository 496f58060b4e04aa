"""A program keeps functions as they were when it was given them."""

# ruff: noqa: B023  # that is what it tries

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any, ClassVar

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import MapFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.program.given import Given

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


def test_functions_made_in_a_loop_have_each_its_own_variable() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    numbers = env.from_collection([1, 2, 3], Types.LONG())
    results = [numbers.filter(lambda n: n > least).map(lambda n: (least, n), PAIR) for least in (0, 2)]
    assert sorted(results[0].union(results[1]).execute_and_collect()) == [(0, 1), (0, 2), (0, 3), (2, 3)]


def test_keys_chosen_in_a_loop_have_each_its_own_variable() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    numbers = env.from_collection([1, 2, 3, 4], Types.LONG())
    keyed = [numbers.key_by(lambda n: n % divisor, Types.LONG()) for divisor in (1, 4)]
    sums = [stream.reduce(lambda a, b: a + b).uid(f"sum_{i}") for i, stream in enumerate(keyed)]
    assert sorted(sums[0].union(sums[1]).execute_and_collect()) == [1, 1, 2, 3, 3, 4, 6, 10]


def test_channels_chosen_in_a_loop_have_each_its_own_variable() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(3)
    numbers = env.from_collection([1, 2], Types.LONG()).set_parallelism(1)
    for subtask in (0, 2):
        numbers.partition_custom(lambda key, n: subtask, lambda n: n).print()
    partitioners = [edge.partitioner.custom for edge in env.get_job_graph().edges if edge.partitioner.custom]
    assert [partitioner(1, 3) for partitioner in partitioners] == [0, 2]


def test_code_that_has_not_changed_is_the_same_object() -> None:
    seen = list[int]()

    def note(number: int) -> None:
        seen.append(number)

    assert Given(note).as_given() is note


def test_code_with_a_type_of_which_rows_were_made_since_has_not_changed() -> None:
    kind = Types.ROW_NAMED(["n"], [Types.LONG()])

    def declared() -> object:
        return kind

    given = Given(declared)
    kind.to_arrow([kind.row(1)])
    assert given.as_given() is declared


def test_code_that_has_changed_is_as_it_was_each_time() -> None:
    factor = 2
    given = Given(lambda n: n * factor)
    factor = 3
    assert given.as_given()(1) == 2
    assert given.as_given()(1) == 2


def test_the_class_of_an_object_that_has_changed_stays_as_it_is() -> None:
    rate = 1

    class Times:
        factor = 2

        def __call__(self, number: int) -> int:
            return self.factor * rate * number

    times = Times()
    given = Given(times)
    times.factor = 3
    assert given.as_given()(1) == 2
    rate = 10
    assert times(1) == 30


def test_objects_of_a_class_have_each_the_variables_that_its_methods_read_when_it_was_given() -> None:
    class Order:
        def __init__(self, number: int) -> None:
            self.number = number

    class Times:
        def times(self, number: int) -> int:
            return number * factor

    class Reads(Times):
        def __call__(self, number: int) -> Order:
            return Order(self.times(number))

    given = []
    for factor in (2, 3, 2, 5):  # noqa: B007  # methods read it
        given.append(Given(Reads()))
    orders = [each.as_given()(1) for each in given]
    assert [order.number for order in orders] == [2, 3, 2, 5]
    assert {type(order) for order in orders} == {Order}
    factor = 7
    assert Reads()(1).number == 7


def test_a_class_that_is_pickled_before_its_objects_has_not_changed() -> None:
    """Pickle notes something in the class of the first object, which looked like a change."""

    class Money:
        def __init__(self, number: int) -> None:
            self.number = number

    class Least:
        def __init__(self) -> None:
            self.least = Money(2)

        def __call__(self, value: Any) -> bool:
            return isinstance(value, Money)

    least = Least()
    given = Given(least)
    assert given.as_given() is least


def test_methods_know_the_class_that_has_changed() -> None:
    class Order:
        def total(self) -> int:
            return factor

    class Takes:
        def __init__(self) -> None:
            self.order = Order()

        def __call__(self) -> tuple[bool, bool, int]:
            return isinstance(self.order, Order), type(Order()) is type(self.order), self.order.total()

    factor = 2
    given = Given(Takes())
    factor = 3
    assert given.as_given()() == (True, True, 2)
    assert Takes()() == (True, True, 3)


def test_code_that_has_changed_has_the_objects_of_its_classes() -> None:
    """It had copies: what a function wrote into a dictionary, a method did not find there."""
    noted = dict[int, str]()

    class Notes:
        def read(self, number: int) -> str:
            return noted[number]

    def note(number: int) -> str:
        noted[number] = name
        return Notes().read(number)

    given = []
    for name in ("a", "b"):  # noqa: B007  # the function reads it
        given.append(Given(note))
    assert [each.as_given()(1) for each in given] == ["a", "b"]


def test_what_cannot_be_pickled_is_taken_as_it_is() -> None:
    lock = threading.Lock()
    given = Given(lambda: lock)
    assert given.as_given()() is lock


def test_what_cannot_be_unpickled_is_taken_as_it_is() -> None:
    class OfSession:
        session = "first"

        def __reduce__(self) -> Any:
            return self._made, (self.session,)

        @staticmethod
        def _made(session: str) -> Any:
            raise RuntimeError(f"session {session} has ended")

    value = OfSession()
    given = Given(lambda: value)
    value.session = "second"
    assert given.as_given()() is value


def test_importing_streams_does_not_import_the_pickler() -> None:
    code = "import dagster_flinkpy.datastream, sys; sys.exit('cloudpickle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_function_that_its_class_lists_is_as_it_was_each_time() -> None:
    class Times(MapFunction):
        listed: ClassVar[list[Times]] = []

        def __init__(self, factor: int) -> None:
            self.factor = factor
            self.listed.append(self)

        def map(self, value: int) -> int:
            return value * self.factor

    times = Times(2)
    given = Given(times)
    times.factor = 3
    assert given.as_given().map(7) == 14
