from __future__ import annotations

import errno
import fcntl
import hashlib
import multiprocessing.synchronize
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.errors import PathEscapesPrefixError, PreconditionFailedError, StorageError, UploadNotFoundError
from dagster_flinkpy.storage.local import LocalObjectStore
from dagster_flinkpy.storage.local_files import locked
from dagster_flinkpy.storage.object_store import UploadedPart
from tests.forks import processes
from tests.storage import killed_writes


def everything(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


# --- processes --------------------------------------------------------------------------------------------------------


def _count(root: str, prefix: str, start: multiprocessing.synchronize.Barrier) -> None:
    store, key = LocalObjectStore(root), f"{prefix}n"
    start.wait()
    for _ in range(40):
        while True:
            data, etag = store.get(key)
            try:
                store.put(key, b"%d" % (int(data) + 1), if_match=etag)
                break
            except PreconditionFailedError:
                continue


def test_two_processes_that_open_the_tree_at_different_heights_exclude_each_other(tmp_path: Path) -> None:
    LocalObjectStore(tmp_path).put("x/y/n", b"0")
    start = processes.Barrier(2)
    both = [
        processes.Process(target=_count, args=(str(tmp_path), "x/y/", start)),
        processes.Process(target=_count, args=(str(tmp_path / "x" / "y"), "", start)),
    ]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert LocalObjectStore(tmp_path).get("x/y/n")[0] == b"80"


def _create(root: str, name: str, start: multiprocessing.synchronize.Barrier) -> None:
    store = LocalObjectStore(root)
    for i in range(30):
        start.wait()
        try:
            store.put(f"k{i}", name.encode(), if_none_match=True)
            store.put(f"won/{i}-{name}", b"")
        except PreconditionFailedError:
            pass


def test_one_of_two_racing_processes_creates_each_object(tmp_path: Path) -> None:
    start = processes.Barrier(2)
    both = [processes.Process(target=_create, args=(str(tmp_path), name, start)) for name in "ab"]
    for process in both:
        process.start()
    for process in both:
        process.join()
    store = LocalObjectStore(tmp_path)
    winners = {f"won/{i}-{store.get(f'k{i}')[0].decode()}" for i in range(30)}
    assert {found.key for found in store.list("won/")} == winners


def test_a_lock_file_that_was_pruned_while_waiting_for_it_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / ".flinkpy" / "lock"
    flock, taken = fcntl.flock, []

    def flock_too_late(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and not taken:
            taken.append(os.fstat(descriptor).st_ino)
            lock.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_too_late)
    with locked(tmp_path), lock.open("rb") as another, pytest.raises(BlockingIOError):
        flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert taken


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    read, write = os.pipe()
    with locked(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    try:
        with (tmp_path / ".flinkpy" / "lock").open("rb") as another:
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


HELD = """
import sys
from pathlib import Path
from dagster_flinkpy.storage.local_files import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    input()
"""


def test_a_stopped_process_that_holds_the_lock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dagster_flinkpy.storage.local_files._LOCK_TIMEOUT_SECONDS", 0.1)
    store, command = LocalObjectStore(tmp_path), [sys.executable, "-c", HELD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        named = rf"cannot write .*/k: the lock .*/lock was not free .* process {holder.pid} \(.*python.*, stopped\)"
        with pytest.raises(StorageError, match=re.compile(named, re.DOTALL)):
            store.put("k", b"new")
        assert f"Waiting at most 0.1 s for the lock {tmp_path / '.flinkpy' / 'lock'}, held by" in caplog.text
        assert store.head("k") is None
        holder.kill()
    store.put("k", b"new")
    assert store.get("k")[0] == b"new"


# --- a crash at any step ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "old"), [("put", None), ("put", b"old"), ("create", None), ("complete", None), ("complete", b"old")]
)
def test_a_write_killed_at_any_step_leaves_the_old_object_or_the_new_one(
    tmp_path: Path, action: str, old: bytes | None
) -> None:
    new = b"new" * 20_000
    seen = set()
    for step in range(1, 100):
        root = tmp_path / str(step)
        store = LocalObjectStore(root)
        if old is not None:
            store.put("d/k", old)
        said, other = processes.Pipe(duplex=False)
        writer = processes.Process(target=killed_writes.write, args=(str(root), action, step, other))
        writer.start()
        other.close()
        upload, parts = said.recv() if action == "complete" else ("", [])
        writer.join()
        visible = {found.key: store.get(found.key)[0] for found in store.list()}
        assert visible in ({"d/k": new}, {} if old is None else {"d/k": old})
        seen.add(visible.get("d/k"))
        if action == "complete":
            store.complete_upload("d/k", upload, parts, if_none_match=old is None)
            assert store.get("d/k")[0] == new
            assert list(store.list_uploads()) == []
        store.put("d/k", b"later")  # no lock is left behind
        if writer.exitcode == 0:
            break
        assert writer.exitcode == -signal.SIGKILL
    else:
        pytest.fail("never ran to its end")
    assert seen == {old, new}


def test_what_a_killed_process_left_is_removed_a_day_later(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    store.put("d/k", b"1")
    left, fresh = tmp_path / "d/.flinkpy/tmp-left", tmp_path / "d/.flinkpy/tmp-fresh"
    left.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(left, (time.time() - 25 * 3600,) * 2)
    store.delete("d/k")
    assert (left.exists(), fresh.exists()) == (False, True)
    os.utime(fresh, (time.time() - 25 * 3600,) * 2)
    store.put("d/k", b"1")
    store.delete("d/k")
    assert not (tmp_path / "d").exists()


# --- the hidden folder ------------------------------------------------------------------------------------------------


def test_nothing_of_ours_stays_in_a_folder_without_objects(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "root")
    store.put("a/b/k", b"1")
    upload = store.create_upload("a/u/k")
    store.upload_part("a/u/k", upload, 1, b"1")
    store.abort_upload("a/u/k", upload)
    store.delete("a/b/k")
    assert everything(tmp_path) == ["root"]


def test_a_staged_upload_keeps_its_folder(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    upload = store.create_upload("d/k")
    part = store.upload_part("d/k", upload, 1, b"1")
    store.put("d/other", b"")
    store.delete("d/other")
    store.complete_upload("d/k", upload, [part])
    assert everything(tmp_path) == ["d", "d/.flinkpy", "d/.flinkpy/lock", "d/k"]


def test_the_hidden_folder_cannot_be_reached_by_key(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    store.put("k", b"1")
    for key in (".flinkpy/lock", "a/.flinkpy/x", ".flinkpy"):
        with pytest.raises(StorageError, match="reserved"):
            store.get(key)
        with pytest.raises(StorageError, match="reserved"):
            store.put(key, b"")
    with pytest.raises(StorageError, match="reserved"):
        list(store.list(".flinkpy/"))
    assert [found.key for found in store.list(".fl")] == []


def test_an_upload_id_cannot_leave_the_folder_of_its_object(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    store.put("keep/k", b"1")
    for upload_id in ("../../../keep", "..", "a/b", "/keep"):
        with pytest.raises(PathEscapesPrefixError):
            store.abort_upload("d/k", upload_id)
    assert store.get("keep/k")[0] == b"1"


def test_links_to_directories_are_not_followed_by_listings(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "root")
    store.put("k", b"1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_bytes(b"")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    assert list(store.list_folders()) == []
    assert [found.key for found in store.list()] == ["k"]


def test_a_key_below_an_object_and_an_object_in_place_of_a_folder(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    store.put("a/b", b"1")
    for condition in (True, False):
        with pytest.raises(StorageError, match=r"cannot write .*directory") as raised:
            store.put("a", b"2", if_none_match=condition)
        assert not isinstance(raised.value, PreconditionFailedError)
        with pytest.raises(StorageError, match="cannot write"):
            store.put("a/b/c", b"2", if_none_match=condition)
    assert [found.key for found in store.list()] == ["a/b"]


# --- parts of uploads -------------------------------------------------------------------------------------------------


def staged(root: Path, upload: str) -> Path:
    return root / ".flinkpy/uploads/k" / upload


def test_parts_that_come_in_order_are_not_written_again(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    upload = store.create_upload("k")
    parts = [store.upload_part("k", upload, number, b"%d" % number) for number in (1, 2, 7)]
    file = (staged(tmp_path, upload) / "data").stat().st_ino
    store.complete_upload("k", upload, parts)
    assert (tmp_path / "k").read_bytes() == b"127"
    assert (tmp_path / "k").stat().st_ino == file


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
@pytest.mark.parametrize("content", [b"1", b"x", b""])
@pytest.mark.parametrize("digests", [(None, None), (hashlib.sha256(b"1"), hashlib.sha256(b"12"))])
def test_a_part_that_is_not_as_it_was_sent_is_not_published(
    tmp_path: Path, order: tuple[int, ...], content: bytes, digests: tuple[Any, Any]
) -> None:
    store = LocalObjectStore(tmp_path)
    upload = store.create_upload("k")
    parts = [
        store.upload_part("k", upload, n, b"%d" % n, sha256_of_all=digests[n - 1] and digests[n - 1].hexdigest())
        for n in order
    ]
    (staged(tmp_path, upload) / "data").write_bytes(content)
    with pytest.raises(UploadNotFoundError, match=r"part \d of upload"):
        store.complete_upload("k", upload, parts)
    assert store.head("k") is None


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_parts_with_a_digest_of_all_are_joined(tmp_path: Path, order: tuple[int, ...]) -> None:
    store, digests = LocalObjectStore(tmp_path), (hashlib.sha256(b"1"), hashlib.sha256(b"12"))
    upload = store.create_upload("k")
    parts = [store.upload_part("k", upload, n, b"%d" % n, sha256_of_all=digests[n - 1].hexdigest()) for n in order]
    for _ in range(2):
        store.complete_upload("k", upload, parts)
        assert (tmp_path / "k").read_bytes() == b"12"
    store.put("k", b"1x")
    with pytest.raises(UploadNotFoundError):
        store.complete_upload("k", upload, parts)


def test_a_part_that_could_not_be_written_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, write = LocalObjectStore(tmp_path), os.pwrite
    upload = store.create_upload("k")
    parts = [store.upload_part("k", upload, 1, b"first")]

    def full(file: int, data: bytes, offset: int) -> int:
        if offset > 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:1], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StorageError, match="No space left on device"):
            store.upload_part("k", upload, 2, b"second")
    file = staged(tmp_path, upload) / "data"
    assert file.read_bytes() == b"first"
    store.complete_upload("k", upload, [*parts, store.upload_part("k", upload, 2, b"second")])
    assert (tmp_path / "k").read_bytes() == b"firstsecond"


def test_an_object_does_not_grow_when_its_upload_gets_another_part(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    upload = store.create_upload("k")
    part = store.upload_part("k", upload, 1, b"1")
    os.link(staged(tmp_path, upload) / "data", tmp_path / "k")  # killed before the upload was removed
    with pytest.raises(UploadNotFoundError):
        store.upload_part("k", upload, 2, b"2")
    store.complete_upload("k", upload, [part])
    assert store.get("k")[0] == b"1"


def test_no_part_arrives_while_an_upload_is_completed(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    upload = store.create_upload("k")
    part = store.upload_part("k", upload, 1, b"1")
    with (staged(tmp_path, upload) / "data").open("rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another part is being written now"):
            store.complete_upload("k", upload, [part])
    store.complete_upload("k", upload, [part])
    assert store.get("k")[0] == b"1"


def staged_by_version_0_1(store: LocalObjectStore, root: Path, *contents: bytes) -> tuple[str, list[UploadedPart]]:
    """Stages parts as version 0.1 did: each has a file."""
    upload = store.create_upload("k")
    (staged(root, upload) / "data").unlink()
    parts = []
    for number, content in enumerate(contents, start=1):
        (staged(root, upload) / str(number)).write_bytes(content)
        parts.append(UploadedPart(number, f"{hashlib.sha256(content).hexdigest()}-{len(content)}"))
    return upload, parts


def test_an_upload_of_version_0_1_is_completed(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    upload, parts = staged_by_version_0_1(store, tmp_path, b"one", b"two")
    for _ in range(2):
        store.complete_upload("k", upload, parts)
        assert store.get("k")[0] == b"onetwo"
    assert list(store.list_uploads()) == []


def test_an_upload_of_version_0_1_is_not_completed_if_a_part_is_another(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    upload, parts = staged_by_version_0_1(store, tmp_path, b"one", b"two")
    (staged(tmp_path, upload) / "2").write_bytes(b"owt")
    with pytest.raises(UploadNotFoundError, match=r"part \d of upload"):
        store.complete_upload("k", upload, parts)
    store.abort_upload("k", upload)
    assert everything(tmp_path) == [".flinkpy", ".flinkpy/lock"]


def test_parts_that_another_store_named_are_missing(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    upload = store.create_upload("k")
    store.put("k", b"")
    with pytest.raises(UploadNotFoundError, match=r"part \d of upload"):
        store.complete_upload("k", upload, [UploadedPart(1, "9e107d9d372bb6826bd81d3542a419d6")])


# --- places that cannot be written or listed --------------------------------------------------------------------------


def test_a_file_system_without_folders_is_named() -> None:
    store = LocalObjectStore("/proc/flinkpy")
    for write in (lambda: store.put("k", b"1"), lambda: store.create_upload("k")):
        with pytest.raises(StorageError, match=r"cannot write in /proc/flinkpy: a folder .* Choose another path"):
            write()


def test_a_file_or_a_broken_link_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(StorageError, match=f"cannot write in .*/{name}: it is a file or a broken link"):
            LocalObjectStore(tmp_path / name / "below").put("k", b"1")


def test_a_folder_that_cannot_be_listed_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "k").touch()
    scan = os.scandir

    def refuse(path: Path) -> object:
        if Path(path).name == "below":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageError, match=r"cannot list .*/below: Permission denied\. Check the path"):
        list(LocalObjectStore(tmp_path).list())


def test_a_folder_that_another_process_deletes_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for a file: it is there when it is made, and then it is no folder."""
    real, deleted = Path.mkdir, list[Path]()

    def mkdir(path: Path, *arguments: Any, **named: Any) -> None:
        if path.name == "store" and not deleted:
            deleted.append(path)
            raise FileExistsError(path)
        real(path, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    LocalObjectStore(tmp_path / "store").put("a", b"1")
    assert deleted
    assert (tmp_path / "store" / "a").read_bytes() == b"1"


def test_a_folder_is_not_listed_whole_for_each_object_that_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalObjectStore(tmp_path)
    (tmp_path / "many").mkdir()
    for i in range(100):
        (tmp_path / f"many/{i:02}").touch()
    seen: list[str] = []
    listdir, scandir = os.listdir, os.scandir

    class Counted:
        def __init__(self, path: Any) -> None:
            self.entries = scandir(path)

        def __enter__(self) -> Any:
            return (seen.append(entry.name) or entry for entry in self.entries)

        def __exit__(self, *error: object) -> None:
            self.entries.close()

    monkeypatch.setattr(os, "listdir", lambda path: [seen.append(name) or name for name in listdir(path)])
    monkeypatch.setattr(os, "scandir", Counted)
    store.delete_many([f"many/{i:02}" for i in range(50)])
    assert len(seen) <= 2 * 50, "one object that is left is enough, beside the hidden folder"
    monkeypatch.undo()
    store.delete_many([f"many/{i:02}" for i in range(50, 100)])
    assert everything(tmp_path) == []
