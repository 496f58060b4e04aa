from __future__ import annotations

import json
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_flinkpy.errors import CorruptMetadataError, FencedError
from dagster_flinkpy.storage import ObjectStore, lease
from dagster_flinkpy.storage.lease import LeaderRecord
from dagster_flinkpy.storage.local import LocalObjectStore

TTL = timedelta(seconds=30)
NOON = 1_700_000_000_000


@pytest.fixture
def job(tmp_path: Path) -> ObjectStore:
    return LocalObjectStore(tmp_path)


def test_the_leader_says_which_run_it_is_of_and_an_older_record_does_not(job: ObjectStore) -> None:
    lease.acquire(job, "a name that names run-2 too", TTL, NOON, led_by="run-1", above=0)
    data, etag = job.get("leader")
    found = lease.read(job)
    assert found is not None
    assert found.led_by == "run-1"
    older = {name: value for name, value in json.loads(data).items() if name != "led_by"}
    job.put("leader", json.dumps(older).encode(), if_match=etag)
    found = lease.read(job)
    assert found is not None
    assert found.led_by == ""


def test_first_leader(job: ObjectStore) -> None:
    assert lease.read(job) is None
    leader = lease.acquire(job, "run-1", TTL, NOON, above=0, led_by="")
    assert (leader.token, leader.owner) == (1, "run-1")
    nonce = leader.record.nonce
    at = {"host": socket.gethostname(), "pid": os.getpid()}
    assert lease.read(job) == LeaderRecord(1, "run-1", expires_at=NOON + 30_000, acquired_at=NOON, nonce=nonce, **at)
    assert json.loads(job.get("leader")[0]) == {
        "token": 1,
        "owner": "run-1",
        "expires_at": NOON + 30_000,
        "acquired_at": NOON,
        "nonce": nonce,
        "committed": None,
        "led_by": "",
        **at,
    }
    lease.check(job, leader)


def test_a_takeover_does_not_wait_and_fences_the_former_leader(job: ObjectStore) -> None:
    old = lease.acquire(job, "run-1", TTL, NOON, above=0, led_by="")
    new = lease.acquire(job, "run-2", TTL, NOON + 1, above=0, led_by="")
    assert (new.token, new.former) == (2, old.record)
    story = r"'run-1' \(token 1\) was fenced by .*'run-2' \(token 2\) at 2023-11-14T22:13:20.001\+00:00"
    with pytest.raises(FencedError, match=story):
        lease.check(job, old)
    lease.release(job, old)
    lease.check(job, new)
    assert lease.read(job) == new.record


def test_the_same_owner_again_is_another_attempt(job: ObjectStore) -> None:
    old = lease.acquire(job, "run-1", TTL, NOON, above=0, led_by="")
    new = lease.acquire(job, "run-1", TTL, NOON, above=0, led_by="")
    assert new.token == 2
    with pytest.raises(FencedError):
        lease.check(job, old)


def test_tokens_go_on_growing_after_a_release(job: ObjectStore) -> None:
    leader = lease.acquire(job, "run-1", TTL, NOON, above=0, led_by="")
    lease.release(job, leader)
    released = lease.read(job)
    assert released is not None
    assert (released.token, released.expires_at) == (1, 0)
    assert lease.acquire(job, "run-2", TTL, NOON, above=0, led_by="").token == 2


def test_deleted_leader_object_fences(job: ObjectStore) -> None:
    leader = lease.acquire(job, "run-1", TTL, NOON, above=0, led_by="")
    job.delete("leader")
    with pytest.raises(FencedError, match=r"'run-1' .*deleted"):
        lease.check(job, leader)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"token": "x", "owner": "a"}', b"null"])
def test_unreadable_leader_object_is_not_overwritten(job: ObjectStore, data: bytes) -> None:
    job.put("leader", data)
    with pytest.raises(CorruptMetadataError, match="leader is not a leader record"):
        lease.acquire(job, "run-1", TTL, NOON, above=0, led_by="")
    assert job.get("leader")[0] == data


def test_racing_attempts_get_different_tokens(store: ObjectStore) -> None:
    start = threading.Barrier(8)

    def attempt(i: int) -> lease.Leader:
        start.wait()
        return lease.acquire(store, f"run-{i}", TTL, NOON, above=0, led_by="")

    with ThreadPoolExecutor(8) as pool:
        leaders = list(pool.map(attempt, range(8)))
    assert sorted(leader.token for leader in leaders) == list(range(1, 9))
    for leader in leaders:
        if leader.token == 8:
            lease.check(store, leader)
        else:
            with pytest.raises(FencedError):
                lease.check(store, leader)
