"""The mergeable windows of a key, and the state windows that have their contents."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any

from dagster_flinkpy.datastream.state import MapState
from dagster_flinkpy.datastream.window import EventTimeSessionWindows, MergingWindowAssigner

__all__ = ["MergingWindowSet"]

Merge = Callable[[Any, list[Any], Any, list[Any]], None]
"""Takes the resulting window, the merged windows, the state window of the result, and the merged state windows."""


class _MergeResults(MergingWindowAssigner.MergeCallback[Any]):
    def __init__(self) -> None:
        self.results: dict[Any, list[Any]] = {}

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self.results[merge_result] = list(to_be_merged)


class MergingWindowSet:
    """The windows in flight of one key (Flink: ``MergingWindowSet``).

    When windows merge, the contents stay in the namespace of one of them, the *state window*, so only the contents of
    the others are moved. The mapping from windows to state windows is state, too, as namespaces.
    """

    def __init__(
        self,
        assigner: MergingWindowAssigner[Any, Any],
        state: MapState[Any, Any],
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
    ) -> None:
        self._assigner, self._state, self._encode = assigner, state, encode
        self._mapping = {decode(window): decode(state_window) for window, state_window in state.items()}
        # Sessions in flight do not touch each other, so the sessions that a new one touches are neighbours.
        sessions = type(assigner).merge_windows is EventTimeSessionWindows.merge_windows
        self._sessions: list[Any] | None = sorted(self._mapping) if sessions else None

    def __len__(self) -> int:
        return len(self._mapping)

    def state_window(self, window: Any) -> Any:
        """Returns the state window of a window, or None if the window is not in flight."""
        return self._mapping.get(window)

    def retire(self, window: Any) -> Any:
        """Removes a window, and returns its state window."""
        if self._sessions is not None:
            del self._sessions[bisect_left(self._sessions, window)]
        self._state.remove(self._encode(window))
        return self._mapping.pop(window)

    def _put(self, window: Any, state_window: Any) -> None:
        if self._sessions is not None and window not in self._mapping:
            insort(self._sessions, window)
        self._state.put(self._encode(window), self._encode(state_window))
        self._mapping[window] = state_window

    def _candidates(self, window: Any) -> list[Any]:
        """Returns the windows in flight that a new one may merge with."""
        if self._sessions is None:
            return list(self._mapping)
        sessions = self._sessions
        first = last = bisect_left(sessions, window)
        while first and sessions[first - 1].intersects(window):
            first -= 1
        while last < len(sessions) and sessions[last].intersects(window):
            last += 1
        return sessions[first:last]

    def add(self, window: Any, merge: Merge) -> Any:
        """Adds a window, merges it with others, and returns the window that now contains it."""
        candidates = self._candidates(window)
        if not candidates:
            self._put(window, window)
            return window
        found = _MergeResults()
        self._assigner.merge_windows([*candidates, window], found)
        result = window
        for merge_result, parts in found.results.items():
            if window in parts:
                result = merge_result
            in_flight = [part for part in dict.fromkeys(parts) if part in self._mapping]
            if in_flight and in_flight != [merge_result]:
                state_windows = [self.retire(part) for part in in_flight]
                self._put(merge_result, state_windows[0])
                merge(merge_result, in_flight, state_windows[0], state_windows[1:])
        # A window that is in flight may come again, and then keeps its state window.
        if result not in self._mapping:
            self._put(result, result)
        return result
