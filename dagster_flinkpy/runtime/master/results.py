"""The results of a Spark job: acknowledgements, failures, collected records."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.errors import CheckpointError, FlinkPyError
from dagster_flinkpy.runtime.failure import error_from_json
from dagster_flinkpy.runtime.master.failover import cause_rank
from dagster_flinkpy.runtime.shuffle.wire import PRINTED, Kind, WireRow
from dagster_flinkpy.spark.user_logs import LogEntry, UserLogs

__all__ = ["EpochResults", "TaskFailure"]


@dataclass(frozen=True)
class TaskFailure:
    """An error, and the subtask that raised it."""

    task: Subtask
    error: FlinkPyError


@dataclass
class EpochResults:
    """Everything that the tasks of an epoch sent to the driver."""

    states: dict[Subtask, SubtaskState] = field(default_factory=dict)
    """The acknowledged state, by subtask."""
    declined: TaskFailure | None = None
    """Why a part of that state is not in the store; None if all is there."""
    failures: list[TaskFailure] = field(default_factory=list)
    collected: dict[str, list[pa.Array]] = field(default_factory=dict)
    """Columns of records, by uid of the collect operator."""
    logs: list[LogEntry] = field(default_factory=list)
    """What user functions logged and printed, task by task."""
    missing_logs: Counter[int] = field(default_factory=Counter)
    """How many entries are only in Spark's log, by log level."""
    printed: list[str] = field(default_factory=list)
    """Lines of print operators."""
    marked_ms: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """When sources sent the latency markers that reached the end of a stream, by source."""
    _sent: dict[str, str] = field(default_factory=dict)
    _consumed: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    @staticmethod
    def of(rows: Iterable[WireRow], checkpoint_id: int) -> EpochResults:
        """Decodes the rows for the driver. Acknowledgements of other checkpoints do not count."""
        results = EpochResults()
        for row in sorted(rows, key=lambda row: (row.channel, row.seq)):
            if row.kind is Kind.ACK:
                if (ack := json.loads(row.payload.to_pybytes()))["checkpoint_id"] == checkpoint_id:
                    results._acknowledge(ack)
            elif row.kind is Kind.FAILURE:
                raw = row.payload.to_pybytes()
                where = json.loads(raw)
                results.failures.append(TaskFailure(Subtask(where["operator"], where["subtask"]), error_from_json(raw)))
            elif row.kind is Kind.LOG:
                entries, missing = UserLogs.parse(row.payload.to_pybytes())
                results.logs += entries
                results.missing_logs.update(missing)
            elif row.kind is Kind.COLLECT:
                with pa.ipc.open_stream(row.payload) as reader:
                    batch = reader.read_next_batch()
                name, _, uid = batch.schema.names[0].partition("/")
                if name == PRINTED:
                    results.printed += batch.column(0).to_pylist()
                else:
                    results.collected.setdefault(uid, []).append(batch.column(0))
        return results

    def _acknowledge(self, ack: dict[str, Any]) -> None:
        state = SubtaskState.from_json(ack["state"])
        name = f"{ack['uid']}/{state.index}"
        task = Subtask(ack["uid"], state.index)
        self.states[task] = state
        if self.declined is None and (declined := ack.get("declined")) is not None:
            self.declined = TaskFailure(task, error_from_json(declined))
        self._sent[name] = ack["digest"]
        self._consumed.append((name, ack["consumed"]))
        for source, marked_ms in ack["marked_ms"].items():
            self.marked_ms[source] += marked_ms

    @property
    def failure(self) -> TaskFailure | None:
        """The failure to report, or None. Errors of tasks come before missing input, which they cause."""
        return min(self.failures, key=lambda f: (cause_rank(f.error), f.task), default=None)

    def check_complete(self, checkpoint_id: int, tasks: Collection[Subtask]) -> None:
        """Checks that all tasks have acknowledged the checkpoint.

        Raises:
            CheckpointError: Acknowledgements are missing. The message names some of the tasks.
        """
        if missing := set(tasks) - self.states.keys():
            names = ", ".join(f"{task.uid}/{task.subtask}" for task in sorted(missing)[:3])
            raise CheckpointError(
                f"the Spark job ended, but {len(missing)} of {len(tasks)} tasks did not acknowledge checkpoint "
                f"{checkpoint_id}: {names}{' and others' if len(missing) > 3 else ''}"
            )

    def check_consistent(self) -> None:
        """Checks that all tasks consumed the acknowledged output of the tasks upstream.

        Spark recomputes a task whose shuffle files are lost. If a user function is not deterministic, the two outputs
        differ, and tasks downstream may have consumed either. Their snapshots are then inconsistent.

        Raises:
            CheckpointError: A task consumed another output. The message names both tasks.
        """
        for consumer, consumed in self._consumed:
            for producer, digest in consumed.items():
                if self._sent.get(producer, digest) != digest:
                    raise CheckpointError(
                        f"task {consumer} consumed an output of task {producer} that differs from the acknowledged "
                        "one: Spark ran that task twice, and a user function in it is not deterministic"
                    )
