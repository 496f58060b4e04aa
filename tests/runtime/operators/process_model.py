"""Keyed operators with timers as Flink has them, in plain Python: one record, one timer after the other.

Flink: ``InternalTimerServiceImpl``, ``CoBroadcastWithKeyedOperator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dagster_flinkpy.datastream import TimeDomain

__all__ = ["MIN", "ListModel", "MapModel", "OperatorModel", "ValueModel"]

MIN = -(2**63)


class ValueModel:
    """A value of a key."""

    content: Any = None

    def value(self) -> Any:
        return self.content

    def update(self, value: Any) -> None:
        self.content = value

    def clear(self) -> None:
        self.content = None


class ListModel(ValueModel):
    """A list of a key."""

    def get(self) -> list[Any]:
        return self.content or []

    def add(self, value: Any) -> None:
        self.content = [*self.get(), value]


class MapModel(ValueModel):
    """A map of a key, or broadcast state."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        return (self.content or {}).items()

    def put(self, key: Any, value: Any) -> None:
        self.content = {**dict(self.items()), key: value}

    def remove(self, key: Any) -> None:
        self.content = {known: value for known, value in self.items() if known != key}


class OperatorModel:
    """An operator with keyed state, timers and broadcast state. It is also the context of its function.

    Args:
        function: The function. Its states are attributes with the names of their descriptors.
        states: Makes the states of a key.
        inputs: The number of inputs.
        clock: Processing time, which operators share.
    """

    def __init__(self, function: Any, states: Callable[[], dict[str, Any]], inputs: int, clock: list[int]) -> None:
        self._function, self._make, self._clock = function, states, clock
        self._watermarks = [MIN] * inputs
        self.watermark = MIN
        self._timers: dict[bool, set[tuple[int, str]]] = {True: set(), False: set()}
        """Time and key, by whether they are of event time."""
        self._states: dict[str, dict[str, Any]] = {}
        self._rules = MapModel()
        self._key, self._time, self._event = "", MIN, True
        self.emitted: list[tuple[Any, int]] = []

    # --- the context --------------------------------------------------------------------------------------------------

    def timer_service(self) -> OperatorModel:
        return self

    def current_watermark(self) -> int:
        return self.watermark

    def current_processing_time(self) -> int:
        return self._clock[0]

    def timestamp(self) -> int:
        return self._time

    def time_domain(self) -> TimeDomain:
        return TimeDomain.EVENT_TIME if self._event else TimeDomain.PROCESSING_TIME

    def get_current_key(self) -> str:
        return self._key

    def register_event_time_timer(self, time: int) -> None:
        self._timers[True].add((time, self._key))

    def register_processing_time_timer(self, time: int) -> None:
        self._timers[False].add((time, self._key))

    def delete_event_time_timer(self, time: int) -> None:
        self._timers[True].discard((time, self._key))

    def delete_processing_time_timer(self, time: int) -> None:
        self._timers[False].discard((time, self._key))

    def get_broadcast_state(self, descriptor: Any) -> MapModel:
        return self._rules

    def apply_to_keyed_state(self, descriptor: Any, function: Callable[[Any, Any], None]) -> None:
        for key, states in self._states.items():
            state = states.get(descriptor.name)
            if state is not None and state.content not in (None, [], {}):
                function(key, state)

    # --- the operator -------------------------------------------------------------------------------------------------

    def element(self, key: str, time: int, method: Callable[..., Any], *args: Any) -> None:
        """Calls a method of the function with a record, or a timer, of a key."""
        self._key, self._time = key, time
        vars(self._function).update(self._states.setdefault(key, self._make()))
        self.emitted += [(record, time) for record in method(*args, self) or ()]

    def broadcast_element(self, value: Any, time: int) -> None:
        """Takes a record of the broadcast stream."""
        self._time = time
        self._function.process_broadcast_element(value, self)

    def input_watermark(self, watermark: int, number: int) -> bool:
        """Takes the watermark of an input, and returns whether event time has advanced."""
        self._watermarks[number] = max(self._watermarks[number], watermark)
        if (least := min(self._watermarks)) <= self.watermark:
            return False
        self.watermark = least
        self._fire(True, least)
        return True

    def processing_time(self, now: int) -> None:
        """Fires what is due at a time of the clock."""
        self._fire(False, now)

    def _fire(self, event: bool, until: int) -> None:
        while due := [timer for timer in self._timers[event] if timer[0] <= until]:
            timer = min(due)
            self._timers[event].discard(timer)
            self._event = event
            self.element(timer[1], timer[0], self._function.on_timer, timer[0])
