"""What committers signal, and what the driver makes of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    CommitRequestState,
    Committer,
    CommitterInitContext,
    Sink,
    SinkWriter,
    WriterInitContext,
)
from dagster_flinkpy.errors import CommittableLostError, SinkCommitError, StorageError, TypeMismatchError
from dagster_flinkpy.runtime.master.commits.commit_retries import MAX_RETRIES
from tests.committing import commit_requests
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import FolderSink, environment, events

Answer = Callable[[CommitRequest], object]


class Scripted(Committer):
    """Answers each request with the next call of its script, and commits it when the script is at its end.

    Args:
        scripts: The answers, by committable.
    """

    def __init__(self, **scripts: Sequence[Answer]) -> None:
        self._scripts = {name: list(answers) for name, answers in scripts.items()}
        self.calls: list[list[Any]] = []
        self.committed: list[Any] = []

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        self.calls.append([request.committable for request in requests])
        for request in requests:
            answers = self._scripts.get(request.committable, [])
            if answers:
                answers.pop(0)(request)
            if request.state is CommitRequestState.RECEIVED:
                self.committed.append(request.committable)

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        return 0


def requests(*committables: Any, checkpoint_id: int = 1) -> list[CommitRequest]:
    return [CommitRequest(checkpoint_id, subtask, each) for subtask, each in enumerate(committables)]


def later(request: CommitRequest) -> None:
    request.retry_later(StorageError("503 Slow Down."))


def lost(request: CommitRequest) -> None:
    request.signal_failed_with_known_reason(ValueError("the upload is gone"))


def unknown(request: CommitRequest) -> None:
    request.signal_failed_with_unknown_reason(ValueError("the connection broke"))


def test_only_what_is_to_be_retried_is_tried_again_after_growing_pauses() -> None:
    committer, waited = Scripted(b=[later, later], c=[CommitRequest.signal_already_committed]), list[float]()
    asked = requests("a", "b", "c")
    assert commit_requests(committer, asked, "s", wait=waited.append) == 1
    assert committer.calls == [["a", "b", "c"], ["b"], ["b"]]
    assert waited == [0.1, 0.2]
    assert committer.committed == ["a", "b"]
    assert [request.number_of_retries for request in asked] == [0, 2, 0]


def test_an_updated_committable_is_the_one_that_is_tried_again() -> None:
    committer = Scripted(whole=[lambda request: request.update_and_retry_later("rest")])
    assert commit_requests(committer, requests("whole"), "s") == 0
    assert committer.calls == [["whole"], ["rest"]]
    assert committer.committed == ["rest"]


def test_after_ten_retries_the_job_fails_and_says_why() -> None:
    committer, waited = Scripted(a=[later] * 99), list[float]()
    with pytest.raises(
        SinkCommitError,
        match=r"sink 's' .*checkpoint 7 \(subtask 0\) after 11 tries: 503 Slow Down\. The checkpoint .*run again",
    ):
        commit_requests(committer, requests("a", checkpoint_id=7), "s", wait=waited.append)
    assert len(committer.calls) == 1 + MAX_RETRIES
    assert waited == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]


def test_a_lost_committable_does_not_keep_its_neighbours_back_but_later_checkpoints() -> None:
    committer = Scripted(a=[lost])
    asked = [*requests("later", checkpoint_id=2), *requests("a", "b")]
    with pytest.raises(CommittableLostError, match=r"subtask 0\): the upload is gone\. Restore .*'chk-1' to continue"):
        commit_requests(committer, asked, "s")
    assert committer.committed == ["b"]


def test_what_another_attempt_can_mend_is_told_before_what_is_lost() -> None:
    for answer, said in ((unknown, "connection broke"), (later, "503")):
        committer = Scripted(a=[lost], b=[answer] * 99)
        with pytest.raises(SinkCommitError, match=said) as failed:
            commit_requests(committer, requests("a", "b"), "s")
        assert not isinstance(failed.value, CommittableLostError)


def test_an_error_of_a_fitting_type_is_raised_as_it_is() -> None:
    for kind, signal in (
        (SinkCommitError, CommitRequest.signal_failed_with_unknown_reason),
        (CommittableLostError, CommitRequest.signal_failed_with_known_reason),
    ):
        mine = kind("told by the sink")
        with pytest.raises(kind) as failed:
            answer = functools.partial(signal, error=mine)
            commit_requests(Scripted(a=[answer]), requests("a"), "s")
        assert failed.value is mine


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), unique=True), st.randoms(use_true_random=False))
def test_checkpoints_are_committed_in_their_order(origins: list[tuple[int, int]], random: Any) -> None:
    asked = [CommitRequest(checkpoint, subtask, f"{checkpoint}.{subtask}") for checkpoint, subtask in origins]
    random.shuffle(asked)
    scripts = {request.committable: [later] * random.randint(0, 3) for request in asked}
    committer = Scripted(**scripts)
    commit_requests(committer, asked, "s")
    assert sorted(committer.committed) == sorted(f"{checkpoint}.{subtask}" for checkpoint, subtask in origins)
    checkpoints = [int(name.partition(".")[0]) for name in committer.committed]
    assert checkpoints == sorted(checkpoints)


# --- jobs -------------------------------------------------------------------------------------------------------------


class Visible(Sink):
    """Writes at least once: each epoch appends to a file as soon as its records come.

    Args:
        file: The file.
        writer: The class of the writers.
    """

    def __init__(self, file: Path, writer: Callable[..., Any]) -> None:
        self._file, self._writer = file, writer

    def validate(self, type_info: TypeInformation | None) -> None:
        pass

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> SinkWriter:
        writer: SinkWriter = self._writer(self._file)
        return writer


class Buffered(SinkWriter):
    def __init__(self, file: Path) -> None:
        self._file, self._values = file, list[str]()

    def write(self, column: pa.Array) -> None:
        self._values += [f"{record['value']}\n" for record in column.to_pylist()]

    def flush(self) -> None:
        with self._file.open("a") as file:
            file.writelines(self._values)

    def abort(self) -> None:
        pass


class Prepares(Buffered):
    def prepare_commit(self) -> list[Any]:
        raise AssertionError("is not called")


def run(folder: Path, sink: Sink) -> None:
    env = environment(1)
    events(env, [("k", i, i) for i in range(4)], per_epoch=2).sink_to(sink).uid("sink")
    with HarnessAttempt(env.get_job_graph(), folder) as attempt:
        while not attempt.finished:
            attempt.run_epoch()


def test_a_writer_that_does_not_commit_is_flushed_at_each_barrier(tmp_path: Path) -> None:
    run(tmp_path, Visible(tmp_path / "values", Buffered))
    assert (tmp_path / "values").read_text().split() == ["0", "1", "2", "3"]


def test_a_writer_that_prepares_commits_must_be_a_committing_one(tmp_path: Path) -> None:
    with pytest.raises(TypeMismatchError, match=r"sink 'sink' returned a Prepares.*must extend CommittingSinkWriter"):
        run(tmp_path, Visible(tmp_path / "values", Prepares))


class Restless(FolderSink):
    """Cannot commit at once."""

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return _Restless(super().create_committer(context))


class _Restless(Committer):
    def __init__(self, inner: Committer) -> None:
        self._inner = inner

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if request.number_of_retries < 2:
                request.retry_later()
            else:
                self._inner.commit([request])

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        return self._inner.abort_lingering(keep)


def test_a_job_tries_again_until_its_sink_has_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("dagster_flinkpy.runtime.master.commits.commit_retries._sleep", waited.append)
    run(tmp_path, Restless(tmp_path / "out"))
    assert [value for _, _, value in FolderSink(tmp_path / "out").rows()] == [0, 1, 2, 3]
    assert waited == [0.1, 0.2] * 2
