from __future__ import annotations

import datetime
import decimal
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.key_types import infer_key_type
from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation, Types, type_from_json
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError, UnsupportedKeyTypeError

LONG, STRING = Types.LONG(), Types.STRING()


BASIC: list[tuple[TypeInformation, st.SearchStrategy[Any]]] = [
    (STRING, st.text()),
    (Types.BOOLEAN(), st.booleans()),
    (Types.BYTE(), st.integers(-(1 << 7), (1 << 7) - 1)),
    (Types.SHORT(), st.integers(-(1 << 15), (1 << 15) - 1)),
    (Types.INT(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (LONG, st.integers(-(1 << 63), (1 << 63) - 1)),
    (Types.FLOAT(), st.floats(width=32)),
    (Types.DOUBLE(), st.floats()),
    (Types.CHAR(), st.characters(codec="utf-8")),
    (Types.BIG_DEC(), st.decimals(allow_nan=False)),
    (Types.DECIMAL(20, 3), st.decimals(-(10**15), 10**15, places=3)),
    (Types.SQL_DATE(), st.dates()),
    (Types.SQL_TIME(), st.times().map(lambda t: t.replace(fold=0))),
    (Types.SQL_TIMESTAMP(), st.datetimes().map(lambda t: t.replace(fold=0))),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), st.binary()),
    (Types.PICKLED_BYTE_ARRAY(), st.integers() | st.text() | st.frozensets(st.integers(), max_size=1)),
    (Types.BIG_INT(), st.integers(-(10**76) + 1, 10**76 - 1)),
    (
        Types.INSTANT(),
        st.builds(lambda s, us: Instant(s, us * 1000), st.integers(-(10**9), 10**10), st.integers(0, 999_999)),
    ),
]


def nested(
    children: st.SearchStrategy[tuple[TypeInformation, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[TypeInformation, st.SearchStrategy[Any]]]:
    def nullable(child: tuple[TypeInformation, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
        return st.none() | child[1]

    def structs(fields: list[tuple[TypeInformation, st.SearchStrategy[Any]]]) -> Any:
        types = [kind for kind, _ in fields]
        values = st.tuples(*(nullable(field) for field in fields))
        names = [f"n{i}" for i in range(len(fields))]
        return st.sampled_from(
            [
                (Types.TUPLE(types), values),
                (Types.ROW(types), values.map(lambda v: named([f"f{i}" for i in range(len(v))], v))),
                (Types.ROW_NAMED(names, types), values.map(lambda v: named(names, v))),
            ]
        )

    def lists(child: tuple[TypeInformation, st.SearchStrategy[Any]]) -> Any:
        values = st.lists(nullable(child), max_size=4)
        factories = [Types.LIST, Types.BASIC_ARRAY, Types.OBJECT_ARRAY]
        return st.sampled_from([(factory(child[0]), values) for factory in factories])

    def maps(child: tuple[TypeInformation, st.SearchStrategy[Any]]) -> Any:
        return st.just((Types.MAP(STRING, child[0]), st.dictionaries(st.text(), nullable(child), max_size=4)))

    return (
        st.lists(children, min_size=1, max_size=3).flatmap(structs) | children.flatmap(lists) | children.flatmap(maps)
    )


def named(names: list[str], values: tuple[Any, ...]) -> Row:
    row = Row(*values)
    row.set_field_names(names)
    return row


TYPES = st.recursive(st.sampled_from(BASIC), nested, max_leaves=5)


def shown(values: list[Any]) -> str:
    return repr(values)  # Distinguishes -0.0 from 0.0, True from 1 and tuples from lists; NaN equals itself.


@given(TYPES, st.data())
def test_every_type_round_trips(typed: tuple[TypeInformation, st.SearchStrategy[Any]], data: st.DataObject) -> None:
    kind, values = typed
    column = data.draw(st.lists(st.none() | values, max_size=6))
    array = kind.to_arrow(column)
    assert array.type == kind.arrow_type
    array.validate(full=True)
    assert shown(kind.from_arrow(array)) == shown(column)
    start = data.draw(st.integers(0, len(column)))
    stop = data.draw(st.integers(start, len(column)))
    sliced = array.slice(start, stop - start)
    assert shown(kind.from_arrow(sliced)) == shown(column[start:stop])
    again = pa.array(sliced.to_pylist(), type=kind.arrow_type)  # Without fields of null structs or slack before lists.
    assert shown(kind.from_arrow(again)) == shown(column[start:stop])
    if column:
        doubled = pa.concat_arrays([array, sliced]).take(pa.array([len(column) - 1, 0]))
        assert shown(kind.from_arrow(doubled)) == shown([column[-1], column[0]])


def without_names(value: Any) -> Any:
    if isinstance(value, Row):
        return Row(*map(without_names, value))
    if isinstance(value, dict):
        return {key: without_names(each) for key, each in value.items()}
    return type(value)(map(without_names, value)) if isinstance(value, (list, tuple)) else value


@given(TYPES, st.data())
def test_rows_without_names_get_those_of_their_type_at_any_depth(
    typed: tuple[TypeInformation, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    kind, values = typed
    value = data.draw(values)
    nameless = without_names(value)
    written = kind.from_arrow(kind.to_arrow([nameless]))
    assert shown([kind.name_fields(nameless)]) == shown(written) == shown([value])
    assert kind.names_fields or shown([without_names(value)]) == shown([value])


@pytest.mark.parametrize("value", [(1,), (Row(1), 2, 3), Row(x=Row(1), y=2), None, "ab", {"a": 1}])
def test_values_of_another_type_get_no_names_and_no_error(value: Any) -> None:
    pair = [Types.ROW_NAMED(["n"], [LONG]), LONG]
    for kind in (Types.TUPLE(pair), Types.ROW_NAMED(["a", "b"], pair), Types.MAP(STRING, Types.TUPLE(pair))):
        before = repr(value)
        assert repr(kind.name_fields(value)) == before


@given(TYPES)
def test_json_describes_a_type(typed: tuple[TypeInformation, Any]) -> None:
    kind = typed[0]
    again = type_from_json(kind.to_json())
    assert again == kind
    assert hash(again) == hash(kind)
    assert again.arrow_type == kind.arrow_type
    assert kind.arrow_name == str(kind.arrow_type)


@pytest.mark.parametrize("kind", [Types.SQL_DATE(), Types.SQL_TIMESTAMP()])
@pytest.mark.parametrize("days", [-719_163, 2_932_897])  # the days before and after those of Python
def test_a_time_that_python_does_not_have_is_named(kind: TypeInformation, days: int) -> None:
    """Spark and files have such times."""
    row = Types.ROW_NAMED(["n", "d"], [LONG, kind])
    column = pa.array([None, 0, days], pa.int32()).cast(pa.date32()).cast(kind.arrow_type)
    rows = pa.StructArray.from_arrays([pa.array([1, 2, 3]), column], fields=list(row.arrow_type))
    assert [each.n for each in row.from_arrow(rows[:2])] == [1, 2]
    with pytest.raises(TypeMismatchError, match=f"field 'd': a {kind.name} is before the year 1 or after 9999"):  # type: ignore[attr-defined]
        row.from_arrow(rows)


def test_pickled_values_round_trip() -> None:
    kind = Types.PICKLED_BYTE_ARRAY()
    values = [{"a": {1, 2}}, None, object]
    assert kind.from_arrow(kind.to_arrow(values)) == values
    assert type_from_json(kind.to_json()) == kind


def test_pickled_values_of_a_row_that_is_missing_are_missing() -> None:
    pair = Types.TUPLE([Types.PICKLED_BYTE_ARRAY(), LONG])
    rows = [(("a", 1), 2), (None, 3), ((None, 4), 5)]
    kind = Types.TUPLE([pair, LONG])
    assert kind.from_arrow(kind.to_arrow(rows)) == rows


def test_types_differ_by_name_fields_and_order() -> None:
    kinds = [
        LONG,
        Types.INT(),
        Types.LIST(LONG),
        Types.BASIC_ARRAY(LONG),
        Types.TUPLE([LONG, STRING]),
        Types.TUPLE([STRING, LONG]),
        Types.ROW([LONG, STRING]),
        Types.ROW_NAMED(["a", "b"], [LONG, STRING]),
        Types.ROW_NAMED(["b", "a"], [LONG, STRING]),
        Types.MAP(LONG, STRING),
        Types.PICKLED_BYTE_ARRAY(),
    ]
    assert len(set(kinds)) == len(kinds)
    assert all((a == b) == (a is b) for a in kinds for b in kinds)


class Turned(NamedTuple):
    b: str
    a: int


@dataclass
class Record:
    a: int
    b: str


@dataclass(frozen=True, slots=True)
class Slotted:
    b: str
    a: int


def test_rows_may_be_given_in_other_forms() -> None:
    kind = Types.ROW_NAMED(["a", "b"], [LONG, STRING])
    given_values = [Row(1, "x"), Row(b="x", a=1), Row(a=1, b="x"), (1, "x"), [1, "x"], {"b": "x", "a": 1}]
    assert kind.from_arrow(kind.to_arrow(given_values)) == [Row(a=1, b="x")] * len(given_values)
    plain = SimpleNamespace(b="x", a=1)
    for one in (Turned("x", 1), Record(1, "x"), Slotted("x", 1), plain):  # columns of one class, and of several
        assert kind.from_arrow(kind.to_arrow([one, one])) == [Row(a=1, b="x")] * 2
        assert kind.from_arrow(kind.to_arrow([one, None, (2, "y")])) == [Row(a=1, b="x"), None, Row(a=2, b="y")]
    other = Types.ROW_NAMED(["c", "d"], [STRING, LONG])
    assert other.from_arrow(other.to_arrow([Turned("x", 1)])) == [Row(c="x", d=1)], "a tuple with other names is one"
    with pytest.raises(TypeMismatchError, match="which is Record"):
        other.to_arrow([Record(1, "x")])
    with pytest.raises(TypeMismatchError, match="which is SimpleNamespace"):
        kind.to_arrow([SimpleNamespace(a=1)])
    pair = Types.TUPLE([LONG, STRING])
    assert pair.from_arrow(pair.to_arrow([Row(1, "x"), [1, "x"]])) == [(1, "x"), (1, "x")]


def test_numpy_scalars_are_numbers() -> None:
    assert LONG.from_arrow(LONG.to_arrow([np.int64(5), np.int32(6)])) == [5, 6]
    (value,) = Types.DOUBLE().from_arrow(Types.DOUBLE().to_arrow([np.float64("nan")]))
    assert math.isnan(value)


def test_empty_structs_keep_their_length() -> None:
    for kind, value in ((Types.TUPLE([]), ()), (Types.ROW([]), Row())):
        assert len(kind.from_arrow(kind.to_arrow([value, None, value]))) == 3


@pytest.mark.parametrize(
    "kind",
    [
        Types.TUPLE([LONG, STRING]),
        Types.ROW([LONG]),
        Types.ROW_NAMED(["a", "b"], [Types.LIST(LONG), Types.MAP(STRING, Types.INT())]),
        Types.BASIC_ARRAY(LONG),
        Types.OBJECT_ARRAY(Types.TUPLE([])),
        Types.PICKLED_BYTE_ARRAY(),
    ],
    ids=str,
)
def test_a_type_is_shown_as_it_is_declared(kind: TypeInformation) -> None:
    assert eval(str(kind), {"Types": Types}) == kind


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


MISFITS: list[tuple[TypeInformation, Any, str]] = [
    (LONG, "x", "declared LONG.*'x' is str"),
    (LONG, 1 << 63, "declared LONG.* is int, out of its range"),
    (LONG, 1.5, "declared LONG.*1.5 is float"),
    (LONG, decimal.Decimal("1.5"), "declared LONG"),
    (LONG, True, "declared LONG.*True is bool"),
    (Types.SQL_DATE(), datetime.datetime(2020, 1, 1, 5), "declared SQL_DATE.* is datetime"),
    (
        Types.SQL_TIMESTAMP(),
        datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
        "time zone, which SQL_TIMESTAMP",
    ),
    (Types.SQL_TIMESTAMP(), 5, "declared SQL_TIMESTAMP.*5 is int"),
    (
        Types.SQL_TIME(),
        datetime.time(1, tzinfo=datetime.timezone.utc),
        r"time zone, which SQL_TIME .* such as value\.replace\(tzinfo=None\)",
    ),
    (Types.FLOAT(), 1e300, r"declared FLOAT.*1e\+300 is float, out of its range"),
    (Types.MAP(STRING, LONG), {None: 1}, "without the key None"),
    (Types.BYTE(), 128, "declared BYTE.*128"),
    (STRING, 5, "declared STRING.*5 is int"),
    (STRING, b"x", "declared STRING.*b'x' is bytes"),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), "x", r"declared PRIMITIVE_ARRAY\(BYTE\).*'x' is str"),
    (Types.BOOLEAN(), "yes", "declared BOOLEAN"),
    (Types.SQL_DATE(), "2020-01-01", "declared SQL_DATE"),
    (Types.TUPLE([LONG, STRING]), (1, 2), "field 'f1': declared STRING.*2 is int"),
    (Types.TUPLE([LONG, STRING]), (1,), r"declared 2 fields \['f0', 'f1'\].*\(1,\)"),
    (Types.TUPLE([LONG, STRING]), 7, "declared a tuple of 2 fields.*7"),
    (Types.ROW_NAMED(["a", "b"], [LONG, STRING]), Row(1, 2), "field 'b': declared STRING"),
    (Types.ROW_NAMED(["a", "b"], [LONG, STRING]), {"a": 1}, r"declared a row of \['a', 'b'\].*\{'a': 1\}"),
    (Types.ROW_NAMED(["a"], [Types.ROW_NAMED(["b"], [LONG])]), (("x",),), "field 'a': field 'b': declared LONG"),
    (Types.LIST(LONG), [1, "x"], "declared LONG.*'x'"),
    (Types.LIST(LONG), 5, "declared a list.*5"),
    (Types.MAP(STRING, LONG), {"a": "b"}, "declared LONG.*'b'"),
    (Types.MAP(STRING, LONG), [1], r"declared a map.*\[1\]"),
    (Types.LIST(LONG), "text", "declared a list.*'text'"),
    (Types.PICKLED_BYTE_ARRAY(), (i for i in ()), "<generator .* cannot be pickled"),
    (Types.PICKLED_BYTE_ARRAY(), _nested(5000), "a value of list cannot be pickled: .*deep recursion"),
]


@pytest.mark.parametrize(("kind", "value", "message"), MISFITS)
def test_a_misfit_is_named(kind: TypeInformation, value: Any, message: str) -> None:
    with pytest.raises(TypeMismatchError, match=message):
        kind.to_arrow([None, value])


@pytest.mark.parametrize(
    "value", [{"type": "SET"}, {}, {"type": "LIST"}, {"type": "ROW", "names": ["a"], "fields": []}]
)
def test_unknown_descriptions_are_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        type_from_json(value)


def test_field_names_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="2 field types for 1"):
        Types.ROW_NAMED(["a"], [LONG, LONG])
    with pytest.raises(ConfigurationError, match="not unique"):
        Types.ROW_NAMED(["a", "a"], [LONG, LONG])


def test_key_types_follow_the_key() -> None:
    keys: list[tuple[Any, TypeInformation]] = [
        (True, Types.BOOLEAN()),
        (5, LONG),
        (1.5, Types.DOUBLE()),
        ("x", STRING),
        (np.int32(5), Types.INT()),
        (np.float32(1), Types.FLOAT()),
        (datetime.date(2024, 1, 1), Types.SQL_DATE()),
        (datetime.time(1), Types.SQL_TIME()),
        (datetime.datetime(2024, 1, 1), Types.SQL_TIMESTAMP()),
        ((1, ("x", 2.0)), Types.TUPLE([LONG, Types.TUPLE([STRING, Types.DOUBLE()])])),
    ]
    assert [infer_key_type(key) for key, _ in keys] == [kind for _, kind in keys]
    assert infer_key_type(Row(a=1, b="x")) == RowTypeInfo([LONG, STRING], ["a", "b"])
    assert infer_key_type(Row(1)) == Types.ROW([LONG])


@pytest.mark.parametrize(
    ("key", "field"),
    [
        (None, "key is None"),
        ([1], "key is list"),
        ((1, {"a": 1}), r"key\[1\] is dict"),
        (Row(a=1, b=datetime.timedelta(1)), r"key\.b is timedelta"),
        (object(), "key is object"),
        ((), r"key is tuple: \(\)"),
        ((1, Row()), r"key\[1\] is Row"),
    ],
)
def test_keys_without_a_stable_hash_name_the_field(key: Any, field: str) -> None:
    with pytest.raises(UnsupportedKeyTypeError, match=field):
        infer_key_type(key)


@pytest.mark.parametrize(
    ("kind", "fitting", "value"),
    [
        (Types.SQL_DATE(), datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 5)),
        (Types.SQL_DATE(), datetime.date(2020, 1, 1), 5),
        (Types.SQL_TIME(), datetime.time(1), datetime.time(1, tzinfo=datetime.timezone.utc)),
        (Types.SQL_TIME(), datetime.time(1), 5),
        (
            Types.SQL_TIMESTAMP(),
            datetime.datetime(2020, 1, 1),
            datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
        ),
        (Types.SQL_TIMESTAMP(), datetime.datetime(2020, 1, 1), datetime.date(2020, 1, 1)),
        (Types.SQL_TIMESTAMP(), datetime.datetime(2020, 1, 1), 1.5),
        (Types.FLOAT(), float("inf"), 1e300),
    ],
)
def test_what_does_not_fit_alone_does_not_beside_what_fits(kind: TypeInformation, fitting: Any, value: Any) -> None:
    assert kind.from_arrow(kind.to_arrow([None, fitting])) == [None, fitting]
    for values in ([fitting, None, value], [value, fitting]):
        with pytest.raises(TypeMismatchError, match=re.escape(repr(value))):
            kind.to_arrow(values)


class _Local:
    pass


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Types.BIG_INT(), 1.5),
        (Types.BIG_INT(), True),
        (Types.BIG_INT(), 10**77),
        (Types.INSTANT(), datetime.datetime(2020, 1, 1)),
        (Types.PICKLED_BYTE_ARRAY(), (i for i in range(3))),
    ],
)
def test_values_of_another_type_are_refused(kind: TypeInformation, value: Any) -> None:
    with pytest.raises(TypeMismatchError):
        kind.to_arrow([value])


def test_what_pickle_does_not_know_is_pickled_with_its_class() -> None:
    class Inner:
        x = 5

    kind = Types.PICKLED_BYTE_ARRAY()
    function, inner, local = kind.from_arrow(kind.to_arrow([lambda: 7, Inner(), _Local()]))
    assert (function(), inner.x, type(local)) == (7, 5, _Local)


def test_a_class_stays_as_it_is_when_records_bring_it_along() -> None:
    """On Spark, records of a class of a notebook do. Its methods then read no variable that a later cell has set."""
    rate = 1

    class Order:
        def __init__(self, number: int) -> None:
            self.number = number

        def total(self) -> int:
            return self.number * rate

    kind = Types.PICKLED_BYTE_ARRAY()
    [order] = kind.from_arrow(kind.to_arrow([Order(2)]))
    rate = 10
    assert (type(order), order.total(), Order(3).total()) == (Order, 20, 30)


def test_a_class_that_records_bring_along_is_made_where_it_is_not() -> None:
    class Order:
        def total(self) -> int:
            return 7

    [data] = Types.PICKLED_BYTE_ARRAY().to_arrow([Order()]).to_pylist()
    read = "from dagster_flinkpy.common import Types; import pyarrow as pa, sys; data = sys.stdin.buffer.read()"
    read += "; [o, p] = Types.PICKLED_BYTE_ARRAY().from_arrow(pa.array([data] * 2)); print(o.total() + p.total())"
    done = subprocess.run([sys.executable, "-c", read], input=data, stdout=subprocess.PIPE, check=True)
    assert done.stdout.strip() == b"14"


def test_a_class_that_could_not_be_read_is_made_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "text"

    class Read:
        def __reduce__(self) -> Any:
            return Path.read_text, (file,)

    class Order:
        text = Read()

        def total(self) -> str:
            return str(self.text)

    [data] = Types.PICKLED_BYTE_ARRAY().to_arrow([Order()]).to_pylist()
    read = """
import gc, pathlib, sys, pyarrow as pa
from dagster_flinkpy.common import Types
gc.disable()  # the class that is half made stays
column = pa.array([sys.stdin.buffer.read()])
try:
    Types.PICKLED_BYTE_ARRAY().from_arrow(column)
except Exception:
    pathlib.Path(sys.argv[1]).write_text("7")
print(Types.PICKLED_BYTE_ARRAY().from_arrow(column)[0].total())
"""
    command = [sys.executable, "-c", read, str(file)]
    assert subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout.strip() == b"7"


def test_a_named_row_does_not_take_rows_of_other_names() -> None:
    kind = Types.ROW_NAMED(["a", "b"], [LONG, LONG])
    assert kind.from_arrow(kind.to_arrow([Row(b=2, a=1), Row(3, 4)])) == [Row(a=1, b=2), Row(a=3, b=4)]
    with pytest.raises(TypeMismatchError, match=r"declared a row of \['a', 'b'\], produced Row\(x=1, b=2\)"):
        kind.to_arrow([Row(x=1, b=2)])


@given(st.datetimes(timezones=st.timezones()))
def test_the_instant_of_a_date_and_time_is_the_same_point_in_time(value: datetime.datetime) -> None:
    instant = Instant.of_datetime(value)
    since = value - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    assert instant.seconds * 10**6 + instant.nanos // 1000 == since // datetime.timedelta(microseconds=1)
    assert Types.INSTANT().from_arrow(Types.INSTANT().to_arrow([instant])) == [instant]


def test_a_date_and_time_is_no_instant() -> None:
    """A value would have one class in a function that is chained, and another one behind a shuffle."""
    zoned, naive = (
        datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
        datetime.datetime(2024, 1, 1),
    )
    for kind, value in ((Types.INSTANT(), zoned), (Types.LIST(Types.INSTANT()), [zoned])):
        with pytest.raises(TypeMismatchError, match=r"INSTANT.*convert it first, with Instant\.of_datetime\(value\)"):
            kind.to_arrow([value])
    with pytest.raises(TypeMismatchError, match=r"without a time zone.*Instant\.of_datetime\(value\.replace\(tzinfo"):
        Types.INSTANT().to_arrow([naive])
    with pytest.raises(TypeMismatchError, match=r"has no time zone.*value\.replace\(tzinfo=timezone\.utc\)"):
        Instant.of_datetime(naive)
    with pytest.raises(TypeMismatchError, match=r"INSTANT.*such as Instant\.of_epoch_milli\(value\)"):
        Types.INSTANT().to_arrow([5])
    with pytest.raises(TypeMismatchError, match=r"with a time zone, which SQL_TIMESTAMP does not keep"):
        Types.SQL_TIMESTAMP().to_arrow([zoned])
    # Such as a Timestamp of pandas: two of them, as keys of a map, became one.
    timestamp = type("Timestamp", (datetime.datetime,), {"nanosecond": 0})
    assert Types.SQL_TIMESTAMP().to_arrow([timestamp(2024, 1, 1)]).to_pylist() == [naive]
    timestamp.nanosecond = 2
    with pytest.raises(TypeMismatchError, match=r"SQL_TIMESTAMP keeps microseconds: round it"):
        Types.SQL_TIMESTAMP().to_arrow([naive, timestamp(2024, 1, 1)])


def test_the_position_of_a_field_is_found_by_its_name() -> None:
    row = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])
    assert [row.get_field_index(name) for name in row.get_field_names()] == [0, 1]
