"""Where the time of a task goes, and what its operators receive and send (Flink: ``TaskIOMetricGroup``).

A task has one thread, so at each moment each of its operators is in exactly one of three states. It is *busy* if the
thread runs its own code. It is *back-pressured* if it has sent records and waits until they are taken: by the operators
that are chained behind it, or by Spark. Otherwise it is *idle*: its input is still to come, or the thread runs other
operators.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK
from dagster_flinkpy.runtime.task.latency import LatencyStats

__all__ = ["OperatorIOMetrics", "TaskTimes"]

T = TypeVar("T")

_NANOS_PER_MICRO = 1_000


class TaskTimes:
    """Measures the operators of one task. It looks at the clock when an operator starts or ends, never per record."""

    def __init__(self, nanos: Callable[[], int] = time.perf_counter_ns) -> None:
        self._nanos = nanos
        self._since = nanos()
        self.running: list[str] = []
        """The operators that the thread is in, the innermost last."""
        self._busy: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        """The time in operators behind, by operator."""
        self._total = self._blocked = 0
        self._taken: dict[str, tuple[int, int, int]] = {}

    def enter(self, uid: str) -> None:
        """An operator starts. It must not be running already, and ends before those that started earlier."""
        self._advance()
        self.running.append(uid)

    def leave(self) -> None:
        """The operator that started last ends."""
        self._advance()
        self.running.pop()

    def given(self, outputs: Iterable[T]) -> Iterator[T]:
        """Yields what the task sends. The time until the consumer comes back is back-pressure of all its operators."""
        for output in outputs:
            self._advance()
            yield output
            self._blocked += self._elapsed()

    def pause(self) -> None:
        """The thread leaves the task for others."""
        self._advance()

    def resume(self, *, back_pressured: bool) -> None:
        """The thread comes back to the task.

        Args:
            back_pressured: Whether the task has waited until what it has sent was taken. Otherwise it had no input, or
                the thread was busy with other tasks.
        """
        elapsed = self._elapsed()
        if back_pressured:
            self._blocked += elapsed

    def take(self, uid: str) -> dict[str, int]:
        """Returns the microseconds of an operator in each state since the last call, by the names in a checkpoint."""
        self._advance()
        now = (self._total, self._busy[uid], self._held[uid] + self._blocked)
        before = self._taken.get(uid, (0, 0, 0))
        self._taken[uid] = now
        total, busy, held = ((a - b) // _NANOS_PER_MICRO for a, b in zip(now, before, strict=True))
        return {"busy_us": busy, "idle_us": total - busy - held, "back_pressured_us": held}

    def _elapsed(self) -> int:
        now = self._nanos()
        elapsed, self._since = now - self._since, now
        self._total += elapsed
        return elapsed

    def _advance(self) -> None:
        elapsed = self._elapsed()
        if self.running:
            *outer, innermost = self.running
            self._busy[innermost] += elapsed
            for uid in outer:
                self._held[uid] += elapsed


class OperatorIOMetrics:
    """Counts what an operator receives and sends, from barrier to barrier."""

    def __init__(self) -> None:
        self.records_in = 0
        self.records_out = 0
        self.bytes_in = 0
        """Encoded records that came through a shuffle; chained edges move no bytes."""
        self.bytes_out = 0
        """All that was sent through shuffles since the task began."""
        self.latency = LatencyStats()
        self._bytes_out_before = 0

    def take(self, *, now_ms: int, input_watermark: int, output_watermark: int | None) -> dict[str, int | float]:
        """Returns the metrics since the last call, by the names in a checkpoint."""
        bytes_out = self.bytes_out - self._bytes_out_before
        found: dict[str, int | float] = {
            "records_in": self.records_in,
            "records_out": self.records_out,
            "bytes_in": self.bytes_in,
            "bytes_out": bytes_out,
        }
        if input_watermark != MIN_WATERMARK:
            found["input_watermark"] = input_watermark
        if output_watermark is not None and output_watermark != MAX_WATERMARK:
            found["watermark_lag_ms"] = now_ms - output_watermark
        found |= self.latency.take()
        self.records_in = self.records_out = self.bytes_in = 0
        self._bytes_out_before = self.bytes_out
        return found
