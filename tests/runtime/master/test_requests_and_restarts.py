"""What becomes of requests when the job restarts as a whole, inside the run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.common import JobStatus
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.errors import JobCancelledError, JobRestartedError, StorageError
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.requests import taken_requests
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt
from tests.runtime.master.test_job_master import Threaded, expected, program
from tests.waiting import until


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(milliseconds=5))


class Asked(Threaded):
    """An attempt that is asked for something, and whose commit then fails once.

    Args:
        folder: Of the job.
        order: What it is asked for while checkpoint 2 is committed.
        fails: Whether the first commit of a checkpoint fails. Default: that of checkpoint 2, once the request is taken.
        delay: How long the job waits before it restarts.
    """

    def __init__(
        self,
        folder: Path,
        order: Order,
        fails: Callable[[Any], bool] = lambda metadata: metadata.checkpoint_id == 2,
        delay: timedelta = timedelta(0),
    ) -> None:
        self.graph_, self.sink = program(folder)
        strategy = FailoverConfig(FixedDelayRestart(1, delay))
        super().__init__(self.graph_, folder, config={"failover": strategy})
        self.asker = JobRequests(
            StorageLocation(str(folder)).child("job"), "asker", sleep=lambda seconds: pytest.fail("no answer")
        )
        self.order, self.fails = order, fails
        self.request = ""
        self.failed = False

    def _commit(self, metadata: Any) -> int:
        if metadata.checkpoint_id == 2 and not self.request:
            self.request = self.asker.submit(self.order)
            if self.order.kind is not RequestKind.CANCEL:
                self._await_taken()
        if self.fails(metadata) and not self.failed:
            self.failed = True
            raise StorageError("a hiccup")
        return super()._commit(metadata)

    def _await_taken(self) -> None:
        until(lambda: self.asker.answer(self.request) is not None, "nobody takes the request")

    def answer(self) -> Any:
        return self.asker.wait(self.request)


@pytest.mark.parametrize("kind", [RequestKind.CHECKPOINT, RequestKind.SAVEPOINT], ids=lambda kind: kind.value)
def test_who_waits_for_a_checkpoint_is_told_that_the_job_restarts(tmp_path: Path, kind: RequestKind) -> None:
    with Asked(tmp_path, Order(kind)) as attempt:
        list(attempt.run_epochs())
        assert attempt.token == 2
    with pytest.raises(JobRestartedError, match=f"restarted before the {kind.value} was complete: StorageError"):
        attempt.answer()
    assert attempt.sink.rows() == expected(tmp_path)


def stopping(metadata: Any) -> bool:
    return bool(metadata.stopped)


@pytest.mark.parametrize("begun", [False, True], ids=["taken", "begun"])
@pytest.mark.parametrize("drain", [False, True], ids=["stop", "drain"])
def test_a_stop_is_carried_out_after_the_restart(tmp_path: Path, drain: bool, begun: bool) -> None:
    how = {"fails": stopping} if begun else {}
    with Asked(tmp_path, Order(RequestKind.STOP, drain=drain), **how) as attempt:
        list(attempt.run_epochs())
        assert (attempt.failed, attempt.token) == (True, 2)
        answer = attempt.answer()
    assert attempt.stopped_with == answer.savepoint
    stored = open_checkpoint(StorageLocation(answer.savepoint)).metadata
    assert stored.checkpoint_id == answer.checkpoint_id
    with HarnessAttempt(attempt.graph_, tmp_path) as after:
        assert after.stopped and after.finished
    if not drain:
        with HarnessAttempt(attempt.graph_, tmp_path, restore_from=answer.savepoint) as later:
            list(later.run_epochs())
        assert attempt.sink.rows() == expected(tmp_path)


@pytest.mark.parametrize("begun", [False, True], ids=["taken", "begun"])
def test_a_rescale_is_carried_out_after_the_restart(tmp_path: Path, begun: bool) -> None:
    order = Order(RequestKind.RESCALE, parallelism=3)
    how = {"fails": lambda metadata: metadata.operator("counts").parallelism == 3} if begun else {}
    with Asked(tmp_path, order, **how) as attempt:
        list(attempt.run_epochs())
        assert (attempt.failed, attempt.token) == (True, 2)
        assert attempt.graph.vertex("counts").parallelism == 3
        assert attempt.answer().checkpoint_id is not None
    assert attempt.sink.rows() == expected(tmp_path)


def test_a_cancel_takes_effect_while_the_job_waits_for_its_restart(tmp_path: Path) -> None:
    order = Order(RequestKind.CANCEL)
    with (
        pytest.raises(JobCancelledError, match="on request of 'asker'"),
        Asked(tmp_path, order, delay=timedelta(hours=1)) as attempt,
    ):
        list(attempt.run_epochs())
    assert attempt.answer().checkpoint_id is None
    assert attempt._deployed.failover.graph.status is JobStatus.CANCELED
    assert attempt.token == 1
