from __future__ import annotations

import fcntl
import multiprocessing
import multiprocessing.synchronize
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dagster_flinkpy.errors import PathEscapesPrefixError, PreconditionFailedError, StorageError
from dagster_flinkpy.storage.local import LocalObjectStore, _locked


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
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(2)
    processes = [
        spawn.Process(target=_count, args=(str(tmp_path), "x/y/", start)),
        spawn.Process(target=_count, args=(str(tmp_path / "x" / "y"), "", start)),
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
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
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(2)
    processes = [spawn.Process(target=_create, args=(str(tmp_path), name, start)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
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
    with _locked(tmp_path), lock.open("rb") as another, pytest.raises(BlockingIOError):
        flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert taken


HELD = """
import sys
from pathlib import Path
from dagster_flinkpy.storage.local import _locked

with _locked(Path(sys.argv[1])):
    print("held", flush=True)
    input()
"""


def test_a_stopped_process_that_holds_the_lock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dagster_flinkpy.storage.local._LOCK_TIMEOUT_SECONDS", 0.1)
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

KILLED_AT_STEP = """
import os, signal, sys
from dagster_flinkpy.storage.local import LocalObjectStore

root, action, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = LocalObjectStore(root)
if action == "complete":
    upload = store.create_upload("d/k")
    parts = [store.upload_part("d/k", upload, n, b"new" * 10_000) for n in (1, 2)]

steps = 0

def watched(call):
    def before(*args, **kwargs):
        global steps
        steps += 1
        if steps == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return before

for name in ("open", "mkdir", "fsync", "link", "replace", "unlink", "rmdir", "close"):
    setattr(os, name, watched(getattr(os, name)))

if action == "put":
    store.put("d/k", b"new" * 20_000)
elif action == "create":
    store.put("d/k", b"new" * 20_000, if_none_match=True)
else:
    store.complete_upload("d/k", upload, parts, if_none_match=not os.path.exists(root + "/d/k"))
"""


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
        killed = subprocess.run([sys.executable, "-c", KILLED_AT_STEP, str(root), action, str(step)], check=False)
        visible = {found.key: store.get(found.key)[0] for found in store.list()}
        assert visible in ({"d/k": new}, {} if old is None else {"d/k": old})
        seen.add(visible.get("d/k"))
        store.put("d/k", b"later")  # no lock is left behind
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL
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


def test_a_part_that_was_tampered_with_is_not_published(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    upload = store.create_upload("k")
    part = store.upload_part("k", upload, 1, b"1")
    (tmp_path / ".flinkpy/uploads/k" / upload / "1").write_bytes(b"2")
    with pytest.raises(StorageError, match="part 1 of upload"):
        store.complete_upload("k", upload, [part])
    assert store.head("k") is None


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
