"""The names under which timers, and running aggregations, are stored."""

from __future__ import annotations

from dagster_flinkpy.datastream.time_domain import TimeDomain

__all__ = ["EVENT_TIMERS", "PROCESSING_TIMERS", "ROLLING", "TIMERS"]

EVENT_TIMERS, PROCESSING_TIMERS = "_timers/event_time", "_timers/processing_time"
TIMERS = {TimeDomain.EVENT_TIME: EVENT_TIMERS, TimeDomain.PROCESSING_TIME: PROCESSING_TIMERS}
ROLLING = "_op_state"
"""The state of ``sum()``, ``min()``, ``max()``, ``reduce()`` and other running aggregations."""
