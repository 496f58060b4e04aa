"""Runs a job in a world in which others act, and says whether it kept its promise.

The promise: each row is visible once, in the end; or the run ends with an error of the library, and after the act is
undone, or the advice of the error followed, the job goes on to the same rows. What was visible stays visible.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import Row
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.errors import FlinkPyError
from dagster_flinkpy.runtime.master.commits import commit_retries
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import environment
from tests.world.stage import EVENT, Act, Record, Sink, Source, System, Undo, nothing

__all__ = ["Case", "Deed", "Promise", "play"]

ROUNDS = 3
PER_ROUND = 6
KEYS = 3
_CONFIG = {"checkpointing": CoordinatorConfig(num_retained=3)}
_MOST_REACHED = 600
"""How often a moment is reached at most, before the job counts as one that never ends."""


class Promise(AssertionError):
    """The job did not keep its promise."""


class _ActFails(BaseException):
    """Somebody could not do what the test wanted. No layer catches it."""


class _Endless(BaseException):
    """The job tries without end. No layer catches it."""


@dataclass(frozen=True)
class Deed:
    """When somebody acts."""

    act: str
    moment: str
    round: int = 2

    def __str__(self) -> str:
        return f"{self.act} @ {self.moment} {self.round}"

    @staticmethod
    def parse(text: str) -> Deed:
        """Returns what `str` has written."""
        found = re.fullmatch(r"(.+) @ (.+) (\d+)", text)
        assert found is not None, f"{text!r} is not like 'drops the table @ before commit 2'"
        return Deed(found[1], found[2], int(found[3]))


@dataclass(frozen=True)
class Case:
    """A world, and what others do."""

    system: str
    deeds: tuple[Deed, ...]
    run_ends: int = 2
    """The round after which another run continues."""

    def command(self) -> str:
        """Returns the command that repeats it."""
        deeds = " ".join(f'"{deed}"' for deed in self.deeds)
        return f'python -m tests.world case "{self.system}" {deeds} --run-ends {self.run_ends}'


class Number(KeyedProcessFunction):
    """Numbers the records of a key, in state. So lost or doubled state shows in the rows."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield Row(key=value.key, time=count, value=value.value)


def records_of(number: int) -> list[Record]:
    """Returns the records of a round."""
    first = (number - 1) * PER_ROUND
    return [(f"k{value % KEYS}", value, value) for value in range(first, first + PER_ROUND)]


@dataclass
class _Standing:
    act: Act
    system: System
    undo: Undo
    round: int


@dataclass
class _World:
    case: Case
    source: Source
    sink: Sink
    systems: Sequence[System]
    round: int = 0
    standing: list[_Standing] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    visible: Counter[int] = field(default_factory=Counter)
    done: set[Deed] = field(default_factory=set)
    failures: list[tuple[str, FlinkPyError]] = field(default_factory=list)
    reached: int = 0
    pending: list[Record] = field(default_factory=list)
    """Records that writers have not written yet."""

    def put(self, records: Sequence[Record]) -> None:
        """Lets writers write."""
        self.pending += records
        stands = any(each.system is self.source and each.undo is not nothing for each in self.standing)
        if self.pending and not (stands and self.source.patient):
            self.source.put(self.pending)
            self.pending = []

    def reach(self, moment: str) -> None:
        self.reached += 1
        if self.reached > _MOST_REACHED:
            raise _Endless
        for deed in self.case.deeds:
            if deed.moment == moment and deed.round == self.round and deed not in self.done:
                self.done.add(deed)
                self._do(deed)

    def _do(self, deed: Deed) -> None:
        for system in self.systems:
            for act in system.acts:
                if act.name == deed.act:
                    system.round, system.visible = self.round, self.visible
                    try:
                        undo = act.do(system)
                    except Exception as error:
                        raise _ActFails(f"{deed}: {error!r}") from error
                    self.story.append(f"somebody {deed}" + (" (nothing to do)" if undo is None else ""))
                    if undo is not None:
                        self.standing.append(_Standing(act, system, undo, self.round))
                    return
        raise AssertionError(f"nobody {deed.act}")

    def mend(self, failed: bool, before: int = 10**6) -> None:
        """Undoes what was done before a round, the last act first."""
        for each in reversed(self.standing[:]):
            if each.round < before:
                again = each.undo(failed)
                self.standing.remove(each)
                self.story.append(f"undone: {each.act.name}")
                if callable(again):
                    self.standing.append(_Standing(each.act, each.system, again, self.round))

    def fails(self, error: Exception) -> None:
        self.story.append(f"the run ends: {type(error).__name__}: {error}")
        allowed = tuple(kind for each in self.standing for kind in each.act.errors)
        if not isinstance(error, FlinkPyError):
            self.breaks(f"a raw error reaches the user: {error!r}", error)
        if not isinstance(error, allowed):
            why = " and ".join(each.act.name for each in self.standing) or "nothing stands"
            self.breaks(f"an unexpected error ({why}): {error!r}", error)
        self.failures.append((" and ".join(each.act.name for each in self.standing), error))

    def look(self) -> None:
        """Checks what is visible, unless somebody has done something to the sink."""
        if any(each.system is self.sink for each in self.standing):
            return
        now = self.sink.values()
        if doubled := {value: count for value, count in now.items() if count > 1}:
            self.breaks(f"doubled: {doubled}")
        if lost := sorted((self.visible - now).keys() - self.gone):
            self.breaks(f"no longer visible: {lost}")
        if foreign := sorted(now.keys() - self.wanted(self.round) - self.may):
            self.breaks(f"nobody has put: {foreign}")
        self.visible = now
        for system in self.systems:
            system.visible = now

    @property
    def may(self) -> set[int]:
        return {value for system in self.systems for value in system.may}

    @property
    def gone(self) -> set[int]:
        return {value for system in self.systems for value in system.gone}

    def wanted(self, last: int) -> set[int]:
        return {value for number in range(1, min(last, ROUNDS) + 1) for _, _, value in records_of(number)}

    def end(self) -> None:
        self.look()
        if missing := sorted(self.wanted(ROUNDS) - self.visible.keys() - self.gone):
            self.breaks(f"missing: {missing}")
        if self.may or self.gone:
            return
        numbers: dict[str, list[int]] = {}
        for key, number, _ in self.sink.rows():
            numbers.setdefault(key, []).append(number)
        for key, found in numbers.items():
            if sorted(found) != list(range(1, len(found) + 1)):
                self.breaks(f"the state of {key!r} was lost or doubled: {sorted(found)}")

    def breaks(self, how: str, cause: Exception | None = None) -> None:
        story = "\n".join(f"  {line:.600}" for line in self.story)
        raise Promise(f"{self.case.system}: {how}\n{story}\nTo run it again:\n  {self.case.command()}") from cause


_CURRENT: list[_World] = []


def _reach(moment: str) -> None:
    # Found again by name: this module, and the sources with its hooks, may travel by value.
    importlib.import_module("tests.world.play")._CURRENT[-1].reach(moment)


@contextmanager
def _hooked(world: _World) -> Iterator[None]:
    """Calls ``world.reach`` between the steps of the job."""
    reach = _reach
    _CURRENT.append(world)
    with ExitStack() as stack:
        stack.callback(_CURRENT.pop)

        def wrap(owner: Any, name: str, before: str = "", after: str = "") -> None:
            real: Callable[..., Any] = getattr(owner, name)

            def method(*args: Any, **options: Any) -> Any:
                if before:
                    reach(before)
                result = real(*args, **options)
                if after:
                    reach(after)
                return result

            stack.enter_context(mock.patch.object(owner, name, method))

        def make(owner: type, maker: str, dress: Callable[[Any], None]) -> None:
            real: Callable[..., Any] = getattr(owner, maker)

            def made(*args: Any, **options: Any) -> Any:
                result = real(*args, **options)
                dress(result)
                return result

            stack.enter_context(mock.patch.object(owner, maker, made))

        def dress(made: Any, name: str, before: str, after: str) -> None:
            real = getattr(made, name)

            def method(*args: Any) -> Any:
                reach(before)
                result = real(*args)
                if after:
                    reach(after)
                return result

            made.__dict__[name] = method

        for vertex in _graph(world).vertices:
            source = getattr(vertex.spec, "source", None)
            if source is None:
                continue
            owner = type(source)
            make(
                owner, "create_enumerator", lambda made: dress(made, "plan_epoch", "before planning", "after planning")
            )
            read = owner.read

            def reading(self: Any, split: Any, read: Any = read) -> Iterator[Any]:
                for batch in read(self, split):
                    reach("while reading")
                    yield batch

            stack.enter_context(mock.patch.object(owner, "read", reading))
        sink = type(world.sink.sink())
        make(sink, "create_writer", lambda made: dress(made, "prepare_commit", "before pre-commit", ""))
        make(sink, "create_committer", lambda made: dress(made, "commit", "before commit", "after commit"))
        wrap(CompletedCheckpointStore, "write_metadata", before="before _metadata")
        wrap(CompletedCheckpointStore, "complete", before="before HEAD")
        for owner_name, method, after in world.sink.hooks:
            module, _, name = owner_name.partition(":")
            within = {"after" if after else "before": "within commit"}
            wrap(getattr(importlib.import_module(module), name), method, **within)
        # State is in files of its own, however little there is.
        stack.enter_context(mock.patch.dict(ColumnarKeyedStateBackend.__init__.__kwdefaults__, inline_below=0))
        stack.enter_context(mock.patch.object(commit_retries, "_sleep", lambda seconds: reach("")))
        yield


def _graph(world: _World) -> Any:
    env = environment(2)
    stream = world.source.stream(env)
    numbered = stream.key_by(lambda row: row.key).process(Number(), EVENT).uid("number")
    numbered.sink_to(world.sink.sink()).uid("sink")
    return env.get_job_graph()


def play(case: Case, source: Source, sink: Sink, systems: Sequence[System]) -> list[tuple[str, FlinkPyError]]:
    """Plays a case, and returns the errors that runs ended with, each with what stood then.

    Args:
        case: What others do, and when.
        source: Where the job reads.
        sink: Where it writes.
        systems: All systems that deeds are about.

    Raises:
        Promise: The job did not keep its promise.
    """
    world = _World(case, source, sink, systems)
    with _hooked(world):
        if _rounds(world):
            world.end()
    return world.failures


def _rounds(world: _World) -> bool:
    """Runs epochs: one for each round, one that undoes what still stands, and one in a calm world.

    Returns:
        Whether the job could go on to the end.
    """
    folder, read, runs, again = world.source.place.folder, 0, 0, False
    while read < ROUNDS + 2:
        runs += 1
        if runs > 3 + 3 * len(world.case.deeds):
            world.breaks("the job gets nowhere")
        try:
            restore = [system.restore_from for system in world.systems if system.restore_from]
            for system in world.systems:
                system.restore_from = None
            with HarnessAttempt(
                _graph(world),
                world.systems[0].checkpoints,
                config={**_CONFIG, "cache_dir": str(folder / f"cache-{runs}")},
                restore_from=restore[0] if restore else None,
            ) as attempt:
                while read < ROUNDS + 2:
                    if world.round == read:
                        world.round += 1
                        world.put(records_of(world.round) if world.round <= ROUNDS else [])
                    attempt.run_epoch()
                    read = world.round
                    world.story.append(f"epoch {read} is complete")
                    world.look()
                    world.mend(False, before=read)
                    if read == world.case.run_ends and runs == 1:
                        break
            world.reach("between runs")
        except Promise:
            raise
        except _Endless:
            world.breaks("it tries without end")
        except Exception as error:
            world.fails(error)
            world.look()
            if again and any(each.act.ends for each in world.standing):
                return False
            if again:  # somebody has tried whether running again helps
                world.mend(True)
            again = not again
    return True
