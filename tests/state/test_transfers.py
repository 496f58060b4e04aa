from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.errors import ObjectNotFoundError, StorageError
from dagster_flinkpy.state.files import transfers
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.files.transfers import Uploads, fetch
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.state.conftest import MakeBackend

VALUE = ValueStateDescriptor("v", Types.LONG())


@given(size=st.integers(0, 40), start=st.integers(0, 45), length=st.integers(0, 45))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_range_is_the_same_whatever_the_parts(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch, size: int, start: int, length: int
) -> None:
    monkeypatch.setattr(transfers, "PART_BYTES", 7)
    data = bytes(range(size))
    store.put("x", data)
    assert fetch(store, "x", start, length) == data[start : start + length]


def test_a_missing_object_is_missing_in_parts_too(store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PART_BYTES", 7)
    with pytest.raises(ObjectNotFoundError):
        fetch(store, "x", 0, 100)


class SlowStore(LocalObjectStore):
    """Makes uploads wait until they are released, or fail."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.go_on = threading.Event()
        self.error: StorageError | None = None

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        assert self.go_on.wait(300)
        if self.error:
            raise self.error
        return super().put(key, data, if_none_match=if_none_match, if_match=if_match)


def test_the_task_goes_on_while_its_state_is_uploaded(tmp_path: Path, make_backend: MakeBackend) -> None:
    store = SlowStore(tmp_path / "slow")
    backend = make_backend(key_type=Types.LONG(), store=store, inline_below=0)
    state = backend.get_state(VALUE)
    for epoch in range(3):
        backend.set_current_key(epoch)
        state.update(epoch)
        snapshot = backend.begin_snapshot()  # would never return if it waited
        backend.flush()
        backend.set_current_key(epoch)
        assert state.value() == epoch
    assert not list(store.list())
    store.go_on.set()
    assert snapshot.result().files() <= {info.key for info in store.list()}


def test_a_failed_upload_is_an_error_at_the_barrier(tmp_path: Path, make_backend: MakeBackend) -> None:
    store = SlowStore(tmp_path / "slow")
    store.error = StorageError("the disk is full")
    backend = make_backend(key_type=Types.LONG(), store=store, inline_below=0)
    state = backend.get_state(VALUE)
    backend.set_current_key(1)
    state.update(1)
    snapshot = backend.begin_snapshot()
    store.go_on.set()
    with pytest.raises(StorageError, match="the disk is full"):
        snapshot.result()
    backend.set_current_key(2)
    state.update(2)
    with pytest.raises(StorageError, match="the disk is full"):
        backend.snapshot()


def test_what_could_not_be_uploaded_is_uploaded_with_the_next_snapshot(
    tmp_path: Path, make_backend: MakeBackend
) -> None:
    store = SlowStore(tmp_path / "slow")
    store.error = StorageError("503")
    backend = make_backend(key_type=Types.LONG(), store=store, inline_below=0)
    state = backend.get_state(VALUE)
    backend.set_current_key(1)
    state.update(1)
    failed = backend.begin_snapshot().settle()
    store.go_on.set()
    assert all(upload.exception() is not None for upload in failed.uploads)
    store.error = None
    again = backend.snapshot()
    assert again.files() == failed.snapshot.files()
    assert {info.key for info in store.list()} == again.files()
    assert backend.snapshot() == again


def test_a_snapshot_that_begins_before_an_upload_has_failed_fails_with_it(
    tmp_path: Path, make_backend: MakeBackend
) -> None:
    store = SlowStore(tmp_path / "slow")
    store.error = StorageError("503")
    backend = make_backend(key_type=Types.LONG(), store=store, inline_below=0)
    backend.get_state(VALUE)
    backend.set_current_key(1)
    backend.get_state(VALUE).update(1)
    backend.begin_snapshot()
    second = backend.begin_snapshot().settle()
    store.go_on.set()
    assert second.snapshot.files()
    assert any(upload.exception() is not None for upload in second.uploads)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("in_metadata", [False, True])
def test_what_cannot_be_written_again_is_not_lost(
    make_backend: MakeBackend, cache: RunCache, early: bool, in_metadata: bool
) -> None:
    def update(backend: Any, key: int) -> None:
        backend.set_current_key(key)
        backend.get_state(VALUE).update(key)

    probe = make_backend(key_type=Types.LONG())
    update(probe, 0)
    size = probe.snapshot().tables[0].runs[0].bytes
    backend = make_backend(key_type=Types.LONG(), inline_below=size + 1 if in_metadata else 0)
    for key in range(2):
        update(backend, key)
        backend.snapshot()
    update(backend, 2)  # with it, runs that are in the metadata become a file
    real = cache._write
    cache._write = Mock(side_effect=StorageError("the disk is full"))  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(StorageError, match="the disk is full"):
            backend.flush() if early else backend.snapshot()
    cache._write = real  # type: ignore[method-assign]
    restored = make_backend(backend.snapshot(), key_type=Types.LONG())
    restored.get_state(VALUE)
    assert [restored.read("v", key) for key in range(3)] == [0, 1, 2]


def test_what_no_snapshot_names_any_more_is_not_uploaded_again(tmp_path: Path) -> None:
    uploads, tried = Uploads(), list[str]()

    def upload(path: str) -> None:
        tried.append(path)
        raise StorageError("503")

    for path in ("a", "b"):
        uploads.submit(path, lambda path=path: upload(path))  # type: ignore[misc]
    for pending in uploads.pending:
        pending.exception()
    uploads.retry({"a", "b"})
    assert len(tried) == 2, "the snapshot fails"
    uploads.retry({"b"})
    (left,) = uploads.pending
    left.exception()
    assert (sorted(tried), tried[-1]) == (["a", "b", "b"], "b")


def test_uploads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "_REQUESTS", 2)
    gates = [threading.Event() for _ in range(3)]
    order: list[int] = []
    uploads = Uploads()

    def upload(number: int) -> None:
        assert gates[number].wait(300)
        order.append(number)

    for number in range(2):
        uploads.submit(str(number), lambda number=number: upload(number))  # type: ignore[misc]
    gates[0].set()
    gates[2].set()
    uploads.submit("2", lambda: upload(2))  # waits for the first
    assert 0 in order
    gates[1].set()
    for pending in uploads.pending:
        pending.result()
    assert sorted(order) == [0, 1, 2]
