"""The tasks of the simulated job, which replace those of Spark jobs. An epoch takes a millisecond."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER, SubtaskState
from dagster_flinkpy.connectors.commit.staged_files import StagedUpload, file_name, partition_folder
from dagster_flinkpy.datastream.connectors.base import WriterInitContext
from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSourceSpec, SourceSpec
from dagster_flinkpy.errors import (
    CorruptStateError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from dagster_flinkpy.key_groups import compute_key_group_range_for_operator_index
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.state.files.operator_state import state_file
from dagster_flinkpy.state.handles import DistributionMode, KeyedSnapshot, OperatorStateHandle, RunHandle
from dagster_flinkpy.storage import ObjectStore
from tests.simulation.bucket import SimulatedStore
from tests.simulation.edges import read_segment, slow_down
from tests.simulation.program import (
    EXCHANGE,
    FILTERS,
    MAX_PARALLELISM,
    OUT,
    SPLIT_RECORDS,
    group_of,
    here,
    key_of,
)
from tests.simulation.task_state import Rows, merged, read_seen, runs_of, table_of, to_rows, write_run

__all__ = ["CountTask", "EdgeReadTask", "EdgeWriteTask", "SourceTask"]

_MAX_RUNS = 3
_HELD = 7
"""The row of each k-th record is held back."""


@dataclass
class _Task:
    """One try of a subtask of a stage."""

    job: EpochJob
    index: int
    execution: str

    @property
    def _store(self) -> ObjectStore:
        return self.job.job_storage.open()

    def _read(self, path: str) -> bytes:
        try:
            return self._store.get(path)[0]
        except ObjectNotFoundError as error:
            raise CorruptStateError(f"state file {path} is missing") from error


def sources_of(job: EpochJob) -> list[str]:
    """Returns the uids of the sources and of the read sides of blocking edges, in a region."""
    return [
        vertex.uid for vertex in job.graph.vertices if isinstance(vertex.spec, (SourceSpec, BlockingEdgeSourceSpec))
    ]


def _edge(job: EpochJob, uid: str) -> ObjectStore:
    return job.job_storage.child(EXCHANGE_FOLDER).child(uid).open()


@dataclass
class SourceTask(_Task):
    """Reads the splits of a subtask."""

    def run(self) -> tuple[list[dict[str, Any]], list[int]]:
        """Returns acknowledgements and records."""
        world = here()
        seen = read_seen(self.job.input("numbers", self.index).operator_state, self._read)
        world.step()
        splits = self.job.epoch.splits.get(("numbers", self.index), ())
        read = [split.properties["n"] for split in splits]
        world.rng.shuffle(read)  # a task that runs again need not do the same
        records = [s.properties["n"] * SPLIT_RECORDS + r for s in splits for r in range(SPLIT_RECORDS)]
        stored = self._stored(seen + read)
        state = SubtaskState(
            self.index,
            operator_state=(OperatorStateHandle("seen", DistributionMode.SPLIT_DISTRIBUTE, stored),),
            splits=tuple(split.advanced(SPLIT_RECORDS, finished=True).to_json() for split in splits),
        )
        return [_ack("numbers", self.job.checkpoint_id, state)], records

    def _stored(self, seen: Sequence[int]) -> tuple[Any, ...]:
        if len(seen) < 3:
            return tuple({"n": n} for n in seen)
        data = json.dumps(seen).encode()
        sha256 = hashlib.sha256(data).hexdigest()
        by = self.job.writer_of(self.job.checkpoint_id)
        with suppress(PreconditionFailedError):
            self._store.put(state_file(sha256, by), data, if_none_match=True)
        return tuple({"file": sha256, "by": by, "row": row} for row in range(len(seen)))


@dataclass
class EdgeReadTask(_Task):
    """Reads what regions before this one have written to blocking edges."""

    def run(self) -> tuple[list[dict[str, Any]], list[int]]:
        """Returns acknowledgements and records."""
        slow_down(self.job)
        here().step()
        acks: list[dict[str, Any]] = []
        records: list[int] = []
        for uid in sources_of(self.job):
            edge, splits = uid.rpartition(".")[0], []
            for split in self.job.epoch.splits.get((uid, self.index), ()):
                keys = [segment["key"] for segment in split.properties["segments"]]
                read = [n for key in keys for n in read_segment(self.job, _edge(self.job, edge), edge, key)]
                splits.append(split.advanced(len(read), finished=True).to_json())
                records += read
            acks.append(_ack(uid, self.job.checkpoint_id, SubtaskState(self.index, splits=tuple(splits))))
        return acks, records


@dataclass
class EdgeWriteTask(_Task):
    """Writes the output of a region that others read."""

    def run(self, records: Sequence[int]) -> list[dict[str, Any]]:
        """Writes the records of one subtask as segments, and returns acknowledgements."""
        epoch = self.job.epoch
        uids, sources = [vertex.uid for vertex in self.job.graph.vertices], set(sources_of(self.job))
        uid = next(uid for uid in uids if uid.endswith(EXCHANGE))
        filters = [each for each in uids if each in FILTERS]
        here().step()
        name = f"{self.job.fencing_token:010d}-{epoch.checkpoint_id:010d}/{self.index}.{self.execution}"
        segments = []
        kept = [record for record in records if all(FILTERS[each](record) for each in filters)]
        for number, record in enumerate(kept):
            data = json.dumps([record]).encode()
            key = f"{name}.{number}-{hashlib.sha256(data).hexdigest()}.arrow"
            _edge(self.job, uid).put(key, data)
            segments.append({"key": key, "bytes": len(data), "rows": 1})
        output = {
            "segments": segments,
            "event_times": {"numbers": {"watermark": None, "idle": False}},
            "end_of_input": epoch.ended_sources >= sources,
        }
        acks = [_ack(each, epoch.checkpoint_id, SubtaskState(self.index)) for each in filters]
        return [*acks, _ack(uid, epoch.checkpoint_id, SubtaskState(self.index, committables=(output,)))]


@dataclass
class CountTask(_Task):
    """Counts records per key, and writes the counts to files."""

    def run(self, records: Sequence[int]) -> list[dict[str, Any]]:
        """Takes the records, and returns the acknowledgements of both operators."""
        try:
            return self._run(records)
        except StorageError:
            for upload in self._uploads:
                upload.abort()
            raise

    def _run(self, records: Sequence[int]) -> list[dict[str, Any]]:
        job = self.job
        self._uploads: list[StagedUpload] = []
        width = job.graph.vertex("count").parallelism
        groups = self._groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, width, self.index)
        given = job.input("count", self.index).keyed
        runs = list(runs_of(given, "counts"))
        state = merged(runs, self._read)
        turns = {key: value for key, (_, value) in merged(runs_of(given, "turns"), self._read).items()}
        held = merged(runs_of(given, "held"), self._read)
        here().step()
        rows: list[list[int]] = []
        touched: dict[Any, tuple[int, Any]] = {}
        for record in sorted(records):
            key = key_of(record)
            group = group_of(key)
            if group in groups:
                state[key] = touched[key] = (group, [*state.get(key, (group, []))[1], record])
                # As in a window, some rows wait for the next row of their key, or for the end of input.
                rows += held.pop(key, (group, []))[1]
                row = [record, len(state[key][1])]
                if record % _HELD == 0:
                    held[key] = (group, [row])
                else:
                    rows.append(row)
        if job.epoch.ended_sources >= set(sources_of(job)):
            rows += [row for _, waiting in held.values() for row in waiting]
            held = {}
        if touched:
            runs.append(self._write(to_rows(touched)))
        if len(runs) > _MAX_RUNS:
            runs = [self._write(to_rows(state))]
        # The content repeats from time to time.
        turn = 1 - turns.get(f"turn-{groups.start}", 0)
        turning = self._write([(groups.start, f"turn-{groups.start}", turn)])
        waiting = [self._write(to_rows(held))] if held else []
        tables = (table_of("counts", runs), table_of("turns", [turning]), table_of("held", waiting))
        keyed = KeyedSnapshot(groups, tables)
        return [
            _ack("count", job.checkpoint_id, SubtaskState(self.index, keyed=keyed)),
            _ack("files", job.checkpoint_id, self._written(job.checkpoint_id, rows)),
        ]

    def _write(self, rows: Rows) -> RunHandle:
        return write_run(rows, self._groups, self._store, self.job.writer_of(self.job.checkpoint_id))

    def _written(self, checkpoint_id: int, rows: Sequence[Any]) -> SubtaskState:
        if not rows:
            return SubtaskState(self.index)
        init = WriterInitContext(
            job_id=self.job.job_id,
            uid="files",
            subtask=self.index,
            fencing_token=self.job.fencing_token,
            checkpoint_id=checkpoint_id,
            execution=self.execution,
            partition=self.job.partition,
        )
        key = f"{partition_folder(init.partition)}{file_name(init)}"
        upload = StagedUpload(SimulatedStore(here(), OUT), key, part_bytes=64)
        self._uploads.append(upload)
        upload.write(json.dumps(rows).encode())
        return SubtaskState(self.index, committables=(upload.finish(len(rows)).to_json(),))


def _ack(uid: str, checkpoint_id: int, state: SubtaskState) -> dict[str, Any]:
    return {
        "uid": uid,
        "checkpoint_id": checkpoint_id,
        "state": state.to_json(),
        "digest": "",
        "consumed": {},
        "marked_ms": {},
    }
