"""The size of a state backend, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BackendStatistics"]


@dataclass(frozen=True)
class BackendStatistics:
    """The size of a backend's state, and what the backend has done since it was created."""

    rows: int
    """Rows of all runs, an upper bound for the number of live entries."""
    bytes: int
    """Bytes of all runs in the store."""
    delta_rows: int
    """Rows written, including those written by compaction."""
    delta_bytes: int
    """Bytes written."""
    keys_touched: int
    """Keys looked up. A key that leaves the overlay and is touched again counts twice."""
    cache_hits: int
    """Runs found in the local cache."""
    cache_misses: int
    """Runs read from the store."""
