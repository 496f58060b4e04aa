"""The execution graph has Flink's states. The facts are those of its ``ExecutionGraph*Test`` and ``Execution*Test``."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.common import JobStatus
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.operator_specs import OperatorSpec
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.errors import IllegalStateTransitionError, UserFunctionError
from dagster_flinkpy.runtime.master.execution_graph import Execution, ExecutionGraph, ExecutionState

S = ExecutionState
PATHS = {  # a legal way to each state
    S.CREATED: (),
    S.SCHEDULED: (S.SCHEDULED,),
    S.DEPLOYING: (S.SCHEDULED, S.DEPLOYING),
    S.RUNNING: (S.SCHEDULED, S.DEPLOYING, S.RUNNING),
    S.FINISHED: (S.SCHEDULED, S.DEPLOYING, S.RUNNING, S.FINISHED),
    S.CANCELING: (S.SCHEDULED, S.DEPLOYING, S.RUNNING, S.CANCELING),
    S.CANCELED: (S.CANCELED,),
    S.FAILED: (S.FAILED,),
}
LEGAL = {
    S.CREATED: {S.SCHEDULED, S.CANCELED, S.FAILED},
    S.SCHEDULED: {S.DEPLOYING, S.CANCELED, S.FAILED},
    S.DEPLOYING: {S.RUNNING, S.CANCELING, S.FAILED},
    S.RUNNING: {S.FINISHED, S.CANCELING, S.FAILED},
    S.CANCELING: {S.CANCELED},
    S.FINISHED: set(),
    S.CANCELED: set(),
    S.FAILED: set(),
}


def vertex(uid: str, parallelism: int = 2) -> JobVertex:
    return JobVertex(uid, uid, OperatorSpec(), parallelism, 128, False, Types.INT())


def graph(*regions: tuple[str, ...]) -> ExecutionGraph:
    ticks = itertools.count(100, 10)
    return ExecutionGraph([[vertex(uid) for uid in region] for region in regions], lambda: next(ticks))


def running(*regions: tuple[str, ...]) -> ExecutionGraph:
    it = graph(*regions)
    for region in range(len(regions)):
        it.schedule(region)
        it.deploy(region)
        it.switch_to_running(region)
    return it


def states(it: ExecutionGraph, region: int | None = None) -> list[str]:
    return [execution.state.value for execution in it.executions(region)]


def execution_in(state: ExecutionState) -> Execution:
    ticks = itertools.count()
    execution = Execution(Subtask("a", 0), 0, lambda: next(ticks))
    for each in PATHS[state]:
        execution.transition(each)
    return execution


@pytest.mark.parametrize(("before", "after"), list(itertools.product(S, S)))
def test_an_execution_changes_its_state_as_in_flink(before: ExecutionState, after: ExecutionState) -> None:
    execution = execution_in(before)
    if after in LEGAL[before]:
        execution.transition(after)
        assert execution.state is after
        assert list(execution.timestamps)[-1] is after
    else:
        with pytest.raises(IllegalStateTransitionError, match=f"from {before.value} to {after.value}"):
            execution.transition(after)
        assert execution.state is before


@pytest.mark.parametrize(
    ("state", "canceled", "failed", "ended"),
    [
        (S.CREATED, S.CANCELED, S.FAILED, S.CREATED),
        (S.SCHEDULED, S.CANCELED, S.FAILED, S.SCHEDULED),
        (S.DEPLOYING, S.CANCELING, S.FAILED, S.DEPLOYING),
        (S.RUNNING, S.CANCELING, S.FAILED, S.RUNNING),
        (S.CANCELING, S.CANCELING, S.CANCELED, S.CANCELED),
        (S.FINISHED, S.FINISHED, S.FINISHED, S.FINISHED),
        (S.CANCELED, S.CANCELED, S.CANCELED, S.CANCELED),
        (S.FAILED, S.FAILED, S.FAILED, S.FAILED),
    ],
)
def test_what_happens_to_an_execution_that_is_canceled_or_fails(
    state: ExecutionState, canceled: ExecutionState, failed: ExecutionState, ended: ExecutionState
) -> None:
    execution = execution_in(state)
    execution.cancel()
    assert execution.state is canceled
    execution = execution_in(state)
    execution.fail()
    assert execution.state is failed
    execution = execution_in(state)
    execution.ended()
    assert execution.state is ended


def test_the_time_of_each_state_is_known() -> None:
    it = running(("a",))
    (first, _) = it.executions()
    assert list(first.timestamps) == [S.CREATED, S.SCHEDULED, S.DEPLOYING, S.RUNNING]
    assert sorted(first.timestamps.values()) == list(first.timestamps.values())


def test_a_job_runs_once_a_region_is_scheduled_and_its_next_epoch_changes_nothing() -> None:
    it = graph(("a", "b"), ("c",))
    changes: list[JobStatus] = []
    it.add_listener(lambda status: changes.append(status))
    it.schedule(0)
    assert (it.status, states(it, 0), states(it, 1)) == (JobStatus.RUNNING, ["SCHEDULED"] * 4, ["CREATED"] * 2)
    it.deploy(0)
    it.switch_to_running(0)
    before = [execution.timestamps for execution in it.executions(0)]
    it.schedule(0)
    it.deploy(0)
    it.switch_to_running(0)
    assert states(it, 0) == ["RUNNING"] * 4
    assert [execution.timestamps for execution in it.executions(0)] == before
    assert {task.uid for task in it.not_running} == {"c"}
    assert changes == [JobStatus.RUNNING]


def test_a_job_has_finished_when_all_regions_have() -> None:
    it = running(("a",), ("b",))
    it.finish(0)
    assert it.status is JobStatus.RUNNING
    assert not it.not_running, "a checkpoint covers finished tasks, too"
    it.finish(1)
    assert it.status is JobStatus.FINISHED


def test_a_failed_region_restarts_alone() -> None:
    it = running(("a",), ("b",))
    changes: list[JobStatus] = []
    it.add_listener(lambda status: changes.append(status))
    it.fail(1, UserFunctionError("it raised\nand more"), Subtask("b", 1))
    assert states(it) == ["RUNNING", "RUNNING", "CANCELED", "FAILED"]
    it.await_restart([1])
    assert (it.status, it.waiting) == (JobStatus.RESTARTING, {1})
    it.restart([1])
    assert (it.status, it.restarts, it.waiting) == (JobStatus.RUNNING, 1, frozenset())
    assert states(it) == ["RUNNING", "RUNNING", "CREATED", "CREATED"]
    assert [execution.attempt for execution in it.executions()] == [0, 0, 1, 1]
    assert (it.attempt(0), it.attempt(1)) == (0, 1)
    (prior,) = it.regions[1][0].vertices[1].prior
    assert (prior.state, prior.attempt) == (S.FAILED, 0)
    (entry,) = it.failures
    assert (entry.error, entry.message, entry.operator, entry.subtask) == ("UserFunctionError", "it raised", "b", 1)
    assert changes == [JobStatus.RESTARTING, JobStatus.RUNNING]


def test_the_job_restarts_until_the_last_region_has() -> None:
    it = running(("a",), ("b",))
    for region in (0, 1):
        it.fail(region, ValueError("x"))
        it.await_restart([region])
    it.restart([0])
    assert it.status is JobStatus.RESTARTING
    it.restart([1])
    assert it.status is JobStatus.RUNNING


def test_a_region_that_did_not_fail_or_still_runs_cannot_restart() -> None:
    it = running(("a",), ("b",))
    with pytest.raises(IllegalStateTransitionError, match="regions \\[0\\] cannot restart: the job is RUNNING"):
        it.restart([0])
    it.fail(0, ValueError("x"))
    it.await_restart([0, 1])
    with pytest.raises(IllegalStateTransitionError, match="cannot restart: its execution 0 is RUNNING"):
        it.restart([1])


def test_prior_executions_are_bounded() -> None:
    it = running(("a",))
    for _ in range(20):
        it.fail(0, ValueError("x"))
        it.await_restart([0])
        it.restart([0])
    vertex_of_a = it.regions[0][0].vertices[0]
    assert [execution.attempt for execution in vertex_of_a.prior] == list(range(4, 20))
    assert (vertex_of_a.current.attempt, len(it.failures)) == (20, 16)


def test_a_job_that_is_canceled_while_it_restarts_does_not_restart() -> None:
    it = running(("a",))
    it.fail(0, ValueError("x"))
    it.await_restart([0])
    it.cancel_job()
    assert it.status is JobStatus.CANCELED
    with pytest.raises(IllegalStateTransitionError):
        it.restart([0])


def test_canceling_waits_for_running_tasks() -> None:
    it = running(("a",), ("b",))
    it.cancel_job()
    assert (it.status, states(it)) == (JobStatus.CANCELLING, ["CANCELING"] * 4)
    it.ended(0)
    assert it.status is JobStatus.CANCELLING
    it.ended(1)
    assert (it.status, states(it)) == (JobStatus.CANCELED, ["CANCELED"] * 4)


def test_a_job_that_fails_while_it_is_canceled_has_failed() -> None:
    it = running(("a",))
    it.cancel_job()
    it.fail_job(ValueError("x"))
    assert it.status is JobStatus.FAILING
    it.ended(0)
    assert it.status is JobStatus.FAILED


def test_a_job_that_is_canceled_while_it_fails_is_canceled() -> None:
    it = running(("a",))
    it.fail_job(ValueError("x"))
    it.cancel_job()
    assert it.status is JobStatus.CANCELLING
    it.ended(0)
    assert it.status is JobStatus.CANCELED


def test_a_task_that_finishes_while_it_is_canceled_is_canceled() -> None:
    it = running(("a",))
    it.cancel_job()
    it.finish(0)
    assert (states(it), it.status) == (["CANCELED"] * 2, JobStatus.CANCELED)


def test_a_second_failure_of_a_failing_job_changes_nothing() -> None:
    it = running(("a",))
    it.fail_job(ValueError("first"))
    it.fail_job(KeyError("second"))
    assert [entry.message for entry in it.failures] == ["first"]
    it.ended(0)
    it.fail_job(KeyError("third"))
    it.cancel_job()
    it.suspend()
    assert it.status is JobStatus.FAILED


def test_the_error_that_ends_the_job_is_recorded_once() -> None:
    it = running(("a",))
    error = ValueError("x")
    it.fail(0, error, Subtask("a", 0))
    it.fail_job(error, recorded=True)
    assert [(each.region, each.operator, each.subtask) for each in it.failures] == [(0, "a", 0)]
    assert it.status is JobStatus.FAILED


def test_an_attempt_that_ends_suspends_the_job() -> None:
    it = running(("a",), ("b",))
    it.finish(0)
    it.suspend()
    assert (it.status, states(it)) == (JobStatus.SUSPENDED, ["FINISHED"] * 2 + ["CANCELED"] * 2)
    assert it.status.is_terminal_state()
    assert not it.status.is_globally_terminal_state()


@pytest.mark.parametrize(
    ("of_tasks", "of_vertex"),
    [
        ((S.CREATED, S.CREATED), S.CREATED),
        ((S.CREATED, S.SCHEDULED), S.SCHEDULED),
        ((S.SCHEDULED, S.DEPLOYING), S.DEPLOYING),
        ((S.DEPLOYING, S.RUNNING), S.RUNNING),
        ((S.RUNNING, S.FINISHED), S.RUNNING),
        ((S.CREATED, S.FINISHED), S.RUNNING),
        ((S.FINISHED, S.FINISHED), S.FINISHED),
        ((S.RUNNING, S.CANCELED), S.CANCELED),
        ((S.CANCELING, S.CANCELED), S.CANCELING),
        ((S.CANCELING, S.FAILED), S.FAILED),
    ],
)
def test_the_state_of_an_operator(of_tasks: tuple[ExecutionState, ...], of_vertex: ExecutionState) -> None:
    operator = graph(("a",)).regions[0][0]
    for each, state in zip(operator.vertices, of_tasks, strict=True):
        for step in PATHS[state]:
            each.current.transition(step)
    assert operator.state is of_vertex
    assert sum(operator.counts.values()) == 2


_STEPS = (
    "schedule",
    "deploy",
    "switch_to_running",
    "finish",
    "fail",
    "cancel",
    "ended",
    "restart",
    "fail_job",
    "cancel_job",
)


@given(st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(0, 1)), max_size=40))
def test_whatever_happens_the_graph_is_consistent(steps: list[tuple[str, int]]) -> None:
    it = graph(("a",), ("b",))
    history = [it.status]
    it.add_listener(lambda status: history.append(status))
    for step, region in steps:
        attempts = [execution.attempt for execution in it.executions()]
        try:
            if step == "fail":
                it.fail(region, ValueError("x"), Subtask("ab"[region], 0))
                it.await_restart([region] if not it.status.is_terminal_state() else [])
            elif step == "restart":
                it.restart([region])
            elif step == "fail_job":
                it.fail_job(ValueError("x"))
            elif step == "cancel_job":
                it.cancel_job()
            else:
                getattr(it, step)(region)
        except IllegalStateTransitionError:
            pass
        now = [execution.attempt for execution in it.executions()]
        assert all(after - before in (0, 1) for before, after in zip(attempts, now, strict=True))
        assert now == attempts or step == "restart", "only a restart makes a new execution"
        if it.status.is_terminal_state():
            assert all(execution.state.terminal for execution in it.executions())
        if it.status is JobStatus.FINISHED:
            assert set(states(it)) == {"FINISHED"}
        for vertex_of in (each for region in it.regions for each in region):
            assert len({each.current.attempt for each in vertex_of.vertices}) == 1
            assert all(prior.state.terminal for each in vertex_of.vertices for prior in each.prior)
    ended = [status for status in history if status.is_terminal_state()]
    assert ended == history[len(history) - len(ended) :], "nothing follows the end"
