from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from sys import getrefcount
from typing import Any

import numpy as np
import pytest

from dagster_flinkpy.common import Row, RowKind, Types
from dagster_flinkpy.common.copies import ALONE, copied, flat_rows, only_reads, unchanging_types, whole_copy
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch


@dataclass
class Seen:
    numbers: list[int]


def change(value: Any) -> None:
    """Changes the innermost list or dict."""
    if isinstance(value, list) and value and not isinstance(value[-1], int):
        change(value[-1])
    elif isinstance(value, list):
        value.append(0)
    elif isinstance(value, dict):
        change(next(iter(value.values())))
    elif isinstance(value, (Row, tuple)):
        change(value[-1])
    else:
        value.numbers.append(0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [1],
        lambda: {"k": [1]},
        lambda: (1, [2]),
        lambda: (1, ("a", {"k": [1]})),
        lambda: Row(1, [2]),
        lambda: Row(n=1, seen=[(1, [2])]),
        lambda: Row([2]),
        lambda: Seen([1]),
        lambda: (1, Seen([1])),
    ],
)
def test_a_copy_is_equal_and_stays_when_the_value_changes(make: Any) -> None:
    value = make()
    copy = copied(value)
    assert copy == value
    assert type(copy) is type(value)
    change(value)
    assert value != make()
    assert copy == make()


@pytest.mark.parametrize("value", [None, 1, "text", b"bytes", (1, "text", None), threading.Lock()])
def test_what_does_not_change_or_cannot_be_copied_is_given_as_it_is(value: Any) -> None:
    assert copied(value) is value


class Groups:
    """Its last group is open."""

    def __init__(self) -> None:
        self.open = [1]
        self.all = [self.open]


def test_what_is_one_object_in_a_value_is_one_in_its_copy() -> None:
    open_group, seen, groups, itself = [1], Seen([1]), Groups(), [[1]]
    itself.append(itself)  # type: ignore[arg-type]
    lock = threading.Lock()
    value = {"all": [open_group, (seen, 2)], "row": Row(open_group, [seen, groups.open]), "groups": groups}
    copy = copied({**value, "itself": itself, "locked": [[groups, lock], groups]})
    assert copy["row"][0] is copy["all"][0] is not open_group
    assert copy["row"][1][0] is copy["all"][1][0] is not seen
    assert copy["groups"].open is copy["groups"].all[0] is copy["row"][1][1] is not groups.open
    assert copy["itself"][1] is copy["itself"] is not itself
    assert copy["locked"][0][0] is copy["locked"][1] is copy["groups"]
    assert copy["locked"][0][1] is lock


class Unfinished:
    """Cannot be copied: its last part cannot."""

    def __init__(self, *parts: Any) -> None:
        self.parts = [*parts, threading.Lock()]


def test_a_copy_that_fails_leaves_nothing_unfinished_to_others() -> None:
    rest = Unfinished([1]).parts
    unfinished = Unfinished()
    unfinished.parts = rest
    copy = copied([unfinished, rest])
    assert copy == [unfinished, rest]
    assert copy[1] is not rest


def test_a_whole_copy_of_what_cannot_be_copied_is_refused() -> None:
    assert whole_copy({"k": [1]}) == {"k": [1]}
    for value in (hashlib.md5(), {"hash": [hashlib.md5()]}, Unfinished()):
        with pytest.raises(TypeMismatchError, match="can be neither copied nor pickled"):
            whole_copy(value)


def test_a_row_keeps_its_kind() -> None:
    row = Row.of_kind(RowKind.DELETE, 1, [2])
    assert copied(row).get_row_kind() is RowKind.DELETE


def test_only_tuples_of_basic_types_need_no_look_at_their_fields() -> None:
    assert tuple in unchanging_types(Types.TUPLE([Types.STRING(), Types.LONG()]))
    assert tuple not in unchanging_types(Types.TUPLE([Types.STRING(), Types.LIST(Types.LONG())]))
    assert tuple not in unchanging_types(Types.PICKLED_BYTE_ARRAY())
    assert list not in unchanging_types(Types.TUPLE([Types.LONG()]))


def test_only_rows_of_basic_types_are_flat() -> None:
    flat = flat_rows(Types.ROW_NAMED(["a"], [Types.LONG()]))
    assert type(Row(1)) in flat
    assert type(Row(a=1)) in flat
    assert not flat_rows(Types.ROW([Types.LIST(Types.LONG())]))
    assert not flat_rows(Types.PICKLED_BYTE_ARRAY())


def test_a_value_that_somebody_keeps_is_not_alone() -> None:
    def kept() -> Iterator[Row]:
        row = Row(1)
        yield row
        row[0] = 2

    for row in map(Row, range(3)):
        assert getrefcount(row) == ALONE
    for row in kept():
        assert getrefcount(row) > ALONE


PERSON = Types.ROW_NAMED(["name", "age", "as_dict"], [Types.STRING(), Types.LONG(), Types.LONG()])


class Watches:
    def __init__(self) -> None:
        self.last: Any = None

    def reads(self, row: Any) -> bool:
        return bool(row.age > 17 and row.name.startswith("A"))

    def keeps(self, row: Any) -> bool:
        self.last = row
        return bool(row.age > 17)

    def __call__(self, row: Any) -> bool:
        return self.keeps(row)


def _sets(row: Any) -> bool:
    row.age += 1
    return bool(row.age > 17)


def _sets_what_has_its_name(age: Any) -> bool:
    age.age += 1
    return bool(age.age > 17)


def _rebinds(row: Any) -> bool:
    row = [row]
    return bool(row[0].age > 17)


def _nests(row: Any) -> bool:
    return any(row.age > limit for limit in (17, 18))


@pytest.mark.parametrize(
    "function",
    [lambda row: row.age > 17, lambda row, time=0: row.name, lambda age: age.age, Watches().reads],
)
def test_a_function_that_only_reads_fields_is_known(function: Any) -> None:
    assert only_reads(function, PERSON)


@pytest.mark.parametrize(
    "function",
    [
        lambda row: row,
        lambda row: row[1] > 17,
        lambda row: row.set_field_names(["a", "b", "c"]),
        lambda row: row.as_dict,  # not the field, which is only row["as_dict"]
        lambda row: row._values,
        lambda row: locals()["row"].age,
        lambda row: (lambda: row.age)(),
        lambda *rows: rows[0].age,
        _sets,
        _sets_what_has_its_name,
        _rebinds,
        _nests,
        Watches().keeps,
        Watches(),
        len,
    ],
)
def test_a_function_that_may_do_more_with_a_row_is_not_said_to_only_read_it(function: Any) -> None:
    assert not only_reads(function, PERSON)


def test_a_field_that_can_change_is_more_than_read() -> None:
    assert not only_reads(lambda row: row.tags.append(1), Types.ROW_NAMED(["tags"], [Types.LIST(Types.LONG())]))
    assert not only_reads(lambda row: row.age, Types.TUPLE([Types.LONG()]))


def test_rows_that_a_function_only_reads_are_made_once() -> None:
    column = PERSON.to_arrow([Row("Ada", 36, 0)])
    watches = Watches()
    for function, once in [(watches.reads, True), (watches.keeps, False)]:
        batch = StreamBatch(PERSON, np.zeros(1, dtype=np.int64), column=column)
        assert (next(batch.lent(function)) is batch.values[0]) is once
