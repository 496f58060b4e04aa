"""Functions behind a blocking edge hear of the checkpoints that have what they have snapshotted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import MapFunction
from dagster_flinkpy.datastream.checkpointed_function import CheckpointedFunction
from dagster_flinkpy.datastream.checkpointing.checkpoint_listener import CheckpointListener
from dagster_flinkpy.datastream.state import ListStateDescriptor
from dagster_flinkpy.runtime.master.mailbox import InlineMailbox, Mailbox
from dagster_flinkpy.state.reader import read_operator_state
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import EVENT, environment, events


class Commits(MapFunction, CheckpointedFunction, CheckpointListener):
    """Counts records, and notes what would be committed at each notification beside what is in the last checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def initialize_state(self, context: Any) -> None:
        self._state = context.get_operator_state_store().get_list_state(ListStateDescriptor("n", Types.LONG()))
        self._count = sum(self._state.get())
        self._prepared: dict[int, int] = {}

    def map(self, value: Any) -> Any:
        self._count += 1
        return value

    def snapshot_state(self, context: Any) -> None:
        self._state.update([self._count])
        self._prepared[context.get_checkpoint_id()] = self._count

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        committed = max((count for number, count in self._prepared.items() if number <= checkpoint_id), default=0)
        store = StorageLocation(str(self._folder / "job")).open()
        latest = CompletedCheckpointStore(store).latest()
        assert latest is not None
        operator = latest.operator("commits")
        assert operator is not None
        handles = [handle for subtask in operator.subtasks for handle in subtask.operator_state]
        rows = [row for each in handles for row in read_operator_state(each.partitions, each.types, store).to_pylist()]
        with (self._folder / "notes").open("a") as notes:
            print(committed, sum(row["value"] for row in rows), file=notes)


class AnyOrder(HarnessAttempt):
    """Calls the lanes of its master in a random order."""

    seed: int

    def _create_mailbox(self) -> Mailbox:
        return InlineMailbox(random.Random(self.seed).choice)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_committed_at_a_notification_is_in_the_checkpoint(tmp_path: Path, seed: int) -> None:
    env = environment(1)
    read = events(env, [("a", i, i) for i in range(60)], per_epoch=3).map(lambda v: v, EVENT).uid("map").blocking()
    read.map(Commits(tmp_path), EVENT).uid("commits").map(lambda v: v, EVENT).uid("end").print()
    AnyOrder.seed = seed
    config = {"checkpointing": CoordinatorConfig(unaligned=True)}
    with AnyOrder(env.get_job_graph(), tmp_path, live=True, config=config) as attempt:
        list(attempt.run_epochs(12))
    notes = [tuple(map(int, line.split())) for line in (tmp_path / "notes").read_text().splitlines()]
    assert notes
    assert all(committed <= stored for committed, stored in notes), notes
