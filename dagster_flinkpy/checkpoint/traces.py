"""Finds the remaining objects of a job whose ``HEAD`` is lost.

``HEAD`` is the first object that a job writes. So if other objects exist without it, there was a job, and its ``HEAD``
was lost. Such a job starts from nothing only on request, because its rows would be committed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dagster_flinkpy.checkpoint.counter import COUNTER_KEY, read_counter
from dagster_flinkpy.checkpoint.head import HEAD_KEY, Head, read_head
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata, fetch_metadata
from dagster_flinkpy.errors import CorruptMetadataError, HeadLostError, ObjectNotFoundError
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = [
    "CHECKPOINT_FOLDER",
    "SAVEPOINT_PREFIX",
    "SHARED_FOLDER",
    "STATISTICS_KEY",
    "Traces",
    "find_traces",
    "head_lost",
    "head_of_job",
]

SHARED_FOLDER = "shared/"
"""The folder of a job's state files, below its prefix."""
SAVEPOINT_PREFIX = "savepoint-"
"""Prefix of the names of savepoint folders below the job's prefix."""
STATISTICS_KEY = "statistics"
CHECKPOINT_FOLDER = re.compile(r"chk-(\d{1,18})/")
_WRITTEN = re.compile(r"shared/(\d{1,18})-(\d{1,18})-[0-9a-f]{64}\.parquet")


@dataclass(frozen=True)
class Traces:
    """The objects of a job, except ``HEAD``."""

    found: tuple[str, ...] = ()
    """The objects in words; empty if there never was such a job, or if nothing is left of it."""
    token: int = 0
    """The greatest fencing token that any object names."""
    checkpoint_id: int = 0
    """The greatest checkpoint id that any object names."""

    def __str__(self) -> str:
        return ", ".join(self.found)


def head_of_job(store: ObjectStore) -> Head | None:
    """Returns ``HEAD`` of a job, or None if the job is new.

    Args:
        store: The object store, rooted at the job's prefix.

    Raises:
        HeadLostError: The job has had a ``HEAD``, and it was lost.
        CorruptMetadataError: ``HEAD`` is damaged.
    """
    found = read_head(store)
    if found is not None and not found[0].lost:
        return found[0]
    traces = find_traces(store)
    if found is None and not traces.found:
        return None
    if found is None and (again := read_head(store)) is not None and not again[0].lost:
        return again[0]  # the first attempt of the job began just now
    raise head_lost(store, traces, "is missing" if found is None else "was lost")


def head_lost(store: ObjectStore, traces: Traces, problem: str) -> HeadLostError:
    """Returns the error for a lost ``HEAD``; its message says how to continue.

    Args:
        store: The object store, rooted at the job's prefix.
        traces: The remaining objects.
        problem: What is wrong with ``HEAD``.
    """
    recover = f"'flinkpy checkpoints recover {store.url}' rebuilds HEAD from the newest intact checkpoint."
    return HeadLostError(
        f"{store.url}/{HEAD_KEY} {problem}, so it is unknown which checkpoint is the latest. What remains of the job: "
        f"{str(traces) or 'nothing else'}. Starting from nothing would commit rows again that are already committed. "
        f"{recover if traces.found else 'Put the folder of the job back.'} Or give the run a "
        "savepoint with restore_from, or start_empty to start from empty state and leave everything behind."
    )


def find_traces(store: ObjectStore) -> Traces:
    """Looks for all objects of a job below its prefix. Damaged objects are listed, but their numbers are unknown.

    Args:
        store: The object store, rooted at the job's prefix.
    """
    found: list[str] = []
    tokens, ids = [0], [0]
    for what, token, checkpoint_id in _objects(store):
        found.append(what)
        tokens.append(token)
        ids.append(checkpoint_id)
    return Traces(tuple(found), max(tokens), max(ids))


def _objects(store: ObjectStore) -> Iterator[tuple[str, int, int]]:
    """Yields each object in words, with the greatest token and checkpoint id that it names."""
    yield from _leader(store)
    yield from _counter(store)
    if store.head(STATISTICS_KEY) is not None:
        yield STATISTICS_KEY, 0, 0
    folders = [folder for folder in store.list_folders("chk-") if CHECKPOINT_FOLDER.fullmatch(folder)]
    yield from sorted((_checkpoint(store, folder) for folder in folders), key=lambda found: found[2])
    files = token = checkpoint_id = 0
    for info in store.list(SHARED_FOLDER):
        files += 1
        if name := _WRITTEN.fullmatch(info.key):
            token, checkpoint_id = max(token, int(name[1])), max(checkpoint_id, int(name[2]))
    if files:
        yield f"{files} state files", token, checkpoint_id
    yield from (_checkpoint(store, folder) for folder in store.list_folders(SAVEPOINT_PREFIX))


def _leader(store: ObjectStore) -> Iterator[tuple[str, int, int]]:
    try:
        record = lease.read(store)
    except CorruptMetadataError:
        yield f"a damaged {lease.LEADER_KEY}", 0, 0
        return
    if record is not None:
        committed = "" if record.committed is None else f", committed up to checkpoint {record.committed}"
        yield f"{lease.LEADER_KEY} (token {record.token}{committed})", record.token, record.committed or 0


def _counter(store: ObjectStore) -> Iterator[tuple[str, int, int]]:
    try:
        counter = read_counter(store)
    except CorruptMetadataError:
        yield f"a damaged {COUNTER_KEY}", 0, 0
        return
    if counter is not None:
        yield f"{COUNTER_KEY} (up to {counter[0].last})", counter[0].token, counter[0].last


def _checkpoint(store: ObjectStore, folder: str) -> tuple[str, int, int]:
    """Describes the checkpoint or savepoint in a folder."""
    name, key = folder.rstrip("/"), folder + METADATA_NAME
    number = CHECKPOINT_FOLDER.fullmatch(folder)
    checkpoint_id = int(number[1]) if number else 0
    try:
        metadata = CheckpointMetadata.from_bytes(fetch_metadata(store, key), key)
    except ObjectNotFoundError:
        return f"{name} without its {METADATA_NAME}", 0, checkpoint_id
    except CorruptMetadataError:
        return f"{name} with a damaged {METADATA_NAME}", 0, checkpoint_id
    return name, metadata.fencing_token, max(checkpoint_id, metadata.checkpoint_id)
