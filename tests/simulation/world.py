"""One process in which many actors take turns. One seed determines who runs when, and what fails.

Each actor is a greenlet that runs the library's own code. It may be switched, crash or be paused at every request to
the store, and only there. What an actor does after a crash has no effect.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from tests.simulation.bucket import Bucket
from tests.simulation.cores import Cores

__all__ = ["Actor", "Chaos", "Crashed", "Process", "SerialExecutor", "Violation", "World"]

T = TypeVar("T")

_MAX_STEPS = 60_000
_MAX_TURNS = 1_000_000
_MAX_SPINS = 1_000


_START_MS = 1_800_000_000_000
_END_MS = _START_MS + 100 * 86_400_000
"""No world that ends takes nearly as long: it hangs, though its timers go on."""


class Crashed(BaseException):
    """The process of an actor has crashed."""


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Chaos:
    """Probabilities of events, per request to the store unless stated otherwise."""

    switch: float = 0.3
    """Another actor continues."""
    crash: float = 0.0
    pause: float = 0.0
    """The actor stops for a while, like its machine. It is a zombie if another attempt takes over meanwhile."""
    fail_before: float = 0.0
    """The request fails with 503 or 409, or times out before it arrives."""
    fail_after: float = 0.0
    """The request takes effect, but its response is lost."""
    outage: float = 0.0
    """Per failed request: the next requests of the actor fail, too."""
    retried: float = 0.0
    """The request takes effect, its response is lost, and the client sends it again."""
    late_list: float = 0.0
    """A listing does not show the last changes."""
    clock_jump: float = 0.0
    task_fails: float = 0.0
    """Per task of a Spark job: it fails."""
    task_hangs: float = 0.0
    step_hangs: float = 0.0
    """Per step that the driver's watchdog runs: the attempt gives up, and the step is carried out later or never."""
    speculation: float = 0.0
    """Per task of a Spark job: it runs twice, and the first result is taken."""
    stray_messages: float = 0.0
    """Per checkpoint: duplicate, late and foreign messages also arrive."""
    cores: int = 0
    """Per world: how many tasks of Spark run at once; 0 for any number."""
    segment_loss: float = 0.0
    """Per task that reads a segment of a blocking edge: somebody has deleted it."""
    regions: float = 0.3
    """Per world: a blocking edge divides the program."""
    diamond: float = 0.3
    """Per world with blocking edges: two of its regions are side by side."""
    unaligned: float = 0.5
    """Per world with blocking edges: barriers overtake what is in flight on them."""
    lags: float = 0.3
    """Per task that reads a blocking edge which barriers overtake: it is slow."""
    partitioned: float = 0.35
    """Per world: its runs read time partitions, instead of continuing after the last run."""
    deleting: float = 0.2
    """Per world: checkpoints may be deleted when a run ends."""
    restore: float = 0.35
    """Per attempt: it starts from a savepoint, if there is one."""
    goes_back: float = 0.15
    """Per attempt that starts from no savepoint: it starts from a kept checkpoint."""
    restarts: float = 0.6
    """Per attempt: it restarts in the run after a failure."""
    tolerates: float = 0.5
    """Per attempt: it tolerates failed checkpoints."""
    retry: float = 0.3
    """Per attempt: the next one retries it."""
    savepoint: float = 0.35
    """Per epoch: the attempt takes a savepoint afterwards."""
    stop: float = 0.2
    """Per savepoint: the attempt stops with it."""
    drain: float = 0.3
    """Per stop: it ends the input."""
    upkeep: float = 0.5
    """Per attempt: an actor sweeps, disposes or the like at the same time."""
    verbs: tuple[str, ...] = ()
    """The only actions of that actor; empty for any."""
    native: float = 0.5
    """Per savepoint, if listings are never late: it names the files of the job."""
    requests: float = 0.4
    """Per attempt: somebody asks for a checkpoint, a savepoint or the like."""
    asks: tuple[str, ...] = ()
    """The only requests; empty for any."""
    lost_head: float = 0.2
    """At the end: HEAD is gone when an attempt begins."""
    slot_lost: float = 0.0
    """Per turn of a thread of a slot: its process ends."""
    lives_on: float = 0.5
    """Per process of a slot that is to be killed: it goes on for a while."""
    no_slot: float = 0.0
    """Per slot that is asked for: it starts late, or never."""
    slow: float = 0.0
    """Per message, and per upload of a live task: it takes seconds."""
    upload_fails: float = 0.0
    """Per upload of a live task: it fails."""
    cut: float = 0.0
    """Per call: its connection breaks."""
    half_open: float = 0.0
    """Per call: nothing arrives any more, in one direction or in both, and nobody is told."""
    stray_calls: float = 0.0
    """Per call: somebody makes it again later."""
    sources: tuple[str, ...] = ()
    """The only shapes of sources of live tasks; empty for any."""

    @staticmethod
    def draw(rng: random.Random) -> Chaos:
        """Draws probabilities. Few seeds have all kinds of chaos, because jobs must also make progress."""

        def some(most: float) -> float:
            return rng.choice((0.0, 1.0)) * rng.uniform(0.0, most)

        return Chaos(
            switch=rng.choice((0.05, 0.3, 0.7)),
            crash=some(0.02),
            pause=some(0.03),
            fail_before=some(0.03),
            fail_after=some(0.06),
            outage=some(1.0),
            retried=some(0.05),
            late_list=some(0.3),
            clock_jump=some(0.01),
            task_fails=some(0.1),
            task_hangs=some(0.03),
            speculation=some(0.3),
            stray_messages=some(1.0),
            step_hangs=some(0.03),
            segment_loss=some(0.05),
        )

    def with_live_tasks(self, rng: random.Random) -> Chaos:
        """Draws what may happen to live tasks, too, and to their network."""

        def some(most: float) -> float:
            return rng.choice((0.0, 1.0)) * rng.uniform(0.0, most)

        return replace(
            self,
            slot_lost=some(0.002),
            no_slot=some(0.1),
            slow=some(0.05),
            cut=some(0.1),
            half_open=some(0.05),
            stray_calls=some(0.3),
            upload_fails=min(4 * self.fail_before, 0.2),
            # Their requests to the store are many.
            crash=self.crash / 4,
            pause=self.pause / 4,
        )


@dataclass(eq=False)
class Process:
    """What the threads of a process have in common: they crash together, and are paused together."""

    skew_ms: int = 0
    """How wrong its clock is."""
    sluggish: int = 1
    """How much more often than others it pauses."""
    paused_until_ms: float = 0
    name: str = ""
    is_slot: bool = False
    """Whether it may be lost at any turn of one of its threads."""
    on_end: list[Callable[[], None]] = field(default_factory=list)
    """Called when it crashes."""
    _crashed: bool = False

    @property
    def crashed(self) -> bool:
        return self._crashed

    def is_away(self, now_ms: int) -> bool:
        """Whether it does nothing at a time."""
        return self._crashed or self.paused_until_ms > now_ms

    def crash(self) -> None:
        if not self._crashed:
            self._crashed = True
            for tell in self.on_end:
                tell()


class Actor:
    """A thread of a process, or a task of Spark."""

    def __init__(self, world: World, name: str, body: Callable[[], None], process: Process) -> None:
        self.name = name
        self.process = process
        self.wake_at: float = 0
        self.condition: Callable[[], bool] | None = None
        """What it waits for, besides time."""
        self.outage = 0
        """How many of its next requests fail."""
        self._world = world
        self._body = body
        self.greenlet = greenlet(self._run, world.main)

    @property
    def over(self) -> bool:
        return bool(self.greenlet.dead)

    @property
    def waits_in(self) -> str:
        """Names the code that it waits in, for messages."""
        frame, found = self.greenlet.gr_frame, "?"
        while frame is not None and found.startswith(("?", "World.", "_")):
            found, frame = f"{frame.f_code.co_qualname}, line {frame.f_lineno}", frame.f_back
        return found

    def wakes_at(self, now_ms: float) -> float:
        """When it can continue."""
        if self.process.crashed:
            return now_ms
        at = now_ms if self.condition is not None and self.condition() else self.wake_at
        return max(at, self.process.paused_until_ms)

    def _run(self) -> None:
        try:
            self._body()
        except Crashed:
            self.process.crash()
        except BaseException as error:  # reported by the world
            self._world.broken = self._world.broken or error


class World:
    """The clock, the scheduler and the store of one simulation.

    Args:
        seed: Determines everything that happens.
        chaos: What replaces drawn values of :class:`Chaos`.
    """

    def __init__(self, seed: int, **chaos: Any) -> None:
        self.rng = random.Random(seed)
        self.chaos = replace(Chaos.draw(self.rng), **chaos)
        self.lists_late = self.chaos.late_list > 0
        """Whether listings of the store may have been late. S3 and similar stores list new objects at once."""
        self.main = getcurrent()
        self.now_ms = _START_MS
        self.bucket = Bucket()
        number = self.chaos.cores or random.Random(seed).choice((1, 2, 3, 8))
        self.cores = Cores(number, self.wait_for)
        """The cores of Spark."""
        self.broken: BaseException | None = None
        self.steps = 0
        self._turns = 0
        self._spins = (0, 0)
        """The last time at which a wait was over at once, and how often."""
        self.on_idle: Callable[[], None] = lambda: None
        """Called when nothing happens until the clock has gone on."""
        self.trace: list[str] = []
        self._digest = hashlib.sha256()
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self._over = False

    # --- actors -------------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Actor:
        assert self._current is not None
        return self._current

    def spawn(self, name: str, body: Callable[[], None], process: Process | None = None) -> Actor:
        """Adds an actor, which runs when it is drawn. Unless a process is given, it gets a new one."""
        actor = Actor(self, name, body, process or Process())
        self._actors.append(actor)
        return actor

    def run(self) -> None:
        """Lets actors take turns until all have ended.

        Raises:
            Violation: An invariant does not hold.
        """
        try:
            while self._actors:
                now = self.now_ms
                times = [actor.wakes_at(now) for actor in self._actors]
                ready = [actor for actor, wakes_at in zip(self._actors, times, strict=True) if wakes_at <= now]
                if not ready:
                    wake_at = min(times)
                    if wake_at == math.inf:
                        waiting = ", ".join(f"{actor.name} ({actor.waits_in})" for actor in self._actors)
                        raise Violation(f"all actors wait for each other: {waiting}")
                    if wake_at > _END_MS:
                        waiting = ", ".join(f"{actor.name} ({actor.waits_in})" for actor in self._actors)
                        raise Violation(f"does not end: only timers fire. Waiting: {waiting}")
                    self.on_idle()
                    if self.broken is not None:
                        raise self.broken
                    self.now_ms = int(wake_at)
                    continue
                actor = self._current = self.rng.choice(ready) if len(ready) > 1 else ready[0]
                actor.greenlet.switch()
                if self.broken is not None:
                    raise self.broken
                if actor.over:
                    self._actors.remove(actor)
                    self.note("crashed" if actor.process.crashed else "over")
        finally:
            self._over = True
            for actor in self._actors:  # their cleanup code sees that they have crashed
                if actor.greenlet and not actor.over:
                    self._current = actor
                    actor.greenlet.throw(Crashed())

    def step(self, what: str = "") -> None:
        """A point at which the current actor may be switched, crash or be paused."""
        actor, process = self.current, self.current.process
        if self._over or process.crashed:
            raise Crashed
        self.steps += 1
        if self.steps > _MAX_STEPS:
            self.report(f"no end after {_MAX_STEPS} steps")
            raise Crashed
        if what:
            self.note(what)
        rng, chaos = self.rng, self.chaos
        self.now_ms += rng.randrange(20)
        if chaos.clock_jump and rng.random() < chaos.clock_jump:
            process.skew_ms = rng.randrange(-1_200_000, 1_200_000)
            self.note(f"clock {process.skew_ms:+} ms")
        if chaos.crash and rng.random() < chaos.crash:
            process.crash()
            raise Crashed
        if chaos.pause and rng.random() < chaos.pause * process.sluggish:
            process.paused_until_ms = self.now_ms + rng.choice((500, 5_000, 60_000, 600_000))
            self.note("pauses")
            self._switch(actor)
        elif rng.random() < chaos.switch:
            self._switch(actor)

    def turn(self) -> None:
        """A point inside a process at which another actor may continue. A process of a slot may end there."""
        actor, process = self.current, self.current.process
        if self._over or process.crashed:
            raise Crashed
        self._turns += 1
        if self._turns > _MAX_TURNS:
            self.report(f"no end after {_MAX_TURNS} turns")
            raise Crashed
        rng, chaos = self.rng, self.chaos
        if process.is_slot and chaos.slot_lost and rng.random() < chaos.slot_lost:
            self.note("is lost")
            process.crash()
            raise Crashed
        if rng.random() < chaos.switch:
            self._switch(actor)

    def in_seconds(self, seconds: float | None) -> float:
        """Returns the time after some seconds, or the end of time."""
        return math.inf if seconds is None else self.now_ms + math.ceil(max(seconds * 1000, 0))

    def sleep(self, seconds: float) -> None:
        """Makes the current actor wait."""
        actor = self.current
        if self._over or actor.process.crashed:
            raise Crashed
        actor.wake_at = self.now_ms + max(int(seconds * 1000), 1)
        self._switch(actor)

    def wait_for(self, condition: Callable[[], bool], until_ms: float = math.inf) -> bool:
        """Makes the current actor wait until a condition holds. Returns False if that took too long."""
        actor = self.current
        while not condition():
            if self.now_ms >= until_ms:
                self._count_spin()
                return False
            if self._over or actor.process.crashed:
                raise Crashed
            actor.condition, actor.wake_at = condition, until_ms
            try:
                self._switch(actor)
            finally:
                actor.condition, actor.wake_at = None, 0
        return True

    def _count_spin(self) -> None:
        """Counts waits that are over at once. Somebody who waits for what cannot happen yet never lets time pass."""
        at_ms, spins = self._spins
        self._spins = (self.now_ms, spins + 1 if at_ms == self.now_ms else 1)
        if spins > _MAX_SPINS:
            self.report(f"{self.current.name} spins instead of waiting")
            raise Crashed

    def stop_if_broken(self) -> None:
        """Ends the actor that broke an invariant."""
        if self.broken is not None:
            raise Crashed

    def _switch(self, actor: Actor) -> None:
        self.main.switch()
        if actor.process.crashed or self._over:
            raise Crashed

    @property
    def alone(self) -> bool:
        """Returns whether only one actor is left."""
        return len(self._actors) == 1

    @property
    def pair(self) -> bool:
        """Returns whether only two actors are left: the supervisor, and one that it started."""
        return len(self._actors) == 2

    def clock(self) -> int:
        """Returns the time of the current actor's clock."""
        return self.now_ms + self.current.process.skew_ms

    # --- what happened ------------------------------------------------------------------------------------------------

    def note(self, what: str) -> None:
        line = f"{self.now_ms % 100_000_000:>9} {self._current.name if self._current else '-':<14} {what}"
        self.trace.append(line)
        self._digest.update(line.encode())

    @property
    def digest(self) -> str:
        """Returns the digest of everything that happened."""
        return self._digest.hexdigest()

    def report(self, message: str) -> None:
        """Reports that an invariant does not hold, which ends the simulation."""
        if self.broken is None:
            self.broken = Violation(message)
            self.note(f"VIOLATION {message}")


class SerialExecutor:
    """Replaces a thread pool, because an actor is one thread and the order must be deterministic."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> SerialExecutor:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, work: Callable[..., T], *items: Iterable[Any]) -> Iterator[T]:
        return iter([work(*each) for each in zip(*items, strict=False)])

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        pass
