"""The columns of records, those that sinks fill, and what JSON can contain. Declarations need this, without PyArrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_flinkpy.common.composite_type_info import parts_of
from dagster_flinkpy.common.decimals import check_has_scale
from dagster_flinkpy.common.typeinfo import (
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "OWNER_COLUMN",
    "PARTITION_COLUMN",
    "PARTITION_TYPES",
    "FilledColumns",
    "check_json_type",
    "check_key",
    "check_parquet_type",
    "columns_of",
    "is_binary",
    "is_nested",
]

PARTITION_TYPES = (
    Types.STRING(),
    Types.BOOLEAN(),
    Types.BYTE(),
    Types.SHORT(),
    Types.INT(),
    Types.LONG(),
    Types.SQL_DATE(),
)
"""What a table can be partitioned by."""
_KEY_TYPES = (*PARTITION_TYPES, Types.SQL_TIMESTAMP(), Types.INSTANT())


def columns_of(type_info: TypeInformation) -> dict[str, TypeInformation]:
    """Returns the columns of records: the fields of rows and tuples, or else ``value``."""
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        return dict(zip(type_info.field_names, type_info.field_types, strict=True))
    return {"value": type_info}


def is_nested(type_info: TypeInformation) -> bool:
    """Returns whether values of a type have parts."""
    return isinstance(type_info, (ListTypeInfo, MapTypeInfo, RowTypeInfo, TupleTypeInfo))


def is_binary(type_info: TypeInformation) -> bool:
    """Returns whether values of a type are bytes."""
    return isinstance(type_info, PickledBytesTypeInfo) or type_info == Types.PRIMITIVE_ARRAY(Types.BYTE())


def check_key(where: str, key: Sequence[str], columns: Mapping[str, TypeInformation]) -> None:
    """Checks that rows can be compared by a key."""
    for name in key:
        if name not in columns:
            raise ConfigurationError(f"{where} has the key {name!r}, but the records have {list(columns)}")
        if columns[name] not in _KEY_TYPES:
            raise ConfigurationError(
                f"{where} cannot have the key {name!r}, a {columns[name]}: use text, a whole number, a boolean, a date "
                "or a timestamp"
            )


def check_parquet_type(
    name: str, type_info: TypeInformation, where: str, *, most_digits: int = 76, without: Sequence[TypeInformation] = ()
) -> None:
    """Checks that Parquet files of a table can contain values of a type."""
    check_has_scale(type_info, f"column {name!r} of {where}")
    if isinstance(type_info, PickledBytesTypeInfo):
        raise ConfigurationError(f"column {name!r} of {where} is untyped, so values would be pickled: declare its type")
    if type_info in without or (isinstance(type_info, DecimalTypeInfo) and type_info.precision > most_digits):
        raise ConfigurationError(
            f"column {name!r} is {type_info}, which {where} cannot have: map() it to another type, such as text"
        )
    parts = parts_of(type_info, name)
    if not parts and is_nested(type_info):
        raise ConfigurationError(f"column {name!r} of {where} is a row without fields: Parquet has no such column")
    for part, kind in parts.items():
        check_parquet_type(part, kind, where, most_digits=most_digits, without=without)


def check_json_type(name: str, type_info: TypeInformation) -> None:
    """Checks that JSON can contain values of a type."""
    if is_binary(type_info):
        raise ConfigurationError(f"{name!r} is binary, which JSON cannot contain: map() it to text")
    if isinstance(type_info, MapTypeInfo) and is_nested(type_info.key_type):
        raise ConfigurationError(f"the keys of map {name!r} are {type_info.key_type}, but keys in JSON are text")
    for part, kind in parts_of(type_info, name).items():
        check_json_type(part, kind)


OWNER_COLUMN = "dagster_asset_key"
PARTITION_COLUMN = "dagster_partition_key"


@dataclass(frozen=True)
class FilledColumns:
    """The partition of a row and, if several owners write to a table, its owner. Both are text."""

    partition: str = PARTITION_COLUMN
    """The column with the key of the Dagster partition."""
    owner: str | None = None
    """Whose rows they are, in the column `OWNER_COLUMN`. None: all rows of a partition are the sink's own."""

    @property
    def names(self) -> list[str]:
        """The columns, in their order."""
        return [self.partition] if self.owner is None else [OWNER_COLUMN, self.partition]

    def values(self, partition: str | None) -> dict[str, str | None]:
        """Returns what the rows of a partition have in the columns. None: they have no partition."""
        return (
            {self.partition: partition} if self.owner is None else {OWNER_COLUMN: self.owner, self.partition: partition}
        )

    def replaced(self, partition: str | None) -> dict[str, str]:
        """Returns what rows have in the columns that are replaced. None: all rows of the owner."""
        return {name: value for name, value in self.values(partition).items() if value is not None}

    def replaced_by_any(self, partitions: Iterable[str | None]) -> tuple[list[str], dict[Any, str | None]]:
        """Returns the names of the columns that are replaced, and the partitions by names and values of these."""
        found: dict[Any, str | None] = {tuple(self.replaced(each).items()): each for each in partitions}
        return [name for name, _ in next(iter(found), ())], found

    def check(self, where: str, columns: Iterable[str], partition: str | None) -> None:
        """Checks that records do not have the columns, and that there is a partition to fill in."""
        self.check_free(where, columns)
        if self.owner is None and partition is None:
            raise ConfigurationError(
                f"{where} has partition_column {self.partition!r}, but the job has no time partitions: give it "
                "partitions_def=..., or leave out partition_column"
            )

    def check_free(self, where: str, columns: Iterable[str]) -> None:
        """Checks that records do not have the columns."""
        if taken := [name for name in self.names if name in set(columns)]:
            raise ConfigurationError(f"{where} fills column {taken[0]!r} itself: leave it out of the records")
