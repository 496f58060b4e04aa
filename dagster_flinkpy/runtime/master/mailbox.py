"""The mailbox of a job's master, and the lanes that work for it (Flink: ``TaskMailbox``).

The master runs on one thread and never waits for Spark, the store or a sink. It submits work to a lane and takes the
result from its mailbox.
"""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from dagster_flinkpy.common.clock import steady_millis
from dagster_flinkpy.common.daemon_threads import DaemonThread

__all__ = ["Done", "InlineMailbox", "Lane", "Mailbox", "ThreadMailbox", "Work"]

Work = Callable[[], Any]


@dataclass(frozen=True, order=True)
class Lane:
    """A sequence of work. The work of different lanes runs at the same time."""

    name: str
    number: int = 0

    STORE: ClassVar[Lane]
    """Completes checkpoints and commits sinks."""
    TRIGGER: ClassVar[Lane]
    """Takes checkpoint ids and calls master hooks."""
    REQUESTS: ClassVar[Lane]
    """Looks for requests to the job and answers them."""
    SAVEPOINT: ClassVar[Lane]
    """Writes savepoints while the job runs."""

    @staticmethod
    def region(number: int) -> Lane:
        """Returns the lane that plans and runs the Spark jobs of a region."""
        return Lane("region", number)

    def __str__(self) -> str:
        return f"{self.name}-{self.number}" if self.name == "region" else self.name


Lane.STORE, Lane.TRIGGER = Lane("store"), Lane("trigger")
Lane.REQUESTS, Lane.SAVEPOINT = Lane("requests"), Lane("savepoint")


@dataclass(frozen=True)
class Done:
    """A piece of work that has ended."""

    lane: Lane
    work: Work
    """The callable that was submitted."""
    result: Any
    error: BaseException | None = None
    """The exception that it raised, or None."""


class Mailbox(ABC):
    """Passes work to the lanes, and returns it to the master in the order in which it ends."""

    has_threads: bool = True
    """Whether lanes run beside the master, which can tell them something while they work."""

    def __init__(self) -> None:
        self.busy: Counter[Lane] = Counter()
        """The number of submitted pieces of work that the master has not taken back, by lane."""
        self.news: deque[Any] = deque()
        """What :meth:`tell` was told and the master has not taken."""
        self.termination: BaseException | None = None
        """Why the run is to end, as somebody outside the master's thread has decided; see :meth:`terminate`."""

    def submit(self, lane: Lane, work: Work) -> None:
        """Queues work behind all earlier work of the lane."""
        self.busy[lane] += 1
        self._submit(lane, work)

    def take(self, until_ms: int | None = None) -> Done | None:
        """Waits until a piece of work ends.

        Args:
            until_ms: When to give up, in milliseconds since 1970. Default: never.

        Returns:
            The work; None if the time is over, or after `wake`.
        """
        if (done := self._take(until_ms)) is not None:
            self.busy[done.lane] -= 1
        return done

    def drain(self, lane: Lane) -> None:
        """Waits until all work of a lane has ended, and drops the results."""
        while self.busy[lane]:
            self.take()

    def terminate(self, error: BaseException) -> None:
        """Makes the master end the run with an error. Any thread and signal handler may call it."""
        self.termination = error
        self.wake()

    def close(self) -> None:
        """Ends the lanes. Nothing may be submitted or taken afterwards."""
        return

    def tell(self, news: Any) -> None:
        """Puts something into the mailbox that nobody has asked for. Any thread may call it."""
        self.news.append(news)
        self.wake()

    @abstractmethod
    def wake(self) -> None:
        """Makes the current or the next :meth:`take` return at once. Any thread and signal handler may call it."""

    @abstractmethod
    def _submit(self, lane: Lane, work: Work) -> None: ...

    @abstractmethod
    def _take(self, until_ms: int | None) -> Done | None: ...


class ThreadMailbox(Mailbox):
    """Runs each lane on a thread, which starts with its first work."""

    def __init__(self, now: Callable[[], int] = steady_millis) -> None:
        super().__init__()
        self._now = now
        # A signal handler may put something in while this thread waits for it, which other queues do not allow.
        self._inbox: queue.SimpleQueue[Done | None] = queue.SimpleQueue()
        self._lanes: dict[Lane, DaemonThread] = {}

    def _submit(self, lane: Lane, work: Work) -> None:
        if lane not in self._lanes:
            self._lanes[lane] = DaemonThread(f"flinkpy-{lane}")
        inbox = self._inbox
        self._lanes[lane].do(lambda: inbox.put(_done(lane, work)))

    def _take(self, until_ms: int | None) -> Done | None:
        try:
            return self._inbox.get(timeout=None if until_ms is None else max(0, until_ms - self._now()) / 1000)
        except queue.Empty:
            return None

    def wake(self) -> None:
        self._inbox.put(None)

    def close(self) -> None:
        for thread in self._lanes.values():
            thread.end()
        self._lanes.clear()


def _done(lane: Lane, work: Work) -> Done:
    try:
        return Done(lane, work, work())
    except BaseException as error:
        return Done(lane, work, None, error)


class InlineMailbox(Mailbox):
    """Runs the work on the master's thread, inside :meth:`take`; for jobs that run in one process.

    Args:
        choose: Picks one of the lanes that have work. Default: the last one.
        now: Tells milliseconds since 1970.
        wait: Waits for a number of seconds. Default: until :meth:`wake`, at most.
    """

    has_threads = False

    def __init__(
        self,
        choose: Callable[[list[Lane]], Lane] = lambda lanes: lanes[-1],
        now: Callable[[], int] = steady_millis,
        wait: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__()
        self._choose, self._now, self._wait = choose, now, wait or self._wait_for_wake
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._todo: defaultdict[Lane, deque[Work]] = defaultdict(deque)

    def _submit(self, lane: Lane, work: Work) -> None:
        self._todo[lane].append(work)

    def _take(self, until_ms: int | None) -> Done | None:
        if lanes := sorted(lane for lane, todo in self._todo.items() if todo):
            lane = self._choose(lanes)
            return _done(lane, self._todo[lane].popleft())
        assert until_ms is not None, "the master waits for work that nobody does"
        self._wait(max(0, until_ms - self._now()) / 1000)
        return None

    def _wait_for_wake(self, seconds: float) -> None:
        with suppress(queue.Empty):
            self._wakes.get(timeout=seconds)

    def wake(self) -> None:
        self._wakes.put(None)

    def drain(self, lane: Lane) -> None:
        self._todo[lane].clear()
        self.busy[lane] = 0
