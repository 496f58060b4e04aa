"""Work on threads for which a process does not wait when it ends, because a store may hang."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["in_daemon_threads"]

T = TypeVar("T")


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
