"""Recomputing operators whose state is not to be kept: which ones, and from what. Reads no files."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from dagster_flinkpy.checkpoint.edge_history import EdgeHistory
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_program import operator_program
from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.checkpoint.state_migration import state_version
from dagster_flinkpy.datastream.operator_specs import (
    BlockingEdgeSinkSpec,
    BlockingEdgeSourceSpec,
    SinkSpec,
    SourceSpec,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import ConfigurationError, CorruptMetadataError, RestoreError
from dagster_flinkpy.json_records import Count, Id, Json, JsonRecord

__all__ = [
    "FIRST",
    "REPLACES",
    "TO_REPLACE",
    "Recomputation",
    "ReplacedRows",
    "first_checkpoint",
    "partitioned_error",
    "recomputation_of",
    "without_state",
]

TO_REPLACE = "rows_to_replace"
"""Property of a checkpoint at which operators have not read again what they are recomputed from: for each sink behind
them, the `ReplacedRows`."""
REPLACES = "rows_replaced"
"""Property of the checkpoint that has read it, with the same value: its commit deletes the rows."""
FIRST = "first_checkpoint"
"""Property of the checkpoints after a start from empty state: the first one, unless that is 1."""


@dataclass(frozen=True)
class ReplacedRows(JsonRecord, error=CorruptMetadataError):
    """Which rows of a sink are replaced."""

    job_id: str
    """The job that has committed them. Its forks, and jobs that restore its savepoints, have rows of their own."""
    after: Count
    """The checkpoint before the first one that has committed them; 0 for all."""
    before: Id
    """The checkpoint behind the last one."""

    def touches(self, later: ReplacedRows) -> bool:
        """Returns whether no rows are between these and those of a later recomputation, which would stay."""
        return self.job_id != later.job_id or later.after <= self.before

    def with_those(self, waiting: ReplacedRows | None) -> ReplacedRows:
        """Returns these rows, and those of the job that are still to be replaced for a recomputation before."""
        if waiting is None or waiting.job_id != self.job_id:
            return self
        return replace(self, after=min(self.after, waiting.after))

    @staticmethod
    def of(metadata: CheckpointMetadata, name: str) -> dict[str, ReplacedRows] | None:
        """Returns the value of a property, by uid of the sink; None if the checkpoint does not have it.

        Args:
            metadata: The checkpoint.
            name: `TO_REPLACE` or `REPLACES`.

        Raises:
            CorruptMetadataError: It is something else.
        """
        stored = metadata.properties.get(name)
        if not isinstance(stored, dict | None):
            raise CorruptMetadataError(f"property {name!r} of checkpoint {metadata.checkpoint_id} is {stored!r:.100}")
        return None if stored is None else {uid: ReplacedRows.from_json(each) for uid, each in stored.items()}


@dataclass(frozen=True)
class Recomputation:
    """What is recomputed: operators that are named, all that follow, and what pipelined edges connect with these."""

    operators: tuple[str, ...]
    """Their uids, in the order of the program, without the ends of blocking edges."""
    sinks: tuple[str, ...]
    """Those that replace the rows of the epochs that are read again."""
    new_sinks: tuple[str, ...]
    """Those that the checkpoint does not know. They must not have written any."""
    sources: tuple[str, ...]
    """Those that read their input again from the beginning."""
    edges: tuple[str, ...]
    """Uids of the operators that write the blocking edges whose segments are read again."""
    after: int
    """The checkpoint after whose barrier all is read again; 0 for the beginning of the job."""
    replaced: ReplacedRows
    """Which rows the sinks replace."""
    records: int
    """How many records the segments have."""
    bytes: int
    """Size of the segments."""
    uids: frozenset[str]
    """The uids of all that starts empty, with the ends of blocking edges."""
    before: frozenset[str]
    """The uids of the operators that write the blocking edges before it, near or far."""

    @property
    def lines(self) -> list[str]:
        """Describes it in lines for a log."""
        since = f"since checkpoint {self.after}" if self.after else "since the beginning of the job"
        told = [f"recomputed: {_quoted(self.operators)}"]
        if self.edges:
            before = _quoted([edge.removesuffix(".exchange") for edge in self.edges])
            what = f"{self.records:,} records, {self.bytes:,} bytes"
            told.append(f"read again: what the blocking edges after {before} keep {since}: {what}")
        if self.sources:
            lost = ". Rows of what they no longer have are lost from the sinks" if self.sinks else ""
            told.append(f"read again from the beginning: sources {_quoted(self.sources)}{lost}")
        if self.sinks:
            told.append(f"replaced: the rows that sinks {_quoted(self.sinks)} have written {since}")
        return told

    def to_json(self) -> dict[str, Any]:
        """Encodes it for the output of a command."""
        names = ("operators", "sinks", "sources", "edges", "after", "records", "bytes")
        return {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in names}


def first_checkpoint(metadata: CheckpointMetadata) -> int:
    """Returns the first checkpoint after the job has last started from empty state.

    Raises:
        CorruptMetadataError: The checkpoint's property says something else.
    """
    first = metadata.properties.get(FIRST)
    if first is None:
        return 1  # also of a new savepoint, whose number is 0
    if type(first) is not int or not 1 <= first <= metadata.checkpoint_id:
        raise CorruptMetadataError(f"property {FIRST!r} of checkpoint {metadata.checkpoint_id} is {first!r:.100}")
    return first


def recomputation_of(
    metadata: CheckpointMetadata, graph: JobGraph, uids: Collection[str], since: str | None = None
) -> Recomputation:
    """Finds out what has to be recomputed if operators do not keep their state.

    That is what a pipelined edge connects with them, because it reads again what they read, and all that follows. It
    reads the segments that the blocking edges before it have kept, and its own sources from their beginning.

    Args:
        metadata: The checkpoint.
        graph: The program.
        uids: Uids of the operators.
        since: ``chk-7``: the state needs no input from before this checkpoint. Default: it needs all.

    Raises:
        ConfigurationError: There is no such operator, the job is partitioned by time, ``since`` cannot be used, or a
            sink with another uid than before writes to the same place.
        RestoreError: A blocking edge does not keep what has to be read again.
    """
    graph = graph.split()
    _check(metadata, graph, uids)
    after = _number(since)
    parts = [{v.uid for v in part.vertices} for part in graph.parts()]
    reads = {v.uid: v.spec.source.sink_uid for v in graph.vertices if isinstance(v.spec, BlockingEdgeSourceSpec)}
    anew = {uid for part in parts if not part.isdisjoint(uids) for uid in part}
    while more := {uid for part in parts for uid in part if any(reads.get(u) in anew for u in part)} - anew:
        anew |= more
    before = {edge for uid, edge in reads.items() if uid in anew}
    edges = sorted(before - anew)
    while more := {reads[u] for part in parts if not part.isdisjoint(before) for u in part if u in reads} - before:
        before |= more
    specs = {v.uid: v.spec for v in graph.vertices if v.uid in anew}
    sources = {u: spec.static for u, spec in specs.items() if isinstance(spec, SourceSpec) and u not in reads}
    streams = [uid for uid, static in sources.items() if not static]
    if after and streams:
        raise ConfigurationError(
            f"{_quoted(uids)} cannot be recomputed since checkpoint {after}: sources {_quoted(streams)} are read with "
            "them, and can only be read from the beginning. Leave out since"
        )
    outputs = [output for edge in edges for output in _retained(metadata, edge, after)]
    segments = [segment for output in outputs for segment in output["segments"]]
    # The job may have started from empty state since its sinks have written their first rows: these are not read again.
    first = (
        first_checkpoint(metadata)
        if streams
        else min((each["checkpoint_id"] for each in outputs), default=metadata.checkpoint_id + 1)
    )
    sinks = [
        uid for uid, spec in specs.items() if isinstance(spec, SinkSpec) and not isinstance(spec, BlockingEdgeSinkSpec)
    ]
    replaced, waiting = (
        ReplacedRows(metadata.job_id, after or first - 1, metadata.checkpoint_id + 1),
        _waiting(metadata),
    )
    for uid in sinks:
        _check_place(metadata, graph, uid)
        if uid in waiting and not waiting[uid].touches(replaced):
            raise RestoreError(
                f"sink {uid!r} has yet to replace the rows of a recomputation before: run the job until it has, and "
                f"then recompute {_quoted(uids)}"
            )
    return Recomputation(
        tuple(u for u, s in specs.items() if type(s) not in (BlockingEdgeSinkSpec, BlockingEdgeSourceSpec)),
        tuple(uid for uid in sinks if metadata.operator(uid) is not None),
        tuple(uid for uid in sinks if metadata.operator(uid) is None),
        tuple(sources),
        tuple(edges),
        after,
        replaced,
        sum(segment["rows"] for segment in segments),
        sum(segment["bytes"] for segment in segments),
        frozenset(anew),
        frozenset(before),
    )


def _check(metadata: CheckpointMetadata, graph: JobGraph, uids: Collection[str]) -> None:
    known = {v.uid for v in graph.vertices}
    if unknown := sorted({*uids} - known):
        raise ConfigurationError(
            f"{_quoted(unknown)} cannot be recomputed: the program has no such operator. It has "
            f"{_quoted(sorted(known))}"
        )
    if metadata.end_of is not None:
        raise partitioned_error(metadata.job_id)


def _check_place(metadata: CheckpointMetadata, graph: JobGraph, sink: str) -> None:
    """Checks that a new sink does not write all rows beside those of one that the program no longer has."""
    if metadata.operator(sink) is not None:
        return
    uids, place = {v.uid for v in graph.vertices}, operator_program(graph, sink).writes_to
    for former in metadata.operators:
        if former.uid not in uids and former.program is not None and place == former.program.writes_to != "":
            raise ConfigurationError(
                f"sink {sink!r} would write all rows to {place}, where those of sink {former.uid!r} are: give it the "
                f"uid {former.uid!r}, so that it replaces them, or let it write to another place"
            )


def partitioned_error(job_id: str) -> ConfigurationError:
    """Returns the error of a job whose operators cannot be recomputed because it is partitioned by time."""
    return ConfigurationError(
        f"job {job_id!r} is partitioned by time: its partitions are run again, which replaces their rows. "
        "Operators are not recomputed beside that"
    )


def _number(since: str | None) -> int:
    if since is None:
        return 0
    found = re.fullmatch(r"chk-([1-9]\d*)", since)
    if found is None:
        raise ConfigurationError(f"since is {since!r}, but must be a checkpoint, such as chk-7")
    return int(found[1])


def _retained(metadata: CheckpointMetadata, edge: str, after: int) -> tuple[Json, ...]:
    """Returns what an edge has kept since a checkpoint.

    Raises:
        RestoreError: It has not kept all of it.
    """
    stored = metadata.operator(edge)
    history = None if stored is None else stored.history
    found = None if history is None else history.since(after)
    if found is not None:
        return found
    before = edge.removesuffix(".exchange")
    if history is None:
        kept = "keeps nothing that was read. Declare blocking(retain=...) for the next time"
    else:
        choices = ", ".join(f"chk-{number}" for number in history.choices) or "none yet"
        together = ", or a recomputation has replaced rows from before and after it together"
        asked = f"checkpoint {after}{together}" if after else "the beginning of the job"
        kept = (
            f"does not keep all since {asked}. If the state needs no input from before another checkpoint, name that "
            f"with since: {choices}"
        )
    raise RestoreError(
        f"the blocking edge after {before!r} {kept}. Or recompute {before!r}, too, which then reads its own input again"
    )


def without_state(metadata: CheckpointMetadata, graph: JobGraph, recomputation: Recomputation) -> CheckpointMetadata:
    """Returns a checkpoint with which operators start empty and read again what they are built from.

    Args:
        metadata: The checkpoint.
        graph: The program.
        recomputation: Which operators these are.
    """
    programs = {operator.uid: operator.program for operator in metadata.operators}
    empty: list[OperatorState] = []
    for v in graph.split().vertices:
        if v.uid not in recomputation.uids or v.uid in recomputation.sources:
            continue  # a source that is not known reads from the beginning
        state = OperatorState(v.uid, v.name, v.parallelism, v.max_parallelism, (), program=programs.get(v.uid))
        state = replace(state, state_version=state_version(v, None))
        if isinstance(v.spec, BlockingEdgeSourceSpec) and (edge := v.spec.source.sink_uid) in recomputation.edges:
            outputs = ({"edge": edge, **each} for each in _retained(metadata, edge, recomputation.after))
            state = replace(state, in_flight=tuple(outputs))
        elif isinstance(v.spec, BlockingEdgeSinkSpec) and not recomputation.after:
            state = replace(state, history=EdgeHistory())  # it will write all again
        empty.append(state)
    # Another run may have gone on since the recomputation was planned.
    replaced = replace(recomputation.replaced, before=metadata.checkpoint_id + 1)
    waiting = _waiting(metadata)
    new = {uid: replaced.with_those(waiting.get(uid)) for uid in recomputation.sinks}
    to_replace = {**waiting, **new}
    properties = {**metadata.properties, TO_REPLACE: {uid: each.to_json() for uid, each in to_replace.items()}}
    kept = [operator for operator in metadata.operators if operator.uid not in recomputation.uids]
    for number, operator in enumerate(kept):
        if operator.uid in recomputation.before and operator.history is not None:
            kept[number] = replace(operator, history=operator.history.replaced_since(recomputation.after))
    return replace(metadata, operators=(*kept, *empty), properties=properties, end_of_input=False)


def _waiting(metadata: CheckpointMetadata) -> dict[str, ReplacedRows]:
    """Returns what sinks have yet to replace."""
    return ReplacedRows.of(metadata, TO_REPLACE) or {}


def _quoted(uids: Collection[str]) -> str:
    return ", ".join(map(repr, uids)) or "none"
