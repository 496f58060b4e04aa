"""What every store must do. Each test runs on a local directory, on MiniStack and, if available, on Ceph RGW."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from botocore.retries.standard import ExponentialBackoff

from dagster_flinkpy.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    PathEscapesPrefixError,
    PreconditionFailedError,
    StorageError,
    UploadNotFoundError,
)
from dagster_flinkpy.storage import ObjectStore, StorageLocation, UploadedPart
from dagster_flinkpy.storage.origins import add_origins, origins_of

ODD_KEYS = [
    "a b",
    "a+b",
    "a%20b",
    "100%",
    "ä/ö",
    "日本/語",
    "e=1/f=x:y",
    "q?x=1&y=2#z",
    "-dash",
    "~tilde",
    "'quote\"",
    "<&>",
    ".hidden",
    "a;b,c@d$e!(f)*[g]{h}|^`",
]
ESCAPES = ["", "/abs", "a//b", "a/", "..", "../a", "a/../b", "a/..", ".", "a/./b", "a\\b", "a\nb", "a\0b"]
PART = 5 * 2**20


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [found.key for found in store.list(prefix)]


def race(count: int, act: Callable[[int], object]) -> list[object]:
    """Runs ``act(i)`` in ``count`` threads that start together. Errors are returned as results."""
    barrier = threading.Barrier(count)

    def run(i: int) -> object:
        barrier.wait()
        try:
            return act(i)
        except StorageError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


# --- objects ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000])
def test_put_get_head(store: ObjectStore, data: bytes) -> None:
    before = datetime.now(timezone.utc) - timedelta(minutes=1)
    etag = store.put("a/b", data)
    assert store.get("a/b") == (data, etag)
    head = store.head("a/b")
    assert head is not None
    assert (head.key, head.size, head.etag) == ("a/b", len(data), etag)
    assert before < head.last_modified < datetime.now(timezone.utc) + timedelta(minutes=1)


def test_put_replaces(store: ObjectStore) -> None:
    first = store.put("k", b"long content")
    second = store.put("k", b"short")
    assert first != second
    assert store.get("k") == (b"short", second)


def test_missing_object(store: ObjectStore) -> None:
    assert store.head("none") is None
    with pytest.raises(ObjectNotFoundError, match="none"):
        store.get("none")
    with pytest.raises(ObjectNotFoundError, match="none"):
        store.get_range("none", 0, 1)
    store.delete("none")
    store.delete_many(["none", "none/either"])


def test_a_folder_is_no_object(store: ObjectStore) -> None:
    store.put("a/b", b"1")
    assert store.head("a") is None
    with pytest.raises(ObjectNotFoundError):
        store.get("a")
    store.delete("a")
    assert keys(store) == ["a/b"]


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [(0, 3, b"012"), (4, 2, b"45"), (8, 100, b"89"), (10, 1, b""), (99, 5, b""), (3, 0, b"")],
)
def test_get_range(store: ObjectStore, start: int, length: int, expected: bytes) -> None:
    store.put("k", b"0123456789")
    assert store.get_range("k", start, length) == expected


def test_get_range_of_an_empty_object(store: ObjectStore) -> None:
    store.put("k", b"")
    assert store.get_range("k", 0, 5) == b""


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1)])
def test_get_range_refuses_negative_numbers(store: ObjectStore, start: int, length: int) -> None:
    with pytest.raises(ConfigurationError, match="negative"):
        store.get_range("k", start, length)


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys(store: ObjectStore, key: str) -> None:
    etag = store.put(key, key.encode(), if_none_match=True)
    store.put(key, key.encode() + b"2", if_match=etag)
    assert store.get(key)[0] == key.encode() + b"2"
    assert store.get_range(key, 0, 1) == key.encode()[:1]
    assert keys(store) == [key]
    assert keys(store, key) == [key]
    upload = store.create_upload(key)
    assert [found.key for found in store.list_uploads()] == [key]
    store.abort_upload(key, upload)
    store.delete_many([key])
    assert keys(store) == []


@pytest.mark.parametrize("key", ESCAPES)
def test_keys_that_could_leave_the_prefix(store: ObjectStore, key: str) -> None:
    actions: list[Callable[[], object]] = [
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.head(key),
        lambda: store.put(key, b""),
        lambda: store.delete(key),
        lambda: store.delete_many([key]),
        lambda: store.create_upload(key),
        lambda: store.upload_part(key, "u", 1, b""),
        lambda: store.abort_upload(key, "u"),
    ]
    for action in actions:
        with pytest.raises(PathEscapesPrefixError):
            action()


def test_prefixes_that_could_leave_the_prefix(store: ObjectStore) -> None:
    for prefix in ("/", "../", "a/../", "a//"):
        with pytest.raises(PathEscapesPrefixError):
            list(store.list(prefix))
        with pytest.raises(PathEscapesPrefixError):
            list(store.list_folders(prefix))
        with pytest.raises(PathEscapesPrefixError):
            list(store.list_uploads(prefix))
    with pytest.raises(PathEscapesPrefixError):
        store.child("..")


# --- listing ----------------------------------------------------------------------------------------------------------


def test_list_is_sorted_and_takes_any_prefix(store: ObjectStore) -> None:
    names = ["a", "a-b", "a.b", "b/c", "b/c0", "b/d/e", "b0", "chk-1/x", "chk-10/x", "chk-2/x", "ä"]
    for name in reversed(names):
        store.put(name, b"1")
    assert keys(store) == sorted(names, key=str.encode)
    assert keys(store, "b/") == ["b/c", "b/c0", "b/d/e"]
    assert keys(store, "b/c") == ["b/c", "b/c0"]
    assert keys(store, "b") == ["b/c", "b/c0", "b/d/e", "b0"]
    assert keys(store, "chk-1") == ["chk-1/x", "chk-10/x"]
    assert keys(store, "none") == keys(store, "none/") == keys(store, "a/") == []


def test_list_of_a_name_with_siblings_below_it(store: ObjectStore) -> None:
    # '-' sorts before '/', '0' after it
    for name in ("a0", "a/x", "a-b"):
        store.put(name, b"1")
    assert keys(store) == ["a-b", "a/x", "a0"]


def test_list_tells_size_and_time(store: ObjectStore) -> None:
    etag = store.put("k", b"12345")
    (found,) = store.list()
    assert (found.key, found.size) == ("k", 5)
    assert found.etag in (etag, "")
    assert found.last_modified.tzinfo is not None


def test_what_is_found_is_as_it_is_listed(store: ObjectStore) -> None:
    for name in ("a/k", "a/k2", "b"):
        store.put(name, b"12345")
    assert [store.find(info.key) for info in store.list()] == list(store.list())
    assert [store.find(name) for name in ("a", "a/k/x", "b2", "none/k")] == [None] * 4


def test_list_folders(store: ObjectStore) -> None:
    for name in ("top", "chk-1/_metadata", "chk-1/b/c", "chk-2/x", "shared/y"):
        store.put(name, b"1")
    assert list(store.list_folders()) == ["chk-1/", "chk-2/", "shared/"]
    assert list(store.list_folders("chk-")) == ["chk-1/", "chk-2/"]
    assert list(store.list_folders("chk-1/")) == ["chk-1/b/"]
    assert list(store.list_folders("none/")) == []


def test_a_folder_goes_with_its_last_object(store: ObjectStore) -> None:
    for name in ("chk-1/a/b", "chk-1/c", "chk-2/a/b"):
        store.put(name, b"1")
    store.delete("chk-1/a/b")
    assert list(store.list_folders()) == ["chk-1/", "chk-2/"]
    assert list(store.list_folders("chk-1/")) == []
    store.delete_many(["chk-1/c", "chk-2/a/b"])
    assert list(store.list_folders()) == []
    store.put("chk-1", b"now an object")
    assert keys(store) == ["chk-1"]


def test_more_keys_than_a_page(store: ObjectStore) -> None:
    names = [f"n/{i:04d}" for i in range(1003)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b""), names))
        list(pool.map(lambda i: store.put(f"f/{i}/x", b""), range(3)))
    assert keys(store, "n/") == names
    store.delete_many(names[1:])
    assert keys(store, "n/") == names[:1]
    assert list(store.list_folders()) == ["f/", "n/"]


# --- conditional writes -----------------------------------------------------------------------------------------------


def test_if_none_match(store: ObjectStore) -> None:
    etag = store.put("k", b"1", if_none_match=True)
    for again in (b"2", b"1"):
        with pytest.raises(PreconditionFailedError, match="k"):
            store.put("k", again, if_none_match=True)
    assert store.get("k") == (b"1", etag)
    store.delete("k")
    store.put("k", b"3", if_none_match=True)
    assert store.get("k")[0] == b"3"


def test_if_match(store: ObjectStore) -> None:
    first = store.put("k", b"1")
    second = store.put("k", b"2", if_match=first)
    with pytest.raises(PreconditionFailedError, match="k"):
        store.put("k", b"3", if_match=first)
    assert store.get("k") == (b"2", second)


def test_if_match_of_a_missing_object(store: ObjectStore) -> None:
    etag = store.put("k", b"1")
    store.delete("k")
    with pytest.raises(PreconditionFailedError, match="k"):
        store.put("k", b"2", if_match=etag)
    assert store.head("k") is None


@pytest.mark.parametrize("key", ["r1", "r2", "r3"])
@pytest.mark.parametrize("same_content", [False, True])
def test_one_of_twelve_racing_creators_wins(store: ObjectStore, key: str, same_content: bool) -> None:
    contents = [b"same" if same_content else b"%d" % i for i in range(12)]
    results = race(12, lambda i: store.put(key, contents[i], if_none_match=True))
    (winner,) = [i for i, result in enumerate(results) if isinstance(result, str)]
    assert all(isinstance(r, PreconditionFailedError) for i, r in enumerate(results) if i != winner)
    assert store.get(key) == (contents[winner], results[winner])


def test_compare_and_swap_counter_of_six_threads(store: ObjectStore) -> None:
    store.put("n", b"0")

    def count(_: int) -> None:
        for _ in range(8):
            while True:
                data, etag = store.get("n")
                try:
                    store.put("n", b"%d" % (int(data) + 1), if_match=etag)
                    break
                except PreconditionFailedError:
                    continue

    assert race(6, count) == [None] * 6
    assert store.get("n")[0] == b"48"


def test_writers_and_deleters_of_one_folder(store: ObjectStore) -> None:
    """Every successful write is kept, although the folder is created and deleted all the time."""

    def churn(i: int) -> None:
        for n in range(15):
            store.put(f"d/e/{i}", b"%d" % n, if_none_match=True)
            assert store.get(f"d/e/{i}")[0] == b"%d" % n
            store.delete(f"d/e/{i}")
        store.put(f"d/e/{i}", b"kept")

    assert race(6, churn) == [None] * 6
    assert keys(store) == [f"d/e/{i}" for i in range(6)]


# --- staged uploads ---------------------------------------------------------------------------------------------------


def test_an_upload_is_invisible_until_complete(store: ObjectStore) -> None:
    upload = store.create_upload("d/k")
    second = store.upload_part("d/k", upload, 2, b"end")
    first = store.upload_part("d/k", upload, 1, b"x" * PART)
    assert store.head("d/k") is None
    assert keys(store) == []
    assert list(store.list_folders()) == []
    (staged,) = store.list_uploads()
    assert (staged.key, staged.upload_id) == ("d/k", upload)

    store.complete_upload("d/k", upload, [second, first])
    assert store.get("d/k")[0] == b"x" * PART + b"end"
    assert list(store.list_uploads()) == []
    assert keys(store) == ["d/k"]


def test_complete_of_a_taken_key(store: ObjectStore) -> None:
    etag = store.put("k", b"first")
    upload = store.create_upload("k")
    part = store.upload_part("k", upload, 1, b"second")
    with pytest.raises(PreconditionFailedError, match="k"):
        store.complete_upload("k", upload, [part])
    assert store.get("k") == (b"first", etag)
    store.complete_upload("k", upload, [part], if_none_match=False)
    assert store.get("k")[0] == b"second"


def test_complete_may_be_repeated(store: ObjectStore) -> None:
    upload = store.create_upload("k")
    parts = [store.upload_part("k", upload, 1, b"x" * PART), store.upload_part("k", upload, 2, b"y")]
    store.complete_upload("k", upload, parts)
    etag = store.get("k")[1]
    store.complete_upload("k", upload, parts)
    store.complete_upload("k", upload, parts, if_none_match=False)
    assert store.get("k") == (b"x" * PART + b"y", etag)


def test_parts_with_a_digest_of_all(store: ObjectStore) -> None:
    contents = [b"x" * PART, b"y" * PART, b"z"]
    digests = [hashlib.sha256(b"".join(contents[:end])).hexdigest() for end in (1, 2, 3)]
    uploads = {}
    for upload in (store.create_upload("k"), store.create_upload("k")):
        uploads[upload] = [
            store.upload_part("k", upload, n, contents[n - 1], sha256_of_all=digests[n - 1]) for n in (1, 2, 3)
        ]
    for upload in (*uploads, *uploads):
        store.complete_upload("k", upload, uploads[upload])
        assert store.get("k")[0] == b"".join(contents)


def test_complete_where_another_upload_left_the_same_content(store: ObjectStore) -> None:
    uploads = [store.create_upload("k") for _ in range(2)]
    parts = [store.upload_part("k", upload, 1, b"same") for upload in uploads]
    for upload, part in zip(uploads, parts, strict=True):
        store.complete_upload("k", upload, [part])
    assert store.get("k")[0] == b"same"
    assert list(store.list_uploads()) == []


def test_one_of_six_racing_completions_wins(store: ObjectStore) -> None:
    uploads = [store.create_upload("k") for _ in range(6)]
    parts = [store.upload_part("k", upload, 1, f"{i}".encode()) for i, upload in enumerate(uploads)]
    results = race(6, lambda i: store.complete_upload("k", uploads[i], [parts[i]]))
    (winner,) = [i for i, result in enumerate(results) if result is None]
    assert all(isinstance(r, PreconditionFailedError) for i, r in enumerate(results) if i != winner)
    assert store.get("k")[0] == f"{winner}".encode()


def test_abort(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ceph answers 500 to the completion, which is tried again: at once here.
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0)
    upload = store.create_upload("d/k")
    part = store.upload_part("d/k", upload, 1, b"x")
    store.abort_upload("d/k", upload)
    store.abort_upload("d/k", upload)
    assert list(store.list_uploads()) == []
    with pytest.raises(UploadNotFoundError, match="d/k"):
        store.upload_part("d/k", upload, 2, b"x")
    with pytest.raises(UploadNotFoundError, match="d/k"):
        store.complete_upload("d/k", upload, [part])
    assert store.head("d/k") is None


def test_complete_without_a_part_that_was_sent_elsewhere(store: ObjectStore) -> None:
    upload, other = store.create_upload("k"), store.create_upload("k")
    part = store.upload_part("k", other, 1, b"x")
    with pytest.raises(UploadNotFoundError, match="k"):
        store.complete_upload("k", upload, [part])
    assert store.head("k") is None


def test_complete_without_parts(store: ObjectStore) -> None:
    upload = store.create_upload("k")
    with pytest.raises(ConfigurationError, match="parts"):
        store.complete_upload("k", upload, [])


@pytest.mark.parametrize("number", [0, 10_001])
def test_part_numbers(store: ObjectStore, number: int) -> None:
    with pytest.raises(ConfigurationError, match="part number"):
        store.upload_part("k", store.create_upload("k"), number, b"x")


def test_a_part_sent_again_replaces_the_first(store: ObjectStore) -> None:
    upload = store.create_upload("k")
    store.upload_part("k", upload, 1, b"old")
    part = store.upload_part("k", upload, 1, b"new")
    store.complete_upload("k", upload, [part])
    assert store.get("k")[0] == b"new"


def test_parts_of_several_threads(store: ObjectStore) -> None:
    upload = store.create_upload("k")
    contents = [bytes([number]) * (PART + number) for number in range(4)]
    parts = race(4, lambda i: store.upload_part("k", upload, i + 1, contents[i]))
    store.complete_upload("k", upload, [part for part in parts if isinstance(part, UploadedPart)])
    assert store.get("k")[0] == b"".join(contents)


def test_list_uploads_by_prefix(store: ObjectStore) -> None:
    ids = {name: store.create_upload(name) for name in ("b/2", "b/1", "a", "b0")}
    assert [found.key for found in store.list_uploads()] == ["a", "b/1", "b/2", "b0"]
    assert [(found.key, found.upload_id) for found in store.list_uploads("b/")] == [(k, ids[k]) for k in ("b/1", "b/2")]
    assert [found.key for found in store.list_uploads("b")] == ["b/1", "b/2", "b0"]


# --- roots ------------------------------------------------------------------------------------------------------------


def test_a_child_sees_its_part_only(store: ObjectStore, location: StorageLocation) -> None:
    child = store.child("x/y z")
    store.put("other", b"")
    etag = child.put("k", b"1")
    assert store.get("x/y z/k") == (b"1", etag)
    assert keys(child) == ["k"]
    assert child.url.startswith(store.url + "/x/y")
    assert keys(location.child("x/y z").open()) == ["k"]
    upload = child.create_upload("u")
    assert [found.key for found in store.list_uploads()] == ["x/y z/u"]
    part = store.upload_part("x/y z/u", upload, 1, b"u")
    child.complete_upload("u", upload, [part])
    assert keys(store) == ["other", "x/y z/k", "x/y z/u"]


def test_a_child_and_its_parent_exclude_each_other(store: ObjectStore) -> None:
    child = store.child("x")
    store.put("x/n", b"0")

    def count(i: int) -> None:
        root, key = (store, "x/n") if i % 2 else (child, "n")
        for _ in range(6):
            while True:
                data, etag = root.get(key)
                try:
                    root.put(key, b"%d" % (int(data) + 1), if_match=etag)
                    break
                except PreconditionFailedError:
                    continue

    assert race(4, count) == [None] * 4
    assert child.get("n")[0] == b"24"


def test_a_location_travels(location: StorageLocation) -> None:
    location.open().put("k", b"1")
    copy = pickle.loads(pickle.dumps(location))
    assert copy == location
    assert copy.open().get("k")[0] == b"1"
    assert copy.open().url == location.url


def test_probe_leaves_nothing(store: ObjectStore) -> None:
    store.probe()
    assert keys(store) == []
    assert list(store.list_uploads()) == []


def test_files_of_origins_are_read_where_they_are(store: ObjectStore) -> None:
    store.put("one/shared/a", b"of one")
    store.put("one/savepoint/exchange/b", b"of a savepoint")
    store.put("two/shared/c", b"of two")
    store.put("one/shared/c", b"of one")
    two = store.child("two")
    add_origins(two, ["one", "one/savepoint"])
    assert origins_of(two) == ["one", "one/savepoint"]
    assert [two.get(f"shared/{name}")[0] for name in "ac"] == [b"of one", b"of two"]
    assert two.get_range("exchange/b", 5, 9) == b"savepoint"
    two.delete("shared/a")
    assert two.get("shared/a")[0] == b"of one"
    store.put("one/HEAD", b"only files whose names tell their content are read elsewhere")
    for key in ("HEAD", "shared/b", "shared/d"):
        with pytest.raises(ObjectNotFoundError, match=f"two/{key}"):
            two.get(key)
    for path in ("../one", "a/../../b", "/one"):
        add_origins(two, [path])
        with pytest.raises(PathEscapesPrefixError):
            two.get("shared/d")
        two.delete(f"origins/{path.replace('/', '%2F')}")
