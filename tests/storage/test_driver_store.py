"""The store of a task whose worker has no way to it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.errors import (
    ObjectNotFoundError,
    PathEscapesPrefixError,
    PreconditionFailedError,
    UnsupportedEnvironmentError,
    UploadNotFoundError,
)
from dagster_flinkpy.storage import ObjectStore, StorageLocation, UploadedPart
from dagster_flinkpy.storage.driver_store import Names, StoreRequest, TaskFiles, files_of_task, task_files

KEYS = st.sampled_from(["a", "b", "c/d"])
WRITES = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=8)),
    st.tuples(st.just("upload"), KEYS, st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=3)),
    st.tuples(st.just("abort"), KEYS, st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=3)),
    st.tuples(st.just("delete"), KEYS, st.none()),
)


def write(store: ObjectStore, writes: list[tuple[str, str, Any]]) -> None:
    for what, key, data in writes:
        if what == "put":
            store.put(key, data)
        elif what == "delete":
            store.delete(key)
        else:
            upload = store.create_upload(key)
            parts = [store.upload_part(key, upload, i, part) for i, part in enumerate(data, 1)]
            if what == "abort":
                store.abort_upload(key, upload)
            else:
                store.complete_upload(key, upload, parts, if_none_match=False)


def carry_out(files: TaskFiles, names: Names | None = None) -> Names:
    names = Names() if names is None else names
    for request in [StoreRequest.from_bytes(each.to_bytes()) for each in files.requests()]:
        names.carry_out(request, StorageLocation(**request.fields["store"]).open())
    return names


@given(st.lists(WRITES, max_size=8))
def test_what_the_driver_does_for_a_task_is_what_the_task_would_have_done(writes: list[tuple[str, str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        direct, by_driver = (StorageLocation(folder).child(name) for name in ("direct", "by driver"))
        write(direct.open(), writes)
        with task_files({}) as files:
            write(by_driver.open(), writes)
        assert not list(by_driver.open().list())
        carry_out(files)
        contents = [{i.key: s.get(i.key)[0] for i in s.list()} for s in (direct.open(), by_driver.open())]
        assert contents[0] == contents[1]
        assert not list(by_driver.open().list_uploads())


def test_a_staged_upload_can_be_completed_with_the_names_that_the_driver_has_replaced(tmp_path: Path) -> None:
    location = StorageLocation(str(tmp_path / "table"))
    with task_files({}) as files:
        store = location.child("day=1").open()
        upload = store.create_upload("rows")
        parts = [store.upload_part("rows", upload, 1, b"one"), store.upload_part("rows", upload, 2, b"two")]
    message = json.dumps({"id": upload, "parts": [each.etag for each in parts], "other": "of-driver-no"}).encode()
    said = json.loads(carry_out(files).replaced(message))
    assert said["other"] == "of-driver-no"
    real = [UploadedPart(each.number, etag) for each, etag in zip(parts, said["parts"], strict=True)]
    location.open().complete_upload("day=1/rows", said["id"], real)
    assert location.open().get("day=1/rows")[0] == b"onetwo"


def test_a_task_reads_what_was_sent_and_what_it_has_written(tmp_path: Path) -> None:
    location = StorageLocation(str(tmp_path))
    sent = {f"{location.url}/job/a": b"0123", f"{location.url}/job/gone": None}
    with task_files(sent):
        store = location.child("job").open()
        assert (store.get("a")[0], store.get_range("a", 1, 2), store.child("x").beside("a").url) == (
            b"0123",
            b"12",
            f"{location.url}/job/a",
        )
        store.put("b", b"new")
        assert location.open().get("job/b")[0] == b"new"
        assert store.head("gone") is None and store.head("b") is not None
        with pytest.raises(ObjectNotFoundError):
            store.get("gone")
        with pytest.raises(UnsupportedEnvironmentError, match="from_spark"):
            store.get("c")
        with pytest.raises(UnsupportedEnvironmentError, match="cannot list"):
            list(store.list("shared/"))
        with pytest.raises(PathEscapesPrefixError):
            store.put("../b", b"")
    assert files_of_task() is None


def test_a_file_that_must_be_new_may_be_there_from_an_earlier_try_but_not_with_other_content(tmp_path: Path) -> None:
    location = StorageLocation(str(tmp_path))
    for data, there in ((b"same", b"same"), (b"same", b"other")):
        location.open().put("a", there)
        with task_files({}) as files:
            location.open().put("a", data, if_none_match=True)
        if data == there:
            carry_out(files)
        else:
            with pytest.raises(PreconditionFailedError):
                carry_out(files)


def test_an_upload_that_an_earlier_epoch_has_begun_goes_on_under_its_own_name(
    tmp_path: Path,
) -> None:
    location = StorageLocation(str(tmp_path))
    upload = location.open().create_upload("a")
    first = location.open().upload_part("a", upload, 1, b"one")
    with task_files({}) as files:
        parts = [first, location.open().upload_part("a", upload, 2, b"two")]
        location.open().complete_upload("a", upload, parts)
    carry_out(files)
    assert location.open().get("a")[0] == b"onetwo"


def test_an_upload_that_was_cleaned_up_in_between_is_an_error(tmp_path: Path) -> None:
    location = StorageLocation(str(tmp_path))
    with task_files({}) as files:
        store = location.open()
        upload = store.create_upload("a")
    names = carry_out(files)
    for each in location.open().list_uploads():
        location.open().abort_upload(each.key, each.upload_id)
    with task_files({}) as files:
        location.open().upload_part("a", upload, 1, b"late")
    with pytest.raises(UploadNotFoundError):
        carry_out(files, names)
