"""Files with a JSON object per line."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.datastream.connectors.file_system import StreamFormat
from dagster_flinkpy.datastream.formats.columns import check_columns

__all__ = ["JsonLinesReaderFormat"]


@dataclass(frozen=True)
class JsonLinesReaderFormat(StreamFormat):
    """Makes each line of a file, a JSON object in UTF-8, a row. PyFlink has no such format.

    Members that the row type lacks are skipped; those that an object lacks are null. Empty lines are skipped. A line
    that does not fit is a `SourceReadError` that names file and line.
    """

    row_type: RowTypeInfo | None = None

    @staticmethod
    def for_row_type(row_type: RowTypeInfo) -> JsonLinesReaderFormat:
        """Returns a format.

        Args:
            row_type: The columns and their types, also nested rows and lists. Decimals may be text or numbers; dates,
                times and timestamps are ISO text. Maps, binary and ``BIG_DEC`` cannot be read.

        Raises:
            ConfigurationError: A column cannot be read from JSON.
        """
        check_columns("JsonLinesReaderFormat", row_type, nested=True)
        return JsonLinesReaderFormat("UTF-8", row_type)

    @property
    def produced_type(self) -> RowTypeInfo:
        assert self.row_type is not None
        return self.row_type

    def kinds(self) -> set[str]:
        return {"json"}
