from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_flinkpy.checkpoint.head import Head
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.checkpoint.savepoints.savepoint import (
    as_savepoint,
    files_location,
    import_savepoint,
    load_savepoint,
    write_savepoint,
)
from dagster_flinkpy.datastream import SavepointFormatType
from dagster_flinkpy.errors import CorruptStateError, RestoreError
from dagster_flinkpy.state.files.operator_state import write_partitions
from dagster_flinkpy.state.handles import DistributionMode, OperatorStateHandle
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.checkpoint.samples import content, metadata, operator

STATE = metadata(3, operator("count"))
FILES = {
    r.path: content(f"count-{s.index}")
    for s in operator("count").subtasks
    if s.keyed
    for t in s.keyed.tables
    for r in t.runs
}


@pytest.fixture
def job(tmp_path: Path) -> LocalObjectStore:
    store = LocalObjectStore(str(tmp_path / "job"))
    for path, data in FILES.items():
        store.put(path, data)
    return store


def everything(store: LocalObjectStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key)[0] for info in store.list()}


def test_a_savepoint_stands_by_itself_and_may_be_moved(job: LocalObjectStore, tmp_path: Path) -> None:
    folder = write_savepoint(STATE, job, LocalObjectStore(str(tmp_path / "savepoints")))
    assert folder.startswith("savepoint-flights-")
    shutil.rmtree(tmp_path / "job")
    shutil.move(tmp_path / "savepoints" / folder, tmp_path / "moved")

    moved = LocalObjectStore(str(tmp_path / "moved"))
    loaded = load_savepoint(moved)
    assert loaded.kind is CheckpointKind.SAVEPOINT
    assert loaded.operators == STATE.operators
    other_job = LocalObjectStore(str(tmp_path / "other"))
    assert import_savepoint(moved, other_job) == loaded
    assert everything(other_job) == FILES
    assert import_savepoint(moved, other_job) == loaded


def test_two_savepoints_have_two_folders(job: LocalObjectStore) -> None:
    assert write_savepoint(STATE, job, job) != write_savepoint(STATE, job, job)


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_damaged_file_leaves_no_savepoint(job: LocalObjectStore, tmp_path: Path, damage: str) -> None:
    path = next(iter(FILES))
    job.delete(path)
    if damage == "changed":
        job.put(path, b"else")
    target = LocalObjectStore(str(tmp_path / "savepoints"))
    with pytest.raises(CorruptStateError, match=path):
        write_savepoint(STATE, job, target)
    assert everything(target) == {}


def test_a_damaged_savepoint_is_not_imported(job: LocalObjectStore, tmp_path: Path) -> None:
    folder = write_savepoint(STATE, job, job)
    path = next(iter(FILES))
    job.child(folder).put(path, b"else")
    with pytest.raises(CorruptStateError, match=path):
        import_savepoint(job.child(folder), LocalObjectStore(str(tmp_path / "other")))


def test_what_is_no_savepoint_is_refused(job: LocalObjectStore, tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match=r"job is not a savepoint: it has no _metadata"):
        load_savepoint(job)
    checkpoint = job.child("chk-3")
    checkpoint.put("_metadata", STATE.to_bytes())
    with pytest.raises(RestoreError, match="chk-3 is a checkpoint, whose files belong to its job"):
        import_savepoint(checkpoint, LocalObjectStore(str(tmp_path / "other")))


def test_copies_are_named_after_the_attempt_that_restores(tmp_path: Path) -> None:
    source, job = LocalObjectStore(str(tmp_path / "savepoint")), LocalObjectStore(str(tmp_path / "job"))
    table = pa.table({"value": pa.array(range(50_000))})
    (part,) = write_partitions(table, source, split=False, written_by="9-9")
    counted = operator("count")
    subtasks = tuple(
        replace(
            subtask,
            operator_state=(OperatorStateHandle("seen", DistributionMode.SPLIT_DISTRIBUTE, (part, {"arrow": "AAAA"})),),
            raw_keyed=({"key_group": subtask.keyed.key_groups.end, **part},),
            channel_state=(part,),
        )
        for subtask in counted.subtasks
    )
    stored = replace(STATE, kind=CheckpointKind.SAVEPOINT, operators=(replace(counted, subtasks=subtasks),))
    source.put("_metadata", stored.to_bytes())
    for path, data in FILES.items():
        source.put(path, data)
    copies = [import_savepoint(source, job, written_by) for written_by in ("4-0", "5-0")]
    for written_by, copy in zip(("4-0", "5-0"), copies, strict=True):
        assert all(path.startswith(f"shared/{written_by}-") for path in copy.files())
        assert {hashlib.sha256(job.get(path)[0]).hexdigest() for path in copy.files()} == {
            path[-72:-8] for path in stored.files()
        }
        assert copy.operators[0].subtasks[0].raw_keyed[0]["key_group"] == 3
    assert not copies[0].files() & copies[1].files()


def test_a_native_savepoint_names_the_files_of_the_job(job: LocalObjectStore, tmp_path: Path) -> None:
    job.put("HEAD", Head(1, 3, "chk-3/_metadata", "0", retained=(3,)).to_bytes())
    folder = write_savepoint(STATE, job, job, SavepointFormatType.NATIVE)
    assert folder.endswith("-native")
    assert set(everything(job)) == {*FILES, f"{folder}/_metadata", "HEAD"}
    location = StorageLocation(str(tmp_path / "job" / folder))
    loaded = load_savepoint(location.open())
    assert loaded.operators == STATE.operators
    assert files_location(loaded, location) == StorageLocation(str(tmp_path / "job"))

    other_job = LocalObjectStore(str(tmp_path / "other"))
    import_savepoint(location.open(), other_job, files=files_location(loaded, location).open())
    assert everything(other_job) == FILES
    canonical = as_savepoint(loaded, loaded.operators)
    assert files_location(canonical, location) == location


@pytest.mark.parametrize("head", [None, Head(1, 4, "chk-4/_metadata", "0", retained=(4,))])
def test_a_native_savepoint_of_a_checkpoint_that_is_not_kept_is_given_up(
    job: LocalObjectStore, head: Head | None
) -> None:
    if head is not None:
        job.put("HEAD", head.to_bytes())
    before = everything(job)
    with pytest.raises(CorruptStateError, match="no longer keeps checkpoint 3"):
        write_savepoint(STATE, job, job, SavepointFormatType.NATIVE)
    assert everything(job) == before


_HANGS = """
import sys, threading
from dagster_flinkpy.checkpoint.savepoints.savepoint import write_savepoint
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.checkpoint.samples import metadata, operator

hangs = threading.Event()

class Store(LocalObjectStore):
    def get(self, key):
        hangs.set()
        threading.Event().wait()

job, target = Store(sys.argv[1] + "/job"), LocalObjectStore(sys.argv[1])
write = threading.Thread(target=write_savepoint, args=(metadata(3, operator("count")), job, target), daemon=True)
write.start()
hangs.wait()
"""


def test_a_process_does_not_wait_for_a_store_that_hangs(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", _HANGS, str(tmp_path)], cwd=root, check=True, timeout=250)
