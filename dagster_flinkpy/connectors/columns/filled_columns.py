"""Columns that a sink fills, by which it finds the rows that it replaces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dagster_flinkpy.errors import ConfigurationError

__all__ = ["OWNER_COLUMN", "PARTITION_COLUMN", "FilledColumns"]

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
