"""A recomputation is tried on forks: both versions recompute, and their rows of all redone epochs are compared."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.forks.fork import list_forks
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import CheckpointStorageResource, build_flink_jobs
from dagster_flinkpy.orchestration.upgrade import UpgradeVerdict, prove_upgrade
from tests.orchestration.recomputed import (
    DAY,
    PER_EPOCH,
    RECORDS,
    ROW,
    SPARK,
    Numbers,
    Program,
    Texts,
    Totals,
    expected,
    job_of,
    latest,
    program,
    run,
    table,
)
from tests.runtime.programs import FolderSink, environment, events

pytestmark = pytest.mark.usefixtures("in_process")
SAME, DIFFERENT, UNKNOWN = UpgradeVerdict.SAME, UpgradeVerdict.DIFFERENT, UpgradeVerdict.UNKNOWN


@pytest.mark.short
@pytest.mark.parametrize("edges", [1, 2])
@pytest.mark.parametrize(("times", "verdict"), [(1, SAME), (7, DIFFERENT)])
def test_rows_of_all_epochs_that_are_redone_are_compared(
    tmp_path: Path, times: int, verdict: UpgradeVerdict, edges: int
) -> None:
    of = partial(program, tmp_path, parallelism=1, edges=edges)
    old, new, job = of(), of(Texts(times)), job_of(tmp_path)
    run(old, tmp_path, 3)
    before, rows = latest(job), table(tmp_path)
    assert prove_upgrade(old, new, job, spark=SPARK).verdict is UpgradeVerdict.REFUSED
    report = prove_upgrade(old, new, job, spark=SPARK, recompute_changed=True)
    assert (report.verdict, report.since, report.problems) == (verdict, 3, ())
    counts = {each.sink: (each.before, each.after) for each in report.tables}
    assert counts == {"table": (4 * PER_EPOCH, 4 * PER_EPOCH), "kept": (PER_EPOCH, PER_EPOCH)}
    [found] = [each for each in report.tables if each.sink == "table"]
    assert found.same is (verdict is SAME)
    assert (latest(job), table(tmp_path), list_forks(job)) == (before, rows, [])


def test_rows_since_a_checkpoint_are_compared(tmp_path: Path) -> None:
    of = partial(program, tmp_path, parallelism=1)
    run(of(), tmp_path, 3)
    options: dict[str, Any] = {"recompute": ["totals"], "since": "chk-2", "spark": SPARK}
    report = prove_upgrade(of(), of(Texts()), job_of(tmp_path), **options)
    assert (report.verdict, report.tables[0].after) == (SAME, 2 * PER_EPOCH)


@pytest.mark.system
@pytest.mark.parametrize(("asked", "epochs"), [(None, 4), (2, 2)])
def test_sources_that_are_read_again_are_read_until_they_are_as_far_as_the_job(
    tmp_path: Path, asked: int | None, epochs: int
) -> None:
    of = partial(program, tmp_path, parallelism=1, retain=None)
    run(of(), tmp_path, 4)
    report = prove_upgrade(
        of(), of(Totals(7)), job_of(tmp_path), spark=SPARK, recompute=["numbers"], recompute_changed=True, epochs=asked
    )
    counts = {each.sink: (each.before, each.after, each.same) for each in report.tables}
    rows = epochs * PER_EPOCH
    assert counts == {"table": (rows, rows, False), "kept": (rows, rows, True)}


@pytest.mark.system
def test_a_sink_that_only_one_version_recomputes_proves_nothing(tmp_path: Path) -> None:
    def pipelined() -> StreamExecutionEnvironment:
        env = environment(1)
        read = events(env, RECORDS, per_epoch=PER_EPOCH).key_by("key").process(Numbers(), ROW).uid("numbers")
        read = read.blocking(DAY).map(lambda row: row, ROW).uid("all")
        for uid, sink in (("totals", "table"), ("others", "kept")):
            totals = read.key_by("key").process(Totals(), ROW).uid(uid)
            totals.sink_to(FolderSink(tmp_path / sink)).uid(sink)
        return env

    new = program(tmp_path, Totals(7))
    run(program(tmp_path), tmp_path, 2)
    report = prove_upgrade(pipelined, new, job_of(tmp_path), spark=SPARK, recompute=["totals"])
    assert report.verdict is UNKNOWN
    assert report.problems == (
        "all rows before sink 'kept' are recomputed by only one of the programs, so they cannot be compared",
    )
    plain: Program = program(tmp_path, retain=None)
    of_old = prove_upgrade(plain, plain, job_of(tmp_path), spark=SPARK, recompute=["totals"])
    assert of_old.verdict is SAME


def test_what_a_switch_would_refuse_is_refused(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 2)
    job, prove = job_of(tmp_path), partial(prove_upgrade, program(tmp_path), spark=SPARK)
    report = prove(program(tmp_path, Totals(7), sink=FolderSink(tmp_path / "folder")), job, recompute=["totals"])
    assert report.verdict is UpgradeVerdict.REFUSED
    assert "nothing before sink 'table' can be recomputed" in str(report.plan.problem)
    with pytest.raises(ConfigurationError, match="no operator has changed since checkpoint 2"):
        prove(program(tmp_path), job, recompute_changed=True)


@pytest.mark.system
def test_an_upgrade_by_rule_recomputes_if_no_row_differs(tmp_path: Path) -> None:
    programs = tmp_path / "programs_to_recompute.py"
    programs.write_text(
        "from pathlib import Path\nfrom tests.orchestration.recomputed import program\n"
        f"before = program(Path({str(tmp_path)!r}), parallelism=1)\n"
    )
    run(program(tmp_path, parallelism=1), tmp_path, 2)
    resources = {"spark": SPARK, "checkpoint_storage": CheckpointStorageResource(url=str(tmp_path / "jobs"))}
    config = {"from_program": f"{programs}:before", "switch_if_same": True, "recompute_changed": True}
    for times in (7, 1):
        new = program(tmp_path, Texts(times), parallelism=1)
        [job] = [each for each in build_flink_jobs(new, name="job") if each.name == "job_upgrade"]
        ops = {"ops": {"prove_upgrade_of_job": {"config": config}}}
        assert job.execute_in_process(ops, resources=resources).success
        assert bool(list_forks(job_of(tmp_path))) is (times == 1)
    run(new, tmp_path)
    assert table(tmp_path) == expected()
