"""The protocol of the store, on a local directory. Two stores on one directory are two runs of one job."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.counter import COUNTER_KEY
from dagster_flinkpy.checkpoint.head import HEAD_KEY, EntryStatus, Head
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptMetadataError,
    FencedError,
    HeadLostError,
    ObjectNotFoundError,
    PathEscapesPrefixError,
    StorageError,
)
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.checkpoint.samples import content, metadata, operator

NOW = 1_700_000_000_000


class Flaky(LocalObjectStore):
    """Calls a hook before the next read or write of one key, or fails after the write."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.before: dict[str, Callable[[], object]] = {}
        self.before_get: dict[str, Callable[[], object]] = {}
        self.lose_response: set[str] = set()
        self.puts: list[str] = []

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        self.puts.append(key)
        if hook := self.before.pop(key, None):
            hook()
        etag = super().put(key, data, if_none_match=if_none_match, if_match=if_match)
        if key in self.lose_response:
            self.lose_response.remove(key)
            raise StorageError("connection reset")
        return etag

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if hook := self.before_get.pop(key, None):
            hook()
        return super().get_range(key, start, length)


@pytest.fixture
def objects(tmp_path: Path) -> Flaky:
    return Flaky(str(tmp_path / "flights"))


@pytest.fixture
def store(objects: Flaky) -> CompletedCheckpointStore:
    return CompletedCheckpointStore(objects)


def state(objects: LocalObjectStore, *names: str) -> tuple[OperatorState, ...]:
    """Returns operators, and writes their files."""
    operators = tuple(operator(name) for name in names)
    for name in names:
        for index, path in enumerate(sorted(paths(name))):
            assert path.startswith("shared/")
            objects.put(path, content(f"{name}-{index}"))
    return operators


def paths(name: str) -> set[str]:
    return operator(name).files()


def complete(store: CompletedCheckpointStore, attempt: Attempt, *operators: OperatorState) -> CheckpointMetadata:
    done = metadata(store.assign_checkpoint_id(attempt), *(operators or (operator(),)), token=attempt.token)
    store.write_metadata(attempt, done)
    store.complete(attempt, done)
    return done


def slow_down() -> None:
    raise StorageError("503 SlowDown")


def keys(objects: LocalObjectStore, prefix: str = "") -> set[str]:
    return {info.key for info in objects.list(prefix)}


# --- beginning --------------------------------------------------------------------------------------------------------


def test_the_first_attempt_of_a_job(store: CompletedCheckpointStore) -> None:
    assert store.latest() is None
    assert store.retained() == ()
    assert store.list_checkpoints() == []
    attempt = store.begin_attempt("run-1", NOW)
    assert (attempt.token, attempt.latest, attempt.next_checkpoint_id) == (1, None, 1)
    assert store.latest() is None
    assert store.begin_attempt("run-2", NOW).token == 2


def test_the_next_attempt_goes_on_where_the_last_one_was(store: CompletedCheckpointStore) -> None:
    first = store.begin_attempt("run-1", NOW)
    complete(store, first)
    done = complete(store, first)
    second = store.begin_attempt("run-2", NOW)
    assert (second.token, second.latest, second.next_checkpoint_id) == (2, done, 3)
    assert store.latest() == done == first.latest
    assert store.load(2) == store.load("chk-2/_metadata") == done


def test_completing_takes_two_writes(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    objects.puts.clear()
    complete(store, attempt)
    assert objects.puts == ["counter", "chk-1/_metadata", "HEAD"]


def test_a_crash_between_metadata_and_head_leaves_an_orphan(store: CompletedCheckpointStore) -> None:
    first = store.begin_attempt("run-1", NOW)
    done = complete(store, first)
    store.write_metadata(first, metadata(2, token=first.token))
    second = store.begin_attempt("run-2", NOW)
    assert second.latest == done
    assert second.next_checkpoint_id == 3
    complete(store, second)
    assert [(e.checkpoint_id, e.status) for e in store.list_checkpoints()] == [
        (1, EntryStatus.ORPHAN),
        (2, EntryStatus.ORPHAN),
        (3, EntryStatus.LATEST),
    ]


def test_a_folder_without_metadata_uses_its_id_up_too(store: CompletedCheckpointStore, objects: Flaky) -> None:
    store.begin_attempt("run-0", NOW)
    objects.put("chk-41/part", b"")
    objects.put("chk-x/_metadata", b"")
    assert store.begin_attempt("run-1", NOW).next_checkpoint_id == 42


def test_tokens_grow_even_if_the_leader_object_was_deleted(store: CompletedCheckpointStore, objects: Flaky) -> None:
    for number in range(3):
        complete(store, store.begin_attempt(f"run-{number}", NOW))
    objects.delete(lease.LEADER_KEY)
    attempt = store.begin_attempt("run-9", NOW)
    assert attempt.token == 4
    complete(store, attempt)


def test_ids_go_on_after_that_of_a_savepoint(store: CompletedCheckpointStore) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    attempt.start_after(12)
    assert complete(store, attempt).checkpoint_id == 13
    attempt.start_after(4)
    assert complete(store, attempt).checkpoint_id == 14


def test_an_id_can_be_taken_in_advance(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    store.reserve_checkpoint_ids(attempt)
    store.reserve_checkpoint_ids(attempt)
    taken = objects.get(COUNTER_KEY)
    assert store.assign_checkpoint_id(attempt) == 1
    assert objects.get(COUNTER_KEY) == taken, "it was already taken"
    assert store.assign_checkpoint_id(attempt) == 2
    store.reserve_checkpoint_ids(attempt)
    assert store.begin_attempt("run-2", NOW).next_checkpoint_id == 4, "nobody else gets a reserved id"


def test_a_reserved_id_stays_though_another_attempt_takes_one(store: CompletedCheckpointStore) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    store.reserve_checkpoint_ids(attempt)
    other = store.begin_attempt("run-2", NOW)
    assert store.assign_checkpoint_id(other) == 2
    store.reserve_checkpoint_ids(attempt, 2)
    assert attempt.reserved_ids == (1, 3), "an epoch may be under way under the first one"


def test_a_reserved_id_below_that_of_a_savepoint_is_not_used(store: CompletedCheckpointStore) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    store.reserve_checkpoint_ids(attempt)
    attempt.start_after(1)
    assert store.assign_checkpoint_id(attempt) == 2


def test_an_attempt_that_ended_is_no_longer_alive(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    store.end_attempt(attempt)
    record = lease.read(objects)
    assert record is not None
    assert (record.owner, record.expires_at) == ("run-1", 0)
    store.end_attempt(attempt)


def test_a_run_whose_folder_was_taken_away_leaves_no_new_job(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    complete(store, attempt)
    objects.delete_many([found.key for found in objects.list()])
    store.end_run(attempt, NOW)
    with pytest.raises(HeadLostError, match=r"nothing else.*Put the folder of the job back.*start_empty"):
        store.begin_attempt("run-2", NOW)


# --- two runs at once -------------------------------------------------------------------------------------------------


def test_an_older_attempt_cannot_complete_and_is_told_by_whom(store: CompletedCheckpointStore, objects: Flaky) -> None:
    old = store.begin_attempt("run-old", NOW)
    done = metadata(store.assign_checkpoint_id(old), token=old.token)
    store.write_metadata(old, done)
    new = CompletedCheckpointStore(objects).begin_attempt("run-new", NOW)
    with pytest.raises(
        FencedError, match=r"'run-old' \(token 1\) was fenced by execution attempt 'run-new' \(token 2\)"
    ):
        store.complete(old, done)
    with pytest.raises(FencedError, match="run-new"):
        store.check_leader(old)
    assert store.latest() is None
    assert new.next_checkpoint_id == 2
    store.check_leader(new)


def test_an_attempt_that_is_overtaken_while_it_begins_is_fenced(
    store: CompletedCheckpointStore, objects: Flaky
) -> None:
    other = CompletedCheckpointStore(LocalObjectStore(objects.url.removeprefix("file://")))
    other.begin_attempt("run-1", NOW)
    objects.before[HEAD_KEY] = lambda: other.begin_attempt("run-new", NOW)
    with pytest.raises(FencedError, match="run-new"):
        store.begin_attempt("run-old", NOW)


def test_what_a_newer_attempt_has_subsumed_is_not_called_damaged(
    store: CompletedCheckpointStore, objects: Flaky
) -> None:
    complete(store, store.begin_attempt("first", NOW))

    def overtake() -> None:
        newer = store.begin_attempt("newer", NOW)
        complete(store, newer)
        store.subsume(newer, [1])

    objects.before_get["chk-1/_metadata"] = overtake
    with pytest.raises(FencedError, match="'newer'"):
        store.begin_attempt("slow", NOW)


def test_the_latest_is_read_again_if_it_was_subsumed_meanwhile(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("first", NOW)
    complete(store, attempt)

    def go_on() -> None:
        complete(store, attempt)
        store.subsume(attempt, [1])

    objects.before_get["chk-1/_metadata"] = go_on
    latest = store.latest()
    assert latest is not None
    assert latest.checkpoint_id == 2


def test_a_checkpoint_that_completes_while_the_next_attempt_begins_is_not_lost(
    store: CompletedCheckpointStore, objects: Flaky
) -> None:
    """The old attempt wins the race for HEAD once. The new one starts from the checkpoint that this completed."""
    plain = LocalObjectStore(objects.url.removeprefix("file://"))
    other = CompletedCheckpointStore(plain)
    old = other.begin_attempt("run-old", NOW)
    objects.before[HEAD_KEY] = lambda: complete(other, old)
    new = store.begin_attempt("run-new", NOW)
    assert new.latest is not None
    assert (new.latest.checkpoint_id, new.next_checkpoint_id) == (1, 2)
    with pytest.raises(FencedError, match="run-new"):
        complete(other, old)


def test_a_fenced_attempt_deletes_nothing(store: CompletedCheckpointStore, objects: Flaky) -> None:
    old = store.begin_attempt("run-old", NOW)
    complete(store, old, *state(objects, "a"))
    store.begin_attempt("run-new", NOW)
    before = keys(objects)
    for delete in (
        lambda: store.subsume(old, [1]),
        lambda: store.discard(old, paths("a")),
    ):
        with pytest.raises(FencedError, match="run-new"):
            delete()
    assert keys(objects) == before


def test_an_id_that_an_older_attempt_wrote_meanwhile_is_refused(store: CompletedCheckpointStore) -> None:
    old = store.begin_attempt("run-old", NOW)
    new = store.begin_attempt("run-new", NOW)
    store.write_metadata(old, metadata(1, token=old.token))
    with pytest.raises(CheckpointError, match="chk-1/_metadata already exists"):
        store.write_metadata(new, metadata(1, token=new.token))


def test_an_id_that_a_newer_attempt_wrote_meanwhile_says_who(store: CompletedCheckpointStore) -> None:
    old = store.begin_attempt("run-old", NOW)
    new = store.begin_attempt("run-new", NOW)
    store.write_metadata(new, metadata(1, token=new.token))
    with pytest.raises(FencedError, match="run-new"):
        store.write_metadata(old, metadata(1, token=old.token))


def test_a_head_that_somebody_else_replaced_fences(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    objects.put(HEAD_KEY, Head(fencing_token=9).to_bytes())
    with pytest.raises(FencedError, match="does not hold the leader object"):
        complete(store, attempt)


# --- unclear outcomes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["chk-1/_metadata", HEAD_KEY])
def test_a_write_whose_response_was_lost_is_resolved_by_reading_back(
    store: CompletedCheckpointStore, objects: Flaky, key: str
) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    objects.lose_response.add(key)
    first = complete(store, attempt)
    second = complete(store, attempt)
    assert (first.checkpoint_id, store.latest()) == (1, second)


def test_writing_the_same_metadata_again_is_a_success(store: CompletedCheckpointStore) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    done = metadata(1, token=attempt.token)
    store.write_metadata(attempt, done)
    store.write_metadata(attempt, done)
    store.complete(attempt, done)
    assert store.latest() == done


def test_an_outcome_that_stays_unknown_is_a_storage_error(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)

    def fail() -> None:
        raise StorageError("503")

    objects.before["chk-1/_metadata"] = fail
    with pytest.raises(StorageError, match="503"):
        store.write_metadata(attempt, metadata(1, token=attempt.token))


# --- misuse and damage ------------------------------------------------------------------------------------------------


def test_only_what_was_written_by_this_attempt_completes(store: CompletedCheckpointStore) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    with pytest.raises(CheckpointError, match="before its metadata is written"):
        store.complete(attempt, metadata(1, token=attempt.token))
    with pytest.raises(CheckpointError, match="fencing token 7, but the attempt has 1"):
        store.write_metadata(attempt, metadata(1, token=7))


def test_head_never_goes_back(store: CompletedCheckpointStore) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    older = metadata(1, token=attempt.token)
    store.write_metadata(attempt, older)
    attempt.next_checkpoint_id = 2
    complete(store, attempt)
    with pytest.raises(CheckpointError, match="checkpoint 1 is not newer than the latest, 2"):
        store.complete(attempt, older)


def test_num_retained_is_at_least_one(objects: Flaky) -> None:
    with pytest.raises(ConfigurationError, match="num_retained"):
        CompletedCheckpointStore(objects, 0)


def test_damaged_metadata_is_named(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    done = complete(store, attempt)
    objects.put("chk-1/_metadata", replace(done, partition="other").to_bytes())  # valid, but not what HEAD names
    with pytest.raises(CorruptMetadataError, match=r"flights/chk-1/_metadata is damaged: .* in HEAD"):
        store.begin_attempt("run-2", NOW)
    objects.delete("chk-1/_metadata")
    with pytest.raises(CorruptMetadataError, match="chk-1/_metadata is missing"):
        store.latest()


HEAD = {"fencing_token": 0, "checkpoint_id": 1, "path": "chk-1/_metadata", "metadata_sha256": "0" * 64, "retained": [1]}


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        json.dumps({**HEAD, "path": "../x"}).encode(),
        json.dumps({**HEAD, "path": None}).encode(),
    ],
    ids=["empty", "text", "list", "no fields", "path leads out", "no path"],
)
def test_a_damaged_head_is_named_and_not_overwritten(
    store: CompletedCheckpointStore, objects: Flaky, head: bytes
) -> None:
    objects.put(HEAD_KEY, head)
    with pytest.raises(CorruptMetadataError, match="flights/HEAD"):
        store.begin_attempt("run-1", NOW)
    assert objects.get(HEAD_KEY)[0] == head


def test_loading_what_is_not_there(store: CompletedCheckpointStore) -> None:
    with pytest.raises(ObjectNotFoundError):
        store.load(3)
    with pytest.raises(PathEscapesPrefixError):
        store.load("../other/chk-1/_metadata")


# --- retention --------------------------------------------------------------------------------------------------------


def test_subsuming_keeps_what_a_retained_checkpoint_names(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    a, b, c = state(objects, "a", "b", "c")
    complete(store, attempt, a, b)
    complete(store, attempt, b, c)
    assert store.retained() == (2,)
    store.subsume(attempt, [1])
    assert keys(objects, "chk-") == {"chk-2/_metadata"}
    assert keys(objects, "shared/") == paths("b") | paths("c")


def test_a_retained_checkpoint_is_never_subsumed(objects: Flaky) -> None:
    store = CompletedCheckpointStore(objects, num_retained=2)
    attempt = store.begin_attempt("run-1", NOW)
    for name in ("a", "b", "c"):
        complete(store, attempt, *state(objects, name))
    assert store.retained() == (2, 3)
    store.subsume(attempt, [1, 2, 3])
    assert [e.checkpoint_id for e in store.list_checkpoints()] == [2, 3]
    assert keys(objects, "shared/") == paths("b") | paths("c")


def test_subsuming_keeps_what_a_written_checkpoint_names(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    a, b = state(objects, "a", "b")
    complete(store, attempt, a)
    complete(store, attempt, b)
    store.write_metadata(attempt, metadata(3, a, token=attempt.token))
    store.subsume(attempt, [1])
    assert keys(objects, "shared/") == paths("a") | paths("b")


def test_subsuming_keeps_what_the_next_checkpoint_takes_over(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    a, b, c, d = state(objects, "a", "b", "c", "d")
    complete(store, attempt, a)
    complete(store, attempt, b)
    failed = metadata(store.assign_checkpoint_id(attempt), b, c, d, token=attempt.token)
    objects.before[f"chk-{failed.checkpoint_id}/_metadata"] = slow_down
    with pytest.raises(StorageError, match="503"):
        store.write_metadata(attempt, failed)
    store.subsume(attempt, [1])
    assert keys(objects, "shared/") == paths("b") | paths("c") | paths("d")
    complete(store, attempt, b, c)
    store.subsume(attempt, [2])
    assert keys(objects, "shared/") == paths("b") | paths("c")


def test_a_run_that_deletes_its_checkpoints_deletes_what_a_failed_one_names(
    store: CompletedCheckpointStore, objects: Flaky
) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    a, b = state(objects, "a", "b")
    complete(store, attempt, a)
    objects.before["chk-2/_metadata"] = slow_down
    with pytest.raises(StorageError, match="503"):
        store.write_metadata(attempt, metadata(2, b, token=attempt.token))
    store.delete_checkpoints(attempt)
    assert keys(objects, "shared/") == set()


def test_subsuming_again_is_fine(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    for name in ("a", "b"):
        complete(store, attempt, *state(objects, name))
    store.subsume(attempt, [1])
    store.subsume(attempt, [1])
    assert keys(objects, "shared/") == paths("b")


def test_discarding_spares_what_is_named_and_what_is_not_state(store: CompletedCheckpointStore, objects: Flaky) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    a, _ = state(objects, "a", "b")
    complete(store, attempt, a)
    store.discard(attempt, [*paths("a"), *paths("b"), "HEAD", "leader", "chk-1/_metadata"])
    assert keys(objects, "shared/") == paths("a")
    assert {"HEAD", "leader", "chk-1/_metadata"} <= keys(objects)


def test_the_listing_tells_size_and_time(store: CompletedCheckpointStore) -> None:
    attempt = store.begin_attempt("run-1", NOW)
    done = complete(store, attempt)
    (entry,) = store.list_checkpoints()
    assert (entry.path, entry.size) == ("chk-1/_metadata", len(done.to_bytes()))
    assert entry.last_modified.tzinfo is not None
