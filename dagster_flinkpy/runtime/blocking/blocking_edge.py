"""Runs a blocking edge: one region writes its output of an epoch as segments, and other regions read it.

The tasks tell the driver which segments they have written when they acknowledge the checkpoint. The driver passes them
on to the regions behind the edge. So these read exactly what was acknowledged, and nothing is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER, SubtaskState
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.connectors.base import (
    CommittingSinkWriter,
    Json,
    SourceSplit,
    SplitEnumerator,
    WriterInitContext,
)
from dagster_flinkpy.datastream.connectors.blocking_edge import BlockingEdgeSink, BlockingEdgeSource
from dagster_flinkpy.errors import CorruptMetadataError, RestoreError, StorageError
from dagster_flinkpy.json_records import JsonRecord
from dagster_flinkpy.runtime.blocking.segments import SegmentWriter, deal_out, open_segments
from dagster_flinkpy.runtime.task.watermark_valve import WatermarkValve
from dagster_flinkpy.storage import StorageLocation

__all__ = ["BlockingEdgeEnumerator", "BlockingEdgeWriter", "EdgeInputs", "EdgeOutput", "EdgeSegments", "stored_outputs"]


class BlockingEdgeWriter(CommittingSinkWriter):
    """Writes one epoch of one subtask."""

    def __init__(self, sink: BlockingEdgeSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        name = f"{_prefix(context.fencing_token, context.checkpoint_id)}{context.subtask:06d}.{context.execution}"
        self._segments = SegmentWriter(open_segments(sink.location, context.uid), name, type_info)

    def write(self, column: pa.Array) -> None:
        """Takes structs of ``value`` and ``timestamp``."""
        self._segments.write(column.field("value"), column.field("timestamp"))

    def prepare_commit(self) -> list[Json]:
        """Returns the segments, which are already visible."""
        return self._segments.finish()

    def abort(self) -> None:
        self._segments.discard()


def _prefix(fencing_token: int, checkpoint_id: int) -> str:
    return f"{fencing_token:010d}-{checkpoint_id:010d}/"


@dataclass(frozen=True)
class EdgeOutput(JsonRecord):
    """What a region has written to a blocking edge in one epoch (Flink: ``ResultPartition``)."""

    checkpoint_id: int
    segments: tuple[Json, ...]
    """Each with the writer's ``subtask``, ``key``, ``bytes`` and ``rows``."""
    watermark: int | None
    """The event time after them, in milliseconds; None if there is none yet."""
    end_of_input: bool
    """Whether nothing follows."""

    @staticmethod
    def of(checkpoint_id: int, states: Iterable[SubtaskState]) -> EdgeOutput:
        """Combines what the subtasks of a sink have acknowledged, in order of their index."""
        parts = [(state.index, part) for state in states for part in state.committables]
        return EdgeOutput(
            checkpoint_id,
            tuple({"subtask": subtask, **segment} for subtask, part in parts for segment in part["segments"]),
            _watermark([part["event_times"] for _, part in parts]),
            all(part["end_of_input"] for _, part in parts),
        )


def _watermark(times: Sequence[Mapping[str, Json]]) -> int | None:
    """Combines the watermarks of all subtasks, as an input gate does."""
    valve = WatermarkValve(dict(enumerate(times)))
    for subtask, origins in enumerate(times):
        for origin, time in origins.items():
            if time["watermark"] is not None:
                valve.on_watermark(subtask, origin, time["watermark"], 0)
    for subtask, origins in enumerate(times):
        for origin, time in origins.items():
            valve.on_status(subtask, origin, time["idle"], 0)
    return None if valve.watermark == MIN_WATERMARK else valve.watermark


EdgeInputs = Sequence[Mapping[str, EdgeOutput]]
"""What a region reads of blocking edges: by epoch in which it was written, and by uid of the sink."""


def stored_outputs(inputs: EdgeInputs, sinks: Mapping[str, str]) -> list[tuple[str, list[Json]]]:
    """Encodes what inputs have of each edge, for a checkpoint that names it, by uid of the source that reads it."""
    return [
        (uid, [{"edge": sink, **each[sink].to_json()} for each in inputs if sink in each])
        for uid, sink in sinks.items()
    ]


class BlockingEdgeEnumerator(SplitEnumerator):
    """Assigns what the region before the edge has written, in one epoch or in several.

    The segments of a subtask go to one subtask. Each subtask gets a split for each epoch, even without segments,
    because the split carries the watermark.

    Args:
        source: The source side of the edge.
        restored: State of an earlier enumerator, which must be empty: the region keeps what it has not read.

    Raises:
        RestoreError: An earlier release wrote the state.
    """

    def __init__(self, source: BlockingEdgeSource, restored: Json | None) -> None:
        if restored:
            raise RestoreError(
                f"the checkpoint was written by a release in which each region of a program was a separate job, and "
                f"does not name the segments of {source.sink_uid!r} that were not read yet. Start from empty state "
                "(start_empty, or another checkpoint directory), or finish the jobs with that release."
            )
        self._source = source
        self._outputs: Sequence[EdgeOutput] = ()
        self._ended = False

    @property
    def sink_uid(self) -> str:
        """The uid of the sink that writes what it reads."""
        return self._source.sink_uid

    def receive(self, outputs: Sequence[EdgeOutput]) -> None:
        """Takes what the next epoch reads, in its order; nothing if barriers have overtaken all of it."""
        self._outputs = outputs
        self._ended = self._ended or any(output.end_of_input for output in outputs)

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        planned: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        for output in self._outputs:
            splits = deal_out(f"{output.checkpoint_id}", self._segments(output), output.watermark, parallelism)
            for subtask, split in zip(planned, splits, strict=True):
                subtask.append(split)
        return planned

    def _segments(self, output: EdgeOutput) -> Sequence[Json]:
        """Returns the segments that are to be read."""
        return output.segments

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return self._ended

    def snapshot_state(self) -> Json:
        return {}


class EdgeSegments:
    """Deletes the segments of a job's blocking edges."""

    def __init__(self, location: StorageLocation, sink_uids: Sequence[str], fencing_token: int) -> None:
        self._location, self._sink_uids, self._token = location, tuple(sink_uids), fencing_token
        self._has_copies = True
        """Whether there may be copies of the segments of a restored savepoint."""

    def __bool__(self) -> bool:
        """Returns whether the job has blocking edges."""
        return bool(self._sink_uids)

    def discard_lingering(self, unnamed: Callable[[Collection[str]], Collection[str]]) -> None:
        """Deletes the segments of earlier attempts, which are dead or fenced.

        Args:
            unnamed: Returns which of these paths no checkpoint and no native savepoint names.
        """
        self._delete("", unnamed, self._sink_uids, before=_prefix(self._token, 0))

    def discard_read(self, written: Mapping[str, Collection[int]], named: Collection[str]) -> None:
        """Deletes the segments that were written up to a complete checkpoint and read before its barrier.

        The first time, it also deletes the copies that were made of the segments of a restored savepoint.

        Args:
            written: The epochs whose segments no earlier checkpoint has named, by uid of the sink.
            named: The paths that the checkpoint names. They are deleted with the last checkpoint that names them.
        """
        for uid in self._sink_uids:
            for number in sorted({*written.get(uid, ()), *([0] if self._has_copies else [])}):
                prefix = _prefix(self._token, number)
                self._delete(prefix, lambda paths: [path for path in paths if path not in named], [uid])
        self._has_copies = False

    def _delete(
        self,
        prefix: str,
        unnamed: Callable[[Collection[str]], Collection[str]],
        uids: Sequence[str],
        before: str | None = None,
    ) -> None:
        for uid in uids:
            store = open_segments(self._location, uid)
            # The next attempt or sweep deletes what remains.
            with suppress(StorageError, CorruptMetadataError):
                found = [info.key for info in store.list(prefix)]
                paths = {f"{EXCHANGE_FOLDER}/{uid}/{key}": key for key in found if before is None or key < before}
                if paths:
                    store.delete_many([paths[path] for path in unnamed(paths)])
