"""What a plan and a switch know of operators whose code has changed since a checkpoint."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.evolution import evolution_since
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.program import changed_operators, plan_restore
from dagster_flinkpy.orchestration.upgrade import prove_upgrade, roll_back, switch_program
from tests.orchestration.recomputed import (
    DAY,
    PER_EPOCH,
    RECORDS,
    ROW,
    SPARK,
    Backwards,
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
from tests.runtime.programs import environment, events

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.mark.parametrize("changed", [Totals(7), Texts(7), Backwards()], ids=["fits", "does not fit", "other states"])
def test_the_plan_says_what_has_changed_and_from_what_it_can_be_recomputed(tmp_path: Path, changed: Totals) -> None:
    of = partial(program, tmp_path)
    run(of(), tmp_path, 3)
    job, new = job_of(tmp_path), of(changed)
    planned = plan_restore(new, open_checkpoint(job))
    fits = type(changed) is not Texts
    assert {each.uid: each.state.value for each in planned.evolution.changes} == {
        "totals": "kept" if fits else "does not fit"
    }
    could = "a switch with recompute_changed would not keep that state:" if fits else "a switch could recompute it:"
    assert planned.of_recomputation[:2] == [could, "recomputed: 'totals', 'table'"]
    assert "read again: what the blocking edges after 'numbers' keep" in planned.of_recomputation[2]
    asked = plan_restore(new, open_checkpoint(job), recompute_changed=True)
    assert (asked.problem, asked.recomputation) == (None, planned.proposed)
    for _ in range(2):  # the first one may have died
        switch_program(new, job, spark=SPARK, recompute_changed=True)
    run(new, tmp_path)
    assert table(tmp_path) == expected(changed.times)
    assert table(tmp_path, "kept") == expected(10)


def test_a_plan_leaves_no_thread_behind(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 1)
    stored = open_checkpoint(job_of(tmp_path))
    before = {thread.name for thread in threading.enumerate()}
    for _ in range(3):
        assert plan_restore(program(tmp_path, Totals(7)), stored, recompute=["totals"]).problem is None
    for thread in threading.enumerate():
        if thread.name == "flinkpy-watched":
            thread.join(10)
    assert {thread.name for thread in threading.enumerate()} <= before - {"flinkpy-watched"}


def filtered(folder: Path, *steps: str) -> Program:
    """Returns a program that takes steps between a blocking edge and the operator that adds up."""

    def build() -> StreamExecutionEnvironment:
        env = environment(1)
        read = events(env, RECORDS, per_epoch=PER_EPOCH).key_by("key").process(Numbers(), ROW).uid("numbers")
        stream = read.blocking(DAY).filter(lambda row: True).uid("all")
        for step in steps:
            if step == "negated":
                stream = stream.map(lambda row: (row.key, row.count, -row.total), ROW)
            elif step == "doubled":
                stream = stream.map(lambda row: (row.key, row.count, 2 * row.total), ROW)
            else:
                stream = stream.map(lambda row: (row.key, row.count, 3 * row.total), ROW).uid(step)
        totals = stream.key_by("key").process(Totals(), ROW).uid("totals")
        totals.sink_to(ParquetSink(str(folder / "table"))).uid("table")
        return env

    return build


@pytest.mark.parametrize(
    ("before", "now", "told", "times"),
    [
        (["doubled"], ["negated"], "input: the code or the settings of map of all changed", -1),
        ([], ["doubled"], "input was all, is now map of all", 2),
        (["tripled"], [], "input was tripled, is now all", 1),
        ([], ["tripled"], "input was all, is now tripled", 3),
    ],
)
def test_an_operator_that_reads_something_else_has_changed(
    tmp_path: Path, before: list[str], now: list[str], told: str, times: int
) -> None:
    run(filtered(tmp_path, *before), tmp_path, 2)
    new, job = filtered(tmp_path, *now), job_of(tmp_path)
    [totals] = [each for each in plan_restore(new, open_checkpoint(job)).evolution.changes if each.uid == "totals"]
    assert totals.details == (told,)
    switch_program(new, job, spark=SPARK, recompute_changed=True)
    run(new, tmp_path)
    assert table(tmp_path) == expected(times)


def test_a_blocking_edge_more_or_less_is_no_change(tmp_path: Path) -> None:
    of = partial(program, tmp_path)
    run(of(), tmp_path, 2)
    metadata = latest(job_of(tmp_path))

    def build() -> StreamExecutionEnvironment:
        env = environment(2)
        read = events(env, RECORDS, per_epoch=PER_EPOCH).key_by("key").process(Numbers(), ROW).uid("numbers")
        totals = read.key_by("key").process(Totals(), ROW).uid("totals").blocking()
        totals.sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
        others = read.key_by("key").process(Totals(10), ROW).uid("others")
        others.sink_to(ParquetSink(str(tmp_path / "kept"))).uid("kept")
        return env

    found = evolution_since(metadata, build().get_job_graph().split())
    own = {"numbers", "totals", "table", "others", "kept"}
    assert not own & {each.uid for each in found.changes}


def test_rows_up_to_a_checkpoint_stay_also_if_the_switch_is_repeated(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 3)
    new, job = program(tmp_path, Totals(7)), job_of(tmp_path)
    for _ in range(2):
        switch_program(new, job, spark=SPARK, recompute_changed=True, since="chk-2")
    run(new, tmp_path)
    counts = [count for _, count in expected(epochs=2)[0] + expected(first=2)[0]]
    assert sorted(count for _, count in table(tmp_path)[0]) == sorted(counts)
    asked: dict[str, Any] = {"since": "chk-2", "spark": SPARK}
    for refused in (partial(switch_program, new, job), partial(prove_upgrade, new, new, job)):
        with pytest.raises(ConfigurationError, match="name them with recompute"):
            refused(**asked)


def test_it_is_refused_if_nothing_has_changed_or_if_that_is_unknown(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 2)
    job = job_of(tmp_path)
    before = latest(job)
    with pytest.raises(ConfigurationError, match="no operator has changed since checkpoint 2"):
        switch_program(program(tmp_path), job, spark=SPARK, recompute_changed=True)
    assert latest(job) == before
    stored = open_checkpoint(job)
    assert stored.metadata == before

    def described(change: Any) -> CheckpointMetadata:
        programs = (replace(each, program=change(each.program)) for each in before.operators)
        return replace(before, operators=tuple(programs))

    new = program(tmp_path, Totals(7))().get_job_graph().split()
    for unknown, unlike in (
        ("events', 'numbers', 'totals', 'table', 'others', 'kept", described(lambda each: None)),
        ("totals", described(lambda each: replace(each, python="3.1"))),
        ("numbers', 'totals', 'others", described(lambda p: replace(p, settings={**p.settings, "function": "?"}))),
        (
            "numbers', 'table', 'others', 'kept",
            described(lambda p: replace(p, settings={k: v for k, v in p.settings.items() if k != "input"})),
        ),
    ):
        with pytest.raises(ConfigurationError, match=f"it is unknown whether '{unknown}' changed"):
            changed_operators(new, replace(stored, metadata=unlike))
    assert changed_operators(new, stored) == ["totals"]


@pytest.mark.system
@pytest.mark.short
@pytest.mark.parametrize("read", [0, 1, 2])
@pytest.mark.parametrize("from_sources", [False, True])
def test_a_roll_back_goes_one_version_back_also_while_a_recomputation_is_pending(
    tmp_path: Path, read: int, from_sources: bool
) -> None:
    def of(times: int) -> Program:
        return program(tmp_path, Totals(times), retain=None if from_sources else DAY)

    run(of(1), tmp_path, 2)
    job = job_of(tmp_path)
    switch_program(of(7), job, spark=SPARK, recompute=["numbers" if from_sources else "totals"])
    switch_program(of(9), job, spark=SPARK)
    run(of(9), tmp_path, read)
    roll_back(of(7), job, spark=SPARK)
    run(of(7), tmp_path)
    counts, totals = table(tmp_path)
    assert (counts, totals) == expected(7)
    assert table(tmp_path, "kept") == expected(10)


@pytest.mark.system
def test_a_roll_back_of_a_recomputation_that_has_not_begun_keeps_all_rows(tmp_path: Path) -> None:
    for uid, retain in (("totals", DAY), ("numbers", None)):
        folder = tmp_path / uid
        run(program(folder, retain=retain), folder, 2)
        switch_program(program(folder, Totals(7), retain=retain), job_of(folder), spark=SPARK, recompute=[uid])
        roll_back(program(folder, retain=retain), job_of(folder), spark=SPARK)
        run(program(folder, retain=retain), folder)
        assert table(folder) == expected()
        assert table(folder, "kept") == expected(10)
