"""State of ``Types.BIG_DEC()`` that was stored as decimal128(38, 18) is restored. The fixture stays for ever."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.decimals_v1 import FIXTURES, program, run_on
from tests.runtime.harness import HarnessAttempt, collected


def plain(value: Any) -> Any:
    """The value with decimals of text without zeros: new ones keep their scale, the stored ones had lost theirs."""
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    try:
        return str(Decimal(value).normalize()) if isinstance(value, str) else value
    except InvalidOperation:
        return value


def counted(rows: list[Any]) -> Counter[str]:
    return Counter(json.dumps(plain(row)) for row in rows)


EXPECTED = counted(json.loads((FIXTURES / "expected.json").read_text()))


@pytest.mark.parametrize("parallelism", [2, 1, 3])
@pytest.mark.parametrize("epochs", [1, 100])
def test_decimals_of_before_are_restored(tmp_path: Path, parallelism: int, epochs: int) -> None:
    savepoint = shutil.copytree(FIXTURES / "savepoint", tmp_path / "savepoint")
    rows: list[Any] = []
    with HarnessAttempt(program(parallelism), tmp_path / "jobs", restore_from=str(savepoint)) as attempt:
        attempt.commit_restored()
        if epochs == 1:
            attempt.run_epoch()
            rows += map(json.loads, collected(attempt.graph, attempt.collected))
        else:
            rows += run_on(attempt)
    if epochs == 1:  # now some of the state is stored anew
        with HarnessAttempt(program(parallelism), tmp_path / "jobs", parallelism=4 - parallelism) as attempt:
            rows += run_on(attempt)
    assert counted(rows) == EXPECTED
