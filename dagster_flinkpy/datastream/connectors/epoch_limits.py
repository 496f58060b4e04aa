"""How much of a source an epoch reads."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_flinkpy.common.arguments import check_count

__all__ = ["EpochLimits"]


@dataclass(frozen=True)
class EpochLimits:
    """How much a source reads between two barriers, over all of its subtasks."""

    records: int | None = None
    bytes: int | None = None

    @staticmethod
    def checked(where: str, records: int | None, size: int | None) -> EpochLimits:
        """Returns limits after a check.

        Args:
            where: The source, for messages.
            records: The maximum number of records, or None.
            size: The maximum number of bytes of input, or None.

        Raises:
            ConfigurationError: A number is not positive.
        """
        for name, number in (("max_records_per_epoch", records), ("max_bytes_per_epoch", size)):
            if number is not None:
                check_count(where, name, number, "records or bytes")
        return EpochLimits(records, size)

    def __bool__(self) -> bool:
        return self.records is not None or self.bytes is not None
