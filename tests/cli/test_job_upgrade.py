from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dagster_flinkpy.cli import main
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.orchestration import test_recomputation as recomputation
from tests.orchestration.test_upgrade import Totals, expected, program, run, table
from tests.runtime.harness import run_rows

PROGRAMS = """
from pathlib import Path

from tests.orchestration import test_recomputation as recomputation
from tests.orchestration.test_upgrade import Sums, Totals, program, renamed

HERE = Path(__file__).parent
old, wrong, new = program(HERE, Totals()), program(HERE, Totals(wrong=23)), program(HERE, Sums(), renamed)
lost = program(HERE, Sums(), lambda states: states["total"])
"""


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_spark(self: JobAttempt, job: EpochJob) -> list[WireRow]:
        return run_rows(job)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_spark)


def invoke(exit_code: int, *args: object) -> str:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == exit_code, result.output
    return result.stdout


def test_an_upgrade_is_proved_made_and_taken_back(tmp_path: Path) -> None:
    programs, job = tmp_path / "programs_of_upgrade.py", tmp_path / "jobs" / "job"
    programs.write_text(PROGRAMS)
    run(program(tmp_path, Totals()), tmp_path, 3)

    def upgrade(to: str, exit_code: int, *options: object) -> str:
        return invoke(
            exit_code, "job", "upgrade", job, "--from", f"{programs}:old", "--to", f"{programs}:{to}", *options
        )

    assert "same rows: checkpoint 1 and 2 epochs" in upgrade("new", 0)
    shown = upgrade("wrong", 4)
    assert "table, only before: {'key': 'k3', 'count': 6, 'total': 78}" in shown
    facts = json.loads(upgrade("wrong", 4, "--json", "--at", "chk-2"))
    assert (facts["verdict"], facts["tables"][0]["only_after"]) == ("rows differ", 1)
    assert "must return a dict of Arrow tables" in upgrade("lost", 1)
    assert "the new program continues" in invoke(0, "job", "switch", job, "--to", f"{programs}:new")
    assert "the old program continues" in invoke(0, "job", "rollback", job, "--to", f"{programs}:old")
    run(program(tmp_path, Totals()), tmp_path, 3)
    assert table(tmp_path) == expected(6)


RECOMPUTED = """
from pathlib import Path

from tests.orchestration.test_recomputation import Texts, program

new = program(Path(__file__).parent, Texts())
"""


def test_an_operator_whose_state_does_not_fit_is_planned_and_recomputed(tmp_path: Path) -> None:
    programs, job = tmp_path / "programs_of_recomputation.py", tmp_path / "jobs" / "job"
    programs.write_text(RECOMPUTED)
    recomputation.run(recomputation.program(tmp_path), tmp_path, 3)
    plan = ("savepoint", "plan", job, "--program", f"{programs}:new")
    assert "a switch could recompute it:" in invoke(1, *plan)
    planned = invoke(0, *plan, "--recompute", "totals")
    assert "recomputed: 'totals', 'table'" in planned
    assert planned == invoke(0, *plan, "--recompute-changed")
    facts = json.loads(invoke(0, *plan, "--recompute", "totals", "--since", "chk-2", "--json"))
    assert (facts["recomputation"]["after"], facts["recomputation"]["records"]) == (2, 6)
    switch = ("job", "switch", job, "--to", f"{programs}:new")
    assert "the new program continues" in invoke(0, *switch, "--recompute-changed")
    recomputation.run(recomputation.program(tmp_path, recomputation.Texts()), tmp_path)
    assert recomputation.table(tmp_path) == recomputation.expected()
