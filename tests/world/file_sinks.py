"""Folders into which a job writes files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.connectors import CsvSink, JsonLinesSink, ParquetSink
from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.errors import CommittableLostError, StorageError
from tests.world.stage import EVENT, Act, Record, Sink, Undo, nothing

__all__ = ["SYSTEMS", "restores_older"]


class ParquetFiles(Sink):
    title = "Files as a sink"
    suffix = ".parquet"
    hooks = (("dagster_flinkpy.storage.local:LocalObjectStore", "complete_upload", True),)

    def sink(self) -> TwoPhaseCommittingSink:
        return ParquetSink(str(self.folder))

    @property
    def files(self) -> list[Path]:
        """The files that readers see."""
        return sorted(path for path in self.folder.glob(f"*{self.suffix}") if not path.name.startswith("."))

    @property
    def staged(self) -> list[Path]:
        """What no reader sees yet."""
        return sorted(path for path in self.folder.glob(".flinkpy/uploads/**/*") if path.is_file())

    def rows_of(self, path: Path) -> list[Record]:
        """Returns the rows of a file."""
        return [(row["key"], row["time"], row["value"]) for row in pq.read_table(path).to_pylist()]

    def rows(self) -> Sequence[Record]:
        return [row for path in self.files for row in self.rows_of(path)]


class CsvFiles(ParquetFiles):
    suffix = ".csv"

    def sink(self) -> TwoPhaseCommittingSink:
        return CsvSink(str(self.folder))

    def rows_of(self, path: Path) -> list[Record]:
        lines = [line.replace('"', "").split(",") for line in path.read_text().splitlines()[1:]]
        return [(key, int(time), int(value)) for key, time, value in lines]


class JsonFiles(ParquetFiles):
    suffix = ".json"

    def sink(self) -> TwoPhaseCommittingSink:
        return JsonLinesSink(str(self.folder))

    def rows_of(self, path: Path) -> list[Record]:
        return [(row["key"], row["time"], row["value"]) for row in map(json.loads, path.read_text().splitlines())]


# --- what others do ---------------------------------------------------------------------------------------------------


def deletes(system: ParquetFiles) -> Undo | None:
    system.gone |= {value for _, _, value in system.rows()}
    for path in system.files:
        path.unlink()
    return nothing


def compacts(system: ParquetFiles) -> Undo | None:
    rows = list(system.rows())
    if not rows or system.suffix != ".parquet":
        return None
    pq.write_table(
        pa.Table.from_struct_array(EVENT.to_arrow(rows)), system.folder / f".compacted-{system.round}.parquet"
    )
    for path in system.files:
        path.unlink()
    (system.folder / f".compacted-{system.round}.parquet").rename(system.folder / f"compacted-{system.round}.parquet")
    return nothing


def moves_folder(system: ParquetFiles) -> Undo | None:
    kept = system.place.folder / "kept-folder"
    if not system.folder.exists():
        return None
    system.folder.rename(kept)

    def undo(failed: bool) -> None:
        for path in system.files:
            path.rename(kept / path.name)
        for path in system.staged:
            to = kept / path.relative_to(system.folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            path.rename(to)
        shutil.rmtree(system.folder, ignore_errors=True)
        kept.rename(system.folder)

    return undo


def links_folder(system: ParquetFiles) -> Undo | None:
    kept = system.place.folder / "linked-folder"
    if not system.folder.exists():
        return None
    system.folder.rename(kept)
    system.folder.symlink_to(kept)
    return nothing


def puts_a_file_in_the_way(system: ParquetFiles) -> Undo | None:
    kept = system.place.folder / "kept-folder"
    if not system.folder.exists():
        return None
    system.folder.rename(kept)
    system.folder.write_text("a file")

    def undo(failed: bool) -> None:
        system.folder.unlink()
        kept.rename(system.folder)

    return undo


def restores_older(system: Sink) -> Undo:
    """Follows the advice to restore an older checkpoint."""

    def undo(failed: bool) -> None:
        if failed:
            done = [int(path.parent.name[4:]) for path in (system.place.folder / "job/job").glob("chk-*/_metadata")]
            system.restore_from = f"chk-{max(done) - 1}"

    return undo


def deletes_staged(system: ParquetFiles) -> Undo | None:
    if not system.staged:
        return None
    shutil.rmtree(system.folder / ".flinkpy" / "uploads")
    return restores_older(system)


def cuts_staged(system: ParquetFiles) -> Undo | None:
    if not system.staged:
        return None
    kept = {path: path.read_bytes() for path in system.staged}
    for path, content in kept.items():
        path.write_bytes(content[: len(content) // 2])

    def undo(failed: bool) -> None:
        for path, content in kept.items() if failed else ():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    return undo


def adds(system: ParquetFiles) -> Undo | None:
    system.folder.mkdir(exist_ok=True)
    (system.folder / "notes.txt").write_text("by somebody")
    (system.folder / "_SUCCESS").touch()
    return nothing


_COMMIT = (CommittableLostError, StorageError)
_STAGED = ("before _metadata", "before HEAD", "before commit")
ParquetFiles.acts = CsvFiles.acts = JsonFiles.acts = (
    Act("deletes files that were committed", deletes),
    Act("compacts the files into another", compacts),
    Act("adds files of their own", adds),
    Act("moves the folder away, and back later", moves_folder, _COMMIT),
    Act("replaces the folder by a symlink", links_folder),
    Act("puts a file in the place of the folder, for a while", puts_a_file_in_the_way, _COMMIT),
    Act("deletes staged files", deletes_staged, (CommittableLostError,), at=_STAGED),
    Act("cuts staged files", cuts_staged, (CommittableLostError,), at=_STAGED),
)

SYSTEMS = (ParquetFiles, CsvFiles, JsonFiles)
