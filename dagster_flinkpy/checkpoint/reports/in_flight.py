"""What a checkpoint names of blocking edges, because barriers were unaligned and it was not read before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata

__all__ = ["InFlight", "has_in_flight", "in_flight"]


@dataclass(frozen=True)
class InFlight:
    """What is in flight on a blocking edge."""

    edge: str
    """Uid of the operator that has written it."""
    uid: str
    """Uid of the operator that has not read it."""
    epochs: int
    """How many epochs have written it."""
    segments: int
    records: int
    bytes: int
    """Size of the segments."""


def in_flight(metadata: CheckpointMetadata) -> list[InFlight]:
    """Returns what is in flight, by edge and by the operator that reads it; nothing for an aligned checkpoint."""
    found: list[InFlight] = []
    for operator in metadata.operators:
        for edge in dict.fromkeys(output["edge"] for output in operator.in_flight):
            outputs = [output["segments"] for output in operator.in_flight if output["edge"] == edge]
            segments = [segment for each in outputs for segment in each]
            records, size = sum(s["rows"] for s in segments), sum(s["bytes"] for s in segments)
            found.append(InFlight(edge, operator.uid, len(outputs), len(segments), records, size))
    return found


def has_in_flight(metadata: CheckpointMetadata) -> bool:
    """Returns whether records were on their way at the barriers, on blocking edges or in channels."""
    return bool(in_flight(metadata)) or any(s.channel_state for o in metadata.operators for s in o.subtasks)
