"""Sinks as begin, invoke, pre-commit, commit and abort of transactions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import TwoPhaseCommitSinkFunction
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext, WriterInitContext
from dagster_flinkpy.errors import ConfigurationError, SinkCommitError, TypeMismatchError
from dagster_flinkpy.storage import StorageLocation
from tests.committing import commit_requests
from tests.examples import examples
from tests.runtime.harness import Crash, HarnessAttempt, ManualClock
from tests.runtime.programs import environment, events

ROW = Types.ROW_NAMED(["key", "time", "value"], [Types.STRING(), Types.LONG(), Types.LONG()])


class FolderFunction(TwoPhaseCommitSinkFunction):
    """Writes a temporary file for each transaction, and moves it to its place.

    Args:
        folder: Holds the files, the open transactions and a log of all calls.
        crash_at: A call at which the process dies: its name, ``before`` or ``after``, and which of these calls.
    """

    def __init__(self, folder: Path, crash_at: tuple[str, str, int] | None = None, **options: Any) -> None:
        super().__init__(str(folder / "open"), **options)
        self.folder, self._crash_at = folder, crash_at
        for name in ("tmp", "table"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def _log(self, call: str, when: str) -> None:
        log = self.folder / "calls"
        with log.open("a") as file:
            file.write(f"{call} {when}\n")
        if self._crash_at is not None:
            name, moment, number = self._crash_at
            count = log.read_text().split("\n").count(f"{call} {when}")
            if (call, when) == (name, moment) and count == number:
                raise Crash

    def calls(self) -> list[str]:
        return [line.split()[0] for line in (self.folder / "calls").read_text().splitlines() if line.endswith("after")]

    def begin_transaction(self) -> Any:
        self._log("begin", "before")
        transaction = {"file": f"{len(list(self.folder.glob('*/*.txt')))}-{self.clock.now()}.txt"}
        (self.folder / "tmp" / transaction["file"]).touch()
        self._file = (self.folder / "tmp" / transaction["file"]).open("a")
        self._log("begin", "after")
        return transaction

    def invoke(self, transaction: Any, value: Any) -> None:
        self._log("invoke", "before")
        self._file.write(f"{value.value}\n")
        self._log("invoke", "after")

    def pre_commit(self, transaction: Any) -> None:
        self._log("pre_commit", "before")
        self._file.close()
        self._log("pre_commit", "after")

    def commit(self, transaction: Any) -> None:
        self._log("commit", "before")
        self._move(transaction)
        self._log("commit", "after")

    def recover_and_commit(self, transaction: Any) -> None:
        self._log("recover_and_commit", "before")
        if not (self.folder / "table" / transaction["file"]).exists():
            self._move(transaction)
        self._log("recover_and_commit", "after")

    def _move(self, transaction: Any) -> None:
        (self.folder / "tmp" / transaction["file"]).rename(self.folder / "table" / transaction["file"])

    def abort(self, transaction: Any) -> None:
        self._log("abort", "before")
        (self.folder / "tmp" / transaction["file"]).unlink(missing_ok=True)
        self._log("abort", "after")

    def recover_and_abort(self, transaction: Any) -> None:
        self._log("recover_and_abort", "before")
        (self.folder / "tmp" / transaction["file"]).unlink(missing_ok=True)
        self._log("recover_and_abort", "after")

    def rows(self) -> list[int]:
        return sorted(int(line) for file in (self.folder / "table").iterdir() for line in file.read_text().split())

    def open_transactions(self) -> int:
        entries = StorageLocation(str(self.folder / "open")).open().list()
        return len(list(entries)) + len(list((self.folder / "tmp").iterdir()))


def context(**changes: Any) -> WriterInitContext:
    known = {"job_id": "job", "uid": "sink", "subtask": 0, "fencing_token": 1, "checkpoint_id": 1, "execution": "e"}
    return WriterInitContext(**{**known, **changes})


def staged(function: FolderFunction, *values: int, **changes: Any) -> CommitRequest:
    where = context(**changes)
    writer = function.create_writer(where, ROW)
    writer.write(ROW.to_arrow([("k", 0, value) for value in values]))
    [committable] = writer.prepare_commit()
    return CommitRequest(where.checkpoint_id, where.subtask, committable)


def commit(function: FolderFunction, request: CommitRequest, token: int = 1) -> int:
    committer = function.create_committer(CommitterInitContext("job", "sink", token))
    return commit_requests(committer, [request], "sink")


# --- the protocol -----------------------------------------------------------------------------------------------------


def test_begin_pre_commit_and_commit(tmp_path: Path) -> None:
    function = FolderFunction(tmp_path)
    writer = function.create_writer(context(), ROW)
    writer.write(ROW.to_arrow([("k", 0, 1), ("k", 0, 2)]))
    assert (function.rows(), function.open_transactions()) == ([], 2)
    [committable] = writer.prepare_commit()
    assert committable["rows"] == 2
    assert function.rows() == []
    commit(function, CommitRequest(1, 0, committable))
    assert (function.rows(), function.open_transactions()) == ([1, 2], 0)
    assert function.calls() == ["begin", "invoke", "invoke", "pre_commit", "commit"]


def test_an_epoch_that_fails_aborts_its_transaction(tmp_path: Path) -> None:
    function = FolderFunction(tmp_path)
    writer = function.create_writer(context(), ROW)
    writer.write(ROW.to_arrow([("k", 0, 1)]))
    writer.abort()
    assert (function.rows(), function.open_transactions()) == ([], 0)
    assert function.calls() == ["begin", "invoke", "abort"]


def test_another_attempt_recovers_and_commits(tmp_path: Path) -> None:
    function = FolderFunction(tmp_path)
    request = staged(function, 1)
    commit(function, request, token=2)
    commit(function, request, token=3)  # the attempt before died before it could say so
    assert function.rows() == [1]
    assert function.calls()[-2:] == ["recover_and_commit"] * 2


def test_another_attempt_aborts_what_no_checkpoint_names(tmp_path: Path) -> None:
    function = FolderFunction(tmp_path)
    kept = staged(function, 1)
    staged(function, 2, execution="speculative")
    newer = staged(function, 3, fencing_token=3)
    staged(function, 4, uid="other")
    committer = function.create_committer(CommitterInitContext("job", "sink", 2))
    assert committer.lingering([kept]) == 1
    assert committer.abort_lingering([kept]) == 1
    assert function.calls()[-1] == "recover_and_abort"
    commit(function, kept, token=2)
    commit(function, newer, token=3)
    assert function.rows() == [1, 3]


def test_a_commit_that_fails_is_tried_again_as_a_recovery(tmp_path: Path) -> None:
    class Flaky(FolderFunction):
        def commit(self, transaction: Any) -> None:
            super().commit(transaction)
            raise ConnectionError("the answer was lost")

    function = Flaky(tmp_path)
    commit(function, staged(function, 1))
    assert function.rows() == [1]
    assert function.calls()[-2:] == ["commit", "recover_and_commit"]


def test_a_transaction_must_be_json(tmp_path: Path) -> None:
    class Opaque(FolderFunction):
        def begin_transaction(self) -> Any:
            return {**super().begin_transaction(), "path": self.folder}

    function = Opaque(tmp_path)
    with pytest.raises(TypeMismatchError, match=r"Opaque\.begin_transaction\(\) returned .* not JSON: return a dict"):
        function.create_writer(context(), ROW)
    assert function.open_transactions() == 0


@pytest.mark.parametrize("damage", [{"key": "../x"}, {"started_ms": "long ago"}, {"fencing_token": None}])
def test_a_damaged_committable_is_refused(tmp_path: Path, damage: Any) -> None:
    function = FolderFunction(tmp_path)
    request = staged(function, 1)
    request.committable = {**request.committable, **damage}
    with pytest.raises(SinkCommitError):
        commit(function, request)
    assert function.rows() == []


# --- timeouts ---------------------------------------------------------------------------------------------------------


class Expired(FolderFunction):
    def _move(self, transaction: Any) -> None:
        raise TimeoutError("the transaction is gone")


@pytest.mark.parametrize(("age", "warned"), [(800, False), (801, True)])
def test_a_transaction_near_its_timeout_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, age: int, warned: bool
) -> None:
    clock = ManualClock()
    function = FolderFunction(tmp_path, clock=clock)
    function.set_transaction_timeout(1000).enable_transaction_timeout_warnings(0.8)
    request = staged(function, 1)
    clock.time = age
    with caplog.at_level(logging.WARNING):
        commit(function, request)
    assert ("has been open for 801 ms" in caplog.text) == warned


@pytest.mark.parametrize(("age", "token", "ignored"), [(1001, 2, True), (1000, 2, False), (1001, 1, True)])
def test_failures_after_the_timeout_can_be_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, age: int, token: int, ignored: bool
) -> None:
    clock = ManualClock()
    function = Expired(tmp_path, clock=clock)
    function.set_transaction_timeout(1000).ignore_failures_after_transaction_timeout()
    request = staged(function, 1)
    clock.time = age
    if ignored:
        commit(function, request, token)
        assert "gives up transaction" in caplog.text
    else:
        with pytest.raises(SinkCommitError, match="the transaction is gone"):
            commit(function, request, token)


def test_failures_are_not_ignored_unless_asked(tmp_path: Path) -> None:
    clock = ManualClock()
    function = Expired(tmp_path, clock=clock)
    function.set_transaction_timeout(1000)
    request = staged(function, 1)
    clock.time = 10_000
    with pytest.raises(SinkCommitError, match=r"after 11 tries: the transaction is gone"):
        commit(function, request, token=2)


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    function = FolderFunction(tmp_path)
    with pytest.raises(ConfigurationError, match="must be positive"):
        function.set_transaction_timeout(0)
    for call in (
        lambda: function.enable_transaction_timeout_warnings(0.5),
        function.ignore_failures_after_transaction_timeout,
    ):
        with pytest.raises(ConfigurationError, match=r"set_transaction_timeout\(\) first"):
            call()
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        function.set_transaction_timeout(1).enable_transaction_timeout_warnings(2)


# --- whole jobs -------------------------------------------------------------------------------------------------------

RECORDS = [("k", i, i) for i in range(9)]
STEPS = ["begin", "invoke", "pre_commit", "commit", "recover_and_commit", "abort", "recover_and_abort"]


def run(folder: Path, function: FolderFunction, parallelism: int) -> None:
    """Runs attempts until the input is read. The function lives through each crash, as another process would start."""
    for _ in range(10):
        env = environment(parallelism)
        events(env, RECORDS, per_epoch=3).rebalance().sink_to(function).uid("sink")
        try:
            with HarnessAttempt(env.get_job_graph(), folder / "job") as attempt:
                while not attempt.finished:
                    attempt.run_epoch()
                return
        except Crash:
            pass
    raise AssertionError("the job does not end")


@settings(max_examples=examples(40))
@given(
    st.tuples(st.sampled_from(STEPS), st.sampled_from(["before", "after"]), st.integers(1, 4)),
    st.integers(1, 2),
)
def test_every_record_is_written_once_wherever_the_job_dies(
    tmp_path_factory: pytest.TempPathFactory, crash_at: tuple[str, str, int], parallelism: int
) -> None:
    folder = tmp_path_factory.mktemp("job")
    function = FolderFunction(folder, crash_at)
    run(folder, function, parallelism)
    assert function.rows() == list(range(9))
    lost = crash_at[0] == "begin"  # a transaction that nobody has heard of; its file is empty
    assert function.open_transactions() <= lost
