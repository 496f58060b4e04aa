"""Sessions with the default trigger: the windows of a key are compared directly, and the timers are in columns.

For each record, Python compares a few times and calls the user's function. State, timers and results are those of
:class:`MergingWindowOperator`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from math import inf
from operator import attrgetter
from typing import Any

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.state import StateDescriptor
from dagster_flinkpy.datastream.window import (
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    TimeWindow,
)
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.keyed_operators import EVENT_TIMERS, PROCESSING_TIMERS
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.session_contents import session_contents
from dagster_flinkpy.runtime.operators.window_operator import MERGING_WINDOWS, WindowOperator
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.state.session_table import Session

__all__ = ["SessionWindowOperator"]

_ASSIGNERS: dict[type, type] = {
    EventTimeSessionWindows: EventTimeTrigger,
    DynamicEventTimeSessionWindows: EventTimeTrigger,
    ProcessingTimeSessionWindows: ProcessingTimeTrigger,
    DynamicProcessingTimeSessionWindows: ProcessingTimeTrigger,
}
"""The assigners, and their default triggers."""

_start, _end = attrgetter("start"), attrgetter("end")


class SessionWindowOperator(WindowOperator):
    """Sessions with the default trigger.

    Args:
        context: The context in which the operator runs.
        spec: A window spec for which :meth:`has` is true.
    """

    def __init__(self, context: OperatorContext, spec: WindowSpec) -> None:
        super().__init__(context, spec)
        self._held = session_contents(spec, self._contents.table if self._keeps_elements else None)
        self._touched: dict[Session, None] = {}
        """Sessions that have changed in this batch."""

    @staticmethod
    def has(spec: WindowSpec) -> bool:
        """Returns whether windows are sessions with the default trigger."""
        return type(spec.trigger) is _ASSIGNERS.get(type(spec.assigner))

    def _open_timers(self) -> None:
        name, lateness = PROCESSING_TIMERS, 0
        if self._event_time:
            name, lateness = EVENT_TIMERS, self._spec.allowed_lateness
        window_type = self._codec.namespace_type
        self._sessions, self._session_timers = self.backend.get_sessions(MERGING_WINDOWS, name, window_type, lateness)

    def _open_contents(self, descriptor: StateDescriptor) -> Any:
        if self._keeps_elements:
            return super()._open_contents(descriptor)
        kind: Any = "REDUCING" if self._spec.aggregate is None else "AGGREGATING"
        window_type, value_type = self._codec.namespace_type, descriptor.type_info
        return self.backend.get_session_values(self._sessions, descriptor.name, kind, window_type, value_type)

    # --- records -----------------------------------------------------------------------------------------------------

    def process(self, input_index: int, batch: StreamBatch) -> None:
        records, keys, watermark = self.touch(batch), self.backend.key_context, self.context.watermark
        assign: Any = self._spec.assigner.assign_windows
        context, gap, event_time = self._assigner, self._gap_of(batch), self._event_time
        add, touched = self._held.add, self._touched
        begin, by_slot = self._sessions.begin, self._sessions.by_slot
        passed, over = -inf, -inf
        if event_time:
            passed = watermark + 1
            over = inf if watermark == MAX_WATERMARK else passed - self._spec.allowed_lateness
        session: Session | None
        value: Any = UNKNOWN
        try:
            for slot, value, timestamp in records:
                keys.slot = slot
                start, end = (timestamp, timestamp + gap) if gap else assign(value, timestamp, context)[0]
                sessions = by_slot[slot]
                if sessions is None or start > sessions[-1].end:
                    session = begin(slot, start, end) if end > over else None
                else:
                    session = sessions[-1]
                    if start < session.start:
                        session = self._place(sessions, start, end, over)
                    elif end > session.end:
                        if event_time:
                            session.end = end
                        else:
                            self._move(session, session.start, end)
                if session is None:
                    self._skip(value, timestamp)
                    continue
                add(session, value)
                touched[session] = None
                if session.end <= passed:
                    session.fired = session.end
                    self._fire_session(session, timestamp)
            self._sessions.mark(touched)
            self._session_timers.register(touched)
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, "window", key=keys.current_key(), value=value) from e
        touched.clear()
        self.collector.flush()

    def _gap_of(self, batch: StreamBatch) -> int:
        """Returns the gap in milliseconds, or 0 if the assigner has to be asked for each record."""
        assigner = self._spec.assigner
        if type(assigner) is not EventTimeSessionWindows or (batch.timestamps == NO_TIMESTAMP).any():
            return 0
        return assigner.session_gap

    def _place(self, sessions: list[Session], start: int, end: int, over: float) -> Session | None:
        """Adds a window to the sessions of the current key, and merges those that it touches.

        Returns:
            The session, or None if the window touches no session and is over.
        """
        first = bisect_left(sessions, start, key=_end)
        last = bisect_right(sessions, end, lo=first, key=_start)
        if first == last:
            slot = self.backend.key_context.slot
            return self._sessions.begin(slot, start, end, first) if end > over else None
        session, *others = sessions[first:last]
        self._move(session, min(start, session.start), max(end, sessions[last - 1].end))
        del sessions[first + 1 : last]
        for other in others:
            self._held.merge(session, other)
            self._touched.pop(other, None)
        self._sessions.taken_out(others)
        return session

    def _move(self, session: Session, start: int, end: int) -> None:
        """Sets the window of a session."""
        if not self._event_time and (start, end) != session.window:
            now = self._assigner.get_current_processing_time()
            if end - 1 <= now:
                raise ValueError(f"windows cannot merge into {TimeWindow(start, end)}, which was over at {now}")
        if start < session.start and session.stored is not None:
            session.due = None  # The stored timer is that of the former window.
        session.start, session.end = start, end

    # --- timers ------------------------------------------------------------------------------------------------------

    def on_watermark(self, watermark: int) -> None:
        if self._event_time:
            self._advance_to(watermark)

    def on_processing_time(self, now: int) -> None:
        if not self._event_time:
            self._advance_to(now - 1)

    def _advance_to(self, time: int) -> None:
        if not self._has_keys:
            return
        # The sessions that are due fire and end.
        together = self._spec.window_function is None and not self._sessions.lateness
        try:
            for times, sessions in self._session_timers.advance_to(time):
                if together:
                    self.collector.collect_each(self._results(sessions), times)
                    self._sessions.end(sessions)
                else:
                    for timestamp, session in zip(times, sessions, strict=True):
                        self._on_time(timestamp, session)
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, "window function", key=self.backend.key_context.current_key()) from e
        self.collector.flush()

    def _results(self, sessions: list[Session]) -> Iterator[Any]:
        """Yields the result of each session, while its key is the current one."""
        keys, result = self.backend.key_context, self._held.result
        for session in sessions:
            keys.slot = session.slot
            yield result(session)

    def _on_time(self, timestamp: int, session: Session) -> None:
        """Fires or drops a session; with an allowed lateness, it is dropped later than it fires."""
        self.backend.key_context.slot = session.slot
        if timestamp == session.end - 1 and session.fired != session.end:
            self._fire_session(session, timestamp)
            self._session_timers.fired(session)
        if timestamp == self._sessions.over_at(session):
            self._held.drop(session)
            self._sessions.end((session,))
            if self._clears:
                self._end(TimeWindow(session.start, session.end))

    def _fire_session(self, session: Session, timestamp: int) -> None:
        """Evaluates a session of the current key."""
        contents = self._held.result(session)
        if contents is None:
            return
        if self._spec.window_function is None:
            self.collector.collect((contents,), timestamp)
        else:
            self._window.current = window = TimeWindow(session.start, session.end)
            contents = contents if self._keeps_elements else (contents,)
            self.collector.collect(self._evaluate(self.backend.key_context.current_key(), window, contents), timestamp)
