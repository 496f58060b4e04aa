"""Lets a function with several inputs say which ones are read next (Flink: ``InputSelection``, ``InputSelectable``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from dagster_flinkpy.errors import ConfigurationError

__all__ = ["InputSelectable", "InputSelection"]


class InputSelection:
    """Some of the inputs of a function.

    Args:
        input_ids: The inputs, from 1. Default: all.
    """

    ALL: ClassVar[InputSelection]
    FIRST: ClassVar[InputSelection]
    SECOND: ClassVar[InputSelection]

    def __init__(self, *input_ids: int) -> None:
        for each in input_ids:
            if isinstance(each, bool) or not isinstance(each, int) or each < 1:
                raise ConfigurationError(f"InputSelection() needs numbers of inputs, from 1, not {each!r}")
        self._input_ids = frozenset(input_ids)

    def is_input_selected(self, input_id: int) -> bool:
        """Returns whether an input is among them.

        Args:
            input_id: The number of the input, from 1.
        """
        return not self._input_ids or input_id in self._input_ids

    def are_all_inputs_selected(self) -> bool:
        """Returns whether it stands for all inputs, however many there are."""
        return not self._input_ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputSelection) and self._input_ids == other._input_ids

    def __hash__(self) -> int:
        return hash(self._input_ids)

    def __repr__(self) -> str:
        return f"InputSelection({', '.join(map(str, sorted(self._input_ids)))})"


InputSelection.ALL, InputSelection.FIRST, InputSelection.SECOND = InputSelection(), InputSelection(1), InputSelection(2)


class InputSelectable(ABC):
    """Selects the inputs of a function with several inputs. The function extends this class besides its own.

    Records of other inputs wait, and hold up those who send them. When all inputs that are selected have ended, the
    others are read. Its tasks must live (``execution.exchange``).

    Flink refuses checkpoints of such functions. Here the barriers of inputs that are not selected are waited for, too;
    what has come before them and was not read is stored with the checkpoint, as with unaligned ones.
    """

    @abstractmethod
    def next_selection(self) -> InputSelection:
        """Returns the inputs to read next. Is called before the first record, and after each one."""
