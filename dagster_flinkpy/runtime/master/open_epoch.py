"""An epoch whose tasks read what comes until its checkpoint is triggered, instead of what was there when it was.

The input comes in parts. The next one is looked for when the sources have asked for it (Flink: a reader's
``RequestSplitEvent``), so that a job that cannot follow is not given more than it is reading. When the checkpoint is
triggered, a last part follows, with all that is there by then, and then the barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.master.split_planner import SplitPlanner
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["OpenEpoch"]

P = ParamSpec("P")
T = TypeVar("T")


class OpenEpoch:
    """What the sources of a region are given of an epoch, in all tries.

    Only the region's lane uses it, unless a method says otherwise. Once the last part is given, the epoch is complete:
    another try reads the same, because the next epoch may have what has come since.

    Args:
        checkpoint_id: The checkpoint of the barrier.
        ended_sources: The sources that had ended before.
        splits: Asks the enumerators.
        watchdog: Ends a look for input that hangs.
        now: Tells milliseconds since 1970.
        on_end: Called once when no more input follows before the checkpoint is triggered, because all has ended.
    """

    def __init__(
        self,
        checkpoint_id: int,
        ended_sources: frozenset[str],
        splits: SplitPlanner,
        watchdog: Watchdog,
        now: Callable[[], int],
        on_end: Callable[[], object],
    ) -> None:
        self.read = Epoch(checkpoint_id, {}, ended_sources, open=True)
        """What the sources were given so far. It is open until the last part is given."""
        self.interval = splits.discovery_interval.total_seconds()
        """How many seconds to wait before another look if there was nothing."""
        self.closed_ms: int | None = None
        """When the checkpoint was triggered, in milliseconds since 1970; None if it is not."""
        self.error: BaseException | None = None
        """What an enumerator raised. What it would assign next is unclear."""
        self.following: OpenEpoch | None = None
        """The epoch that the sources read behind the barrier, once that follows."""
        self._splits, self._watchdog, self._now, self._on_end = splits, watchdog, now, on_end
        self._asked = self._finished = False
        self._unread: Epoch | None = None
        """The part that the sources are reading, which the enumerators wait for."""
        self._news: list[int] = []
        self._wake: Callable[[], object] = lambda: None

    @property
    def closed(self) -> bool:
        """Whether the next part is the last one, or there is none."""
        return self.closed_ms is not None

    @property
    def ended(self) -> bool:
        """Whether all input has ended."""
        return self._splits.ends(self.read)

    def on_close(self, wake: Callable[[], object]) -> None:
        """Sets what is called when the epoch is closed. Any thread may call it."""
        self._wake = wake

    def close(self, following: OpenEpoch | None) -> None:
        """Lets the barrier follow, if it does not already. Any thread may call it.

        Args:
            following: The epoch that the sources read behind the barrier; None if they wait.
        """
        if not self.closed:
            self.following, self.closed_ms = following, self._now()
            self._wake()

    def say_if_ended(self) -> None:
        """Says again that all input has ended, if it has."""
        if self.ended:
            self._on_end()

    def notify_complete(self, checkpoint_id: int) -> None:
        """Tells the enumerators that a checkpoint is complete, once the sources have read what is assigned to them.

        Raises:
            Exception: An enumerator raised.
        """
        self._news.append(checkpoint_id)
        if self._unread is None:
            self._run(f"telling sources that checkpoint {checkpoint_id} is complete", self._take_back, None)

    def receive(self, deployment: str, messages: Sequence[Json]) -> None:
        """Takes what readers have said, see :meth:`SplitPlanner.receive`."""
        self._splits.receive(deployment, messages)

    def next(self) -> Epoch | None:
        """Looks for the next part. The sources have read the part before it.

        Returns:
            The part; not open if the barrier follows. None if there is nothing now.

        Raises:
            SourceReadError: The input cannot be listed.
            CheckpointTimeoutError: A source hangs.
        """
        closed, ended = self.closed, self.ended
        if ended and not closed:
            return None
        part = self._run("looking for input", self._look)
        if not closed and not part.has_input and part.ended_sources == self.read.ended_sources:
            self._run("giving back input", self._take_back, part)
            return None
        self._unread = part = replace(part, open=not closed)
        self.read = self.read.followed_by(part)
        if not ended:
            self.say_if_ended()
        return part

    def finish(self) -> None:
        """Keeps the positions of the sources for the checkpoint. They have read the last part, or are past its barrier.

        Raises:
            Exception: An enumerator raised.
        """
        if not self._finished:
            self._run("keeping the positions of sources", self._keep)
            self._finished = True

    def _run(self, what: str, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self.error is not None:
            raise self.error
        try:
            return self._watchdog.run(what, step, *args, **kwargs)
        except BaseException as error:
            self.error = error
            raise

    def _look(self) -> Epoch:
        self._take_back(self._unread)
        first, self._asked = not self._asked, True
        return self._splits.plan_part(self.read.checkpoint_id, first=first)

    def _keep(self) -> None:
        self._take_back(self._unread)
        self._splits.snapshot(self.read.checkpoint_id)

    def _take_back(self, part: Epoch | None) -> None:
        if part is not None:
            self._splits.take_back(part)
        self._unread = None
        while self._news:
            self._splits.notify_complete(self._news.pop(0))
