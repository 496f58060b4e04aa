from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint import requests
from dagster_flinkpy.checkpoint.request_inbox import RequestInbox
from dagster_flinkpy.checkpoint.requests import (
    REQUESTS_FOLDER,
    Answer,
    AnswerState,
    JobRequests,
    Order,
    Request,
    RequestKind,
    answer_key,
    request_key,
)
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    FencedError,
    JobNotRunningError,
    RequestFailedError,
    RequestOutcomeUnknownError,
    RequestTimeoutError,
    StorageError,
    UnknownRequestError,
)
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from dagster_flinkpy.storage.object_store import ObjectInfo

CHECKPOINT = Order(RequestKind.CHECKPOINT)
NOW = current_millis()
"""Near that of the store, which says when an answer was written."""
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def a_second_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is not real here, so nobody waits for it."""
    monkeypatch.setattr(requests, "_LOOK_SECONDS", 1.0)


class Job:
    """A job with a clock that a test sets. Whatever a test adds to ``meanwhile`` happens while somebody waits."""

    def __init__(self, location: StorageLocation, root: Path | None = None) -> None:
        self.location, self.root, self.now = location, root, NOW
        self.checkpoints = CompletedCheckpointStore(location.open())
        self.meanwhile: list[Callable[[], object]] = []

    def begin(self, owner: str = "run", store: ObjectStore | None = None) -> RequestInbox:
        """Begins an attempt, and returns its inbox."""
        attempt = self.attempt = self.checkpoints.begin_attempt(owner, self.now, timedelta(minutes=5))
        return RequestInbox(
            store or self.location.open(),
            attempt.token,
            attempt.leader.record.nonce,
            lambda: self.checkpoints.check_leader(attempt),
            lambda: self.now,
        )

    def end(self) -> None:
        self.checkpoints.end_attempt(self.attempt)

    @property
    def asker(self) -> JobRequests:
        return JobRequests(self.location, "asker", now=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1000)
        if self.meanwhile:
            self.meanwhile.pop(0)()

    @property
    def objects(self) -> list[str]:
        return [info.key for info in self.location.open().list(REQUESTS_FOLDER)]


@pytest.fixture(params=["local", "s3"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    if request.param == "s3":
        return Job(request.getfixturevalue("s3_location"))
    return Job(StorageLocation(str(tmp_path)), tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Job:
    return Job(StorageLocation(str(tmp_path)), tmp_path)


class Watched(LocalObjectStore):
    """Tells a test of each request before it happens."""

    def __init__(self, job: Job) -> None:
        super().__init__(str(job.root))
        self.before: Callable[[str, str], None] = lambda what, key: None
        self.deleted: list[list[str]] = []

    def get(self, key: str) -> tuple[bytes, str]:
        self.before("get", key)
        return super().get(key)

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        self.before("put", key)
        return super().put(key, data, if_none_match=if_none_match, if_match=if_match)

    def delete_many(self, keys: Iterable[str]) -> None:
        self.deleted.append(list(keys))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self.before("list", prefix)
        return super().list(prefix)


# --- the way of a request ---------------------------------------------------------------------------------------------


def test_a_request_is_taken_answered_and_cleaned_up(job: Job) -> None:
    inbox = job.begin()
    assert inbox.poll() == []
    asker = job.asker
    request_id = asker.submit(CHECKPOINT)
    assert asker.answer(request_id) is None
    (request,) = inbox.poll()
    assert (request.request_id, request.order, request.owner) == (request_id, CHECKPOINT, "asker")
    taken = asker.answer(request_id)
    assert taken is not None and (taken.state, taken.attempt) == (AnswerState.ACCEPTED, 1)
    assert inbox.poll() == []  # it is taken once
    job.meanwhile = [lambda: inbox.done(request_id, checkpoint_id=7)]
    done = asker.wait(request_id)
    assert (done.state, done.checkpoint_id, done.attempt) == (AnswerState.DONE, 7, 1)
    assert job.objects == []
    assert inbox.poll() == []


def test_two_askers_get_their_own_answers(job: Job) -> None:
    inbox = job.begin()
    first = job.asker.submit(CHECKPOINT)
    job.now += 1
    second = job.asker.submit(Order(RequestKind.SAVEPOINT))
    requests = inbox.poll()
    assert [each.request_id for each in requests] == [first, second]
    inbox.done(second, checkpoint_id=3, savepoint="s3://b/savepoint-x")
    inbox.failed(first, CheckpointError("the checkpoint expired"))
    assert job.asker.wait(second).savepoint == "s3://b/savepoint-x"
    with pytest.raises(RequestFailedError, match="the checkpoint expired"):
        job.asker.wait(first)
    assert job.objects == []


def test_requests_of_an_asker_are_taken_in_their_order_also_within_a_millisecond(local: Job) -> None:
    local.begin()
    asker = local.asker
    asked = [asker.submit(CHECKPOINT) for _ in range(8)]
    assert [request.request_id for request in asker.waiting()] == asked


def test_an_idle_poll_is_one_listing(local: Job) -> None:
    store = Watched(local)
    inbox = local.begin(store=store)
    local.asker.submit(CHECKPOINT)
    inbox.poll()
    seen: list[str] = []
    store.before = lambda what, key: seen.append(what)
    inbox.poll()
    assert seen == ["list"]


@given(
    st.sampled_from(RequestKind),
    st.sampled_from(SavepointFormatType),
    st.booleans(),
    st.integers(1, 1000),
    st.none() | st.text(st.characters(exclude_categories=("Cc", "Cs"))).map(lambda name: f"/kept/{name}"),
)
def test_a_request_is_read_as_it_was_written(
    kind: RequestKind, format_type: SavepointFormatType, drain: bool, parallelism: int, target: str | None
) -> None:
    writes = kind in (RequestKind.SAVEPOINT, RequestKind.STOP)
    order = Order(
        kind,
        target if writes else None,
        format_type,
        drain and kind is RequestKind.STOP,
        parallelism if kind is RequestKind.RESCALE else None,
    )
    request = Request("id", order, "somebody", 5)
    assert Request.from_bytes(request.to_bytes(), "id") == request


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": RequestKind.RESCALE},
        {"kind": RequestKind.RESCALE, "parallelism": 0},
        {"kind": RequestKind.CHECKPOINT, "parallelism": 2},
        {"kind": RequestKind.SAVEPOINT, "drain": True},
        {"kind": RequestKind.CANCEL, "target": "/x"},
    ],
)
def test_an_impossible_request_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Order(**wrong)


# --- no attempt at work -----------------------------------------------------------------------------------------------


def test_a_job_that_does_not_run_is_not_asked(job: Job) -> None:
    with pytest.raises(JobNotRunningError, match=r"No run has ever led the job.*'flinkpy job list .*' shows"):
        job.asker.submit(CHECKPOINT)
    job.begin()
    job.end()
    with pytest.raises(JobNotRunningError, match="The last run, 'run', has ended"):
        job.asker.submit(CHECKPOINT)
    job.begin("another run")
    job.now += 300_000
    with pytest.raises(JobNotRunningError, match="The lease of 'another run' lasts until"):
        job.asker.submit(CHECKPOINT)
    assert job.objects == []


def test_a_request_is_withdrawn_when_the_run_ends_without_taking_it(local: Job) -> None:
    inbox = local.begin()
    local.meanwhile = [local.end]
    with pytest.raises(JobNotRunningError):
        local.asker.ask(CHECKPOINT)
    assert inbox.poll() == [] and local.objects == []


def test_the_next_attempt_takes_a_request_that_its_predecessor_has_not_seen(local: Job) -> None:
    local.begin()

    def restart() -> None:
        local.end()
        inbox = local.begin("the next one")
        (request,) = inbox.poll()
        inbox.done(request.request_id, checkpoint_id=4)

    local.meanwhile = [lambda: None, restart]
    assert local.asker.ask(CHECKPOINT).attempt == 2


def test_an_attempt_that_ends_without_an_answer_is_told_apart_from_one_that_did_nothing(job: Job) -> None:
    inbox = job.begin()
    job.meanwhile = [inbox.poll, job.end]
    with pytest.raises(RequestOutcomeUnknownError, match="attempt 1 took the request"):
        job.asker.ask(CHECKPOINT)
    assert job.objects == []


def test_no_attempt_carries_out_what_another_one_has_taken(job: Job) -> None:
    inbox = job.begin()
    request_id = job.asker.submit(CHECKPOINT)
    assert len(inbox.poll()) == 1
    successor = job.begin("the next one")
    assert successor.poll() == []
    with pytest.raises(RequestOutcomeUnknownError, match="attempt 1 took the request"):
        job.asker.wait(request_id)


# --- zombies ----------------------------------------------------------------------------------------------------------


def test_a_fenced_attempt_neither_takes_nor_answers_requests(job: Job) -> None:
    zombie = job.begin("zombie")
    first = job.asker.submit(CHECKPOINT)
    assert len(zombie.poll()) == 1
    leader = job.begin("leader")
    job.now += 1
    second = job.asker.submit(CHECKPOINT)
    with pytest.raises(FencedError):
        zombie.poll()
    with pytest.raises(FencedError):
        zombie.done(first, checkpoint_id=1)
    answer = job.asker.answer(first)
    assert answer is not None and answer.state is AnswerState.ACCEPTED
    assert job.asker.answer(second) is None
    assert [each.request_id for each in leader.poll()] == [second]


def test_an_attempt_that_is_fenced_while_it_answers_does_not_overwrite_its_successor(local: Job) -> None:
    store = Watched(local)
    zombie = local.begin("zombie", store)
    request_id = local.asker.submit(CHECKPOINT)
    zombie.poll()

    def take_over(what: str, key: str) -> None:
        if what == "put":
            store.before = lambda what, key: None
            assert local.begin("leader").poll() == []

    store.before = take_over
    zombie.done(request_id, checkpoint_id=1)
    with pytest.raises(RequestOutcomeUnknownError):
        local.asker.wait(request_id)


# --- askers that give up ----------------------------------------------------------------------------------------------


def test_an_asker_that_gives_up_withdraws_its_request(job: Job) -> None:
    inbox = job.begin()
    with pytest.raises(RequestTimeoutError, match="it is withdrawn"):
        job.asker.ask(CHECKPOINT, MINUTE)
    assert inbox.poll() == [] and job.objects == []


def test_an_asker_that_gives_up_leaves_what_is_being_carried_out(local: Job) -> None:
    inbox = local.begin()
    local.meanwhile = [inbox.poll]
    with pytest.raises(RequestTimeoutError, match="It may still do so"):
        local.asker.ask(CHECKPOINT, MINUTE)
    (request_id,) = {key.split("/")[1] for key in local.objects}
    inbox.done(request_id, checkpoint_id=2)
    assert local.asker.withdraw(request_id) == local.asker.answer(request_id)
    assert local.asker.wait(request_id).checkpoint_id == 2


@pytest.mark.parametrize("moment", ["put", "get"])
def test_a_request_that_is_withdrawn_just_now_is_not_carried_out(local: Job, moment: str) -> None:
    store = Watched(local)
    inbox = local.begin(store=store)
    request_id = local.asker.submit(CHECKPOINT)
    withdrawn: list[Answer | None] = []

    def withdraw(what: str, key: str) -> None:
        if what == moment and key.startswith(REQUESTS_FOLDER):
            store.before = lambda what, key: None
            withdrawn.append(local.asker.withdraw(request_id))

    store.before = withdraw
    taken = inbox.poll()
    # Either the asker was first, or the attempt.
    assert (withdrawn[0] is None) is (taken == [])


def test_an_expired_request_is_refused(local: Job) -> None:
    inbox = local.begin()
    request_id = local.asker.submit(CHECKPOINT, timedelta(seconds=30))
    local.now += 31_000
    assert inbox.poll() == []
    with pytest.raises(RequestTimeoutError, match="was not carried out"):
        local.asker.wait(request_id)


def test_only_so_many_requests_wait(local: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.checkpoint.requests.MAX_REQUESTS", 2)
    local.begin()
    local.asker.submit(CHECKPOINT)
    local.asker.submit(CHECKPOINT)
    with pytest.raises(RequestFailedError, match="2 requests"):
        local.asker.submit(CHECKPOINT)


# --- bad objects and a bad store --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        pickle.dumps(Order(RequestKind.CANCEL)),
        json.dumps({"version": 2, "kind": "checkpoint"}).encode(),
        Request("id", CHECKPOINT, "x", NOW + 1).to_bytes().replace(b'"checkpoint"', b'"compact"'),
        Request("id", CHECKPOINT, "x", NOW + 1).to_bytes().replace(b"null", b'"4"'),
        Request("id", CHECKPOINT, "x", NOW + 1).to_bytes() + b" " * 70_000,
    ],
    ids=["empty", "a list", "pickled", "another version", "another kind", "a wrong type", "too long"],
)
def test_a_request_that_cannot_be_read_is_answered_with_an_error(local: Job, data: bytes) -> None:
    inbox = local.begin()
    request_id = f"{NOW}-0123456789ab"
    local.location.open().put(request_key(request_id), data)
    assert inbox.poll() == []
    with pytest.raises(UnknownRequestError):
        local.asker.wait(request_id)


def test_other_objects_and_damaged_answers_are_no_requests(local: Job) -> None:
    inbox = local.begin()
    store = local.location.open()
    store.put("requests/readme", b"x")
    request_id = f"{NOW}-0123456789ab"
    store.put(request_key(request_id), Request("id", CHECKPOINT, "x", NOW + 1).to_bytes())
    store.put(answer_key(request_id), b"damaged")
    assert inbox.poll() == []
    with pytest.raises(UnknownRequestError, match="cannot be read"):
        local.asker.answer(request_id)


def test_a_request_is_not_lost_when_the_store_fails_after_it_was_taken(local: Job) -> None:
    store = Watched(local)
    inbox = local.begin(store=store)
    first = local.asker.submit(CHECKPOINT)
    local.now += 1
    second = local.asker.submit(CHECKPOINT)

    def fail(what: str, key: str) -> None:
        if what == "get" and key == request_key(second):
            raise StorageError("503")

    store.before = fail
    with pytest.raises(StorageError):
        inbox.poll()
    store.before = lambda what, key: None
    assert [each.request_id for each in inbox.poll()] == [first, second]
    assert inbox.poll() == []


def test_an_answer_is_written_when_the_store_is_back(local: Job) -> None:
    store = Watched(local)
    inbox = local.begin(store=store)
    request_id = local.asker.submit(CHECKPOINT)
    inbox.poll()

    def fail(what: str, key: str) -> None:
        raise StorageError("503")

    store.before = fail
    inbox.done(request_id, checkpoint_id=3)
    store.before = lambda what, key: None
    inbox.poll()
    assert local.asker.wait(request_id).checkpoint_id == 3


def test_answers_that_nobody_fetches_go_after_a_day(local: Job) -> None:
    inbox = local.begin()
    request_id = local.asker.submit(CHECKPOINT)
    inbox.poll()
    inbox.done(request_id, checkpoint_id=3)
    local.now += 23 * 3_600_000
    inbox.poll()
    assert len(local.objects) == 2
    local.now += 2 * 3_600_000
    inbox.poll()
    assert local.objects == []


def test_an_asker_whose_clock_is_a_day_behind_gets_its_answer(local: Job) -> None:
    inbox = local.begin()
    local.now -= 25 * 3_600_000
    request_id = local.asker.submit(CHECKPOINT, timedelta(days=2))
    local.now += 25 * 3_600_000
    inbox.poll()
    inbox.done(request_id, checkpoint_id=3)
    inbox.poll()
    found = local.asker.answer(request_id)
    assert found is not None and found.checkpoint_id == 3
    local.now += 25 * 3_600_000
    inbox.poll()
    assert local.objects == []


def test_a_sweep_deletes_old_requests_before_their_answers(local: Job) -> None:
    inbox = local.begin()
    for _ in range(2):
        local.now += 1
        local.asker.submit(CHECKPOINT)
    for request in inbox.poll():
        inbox.done(request.request_id)
    store = Watched(local)
    assert sweep(store, timedelta(0), dry_run=True).files == 4
    sweep(store, timedelta(0))
    assert [[key.rsplit("/")[-1] for key in batch] for batch in store.deleted] == [["request"] * 2, ["answer"] * 2]
