"""A sink that a program no longer has: what it had to commit is committed, or the program is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.offline import release_leadership
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.orchestration.program import plan_restore
from dagster_flinkpy.orchestration.sensors.waiting_input import WaitingInput
from dagster_flinkpy.orchestration.upgrade import switch_program
from dagster_flinkpy.runtime.master.commits.committers import Committers
from tests.checkpoint.interruptions import Died
from tests.orchestration.recomputed import (
    DAY,
    PER_EPOCH,
    RECORDS,
    ROW,
    SPARK,
    Numbers,
    Program,
    Totals,
    files,
    job_of,
    latest,
    run,
    table,
)
from tests.runtime.programs import environment, events

pytestmark = pytest.mark.usefixtures("in_process")


def program(folder: Path, *sinks: str) -> Program:
    def build() -> StreamExecutionEnvironment:
        env = environment(2)
        read = events(env, RECORDS, per_epoch=PER_EPOCH).key_by("key").process(Numbers(), ROW).uid("numbers")
        totals = read.blocking(DAY).key_by("key").process(Totals(), ROW).uid("totals")
        for sink in sinks:
            totals.sink_to(ParquetSink(str(folder / sink))).uid(sink)
        return env

    return build


@pytest.fixture
def uncommitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job whose run has died between its second checkpoint and the commit."""

    def commit(self: Committers, metadata: Any) -> int:
        raise Died

    run(program(tmp_path, "table", "other"), tmp_path, 1)
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Committers, "commit", commit)
        run(program(tmp_path, "table", "other"), tmp_path, 1)
    release_leadership(job_of(tmp_path), owner="test", now_ms=current_millis())
    return tmp_path


@pytest.mark.parametrize("how", ["run", "switch", "recompute"])
def test_a_sink_can_be_removed_once_everything_is_committed(tmp_path: Path, how: str) -> None:
    run(program(tmp_path, "table", "other"), tmp_path, 2)
    job, without = job_of(tmp_path), program(tmp_path, "table")
    assert any(each.committables for o in latest(job).operators for each in o.subtasks)
    plan = plan_restore(without, open_checkpoint(job))
    assert plan.problem is None
    assert "has input" in str(WaitingInput(without().get_job_graph().split()).find(job, current_millis()))
    assert [(each.uid, each.state.value) for each in plan.evolution.changes] == [("other", "none")]
    if how != "run":
        switch_program(without, job, spark=SPARK, recompute=["totals"] if how == "recompute" else [])
    before = table(tmp_path, "other")
    run(without, tmp_path)
    assert len(table(tmp_path)[0]) == len(RECORDS)
    assert table(tmp_path, "other") == before


@pytest.mark.parametrize("recompute", [False, True])
def test_a_sink_with_something_to_commit_is_not_removed(uncommitted: Path, recompute: bool) -> None:
    job, without = job_of(uncommitted), program(uncommitted, "table")
    committed = len(table(uncommitted, "other")[0])
    for _ in range(2):  # the first try has committed what the other sink had
        plan = plan_restore(without, open_checkpoint(job))
        assert "not known to be committed" in str(plan.problem)
        with pytest.raises(RestoreError, match="not known to be committed"):
            switch_program(without, job, spark=SPARK, recompute=["totals"] if recompute else [])
        with pytest.raises(RestoreError, match="not known to be committed"):
            run(without, uncommitted, 1)
    assert len(table(uncommitted, "other")[0]) == committed == PER_EPOCH
    run(program(uncommitted, "table", "other"), uncommitted, 1)
    switch_program(without, job, spark=SPARK)
    run(without, uncommitted)
    assert len(table(uncommitted)[0]) == len(RECORDS)
    assert len(table(uncommitted, "other")[0]) == 3 * PER_EPOCH


def test_what_a_sink_had_to_commit_is_not_lost_to_another_operator_with_its_uid(uncommitted: Path) -> None:
    def build() -> StreamExecutionEnvironment:
        env = program(uncommitted, "table")()
        events(env, RECORDS, per_epoch=PER_EPOCH, uid="others").print().uid("other")
        return env

    plan = plan_restore(build, open_checkpoint(job_of(uncommitted)))
    assert "not known to be committed" in str(plan.problem)
    with pytest.raises(RestoreError, match="not known to be committed"):
        run(build, uncommitted, 1)
    run(program(uncommitted, "table", "other"), uncommitted, 1)
    run(build, uncommitted, 1)
    assert len(table(uncommitted, "other")[0]) == 3 * PER_EPOCH


def test_what_a_sink_had_to_commit_is_not_lost_by_a_restore_without_it(uncommitted: Path) -> None:
    without = program(uncommitted, "table")
    before = latest(job_of(uncommitted))
    with pytest.raises(RestoreError, match="sink 'other' has written up to checkpoint 2 is not known to be committed"):
        run(without, uncommitted, 1, restore_from="chk-2")
    assert latest(job_of(uncommitted)) == before
    run(without, uncommitted, restore_from="chk-2", allow_non_restored_state=["other"])
    assert len(table(uncommitted)[0]) == len(RECORDS)
    assert len(table(uncommitted, "other")[0]) == PER_EPOCH


def test_what_a_sink_had_to_commit_is_not_lost_by_a_start_from_empty_state_without_it(uncommitted: Path) -> None:
    without = program(uncommitted, "table")
    before = latest(job_of(uncommitted))
    with pytest.raises(RestoreError, match="sink 'other' has written up to checkpoint 2 is not known to be committed"):
        run(without, uncommitted, 1, start_empty=True)
    assert latest(job_of(uncommitted)) == before
    run(program(uncommitted, "table", "other"), uncommitted, 0)
    run(without, uncommitted, 1, start_empty=True)
    assert len(table(uncommitted, "other")[0]) == 2 * PER_EPOCH


def test_what_a_removed_sink_had_to_commit_is_given_up_by_a_start_from_empty_state_that_may(uncommitted: Path) -> None:
    run(program(uncommitted, "table"), uncommitted, 1, start_empty=True, allow_non_restored_state=["other"])
    assert len(table(uncommitted, "other")[0]) == PER_EPOCH


def test_what_a_removed_sink_had_to_commit_is_given_up_if_the_run_may(uncommitted: Path) -> None:
    run(program(uncommitted, "table"), uncommitted, allow_non_restored_state=["other"])
    assert len(table(uncommitted)[0]) == len(RECORDS)
    assert len(table(uncommitted, "other")[0]) == PER_EPOCH
    assert files(uncommitted, "other")
