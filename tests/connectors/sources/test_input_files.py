"""Which files a source finds in a folder: through links, each once, and none is skipped silently."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.connectors.sources.input_files import input_files
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.errors import InputChangedError, SourceReadError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore

ROW = Types.ROW_NAMED(["n"], [Types.LONG()])
Make = Callable[[Path], Any]


def parquet(folder: Path) -> ParquetSource:
    return ParquetSource(str(folder), row_type=ROW)


def text(folder: Path) -> FileSource:
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder)).build()


SOURCES = pytest.mark.parametrize("make", [parquet, text])


def write(path: Path, n: int) -> None:
    """Writes a file that both sources read: of Parquet, or of one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": [n]}), path)


def names(source: Any) -> list[str]:
    [splits] = source.create_enumerator(None).plan_epoch(1)
    return [split.properties.get("key", split.split_id) for split in splits]


def numbers(source: ParquetSource) -> list[int]:
    [splits] = source.create_enumerator(None).plan_epoch(1)
    return [row["n"] for split in splits for column, _ in source.read(split) for row in column.to_pylist()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "in/a/1.parquet", 1)
    write(tmp_path / "elsewhere/sub/2.parquet", 2)
    write(tmp_path / "single.parquet", 3)
    return tmp_path / "in"


@SOURCES
def test_links_to_folders_and_files_are_followed(folder: Path, make: Make) -> None:
    (folder / "b").symlink_to(folder.parent / "elsewhere")
    (folder / "c.parquet").symlink_to("../single.parquet")
    (folder / "a/deep").symlink_to(folder.parent / "elsewhere/sub")
    (folder / "b/_hidden").symlink_to(folder)
    (folder / "a/deep").unlink()
    assert names(make(folder)) == ["a/1.parquet", "b/sub/2.parquet", "c.parquet"]
    assert numbers(parquet(folder)) == [1, 2, 3]
    (folder.parent / "link").symlink_to(folder)
    assert numbers(parquet(folder.parent / "link")) == [1, 2, 3]


@SOURCES
def test_a_file_with_two_names_because_of_a_link_is_refused(folder: Path, make: Make) -> None:
    for link, target, both in (
        ("latest", "a", ("a/1.parquet", "latest/1.parquet")),
        ("0.parquet", "a/1.parquet", ("0.parquet", "a/1.parquet")),
    ):
        (folder / link).symlink_to(target)
        with pytest.raises(InputChangedError, match=r"same file, because of a link.*Remove one of them") as caught:
            names(make(folder))
        assert all(repr(name) in str(caught.value) for name in both)
        (folder / link).rename(folder / "_link")
        assert names(make(folder)) == ["a/1.parquet"]
        (folder / "_link").unlink()
    os.link(folder / "a/1.parquet", folder / "b.parquet")
    assert names(make(folder)) == ["a/1.parquet", "b.parquet"], "without a link, two names are two files"


def test_a_second_name_that_is_not_selected_does_not_matter(folder: Path) -> None:
    (folder / "latest").symlink_to("a")
    assert numbers(ParquetSource(str(folder), pattern="a/*.parquet", row_type=ROW)) == [1]
    assert numbers(ParquetSource(str(folder), until="a/9", row_type=ROW)) == [1]


@SOURCES
@pytest.mark.parametrize("target", ["..", ".", "../a", "/"])
def test_a_link_that_leads_back_is_refused(folder: Path, make: Make, target: str) -> None:
    (folder / "a/link").symlink_to(target)
    with pytest.raises(InputChangedError, match=r"/in/a/link is a link that leads back to /"):
        names(make(folder))


@SOURCES
def test_links_that_lead_to_each_other_are_refused(folder: Path, make: Make) -> None:
    (folder / "a/other").symlink_to(folder.parent / "elsewhere")
    (folder.parent / "elsewhere/back").symlink_to(folder / "a")
    with pytest.raises(InputChangedError, match=r"/in/a/other/back is a link that leads back to .*/in/a,"):
        names(make(folder))


@SOURCES
@pytest.mark.parametrize("name", ["gone", "gone.parquet"])
def test_a_link_that_leads_nowhere_is_refused(folder: Path, make: Make, name: str) -> None:
    for target in ("nowhere", name):  # the latter leads to itself
        (folder / name).symlink_to(target)
        with pytest.raises(InputChangedError, match=rf"/in/{name} is a link that leads nowhere"):
            names(make(folder))
        (folder / name).rename(folder / "_gone")
        assert names(make(folder)) == ["a/1.parquet"]
        (folder / "_gone").unlink()


@SOURCES
def test_what_is_no_file_is_refused(folder: Path, make: Make) -> None:
    os.mkfifo(folder / "pipe.parquet")
    with pytest.raises(InputChangedError, match=r"/in/pipe\.parquet is a pipe, a socket or a device"):
        names(make(folder))
    (folder / "pipe.parquet").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        previous = os.getcwd()
        try:
            os.chdir(folder)  # paths of sockets must be short
            server.bind("s.parquet")
        finally:
            os.chdir(previous)
        with pytest.raises(InputChangedError, match=r"/in/s\.parquet is a pipe, a socket or a device"):
            names(make(folder))


def test_what_is_not_selected_may_be_no_file(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert numbers(parquet(folder)) == [1]


@SOURCES
def test_a_folder_that_may_not_be_listed_is_named(folder: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("/in/a"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(SourceReadError, match=r"cannot list .*/in/a: Permission denied"):
        names(make(folder))


@SOURCES
@pytest.mark.parametrize("name", [b"a\nb.parquet", b"a\rb.parquet", b"a\\b.parquet", b"\xff.parquet", b"x\n/1.parquet"])
def test_a_name_that_cannot_be_read_is_to_be_changed(folder: Path, make: Make, name: bytes) -> None:
    path = os.path.join(os.fsencode(folder), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(os.fsdecode(path)).touch()
    with pytest.raises(InputChangedError, match="has a name that sources do not read: rename it") as caught:
        names(make(folder))
    assert repr(os.fsdecode(name)) in str(caught.value)


@SOURCES
def test_other_names_are_read(folder: Path, make: Make) -> None:
    odd = ["%20.parquet", "a b#?.parquet", "a:b'\".parquet", "ü€\u2028.parquet", "*[a].parquet"]
    for n, name in enumerate(odd):
        write(folder / name, n)
    assert names(make(folder)) == sorted([*odd, "a/1.parquet"])
    assert len(numbers(parquet(folder))) == 6


@SOURCES
def test_the_folder_of_a_value_is_no_hidden_one(folder: Path, make: Make) -> None:
    """Files of a sink that partitions by such a column were not read, and nobody said so."""
    there = ["_day=1/2.parquet", "b/_p=%2F/_q=/3.parquet"]
    hidden = ["_x/_day=1/4.parquet", "._p=1/5.parquet", "_p=6.parquet"]
    for name in there + hidden:
        write(folder / name, 2)
    assert names(make(folder)) == sorted(["a/1.parquet", *there])


def test_folders_of_s3_consoles_are_no_files(s3_location: StorageLocation) -> None:
    store = s3_location.child("in").open()
    client = store._client  # type: ignore[attr-defined]
    for key in ("", "sub/"):
        client.put_object(Bucket=store._bucket, Key=store._root + key, Body=b"")  # type: ignore[attr-defined]
    store.put("sub/1.parquet", b"x")
    assert [info.key for info in input_files(store)] == ["sub/1.parquet"]
    assert [info.key for info in ParquetSource(s3_location.child("in"), row_type=ROW).files(store)] == ["sub/1.parquet"]
    client.put_object(Bucket=store._bucket, Key=store._root + "a//b", Body=b"x")  # type: ignore[attr-defined]
    with pytest.raises(InputChangedError, match=r"'a//b' in .*rename it"):
        input_files(store)


def test_a_store_of_checkpoints_does_not_follow_links(folder: Path) -> None:
    """What it lists may be deleted."""
    (folder / "b").symlink_to(folder.parent / "elsewhere")
    assert [info.key for info in LocalObjectStore(folder).list()] == ["a/1.parquet"]
