"""Records as JSON (``pyflink.datastream.formats.json``). The registry names the code that reads and writes it."""

from __future__ import annotations

from typing import Any

from dagster_flinkpy.common.serialization import DeserializationSchema, SerializationSchema
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import resolve

__all__ = ["JsonRowDeserializationSchema", "JsonRowSerializationSchema"]


def _check_row(call: str, type_info: Any) -> RowTypeInfo:
    if not isinstance(type_info, RowTypeInfo):
        raise ConfigurationError(f"{call} needs Types.ROW_NAMED([...], [...]), not {type_info!r}")
    resolve("check_json_type")("record", type_info)
    return type_info


class JsonRowDeserializationSchema(DeserializationSchema):
    """Makes a row of a JSON object. Batches are parsed by PyArrow, column by column.

    A field that the object lacks is null, and one that the type lacks is skipped. Dates and times are ISO 8601. A row
    with a decimal, a date, a time or a map is parsed in Python, which is slower.

    Args:
        type_info: The type of the rows.
        fails_on_missing_field: Whether a missing field is an error.
        ignores_parse_errors: Whether records that are not such objects are skipped.
    """

    def __init__(
        self, type_info: RowTypeInfo, *, fails_on_missing_field: bool = False, ignores_parse_errors: bool = False
    ) -> None:
        self.type_info = _check_row("JsonRowDeserializationSchema", type_info)
        self.fails_on_missing_field = fails_on_missing_field
        self.ignores_parse_errors = ignores_parse_errors
        if fails_on_missing_field and ignores_parse_errors:
            raise ConfigurationError("fail_on_missing_field() and ignore_parse_errors() exclude each other")

    @staticmethod
    def builder() -> JsonRowDeserializationSchema.Builder:
        """Returns a builder of a schema."""
        return JsonRowDeserializationSchema.Builder()

    def deserialize(self, message: bytes) -> Any:
        column = resolve("record_decoder")(self)([message])
        return self.type_info.from_arrow(column)[0]

    def get_produced_type(self) -> TypeInformation:
        return self.type_info

    class Builder:
        """Builds a `JsonRowDeserializationSchema`."""

        def __init__(self) -> None:
            self._type_info: Any = None
            self._fails = self._ignores = False

        def type_info(self, type_info: TypeInformation) -> JsonRowDeserializationSchema.Builder:
            """Sets the type of the rows.

            Args:
                type_info: ``Types.ROW_NAMED(...)``.
            """
            self._type_info = type_info
            return self

        def fail_on_missing_field(self) -> JsonRowDeserializationSchema.Builder:
            """Makes a missing field an error. Default: it is null."""
            self._fails = True
            return self

        def ignore_parse_errors(self) -> JsonRowDeserializationSchema.Builder:
            """Skips records that are not JSON objects of the type. Default: they are an error."""
            self._ignores = True
            return self

        def build(self) -> JsonRowDeserializationSchema:
            """Returns the schema.

            Raises:
                ConfigurationError: There is no type, JSON does not have it, or the settings contradict each other.
            """
            return JsonRowDeserializationSchema(
                self._type_info, fails_on_missing_field=self._fails, ignores_parse_errors=self._ignores
            )


class JsonRowSerializationSchema(SerializationSchema):
    """Makes a JSON object of a row. Decimals, dates and times become text.

    Args:
        type_info: The type of the rows.
    """

    def __init__(self, type_info: RowTypeInfo) -> None:
        self.type_info = _check_row("JsonRowSerializationSchema", type_info)

    @staticmethod
    def builder() -> JsonRowSerializationSchema.Builder:
        """Returns a builder of a schema."""
        return JsonRowSerializationSchema.Builder()

    def serialize(self, element: Any) -> bytes:
        message: bytes = resolve("record_encoder")(self, self.type_info)(self.type_info.to_arrow([element]))[0].as_py()
        return message

    def check_type(self, type_info: TypeInformation) -> None:
        if type_info != self.type_info:
            raise ConfigurationError(
                f"its JsonRowSerializationSchema writes {self.type_info}, not {type_info}: declare that as "
                "output_type=... of the operator before the sink"
            )

    class Builder:
        """Builds a `JsonRowSerializationSchema`."""

        def __init__(self) -> None:
            self._type_info: Any = None

        def with_type_info(self, type_info: TypeInformation) -> JsonRowSerializationSchema.Builder:
            """Sets the type of the rows.

            Args:
                type_info: ``Types.ROW_NAMED(...)``.
            """
            self._type_info = type_info
            return self

        def build(self) -> JsonRowSerializationSchema:
            """Returns the schema.

            Raises:
                ConfigurationError: There is no type, or JSON does not have it.
            """
            return JsonRowSerializationSchema(self._type_info)
