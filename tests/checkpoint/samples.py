"""Small pieces of state for the checkpoint tests."""

from __future__ import annotations

import hashlib

from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from dagster_flinkpy.state.handles import DistributionMode, KeyedSnapshot, OperatorStateHandle, RunHandle, TableSnapshot

MAX_PARALLELISM = 8


def content(name: str) -> bytes:
    return f"content of {name}".encode()


def run(name: str, key_groups: KeyGroupRange) -> RunHandle:
    """Returns a run with two rows in each key group."""
    data = content(name)
    digest = hashlib.sha256(data).hexdigest()
    return RunHandle(
        path=f"shared/{digest}.parquet",
        sha256=digest,
        bytes=len(data),
        rows=2 * key_groups.number_of_key_groups,
        key_groups=key_groups,
        rows_per_key_group=(key_groups.start, *[2] * key_groups.number_of_key_groups),
        footer_bytes=4,
        footer_sha256=hashlib.sha256(data[-4:]).hexdigest(),
    )


def keyed(*names: str, parallelism: int = 2, index: int = 0, max_parallelism: int = MAX_PARALLELISM) -> KeyedSnapshot:
    """Returns a snapshot with one table, whose runs have these names."""
    key_groups = compute_key_group_range_for_operator_index(max_parallelism, parallelism, index)
    runs = tuple(run(name, key_groups) for name in names)
    table = TableSnapshot("last", "VALUE", {"type": "STRING"}, None, None, {"type": "LONG"}, runs)
    return KeyedSnapshot(key_groups, (table,))


def operator(uid: str = "count", *, parallelism: int = 2, prefix: str = "") -> OperatorState:
    """Returns a keyed operator with one run per subtask, named ``{prefix}{uid}-{index}``."""
    return OperatorState(
        uid=uid,
        name=uid.title(),
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        subtasks=tuple(
            SubtaskState(
                index,
                keyed=keyed(f"{prefix}{uid}-{index}", parallelism=parallelism, index=index),
                watermark=1000 + index,
                metrics={"records_in": 5},
            )
            for index in range(parallelism)
        ),
    )


def source(uid: str = "flights", *, parallelism: int = 2) -> OperatorState:
    return OperatorState(
        uid=uid,
        name="Flights",
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        coordinator_state={"next": 3},
        subtasks=tuple(
            SubtaskState(
                index,
                splits=({"split_id": f"day-{index}", "offset": 7},),
                operator_state=(OperatorStateHandle("seen", DistributionMode.SPLIT_DISTRIBUTE, (index, index + 10)),),
            )
            for index in range(parallelism)
        ),
    )


def metadata(
    checkpoint_id: int = 1,
    *operators: OperatorState,
    token: int = 1,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    parent_id: int | None = None,
) -> CheckpointMetadata:
    return CheckpointMetadata(
        job_id="flights",
        checkpoint_id=checkpoint_id,
        kind=kind,
        parent_id=parent_id,
        timestamp_ms=1_700_000_000_000 + checkpoint_id,
        partition="2013-02-01",
        fencing_token=token,
        graph_fingerprint="f" * 64,
        end_of_input=False,
        operators=operators or (source(), operator()),
        properties={"note": "a test"},
    )
