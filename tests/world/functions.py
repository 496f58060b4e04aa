"""What users have functions for: assets that they load, and targets that get the rows of each epoch."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pyarrow as pa
from dagster import AssetKey, AssetMaterialization, DagsterInstance
from sqlalchemy.exc import OperationalError

from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import AssetSource, Epoch, ForeachEpoch, Materialization
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.errors import CommittableLostError, SinkCommitError, SourceReadError, StorageError
from dagster_flinkpy.orchestration.runs.asset_enumerator import assets_from
from tests.world.file_sinks import restores_older
from tests.world.stage import EVENT, Act, Record, Sink, Source, Undo, nothing

__all__ = ["SYSTEMS"]

_ASSET = AssetKey("orders")


def _load(materialization: Materialization) -> Iterator[Record]:
    yield from json.loads(Path(materialization.metadata["path"]).read_text())


class DagsterAsset(Source):
    title = "Asset of Dagster as a source"
    patient: ClassVar[bool] = True
    _written = 0

    def begin(self) -> None:
        self.folder.mkdir()
        self.stack = ExitStack()
        self.instance = self.stack.enter_context(DagsterInstance.ephemeral())
        self.stack.enter_context(assets_from(self.instance))

    def close(self) -> None:
        self.stack.close()

    def put(self, records: Sequence[Record]) -> None:
        self.materialize(records)

    def materialize(self, records: Sequence[Record]) -> None:
        """Writes rows, and says so."""
        path = self.folder / f"{self._written}.json"
        path.write_text(json.dumps(records))
        self._written += 1
        self.report(path, records)

    def report(self, path: Path, records: Sequence[Record]) -> None:
        """Says that rows were written."""
        self.instance.report_runless_asset_event(AssetMaterialization(_ASSET, metadata={"path": str(path)}))

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        source = AssetSource("orders", _load, EVENT, bounded=False)
        return env.from_source(source, WatermarkStrategy.no_watermarks(), "orders").uid("orders")


class PartitionedAsset(DagsterAsset):
    def put(self, records: Sequence[Record]) -> None:
        if records:
            self.materialize(records)

    def report(self, path: Path, records: Sequence[Record], version: str = "") -> None:
        number = min(value for _, _, value in records)
        self.instance.report_runless_asset_event(
            AssetMaterialization(
                _ASSET,
                metadata={"path": str(path)},
                partition=f"from {number}",
                tags={"dagster/data_version": version or str(zlib.crc32(path.read_bytes()))},
            )
        )


def materializes(system: DagsterAsset) -> Undo | None:
    if not system.visible:
        return None  # the first epoch reads the latest only, as documented
    system.may.add(3000)
    system.materialize([("k0", 0, 3000)])
    return nothing


def wipes_read(system: DagsterAsset) -> Undo | None:
    unread = _unread(system)
    system.instance.wipe_assets([_ASSET])
    for path in unread:
        system.report(path, json.loads(path.read_text()))
    return nothing


def wipes_all(system: DagsterAsset) -> Undo | None:
    lost = {value for path in _unread(system) for _, _, value in json.loads(path.read_text())}
    system.may |= lost
    system.gone |= lost
    system.instance.wipe_assets([_ASSET])
    return nothing


def _unread(system: DagsterAsset) -> list[Path]:
    paths = sorted(system.folder.glob("*.json"), key=lambda path: int(path.stem))
    return [
        path for path in paths if not {value for _, _, value in json.loads(path.read_text())} <= set(system.visible)
    ]


def moves_instance(system: DagsterAsset) -> Undo | None:
    """Another instance has the same rows that were not read, and begins to count anew."""
    unread = _unread(system)
    system.instance = system.stack.enter_context(DagsterInstance.ephemeral())
    system.stack.enter_context(assets_from(system.instance))
    for path in unread:
        system.report(path, json.loads(path.read_text()))
    return nothing


def moves_rows(system: DagsterAsset) -> Undo | None:
    kept = system.place.folder / "kept-rows"
    system.folder.rename(kept)
    return lambda failed: kept.rename(system.folder) and None


def stops_database(system: DagsterAsset) -> Undo | None:
    broken = OperationalError("SELECT", {}, Exception("could not connect to server"))
    patch = mock.patch.object(type(system.instance), "fetch_materializations", side_effect=broken)
    patch.start()
    return lambda failed: patch.stop() and None


def again(system: PartitionedAsset) -> Undo | None:
    read = [path for path in system.folder.glob("*.json") if path not in _unread(system)]
    if not read:
        return None
    records = json.loads(read[0].read_text())
    system.report(read[0], records)
    return nothing


def with_other_version(system: PartitionedAsset) -> Undo | None:
    read = [path for path in system.folder.glob("*.json") if path not in _unread(system)]
    if not read:
        return None
    records = json.loads(read[0].read_text())
    system.report(read[0], records, version="another")

    def undo(failed: bool) -> None:  # follows the advice of the error
        system.report(read[0], records)

    return undo


_PLANNED = ("before planning", "between runs")
_ANY = (
    Act("takes what it has written away, and puts it back later", moves_rows, (SourceReadError,)),
    Act("stops the database of Dagster for a while", stops_database, (SourceReadError,)),
    Act("wipes materializations that were read", wipes_read, at=("between runs",)),
    Act("moves to another instance of Dagster", moves_instance, at=("between runs",)),
)
DagsterAsset.acts = (
    *_ANY,
    Act("materializes it again", materializes),
    Act("wipes all materializations", wipes_all, at=_PLANNED),
)
PartitionedAsset.acts = (
    *_ANY,
    Act("materializes a partition again with the same data version", again),
    Act("materializes a partition again with another data version", with_other_version, (SourceReadError,)),
)


# --- ForeachEpoch -----------------------------------------------------------------------------------------------------


def _replace(target: Path, rows: pa.Table, epoch: Epoch) -> None:
    # One file an epoch, which is replaced: so each row is there once.
    temporary = target / "writing"
    temporary.write_text(json.dumps(rows.to_pylist()))
    temporary.rename(target / f"{epoch.id}.json")


class FunctionTarget(Sink):
    title = "Function of each epoch as a sink"
    knows_the_job = False  # nobody can tell what the function has written
    hooks = (
        ("dagster_flinkpy.connectors.commit.staged_rows:StagedRows", "read", False),
        ("dagster_flinkpy.connectors.commit.staged_rows:StagedRows", "read", True),
    )

    @property
    def staging(self) -> Path:
        """Where rows wait."""
        return self.folder / "staging"

    @property
    def target(self) -> Path:
        """What the function writes."""
        return self.folder / "target"

    def begin(self) -> None:
        self.target.mkdir(parents=True)

    def sink(self) -> TwoPhaseCommittingSink:
        return ForeachEpoch(partial(_replace, self.target), str(self.staging))

    def rows(self) -> Sequence[Record]:
        files = self.target.glob("*.json")
        return [(row["key"], row["time"], row["value"]) for file in files for row in json.loads(file.read_text())]

    @property
    def staged(self) -> list[Path]:
        """The files of staged rows."""
        return sorted(self.staging.glob("*.parquet"))


def moves_target(system: FunctionTarget) -> Undo | None:
    kept = system.place.folder / "kept-target"
    system.target.rename(kept)
    return lambda failed: kept.rename(system.target) and None


def deletes_staged(system: FunctionTarget) -> Undo | None:
    if not system.staged:
        return None
    for path in system.staged:
        path.unlink()
    return restores_older(system)


def cuts_staged(system: FunctionTarget) -> Undo | None:
    kept = {path: path.read_bytes() for path in system.staged}
    if not kept:
        return None
    for path, content in kept.items():
        path.write_bytes(content[: len(content) // 2])

    def undo(failed: bool) -> None:
        for path, content in kept.items() if failed else ():
            path.write_bytes(content)

    return undo


def moves_staging(system: FunctionTarget) -> Undo | None:
    kept = system.place.folder / "kept-staging"
    if not system.staging.exists():
        return None
    system.staging.rename(kept)

    def undo(failed: bool) -> None:
        if system.staging.exists():
            shutil.copytree(system.staging, kept, dirs_exist_ok=True)
            shutil.rmtree(system.staging)
        kept.rename(system.staging)

    return undo


def adds_to_staging(system: FunctionTarget) -> Undo | None:
    system.staging.mkdir(exist_ok=True)
    (system.staging / "notes.txt").write_text("by somebody")
    return nothing


_LOST = (CommittableLostError,)
_STAGED = ("before _metadata", "before HEAD", "before commit", "within commit")
FunctionTarget.acts = (
    Act("stops what the function writes to, for a while", moves_target, (SinkCommitError,)),
    Act("deletes staged rows", deletes_staged, _LOST, at=_STAGED),
    Act("cuts staged rows", cuts_staged, _LOST, at=_STAGED),
    Act("moves the folder of staged rows away, and back later", moves_staging, (*_LOST, StorageError)),
    Act("adds files of their own to the folder of staged rows", adds_to_staging),
)

SYSTEMS = (DagsterAsset, PartitionedAsset, FunctionTarget)
