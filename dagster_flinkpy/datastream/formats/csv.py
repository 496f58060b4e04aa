"""CSV files (``pyflink.datastream.formats.csv``)."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.former_names import missing
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.datastream.connectors.file_system import StreamFormat
from dagster_flinkpy.datastream.formats.columns import check_columns
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["CsvReaderFormat"]


@dataclass(frozen=True)
class CsvReaderFormat(StreamFormat):
    """Makes each line of a CSV file in UTF-8 a row (PyFlink: ``CsvReaderFormat``, with a row type for the schema).

    Empty lines are skipped. A line that does not fit is a `SourceReadError` that names file and line.

    Example::

        from dagster_flinkpy.common import Types
        from dagster_flinkpy.datastream.connectors import FileSource
        from dagster_flinkpy.datastream.formats.csv import CsvReaderFormat

        columns = Types.ROW_NAMED(["id", "price"], [Types.LONG(), Types.DECIMAL(10, 2)])
        source = FileSource.for_record_stream_format(CsvReaderFormat.for_row_type(columns), "s3://shop/orders").build()
    """

    row_type: RowTypeInfo | None = None
    use_header: bool = True
    column_separator: str = ","
    quote_char: str | None = '"'
    null_value: str = ""
    newlines_in_values: bool = False

    @staticmethod
    def for_row_type(
        row_type: RowTypeInfo,
        *,
        use_header: bool = True,
        column_separator: str = ",",
        quote_char: str | None = '"',
        null_value: str = "",
        newlines_in_values: bool = False,
    ) -> CsvReaderFormat:
        """Returns a format. The other arguments are named as in PyFlink's ``CsvSchemaBuilder``, if it has them.

        Args:
            row_type: The columns and their types. Nested types, maps, binary and ``BIG_DEC`` cannot be read.
            use_header: Whether the first line of each file has the names of its columns. Then the columns of a file may
                be in any order, and those that ``row_type`` lacks are skipped. Otherwise the columns of each file are
                those of ``row_type``, in their order. (Flink's default is False; `CsvSink` writes a header.)
            column_separator: What separates columns, a character.
            quote_char: What encloses a value with a separator in it, a character. It is doubled inside values. None: no
                value is quoted.
            null_value: What a null is, unless it is quoted. Default: nothing.
            newlines_in_values: Whether quoted values may contain line ends. Such a file cannot be divided, so one
                subtask reads all of it. If False, a line end in quotes is a `SourceReadError`.

        Raises:
            ConfigurationError: A column cannot be read from CSV, or something is not a character.
        """
        check_columns("CsvReaderFormat", row_type, nested=False)
        for name, character in (("column_separator", column_separator), ("quote_char", quote_char)):
            if character is not None:
                check_argument(f"{name} of CsvReaderFormat", character, str, "a character")
                if len(character) != 1 or not character.isascii() or character in "\r\n":
                    raise ConfigurationError(
                        f"{name} of CsvReaderFormat must be one ASCII character, not {character!r}"
                    )
        if column_separator == quote_char:
            raise ConfigurationError(f"column_separator and quote_char of CsvReaderFormat are both {quote_char!r}")
        check_argument("null_value of CsvReaderFormat", null_value, str, "text")
        if newlines_in_values and quote_char is None:
            raise ConfigurationError("newlines_in_values of CsvReaderFormat needs a quote_char")
        return CsvReaderFormat(
            "UTF-8", row_type, use_header, column_separator, quote_char, null_value, newlines_in_values
        )

    @property
    def produced_type(self) -> RowTypeInfo:
        assert self.row_type is not None
        return self.row_type

    def kinds(self) -> set[str]:
        return {"csv"}


def __getattr__(name: str) -> object:
    raise missing(__name__, name)
