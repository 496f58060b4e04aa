"""An object of a store as a file."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from dagster_flinkpy.storage.local import LocalObjectStore
from dagster_flinkpy.storage.object_store import RangedFile

DATA = bytes(range(100))


class Watched(LocalObjectStore):
    """Remembers the last range that it has returned."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.last = super().get_range(key, start, length)
        return self.last


@pytest.fixture
def store(tmp_path: Path) -> Watched:
    store = Watched(tmp_path)
    store.put("object", DATA)
    return store


@pytest.mark.parametrize(("position", "size"), [(0, 10), (95, 10), (100, 10), (120, 10), (20, 0), (30, -1), (30, None)])
def test_it_reads_as_a_file_of_the_same_bytes_does(store: Watched, position: int, size: int | None) -> None:
    file, plain = RangedFile(store, "object", len(DATA)), io.BytesIO(DATA)
    for each in (file, plain):
        each.seek(position)
    assert file.read(size) == plain.read(size)
    assert file.tell() == plain.tell()
    assert file.read() == plain.read()
    file.seek(position)
    plain.seek(position)
    one, other = bytearray(7), bytearray(7)
    assert file.readinto(one) == plain.readinto(other)
    assert one == other


def test_what_the_store_returns_is_not_copied(store: Watched) -> None:
    file = RangedFile(store, "object", len(DATA))
    assert file.read(50) is store.last
    assert io.BufferedReader(file, 16).read() == DATA[50:]
