"""What is in flight on the simulated blocking edges, and which segments are lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER
from dagster_flinkpy.errors import NamedSegmentLostError, ObjectNotFoundError, SegmentLostError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.storage import ObjectStore
from tests.simulation.program import FILTERS, JOB, here

__all__ = ["put_back", "read_in_flight", "read_segment", "segment_lost", "slow_down"]

_MOST_READS = 2
"""How often a run may find a segment lost: as its region reads it, and after it went back to a checkpoint."""


def read_in_flight(metadata: CheckpointMetadata, read: Callable[[str], bytes]) -> list[int]:
    """Returns the records that a checkpoint names, and that are still to be counted."""
    found: list[int] = []
    for operator in metadata.operators:
        keep = FILTERS.get(operator.uid.rpartition(".")[2], lambda _: True)
        for output in operator.in_flight:
            for segment in output["segments"]:
                records = json.loads(read(f"{EXCHANGE_FOLDER}/{output['edge']}/{segment['key']}"))
                found += [record for record in records if keep(record)]
    return found


def read_segment(job: EpochJob, store: ObjectStore, edge: str, key: str) -> list[int]:
    """Reads a segment, unless somebody has deleted it."""
    world, full = here(), f"{JOB}/{EXCHANGE_FOLDER}/{edge}/{key}"
    if job.restarts > world.bucket.lost.get((job.fencing_token, job.region, full), job.restarts):
        world.report(f"{full} is read again, though it is lost")
    if world.chaos.segment_loss and world.rng.random() < world.chaos.segment_loss:
        world.note(f"{full} is lost")
        world.bucket.hidden.add(full)  # to tasks; the invariants still see what is deleted, and by whom
    try:
        if full in world.bucket.hidden and world.chaos.segment_loss:
            raise ObjectNotFoundError(full)
        records: list[int] = json.loads(store.get(key)[0])
    except ObjectNotFoundError as error:
        raise SegmentLostError(full, edge=edge, key=key) from error
    return records


def segment_lost(error: SegmentLostError, token: int, region: int, restarts: int) -> None:
    """Takes note that the master knows from a region that a segment is lost.

    Args:
        error: Names it.
        token: The fencing token of the attempt.
        region: The region.
        restarts: How often it has restarted.
    """
    world, lost = here(), f"{JOB}/{EXCHANGE_FOLDER}/{error.edge}/{error.key}"
    attempt = world.current.name
    world.bucket.lost[token, region, lost] = restarts
    world.bucket.found_lost[attempt, lost] += 1
    if world.bucket.found_lost[attempt, lost] > _MOST_READS:
        world.report(f"{attempt} restarts over and over, though {lost} is lost")


def put_back(error: NamedSegmentLostError) -> None:
    """Does what the error says: somebody puts the segment back."""
    bucket, named = here().bucket, f"{EXCHANGE_FOLDER}/{error.edge}/{error.key}"
    found = {f"{JOB}/{named}"} & bucket.hidden
    bucket.put_back |= found
    # Another attempt may have found it lost, too, and somebody has put it back.
    if f"{JOB}/{named}" not in bucket.put_back or named not in str(error):
        here().report(f"the error names no lost segment: {error}")
    bucket.hidden -= found
    bucket.lost = {each: n for each, n in bucket.lost.items() if each[2] not in found}
    bucket.found_lost = Counter({each: n for each, n in bucket.found_lost.items() if each[1] not in found})


def slow_down(job: EpochJob) -> None:
    """Lets a region lag whose records barriers may overtake."""
    world = here()
    if job.alignment_timeout is not None and world.chaos.lags and world.rng.random() < world.chaos.lags:
        world.sleep(world.rng.choice((0.1, 1, 10)))
