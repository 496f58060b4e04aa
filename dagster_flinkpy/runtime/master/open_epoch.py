"""An epoch whose tasks read what comes until its checkpoint is triggered, instead of what was there when it was.

The input comes in parts. The next one is looked for when the sources have asked for it (Flink: a reader's
``RequestSplitEvent``), so that a job that cannot follow is not given more than it is reading. When the checkpoint is
triggered, a last part follows, with all that is there by then, and then the barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.master.split_planner import SplitPlanner
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["OpenEpoch"]


class OpenEpoch:
    """What the sources of a region are given of an epoch. Only the region's lane uses it, but for :meth:`close`.

    Args:
        given: What an earlier try of the epoch was given, or an epoch without input.
        splits: Asks the enumerators.
        watchdog: Ends a look for input that hangs.
        now: Tells milliseconds since 1970.
        on_end: Called once when no more input follows before the checkpoint is triggered, because all has ended.
    """

    def __init__(
        self,
        given: Epoch,
        splits: SplitPlanner,
        watchdog: Watchdog,
        now: Callable[[], int],
        on_end: Callable[[], object],
    ) -> None:
        self.read = replace(given, open=True)
        """What the sources were given so far, to read it again after a failure."""
        self.interval = splits.discovery_interval.total_seconds()
        """How many seconds to wait before another look if there was nothing."""
        self.closed_ms: int | None = None
        """When the checkpoint was triggered, in milliseconds since 1970; None if it is not."""
        self.error: BaseException | None = None
        """What an enumerator raised. What it would assign next is unclear."""
        self.following: OpenEpoch | None = None
        """The epoch that the sources read behind the barrier, once that follows."""
        self._splits, self._watchdog, self._now, self._on_end = splits, watchdog, now, on_end
        self._first = True
        self._wake: Callable[[], object] = lambda: None

    @property
    def closed(self) -> bool:
        """Whether the next part is the last one."""
        return self.closed_ms is not None

    def on_close(self, wake: Callable[[], object]) -> None:
        """Sets what is called when the epoch is closed. Any thread may call it."""
        self._wake = wake

    def close(self, following: OpenEpoch | None) -> None:
        """Lets the barrier follow. Any thread may call it.

        Args:
            following: The epoch that the sources read behind the barrier; None if they wait.
        """
        self.following, self.closed_ms = following, self._now()
        self._wake()

    @property
    def ended(self) -> bool:
        """Whether all input has ended."""
        return self._splits.ends(self.read)

    def say_if_ended(self) -> None:
        """Says again that all input has ended, if it has."""
        if self.ended:
            self._on_end()

    def next(self) -> Epoch | None:
        """Looks for the next part.

        Returns:
            The part; not open if the barrier follows. None if there is nothing now.

        Raises:
            SourceReadError: The input cannot be listed.
            CheckpointTimeoutError: A source hangs.
        """
        if self.error is not None:
            raise self.error
        closed, ended = self.closed, self.ended
        if ended and not closed:
            return None
        try:
            part = self._watchdog.run("looking for input", self._look, closed)
        except BaseException as error:
            self.error = error
            raise
        if not closed and not part.has_input and part.ended_sources == self.read.ended_sources:
            return None
        self.read = self.read.followed_by(part)
        if not ended:
            self.say_if_ended()
        return part

    def _look(self, closed: bool) -> Epoch:
        number, first = self.read.checkpoint_id, self._first and not self.read.has_input
        self._first = False
        part = replace(self._splits.plan_part(number, first=first), open=not closed)
        if closed:
            self._splits.snapshot(number)
        return part
