"""Measures what a checkpoint, a restore and a clean-up cost the master, with stand-ins for tasks and for S3.

What runs is the coordinator, the store of completed checkpoints, state assignment and the sweep, from the bytes of the
acknowledgements to ``HEAD``. The job has a source and a keyed operator with a sink, half of the subtasks each. At each
checkpoint a hundredth of the state has changed. Each subtask writes one run of changes; sections of its table are
merged in turn. Each size is measured in a process of its own, for its memory.
"""

from __future__ import annotations

import gc
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from benchmarks.counted_store import CountedStore
from benchmarks.report import line
from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.instructions import EmitBarriers, ReplaceHead, WriteMetadata
from dagster_flinkpy.checkpoint.coordinator.messages import AcknowledgeCheckpoint, Subtask
from dagster_flinkpy.checkpoint.coordinator.pending import CheckpointPlan
from dagster_flinkpy.checkpoint.coordinator.stimuli import (
    Acknowledge,
    CheckpointIdAssigned,
    CommitFinished,
    HeadReplaced,
    JobStatusChanged,
    MetadataWritten,
    TriggerRequested,
)
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.restore import RestoreTarget, assign
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.key_groups import (
    KeyGroupRange,
    compute_default_max_parallelism,
    compute_key_group_range_for_operator_index,
)
from dagster_flinkpy.state.files.compaction import MAX_RUNS, SECTION_BYTES
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle, TableSnapshot

SIZES = ((100, 1), (1_000, 100), (10_000, 100), (10_000, 1_000))
"""Subtasks, and GB of state."""
ROUNDS = 10
RETAINED = 3
CHANGED = 0.01
ROW_BYTES = 20
MERGED_EVERY = 75
"""After so many checkpoints a section is merged, because it has half as many changes as rows."""
PRICES = {"put": 5e-6, "list": 5e-6, "get": 4e-7, "delete": 0.0}
"""US dollars per request to S3 Standard in us-east-1."""


class Tasks:
    """Stand-ins for the tasks of a job: they know what they would acknowledge."""

    def __init__(self, subtasks: int, state_bytes: int, store: CountedStore) -> None:
        self.parallelism = subtasks // 2
        self.max_parallelism = compute_default_max_parallelism(self.parallelism)
        self._store = store
        self._bytes = state_bytes // self.parallelism
        self._runs: dict[int, tuple[list[RunHandle], list[RunHandle]]] = {}

    @property
    def subtasks(self) -> list[Subtask]:
        return [Subtask(uid, index) for uid in ("source", "count") for index in range(self.parallelism)]

    def acknowledge(self, token: int, checkpoint_id: int) -> list[tuple[str, bytes]]:
        """Returns the bytes that each subtask sends."""
        return [
            (uid, json.dumps(state(index, token, checkpoint_id).to_json()).encode())
            for uid, state in (("source", self._source), ("count", self._keyed))
            for index in range(self.parallelism)
        ]

    def _source(self, index: int, token: int, checkpoint_id: int) -> SubtaskState:
        split = {"split_id": f"orders-{index}", "offset": checkpoint_id * 100_000, "finished": False, "properties": {}}
        metrics = {"records_out": 100_000, "bytes_out": 2_000_000}
        return SubtaskState(index, splits=(split,), watermark=1_700_000_000_000, metrics=metrics)

    def _keyed(self, index: int, token: int, checkpoint_id: int) -> SubtaskState:
        own = compute_key_group_range_for_operator_index(self.max_parallelism, self.parallelism, index)
        bases, deltas = self._runs.setdefault(index, ([], []))
        groups = own.number_of_key_groups
        sections = max(1, min(groups, -(-self._bytes // SECTION_BYTES)))
        for section in range(sections):
            part = KeyGroupRange(
                own.start + section * groups // sections, own.start + (section + 1) * groups // sections - 1
            )
            if len(bases) <= section:
                bases.append(
                    self._write(part, f"{index} {section} base", self._bytes // sections, token, checkpoint_id)
                )
            elif (section + checkpoint_id + index) % MERGED_EVERY == 0:
                name = f"{index} {section} {checkpoint_id}"
                bases[section] = self._write(part, name, self._bytes // sections, token, checkpoint_id)
        size = int(self._bytes * CHANGED)
        if len(deltas) == MAX_RUNS - 1:  # the newest are merged with the changes
            size += sum(run.bytes for run in deltas[MAX_RUNS // 2 :])
            del deltas[MAX_RUNS // 2 :]
        deltas.append(self._write(own, f"{index} {checkpoint_id}", size, token, checkpoint_id))
        table = TableSnapshot("count", "VALUE", {"type": "STRING"}, None, None, {"type": "LONG"}, (*bases, *deltas))
        committable = {"key": f"day/{token}-{checkpoint_id}-{index}.parquet", "upload_id": "u" * 40, "rows": 1_000}
        metrics = {"records_in": 100_000, "records_out": 1_000, "delta_bytes": deltas[-1].bytes}
        return SubtaskState(
            index,
            KeyedSnapshot(own, (table,)),
            watermark=1_700_000_000_000,
            committables=(committable,),
            metrics=metrics,
        )

    def _write(self, key_groups: KeyGroupRange, name: str, size: int, token: int, checkpoint_id: int) -> RunHandle:
        digest = hashlib.sha256(name.encode()).hexdigest()
        path = f"shared/{token}-{checkpoint_id}-{digest}.parquet"
        self._store.requests["put by tasks"] += 1
        self._store.sent["put by tasks"] += size
        self._store.add(path, size)
        groups = key_groups.number_of_key_groups
        counts = [max(1, size // ROW_BYTES // groups)] * groups
        return RunHandle(
            path=path,
            sha256=digest,
            bytes=max(size, 2_000),
            rows=sum(counts),
            key_groups=key_groups,
            rows_per_key_group=(key_groups.start, *counts),
            footer_bytes=900,
            footer_sha256=hashlib.sha256(digest.encode()).hexdigest(),
        )


class Master:
    """The coordinator of a job and its store."""

    def __init__(self, tasks: Tasks, objects: CountedStore) -> None:
        self._tasks = tasks
        self._store = CompletedCheckpointStore(objects, RETAINED)
        self.attempt = self._store.begin_attempt("benchmark", 0)
        everybody = tuple(tasks.subtasks)
        plan = CheckpointPlan(everybody[: tasks.parallelism], everybody, everybody[-tasks.parallelism :])
        config = CoordinatorConfig(num_retained=RETAINED)
        self._coordinator = CheckpointCoordinator("job", self.attempt.token, plan, config)
        self._coordinator.handle(JobStatusChanged(0, running=True))

    def trigger(self) -> int:
        self._coordinator.handle(TriggerRequested(1, forced=True))
        checkpoint_id = self._store.assign_checkpoint_id(self.attempt)
        instructions = self._coordinator.handle(CheckpointIdAssigned(1, checkpoint_id))
        assert isinstance(instructions[-1], EmitBarriers)
        return checkpoint_id

    def complete(self, checkpoint_id: int, received: list[tuple[str, bytes]]) -> CheckpointMetadata:
        """Does everything from the first acknowledgement to the deletion of what is not needed any more."""
        token, instructions = self.attempt.token, []
        for uid, data in received:
            state = SubtaskState.from_json(json.loads(data))
            message = AcknowledgeCheckpoint("job", checkpoint_id, token, uid, state.index, state)
            instructions = self._coordinator.handle(Acknowledge(2, message))
        (write,) = instructions
        assert isinstance(write, WriteMetadata)
        written = self._metadata(write)
        self._store.write_metadata(self.attempt, written)
        assert self._coordinator.handle(MetadataWritten(3, checkpoint_id)) == [ReplaceHead(checkpoint_id)]
        self._store.complete(self.attempt, written)
        self._coordinator.handle(HeadReplaced(4, checkpoint_id))
        self._coordinator.handle(CommitFinished(5, checkpoint_id))
        self._store.subsume(self.attempt, [])
        return written

    def _metadata(self, write: WriteMetadata) -> CheckpointMetadata:
        width, limit = self._tasks.parallelism, self._tasks.max_parallelism
        return CheckpointMetadata(
            job_id="job",
            checkpoint_id=write.checkpoint_id,
            kind=CheckpointKind.CHECKPOINT,
            parent_id=None,
            timestamp_ms=write.trigger_ms,
            partition=None,
            fencing_token=self.attempt.token,
            graph_fingerprint="f" * 64,
            end_of_input=False,
            operators=tuple(
                OperatorState(uid, uid, width, limit, subtasks=subtasks) for uid, subtasks in write.states.items()
            ),
            properties={},
        )


def measure(subtasks: int, gigabytes: int) -> dict[str, float]:
    """Takes ``ROUNDS`` checkpoints and returns what one costs, and what follows from the last one."""
    store = CountedStore()
    objects = store.child("job")
    tasks = Tasks(subtasks, gigabytes * 10**9, objects)
    master = Master(tasks, objects)
    completing: list[float] = []
    requests, sent = [], []
    for _ in range(ROUNDS):
        checkpoint_id = master.trigger()
        received = tasks.acknowledge(master.attempt.token, checkpoint_id)
        before, bytes_before = store.requests.copy(), store.sent.copy()
        gc.collect()
        started = time.process_time()
        written = master.complete(checkpoint_id, received)
        completing.append(time.process_time() - started)
        requests.append(store.requests - before)
        sent.append(store.sent - bytes_before)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result: dict[str, float] = {
        "checkpoint_cpu": statistics.median(completing),
        "peak_memory": peak,
        "messages": float(2 * subtasks),
        "metadata_bytes": len(store.objects[f"job/chk-{checkpoint_id}/{METADATA_NAME}"]),
        "runs": sum(len(t.runs) for o in written.operators for s in o.subtasks if s.keyed for t in s.keyed.tables),
        "requests_of_master": statistics.mean(each.total() for each in requests),
        "requests_of_tasks": store.requests["put by tasks"] / ROUNDS,
    }
    for name, width in (("restore", tasks.parallelism), ("rescale", tasks.parallelism * 9 // 10)):
        started = time.process_time()
        found = CompletedCheckpointStore(objects).latest()
        assert found is not None
        assign(found, [RestoreTarget(o.uid, width, o.max_parallelism) for o in found.operators])
        result[f"{name}_cpu"] = time.process_time() - started
    started = time.process_time()
    sweep(objects, timedelta(0), now=datetime.now(timezone.utc))
    result["sweep_cpu"] = time.process_time() - started
    # A day with a checkpoint a minute. What tasks delete and read costs next to nothing.
    master_price = sum(PRICES[kind] * count for each in requests for kind, count in each.items()) / len(requests)
    result["price_per_day"] = 1440 * (master_price + result["requests_of_tasks"] * PRICES["put"])
    return result


def run(peers: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yields what a checkpoint costs at each size, and how that grows from 1,000 subtasks to 10,000."""
    units = {"cpu": "s", "memory": "bytes", "bytes": "bytes", "day": "USD"}
    found: dict[tuple[int, int], dict[str, float]] = {}
    for subtasks, gigabytes in SIZES:
        code = f"import json; from benchmarks.scale import measure; print(json.dumps(measure({subtasks}, {gigabytes})))"
        root = Path(__file__).parents[1]
        done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
        found[subtasks, gigabytes] = result = json.loads(done.stdout)
        settings = {"subtasks": subtasks, "state": f"{gigabytes} GB", "checkpoints": ROUNDS, "interval": "60 s"}
        for metric, value in result.items():
            bar = "<= 5" if metric == "checkpoint_cpu" else ""
            yield line(metric, value, units.get(metric.rpartition("_")[2], "count"), bar=bar, settings=settings)
    small, large = found[1_000, 100], found[10_000, 1_000]
    for metric in ("checkpoint_cpu", "metadata_bytes", "restore_cpu", "rescale_cpu", "sweep_cpu", "requests_of_master"):
        yield line(
            f"{metric}_growth", large[metric] / small[metric], "ratio", bar="<= 15", settings={"subtasks": "x 10"}
        )
