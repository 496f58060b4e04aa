"""A snapshot of keyed state that is written beside the records that follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass

from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.files.runs import Runs
from dagster_flinkpy.state.handles import KeyedSnapshot, TableId, TableSnapshot

__all__ = ["BackendStatistics", "KeyedSnapshotFuture", "StoredSnapshot", "write_snapshot"]


@dataclass(frozen=True)
class BackendStatistics:
    """The size of a backend's state, and what the backend has done since it was created."""

    rows: int = 0
    """Rows of all runs, an upper bound for the number of live entries."""
    bytes: int = 0
    """Bytes of all runs in the store."""
    delta_rows: int = 0
    """Rows written, including those written by compaction."""
    delta_bytes: int = 0
    """Bytes written."""
    keys_touched: int = 0
    """Keys looked up. A key that leaves the overlay and is touched again counts twice."""
    cache_hits: int = 0
    """Runs found in the local cache."""
    cache_misses: int = 0
    """Runs read from the store."""
    memory: int = 0
    """About how many bytes of state are in memory."""

    def since(self, before: BackendStatistics) -> dict[str, int]:
        """Returns the size, and what has been done since earlier statistics."""
        earlier = {**asdict(before), "rows": 0, "bytes": 0, "memory": 0}
        return {name: value - earlier[name] for name, value in asdict(self).items()}


@dataclass(frozen=True)
class StoredSnapshot:
    """What a task says of a snapshot."""

    snapshot: KeyedSnapshot
    metrics: dict[str, int]
    """The size of the state, and what the backend has done since the previous snapshot."""
    uploads: Sequence[Future[None]]
    """What must be done so that everything that the snapshot describes is in the store."""


def write_snapshot(
    key_groups: KeyGroupRange,
    others: Mapping[TableId, TableSnapshot],
    runs: Mapping[TableId, Runs],
    cleaned: Collection[TableId],
) -> KeyedSnapshot:
    """Writes what was added to runs, and returns the snapshot.

    Args:
        key_groups: The key groups of the snapshot.
        others: Its other tables.
        runs: The runs by table, which are changed.
        cleaned: The tables of which what has expired is dropped.

    Raises:
        StorageError: A run could not be read, or the local cache could not be written.
    """
    tables = {**others}
    for identity, each in runs.items():
        each.settle()
        if identity in cleaned:
            each.drop_expired()
        tables[identity] = each.layout.snapshot(each.handles)
    return KeyedSnapshot(key_groups, tuple(tables[identity] for identity in sorted(tables)))


class KeyedSnapshotFuture:
    """The asynchronous part of a snapshot (Flink: the ``RunnableFuture`` of ``SnapshotStrategyRunner``).

    The thread of the backend uses it.

    Args:
        written: Writes the runs in another thread.
        take_over: Lets the backend go on with what was written; called once.
    """

    def __init__(self, written: Future[KeyedSnapshot], take_over: Callable[[KeyedSnapshot], StoredSnapshot]) -> None:
        self._written = written
        self._take_over: Callable[[KeyedSnapshot], StoredSnapshot] | None = take_over
        self._stored: StoredSnapshot | None = None

    @property
    def waits_for(self) -> Sequence[Future[KeyedSnapshot] | Future[None]]:
        """What must be done before the snapshot counts: first the runs are written, and then uploaded.

        The futures raise a StorageError if a file could not be written.
        """
        if not self._written.done() or self.has_failed:
            return (self._written,)
        return self.settle().uploads

    @property
    def has_failed(self) -> bool:
        """Whether the runs could not be written. Waits until that is known."""
        return self._written.exception() is not None

    def settle(self) -> StoredSnapshot:
        """Waits until the runs are written, and lets the backend go on with them.

        Raises:
            StorageError: They could not be written.
        """
        if self._stored is None:
            assert self._take_over is not None
            self._stored = self._take_over(self._written.result())
            # It holds the runs. A future keeps its callbacks, which know this object: only Python's collector frees
            # them, after hundreds of snapshots.
            self._take_over = None
        return self._stored

    def result(self) -> KeyedSnapshot:
        """Waits until everything is in the store, and returns the snapshot.

        Raises:
            StorageError: A file could not be written.
        """
        stored = self.settle()
        for upload in stored.uploads:
            upload.result()
        return stored.snapshot
