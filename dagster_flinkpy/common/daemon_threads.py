"""Work on threads for which a process does not wait when it ends, because a store may hang."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["DaemonThread", "in_daemon_threads"]

T = TypeVar("T")


class DaemonThread:
    """Does one thing after the other, each in the context of whoever has asked for it."""

    def __init__(self, name: str) -> None:
        self._todo: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work_off, args=(self._todo,), name=name, daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int:
        """Its identifier, as that of a thread."""
        assert self._thread.ident is not None
        return self._thread.ident

    def do(self, work: Callable[[], object]) -> None:
        """Calls a function, which must not raise, when all earlier ones have returned. Any thread may call it."""
        context = contextvars.copy_context()
        self._todo.put(lambda: context.run(work))

    def end(self) -> None:
        """Ends the thread when all functions have returned. One that hangs ends with the process."""
        self._todo.put(None)


def _work_off(todo: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    while (work := todo.get()) is not None:
        work()
        del work  # while it waits for the next one, it must not keep what this one had


def in_daemon_threads(function: Callable[[T], object], items: Iterable[T], number: int) -> None:
    """Calls a function for each item, several at once. When one call has raised, no others begin.

    The threads of a ``ThreadPoolExecutor`` would keep a process alive whose call hangs.

    Args:
        function: The function.
        items: Its arguments.
        number: How many threads there are at most.

    Raises:
        BaseException: What the first call has raised.
    """
    todo, raised = deque(items), list[BaseException]()

    def work() -> None:
        while not raised:
            try:
                item = todo.popleft()
            except IndexError:
                return
            try:
                function(item)
            except BaseException as error:
                raised.append(error)

    threads = [threading.Thread(target=work, name="flinkpy-copy", daemon=True) for _ in range(min(number, len(todo)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
