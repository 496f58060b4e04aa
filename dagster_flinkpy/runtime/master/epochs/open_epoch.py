"""An epoch whose tasks read what comes until its checkpoint is triggered, instead of what was there when it was.

The input comes in parts. The next one is looked for when the sources have asked for it (Flink: a reader's
``RequestSplitEvent``), so that a job that cannot follow is not given more than it is reading. When the checkpoint is
triggered, the sources stop behind what they have emitted, and the barrier follows. What is left of the part belongs to
the next epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.runtime.epoch import EpochInput, Stop
from dagster_flinkpy.runtime.master.epochs.split_planner import SplitPlanner
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
        on_begin: Called when the tasks of a try run, and begin to read.
        on_end: Called when no more input follows before the checkpoint is triggered, because all has ended and is read.
    """

    def __init__(
        self,
        checkpoint_id: int,
        ended_sources: frozenset[str],
        splits: SplitPlanner,
        watchdog: Watchdog,
        now: Callable[[], int],
        on_begin: Callable[[], object],
        on_end: Callable[[], object],
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.ended_sources = ended_sources
        """The sources that end with what was given so far, or have ended before."""
        self.interval = splits.discovery_interval.total_seconds()
        """How many seconds to wait before another look if there was nothing."""
        self.closed_ms: int | None = None
        """When the checkpoint was triggered, in milliseconds since 1970; None if it is not."""
        self.error: BaseException | None = None
        """What an enumerator raised. What it would assign next is unclear."""
        self.following: OpenEpoch | None = None
        """The epoch that the sources read behind the barrier, once that follows."""
        self._splits, self._watchdog, self._now = splits, watchdog, now
        self._on_begin, self._on_end = on_begin, on_end
        self._asked = self._finished = False
        self._taken = EpochInput(checkpoint_id, {}, ended_sources, open=True, timed=True)
        """What the enumerators have got back."""
        self._unread: EpochInput | None = None
        """The part that the sources are reading, which the enumerators wait for."""
        self._to_give: deque[EpochInput] = deque()
        """What this try has not read yet of what was given before."""
        self._reached: dict[str, int] = {}
        """How far sources are in event time, by uid: as far as all subtasks were that had input in a part."""
        self._wake: Callable[[], object] = lambda: None

    @property
    def read(self) -> EpochInput:
        """What the sources were given so far. It is open until the last part is given."""
        return self._taken if self._unread is None else self._taken.followed_by(self._unread)

    @property
    def closed(self) -> bool:
        """Whether the sources are given no more, and the barrier follows."""
        return self.closed_ms is not None

    @property
    def complete(self) -> bool:
        """Whether this try was given all of it, with the barrier."""
        return not self._to_give and not (self._unread or self._taken).open

    @property
    def may_stop(self) -> bool:
        """Whether the sources may stop amid the part that they are reading. Any thread may ask."""
        return self.closed and not self._to_give and self._unread is not None and self._unread.open

    @property
    def ended(self) -> bool:
        """Whether all input has ended."""
        return self._splits.ends(self._taken if self._unread is None else self._unread)

    def on_close(self, wake: Callable[[], object]) -> None:
        """Sets what is called when the epoch is closed. Any thread may call it."""
        self._wake = wake

    def close(self, following: OpenEpoch | None) -> None:
        """Lets the barrier follow, if it does not already. Any thread may call it."""
        if not self.closed:
            self.following, self.closed_ms = following, self._now()
            self._wake()

    def begin(self) -> EpochInput:
        """Begins a try, and returns what it reads first: what was given so far, or a part of that.

        No source stops amid what the enumerators have got back already.
        """
        parts = [self.read] if self._unread is None or not self._unread.open else [self._taken, self._unread]
        self._to_give = deque(parts)
        self._on_begin()
        return self._to_give.popleft()

    def tell_news(self) -> None:
        """Tells the enumerators which checkpoints are complete: later if sources are reading, never after an error."""
        if self._unread is None and self.error is None:
            self._run("telling sources that a checkpoint is complete", self._splits.tell_news)

    def receive(self, deployment: str, messages: Sequence[Json]) -> None:
        """Takes what readers have said, see :meth:`SplitPlanner.receive`."""
        self._splits.receive(deployment, messages)

    def next(
        self,
        stops: Mapping[tuple[str, int], Stop] = MappingProxyType({}),
        watermarks: Mapping[tuple[str, int], int] = MappingProxyType({}),
    ) -> EpochInput | None:
        """Looks for the next part. The sources have read the part before it.

        Args:
            stops: Where they have stopped amid it. Default: they have read all of it.
            watermarks: The watermarks of subtasks. Default: none are known.

        Returns:
            The part; not open if the barrier follows. It may have nothing to read, and only tell how far others are in
            event time. None if there is nothing now.

        Raises:
            SourceReadError: The input cannot be listed.
            CheckpointTimeoutError: A source hangs.
        """
        if self._to_give:
            return self._to_give.popleft()
        closed = self.closed
        if self.ended and not closed:
            self._on_end()
            return None
        further = self._reach(watermarks)
        part = self._unread = self._run("looking for input", self._look, closed, stops)
        if not closed and not part.has_input and part.ended_sources == self.ended_sources and not further:
            self._run("giving back input", self._take_back)
            return None
        self.ended_sources = part.ended_sources
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

    def _look(self, closed: bool, stops: Mapping[tuple[str, int], Stop]) -> EpochInput:
        self._take_back(stops)
        first, self._asked = not self._asked, True
        part = self._splits.plan_part(self.checkpoint_id, first=first, last=closed)
        return replace(part, open=part.has_input or not closed, timed=True, watermarks=dict(self._reached))

    def _reach(self, watermarks: Mapping[tuple[str, int], int]) -> bool:
        """Returns whether the part that was read brings a source further in event time."""
        found, before = dict[str, int](), dict(self._reached)
        for (uid, subtask), splits in self._unread.splits.items() if self._unread is not None else ():
            if splits:
                found[uid] = min(found.get(uid, MAX_WATERMARK), watermarks.get((uid, subtask), MIN_WATERMARK))
        for uid, reached in found.items():
            if reached > self._reached.get(uid, MIN_WATERMARK):
                self._reached[uid] = reached
        return self._reached != before

    def _keep(self) -> None:
        self._take_back()
        self._splits.snapshot(self.checkpoint_id)

    def _take_back(self, stops: Mapping[tuple[str, int], Stop] = MappingProxyType({})) -> None:
        if self._unread is not None:
            part, self._unread = replace(self._unread, stops={**self._unread.stops, **stops}), None
            self._taken = self._taken.followed_by(part)
            self._splits.take_back(part)
        self._splits.tell_news()
