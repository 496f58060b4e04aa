"""The epochs of a request: which ones have begun, and whether others follow."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_flinkpy.errors import CheckpointError
from dagster_flinkpy.runtime.master.epoch_request import EpochKind, EpochRequest, JobEpoch
from dagster_flinkpy.runtime.master.regions.region_state import RegionState

__all__ = ["EpochSequence"]


class EpochSequence:
    """How far the current request has come."""

    def __init__(self, regions: Sequence[RegionState]) -> None:
        self.sources = tuple(region for region in regions if not region.before)
        """The regions whose epochs begin when a checkpoint is triggered."""
        self.readers = tuple(region for region in regions if region.planner.splits.uids)
        """The regions that read input from outside the job."""
        self._followers = tuple(region for region in regions if region.before)
        self.request: EpochRequest | None = None
        """The current request, or the last one."""
        self.enough = True
        """Whether no further epoch begins."""
        self.latest: JobEpoch | None = None
        """The latest epoch of the request."""
        self._begun: set[int] = set()
        """The checkpoints of its epochs, without those that only take over what failed ones have prepared."""
        self._followed: JobEpoch | None = None
        self.ids: tuple[int, ...] = ()
        """The ids of the next checkpoints, as far as they are known."""
        self.following: int | None = None
        """The checkpoint of the epoch that sources read already, though not all have acknowledged the one before it."""

    def begin(self, request: EpochRequest) -> None:
        """Begins another request."""
        self.request, self.enough, self.latest = request, False, None
        self._begun.clear()

    def end_early(self) -> None:
        """Lets no further epoch begin. A request that stops the job has its epoch in any case: it may end the input."""
        self.enough |= self.request is None or not self.request.stop

    @property
    def iterating(self) -> bool:
        """Whether another epoch is to follow, as far as it is known."""
        return self.request is not None and not self.enough

    @property
    def at_limit(self) -> bool:
        """Whether all epochs that were asked for have begun."""
        limit = None if self.request is None else self.request.limit
        return limit is not None and len(self._begun) >= limit

    def has_more(self) -> bool:
        """Returns whether another epoch can begin, behind those that have. If none will, the request has enough."""
        self.enough |= self.at_limit
        if self.enough:
            return False
        if self.latest is None or self.request is None:
            return True
        more = self._has_more_behind(self.latest, until_idle=self.request.until_idle)
        self.enough |= more is False
        return more is True

    def _has_more_behind(self, epoch: JobEpoch, *, until_idle: bool) -> bool | None:
        """Returns whether more input is to be read after an epoch, or None if it is not known yet."""
        known = [region for region in self.readers if region.acknowledged >= epoch.checkpoint_id]
        has_input = not until_idle or any(region.has_read for region in known)
        if has_input and not all(region.input_ended for region in known):
            return True
        if len(known) < len(self.readers):
            return None
        if has_input:
            return False
        unread = [region.has_unread(epoch.checkpoint_id) for region in self._followers]
        return True if True in unread else None if None in unread else False

    @property
    def unread(self) -> bool:
        """Whether barriers have overtaken records that nobody is reading, for which no input need come."""
        latest = self.latest
        idle = [each for each in self._followers if not each.works_ahead]
        return latest is not None and any(each.has_unread(latest.checkpoint_id) for each in idle)

    def is_followed(self, epoch: JobEpoch) -> bool:
        """Returns whether it is certain that others follow, even if nobody waits for what regions are reading."""
        request = self.request
        if request is None or self.enough or self.at_limit:
            return False
        reading = any(region.has_read for region in self.readers if region.acknowledged >= epoch.checkpoint_id)
        return request.periodic or request.continuous or reading

    def followed(self) -> bool:
        """Returns True once for an epoch that is running, as soon as it is certain that another follows if it succeeds.

        Then the id of the next checkpoint can be taken meanwhile. An id for which no epoch follows would be lost.
        """
        latest, request, readers = self.latest, self.request, self.readers
        if latest is None or request is None or latest is self._followed or latest.live:
            return False
        if not self.iterating or self.at_limit or not readers:
            return False
        if not all(region.epoch is latest and region.planned is not None for region in readers):
            return False
        if all(region.planner.ended[latest.checkpoint_id] for region in readers):
            return False
        if request.until_idle and not any(each.planned.has_input for each in readers if each.planned is not None):
            return False
        self._followed = latest
        return True

    def add(self, checkpoint_id: int, *, takes_over: bool) -> JobEpoch:
        """Adds the epoch of a checkpoint that was triggered, and returns it."""
        assert self.request is not None
        only_takes_over = takes_over and not self.iterating
        if not only_takes_over:
            self._begun.add(checkpoint_id)
        self.latest = JobEpoch(EpochKind.REPEAT if only_takes_over else self.request.kind, checkpoint_id)
        return self.latest

    @property
    def open(self) -> JobEpoch | None:
        """The epoch whose checkpoint is not triggered yet, though its sources read."""
        return self.latest if self.latest is not None and self.latest.open else None

    @property
    def may_be_open(self) -> bool:
        """Whether sources can read before the next checkpoint is triggered."""
        return not self._followers and any(region.planner.splits.assigns_late for region in self.sources)

    def begin_open(self, checkpoint_id: int) -> JobEpoch:
        """Adds an epoch whose checkpoint is not triggered yet."""
        self.following = None
        self.latest = JobEpoch(EpochKind.READ, checkpoint_id, live=True, open=True)
        return self.latest

    def close(self, checkpoint_id: int, *, lives: bool) -> bool:
        """Takes note that a checkpoint was triggered. Returns whether its epoch was open.

        If so, and if another epoch follows, the sources read on in that one.

        Raises:
            CheckpointError: Another epoch is open.
        """
        epoch = self.open
        self.ids = tuple(each for each in self.ids if each > checkpoint_id)
        if epoch is None:
            return False
        if epoch.checkpoint_id != checkpoint_id:
            raise CheckpointError(f"checkpoint {checkpoint_id} was triggered while epoch {epoch.checkpoint_id} is open")
        epoch.open = False
        self._begun.add(checkpoint_id)
        goes_on = lives and self.iterating and not self.at_limit
        if self.ids and goes_on and not all(region.at_end for region in self.sources):
            self.following = self.ids[0]
        return True

    def on_planned(self) -> None:
        """Takes note that a region has planned an epoch."""
        latest = self.latest
        if latest is not None and latest.ends is None:
            ended = [each.planner.ended.get(latest.checkpoint_id) for each in self.sources]
            latest.ends = None if None in ended else all(ended)

    def count(self, checkpoint_ids: Sequence[int]) -> int:
        """Returns how many epochs of the request end with these checkpoints."""
        return len(self._begun.intersection(checkpoint_ids))
