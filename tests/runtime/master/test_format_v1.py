"""Every later release restores what the first release wrote. These tests and their fixtures stay forever."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.format_v1 import EPOCHS_BEFORE, FIXTURES, program, run_on
from tests.runtime.harness import HarnessAttempt


def counted(rows: list[list[Any]]) -> tuple[Counter[str], set[str]]:
    """Returns how often each row was emitted, and the set of rows that every subtask emits."""
    lines = [(json.dumps(row), row[0] == "union") for row in rows]
    return Counter(line for line, union in lines if not union), {line for line, union in lines if union}


EXPECTED = counted(json.loads((FIXTURES / "expected.json").read_text()))


def test_expected_has_all_kinds_of_state() -> None:
    assert {json.loads(line)[0] for line in EXPECTED[0]} == {"element", "timer", "kept", "rated"}
    assert EXPECTED[1]


@pytest.mark.parametrize("parallelism", [None, 1, 3])
def test_a_job_goes_on_from_its_checkpoint(tmp_path: Path, parallelism: int | None) -> None:
    shutil.copytree(FIXTURES / "checkpoint", tmp_path / "jobs")
    with HarnessAttempt(program(2), tmp_path / "jobs", parallelism=parallelism) as attempt:
        assert attempt.restored is not None
        assert attempt.restored.checkpoint_id == EPOCHS_BEFORE
        rows = run_on(attempt)
    assert counted(rows) == EXPECTED


@pytest.mark.parametrize("parallelism", [2, 1, 3])
def test_a_savepoint_is_restored(tmp_path: Path, parallelism: int) -> None:
    savepoint = shutil.copytree(FIXTURES / "savepoint", tmp_path / "savepoint")
    with HarnessAttempt(program(parallelism), tmp_path / "jobs", restore_from=str(savepoint)) as attempt:
        attempt.commit_restored()
        rows = run_on(attempt)
    assert counted(rows) == EXPECTED
