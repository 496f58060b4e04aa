from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import RuntimeExecutionMode
from dagster_flinkpy.errors import UserFunctionError
from tests.runtime.harness import HarnessAttempt, collect_graph, run_job
from tests.runtime.programs import environment, events

RECORDS = [("a", 1, 1), ("b", 2, 2), ("a", 3, 3), ("b", 4, 4)]


def run(stream: Any, folder: Path) -> None:
    with HarnessAttempt(stream.get_execution_environment().get_job_graph(), folder) as attempt:
        while not attempt.finished:
            attempt.run_epoch()


def test_lines_are_printed_epoch_by_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = events(environment(), RECORDS, per_epoch=3)
    stream.map(lambda v: v.value, Types.LONG()).uid("value").print("it").uid("print")
    with HarnessAttempt(stream.get_execution_environment().get_job_graph(), tmp_path) as attempt:
        assert capsys.readouterr().out == ""
        attempt.run_epoch()
        assert capsys.readouterr().out == "it> 1\nit> 2\nit> 3\n"
        attempt.run_epoch()
        assert capsys.readouterr().out == "it> 4\n"


def test_subtasks_are_told_apart_where_there_are_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = events(environment(2), RECORDS)
    stream.partition_custom(lambda key, n: key % n, lambda v: v.value).print().uid("bare")
    stream.map(lambda v: v.key).uid("key").global_().print("one").set_parallelism(1).uid("named")
    run(stream, tmp_path)
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "1> +I[b,2,2]",
        "1> +I[b,4,4]",
        "2> +I[a,1,1]",
        "2> +I[a,3,3]",
        "one> a",
        "one> a",
        "one> b",
        "one> b",
    ]


def test_a_failed_epoch_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = events(environment(), RECORDS)
    stream.print().uid("print")
    stream.map(lambda v: 1 // (4 - v.value)).uid("fails")
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        run(stream, tmp_path)
    assert capsys.readouterr().out == ""


def test_in_batch_mode_a_reduction_comes_once_when_all_epochs_are_read(tmp_path: Path) -> None:
    stream = events(environment(2), RECORDS * 3, per_epoch=5)
    stream.get_execution_environment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    reduced = stream.map(lambda v: (v.key, v.value), Types.TUPLE([Types.STRING(), Types.LONG()])).uid("pairs")
    totals = reduced.key_by(lambda v: v[0]).sum(1).uid("sum")
    assert sorted(run_job(collect_graph(totals), tmp_path, rescale_at={1: 3})) == [("a", 12), ("b", 18)]


def test_a_partitioner_that_names_no_subtask_is_refused(tmp_path: Path) -> None:
    stream = events(environment(2), RECORDS)
    stream.partition_custom(lambda key, n: n, lambda v: v.value).map(lambda v: v).uid("map")
    with pytest.raises(UserFunctionError, match=r"partition_custom .* got 2 for record"):
        run(stream, tmp_path)
