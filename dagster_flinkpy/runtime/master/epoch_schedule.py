"""When the epochs of a request begin, and when their checkpoints are triggered.

A part of :class:`~dagster_flinkpy.runtime.master.job_state.JobState`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dagster_flinkpy.checkpoint.coordinator.checkpoint_contents import CheckpointContents
from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator.stimuli import PeriodicTick, Stimulus, TriggerRequested
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.runtime.master.epoch_request import EpochKind, EpochRequest
from dagster_flinkpy.runtime.master.epoch_sequence import EpochSequence
from dagster_flinkpy.runtime.master.job_messages import ReserveCheckpointIds
from dagster_flinkpy.runtime.master.regions.region_epoch import Phase, Turn
from dagster_flinkpy.runtime.master.regions.region_state import RegionState
from dagster_flinkpy.runtime.master.requests.taken_requests import TakenRequests

__all__ = ["EpochSchedule"]


class EpochSchedule:
    """Lets regions look for input and read, and returns what triggers checkpoints."""

    def __init__(
        self,
        regions: Sequence[RegionState],
        coordinator: CheckpointCoordinator,
        requests: TakenRequests,
        contents: CheckpointContents,
        turn: Turn,
        *,
        owner: str,
        can_open_epochs: Callable[[], bool],
    ) -> None:
        self.epochs = EpochSequence(regions)
        """How far the current request for epochs has come."""
        self._regions, self._coordinator = regions, coordinator
        self._requests, self._contents, self._turn = requests, contents, turn
        self._owner, self._can_open_epochs = owner, can_open_epochs
        checkpointing = regions[0].planner.config.checkpointing
        self._max_ahead, self._has_interval = checkpointing.max_concurrent, checkpointing.interval is not None
        """How many checkpoints may be incomplete when the next one is triggered; whether there are periodic ones."""
        self._reserving = self._without_ids = False
        """Whether ids were asked for; whether there were none."""
        # Times, in milliseconds since 1970.
        self.due_ms = 0
        """When the next periodic checkpoint is due."""
        self.retry_ms = 0
        """When to try again after a checkpoint has failed."""
        self._look_ms = 0
        """When to look for input."""

    # --- what is due -------------------------------------------------------------------------------------------------

    @property
    def next_timer(self) -> int | None:
        """When to come back for the request if nothing happens; None if never, or if that is not known."""
        request = self.epochs.request
        may_trigger = self._may_close() or (self._may_trigger() and not self._reserving)
        timed = request is not None and (request.periodic or request.continuous or self.epochs.open is not None)
        if request is None or not timed or not may_trigger:
            return None
        due_ms = self._look_due_ms if request.continuous else self.due_ms
        return None if due_ms is None else max(due_ms, self.retry_ms)

    @property
    def _look_due_ms(self) -> int | None:
        """When to look for input; None as long as one of the regions that read it is busy."""
        return self._look_ms if not self._looking and all(region.idle for region in self.epochs.readers) else None

    @property
    def _looking(self) -> bool:
        return any(region.phase is Phase.LOOKING for region in self.epochs.readers)

    def next(self, *, failed: bool, takes_over: bool) -> Stimulus | None:
        """Begins what can begin before the regions go on. Returns what triggers a checkpoint, if it is time."""
        epochs, request, now = self.epochs, self.epochs.request, self._turn.now_ms
        iterating = epochs.iterating and not failed
        if epochs.following is not None:
            if not failed and all(region.idle for region in epochs.sources):
                self._open(epochs.following)
        elif now < self.retry_ms or request is None or epochs.open is not None:
            return None  # until the regions have gone on
        elif iterating and self._may_trigger():
            if request.continuous and not (self._requests.waiting or takes_over or epochs.unread):
                if (due_ms := self._look_due_ms) is not None and due_ms <= now:
                    for region in epochs.readers:
                        region.look()
            elif not self._without_ids and not takes_over and self._may_open(request):
                if epochs.ids:
                    self._open(epochs.ids[0])
                else:
                    self._reserve()
            elif not request.periodic or (self._requests.waiting and not self._coordinator.pending):
                return self.trigger(request)
            elif self.due_ms <= now:
                return PeriodicTick(now)
        elif takes_over and not (iterating or self._coordinator.incomplete or self._coordinator.triggering):
            return self.trigger(EpochRequest(EpochKind.REPEAT))  # no other checkpoint follows that could take over
        return None

    def _may_trigger(self) -> bool:
        """Returns whether the next checkpoint can be triggered now. Finds out, too, whether the request has enough."""
        idle = not self._coordinator.triggering and all(region.idle for region in self.epochs.sources)
        if not idle or self._looking or len(self._coordinator.incomplete) > self._max_ahead:
            return False
        return self.epochs.has_more()

    def trigger(self, request: EpochRequest) -> Stimulus:
        """Returns what triggers the next checkpoint of a request."""
        kind = CheckpointKind.SAVEPOINT if request.stop else CheckpointKind.CHECKPOINT
        return TriggerRequested(self._turn.now_ms, kind, forced=True, stop=request.stop, request_id=self._owner)

    def on_looked(self) -> bool:
        """A region has looked for input. Returns whether all have, and one has found some."""
        readers = self.epochs.readers
        if self._looking:
            return False
        if not (found := any(each.found for each in readers)):
            waits = min(each.planner.splits.discovery_interval for each in readers)
            self._look_ms = self._turn.now_ms + to_millis(waits)
        return found

    # --- open epochs -------------------------------------------------------------------------------------------------

    def close_next(self, *, failed: bool) -> Stimulus | None:
        """Returns what triggers the checkpoint of the epoch that is open, if it is time."""
        request, now = self.epochs.request, self._turn.now_ms
        if now < self.retry_ms or request is None or failed or not self._may_close():
            return None
        ended = all(region.at_end for region in self.epochs.sources)
        waits = request.periodic or self._can_open_epochs()  # a Spark job would read nothing until it is due
        if ended or not (waits and self.epochs.iterating) or (self._requests.waiting and not self._coordinator.pending):
            return self.trigger(request)
        return PeriodicTick(now) if self.due_ms <= now else None

    def _may_close(self) -> bool:
        """Returns whether the checkpoint of the epoch that is open can be triggered now."""
        busy = self._coordinator.triggering or len(self._coordinator.incomplete) >= self._max_ahead
        running = all(region.phase is Phase.RUNNING for region in self.epochs.sources)  # none waits for its restart
        return self.epochs.open is not None and running and not busy

    def _may_open(self, request: EpochRequest) -> bool:
        """Returns whether sources may read what comes until the next periodic checkpoint."""
        waits = request.periodic or (request.goes_on and self._has_interval)
        return waits and self._contents.partition is None and self._can_open_epochs() and self.epochs.may_be_open

    def _open(self, checkpoint_id: int) -> None:
        """Lets the sources read what comes until a checkpoint is triggered."""
        epoch = self.epochs.begin_open(checkpoint_id)
        for region in self._regions:
            region.enqueue(epoch)

    def _reserve(self) -> None:
        if not self._reserving:
            self._reserving = True
            self._turn.instructions.append(ReserveCheckpointIds(2))

    def on_reserved(self, checkpoint_ids: tuple[int, ...]) -> None:
        """Takes the ids of the next checkpoints; none if the store has given none."""
        self.epochs.ids = checkpoint_ids
        self._reserving, self._without_ids = False, not checkpoint_ids  # the next checkpoint asks again

    # --- a checkpoint is triggered -----------------------------------------------------------------------------------

    def deploy(self, checkpoint_id: int, *, takes_over: bool) -> None:
        """Lets the regions run up to the barrier of a checkpoint."""
        self._reserving = self._without_ids = False
        if self.epochs.close(checkpoint_id, lives=self._can_open_epochs()):
            for region in self._regions:
                region.close(self.epochs.following)
            self._reserve()
            return
        epoch = self.epochs.add(checkpoint_id, takes_over=takes_over)
        if epoch.kind is EpochKind.REPEAT and not takes_over:
            self._contents.repeated = checkpoint_id
        for region in self._regions:
            region.enqueue(epoch)
