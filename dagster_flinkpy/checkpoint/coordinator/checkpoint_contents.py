"""What the checkpoints of an execution attempt contain: the acknowledged state of all regions of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.instructions import WriteMetadata
from dagster_flinkpy.checkpoint.edge_history import EdgeHistory
from dagster_flinkpy.checkpoint.metadata import (
    ANCESTORS,
    COMMITS,
    END_OF,
    REPEATS,
    WINDOW,
    CheckpointKind,
    CheckpointMetadata,
)
from dagster_flinkpy.checkpoint.operator_program import operator_program
from dagster_flinkpy.checkpoint.operator_states import OperatorState, with_declared_types, without_copies
from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.checkpoint.recomputation import FIRST, REPLACES, TO_REPLACE, ReplacedRows, first_checkpoint
from dagster_flinkpy.checkpoint.state_migration import state_version
from dagster_flinkpy.common.clock import epoch_millis
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSinkSpec, BlockingEdgeSourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.json_records import JsonRecord

__all__ = ["CheckpointContents"]


class CheckpointContents:
    """Builds the metadata of checkpoints."""

    def __init__(self, graph: JobGraph, job_id: str, fencing_token: int, restored: CheckpointMetadata | None) -> None:
        self.parent = restored
        """The last completed checkpoint, or the restored checkpoint or savepoint; None if there is neither."""
        self.partition: TimePartition | None = None
        """The time partition that the next epoch reads; None if it reads the next input."""
        self.repeated: int | None = None
        """The last checkpoint that has the state of the one before it."""
        self._restored = {} if restored is None else {each.uid: each.subtasks for each in restored.operators}
        self._ancestors = [] if restored is None else [list(each) for each in restored.ancestors_of(job_id)]
        self._first = None if restored is None else first_checkpoint(restored)
        self._graph, self._job_id, self._token = graph, job_id, fencing_token
        self._edges = {v.uid for v in graph.vertices if isinstance(v.spec, BlockingEdgeSourceSpec)}
        ends = {v.uid: v.spec.sink.retain for v in graph.vertices if isinstance(v.spec, BlockingEdgeSinkSpec)}
        self._retain = {uid: retain for uid, retain in ends.items() if retain is not None}
        self._histories = {uid: self._history(uid) for uid in self._retain}
        """What is retained of blocking edges as of the last metadata, by uid of the sink."""
        # An operator without an explicit uid has a generated one, which another operator may have tomorrow.
        self._versions = {v.uid: state_version(v, restored) for v in graph.vertices}
        self._programs = {v.uid: operator_program(graph, v.uid) for v in graph.vertices if v.uid_set}

    def metadata(
        self,
        write: WriteMetadata,
        written: Sequence[Mapping[str, JsonRecord]],
        *,
        ended: bool,
        properties: Mapping[str, Any],
    ) -> CheckpointMetadata:
        """Returns the metadata of the checkpoint at the end of an epoch.

        Args:
            write: The acknowledged state.
            written: What was written to blocking edges that belongs to it, in order, by uid of the sink.
            ended: Whether all input ends with the checkpoint.
            properties: Properties of the checkpoint, as JSON values; those that are None are left out.
        """
        self._grow(write, written)
        self._first = self._first or write.checkpoint_id
        same = self.parent if write.checkpoint_id == self.repeated else None
        told = {
            **properties,
            FIRST: self._first if self._first > 1 else None,
            ANCESTORS: self._ancestors or None,
            COMMITS: self._commits_before() or None,
            REPEATS: None if same is None else list(same.read_by),
            END_OF: None if same is None else same.end_of,
            WINDOW: self._window(same),
            **self._rows_to_replace(write),
        }
        operators = tuple(
            OperatorState(
                uid=v.uid,
                name=v.name,
                parallelism=v.parallelism,
                max_parallelism=v.max_parallelism,
                coordinator_state=None if v.uid in self._edges else write.coordinator_states.get(v.uid),
                subtasks=with_declared_types(without_copies(write.states[v.uid]), self._restored.get(v.uid, ())),
                in_flight=tuple(write.coordinator_states.get(v.uid, ())) if v.uid in self._edges else (),
                history=self._histories.get(v.uid),
                program=self._programs.get(v.uid),
                state_version=self._versions[v.uid],
            )
            for v in self._graph.vertices
        )
        return CheckpointMetadata(
            job_id=self._job_id,
            checkpoint_id=write.checkpoint_id,
            kind=CheckpointKind.CHECKPOINT,  # a savepoint is a copy of it
            parent_id=None if self.parent is None else self.parent.checkpoint_id,
            timestamp_ms=write.trigger_ms,
            partition=None if self.partition is None else self.partition.key,
            fencing_token=self._token,
            graph_fingerprint=self._graph.fingerprint,
            end_of_input=ended,
            operators=operators,
            properties={name: value for name, value in told.items() if value is not None},
            master_states=dict(write.master_states),
        )

    def _history(self, uid: str) -> EdgeHistory:
        """Returns what is retained of an edge when the attempt begins."""
        if self.parent is None:
            return EdgeHistory()
        stored = self.parent.operator(uid)
        if stored is None or stored.history is None:
            return EdgeHistory(self.parent.checkpoint_id)
        return stored.history

    def _grow(self, write: WriteMetadata, written: Sequence[Mapping[str, JsonRecord]]) -> None:
        """Adds to the histories of edges what was written since the last metadata."""
        if not self._retain:
            return
        in_channels = (s.channel_state for states in write.states.values() for s in states)
        settled = not any(in_channels) and not any(write.coordinator_states.get(uid) for uid in self._edges)
        for uid, retain in self._retain.items():
            outputs = [each[uid].to_json() for each in written if uid in each]
            grown = self._histories[uid].grown
            self._histories[uid] = grown(outputs, write.checkpoint_id, write.trigger_ms, retain, settled=settled)

    def _commits_before(self) -> dict[str, int]:
        """Returns the property of a checkpoint that says what its sinks have committed before."""
        parent = self.parent
        if parent is None or (parent.job_id, parent.kind) != (self._job_id, CheckpointKind.CHECKPOINT):
            return {}
        if self.partition is not None:
            return {}
        return {uid: number for uid, number in parent.commits.items() if uid in self._versions}

    def _window(self, same: CheckpointMetadata | None) -> Any:
        """Returns the property of a checkpoint, which may repeat another one, that says of which time it is."""
        if self.partition is not None:
            return [epoch_millis(self.partition.start), epoch_millis(self.partition.end)]
        return None if same is None else same.properties.get(WINDOW)

    def _rows_to_replace(self, write: WriteMetadata) -> dict[str, Any]:
        """Returns the property of a checkpoint whose operators are recomputed, or whose sinks replace their rows."""
        asked = None if self.parent is None else ReplacedRows.of(self.parent, TO_REPLACE)
        if self.parent is None or asked is None:
            return {}
        left = (each["checkpoint_id"] for uid in self._edges for each in write.coordinator_states.get(uid, ()))
        before = max((rows.before for rows in asked.values()), default=0)
        # With unaligned barriers, sinks may write rows anew while others wait, and rows may be on their way behind what
        # was read. All of them have checkpoints from `before` on, which are not replaced: none stays lost or doubled.
        waits = write.checkpoint_id == self.repeated or any(number < before for number in left)
        return {TO_REPLACE if waits else REPLACES: self.parent.properties[TO_REPLACE]}

    def partition_end(self, metadata: CheckpointMetadata) -> PartitionEnd | None:
        """Returns the entry for the end state of a time partition, or None if the epoch has read none."""
        if self.partition is None:
            return None
        return PartitionEnd(self.partition.key, self.partition.ordinal, metadata.checkpoint_id, metadata.parent_id)
