"""Windows by count with the default trigger: positions, counts and contents are read and written directly.

State and results are those of :class:`WindowOperator` with the assigner and the trigger.
"""

from __future__ import annotations

from typing import Any

from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.window import (
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CountWindow,
    PurgingTrigger,
)
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.window_operator import WindowOperator
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch

__all__ = ["CountWindowOperator"]


class CountWindowOperator(WindowOperator):
    """Tumbling and sliding windows by count, which fire and end when they are full.

    Args:
        context: The context in which the operator runs.
        spec: A window spec for which :meth:`has` is true.
    """

    def __init__(self, context: OperatorContext, spec: WindowSpec) -> None:
        super().__init__(context, spec)
        assigner: Any = spec.assigner
        trigger: Any = spec.trigger
        self._size, self._ids = trigger.nested_trigger.window_size, assigner.window_ids
        self._positions: Any = self._states.get(assigner.position_state)
        self._counts: Any = self.backend.get_state(trigger.nested_trigger.count_state, self._codec.namespace_type)

    @staticmethod
    def has(spec: WindowSpec) -> bool:
        """Returns whether windows are those by count, with the default trigger."""
        counting = type(spec.assigner) in (CountTumblingWindowAssigner, CountSlidingWindowAssigner)
        trigger = spec.trigger
        return counting and type(trigger) is PurgingTrigger and type(trigger.nested_trigger) is CountTrigger

    def process(self, input_index: int, batch: StreamBatch) -> None:
        records, keys, size, ids = self.touch(batch), self.backend.key_context, self._size, self._ids
        positions, moved = self._positions.table.values, self._positions.table.changed
        counts, changed = self._counts.table.values, self._counts.table.changed
        add = self._contents.add_to
        value: Any = UNKNOWN
        try:
            for slot, value, timestamp in records:
                keys.slot = slot
                position = positions[slot] or 0
                positions[slot], moved[slot] = position + 1, True
                for number in ids(position):
                    cell = slot, number
                    add(cell, value)
                    count = counts.get(cell, 0) + 1
                    if count < size:
                        counts[cell] = count
                        changed.add(cell)
                    else:
                        self._counts.clear_of(cell)
                        self._fire_full(cell, timestamp)
                        self._contents.clear_of(cell)
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, "window", key=keys.current_key(), value=value) from e
        self.collector.flush()

    def _fire_full(self, cell: tuple[int, int], timestamp: int) -> None:
        """Evaluates a window of the current key."""
        contents = self._contents.get_of(cell)
        if contents is not None:
            self._window.current = window = CountWindow(cell[1])
            contents = contents if self._keeps_elements else (contents,)
            self.collector.collect(self._evaluate(self.backend.key_context.current_key(), window, contents), timestamp)
