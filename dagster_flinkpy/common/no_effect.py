"""Settings of Flink that are accepted so that programs run unchanged, but that have no effect here."""

from __future__ import annotations

import warnings

from dagster_flinkpy.errors import NoEffectWarning

__all__ = ["no_effect"]

_warned_of: set[str] = set()


def no_effect(setting: str, because: str, stacklevel: int = 2) -> None:
    """Issues a `NoEffectWarning`, once in a process for each setting.

    Args:
        setting: The call or the option, as the user writes it.
        because: Why it has no effect.
        stacklevel: How many calls this is below the user's code. Default: 2, for a method that the user calls.
    """
    if setting not in _warned_of:
        _warned_of.add(setting)
        warnings.warn(f"{setting} has no effect: {because}", NoEffectWarning, stacklevel=stacklevel + 1)
