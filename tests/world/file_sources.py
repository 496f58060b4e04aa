"""Folders of files from which a job reads."""

from __future__ import annotations

import io
import os
import shutil
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.common import Duration, Row
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors import base
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.errors import SourceReadError, UserFunctionError
from tests.world.stage import EVENT, Act, Record, Source, Undo, nothing

__all__ = ["SYSTEMS"]


class _Folder(Source):
    """A folder with a file for each round."""

    suffix: ClassVar[str]

    def put(self, records: Sequence[Record]) -> None:
        self.write(f"{self.count:03}{self.suffix}", records)

    def write(self, name: str, records: Sequence[Record]) -> None:
        """Writes a file as good writers do: under its name it is complete."""
        self.count += 1
        self.folder.mkdir(exist_ok=True)
        hidden = self.folder / f".{name}"
        hidden.write_bytes(self.content(records))
        hidden.rename(self.folder / name)

    @abstractmethod
    def content(self, records: Sequence[Record]) -> bytes: ...

    count = 0

    @property
    def files(self) -> list[Path]:
        """The files, the newest last."""
        return sorted(path for path in self.folder.glob(f"*{self.suffix}") if not path.name.startswith("."))


class ParquetFolder(_Folder):
    title, suffix = "Parquet files as a source", ".parquet"

    def content(self, records: Sequence[Record]) -> bytes:
        file = io.BytesIO()
        pq.write_table(pa.Table.from_struct_array(EVENT.to_arrow(list(records))), file)
        return file.getvalue()

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        source = ParquetSource(str(self.folder), row_type=EVENT, bounded=False, batch_rows=2)
        return env.from_source(source, WatermarkStrategy.no_watermarks(), "files").uid("files")


def _parsed(line: str) -> Row:
    key, time, value = line.split(",")
    return Row(key=key, time=int(time), value=int(value))


class TextFolder(_Folder):
    title, suffix = "Text files as a source", ".txt"

    def content(self, records: Sequence[Record]) -> bytes:
        return "".join(f"{key},{time},{value}\n" for key, time, value in records).encode()

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(self.folder))
        source: base.Source = builder.monitor_continuously(Duration.of_seconds(1)).build()
        lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "files").uid("files")
        return lines.map(_parsed, EVENT).uid("parse")


# --- what others do ---------------------------------------------------------------------------------------------------


def _records(system: _Folder, path: Path) -> list[Record]:
    if system.suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
        return [(row["key"], row["time"], row["value"]) for row in rows]
    return [tuple(_parsed(line)) for line in path.read_text().splitlines()]  # type: ignore[misc]


def _was_read(system: _Folder, path: Path) -> bool:
    return all(value in system.visible for _, _, value in _records(system, path))


def _follow(system: _Folder, *paths: Path) -> Undo:
    """Follows the advice about files that came too late: moves away what was read, and renames the rest."""

    def undo(failed: bool) -> None:
        for path in paths if failed else ():
            if _was_read(system, path):
                path.rename(system.place.folder / f"away-{path.name}")
            else:
                path.rename(path.with_name(f"{system.count:03}-again{system.suffix}"))

    return undo


def _back(system: _Folder, path: Path, kept: Path) -> Undo:
    """Moves a file back, as it was. If others were read meanwhile, it may come too late."""

    def undo(failed: bool) -> Undo:
        kept.replace(path)
        return _follow(system, path)

    return undo


def deletes_read(system: _Folder) -> Undo | None:
    if len(system.files) < 2:
        return None
    system.files[0].unlink()
    return nothing


def _away(system: _Folder, path: Path) -> Undo:
    kept = system.place.folder / f"kept-{path.name}"
    path.rename(kept)
    return _back(system, path, kept)


def moves_newest(system: _Folder) -> Undo | None:
    return _away(system, system.files[-1])


def moves_read(system: _Folder) -> Undo | None:
    return _away(system, system.files[0]) if len(system.files) > 1 else None


def _rewritten(system: _Folder, path: Path, content: bytes) -> Undo:
    """Replaces a file, and puts it back if the job has failed."""
    kept = system.place.folder / f"kept-{path.name}"
    path.rename(kept)
    path.write_bytes(content)

    def undo(failed: bool) -> None:
        if failed:
            kept.replace(path)

    return undo


def _with_one_more(system: _Folder, path: Path) -> Undo:
    number = 1000 + len(system.may)
    system.may.add(number)
    return _rewritten(system, path, system.content([*_records(system, path), ("k0", number, number)]))


def overwrites_newest(system: _Folder) -> Undo | None:
    return _with_one_more(system, system.files[-1])


def overwrites_read(system: _Folder) -> Undo | None:
    return _with_one_more(system, system.files[0]) if len(system.files) > 1 else None


def overwrites_same_size(system: _Folder) -> Undo | None:
    *others, (key, time, value) = _records(system, system.files[-1])
    if value < 10:
        return None
    system.may.add(90 + value % 10)
    back = _rewritten(system, system.files[-1], system.content([*others, (key, time, 90 + value % 10)]))

    def undo(failed: bool) -> None:
        back(failed)
        if not failed:
            system.gone.add(value)

    return undo


def touches(system: _Folder) -> Undo | None:
    newest = system.files[-1]
    before = newest.stat()
    os.utime(newest, (0, 0))
    return lambda failed: failed and os.utime(newest, ns=(before.st_atime_ns, before.st_mtime_ns))


def cuts(system: _Folder) -> Undo | None:
    content = system.files[-1].read_bytes()
    return _rewritten(system, system.files[-1], content[: len(content) // 2])


def moves_folder(system: _Folder) -> Undo | None:
    kept = system.place.folder / "kept-folder"
    system.folder.rename(kept)

    def back(failed: bool) -> Undo:
        for late in system.files:
            late.rename(kept / late.name)
        shutil.rmtree(system.folder, ignore_errors=True)
        kept.rename(system.folder)
        return _follow(system, *(path for path in system.files if not _was_read(system, path)))

    return back


def unmounts(system: _Folder) -> Undo | None:
    back = moves_folder(system)
    system.folder.mkdir()
    return back


def links_folder(system: _Folder) -> Undo | None:
    kept = system.place.folder / "linked-folder"
    system.folder.rename(kept)
    system.folder.symlink_to(kept)
    return nothing


def links_file(system: _Folder) -> Undo | None:
    newest = system.files[-1]
    kept = system.place.folder / f"linked-{newest.name}"
    newest.rename(kept)
    newest.symlink_to(kept)
    return nothing


def adds_late(system: _Folder) -> Undo | None:
    path = system.folder / f"000-late{system.suffix}"
    system.may.add(2000)
    path.write_bytes(system.content([("k0", 2000, 2000)]))
    return lambda failed: path.unlink() if failed else None


def puts_rubbish(system: _Folder) -> Undo | None:
    path = system.folder / f"{system.count:03}-rubbish{system.suffix}"
    path.write_bytes(b"\xff\xfe rubbish")
    return lambda failed: path.unlink(missing_ok=True)


def makes_folder_of_name(system: _Folder) -> Undo | None:
    (system.folder / f"{system.count:03}-folder{system.suffix}").mkdir()
    (system.folder / f".hidden{system.suffix}").write_bytes(b"rubbish")
    return nothing


_ERROR = (SourceReadError,)
ParquetFolder.acts = TextFolder.acts = (
    Act("deletes a file that was read", deletes_read),
    Act("adds a hidden file and a folder that is named as a file", makes_folder_of_name),
    Act("moves the newest file away, and back later", moves_newest, _ERROR),
    Act("moves a file that was read away, and back later", moves_read),
    Act("overwrites the newest file", overwrites_newest, _ERROR),
    Act("overwrites the newest file with one of its size", overwrites_same_size, _ERROR),
    Act("overwrites a file that was read", overwrites_read, _ERROR),
    Act("touches the newest file", touches, _ERROR),
    Act("cuts the newest file", cuts, (SourceReadError, UserFunctionError)),
    Act("moves the folder away, and back later", moves_folder, _ERROR),
    Act("unmounts the folder for a while", unmounts, _ERROR),
    Act("replaces the folder by a symlink", links_folder),
    Act("replaces the newest file by a symlink", links_file),
    Act("adds a file with an earlier name", adds_late, _ERROR),
    Act("adds a file that cannot be read", puts_rubbish, _ERROR),
)

SYSTEMS = (ParquetFolder, TextFolder)
