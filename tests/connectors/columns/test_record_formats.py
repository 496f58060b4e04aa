"""Messages as records, and the other way round."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dagster_flinkpy.common import Instant, Row, Types
from dagster_flinkpy.common.serialization import ByteArraySchema, DeserializationSchema, SimpleStringSchema
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns import record_formats
from dagster_flinkpy.connectors.columns.record_formats import UndecodableMessage, record_decoder, record_encoder
from dagster_flinkpy.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from dagster_flinkpy.errors import ConfigurationError
from tests.connectors.columns.test_column_types import VALUES

FLAT = Types.ROW_NAMED(["n", "s", "x"], [Types.LONG(), Types.STRING(), Types.DOUBLE()])
NO_DECIMALS = ("x", "1_0", " 1", "1 ", "NaN", "sNaN", "Infinity", "\u0661", "\uff11", "0x1F", "", "1e")
"""Python's ``Decimal`` takes most of them."""
RICH = Types.ROW_NAMED(
    ["day", "at", "instant", "price", "tags", "more", "inner"],
    [
        Types.SQL_DATE(),
        Types.SQL_TIMESTAMP(),
        Types.INSTANT(),
        Types.DECIMAL(9, 2),
        Types.LIST(Types.STRING()),
        Types.MAP(Types.INT(), Types.DOUBLE()),
        Types.ROW_NAMED(["b"], [Types.BOOLEAN()]),
    ],
)


def json_schema(type_info: TypeInformation = FLAT, *settings: str) -> JsonRowDeserializationSchema:
    builder = JsonRowDeserializationSchema.builder().type_info(type_info)
    for setting in settings:
        getattr(builder, setting)()
    return builder.build()


def decoded(schema: DeserializationSchema, *messages: bytes | None) -> list[Any]:
    column = record_decoder(schema)(messages)
    column.validate(full=True)
    return column.to_pylist()


def test_text_and_bytes_are_decoded_as_columns() -> None:
    assert decoded(SimpleStringSchema(), "ä".encode(), None, b"") == ["ä", None, ""]
    assert decoded(SimpleStringSchema("ISO-8859-1"), b"\xe4") == ["ä"]
    assert decoded(ByteArraySchema(), b"\xff", None) == [b"\xff", None]


def test_the_message_that_is_no_text_is_named() -> None:
    with pytest.raises(UndecodableMessage, match="can't decode") as raised:
        decoded(SimpleStringSchema(), b"a", b"\xff")
    assert raised.value.index == 1


def test_json_is_parsed_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_formats._JsonDecoder, "_one_by_one", None)
    found = decoded(json_schema(), b'{"n": 1,\n "s": "a\\nb", "x": 2.5, "other": {}}', b"{}", b'{"x": 2, "n": null}')
    assert found == [{"n": 1, "s": "a\nb", "x": 2.5}, {"n": None, "s": None, "x": None}, {"n": None, "s": None, "x": 2}]


NO_OBJECTS = [b"", b"x", b"{}{}", b'{"n": 1.5}', b'{"n": "1"}', b'{"s": 1}', b"[1]", b'{"s": "\xff"}', b"{"]
NO_OBJECTS += [b'{"other": "\xff"}', b'{"\xff": 1}', b"[" * 200_000, b'{"x": 2e308}', b'{"x": %d}' % 10**400]


@pytest.mark.parametrize("bad", NO_OBJECTS, ids=lambda bad: repr(bad[:20]))
def test_a_message_that_is_no_such_object_is_named_or_skipped(bad: bytes) -> None:
    with pytest.raises(UndecodableMessage) as raised:
        decoded(json_schema(), b'{"n": 1}', bad, b'{"n": 2}')
    assert raised.value.index == 1
    found = decoded(json_schema(FLAT, "ignore_parse_errors"), b'{"n": 1}', bad, b'{"n": 2}')
    assert [each and each["n"] for each in found] == [1, None, 2]


@pytest.mark.parametrize(
    "messages",
    [[b'{"n": 1} {"n": 2}', b""], [b" ", b'{"n": 1}{"n": 2}'], [b'{"n":', b'1}{"n": 2}'], [b'{"n": 1}{"n":', b"2}"]],
)
def test_a_message_gets_nothing_of_its_neighbours(messages: list[bytes]) -> None:
    """There are as many objects as messages, and each message had one, of another message."""
    with pytest.raises(UndecodableMessage) as raised:
        decoded(json_schema(), b'{"n": 0}', *messages)
    assert raised.value.index == 1
    assert decoded(json_schema(FLAT, "ignore_parse_errors"), *messages) == [None, None]


def test_both_parsers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Types.ROW_NAMED(
        ["i", "l", "r"], [Types.SHORT(), Types.LIST(Types.LONG()), Types.ROW_NAMED(["f"], [Types.FLOAT()])]
    )
    messages = [b'{"i": 3, "l": [1, null], "r": {"f": 1.5}}', b'{"l": [], "r": null}', b'{"r": {}}']
    in_columns = decoded(json_schema(kind), *messages)
    monkeypatch.setattr(record_formats, "_IN_COLUMNS", ())
    assert decoded(json_schema(kind), *messages) == in_columns
    for limit in (b'{"i": 32768}', b'{"i": -32769}'):
        with pytest.raises(UndecodableMessage):
            decoded(json_schema(kind), limit)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Types.LONG(), "1.0"),
        (Types.LONG(), '"7"'),
        (Types.DOUBLE(), "1e400"),
        (Types.DOUBLE(), "2e308"),
        (Types.DOUBLE(), "9" * 400),
        (Types.FLOAT(), "-" + "9" * 400),
        (Types.FLOAT(), "1e39"),
        (Types.DECIMAL(9, 2), "1.005"),
        (Types.DECIMAL(9, 2), '"x"'),
        (Types.DECIMAL(9, 2), "1e-999999999"),
        (Types.FLOAT(), "1e999999999"),
        (Types.DOUBLE(), "-1e999999999"),
        *((kind, f'"{text}"') for kind in (Types.BIG_DEC(), Types.DECIMAL(9, 2)) for text in NO_DECIMALS),
        (Types.SQL_DATE(), '"20240101"'),
        (Types.SQL_DATE(), '"2024-W01-1"'),
        (Types.SQL_TIME(), '"10:00Z"'),
        (Types.SQL_TIME(), '"10"'),
        (Types.SQL_TIME(), '"10:00:00.1234567"'),
        (Types.SQL_TIMESTAMP(), '"2024-01-01T10:00:00.1234567"'),
        (Types.SQL_TIMESTAMP(), '"2024-01-01T10:00Z"'),
        (Types.SQL_TIMESTAMP(), "1700000000"),
        (Types.INSTANT(), '"2024-01-01T10:00"'),
    ],
)
def test_a_value_that_is_not_written_strictly_is_refused(kind: TypeInformation, value: str) -> None:
    """Alone, in a list and in a map; and the messages beside it are decoded if such errors are ignored."""
    nested = {
        "v": (kind, value),
        "l": (Types.LIST(kind), f"[null, {value}]"),
        "m": (Types.MAP(Types.STRING(), kind), f'{{"k": {value}}}'),
    }
    for name, (each, text) in nested.items():
        builder = JsonRowDeserializationSchema.builder().type_info(Types.ROW_NAMED([name], [each]))
        messages = [b"{}", f'{{"{name}": {text}}}'.encode(), b"{}"]
        with pytest.raises(UndecodableMessage, match=rf"record\.{name}.* is ") as raised:
            record_decoder(builder.build())(messages)
        assert raised.value.index == 1
        decoded = record_decoder(builder.ignore_parse_errors().build())(messages)
        assert decoded.to_pylist() == [{name: None}, None, {name: None}]


def test_text_for_a_decimal_is_written_as_in_java() -> None:
    kind = Types.ROW_NAMED(["n"], [Types.BIG_DEC()])
    for text in ("1", "+5", "-1.50", ".5", "1.", "1e5", "1E-400"):
        assert json_schema(kind).deserialize(f'{{"n": "{text}"}}'.encode()).n == Decimal(text)


def test_a_missing_field_can_be_an_error() -> None:
    with pytest.raises(UndecodableMessage, match="record has no field 's'"):
        decoded(json_schema(FLAT, "fail_on_missing_field"), b'{"n": 1, "x": 1}')


def test_every_type_of_json_makes_a_round_trip() -> None:
    row = Row(
        datetime.date(2026, 1, 2),
        datetime.datetime(2026, 1, 2, 3, 4, 5),
        Instant.of_epoch_milli(5),
        Decimal("1.50"),
        ["a"],
        {1: 2.5},
        Row(True),
    )
    writes = JsonRowSerializationSchema.builder().with_type_info(RICH).build()
    message = writes.serialize(row)
    assert json_schema(RICH).deserialize(message) == RICH.from_arrow(RICH.to_arrow([row]))[0]
    assert decoded(json_schema(RICH), b'{"instant": "2026-01-01T00:00:00Z", "price": 3}')[0]["price"] == Decimal(3)
    for wrong in (b'{"instant": "2026-01-01T00:00:00"}', b'{"price": 1.234}', b'{"day": 3}', b'{"more": {"x": 1}}'):
        with pytest.raises(UndecodableMessage):
            decoded(json_schema(RICH), wrong)


@pytest.mark.parametrize("name", VALUES)
def test_each_type_makes_a_round_trip_through_json_or_is_refused(name: str) -> None:
    kind, value = VALUES[name]
    row = Types.ROW_NAMED(["v", "t"], [kind, Types.TUPLE([kind])])
    if name in ("PRIMITIVE_ARRAY(BYTE())", "untyped"):
        with pytest.raises(ConfigurationError, match="which JSON cannot contain"):
            json_schema(row)
        return
    record = Row(value, (value,))
    message = JsonRowSerializationSchema(row).serialize(record)
    assert row.to_arrow([json_schema(row).deserialize(message)]) == row.to_arrow([record])
    assert decoded(json_schema(row), b"{}") == [{"v": None, "t": None}]


def test_a_schema_of_the_user_decodes_message_by_message() -> None:
    class Numbers(DeserializationSchema):
        def deserialize(self, message: bytes) -> int:
            return int(message)

        def get_produced_type(self) -> TypeInformation:
            return Types.LONG()

    assert decoded(Numbers(), b"1", None) == [1, None]
    with pytest.raises(UndecodableMessage, match="invalid literal"):
        decoded(Numbers(), b"x")


def test_encoders() -> None:
    texts = Types.STRING().to_arrow(["ä", None])
    assert record_encoder(SimpleStringSchema(), Types.STRING())(texts).to_pylist() == ["ä".encode(), None]
    assert record_encoder(SimpleStringSchema("latin1"), Types.STRING())(texts).to_pylist() == [b"\xe4", None]
    binary = Types.PRIMITIVE_ARRAY(Types.BYTE())
    assert record_encoder(ByteArraySchema(), binary)(pa.array([b"x"])).to_pylist() == [b"x"]
    row = record_encoder(JsonRowSerializationSchema(FLAT), FLAT)(FLAT.to_arrow([Row(1, "a", 2.0)]))
    assert row.to_pylist() == [b'{"n": 1, "s": "a", "x": 2.0}']
    nulls = record_encoder(JsonRowSerializationSchema(FLAT), FLAT)(FLAT.to_arrow([None, Row(1, "\n", None)]))
    assert nulls.to_pylist() == [None, b'{"n": 1, "s": "\\n", "x": null}']


def test_a_float_has_the_digits_that_identify_it() -> None:
    """It had those of the double that it is: 0.10000000149011612."""
    row = Types.ROW_NAMED(["f", "l"], [Types.FLOAT(), Types.LIST(Types.FLOAT())])
    assert (
        JsonRowSerializationSchema(row).serialize(Row(0.1, [1.1, 1e20, None])) == b'{"f": 0.1, "l": [1.1, 1e+20, null]}'
    )


def test_what_json_does_not_have_is_refused_when_the_schema_is_built() -> None:
    binary: RowTypeInfo = Types.ROW_NAMED(["b"], [Types.PRIMITIVE_ARRAY(Types.BYTE())])
    for wrong in (binary, Types.LONG(), None):
        with pytest.raises(ConfigurationError):
            JsonRowDeserializationSchema.builder().type_info(wrong).build()  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="exclude"):
        json_schema(FLAT, "ignore_parse_errors", "fail_on_missing_field")
