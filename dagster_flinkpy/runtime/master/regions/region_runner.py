"""Plans and runs the epochs of a region, on its lane."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.coordinator.stimuli import Stimulus
from dagster_flinkpy.checkpoint.coordinator.timeline import CheckpointTimeline
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.errors import (
    CheckpointTimeoutError,
    CorruptStateError,
    FencedError,
    FlinkPyError,
    SegmentLostError,
    StorageError,
    ThrowableType,
    message_of,
)
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeInputs, EdgeOutput
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.failure import unsupported
from dagster_flinkpy.runtime.master.epochs.epoch_planner import EpochPlanner
from dagster_flinkpy.runtime.master.epochs.open_epoch import OpenEpoch
from dagster_flinkpy.runtime.master.job_session import JobSession
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.runtime.master.watchdog import Watchdog
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.runtime.throwables import throwable_type

__all__ = ["EpochPlanned", "InputEnded", "InputLooked", "JobRunner", "RegionEnded", "TasksRunning"]


@dataclass(frozen=True)
class InputLooked(Stimulus):
    """Somebody has looked for input."""

    region: int
    found: bool
    """Whether input is assigned to the region's next epoch."""


@dataclass(frozen=True)
class EpochPlanned(Stimulus):
    """The input of an epoch is planned."""

    region: int
    epoch: EpochInput


@dataclass(frozen=True)
class RegionEnded(Stimulus):
    """The Spark job of an epoch has ended: all tasks have acknowledged it, or one has failed."""

    region: int
    checkpoint_id: int
    results: EpochResults
    error: FlinkPyError | None = None
    task: Subtask | None = None
    """The subtask that raised the error; None if the driver raised it."""
    outputs: Mapping[str, EdgeOutput] = field(default_factory=dict)
    """What was written to blocking edges, by uid of the sink."""
    given: EpochInput | None = None
    """What the sources were given of an epoch that was open; None if it was planned before."""


@dataclass(frozen=True)
class TasksRunning(Stimulus):
    """All tasks of a region have said that they run, and begin to read an epoch that is open."""

    region: int


@dataclass(frozen=True)
class InputEnded(Stimulus):
    """All input of a region ends with the epoch that is open."""

    region: int


@dataclass
class JobRunner:
    """Plans epochs and runs Spark jobs when the master asks for them."""

    planner: EpochPlanner
    session: JobSession
    watchdog: Watchdog
    run_job: Callable[..., Sequence[WireRow]]
    """Runs the tasks of an `EpochJob`, and returns the rows for the driver. An open epoch is the second argument."""
    on_results: Callable[[EpochResults, EpochJob], object]
    """Called with the results before they are checked; passes on logs, for example."""
    check_leader: Callable[[], object]
    """Raises a FencedError if a newer attempt took over."""
    progress: Callable[[str], object]
    timeline: CheckpointTimeline
    """Measures the phases of checkpoints."""
    now: Callable[[], int]
    """Tells milliseconds since 1970."""
    tell: Callable[[Stimulus], object]
    """Tells the master of something that it has not asked for."""
    _open: OpenEpoch | None = None
    """The epoch that was opened last."""
    _said: str = ""
    """What was last said to be read."""

    def begin(self, checkpoint_id: int) -> None:
        """Prepares the Spark job of the epoch of a checkpoint."""
        self._begin(checkpoint_id, f"checkpoint {checkpoint_id}")

    def begin_look(self) -> None:
        """Prepares a look for input, for which a source may run a Spark job."""
        self._begin("input", "input")

    def _begin(self, tag: object, what: str) -> None:
        planner, job_id = self.planner, self.planner.config.job_id
        name = f"flinkpy-{job_id}-{planner.fencing_token}-{tag}-{planner.number}"
        self.session.begin(name, f"{what} of job {job_id!r}")

    def look(self) -> InputLooked:
        """Looks for input, and assigns it to the next epoch.

        Raises:
            SourceReadError: The input cannot be listed.
            CheckpointTimeoutError: A source hangs.
        """
        found = self.watchdog.run("looking for input", self.planner.splits.look)
        return InputLooked(self.now(), self.planner.number, found)

    def plan(self, checkpoint_id: int, inputs: EdgeInputs, *, drain: bool) -> EpochPlanned:
        """Plans the input up to a barrier, see :meth:`SplitPlanner.plan`.

        Raises:
            SourceReadError: The input cannot be listed.
            CheckpointTimeoutError: A source hangs.
        """
        plan = partial(self.planner.splits.plan, checkpoint_id, inputs, drain=drain)
        with self.timeline.measured("plan_ms", checkpoint_id):
            epoch = self.watchdog.run(f"planning what checkpoint {checkpoint_id} reads", plan)
        return EpochPlanned(self.now(), self.planner.number, epoch)

    def open(self, checkpoint_id: int) -> OpenEpoch:
        """Returns an epoch whose input comes in parts: the same one if it was begun before."""
        for known in (self._open, None if self._open is None else self._open.following):
            if known is not None and known.checkpoint_id == checkpoint_id:
                self._open = known
                return known
        self._open = self._create(checkpoint_id, frozenset())
        return self._open

    def _create(self, checkpoint_id: int, ended_sources: frozenset[str]) -> OpenEpoch:
        def tell(news: type[TasksRunning | InputEnded]) -> None:
            self.tell(news(self.now(), self.planner.number))

        on_begin, on_end = partial(tell, TasksRunning), partial(tell, InputEnded)
        return OpenEpoch(checkpoint_id, ended_sources, self.planner.splits, self.watchdog, self.now, on_begin, on_end)

    def close(self, following: int | None) -> None:
        """Closes the epoch that was opened last: the barrier follows."""
        assert self._open is not None
        self._open.close(None if following is None else self._create(following, self._open.ended_sources))

    def run(
        self,
        epoch: EpochInput,
        restarts: int = 0,
        *,
        rewritten: EdgeInputs | None = None,
        was_read: bool = False,
        open_epoch: OpenEpoch | None = None,
    ) -> RegionEnded:
        """Runs the tasks that read an epoch, see :class:`RunEpoch`; an open one gives out its input itself.

        Raises:
            Exception: An enumerator raised. What it would read next is unclear.
        """
        checkpoint_id = epoch.checkpoint_id

        def ended(results: EpochResults, *failure: Any, **outputs: Any) -> RegionEnded:
            if open_epoch is not None:
                if open_epoch.error is not None:
                    raise open_epoch.error
                outputs["given"] = open_epoch.read
            return RegionEnded(self.now(), self.planner.number, checkpoint_id, results, *failure, **outputs)

        results = EpochResults()
        try:
            if rewritten is not None:
                epoch = replace(epoch, splits={**epoch.splits, **self.planner.splits.plan_edges(rewritten)})
            results = self._run(epoch, restarts, open_epoch)
            if results.failure is None:
                results.check_complete(checkpoint_id, self.planner.tasks)
                results.check_consistent()
        except FlinkPyError as error:
            return ended(results, self._cause(error))
        if (failure := results.failure) is not None:
            return ended(results, self._cause(failure.error), failure.task)
        if open_epoch is not None:
            open_epoch.finish()
        elif not was_read:
            # Once, and last: then they assign the next input.
            self.planner.splits.was_read(checkpoint_id, results.states)
        self._measure(checkpoint_id, results)
        return ended(results, outputs=self._take_outputs(checkpoint_id, results.states))

    def _measure(self, checkpoint_id: int, results: EpochResults) -> None:
        self.timeline.acknowledged(checkpoint_id, results.states.values())
        for source, marked_ms in results.marked_ms.items():
            if source not in self.planner.edge_sources:  # there the input was at its source earlier
                self.timeline.marked(checkpoint_id, marked_ms)

    def _take_outputs(self, checkpoint_id: int, states: dict[Subtask, SubtaskState]) -> dict[str, EdgeOutput]:
        """Takes what concerns blocking edges out of the acknowledgements: no checkpoint has to name it."""
        sinks, ordered = self.planner.edge_sinks, sorted(states)
        outputs = {
            uid: EdgeOutput.of(checkpoint_id, [states[task] for task in ordered if task.uid == uid]) for uid in sinks
        }
        for task in ordered:
            if task.uid in sinks or task.uid in self.planner.edge_sources:
                states[task] = replace(states[task], committables=(), splits=())
        return outputs

    def _run(self, epoch: EpochInput, restarts: int, open_epoch: OpenEpoch | None) -> EpochResults:
        job, began_ms = self.planner.job(epoch, restarts), self.now()
        if open_epoch is None:
            self._say_what_is_read(epoch)
        try:
            rows = self.run_job(job) if open_epoch is None else self.run_job(job, open_epoch)
        except Exception as error:
            if isinstance(error, FlinkPyError) or throwable_type(error) is ThrowableType.RECOVERABLE_ERROR:
                raise
            what = f"the Spark job of checkpoint {job.checkpoint_id} of job {job.job_id!r}"
            raise unsupported(what, f"{type(error).__name__}: {message_of(error)}") from error
        results = EpochResults.of(rows, epoch.checkpoint_id)
        if open_epoch is not None:
            began_ms = open_epoch.closed_ms or self.now()
            self._say_what_is_read(open_epoch.read)
        self.timeline.add("spark_ms", epoch.checkpoint_id, began_ms)
        self.on_results(results, job)
        return results

    def _say_what_is_read(self, epoch: EpochInput) -> None:
        said, self._said = self._said, self.planner.splits.describe(epoch)
        if any(epoch.splits.values()) or self._said != said:  # a job that waits for input says so once
            self.progress(f"checkpoint {epoch.checkpoint_id}: {self._said}")

    def repeat(self, checkpoint_id: int, restarts: int = 0) -> RegionEnded:
        """Returns the current state as the results of an epoch that has read nothing.

        If a part of it is not in the store, tasks that live take another snapshot.
        """
        results = self.planner.repeat(checkpoint_id)
        if results.declined is None:
            return RegionEnded(self.now(), self.planner.number, checkpoint_id, results)
        if self.planner.edge_sinks:  # timers may fire meanwhile, and nobody reads what they send
            error = results.declined.error
            return RegionEnded(self.now(), self.planner.number, checkpoint_id, EpochResults(), error)
        return self.run(self.planner.empty_epoch(checkpoint_id), restarts, was_read=True)

    def tell_news(self) -> None:
        """Tells the sources which checkpoints are complete, once they have read what is assigned to them."""
        if self._open is not None:
            self._open.tell_news()
        else:
            self.watchdog.run("telling sources that a checkpoint is complete", self.planner.splits.tell_news)

    def _cause(self, error: FlinkPyError) -> FlinkPyError:
        """Returns the error to report: a newer attempt may have deleted files that seem lost."""
        if isinstance(error, CorruptStateError | SegmentLostError):
            try:
                self.check_leader()
            # Damage is reported only if it is certain.
            except (FencedError, StorageError, CheckpointTimeoutError) as unclear:
                return unclear
        return error
