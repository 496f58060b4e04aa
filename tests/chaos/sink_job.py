"""An attempt of the kill matrix, in a process of its own: it runs the job to its end, or to a step at which it dies."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.connectors.iceberg.commit_log import CommitLog
from dagster_flinkpy.datastream.connectors.base import CommitterInitContext, TwoPhaseCommittingSink
from dagster_flinkpy.runtime.master.commits import commit_retries
from dagster_flinkpy.runtime.master.commits.transactions import Transactions
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from tests.chaos.sink_targets import TARGETS, Hook, Place, Target
from tests.runtime.programs import EVENT, environment

__all__ = ["BROKEN", "Order", "left_open", "run", "steps_of"]

JOB, UID = "matrix", "sink"

# What attempts import when they need it is loaded before they fork.
for _name in (
    "boto3",
    "dagster_flinkpy.connectors.files.file_sink",
    "confluent_kafka",
    "dagster_flinkpy.connectors.iceberg.committer",
    "dagster_flinkpy.connectors.lake.writer",
    "dagster_flinkpy.connectors.postgres.committer",
    "dagster_flinkpy.connectors.postgres.writer",
    "pandas",
    "pyarrow.dataset",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "sqlalchemy.dialects.sqlite",
):
    import_module(_name)

_BEFORE = (
    "writer open",
    "after the first part",
    "before pre-commit",
    "after pre-commit",
    "before _metadata",
    "after _metadata",
    "before HEAD",
    "after HEAD",
    "before commit",
)
"""The steps that all sinks have, up to those within a commit."""


BROKEN: dict[str, Callable[[], None]] = {
    "an attempt does not recover": lambda: setattr(Transactions, "recover", lambda *_, **__: (0, 0)),
    "the Iceberg sink does not look what is committed": lambda: setattr(CommitLog, "has", lambda *_: False),
}
"""Rules that attempts after a kill break, which the matrix must notice."""


_SIGNAL_SECONDS = 0.1
"""Another thread may take the signal, a little later."""


@dataclass(frozen=True)
class Order:
    """What a process has to do."""

    target: str
    place: Place
    step: str = ""
    """Where it ends. Default: nowhere."""
    recovering: bool = False
    """Whether the step is one of the recovery, or else of the second epoch."""
    sleeps: bool = False
    """Whether it stops at the step until it is continued, or else is killed."""
    file_bytes: int = 0
    """How large files may become. Default: 0, no limit."""
    broken: str = ""
    """A name of `BROKEN`."""


def steps_of(target: Target) -> tuple[str, ...]:
    """Returns the steps of an epoch, in order."""
    return (*_BEFORE, *target.amid, "after commit")


class _Trap:
    """Ends the process at a step, once it is armed.

    Args:
        order: Names the step.
        pipe: Tells that the process is there.
    """

    def __init__(self, order: Order, pipe: Connection) -> None:
        self._order, self._pipe, self.armed, self.sprung = order, pipe, False, False

    def reached(self) -> None:
        if not self.armed or self.sprung:
            return
        self.sprung = True  # who sleeps, and wakes before another one leads the job, goes on
        self._pipe.send("caught")
        os.kill(os.getpid(), signal.SIGSTOP if self._order.sleeps else signal.SIGKILL)
        time.sleep(_SIGNAL_SECONDS)

    def set(self, target: Target, sink: TwoPhaseCommittingSink) -> None:
        """Puts the trap where it belongs."""
        step = self._order.step
        after = step.startswith("after")
        if step in target.amid:
            self._on(target.amid[step])
        elif step == "after the first part":
            self._on(target.first_part)
        elif step == "writer open":
            self._wrap(type(sink), "create_writer", after=True)
        elif step.endswith("pre-commit"):
            self._on_made(sink, "create_writer", "prepare_commit", after=after)
        elif step.endswith("_metadata"):
            self._wrap(CompletedCheckpointStore, "write_metadata", after=after)
        elif step.endswith("HEAD"):
            self._wrap(CompletedCheckpointStore, "complete", after=after)
        elif step.endswith(" commit"):
            self._on_made(sink, "create_committer", "commit", after=after)
        elif step.endswith(" abort"):
            self._on_made(sink, "create_committer", "abort_lingering", after=after)
        elif step:
            raise AssertionError(step)

    def _on(self, hook: Hook) -> None:
        self._wrap(hook.find(), hook.method, after=hook.after)

    def _on_made(self, sink: TwoPhaseCommittingSink, maker: str, method: str, *, after: bool) -> None:
        """Wraps a method of what the sink makes."""
        make: Callable[..., Any] = getattr(type(sink), maker)
        wrapped: set[type] = set()

        def made(*args: Any, **options: Any) -> Any:
            result = make(*args, **options)
            if type(result) not in wrapped:
                wrapped.add(type(result))
                self._wrap(type(result), method, after=after)
            return result

        setattr(type(sink), maker, made)

    def _wrap(self, owner: type, name: str, *, after: bool) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def method(*args: Any, **options: Any) -> Any:
            if not after:
                self.reached()
            result = real(*args, **options)
            if after:
                self.reached()
            return result

        setattr(owner, name, method)


def run(order: Order, pipe: Connection) -> None:
    """Runs an attempt. Sends ``ready``, then ``caught``, ``finished`` or what has failed."""
    target = TARGETS[order.target]
    sink, trap = target.sink(order.place), _Trap(order, pipe)
    trap.set(target, sink)
    if order.file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order.file_bytes, resource.RLIM_INFINITY))
        commit_retries._sleep = lambda seconds: None
    if order.broken:
        BROKEN[order.broken]()
    env = environment(2)
    target.read_from(env, order.place).rebalance().sink_to(sink).uid(UID)
    config = JobConfig(JOB, order.place.folder.child("checkpoints"), in_process=True)
    pipe.send("ready")
    try:
        trap.armed = order.recovering
        with JobAttempt(env.get_job_graph(), config, owner=f"process {os.getpid()}") as attempt:
            while not attempt.finished:
                attempt.run_epoch()
                trap.armed |= bool(order.step) and not order.recovering
        pipe.send("finished")
    except Exception as error:
        pipe.send(error)


def left_open(target: Target, place: Place) -> int:
    """Returns how many transactions nobody has ended."""
    return target.sink(place).create_committer(CommitterInitContext(JOB, UID, 2**62, EVENT)).lingering([])
