"""Counts the driver's work for a checkpoint of many subtasks. Time would depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from benchmarks import coordinator
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME


@contextmanager
def calls() -> Iterator[list[int]]:
    """Counts the function calls in its body, including functions written in C."""
    count = [0]

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            count[0] += 1

    sys.setprofile(note)
    try:
        yield count
    finally:
        sys.setprofile(None)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], coordinator.Driver]:
    def make(subtasks: int) -> coordinator.Driver:
        monkeypatch.setattr(coordinator, "SUBTASKS", subtasks)
        return coordinator.Driver(str(tmp_path / str(subtasks)))

    return make


def completed(driver: coordinator.Driver) -> tuple[int, Any]:
    checkpoint_id = driver.trigger()
    messages = driver.messages(checkpoint_id)
    with calls() as count:
        written = driver.complete(checkpoint_id, messages)
    return count[0], written


def test_work_grows_with_the_number_of_subtasks_and_no_faster(driver: Callable[[int], coordinator.Driver]) -> None:
    few, _ = completed(driver(20))
    many, written = completed(driver(200))
    assert many < 11 * few
    assert many < 200 * coordinator.OPERATORS * 200
    for parallelism in (200, 170):
        with calls() as count:
            coordinator.plan_restore(written, parallelism)
        assert count[0] < 1_200 * coordinator.OPERATORS * 200


def test_metadata_stays_below_300_bytes_per_subtask(driver: Callable[[int], coordinator.Driver]) -> None:
    made = driver(200)
    completed(made)
    assert made.objects.head(f"chk-1/{METADATA_NAME}").size < 300 * coordinator.OPERATORS * 200
