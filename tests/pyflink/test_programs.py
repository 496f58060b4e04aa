"""Programs written for PyFlink print the same here, when only the import prefix is changed; see README.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.exchange import WireRow
from dagster_flinkpy.runtime.job import JobAttempt
from tests.pyflink.generate import EXPECTED, printed, programs
from tests.runtime.harness import run_rows

ON_SPARK = ["basic", "word_count"]


def run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = re.sub(r"\b(from|import) pyflink\b", r"\1 dagster_flinkpy", path.read_text())
    module = ModuleType("__main__")
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(source, str(path), "exec"), vars(module))


@pytest.mark.parametrize("name", programs())
def test_a_program_prints_what_it_prints_under_pyflink(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def on_harness(self: JobAttempt, epoch: Epoch) -> list[WireRow]:
        return run_rows(epoch)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_harness)
    run(programs()[name], monkeypatch)
    assert printed(capsys.readouterr().out) == (EXPECTED / f"{name}.txt").read_text()
