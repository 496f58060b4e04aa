"""A program that has changed goes on with the state of the operators that kept their uid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.datastream import DataStream
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.errors import RestoreError
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, environment, events

RECORDS = [("a", 1, 1), ("b", 2, 2), ("a", 3, 3), ("a", 4, 4), ("b", 5, 5), ("a", 6, 6)]


def program(*uids: str) -> JobGraph:
    """An operator that counts per key for each uid, in this order; rows say which."""
    stream = events(environment(2), RECORDS, per_epoch=3)
    counts = [counted(stream, uid) for uid in uids]
    return collect_graph(counts[0].union(*counts[1:]) if len(counts) > 1 else counts[0])


def counted(stream: DataStream, uid: str) -> DataStream:
    rows = stream.map(lambda v: v, EVENT).key_by("key").process(CountPerKey(), COUNTED).uid(uid)
    return rows.map(lambda row, uid=uid: (f"{uid}/{row[0]}", row[1], row[2]), COUNTED)


def run(graph: JobGraph, folder: Path, **options: Any) -> dict[str, int]:
    """One epoch; the last count of each key."""
    with HarnessAttempt(graph, folder, **options) as attempt:
        attempt.run_epoch()
        rows = collected(attempt.graph, attempt.collected)
    return {name: max(count for other, count, _ in rows if other == name) for name, _, _ in rows}


def test_operators_may_be_reordered_and_added(tmp_path: Path) -> None:
    assert run(program("one", "two"), tmp_path) == {"one/a": 2, "one/b": 1, "two/a": 2, "two/b": 1}
    again = run(program("new", "two", "one"), tmp_path)
    assert again == {"new/a": 2, "new/b": 1, "two/a": 4, "two/b": 2, "one/a": 4, "one/b": 2}


@pytest.mark.parametrize("parallelism", [None, 1, 3])
def test_operators_may_be_removed_if_their_state_may_be_lost(tmp_path: Path, parallelism: int | None) -> None:
    run(program("one", "two"), tmp_path)
    with (
        pytest.raises(RestoreError, match=r"operator 'one'.*allow_non_restored_state"),
        HarnessAttempt(program("two"), tmp_path),
    ):
        pass
    options = {"allow_non_restored_state": True, "parallelism": parallelism}
    assert run(program("two"), tmp_path, **options) == {"two/a": 4, "two/b": 2}
