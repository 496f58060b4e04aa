"""The state of one region, as the job's master sees it (Flink: ``SchedulingPipelinedRegion``).

Only the master's thread calls it. It submits work to the region's lane and never waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from functools import partial

from dagster_flinkpy.checkpoint.messages import Subtask
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.master.epoch_planner import EpochPlanner
from dagster_flinkpy.runtime.master.mailbox import Lane, Mailbox
from dagster_flinkpy.runtime.master.region_runner import RegionRunner

__all__ = ["EpochKind", "RegionExecution"]


class EpochKind(Enum):
    """What an epoch does."""

    READ = auto()
    """It reads the next input."""
    REPEAT = auto()
    """It reads nothing: its checkpoint has the current state."""
    DRAIN = auto()
    """It reads nothing, and ends all input."""


class RegionExecution:
    """The epochs of a region: which ones are planned, and whether they run.

    Args:
        runner: Plans and runs the epochs.
        lane: The lane of the region.
        mailbox: Runs the lane.
    """

    def __init__(self, runner: RegionRunner, lane: Lane, mailbox: Mailbox) -> None:
        self.runner, self.lane, self._mailbox = runner, lane, mailbox
        self.epochs: list[Epoch] = []
        """The epochs that are planned for the next Spark job or run in the current one."""
        self.running = False
        """Whether its lane is planning or running epochs."""
        self._restarts = 0

    @property
    def planner(self) -> EpochPlanner:
        """Plans the epochs, and has the state from which the next one starts."""
        return self.runner.planner

    @property
    def idle(self) -> bool:
        """Whether it runs nothing, and nothing is planned."""
        return not self.running and not self.epochs

    def deploy(self, checkpoint_id: int, kind: EpochKind) -> None:
        """Plans the input up to the barrier of a checkpoint; an epoch that reads nothing runs at once."""
        self.running = True
        if self.epochs:
            self._mailbox.submit(self.lane, partial(self.runner.plan, checkpoint_id, self.epochs[-1]))
            return
        self.runner.begin(checkpoint_id)
        match kind:
            case EpochKind.READ:
                self._mailbox.submit(self.lane, partial(self.runner.plan, checkpoint_id, None))
            case EpochKind.REPEAT:
                self._mailbox.submit(self.lane, partial(self.runner.repeat, checkpoint_id))
            case EpochKind.DRAIN:
                self.epochs.append(self.planner.plan_drain(checkpoint_id))
                self.run()

    def planned(self, epoch: Epoch) -> None:
        """Adds a planned epoch to the next Spark job."""
        self.epochs.append(epoch)
        self.running = False

    def run(self) -> None:
        """Runs the Spark job that reads the planned epochs."""
        self.running = True
        self._mailbox.submit(self.lane, partial(self.runner.run, tuple(self.epochs), self._restarts))

    def failed(self) -> None:
        """Notes that the Spark job has failed. Its epochs are kept for :meth:`restart`."""
        self.running = False

    def restart(self) -> None:
        """Runs the same epochs again. Their splits and the state from which they start have not changed."""
        self._restarts += 1
        self.runner.begin(self.epochs[0].checkpoint_id)
        self.run()

    def ended(self) -> None:
        """Forgets the epochs: their Spark job has ended, or cannot be planned."""
        self.running = False
        self.epochs.clear()

    def acknowledged(self, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> None:
        """Lets the next epoch start from the state that all tasks have acknowledged."""
        self.planner.advance(checkpoint_id, states)

    def notify_complete(self, checkpoint_id: int) -> None:
        """Tells the sources that a checkpoint is complete."""
        self._mailbox.submit(self.lane, partial(self.runner.notify_complete, checkpoint_id))
