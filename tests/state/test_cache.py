from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.errors import CorruptStateError, StorageError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.state.files import cache as cache_module
from dagster_flinkpy.state.files import run_file
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.files.run_file import encode_run, upload_run
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.layout import TableLayout, make_sort_keys, sort_order
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.state.conftest import small_disk

ALL = KeyGroupRange(0, 127)
LAYOUT = TableLayout("v", "VALUE", Types.LONG(), value_type=Types.LONG())


def write(store: LocalObjectStore, rows: int = 1000) -> tuple[RunHandle, pa.Table]:
    column = pa.array(range(rows))
    hashes = hash_keys(LAYOUT.key_type, column)
    sort_keys = make_sort_keys(key_groups_of_hashes(hashes, 128), hashes)
    arrays = [pa.array(sort_keys), column, column, pa.array([False] * rows)]
    table = pa.table(arrays, schema=LAYOUT.local_schema).take(pa.array(sort_order(sort_keys, [column])))
    data, handle = encode_run(LAYOUT, table, ALL)
    upload_run(store, handle, data)
    return handle, table


def local_file(cache: RunCache, handle: RunHandle) -> Path:
    return cache.directory / f"{handle.sha256}.arrow"


def test_a_run_is_read_from_the_store_once(store: LocalObjectStore, cache: RunCache) -> None:
    handle, table = write(store)
    assert cache.open(handle, store).table().equals(table)
    assert (cache.hits, cache.misses) == (0, 1)
    store.delete(handle.path)
    assert RunCache(cache.directory).open(handle, store).table().equals(table)
    assert cache.open(handle, store).table().equals(table)
    assert (cache.hits, cache.misses) == (1, 1)


def test_a_run_just_written_is_not_read_at_all(store: LocalObjectStore, cache: RunCache) -> None:
    handle, table = write(store)
    store.delete(handle.path)
    assert cache.put(handle, table).table().equals(table)
    assert cache.open(handle, store).table().equals(table)
    assert (cache.hits, cache.misses) == (1, 0)


def test_a_clip_is_a_slice_of_the_whole_run(store: LocalObjectStore, cache: RunCache) -> None:
    handle, table = write(store)
    cache.put(handle, table)
    clip = handle.clip(KeyGroupRange(10, 20))
    assert clip is not None
    run = cache.open(clip, store)
    assert len(run) == clip.rows < len(table)
    assert set((run.sort_keys >> 32).tolist()) == set(range(10, 21))
    assert run.column("value").to_pylist() == table["value"].to_pylist()[run.start : run.stop]


def test_a_part_that_was_read_by_range_is_kept_beside_the_whole(
    store: LocalObjectStore, cache: RunCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file, "WHOLE_BELOW", 0)
    handle, table = write(store)
    clips = [handle.clip(KeyGroupRange(a, b)) for a, b in ((10, 20), (30, 40))]
    for clip in clips:
        assert clip is not None
        assert len(cache.open(clip, store)) == clip.rows
        assert len(cache.open(clip, store)) == clip.rows
    assert (cache.hits, cache.misses) == (2, 2)
    assert len(list(cache.directory.iterdir())) == 2
    assert len(cache.open(handle, store)) == len(table)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"x" * 5000),
        lambda path: flip(path, path.stat().st_size // 2),
        lambda path: flip(path, -1),
        lambda path: path.unlink(),
    ],
)
def test_a_damaged_local_file_is_rebuilt(store: LocalObjectStore, cache: RunCache, damage: Any) -> None:
    handle, table = write(store)
    cache.open(handle, store)
    damage(local_file(cache, handle))
    assert cache.open(handle, store).table().equals(table)
    assert cache.misses == 2
    assert RunCache(cache.directory).open(handle, store).table().equals(table)


def test_verified_files_are_remembered_up_to_a_number(
    store: LocalObjectStore, cache: RunCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered: set[tuple[str, int, int]] = set()
    monkeypatch.setattr(cache_module, "_verified", remembered)
    monkeypatch.setattr(cache_module, "_MOST_VERIFIED", 2)
    handles = [write(store, rows) for rows in (1, 2, 3, 4, 5)]
    for _ in range(2):
        for handle, table in handles:
            assert cache.open(handle, store).table().equals(table)
            assert len(remembered) <= 2
    assert (cache.hits, cache.misses) == (5, 5)
    flip(local_file(cache, handles[0][0]), 20)
    assert cache.open(handles[0][0], store).table().equals(handles[0][1])
    assert cache.misses == 6


def test_a_damaged_store_file_is_refused_and_nothing_is_cached(store: LocalObjectStore, cache: RunCache) -> None:
    handle, _ = write(store)
    store.put(handle.path, b"x" * handle.bytes)
    with pytest.raises(CorruptStateError, match=handle.path):
        cache.open(handle, store)
    assert not cache.directory.exists()


def test_the_least_recently_used_run_goes_first(store: LocalObjectStore, tmp_path: Path) -> None:
    written = [write(store, rows) for rows in (1000, 1001, 1002)]
    probe = RunCache(tmp_path / "probe")
    probe.put(*written[0])
    size = local_file(probe, written[0][0]).stat().st_size
    cache = RunCache(tmp_path / "cache")
    with small_disk(size * 5 // 2):
        for handle, table in written[:2]:
            cache.put(handle, table)
        first = cache.open(written[0][0], store)
        cache.put(*written[2])
    kept = [local_file(cache, handle).exists() for handle, _ in written]
    assert kept == [True, False, True]
    with small_disk(1):
        assert cache.open(written[1][0], store).table().equals(written[1][1])  # What is in use stays,
    assert [local_file(cache, handle).exists() for handle, _ in written] == [False, True, False]
    assert first.table().equals(written[0][1])  # The mapped file has the same content.


def test_copies_take_no_more_of_a_disk_than_they_leave_free(
    store: LocalObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [write(store, rows) for rows in (1000, 1001, 1002)]
    probe = RunCache(tmp_path / "probe")
    probe.put(*written[0])
    size = local_file(probe, written[0][0]).stat().st_size
    disk = 5 * size
    cache = RunCache(tmp_path / "cache")

    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=disk - sum(each.stat().st_size for each in path.iterdir()))

    monkeypatch.setattr(cache_module, "_LOOK_AFTER", 1)
    monkeypatch.setattr(cache_module.shutil, "disk_usage", usage)
    for handle, table in written:
        cache.put(handle, table)
    assert [local_file(cache, handle).exists() for handle, _ in written] == [False, True, True]


def test_copies_make_room_on_a_disk_that_others_have_filled(
    store: LocalObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [write(store, rows) for rows in (1001, 1000, 1002)]
    cache, open_file = RunCache(tmp_path / "cache"), pa.OSFile
    for handle, table in written[:2]:
        cache.put(handle, table)

    def used() -> int:
        return sum(each.stat().st_size for each in cache.directory.iterdir())

    disk = used()

    def opened(path: str, mode: str) -> Any:
        if used() >= disk:
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_file(path, mode)

    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=disk - used()))
    monkeypatch.setattr(cache_module.pa, "OSFile", opened)
    handle, table = written[2]
    assert cache.put(handle, table).table().equals(table)
    assert [local_file(cache, handle).exists() for handle, _ in written] == [False, True, True]


def test_a_cache_that_cannot_be_written_says_how_to_move_it(store: LocalObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    handle, _ = write(store)
    with pytest.raises(StorageError, match=r"cannot be written: .* Make room there, or set TMPDIR"):
        RunCache(tmp_path / "file").open(handle, store)


def test_a_run_that_is_dropped_is_read_from_the_store(store: LocalObjectStore, cache: RunCache) -> None:
    written = [write(store, rows) for rows in (1000, 1001)]
    for handle, table in written:
        cache.put(handle, table)
    dropped, _ = written[0]
    run = cache.open(dropped, store)
    for _ in range(2):
        cache.drop(dropped)
        assert [local_file(cache, handle).exists() for handle, _ in written] == [False, True]
    assert run.table().equals(written[0][1]), "who has it open can go on"
    assert cache.open(dropped, store).table().equals(written[0][1])
    assert cache.misses == 1


def test_small_runs_add_up_to_little_more_than_the_cache_may_keep(store: LocalObjectStore, tmp_path: Path) -> None:
    written = [write(store, rows) for rows in range(10, 26)]
    probe = RunCache(tmp_path / "probe")
    probe.put(*written[-1])
    size = local_file(probe, written[-1][0]).stat().st_size
    cache = RunCache(tmp_path / "cache")
    with small_disk(8 * size, look_after=2 * size):
        for handle, table in written:
            cache.put(handle, table)
            assert sum(path.stat().st_size for path in cache.directory.iterdir()) <= (8 + 8 // 4) * size
            assert local_file(cache, handle).exists()


LARGE = 100_000
"""Rows of a run whose copy is packed."""


def test_the_copy_of_a_large_run_is_packed(store: LocalObjectStore, cache: RunCache) -> None:
    handle, table = write(store, LARGE)
    written = cache.put(handle, table)
    assert local_file(cache, handle).stat().st_size < 0.6 * table.nbytes
    clip = handle.clip(KeyGroupRange(10, 20))
    assert clip is not None
    for run in (written, cache.open(handle, store)):
        assert run.schema == LAYOUT.local_schema
        assert run.table().equals(table)
        assert run.rows(np.array([3, 5])).equals(table.take([3, 5]))
        own = run.within(clip.span)
        assert own.table().equals(table.slice(own.start, len(own)))
        wanted, rows = own.find(run.sort_keys)
        assert wanted.tolist() == list(range(own.start, own.stop))
        assert rows.tolist() == list(range(len(own)))


def test_files_of_killed_writes_are_swept(
    store: LocalObjectStore, cache: RunCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.directory.mkdir()
    old, young = cache.directory / "a.arrow.1.tmp", cache.directory / "b.arrow.2.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.put(*write(store))
    assert not old.exists()
    assert young.exists()


def _killed_while_writing(directory: str, store_directory: str, handle: RunHandle) -> None:
    def die(*_: object) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    cache_module.zlib = type("zlib", (), {"crc32": die})  # type: ignore[assignment]
    RunCache(directory).open(handle, LocalObjectStore(store_directory))


def test_a_cache_killed_in_mid_write_heals(store: LocalObjectStore, cache: RunCache) -> None:
    handle, table = write(store)
    process = multiprocessing.get_context("spawn").Process(
        target=_killed_while_writing, args=(str(cache.directory), store.url.removeprefix("file://"), handle)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [path.suffix for path in cache.directory.iterdir()] == [".tmp"]
    assert cache.open(handle, store).table().equals(table)


def _open_often(directory: str, store_directory: str, handles: list[RunHandle]) -> None:
    store = LocalObjectStore(store_directory)
    cache = RunCache(directory)
    with small_disk(30_000):  # Space for one run.
        for _ in range(20):
            for handle in handles:
                assert len(cache.open(handle, store)) == handle.rows


@pytest.mark.system
def test_processes_share_a_cache_that_is_too_small_for_them(store: LocalObjectStore, cache: RunCache) -> None:
    handles = [write(store, rows)[0] for rows in (1000, 1001, 1002)]
    context = multiprocessing.get_context("spawn")
    arguments = (str(cache.directory), store.url.removeprefix("file://"), handles)
    processes = [context.Process(target=_open_often, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
