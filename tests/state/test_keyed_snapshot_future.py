from __future__ import annotations

import weakref
from concurrent.futures import Future

from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.state.keyed_snapshot_future import KeyedSnapshotFuture, StoredSnapshot


class _Runs:
    pass


def test_a_snapshot_that_is_written_lets_go_of_the_rows_of_the_state() -> None:
    """Live tasks hold it until Python's collector comes, which counts objects and not bytes."""
    runs = _Runs()
    held = weakref.ref(runs)

    def take_over(snapshot: KeyedSnapshot, runs: _Runs = runs) -> StoredSnapshot:
        return StoredSnapshot(snapshot, {}, ())

    written = Future[KeyedSnapshot]()
    future = KeyedSnapshotFuture(written, take_over)
    del runs, take_over
    written.set_result(KeyedSnapshot(KeyGroupRange(0, 1), ()))
    assert held() is not None
    assert future.result() is future.settle().snapshot
    assert held() is None
