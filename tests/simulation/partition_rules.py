"""Which end states of time partitions HEAD must name, computed in another way than in the library."""

from __future__ import annotations

from collections.abc import Callable

from dagster_flinkpy.checkpoint.head import Head
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from tests.simulation.program import Scenario

__all__ = ["expected_ends"]


def expected_ends(
    new: Head,
    old: Head,
    metadata: CheckpointMetadata,
    started_from: int | None,
    scenario: Scenario,
    repeats: Callable[[int], bool],
) -> str | None:
    """Returns what is wrong with the end states on HEAD, or None.

    Args:
        new: HEAD as it completes a checkpoint.
        old: HEAD before that.
        metadata: Metadata of that checkpoint.
        started_from: Checkpoint from which its attempt was asked to start. 0 if none has to stay; None if the attempt
            does not know the scenario and drops none.
        scenario: The scenario, which says which end states are kept.
        repeats: Takes a checkpoint, and returns whether this one has read as much.
    """
    before = {end.partition: end for end in old.partitions}
    after = {end.partition: end for end in new.partitions}
    for key, end in after.items():
        moved = end.checkpoint_id == metadata.checkpoint_id
        if key in before and end.checkpoint_id != before[key].checkpoint_id and not moved:
            return f"the end state of {key} has changed without a run"
        if moved and key != metadata.partition:
            # A job without end states takes over that of a savepoint, which names its partition.
            holds = repeats(before[key].checkpoint_id) if key in before else not before and key == metadata.end_of
            if not holds:
                return f"it is the end state of {key}, which it does not hold"
    if metadata.partition is not None and metadata.partition not in after:
        return f"the end state of {metadata.partition} is not kept, though the next partition starts from it"
    candidates = sorted({**before, **after}.values(), key=lambda end: end.ordinal)
    policy = scenario.partition_retention
    newest = max((end.checkpoint_id for end in candidates), default=None)
    for place, end in enumerate(reversed(candidates)):
        reasons = {
            "each k-th is": policy.every is not None and end.ordinal % policy.every == policy.every - 1,
            "the last ones are": policy.last is not None and place < policy.last,
            "it is the newest": end.checkpoint_id == newest,
            "its run is at work, and another try starts from it": end.checkpoint_id == started_from,
        }
        why = [reason for reason, holds in reasons.items() if holds]
        if why and end.partition not in after:
            return f"the end state of {end.partition} is not kept, though {why[0]}"
        if not why and end.partition in after and started_from is not None:
            return f"the end state of {end.partition} is kept for no reason"
    return None
