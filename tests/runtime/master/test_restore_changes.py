"""A changed program continues with the state of the operators that kept their uid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.datastream import DataStream
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import RestoreError
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, environment, events

RECORDS = [("a", 1, 1), ("b", 2, 2), ("a", 3, 3), ("a", 4, 4), ("b", 5, 5), ("a", 6, 6)]


def program(*uids: str) -> JobGraph:
    """Returns a program with one counting operator per uid, in this order. Rows name their operator."""
    stream = events(environment(2), RECORDS, per_epoch=3)
    counts = [counted(stream, uid) for uid in uids]
    return collect_graph(counts[0].union(*counts[1:]) if len(counts) > 1 else counts[0])


def counted(stream: DataStream, uid: str) -> DataStream:
    rows = stream.map(lambda v: v, EVENT).key_by("key").process(CountPerKey(), COUNTED).uid(uid)
    return rows.map(lambda row, uid=uid: (f"{uid}/{row[0]}", row[1], row[2]), COUNTED)


def run(graph: JobGraph, folder: Path, **options: Any) -> dict[str, int]:
    """Runs one epoch, and returns the last count of each key."""
    with HarnessAttempt(graph, folder, **options) as attempt:
        attempt.run_epoch()
        rows = collected(attempt.graph, attempt.collected)
    return {name: max(count for other, count, _ in rows if other == name) for name, _, _ in rows}


def test_operators_may_be_reordered_and_added(tmp_path: Path) -> None:
    assert run(program("one", "two"), tmp_path) == {"one/a": 2, "one/b": 1, "two/a": 2, "two/b": 1}
    again = run(program("new", "two", "one"), tmp_path)
    assert again == {"new/a": 2, "new/b": 1, "two/a": 4, "two/b": 2, "one/a": 4, "one/b": 2}


@pytest.mark.parametrize(("parallelism", "allowed"), [(None, True), (1, ["one"]), (3, {"one", "other"})])
def test_operators_may_be_removed_if_their_state_may_be_lost(
    tmp_path: Path, parallelism: int | None, allowed: Any
) -> None:
    run(program("one", "two"), tmp_path)
    with (
        pytest.raises(RestoreError, match=r"operator 'one'.*allow_non_restored_state"),
        HarnessAttempt(program("two"), tmp_path),
    ):
        pass
    with (
        pytest.raises(RestoreError, match=r"operator 'one'.*set allow_non_restored_state to \['one'\]"),
        HarnessAttempt(program("two"), tmp_path, allow_non_restored_state=["two"]),
    ):
        pass
    options = {"allow_non_restored_state": allowed, "parallelism": parallelism}
    assert run(program("two"), tmp_path, **options) == {"two/a": 4, "two/b": 2}


def test_what_has_changed_is_told_once(tmp_path: Path) -> None:
    def said(*uids: str) -> list[str]:
        lines: list[str] = []
        run(program(*uids), tmp_path, on_progress=lines.append, allow_non_restored_state=["one"])
        return [line for line in lines if "operator" in line or "changed" in line]

    assert said("one", "two") == said("two", "one") == []
    assert said("two", "new") == [
        "what changed since checkpoint 2 of job 'job': 1 added, 1 changed, 1 removed",
        "operator 'new' added; starts empty",
        "operator 'collect' changed: input was map of one, map of two, is now map of new, map of two",
        "operator 'one' removed; its state is dropped (8 rows)",
    ]
    assert said("two", "new") == []
