"""Which key group a key belongs to, and which subtask owns a key group: Flink's answers, bit for bit.

The ranges are here. The hashes need numpy and PyArrow; they are in ``key_hashes``, imported with the first use of one.

Source: Flink's ``KeyGroupRangeAssignment``, ``KeyGroupRange``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from dagster_flinkpy.errors import ParallelismError

if TYPE_CHECKING:
    from dagster_flinkpy.key_hashes import (
        StructAs,
        assign_to_key_group,
        java_hash_code,
        java_hash_codes,
        key_groups,
        key_groups_of_hashes,
        murmur_hash,
        operator_indexes,
        row_hash_code,
    )

__all__ = [
    "UPPER_BOUND_MAX_PARALLELISM",
    "KeyGroupRange",
    "StructAs",
    "assign_to_key_group",
    "compute_default_max_parallelism",
    "compute_key_group_range_for_operator_index",
    "compute_operator_index_for_key_group",
    "java_hash_code",
    "java_hash_codes",
    "key_groups",
    "key_groups_of_hashes",
    "murmur_hash",
    "operator_indexes",
    "row_hash_code",
]

UPPER_BOUND_MAX_PARALLELISM = 32768
"""The greatest parallelism and max parallelism."""

DEFAULT_LOWER_BOUND_MAX_PARALLELISM = 128
"""The least max parallelism that is chosen for a job that sets none."""


def __getattr__(name: str) -> object:
    """What ``key_hashes`` has: a Dagster code location declares jobs, and hashes no key."""
    if name in __all__:
        return getattr(import_module("dagster_flinkpy.key_hashes"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(frozen=True)
class KeyGroupRange:
    """The key groups ``start`` to ``end``, both inclusive; never empty."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ParallelismError(f"[{self.start}, {self.end}] is not a range of key groups; need 0 <= start <= end")

    @property
    def number_of_key_groups(self) -> int:
        """How many key groups the range has."""
        return self.end - self.start + 1

    def __contains__(self, key_group: int) -> bool:
        return self.start <= key_group <= self.end

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """The key groups in both ranges; None if there are none."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else None


def compute_key_group_range_for_operator_index(
    max_parallelism: int, parallelism: int, operator_index: int
) -> KeyGroupRange:
    """The key groups that subtask ``operator_index`` of ``parallelism`` owns.

    Like Flink, it does not check ``operator_index`` against ``parallelism``.

    Raises:
        ParallelismError: An argument is out of range, or ``parallelism`` is above ``max_parallelism``.
    """
    check_parallelisms(max_parallelism, parallelism)
    # Java's int division goes towards zero.
    start = math.trunc((operator_index * max_parallelism + parallelism - 1) / parallelism)
    end = math.trunc(((operator_index + 1) * max_parallelism - 1) / parallelism)
    return KeyGroupRange(start, end)


def compute_operator_index_for_key_group(max_parallelism: int, parallelism: int, key_group_id: int) -> int:
    """The subtask of ``parallelism`` that owns key group ``key_group_id``.

    Raises:
        ParallelismError: An argument is out of range, or ``parallelism`` is above ``max_parallelism``.
    """
    check_parallelisms(max_parallelism, parallelism)
    if not 0 <= key_group_id < max_parallelism:
        raise ParallelismError(f"key group {key_group_id} is not within 0 to {max_parallelism - 1}")
    return int(key_group_id) * parallelism // max_parallelism  # int(): an np.uint16 would overflow


def compute_default_max_parallelism(operator_parallelism: int) -> int:
    """The max parallelism of an operator that sets none: one and a half times its parallelism, as a power of two.

    Returns:
        128 to 32768.

    Raises:
        ParallelismError: ``operator_parallelism`` is not within 1 to 32768.
    """
    check_parallelism("parallelism", operator_parallelism)
    target = operator_parallelism + operator_parallelism // 2
    power_of_two = 1 << (target - 1).bit_length()
    return min(max(power_of_two, DEFAULT_LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM)


def check_parallelism(name: str, value: int) -> None:
    """Refuses what is not within 1 to 32768; ``name`` is for the message."""
    if not 0 < value <= UPPER_BOUND_MAX_PARALLELISM:
        raise ParallelismError(f"{name} is {value}, but must be 1 to {UPPER_BOUND_MAX_PARALLELISM}")


def check_parallelisms(max_parallelism: int, parallelism: int) -> None:
    """Refuses parallelisms out of range, and one above its maximum."""
    check_parallelism("parallelism", parallelism)
    check_parallelism("max_parallelism", max_parallelism)
    if parallelism > max_parallelism:
        raise ParallelismError(
            f"parallelism {parallelism} is above max_parallelism {max_parallelism}; lower it or raise max_parallelism"
        )
