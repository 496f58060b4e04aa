"""Assigns key groups to subtasks, exactly as Flink does.

`key_hashes` assigns keys to key groups. It needs numpy and PyArrow; this module does not.

Source: Flink's ``KeyGroupRangeAssignment``, ``KeyGroupRange``.
"""

from __future__ import annotations

import math

from dagster_flinkpy.errors import ParallelismError
from dagster_flinkpy.json_records import ArrayRecord

__all__ = [
    "UPPER_BOUND_MAX_PARALLELISM",
    "KeyGroupRange",
    "check_parallelism",
    "check_parallelisms",
    "check_whole_number",
    "compute_default_max_parallelism",
    "compute_key_group_range_for_operator_index",
    "compute_operator_index_for_key_group",
]

UPPER_BOUND_MAX_PARALLELISM = 32768
"""The largest allowed parallelism and max parallelism."""

DEFAULT_LOWER_BOUND_MAX_PARALLELISM = 128
"""The smallest max parallelism chosen for an operator that sets none."""


class KeyGroupRange(ArrayRecord, frozen=True):
    """The key groups from ``start`` to ``end``, both inclusive. A range is never empty."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ParallelismError(
                f"[{self.start}, {self.end}] is not a range of key groups: it must have 0 <= start <= end"
            )

    @property
    def number_of_key_groups(self) -> int:
        """The number of key groups in the range."""
        return self.end - self.start + 1

    def __contains__(self, key_group: int) -> bool:
        return self.start <= key_group <= self.end

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """Returns the key groups in both ranges, or None if they do not overlap."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else None


def compute_key_group_range_for_operator_index(
    max_parallelism: int, parallelism: int, operator_index: int
) -> KeyGroupRange:
    """Returns the key groups that subtask ``operator_index`` of ``parallelism`` owns.

    Like Flink, it does not check ``operator_index`` against ``parallelism``.

    >>> compute_key_group_range_for_operator_index(128, 3, 0)
    KeyGroupRange(start=0, end=42)

    Raises:
        ParallelismError: An argument is out of range, or ``parallelism`` is above ``max_parallelism``.
    """
    check_parallelisms(max_parallelism, parallelism)
    # Java's int division rounds towards zero.
    start = math.trunc((operator_index * max_parallelism + parallelism - 1) / parallelism)
    end = math.trunc(((operator_index + 1) * max_parallelism - 1) / parallelism)
    return KeyGroupRange(start, end)


def compute_operator_index_for_key_group(max_parallelism: int, parallelism: int, key_group_id: int) -> int:
    """Returns the subtask that owns key group ``key_group_id``, at parallelism ``parallelism``.

    >>> compute_operator_index_for_key_group(128, 3, 43)
    1

    Raises:
        ParallelismError: An argument is out of range, or ``parallelism`` is above ``max_parallelism``.
    """
    check_parallelisms(max_parallelism, parallelism)
    if not 0 <= key_group_id < max_parallelism:
        raise ParallelismError(f"key group {key_group_id} is not within 0 to {max_parallelism - 1}")
    return int(key_group_id) * parallelism // max_parallelism  # int(): an np.uint16 would overflow


def compute_default_max_parallelism(operator_parallelism: int) -> int:
    """Returns the max parallelism of an operator that sets none: 1.5 times its parallelism, as the next power of two.

    >>> compute_default_max_parallelism(100)
    256

    Returns:
        A power of two from 128 to 32768.

    Raises:
        ParallelismError: ``operator_parallelism`` is not within 1 to 32768.
    """
    check_parallelism("parallelism", operator_parallelism)
    target = operator_parallelism + operator_parallelism // 2
    power_of_two = 1 << (target - 1).bit_length()
    return min(max(power_of_two, DEFAULT_LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM)


def check_whole_number(name: str, value: object) -> None:
    """Raises `ParallelismError` if the value is not a whole number: ``'3'``, ``2.0`` and ``True`` are not."""
    if not isinstance(value, int) or isinstance(value, bool):
        most = UPPER_BOUND_MAX_PARALLELISM
        raise ParallelismError(f"{name} is {value!r}, but must be a whole number from 1 to {most}")


def check_parallelism(name: str, value: int) -> None:
    """Raises `ParallelismError` unless the value is a whole number from 1 to 32768; ``name`` appears in the message."""
    check_whole_number(name, value)
    if not 0 < value <= UPPER_BOUND_MAX_PARALLELISM:
        raise ParallelismError(f"{name} is {value}, but must be 1 to {UPPER_BOUND_MAX_PARALLELISM}")


def check_parallelisms(max_parallelism: int, parallelism: int) -> None:
    """Raises `ParallelismError` if a value is out of range, or the parallelism is above the max parallelism."""
    check_parallelism("parallelism", parallelism)
    check_parallelism("max_parallelism", max_parallelism)
    if parallelism > max_parallelism:
        raise ParallelismError(
            f"parallelism {parallelism} is above max_parallelism {max_parallelism}; lower it or raise max_parallelism"
        )
