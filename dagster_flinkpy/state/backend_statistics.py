"""The size of a state backend, and what it has done."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["BackendStatistics"]


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
