"""The cores of the simulated Spark, for which tasks wait."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Cores"]


class Cores:
    """Gives cores to tasks in the order of their jobs (Spark: ``spark.scheduler.mode`` FIFO, its default).

    Args:
        number: How many there are.
        wait_for: Makes a task wait until a condition holds.
    """

    def __init__(self, number: int, wait_for: Callable[[Callable[[], bool]], object]) -> None:
        self.number, self._wait_for = number, wait_for
        self._jobs, self._tasks = itertools.count(), itertools.count()
        self._queue: set[tuple[int, int]] = set()
        self._running: list[Callable[[], bool]] = []
        """Of each task that runs, whether its job is over: such a task may live on, and nobody waits for its core."""
        self.never_began = 0
        """How many tasks were over before they had a core."""

    def new_job(self) -> int:
        """Returns the number of a job that is submitted."""
        return next(self._jobs)

    @property
    def free(self) -> bool:
        """Whether a task could begin."""
        return sum(not is_over() for is_over in self._running) < self.number

    @contextmanager
    def one(self, job: int, is_over: Callable[[], bool]) -> Iterator[bool]:
        """Provides a core for a task of a job. Yields False, and provides none, if the job is over before."""
        task = job, next(self._tasks)
        self._queue.add(task)
        try:
            self._wait_for(lambda: is_over() or (self.free and task == min(self._queue)))
        finally:
            self._queue.remove(task)
        if is_over():
            self.never_began += 1
            yield False
            return
        self._running.append(is_over)
        try:
            yield True
        finally:
            self._running.remove(is_over)
