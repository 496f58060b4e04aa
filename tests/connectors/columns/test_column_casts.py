"""Which columns become which types: allowed casts keep every value, and all others are refused with a reason."""

from __future__ import annotations

import math
import re
import uuid
from datetime import date, datetime, time, timezone
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.connectors.columns.column_casts import cast_column, check_cast, fit_column, type_info_of
from dagster_flinkpy.errors import ConfigurationError, InputTypeError, SourceReadError, ThrowableType, TypeMismatchError
from dagster_flinkpy.runtime.throwables import throwable_type

DOCS = Path(__file__).parents[3] / "docs/api/column-types.md"
DECIMAL = Types.DECIMAL(38, 18)
BASIC: dict[str, TypeInformation] = {
    "STRING": Types.STRING(),
    "CHAR": Types.CHAR(),
    "BOOLEAN": Types.BOOLEAN(),
    "BYTE": Types.BYTE(),
    "SHORT": Types.SHORT(),
    "INT": Types.INT(),
    "LONG": Types.LONG(),
    "FLOAT": Types.FLOAT(),
    "DOUBLE": Types.DOUBLE(),
    "BIG_INT": Types.BIG_INT(),
    "DECIMAL(p, s)": DECIMAL,
    "SQL_DATE": Types.SQL_DATE(),
    "SQL_TIME": Types.SQL_TIME(),
    "SQL_TIMESTAMP": Types.SQL_TIMESTAMP(),
    "INSTANT": Types.INSTANT(),
    "PRIMITIVE_ARRAY(BYTE())": Types.PRIMITIVE_ARRAY(Types.BYTE()),
}
COLUMNS: dict[str, list[pa.DataType]] = {
    "string": [pa.string(), pa.large_string(), pa.string_view()],
    "uuid, json": [pa.uuid()],
    "boolean": [pa.bool_()],
    **{
        kind: [getattr(pa, kind)()]
        for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    },
    "half float, float": [pa.float16(), pa.float32()],
    "double": [pa.float64()],
    "date": [pa.date32()],
    "time": [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
    "timestamp": [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")],
    "timestamp with zone": [pa.timestamp("ms", "UTC"), pa.timestamp("ns", "Europe/Berlin")],
    "binary": [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)],
}


def fits(there: pa.DataType, kind: TypeInformation) -> bool:
    try:
        check_cast("c", there, kind.arrow_type, kind)
    except TypeMismatchError:
        return False
    return True


def test_the_documentation_lists_what_fits() -> None:
    section = DOCS.read_text().split("## Read\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE))
    for column, kinds in COLUMNS.items():
        said = set(re.findall(r"`(.+?)`", rows[column]))
        for there in kinds:
            assert {name for name, kind in BASIC.items() if fits(there, kind)} == said, there


@pytest.mark.parametrize("there", [kind for kinds in COLUMNS.values() for kind in kinds], ids=str)
def test_the_default_type_fits(there: pa.DataType) -> None:
    if there == pa.uint64():
        with pytest.raises(ConfigurationError):
            type_info_of(there, "c")
        return
    for instants in (True, False):
        for nested in (there, pa.list_(there), pa.map_(pa.string(), there), pa.struct([("f", there)])):
            check_cast("c", nested, type_info_of(nested, "c", instants=instants).arrow_type)


# --- every value stays what it is -------------------------------------------------------------------------------------

DAYS = st.dates()
MOMENTS = st.datetimes(min_value=datetime(1700, 1, 1), max_value=datetime(2200, 1, 1))


def texts_of(size: int | None = None) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size or 0, max_size=5 if size is None else size)


def to_unit(moment: datetime, unit: str) -> datetime:
    return moment.replace(microsecond={"s": 0, "ms": moment.microsecond // 1000 * 1000}.get(unit, moment.microsecond))


def to_unit_of_time(moment: time, unit: str) -> time:
    return moment.replace(microsecond={"s": 0, "ms": moment.microsecond // 1000 * 1000}.get(unit, moment.microsecond))


def drawn_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    types = pa.types
    if types.is_integer(kind):
        low = -(2 ** (kind.bit_width - 1)) if types.is_signed_integer(kind) else 0
        return st.integers(low, low + 2**kind.bit_width - 1)
    if types.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-kind.scale, Context(prec=80)))
    if types.is_boolean(kind):
        return st.booleans()
    if types.is_date(kind):
        return DAYS
    if types.is_time(kind):
        return st.times().map(lambda value: to_unit_of_time(value, kind.unit))
    if types.is_timestamp(kind):
        zone = timezone.utc if kind.tz is not None else None
        return MOMENTS.map(lambda value: to_unit(value, kind.unit).replace(tzinfo=zone))
    if isinstance(kind, pa.UuidType):
        return st.uuids()
    if types.is_fixed_size_binary(kind):
        return texts_of(kind.byte_width)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return texts_of()
    return st.text(max_size=5)


def meaning(value: Any) -> Any:
    """What a value is, whatever type it has."""
    if isinstance(value, bool) or value is None:
        return (type(value), value)
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return repr(value)
    if isinstance(value, (int, float, Decimal)):
        return Fraction(value)
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, list):
        return [tuple(map(meaning, each)) if isinstance(each, tuple) else meaning(each) for each in value]
    if isinstance(value, dict):
        return {name: meaning(each) for name, each in value.items()}
    return value


SCALARS = st.one_of(
    st.sampled_from([kind for kinds in COLUMNS.values() for kind in kinds]),
    st.integers(1, 38).flatmap(lambda p: st.integers(-2, p).map(lambda s: pa.decimal128(p, s))),
    st.just(pa.decimal256(50, 2)),
)
DECLARED = st.one_of(
    st.sampled_from(list(BASIC.values())),
    st.integers(1, 76).flatmap(lambda p: st.integers(0, p).map(lambda s: Types.DECIMAL(p, s))),
)


@given(st.data())
def test_each_value_stays_what_it_is(data: st.DataObject) -> None:
    there, kind = data.draw(SCALARS), data.draw(DECLARED)
    values = data.draw(st.lists(st.none() | drawn_values(there), max_size=5))
    column = pa.array(values, there)
    if not fits(there, kind):
        with pytest.raises(TypeMismatchError) as caught:
            check_cast("price", there, kind.arrow_type, kind)
        assert all(part in str(caught.value) for part in ("'price'", str(there), str(kind), ": ", ". "))
        assert re.search(r"\. (Declare Types\..+map\(\)|Leave the column out)", str(caught.value))
        return
    became = cast_column("price", column, kind.arrow_type)
    became.validate(full=True)
    assert became.type == kind.arrow_type
    before = column.to_pylist()
    if pa.types.is_date(there) and pa.types.is_timestamp(kind.arrow_type):
        before = [None if each is None else datetime.combine(each, time()) for each in before]
    assert meaning(became.to_pylist()) == meaning(before)


@given(st.data())
def test_parts_stay_what_they_are(data: st.DataObject) -> None:
    """In lists, maps and structs, sliced and with nulls at each level, and of dictionaries."""
    part = data.draw(
        st.sampled_from([pa.int8(), pa.float32(), pa.large_string(), pa.date32(), pa.timestamp("ms", "UTC")])
    )
    wider = {pa.int8(): pa.int64(), pa.float32(): pa.float64(), pa.large_string(): pa.string()}
    to = wider.get(part, type_info_of(part, "c").arrow_type)
    drawn = st.none() | drawn_values(part)
    struct, to_struct = pa.struct([("x", part), ("a", pa.bool_())]), pa.struct([("a", pa.bool_()), ("x", to)])
    rows = st.none() | st.fixed_dictionaries({"x": drawn, "a": st.booleans()})
    entries = st.lists(st.tuples(st.text(max_size=2), rows), max_size=3)
    lists = st.lists(st.none() | st.lists(drawn, max_size=2), max_size=3)
    there, wanted, values = data.draw(
        st.sampled_from(
            [
                (pa.list_(part), pa.list_(to), st.lists(drawn, max_size=3)),
                (pa.large_list(struct), pa.list_(to_struct), st.lists(rows, max_size=3)),
                (pa.list_(part, 2), pa.list_(to), st.lists(drawn, min_size=2, max_size=2)),
                (struct, to_struct, rows),
                (struct, pa.struct([("x", to)]), rows),
                (pa.map_(pa.string(), struct), pa.map_(pa.string(), to_struct), entries),
                (pa.list_(pa.list_(part)), pa.list_(pa.list_(to)), lists),
            ]
        )
    )
    start = data.draw(st.integers(0, 2))
    column = pa.array(data.draw(st.lists(st.none() | values, max_size=5)), there)[start:]
    became = cast_column("c", column, wanted)
    became.validate(full=True)
    assert became.type == wanted
    expected = column.to_pylist()
    if wanted == pa.struct([("x", to)]):
        expected = [each if each is None else {"x": each["x"]} for each in expected]
    assert meaning(became.to_pylist()) == meaning(expected)
    if not pa.types.is_nested(there):
        return
    with pytest.raises(TypeMismatchError, match=r"column 'c[.\[]"):
        cast_column("c", column, _with_booleans(wanted))


def _with_booleans(kind: pa.DataType) -> pa.DataType:
    """The same structure with other scalars."""
    if pa.types.is_list(kind):
        return pa.list_(_with_booleans(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _with_booleans(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _with_booleans(each.type)) for each in kind])
    return pa.date64() if kind == pa.bool_() else pa.bool_()


def test_dictionaries_and_columns_of_nulls() -> None:
    words = pa.array(["b", None, "a", "b"]).dictionary_encode()
    assert cast_column("c", words, pa.string()).to_pylist() == ["b", None, "a", "b"]
    numbers = pa.array([3, None, 3], pa.int16()).dictionary_encode()
    assert cast_column("c", numbers, pa.int64()).to_pylist() == [3, None, 3]
    listed = pa.ListArray.from_arrays([0, 1, 4], words)
    assert cast_column("c", listed, pa.list_(pa.string())).to_pylist() == [["b"], [None, "a", "b"]]
    with pytest.raises(TypeMismatchError, match=r"dictionary.*text would have to be parsed"):
        cast_column("c", words, pa.int64())
    for kind in BASIC.values():
        assert cast_column("c", pa.nulls(2), kind.arrow_type).to_pylist() == [None, None]


def test_a_value_that_does_not_fit_is_refused() -> None:
    for there in (pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.time64("ns")):
        wanted = type_info_of(there, "c", instants=True).arrow_type
        assert cast_column("c", pa.array([5_000], there), wanted).cast(pa.int64()).to_pylist() == [5]
        with pytest.raises(TypeMismatchError, match=r"'c' is time.*would lose data: 5001.*whole microseconds"):
            cast_column("c", pa.array([5_000, 5_001], there), wanted)
    with pytest.raises(TypeMismatchError, match="out of bounds"):
        cast_column("c", pa.array([10**15], pa.timestamp("s")), pa.timestamp("us"))


def test_fields_that_are_missing_or_there_twice_are_refused() -> None:
    for names in (["a"], ["x", "x"]):
        column = pa.StructArray.from_arrays([pa.array([1])] * len(names), names=names)
        with pytest.raises(TypeMismatchError, match=r"fields \['[ax]'.*needs one named 'x'"):
            cast_column("c", column, pa.struct([("x", pa.int64())]))


def test_a_column_that_a_function_computed_may_become_narrower() -> None:
    fitting: list[tuple[pa.Array, TypeInformation, list[Any]]] = [
        (pa.array([1, None]), Types.INT(), [1, None]),
        (pa.array([[1], None]), Types.LIST(Types.BYTE()), [[1], None]),
        (pa.array([0.1, math.inf]), Types.FLOAT(), [0.10000000149011612, math.inf]),
        (pa.array([1]), Types.DOUBLE(), [1.0]),
        (pa.array([Decimal("1.50")]), Types.DECIMAL(2, 1), [Decimal("1.5")]),
        (pa.array([datetime(2024, 1, 1)], pa.timestamp("ns")), Types.SQL_TIMESTAMP(), [datetime(2024, 1, 1)]),
    ]
    for column, kind, expected in fitting:
        assert fit_column(column, kind, "state 's'").to_pylist() == expected
    refused = [
        *((column, kind) for column, kind, _ in REFUSED if kind not in (Types.INT(), Types.FLOAT())),
        (pa.array([300]), Types.BYTE()),
        (pa.array([math.inf, 1e39]), Types.FLOAT()),
        (pa.array([None, {"a": [1.0, 1e39]}]), Types.ROW_NAMED(["a"], [Types.LIST(Types.FLOAT())])),
        (pa.array([[("a", 1e39)]], pa.map_(pa.string(), pa.float64())), Types.MAP(Types.STRING(), Types.FLOAT())),
        (pa.array([date(2024, 1, 1)]), Types.INT()),
        (pa.array([[datetime(2024, 1, 1)]]), Types.LIST(Types.LONG())),
        (pa.array([[("a", 1.5)]], pa.map_(pa.string(), pa.float64())), Types.MAP(Types.STRING(), Types.LONG())),
        (pa.array([{"a": 1, "b": 2}]), Types.TUPLE([Types.LONG(), Types.LONG()])),
    ]
    for column, kind in refused:
        with pytest.raises(TypeMismatchError, match="state 's': declared Types"):
            fit_column(column, kind, "state 's'")


# --- in files ---------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[pa.Array, TypeInformation, str]] = [
    (pa.array([datetime(2024, 1, 1)], pa.timestamp("ms")), Types.LONG(), "which unit"),
    (pa.array([datetime(2024, 1, 1)], pa.timestamp("us")), Types.LONG(), "which unit"),
    (pa.array([1_700_000_000]), Types.SQL_TIMESTAMP(), "does not say its unit"),
    (pa.array([1_700_000_000]), Types.INSTANT(), "does not say its unit"),
    (pa.array([datetime(2024, 1, 1, 9)]), Types.SQL_DATE(), "time of day would be lost"),
    (pa.array([datetime(2024, 1, 1, 9)]), Types.SQL_TIME(), "date would be lost"),
    (pa.array([datetime(2024, 1, 1, 9)]), Types.INSTANT(), "without a time zone"),
    (pa.array([date(2024, 1, 1)]), Types.INT(), "which unit"),
    (pa.array([7]), Types.BOOLEAN(), "which values are true"),
    (pa.array([True]), Types.INT(), "which values are true"),
    (pa.array(["0x1F"]), Types.LONG(), "parsed"),
    (pa.array([1.005]), Types.DECIMAL(9, 2), "lose digits"),
    (pa.array([Decimal("1.005")]), Types.DECIMAL(9, 2), "lose digits"),
    (pa.array([0.1]), Types.FLOAT(), "lose digits"),
    (pa.array([1]), Types.INT(), "out of range"),
    (pa.array([1.0]), Types.LONG(), "lose digits"),
    (pa.array([1]), Types.STRING(), "more than one way"),
    (pa.array([b"a"]), Types.STRING(), "more than one way"),
    (pa.array([[1]]), Types.LONG(), "different things"),
    (pa.array([{"a": 1}]), Types.MAP(Types.STRING(), Types.LONG()), "different things"),
]


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize(("column", "kind", "reason"), REFUSED)
def test_a_file_with_another_type_is_refused(
    tmp_path: Path, column: pa.Array, kind: TypeInformation, reason: str, rows: int
) -> None:
    """Whether it has rows or not."""
    pq.write_table(pa.table({"price": column[:rows]}), tmp_path / "1.parquet")
    source = ParquetSource(str(tmp_path), row_type=Types.ROW_NAMED(["price"], [kind]))
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    with pytest.raises(InputTypeError, match=reason) as caught:
        list(source.read(split))
    assert throwable_type(caught.value) is ThrowableType.NON_RECOVERABLE_ERROR
    for part in ("1.parquet", "'price'", str(column.type).split("<")[0], str(kind), "map()"):
        assert part in str(caught.value)


def test_timestamps_of_int96_far_away(tmp_path: Path) -> None:
    moments = [datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1, 1, 1), datetime(2024, 2, 29, 1, 2, 3, 4)]
    table = pa.table({"t": pa.array(moments, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "1.parquet", use_deprecated_int96_timestamps=True)
    source = ParquetSource(str(tmp_path))
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    [(column, _)] = source.read(split)
    assert column.field("t").to_pylist() == moments


@pytest.mark.parametrize("told", ["org.apache.spark.legacyDateTime", "org.apache.spark.legacyINT96", None])
@pytest.mark.parametrize(
    ("value", "first"),
    [
        (date(1582, 10, 14), date(1582, 10, 15)),
        ([None, {"t": [("a", date(1, 1, 1))]}], None),
        ({datetime(1899, 12, 31, 23, 59): 1}, datetime(1900, 1, 1)),
        (None, date(2024, 2, 29)),
    ],
)
def test_times_that_spark_has_counted_in_its_old_calendar_are_refused(
    tmp_path: Path, told: str | None, value: Any, first: Any
) -> None:
    kind = pa.map_(pa.timestamp("us"), pa.int64()) if isinstance(value, dict) else None
    if isinstance(value, list):
        kind = pa.list_(pa.struct([("t", pa.map_(pa.string(), pa.date32()))]))
    good = {first: 1} if isinstance(value, dict) else first
    table = pa.table({"id": [1, 2], "t": pa.array([good, value], kind)}).replace_schema_metadata(told and {told: ""})
    pq.write_table(table, tmp_path / "1.parquet")

    def rows(*names: str) -> int:
        types = [type_info_of(table.schema.field(name).type, name) for name in names]
        source = ParquetSource(str(tmp_path), row_type=Types.ROW_NAMED([*names], types))
        [[split]] = source.create_enumerator(None).plan_epoch(1)
        return sum(len(column) for column, _ in source.read(split))

    assert rows("id") == 2
    if told and value is not None:
        with pytest.raises(
            SourceReadError, match=r"column 't' has times before 1\d+-\d\d-\d\d.* let Spark read the file"
        ):
            rows("t")
    else:
        assert rows("t") == 2
