"""Stand-ins for threads and time: the library's own code runs on actors of the world, which takes turns with them.

Another actor may continue at each lock, wait and queue, and nowhere else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace, TracebackType
from typing import Any

from tests.simulation.world import Actor, World

__all__ = [
    "RequestLock",
    "SimulatedFuture",
    "SimulatedUuid",
    "simulated_queue",
    "simulated_threading",
    "simulated_time",
]


class _Lock:
    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False

    def acquire(self) -> None:
        self._world.turn()
        self._world.wait_for(lambda: not self._held)
        self._held = True

    def release(self) -> None:
        self._held = False

    def __enter__(self) -> _Lock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class RequestLock(_Lock):
    """A lock that is held during requests to the store. At these, others may continue anyway."""

    def acquire(self) -> None:
        self._world.wait_for(lambda: not self._held)
        self._held = True


class _Condition(_Lock):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._waiters: list[list[bool]] = []

    def notify_all(self) -> None:
        assert self._held
        for waiter in self._waiters:
            waiter[0] = True
        self._waiters.clear()

    def wait(self, timeout: float | None = None) -> bool:
        assert self._held
        waiter = [False]
        self._waiters.append(waiter)
        self.release()
        try:
            told = self._world.wait_for(lambda: waiter[0], self._world.in_seconds(timeout))
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        self._world.wait_for(lambda: not self._held)
        self._held = True
        return told

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        until = self._world.in_seconds(timeout)
        while not predicate():
            left = (until - self._world.now_ms) / 1000
            if left <= 0:
                return False
            self.wait(None if left == math.inf else left)
        return True


class _Event:
    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._world.turn()
        return self._world.wait_for(self.is_set, self._world.in_seconds(timeout))


class _Thread:
    def __init__(
        self, world: World, target: Callable[..., Any], args: tuple[Any, ...] = (), name: str = "", daemon: bool = True
    ) -> None:
        self._world, self._target, self._args, self.name = world, target, args, name
        self._actor: Actor | None = None

    def start(self) -> None:
        process = self._world.current.process
        self._actor = self._world.spawn(self.name, lambda: self._target(*self._args), process)

    @property
    def ident(self) -> int | None:
        return None if self._actor is None else id(self._actor)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.over

    def join(self, timeout: float | None = None) -> None:
        self._world.wait_for(lambda: not self.is_alive(), self._world.in_seconds(timeout))


class _SimpleQueue:
    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self) -> Any:
        self._world.wait_for(lambda: bool(self._items))
        return self._items.popleft()


def simulated_threading(world: World) -> Any:
    """Returns what replaces the module `threading`."""

    def thread(**options: Any) -> _Thread:
        return _Thread(world, **options)

    return SimpleNamespace(
        Lock=lambda: _Lock(world), Condition=lambda: _Condition(world), Event=lambda: _Event(world), Thread=thread
    )


def simulated_queue(world: World) -> Any:
    """Returns what replaces the class `SimpleQueue`."""

    class SimpleQueue(_SimpleQueue):
        def __class_getitem__(cls, item: Any) -> Any:
            return cls

        def __init__(self) -> None:
            super().__init__(world)

    return SimpleQueue


def simulated_time(world: World) -> Any:
    """Returns what replaces the module `time`."""
    return SimpleNamespace(
        monotonic=lambda: world.now_ms / 1000,
        perf_counter_ns=lambda: world.now_ms * 1_000_000,
    )


class SimulatedUuid:
    """Replaces the module `uuid`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def uuid4(self) -> Any:
        return SimpleNamespace(hex=f"{self._world.rng.getrandbits(128):032x}")


class SimulatedFuture(Future[Any]):
    """A future for which an actor can wait."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def result(self, timeout: float | None = None) -> Any:
        self._world.wait_for(self.done)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._world.wait_for(self.done)
        return super().exception()
