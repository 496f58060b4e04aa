"""What was on its way when an unaligned checkpoint took its snapshots (Flink: ``ChannelStateWriter``).

A handle is JSON: ``{"edges": [[source uid, input, side output], ...], "bytes": n}`` and either ``data``, base64, or
``file`` and ``sha256``. The content is an Arrow stream of rows ``edge, channel, kind, payload`` in order of arrival.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dagster_flinkpy.datastream.job_graph import JobEdge
from dagster_flinkpy.errors import CorruptStateError, ObjectNotFoundError, PreconditionFailedError, RestoreError
from dagster_flinkpy.storage import ObjectStore
from dagster_flinkpy.storage.object_store import check_relative

__all__ = ["ChannelStateWriter", "InFlight", "read_channel_state"]

Json = dict[str, Any]

_INLINE_BYTES = 20 * 1024
_FILE_BYTES = 8 << 20
_SCHEMA = pa.schema(
    [
        pa.field("edge", pa.int32(), nullable=False),
        pa.field("channel", pa.int32(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


@dataclass(frozen=True)
class InFlight:
    """One row of a channel."""

    edge: JobEdge
    channel: int
    """The subtask upstream."""
    kind: int
    payload: Any
    """Bytes, or a buffer of them."""


class ChannelStateWriter:
    """Gathers the in-flight rows of one subtask and checkpoint; writes a file whenever there are 8 MiB.

    Args:
        open_store: Opens the store, rooted at the job's prefix, if there is something to write.
    """

    def __init__(self, open_store: Callable[[], ObjectStore]) -> None:
        self._open_store = open_store
        self._rows: list[InFlight] = []
        self._bytes = 0
        self._handles: list[Json] = []

    def add(self, row: InFlight) -> None:
        """Takes a row."""
        self._rows.append(row)
        self._bytes += len(row.payload)
        if self._bytes >= _FILE_BYTES:
            self._finish()

    def handles(self) -> tuple[Json, ...]:
        """All that was taken, for the acknowledgement."""
        if self._rows:
            self._finish()
        return tuple(self._handles)

    def _finish(self) -> None:
        edges: dict[int, JobEdge] = {row.edge.id: row.edge for row in self._rows}
        index = {edge_id: i for i, edge_id in enumerate(edges)}
        columns = [
            [index[row.edge.id] for row in self._rows],
            [row.channel for row in self._rows],
            [int(row.kind) for row in self._rows],
            [bytes(row.payload) for row in self._rows],
        ]
        arrays = [pa.array(c, type=f.type) for c, f in zip(columns, _SCHEMA, strict=True)]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
        data = sink.getvalue().to_pybytes()
        handle: Json = {"edges": [[e.source, e.input_index, e.side_output] for e in edges.values()], "bytes": len(data)}
        if len(data) < _INLINE_BYTES:
            handle["data"] = base64.b64encode(data).decode()
        else:
            handle["sha256"] = hashlib.sha256(data).hexdigest()
            handle["file"] = f"shared/{handle['sha256']}.channel"
            with suppress(PreconditionFailedError):  # named by content, so what is there is the same
                self._open_store().put(handle["file"], data, if_none_match=True)
        self._handles.append(handle)
        self._rows, self._bytes = [], 0


def read_channel_state(
    handles: Iterable[Json], edges: Sequence[JobEdge], store: ObjectStore, *, operator: str
) -> Iterator[InFlight]:
    """The rows again, in their order.

    Args:
        handles: Of one subtask.
        edges: Into the operator, as the program has them now.
        store: Rooted at the job's prefix.
        operator: Uid, for messages.

    Raises:
        RestoreError: The program has no such edge any more.
        CorruptStateError: A file is missing or damaged.
    """
    known = {(e.source, e.input_index, e.side_output): e for e in edges}
    for handle in handles:
        here = []
        for source, input_index, side_output in handle["edges"]:
            edge = known.get((source, input_index, side_output))
            if edge is None:
                raise RestoreError(
                    f"the checkpoint holds in-flight data from operator {source!r} to {operator!r}, which the program "
                    "no longer joins. Run the old program up to an aligned checkpoint (unaligned=False) first."
                )
            here.append(edge)
        with pa.ipc.open_stream(_content(handle, store)) as reader:
            for batch in reader:
                columns = [batch.column(i).to_pylist() for i in range(3)]
                for i, (edge_index, channel, kind) in enumerate(zip(*columns, strict=True)):
                    yield InFlight(here[edge_index], channel, kind, batch.column(3)[i].as_buffer())


def _content(handle: Json, store: ObjectStore) -> bytes:
    if "data" in handle:
        return base64.b64decode(handle["data"])
    path = check_relative(handle["file"])
    try:
        data, _ = store.get(path)
    except ObjectNotFoundError as error:
        raise CorruptStateError(f"{store.url}/{path} is missing, but a checkpoint names it") from error
    if hashlib.sha256(data).hexdigest() != handle["sha256"]:
        raise CorruptStateError(f"{store.url}/{path} is damaged: it does not have its recorded checksum")
    return data
