"""In-flight data of unaligned checkpoints, and records that no function has selected (Flink: ``ChannelStateWriter``).

At another parallelism, the records of a keyed edge go to the subtasks that have their keys now, and those of
``partition_custom`` where the partitioner sends them. Of a broadcast edge, a subtask has what the one has had whose
broadcast state it gets. Of other edges, all that a subtask has had goes to one (Flink: ``SubtaskStateMapper``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import type_from_json
from dagster_flinkpy.datastream.program.job_graph import JobEdge, PartitionerKind
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.key_hashes import key_groups_of_hashes, operator_indexes
from dagster_flinkpy.runtime.shuffle.batch import KeyColumn, StreamBatch
from dagster_flinkpy.runtime.shuffle.channel_selectors import CustomSelector
from dagster_flinkpy.runtime.shuffle.key_columns import key_column
from dagster_flinkpy.runtime.shuffle.wire import Kind, decode_buffer, encode_element
from dagster_flinkpy.state.files.operator_state import read_partitions, write_partitions
from dagster_flinkpy.state.files.transfers import Uploads
from dagster_flinkpy.state.schema_evolution import read_alike
from dagster_flinkpy.storage import ObjectStore

__all__ = ["ChannelStateWriter", "InFlightRow", "own_records", "read_channel_state"]

Json = Any

_PART_BYTES = 8 << 20
_CHOSEN = (PartitionerKind.BROADCAST, PartitionerKind.GLOBAL, PartitionerKind.CUSTOM)
"""Edges whose records have certain subtasks, which those of another kind of edge have not gone to."""
_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("input", pa.int32(), nullable=False),
        pa.field("side_output", pa.string()),
        pa.field("channel", pa.int32(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


@dataclass(frozen=True)
class InFlightRow:
    """One in-flight row of a channel."""

    edge: JobEdge
    channel: int
    """Index of the upstream subtask."""
    kind: int
    payload: Any
    """Bytes, or a buffer of bytes."""
    rescaled: Sequence[tuple[int, int]] = ()
    """Whose it was whenever the parallelism has changed since: a subtask, and how many there were."""


class ChannelStateWriter:
    """Gathers the in-flight rows of one subtask and checkpoint, and uploads them in parts of 8 MiB."""

    def __init__(self, open_store: Callable[[], ObjectStore], written_by: str) -> None:
        self._open_store, self._written_by = open_store, written_by
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._edges = dict[tuple[str, int, str | None], JobEdge]()
        self._parts: list[Json] = []
        self._uploads = Uploads()

    @property
    def uploads(self) -> Sequence[Future[None]]:
        """What must be done before the parts are in the store."""
        return self._uploads.pending

    def add(self, row: InFlightRow) -> None:
        """Adds a row."""
        edge, payload = row.edge, bytes(row.payload)
        sent = (edge.source, edge.input_index, edge.side_output)
        self._edges[sent] = edge
        self._rows.append((*sent, row.channel, int(row.kind), payload))
        self._bytes += len(payload)
        if self._bytes >= _PART_BYTES:
            self._finish()

    def parts(self) -> tuple[Json, ...]:
        """Returns all parts, for the acknowledgement."""
        if self._rows:
            self._finish()
        return tuple(self._parts)

    def _finish(self) -> None:
        columns = [pa.array(c, type=f.type) for c, f in zip(zip(*self._rows, strict=True), _SCHEMA, strict=True)]
        table = pa.Table.from_arrays(columns, schema=_SCHEMA)
        store, written_by, uploads = self._open_store(), self._written_by, self._uploads
        parts = write_partitions(table, store, split=False, written_by=written_by, uploads=uploads)
        types = [[*sent, edge.type_info.to_json()] for sent, edge in self._edges.items()]
        kinds = [[*sent, edge.partitioner.kind.value] for sent, edge in self._edges.items()]
        self._parts += [{**part, "types": types, "partitioners": kinds} for part in parts]
        self._rows, self._bytes = [], 0


def read_channel_state(
    parts: Iterable[Json], edges: Sequence[JobEdge], store: ObjectStore, *, operator: str
) -> Iterator[InFlightRow]:
    """Reads in-flight rows in their order.

    Raises:
        RestoreError: The program no longer has the edge of a row, reads its records as other values, or sends such
            records to other subtasks.
        CorruptStateError: A file is missing or damaged.
    """
    known = {(e.source, e.input_index, e.side_output): e for e in edges}
    for part in parts:
        table = read_partitions([part], _SCHEMA, store, f"the in-flight data of operator {operator!r}")
        *columns, payloads = table.columns
        types = {tuple(sent): kept for *sent, kept in part.get("types", ())}
        kinds = {tuple(sent): kept for *sent, kept in part.get("partitioners", ())}
        for i, (*sent, channel, kind) in enumerate(zip(*(each.to_pylist() for each in columns), strict=True)):
            edge, kept = known.get(tuple(sent)), types.get(tuple(sent))
            if edge is None:
                raise _refused(sent[0], operator, "but the program no longer connects them")
            if kept is not None and not read_alike(kept, edge.type_info):
                raise _refused(sent[0], operator, f"with records of {type_from_json(kept)}, now {edge.type_info}")
            now = edge.partitioner.kind.value
            if edge.partitioner.kind in _CHOSEN and (before := kinds.get(tuple(sent), now)) != now:
                raise _refused(sent[0], operator, f"sent by {before}, now by {now}")
            yield InFlightRow(edge, channel, kind, payloads[i].as_buffer(), part.get("rescaled", ()))


def own_records(row: InFlightRow, subtask: int, parallelism: int, max_parallelism: int) -> pa.Buffer | None:
    """Returns the records of a row that are for a subtask, to which all of it was given, or None if none are.

    Raises:
        RestoreError: The program has other records there, or other keys of them.
    """
    edge, owners = row.edge, [*row.rescaled, (subtask, parallelism)]
    batch = decode_buffer(row.payload, edge.type_info)
    if batch.column.type != edge.type_info.arrow_type:
        raise _refused(edge.source, edge.target, f"with records of the type {batch.column.type}, now {edge.type_info}")
    if edge.partitioner.kind is PartitionerKind.HASH and batch.keys is None:
        raise _refused(edge.source, edge.target, "that were sent without the keys which the program gives them")
    keep = np.ones(len(batch), dtype=np.bool_)
    for before, (index, width) in pairwise(owners):
        match edge.partitioner.kind:
            case PartitionerKind.HASH:
                assert batch.keys is not None
                groups = key_groups_of_hashes(batch.keys.hashes, max_parallelism)
                keep &= operator_indexes(groups, max_parallelism, width) == index
            case PartitionerKind.CUSTOM:
                keep &= CustomSelector(edge.partitioner, width).select(batch) == index
            case PartitionerKind.GLOBAL:
                keep &= index == 0
            case PartitionerKind.BROADCAST:
                keep &= index % before[1] == before[0]
            case _:
                keep &= before[0] * width // before[1] == index
    if not keep.any():
        return None
    own = batch if keep.all() else batch.filter(keep, keys=True)
    if edge.partitioner.kind is PartitionerKind.HASH:
        _check_keys(edge, own)
    return row.payload if own is batch else encode_element(Kind.BUFFER, own)


def _check_keys(edge: JobEdge, batch: StreamBatch) -> None:
    """Checks that the program gives records the keys which they were sent with: their state may be elsewhere."""
    sent = batch.keys
    try:
        now = key_column(edge.partitioner, batch)
    except Exception as e:
        raise _refused(edge.source, edge.target, f"to which the program gives no key: {e}") from e
    assert sent is not None
    if not _same_keys(sent, now):
        raise _refused(edge.source, edge.target, "to which the program gives other keys, perhaps others each time")


def _same_keys(one: KeyColumn, other: KeyColumn) -> bool:
    if one.column.type != other.column.type or not np.array_equal(one.hashes, other.hashes):
        return False
    # A NaN is not equal to itself.
    return one.column.equals(other.column) or repr(one.column.to_pylist()) == repr(other.column.to_pylist())


def _refused(source: str, operator: str, why: str) -> RestoreError:
    return RestoreError(
        f"the checkpoint contains in-flight data from operator {source!r} to {operator!r}, {why}. First run the old "
        "program, with enable_unaligned_checkpoints(False), up to a checkpoint that has none; what a function has not "
        "selected is in flight, too"
    )
