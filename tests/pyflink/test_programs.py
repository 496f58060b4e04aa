"""Programs written for PyFlink print the same here if only the import prefix is changed; see README.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from types import ModuleType

import pytest

from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.spark.processes import OWNER_PID_VARIABLE
from dagster_flinkpy.spark.server_state import RUNTIME_DIR_VARIABLE, StateFile
from tests.pyflink.generate import EXPECTED, printed, programs
from tests.runtime.harness import run_rows

ON_SPARK = ["files", "log_levels", "objects"]
ONE_BY_ONE = ["window_late"]
"""Programs that need a watermark after each record."""


def source_of(path: Path) -> str:
    return re.sub(r"\b(from|import) pyflink\b", r"\1 dagster_flinkpy", path.read_text())


def run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("__main__")
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(source_of(path), str(path), "exec"), vars(module))


@pytest.mark.parametrize("name", programs())
def test_a_program_prints_what_it_prints_under_pyflink(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def on_harness(self: JobAttempt, job: EpochJob) -> list[WireRow]:
        return run_rows(job)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_harness)
    if name in ONE_BY_ONE:
        monkeypatch.setattr(CollectionSource, "__init__", partialmethod(CollectionSource.__init__, batch_size=1))
    run(programs()[name], monkeypatch)
    assert printed(capsys.readouterr().out) == (EXPECTED / f"{name}.txt").read_text()


@pytest.fixture(scope="module")
def with_a_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables with which programs share a server that does not end with one of them."""
    folder = tmp_path_factory.mktemp("runtime")
    yield {**os.environ, RUNTIME_DIR_VARIABLE: str(folder), OWNER_PID_VARIABLE: str(os.getpid())}
    for state_file in folder.glob("spark-*.json"):
        if (state := StateFile(state_file).read()) is not None:
            state.destroy()


@pytest.mark.spark
@pytest.mark.parametrize("name", ON_SPARK)
def test_so_it_does_on_spark(name: str, tmp_path: Path, with_a_server: dict[str, str]) -> None:
    program = tmp_path / f"{name}.py"
    program.write_text(source_of(programs()[name]))
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=with_a_server, timeout=600)
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == (EXPECTED / f"{name}.txt").read_text()
