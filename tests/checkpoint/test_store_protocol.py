"""Ids, the lease, statistics and checkpoints that the job does not own; writes whose response is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics, CheckpointStats, CheckpointStatus
from dagster_flinkpy.checkpoint.counter import COUNTER_KEY
from dagster_flinkpy.checkpoint.head import HEAD_KEY, EntryStatus, read_head
from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.traces import STATISTICS_KEY
from dagster_flinkpy.errors import (
    CheckpointError,
    CorruptMetadataError,
    FencedError,
    PreconditionFailedError,
    StorageError,
)
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.lease import LEADER_KEY
from dagster_flinkpy.storage.local import LocalObjectStore
from dagster_flinkpy.storage.object_store import put_if
from tests.checkpoint.samples import content, metadata, operator

NOW = 1_700_000_000_000


class Unreliable(LocalObjectStore):
    """Applies writes and then fails, or repeats them like a client without a response. Counts requests."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.lose_response: set[str] = set()
        self.send_twice: set[str] = set()
        self.fail_before: set[str] = set()
        self.fail_get: set[str] = set()
        self.requests: list[str] = []

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        self.requests.append(f"PUT {key}")
        if key in self.fail_before:
            raise StorageError("503")
        etag = super().put(key, data, if_none_match=if_none_match, if_match=if_match)
        if key in self.send_twice:
            super().put(key, data, if_none_match=if_none_match, if_match=if_match)
        if key in self.lose_response:
            raise StorageError("connection reset")
        return etag

    def get(self, key: str) -> tuple[bytes, str]:
        self.requests.append(f"GET {key}")
        if key in self.fail_get:
            raise StorageError("503")
        return super().get(key)


@pytest.fixture
def objects(tmp_path: Path) -> Unreliable:
    return Unreliable(str(tmp_path / "flights"))


@pytest.fixture
def store(objects: Unreliable) -> CompletedCheckpointStore:
    return CompletedCheckpointStore(objects)


def state(objects: LocalObjectStore, name: str) -> OperatorState:
    """Returns an operator, and writes its files."""
    for index, path in enumerate(sorted(operator(name).files())):
        objects.put(path, content(f"{name}-{index}"))
    return operator(name)


def complete(store: CompletedCheckpointStore, attempt: Attempt, *operators: OperatorState) -> CheckpointMetadata:
    done = metadata(store.assign_checkpoint_id(attempt), *(operators or (operator(),)), token=attempt.token)
    store.write_metadata(attempt, done)
    store.complete(attempt, done)
    return done


def keys(objects: LocalObjectStore, prefix: str = "") -> set[str]:
    return {info.key for info in objects.list(prefix)}


# --- unclear outcomes -------------------------------------------------------------------------------------------------

OBJECTS = (LEADER_KEY, HEAD_KEY, COUNTER_KEY, STATISTICS_KEY, "chk-1/_metadata", "chk-2/_metadata")


@pytest.mark.parametrize("how", ["lose_response", "send_twice"])
@pytest.mark.parametrize("key", OBJECTS)
def test_every_write_of_the_protocol_is_resolved_by_reading_back(
    store: CompletedCheckpointStore, objects: Unreliable, key: str, how: str
) -> None:
    getattr(objects, how).add(key)
    first = store.begin_attempt("run-1", NOW)
    done = [complete(store, first), complete(store, first)]
    store.save_statistics(first, CheckpointStatistics())
    store.end_attempt(first)
    second = store.begin_attempt("run-2", NOW)
    assert (first.token, second.token) == (1, 2)
    assert [each.checkpoint_id for each in done] == [1, 2]
    assert (second.latest, second.next_checkpoint_id) == (done[1], 3)


@pytest.mark.parametrize("absent", [True, False])
def test_a_write_that_lost_is_not_taken_for_ones_own(objects: Unreliable, absent: bool) -> None:
    etag = None if absent else objects.put("x", b"before")
    put_if(objects, "x", b"theirs", etag)
    with pytest.raises(PreconditionFailedError):
        put_if(objects, "x", b"ours", etag)


def test_two_attempts_of_the_same_name_and_millisecond_differ(objects: Unreliable) -> None:
    """Otherwise the loser of the race would read the winner's record back and take it for its own."""
    plain = LocalObjectStore(objects.url.removeprefix("file://"))

    class Race(LocalObjectStore):
        def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
            if not winners:
                winners.append(lease.acquire(plain, "run", timedelta(minutes=1), NOW, above=0, led_by=""))
            return super().put(key, data, if_none_match=if_none_match, if_match=if_match)

    winners: list[lease.Leader] = []
    loser = lease.acquire(Race(plain.url.removeprefix("file://")), "run", timedelta(minutes=1), NOW, above=0, led_by="")
    assert (winners[0].token, loser.token) == (1, 2)
    with pytest.raises(FencedError):
        lease.check(plain, winners[0])


# --- ids --------------------------------------------------------------------------------------------------------------


def test_two_attempts_never_get_the_same_id(store: CompletedCheckpointStore, objects: Unreliable) -> None:
    old = store.begin_attempt("run-old", NOW)
    new = CompletedCheckpointStore(objects).begin_attempt("run-new", NOW)
    taken = [store.assign_checkpoint_id(attempt) for attempt in (old, new, old, old, new)]
    assert taken == [1, 2, 3, 4, 5]


def test_an_attempt_that_was_fenced_can_only_write_an_orphan(store: CompletedCheckpointStore) -> None:
    old = store.begin_attempt("run-old", NOW)
    new = store.begin_attempt("run-new", NOW)
    orphan = metadata(store.assign_checkpoint_id(old), token=old.token)
    store.write_metadata(old, orphan)
    with pytest.raises(FencedError, match="run-new"):
        store.complete(old, orphan)
    done = complete(store, new)
    assert (done.checkpoint_id, store.latest()) == (2, done)


def test_an_id_is_used_up_even_if_nothing_was_written(store: CompletedCheckpointStore) -> None:
    first = store.begin_attempt("run-1", NOW)
    for _ in range(3):
        store.assign_checkpoint_id(first)
    assert store.assign_checkpoint_id(store.begin_attempt("run-2", NOW)) == 4


def test_without_a_counter_ids_go_on_after_the_checkpoints(
    store: CompletedCheckpointStore, objects: Unreliable
) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    complete(store, attempt)
    objects.delete(COUNTER_KEY)
    assert store.assign_checkpoint_id(attempt) == 2
    objects.delete(COUNTER_KEY)
    assert store.assign_checkpoint_id(store.begin_attempt("run-2", NOW)) == 2


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"last": "x"}'])
def test_a_damaged_counter_is_named(store: CompletedCheckpointStore, objects: Unreliable, data: bytes) -> None:
    store.begin_attempt("run-0", NOW)
    objects.put(COUNTER_KEY, data)
    with pytest.raises(CorruptMetadataError, match="flights/counter"):
        store.begin_attempt("run-1", NOW)


def test_an_id_that_cannot_be_had_is_a_storage_error(store: CompletedCheckpointStore, objects: Unreliable) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    objects.fail_before.add(COUNTER_KEY)
    with pytest.raises(StorageError, match="503"):
        store.assign_checkpoint_id(attempt)
    objects.fail_before.clear()
    assert store.assign_checkpoint_id(attempt) == 1


def test_completing_takes_two_requests_one_after_the_other(
    store: CompletedCheckpointStore, objects: Unreliable
) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    done = metadata(store.assign_checkpoint_id(attempt), token=attempt.token)
    objects.requests.clear()
    store.write_metadata(attempt, done)
    store.complete(attempt, done)
    assert objects.requests == ["PUT chk-1/_metadata", "PUT HEAD"]


# --- the lease --------------------------------------------------------------------------------------------------------


def test_a_lease_is_renewed_when_half_of_it_is_over(store: CompletedCheckpointStore, objects: Unreliable) -> None:
    ttl = timedelta(seconds=60)
    attempt = store.begin_attempt("run-1", NOW, ttl)
    objects.requests.clear()
    store.renew(attempt, ttl, NOW + 30_000)
    assert objects.requests == []
    store.renew(attempt, ttl, NOW + 30_001)
    record = store.leader()
    assert record is not None
    assert (record.token, record.expires_at) == (1, NOW + 90_001)
    assert record.alive(NOW + 90_000)
    assert not record.alive(NOW + 90_001)
    store.check_leader(attempt)


def test_a_lease_is_renewed_although_the_clock_was_set_back(store: CompletedCheckpointStore) -> None:
    """It was not, for as long as the clock had been ahead: for others the lease ended, and the run was taken over."""
    ttl = timedelta(seconds=60)
    attempt = store.begin_attempt("run-1", NOW, ttl)
    store.renew(attempt, ttl, NOW - 600_000)
    record = store.leader()
    assert record is not None
    assert record.expires_at == NOW - 540_000


def test_who_was_fenced_cannot_renew(store: CompletedCheckpointStore) -> None:
    old = store.begin_attempt("run-old", NOW)
    store.begin_attempt("run-new", NOW)
    with pytest.raises(FencedError, match="run-new"):
        store.renew(old, timedelta(minutes=5), NOW + 10**9)


def unanswered(objects: Unreliable, key: str, write: Callable[[], object]) -> None:
    """Writes an object just before the store is gone: nobody answers, and it cannot be read back."""
    objects.lose_response.add(key)
    objects.fail_get.add(key)
    with pytest.raises(StorageError):
        write()
    objects.lose_response.clear()
    objects.fail_get.clear()


def test_a_renewal_that_nobody_answered_is_known_as_ones_own(
    store: CompletedCheckpointStore, objects: Unreliable
) -> None:
    """The next renewal took it for that of somebody else, so the run ended, and its lease was not released."""
    ttl = timedelta(seconds=60)
    attempt = store.begin_attempt("run-1", NOW, ttl)
    unanswered(objects, LEADER_KEY, lambda: store.renew(attempt, ttl, NOW + 31_000))
    store.renew(attempt, ttl, NOW + 62_000)
    record = store.leader()
    assert record is not None
    assert record.expires_at == NOW + 122_000
    unanswered(objects, LEADER_KEY, lambda: store.renew(attempt, ttl, NOW + 93_000))
    assert store.end_attempt(attempt)
    record = store.leader()
    assert record is not None
    assert record.expires_at == 0


def test_a_renewal_that_comes_after_the_end_does_not_take_the_lease_again(store: CompletedCheckpointStore) -> None:
    ttl = timedelta(seconds=60)
    attempt = store.begin_attempt("run-1", NOW, ttl)
    assert store.end_attempt(attempt)
    with pytest.raises(FencedError, match="has given up"):
        store.renew(attempt, ttl, NOW + 31_000)
    record = store.leader()
    assert record is not None
    assert record.expires_at == 0


@pytest.mark.parametrize("skew", [-(10**9), 0, 10**9])
def test_no_clock_has_to_be_right(store: CompletedCheckpointStore, skew: int) -> None:
    old = store.begin_attempt("run-old", NOW)
    new = store.begin_attempt("run-new", NOW + skew)
    assert new.former == old.leader.record
    with pytest.raises(FencedError):
        complete(store, old)
    complete(store, new)


def test_what_was_committed_is_known_to_the_next_attempt(store: CompletedCheckpointStore) -> None:
    first = store.begin_attempt("run-1", NOW)
    first.committed = complete(store, first).checkpoint_id
    store.end_attempt(first)
    second = store.begin_attempt("run-2", NOW)
    assert second.committed == 1
    assert store.begin_attempt("run-3", NOW).committed == 1  # nothing is known about the second attempt


# --- statistics -------------------------------------------------------------------------------------------------------

DONE = CheckpointStats(7, CheckpointKind.CHECKPOINT, CheckpointStatus.COMPLETED, NOW, 20, 3, 3, 500)


def test_statistics_are_kept(store: CompletedCheckpointStore) -> None:
    first = store.begin_attempt("run-1", NOW)
    statistics = store.load_statistics(first)
    statistics.record(DONE)
    store.save_statistics(first, statistics)
    store.save_statistics(first, statistics)
    second = store.begin_attempt("run-2", NOW)
    assert store.load_statistics(second).history == (DONE,)
    store.save_statistics(second, statistics)
    store.save_statistics(first, CheckpointStatistics())  # a zombie's do not count
    assert store.statistics().counts.completed == 1


def test_statistics_are_kept_after_a_write_that_nobody_answered(
    store: CompletedCheckpointStore, objects: Unreliable
) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    statistics = store.load_statistics(attempt)
    unanswered(objects, STATISTICS_KEY, lambda: store.save_statistics(attempt, statistics))
    statistics.record(DONE)
    store.save_statistics(attempt, statistics)  # finds out
    store.save_statistics(attempt, statistics)
    assert store.statistics().counts.completed == 1


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"version": 1}'])
def test_damaged_statistics_are_written_anew(store: CompletedCheckpointStore, objects: Unreliable, data: bytes) -> None:
    store.begin_attempt("run-0", NOW)
    objects.put(STATISTICS_KEY, data)
    attempt = store.begin_attempt("run-1", NOW)
    assert store.load_statistics(attempt).history == ()
    store.save_statistics(attempt, CheckpointStatistics())
    assert json.loads(objects.get(STATISTICS_KEY)[0])["counts"]["completed"] == 0


# --- checkpoints that the job does not own ----------------------------------------------------------------------------


def unclaimed(store: CompletedCheckpointStore, objects: Unreliable) -> Attempt:
    """Creates checkpoint 1, which names ``a`` and is unclaimed, and checkpoint 3, which names ``c``."""
    attempt = store.begin_attempt("run-1", NOW)
    complete(store, attempt, state(objects, "a"))
    attempt.leave_unclaimed(1)
    complete(store, attempt, state(objects, "b"))
    complete(store, attempt, state(objects, "c"))
    store.subsume(attempt, [1, 2])
    return attempt


def test_what_the_job_does_not_own_is_kept(store: CompletedCheckpointStore, objects: Unreliable) -> None:
    unclaimed(store, objects)
    assert [(e.checkpoint_id, e.status) for e in store.list_checkpoints()] == [
        (1, EntryStatus.UNCLAIMED),
        (3, EntryStatus.LATEST),
    ]
    assert keys(objects, "shared/") == operator("a").files() | operator("c").files()
    assert store.retained() == (3,)
    later = store.begin_attempt("run-2", NOW)
    complete(store, later, operator("c"))
    store.subsume(later, [3])
    assert keys(objects, "shared/") == operator("a").files() | operator("c").files()


def test_it_is_deleted_when_its_owner_says_so(store: CompletedCheckpointStore, objects: Unreliable) -> None:
    unclaimed(store, objects)
    attempt = store.begin_attempt("somebody", NOW)
    store.dispose(attempt, 1)
    assert [e.checkpoint_id for e in store.list_checkpoints()] == [3]
    assert keys(objects, "shared/") == operator("c").files()
    with pytest.raises(
        CheckpointError, match=r"chk-1 is not an unclaimed checkpoint; the unclaimed checkpoints are: none"
    ):
        store.dispose(attempt, 1)


def test_what_the_job_retains_is_not_disposed_of(store: CompletedCheckpointStore, objects: Unreliable) -> None:
    attempt = unclaimed(store, objects)
    before = keys(objects)
    with pytest.raises(CheckpointError, match="chk-3 is retained by its job"):
        store.dispose(attempt, 3)
    assert keys(objects) == before


@pytest.mark.parametrize(
    "delete", [lambda s, a: s.dispose(a, 1), lambda s, a: s.delete_checkpoints(a)], ids=["dispose", "delete"]
)
def test_a_fenced_attempt_disposes_of_nothing(
    store: CompletedCheckpointStore,
    objects: Unreliable,
    delete: Callable[[CompletedCheckpointStore, Attempt], None],
) -> None:
    attempt = unclaimed(store, objects)
    store.begin_attempt("run-2", NOW)
    before = keys(objects)
    with pytest.raises(FencedError, match="run-2"):
        delete(store, attempt)
    assert keys(objects) == before


def test_all_checkpoints_of_the_job_are_deleted_and_ids_go_on(
    store: CompletedCheckpointStore, objects: Unreliable
) -> None:
    attempt = unclaimed(store, objects)
    store.delete_checkpoints(attempt)
    assert store.latest() is None
    assert [e.checkpoint_id for e in store.list_checkpoints()] == [1]
    assert keys(objects, "shared/") == operator("a").files()
    second = store.begin_attempt("run-2", NOW)
    assert (second.latest, second.token, store.assign_checkpoint_id(second)) == (None, 2, 4)
    found = read_head(objects)
    assert found is not None
    assert found[0].unclaimed == (1,)


# --- hostile JSON -----------------------------------------------------------------------------------------------------

HOSTILE = {
    "deep": b'{"token": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "infinite": b'{"token": 1e999, "last": 1e999, "fencing_token": 1e999}',
    "a bool": b'{"token": true, "last": true, "fencing_token": true}',
    "text": b'{"token": "1", "last": "1", "fencing_token": "1"}',
    "negative": b'{"token": -1, "last": -1, "fencing_token": -1}',
    "too large": b'{"token": 9223372036854775808, "last": 9223372036854775808, "fencing_token": 9223372036854775808}',
    "no object": b"[1]",
    "no JSON": b"\xff",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("key", [LEADER_KEY, COUNTER_KEY, HEAD_KEY])
def test_hostile_json_is_named_and_says_what_to_do(
    store: CompletedCheckpointStore, objects: Unreliable, key: str, data: bytes
) -> None:
    store.begin_attempt("run-0", NOW)
    objects.put(key, data)
    with pytest.raises(CorruptMetadataError, match=rf"flights/{key} .*(delete the object|flinkpy checkpoints recover)"):
        store.begin_attempt("run-1", NOW)
    assert objects.get(key)[0] == data


@pytest.mark.parametrize("time", ["acquired_at", "expires_at"])
def test_a_time_that_no_calendar_has_is_hostile_too(
    store: CompletedCheckpointStore, objects: Unreliable, time: str
) -> None:
    store.begin_attempt("run-0", NOW)
    record = json.loads(objects.get(LEADER_KEY)[0])
    objects.put(LEADER_KEY, json.dumps({**record, time: 10**18}).encode())
    with pytest.raises(CorruptMetadataError, match=rf"<= 253402300799999 - at `\$\.{time}`"):
        store.leader()


@pytest.mark.parametrize("data", [*HOSTILE.values(), b'{"version": 1, "counts": {"completed": 1e999}, "history": []}'])
def test_hostile_statistics_are_none(store: CompletedCheckpointStore, objects: Unreliable, data: bytes) -> None:
    attempt = store.begin_attempt("run-0", NOW)
    objects.put(STATISTICS_KEY, data)
    found = store.load_statistics(attempt)
    assert (found.history, found.counts.completed) == ((), 0)
