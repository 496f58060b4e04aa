"""What must hold between a checkpoint and the Spark jobs of its epoch, whenever one is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeOutput
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.regions.region_runner import RegionEnded
from dagster_flinkpy.runtime.master.regions.region_state import RegionState

__all__ = ["EpochRules"]

Segments = frozenset[str]


class EpochRules:
    """A checkpoint has the states of the latest Spark jobs that count. Of segments it names those that were not read.

    Args:
        regions: The regions of an execution attempt.
        fail: Reports a violation.
    """

    def __init__(self, regions: Sequence[RegionState], fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._aligned = not regions[0].planner.config.checkpointing.unaligned
        """Whether a Spark job belongs to the checkpoint of its own barrier."""
        self._edges = {uid: (r, sink) for r in regions for uid, sink in r.planner.edge_sources.items()}
        """The region that reads, and the sink that writes, by uid of the source."""
        self._written: dict[tuple[str, int], Segments] = {}
        """What is acknowledged, by uid of the sink, and checkpoint."""
        self._restored: dict[str, Segments] = {}
        """What was in flight when the attempt began, by uid of the source."""
        self._read: dict[tuple[str, int], Segments] = {}
        """What was read by those who have acknowledged a checkpoint, by uid of the source, and checkpoint."""
        self._states: dict[int, dict[Subtask, SubtaskState]] = {}
        """What was acknowledged last, by checkpoint."""
        self._jobs: dict[tuple[str, int], Segments] = {}
        """What the latest Spark job reads, by uid of the source, and checkpoint."""
        for uid, (region, sink) in self._edges.items():
            self._restored[uid] = _keys(each[sink] for each in region.planner.in_flight if sink in each)

    def started(self, job: EpochJob) -> None:
        """Notes what a Spark job reads."""
        for uid in self._edges:
            splits = [split for (source, _), given in job.epoch.splits.items() if source == uid for split in given]
            keys = [segment["key"] for split in splits for segment in split.properties["segments"]]
            if splits:
                self._jobs[uid, job.checkpoint_id] = frozenset(keys)

    def ended(self, region: RegionState, ended: RegionEnded) -> None:
        """Notes what a Spark job that counts has read and written."""
        number = ended.checkpoint_id
        for uid in region.planner.edge_sources:
            self._read[uid, number] = self._jobs.get((uid, number), frozenset())
        for sink, output in ended.outputs.items():
            self._written[sink, number] = _keys([output])

    def acknowledged(self, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> None:
        """Notes what the tasks of a region have acknowledged."""
        self._states.setdefault(checkpoint_id, {}).update(states)

    def completed(self, metadata: CheckpointMetadata) -> None:
        """Checks a checkpoint."""
        number = metadata.checkpoint_id
        for task, state in self._states[number].items():
            operator = metadata.operator(task.uid)
            assert operator is not None
            found = operator.subtasks[task.subtask]
            same = (found.keyed, found.operator_state) == (state.keyed, state.operator_state)
            if not same or any(each not in found.committables for each in state.committables):
                self._fail(f"checkpoint {number} has not what {task} has acknowledged last")
        for uid, (_, sink) in self._edges.items() if self._aligned else ():
            written = self._restored[uid] | _up_to(number, sink, self._written)
            read = _up_to(number, uid, self._read)
            operator = metadata.operator(uid)
            named = _keys(EdgeOutput.from_json(each) for each in (operator.in_flight if operator is not None else ()))
            if twice := read & named:
                self._fail(f"checkpoint {number} names segment {min(twice)}, which {uid} has read")
            if missing := written - read - named:
                self._fail(f"checkpoint {number} does not name segment {min(missing)}, which {uid} has not read")
            if wrong := (read | named) - written:
                self._fail(f"{uid} reads segment {min(wrong)} for checkpoint {number}, but it was written anew")


def _keys(outputs: Iterable[EdgeOutput]) -> Segments:
    return frozenset(segment["key"] for output in outputs for segment in output.segments)


def _up_to(checkpoint_id: int, uid: str, found: Mapping[tuple[str, int], Segments]) -> Segments:
    segments = (keys for (each, number), keys in found.items() if each == uid and number <= checkpoint_id)
    return frozenset().union(*segments)
