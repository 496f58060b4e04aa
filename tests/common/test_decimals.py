from __future__ import annotations

import datetime
import decimal
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.decimals import as_stored_before, find_big_dec
from dagster_flinkpy.common.key_types import infer_key_type
from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.typeinfo import TypeInformation, Types, type_from_json
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.connectors.columns.column_casts import fit_column, type_info_of
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.functions import KeyedProcessFunction
from dagster_flinkpy.datastream.state import MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, StateSchemaError, TypeMismatchError, UnsupportedKeyTypeError
from dagster_flinkpy.key_hashes import java_hash_code, java_hash_codes
from dagster_flinkpy.runtime.shuffle.wire import decode_buffer, encode_buffer
from dagster_flinkpy.state.keys import KeyCodec, hash_keys
from dagster_flinkpy.state.schema_evolution import can_evolve, evolve
from dagster_flinkpy.state_processor.sql import key_from_text
from dagster_flinkpy.testing import OperatorTestHarness, run_local

ANY, PRICE = Types.BIG_DEC(), Types.DECIMAL(9, 2)
EVERY_DECIMAL = st.decimals() | st.builds(
    lambda sign, digits, exponent: Decimal((sign, tuple(digits), exponent)),
    st.sampled_from([0, 1]),
    st.lists(st.integers(0, 9), min_size=1, max_size=50),
    st.integers(-400, 400),
)
FINITE = EVERY_DECIMAL.filter(Decimal.is_finite)


@given(st.lists(st.none() | EVERY_DECIMAL))
def test_any_decimal_comes_back_with_its_digits_and_scale(values: list[Decimal | None]) -> None:
    back = ANY.from_arrow(ANY.to_arrow(values))
    assert [v if v is None else v.as_tuple() for v in back] == [v if v is None else v.as_tuple() for v in values]


@given(st.lists(st.none() | st.decimals(-(10**7) + 1, 10**7 - 1, places=2)))
def test_a_typed_decimal_has_the_scale_of_its_column(values: list[Decimal | None]) -> None:
    kind = type_from_json(PRICE.to_json())
    back = kind.from_arrow(kind.to_arrow(values))
    assert back == values
    assert {v.as_tuple().exponent for v in back if v is not None} <= {-2}


def test_typed_decimals_are_arrow_decimals() -> None:
    assert PRICE.arrow_type == pa.decimal128(9, 2)
    assert Types.DECIMAL(76, 0).arrow_type == pa.decimal256(76, 0)
    assert [str(kind.arrow_type) for kind in (PRICE, ANY)] == [PRICE.arrow_name, ANY.arrow_name]
    assert type_info_of(pa.decimal128(9, 2), "x") == PRICE
    assert str(PRICE.from_arrow(PRICE.to_arrow([Decimal("1.1")]))) == "[Decimal('1.10')]"


@pytest.mark.parametrize(("precision", "scale"), [(0, 0), (77, 0), (5, 6), (5, -1), (True, 0), ("5", 0), (5, 1.0)])
def test_a_typed_decimal_needs_a_precision_and_a_scale(precision: Any, scale: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a whole number"):
        Types.DECIMAL(precision, scale)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (ANY, 1.5, r"declared BIG_DEC.*1\.5 is float; convert it first"),
        (ANY, "1.5", "declared BIG_DEC.* is str"),
        (ANY, True, "declared BIG_DEC.*True is bool"),
        (PRICE, Decimal("1.234"), r"declared DECIMAL\(9, 2\).*at most 7 digits before the point and 2 after"),
        (PRICE, Decimal(10**7), "at most 7 digits before the point"),
        (PRICE, Decimal("1e-77"), "at most 7 digits before the point and 2 after"),
        (PRICE, Decimal("1e-999999999"), "at most 7 digits before the point and 2 after"),
        (PRICE, "1.5", "is str"),
        (PRICE, 1.5, "is float"),
        (PRICE, False, "is bool"),
    ],
)
def test_what_is_no_decimal_is_refused(kind: TypeInformation, value: Any, message: str) -> None:
    with pytest.raises(TypeMismatchError, match=message):
        kind.to_arrow([None, value])


def test_whole_numbers_are_decimals() -> None:
    assert [kind.from_arrow(kind.to_arrow([1, None])) for kind in (ANY, PRICE)] == [[Decimal(1), None]] * 2


# --- keys -------------------------------------------------------------------------------------------------------------


def test_hashes_are_those_of_java() -> None:
    # BigDecimal.hashCode is 31 * unscaledValue().hashCode() + scale(), and a BigInteger hashes by words of 32 bits.
    high, low = divmod(12345678901234567890, 1 << 32)
    wide = np.array([31 * ((31 * high + low) % (1 << 32)) % (1 << 32)], dtype=np.uint32).view(np.int32)[0]
    texts = {"1.10": 3412, "1.1": 342, "-1.1": -340, "0": 0, "0.00": 2, "1E+2": 29, "12345678901234567890": wide}
    assert {text: java_hash_code(Decimal(text)) for text in texts} == texts
    for text in ("NaN", "Infinity", "sNaN"):
        with pytest.raises(UnsupportedKeyTypeError, match=f"Decimal {text} is not a key"):
            java_hash_code(Decimal(text))


@given(st.lists(FINITE, min_size=1), st.integers())
def test_a_column_of_keys_hashes_like_its_keys(keys: list[Decimal], n: int) -> None:
    assert infer_key_type(keys[0]) == ANY
    assert hash_keys(ANY, ANY.to_arrow(keys)).tolist() == list(map(java_hash_code, keys))
    pairs = Types.TUPLE([Types.STRING(), ANY])
    expected = [java_hash_code(("x", key)) for key in keys]
    assert hash_keys(pairs, pairs.to_arrow([("x", key) for key in keys])).tolist() == expected
    named = Types.ROW_NAMED(["a", "b"], [ANY, ANY])
    expected = [java_hash_code(Row(a=key, b=None)) for key in keys]
    assert hash_keys(named, named.to_arrow([Row(a=key, b=None) for key in keys])).tolist() == expected


@given(FINITE, FINITE)
def test_keys_are_equal_if_java_says_so(a: Decimal, b: Decimal) -> None:
    same = a.as_tuple() == b.as_tuple()  # BigDecimal.equals compares value and scale
    codec = KeyCodec(ANY)
    one, other = codec.encode_all([a, b])
    assert (one == other) is same
    assert ANY.to_arrow([a]).equals(ANY.to_arrow([b])) is same
    assert [v.as_tuple() for v in codec.decode_all([one])] == [a.as_tuple()]


def test_typed_keys_of_one_value_are_one_key() -> None:
    one, other = Decimal("1.1"), Decimal("1.10")
    hashes = hash_keys(PRICE, PRICE.to_arrow([one, other]))
    assert hashes.tolist() == [java_hash_code(other)] * 2
    with pytest.raises(UnsupportedKeyTypeError):
        java_hash_codes(PRICE.to_arrow([one]))  # no key column hashes without its type by accident


class Counts(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", ANY, ANY))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", ANY))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.seen.put(value, value + 1)
        before = self.last.value()
        self.last.update(value)
        yield str(ctx.get_current_key()), self.count.value(), sorted(map(str, self.seen.keys())), str(before)


def test_state_tells_decimals_apart_before_and_after_it_is_written() -> None:
    tenth, third = Decimal("1.10"), Decimal(1) / 3

    def run(key_type: TypeInformation | None, key: Any, snapshot: bool) -> list[Any]:
        def build(stream: Any) -> Any:
            return stream.key_by(key, key_type).process(Counts(), Types.PICKLED_BYTE_ARRAY())

        with OperatorTestHarness.for_stream(build, input_type=ANY, parallelism=2) as harness:
            for value in (tenth, Decimal("1.1"), tenth, third, Decimal(10) ** 25):
                harness.process_element(value)
                if snapshot:
                    harness.snapshot()
            assert harness.state("count", tenth if key_type is None else Decimal("1.1")) == (
                2 if key_type is None else 3
            )
            return harness.output

    expected = [
        ("1.10", 1, ["1.10"], "None"),
        ("1.1", 1, ["1.1"], "None"),
        ("1.10", 2, ["1.10"], "1.10"),
        (str(third), 1, [str(third)], "None"),
        ("1" + "0" * 25, 1, ["1" + "0" * 25], "None"),
    ]
    for snapshot in (False, True):
        assert sorted(run(None, lambda v: v, snapshot)) == sorted(expected)
        rounded = run(Types.DECIMAL(38, 2), lambda v: round(v, 2), snapshot)
        assert max(each[:2] for each in rounded if each[0] == "1.10") == ("1.10", 3)


def test_a_key_of_text_keeps_its_scale() -> None:
    assert str(key_from_text("1.10", ANY)) == "1.10"
    assert key_from_text('["a", 1.10, 1.5]', Types.TUPLE([Types.STRING(), ANY, Types.DOUBLE()])) == (
        "a",
        Decimal("1.10"),
        1.5,
    )
    with pytest.raises(TypeMismatchError, match="is not a key of type"):
        key_from_text("1,1", ANY)


# --- programs ---------------------------------------------------------------------------------------------------------


def test_every_exchange_keeps_decimals() -> None:
    values = [Decimal(1) / 3, Decimal(10) ** 25, Decimal("1.10"), Decimal("-0.00"), Decimal("1E+3")]
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    stream = env.from_collection([(i, v) for i, v in enumerate(values)], Types.TUPLE([Types.LONG(), ANY]))
    shuffled = stream.rebalance().map(lambda v: v, stream.get_type()).key_by(lambda v: v[1]).map(lambda v: v)
    (rows,) = run_local(env, shuffled)
    assert [str(v) for _, v in sorted(rows)] == list(map(str, values))


@pytest.mark.parametrize("kind", [ANY, PRICE])
def test_sums_and_extremes_of_decimals(kind: TypeInformation) -> None:
    amounts = [Decimal(text) for text in ("9999999.99", "0.01", "9999999.99", "-5.50")]
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([("a", v) for v in amounts], Types.TUPLE([Types.STRING(), kind]))
    keyed = stream.key_by(lambda v: v[0], Types.STRING())
    sums, least, greatest = run_local(env, keyed.sum(1), keyed.min(1), keyed.max(1))
    assert [v for _, v in sums] == [sum(amounts[: i + 1]) for i in range(4)]
    assert [str(v) for _, v in least] == ["9999999.99", "0.01", "0.01", "-5.50"]
    assert [str(v) for _, v in greatest] == ["9999999.99"] * 4


def test_sums_are_exact_beyond_the_digits_of_pythons_context() -> None:
    wide = Types.DECIMAL(38, 2)
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([Decimal("1E+33"), Decimal("0.01")], wide).key_by(lambda v: 0, Types.LONG())
    (sums,) = run_local(env, keyed.sum())
    assert str(sums[-1]) == "1" + "0" * 33 + ".01"
    assert decimal.getcontext().prec == 28


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (ANY, "value"),
        (Types.ROW_NAMED(["a", "b"], [PRICE, Types.LIST(ANY)]), "b[]"),
        (Types.TUPLE([Types.ROW_NAMED(["x"], [Types.MAP(ANY, PRICE)])]), "f0.x.key"),
        (Types.MAP(PRICE, ANY), "value.value"),
        (Types.ROW([PRICE]), None),
    ],
)
def test_tables_need_a_scale(tmp_path: Path, kind: Any, path: str | None) -> None:
    assert find_big_dec(kind) == path
    if path is None:
        ParquetSink(str(tmp_path)).validate(kind)
        return
    said = r"is Types.BIG_DEC\(\).*declare Types.DECIMAL\(precision, scale\)"
    with pytest.raises(ConfigurationError, match=f"the Parquet sink .*{said}"):
        ParquetSink(str(tmp_path)).validate(kind)
    with pytest.raises(ConfigurationError, match=f"row_type of the Parquet source .*{said}"):
        ParquetSource(str(tmp_path), row_type=Types.ROW([kind]))


def test_columns_of_others_become_decimals() -> None:
    text = fit_column(pa.array(["1.10", None, "1e2", "+7"]), ANY, "c")
    assert text.to_pylist() == ["1.10", None, "1E+2", "7"]
    assert fit_column(pa.array([Decimal("1.50")]), ANY, "c").to_pylist() == ["1.50"]
    nested = Types.ROW_NAMED(["a"], [Types.TUPLE([ANY, Types.LIST(ANY), Types.MAP(Types.STRING(), ANY)])])
    value = Row(a=(Decimal("1.0"), [Decimal("2.00")], {"x": Decimal("3")}))
    assert nested.from_arrow(fit_column(nested.to_arrow([value]), nested, "c")) == [value]
    for wrong in (pa.array(["1,1"]), pa.array([1.5])):
        with pytest.raises(TypeMismatchError):
            fit_column(wrong, ANY, "c")


def test_what_is_beside_a_decimal_stays_as_it_is() -> None:
    parts = [ANY, Types.PICKLED_BYTE_ARRAY(), Types.INSTANT(), Types.BIG_INT(), Types.SQL_TIME()]
    kind = Types.TUPLE([Types.LIST(Types.TUPLE(parts)), Types.MAP(ANY, Types.PICKLED_BYTE_ARRAY())])
    value = (Decimal("1.10"), {"x": 1}, Instant(0, 1000), 2**70, datetime.time(1))
    column = kind.to_arrow([([value, None], {Decimal("1.10"): [1]}), None, (None, {}), ([], None)])
    for start in (0, 1):
        assert fit_column(column.slice(start), kind, "c").equals(column.slice(start))
    assert fit_column(pa.nulls(2), kind, "c").equals(kind.to_arrow([None, None]))
    with pytest.raises(TypeMismatchError, match=r"c: a part of it: declared Types.LONG\(\), got string, such as 'x'"):
        fit_column(pa.array([{"f0": "1.1", "f1": "x"}]), Types.TUPLE([ANY, Types.LONG()]), "c")


# --- what was stored before -------------------------------------------------------------------------------------------


STORED: Any = type_from_json({"type": "BIG_DEC"})


def test_the_stored_name_of_before_is_the_column_of_before() -> None:
    assert (STORED.arrow_type, STORED.to_json()) == (pa.decimal128(38, 18), {"type": "BIG_DEC"})
    assert ANY.to_json() != STORED.to_json()
    kind = Types.ROW_NAMED(["a", "b"], [Types.LIST(Types.MAP(ANY, ANY)), PRICE])
    before = Types.ROW_NAMED(["a", "b"], [Types.LIST(Types.MAP(STORED, STORED)), PRICE])
    assert as_stored_before(kind) == before


def test_stored_values_come_back_as_the_release_before_read_them() -> None:
    values = [Decimal("1.50"), None, Decimal("-100"), Decimal("1E-18"), Decimal(0)]
    column = pa.array(values, pa.decimal128(38, 18))
    for kind in (ANY, STORED):
        back = kind.from_arrow(evolve(column, (STORED, kind)))
        assert list(map(str, back)) == ["1.5", "None", "-100", "1E-18", "0"]
    maps = Types.MAP(STORED, Types.LIST(STORED))
    declared = Types.MAP(ANY, Types.LIST(ANY))
    assert can_evolve(maps, declared)
    stored = maps.to_arrow([{Decimal("0.50"): [Decimal("2.0")]}, None])
    assert declared.from_arrow(evolve(stored, (maps, declared))) == [{Decimal("0.5"): [Decimal(2)]}, None]


def test_a_value_that_was_stored_before_must_fit() -> None:
    assert can_evolve(STORED, PRICE)
    column = pa.array([Decimal("1.125")], pa.decimal128(38, 18))
    with pytest.raises(StateSchemaError, match=r"does not fit Types.DECIMAL\(9, 2\).*declare a wider type"):
        evolve(column, (STORED, PRICE))


def test_in_flight_records_of_an_earlier_release_are_read() -> None:
    kind = Types.TUPLE([ANY, Types.LONG()])
    before = as_stored_before(kind)
    batch = pa.record_batch(
        [before.to_arrow([(Decimal("1.5"), 1), (None, 2)]), pa.array([5, 6])], names=["value", "timestamp"]
    )
    assert list(decode_buffer(encode_buffer(batch), kind).values) == [(Decimal("1.5"), 1), (None, 2)]


@pytest.mark.parametrize("text", ["1_0", " 1", "\u0661", "sNaN", ""])
def test_text_from_outside_that_is_no_number(text: str) -> None:
    with pytest.raises(TypeMismatchError, match=r"declared Types.BIG_DEC\(\), got the text .*, which is not a number"):
        fit_column(pa.array([text]), ANY, "x")
