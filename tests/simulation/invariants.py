"""What must be so after every change of the store, whoever made it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field

from dagster_flinkpy.checkpoint.head import HEAD_KEY, Head
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointKind, CheckpointMetadata
from dagster_flinkpy.connectors.staged_files import StagedFile
from tests.simulation.job import JOB, OUT, SPLIT_RECORDS, SPLITS, key_of, read_counts, read_seen
from tests.simulation.world import URL, World

__all__ = ["Invariants"]

_CHECKPOINT = re.compile(rf"{JOB}/chk-(\d+)/{METADATA_NAME}")


@dataclass
class _Completed:
    metadata: CheckpointMetadata
    lineage: tuple[int, ...]
    """Records that are in the files of this checkpoint and those before it."""
    files: dict[str, StagedFile] = field(default_factory=dict)


class Invariants:
    """Watches the bucket of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bucket = world.bucket
        self._bucket.on_put = self._on_put
        self._bucket.on_delete = self._on_delete
        self._bucket.on_abort = self._on_abort
        self.completed: dict[int, _Completed] = {}
        self.savepoints: dict[str, CheckpointMetadata] = {}
        """By URL; those that whoever asked for them was told of."""
        self.asked_for: set[int] = set()
        """Checkpoints that somebody wanted to go back to."""
        self._head: Head | None = None
        self._prepared: dict[str, tuple[str, int]] = {}
        """Key of what a completed checkpoint has to commit -> upload, checkpoint."""

    # --- changes ------------------------------------------------------------------------------------------------------

    def _on_put(self, key: str, old: bytes | None, new: bytes) -> None:
        if old == new:
            return
        if key == f"{JOB}/{HEAD_KEY}":
            self._on_head(new)
        elif old is not None and (_CHECKPOINT.fullmatch(key) or f"{JOB}/shared/" in key or "savepoint-" in key):
            self._fail(f"{key} was overwritten with something else")
        elif key.startswith(f"{OUT}/") and key not in self._prepared:
            self._fail(f"{key} became visible, but no completed checkpoint names it")

    def _on_delete(self, key: str) -> None:
        if self._head is not None:
            for checkpoint_id in self._head.kept:
                named = {f"{JOB}/{path}" for path in self.completed[checkpoint_id].metadata.files()}
                if key in named or key == f"{JOB}/chk-{checkpoint_id}/{METADATA_NAME}":
                    self._fail(f"{key} was deleted, but retained checkpoint {checkpoint_id} names it")
        for url in self.savepoints:
            if key.startswith(f"{_key(url)}/"):
                self._fail(f"{key} of a savepoint was deleted")
        if key in (f"{JOB}/{HEAD_KEY}", f"{JOB}/leader") or key.startswith(f"{OUT}/"):
            self._fail(f"{key} was deleted")

    def _on_abort(self, key: str, upload_id: str) -> None:
        if key in self._prepared and self._prepared[key][0] == upload_id and key not in self._bucket.objects:
            self._fail(f"{key} was aborted, but completed checkpoint {self._prepared[key][1]} has to commit it")

    @property
    def kept(self) -> list[int]:
        """Checkpoints that one can go back to now."""
        return sorted(self._head.kept) if self._head is not None else []

    def keep_savepoint(self, url: str) -> None:
        """From now on it must stay whole."""
        key = f"{_key(url)}/{METADATA_NAME}"
        savepoint = self.savepoints[url] = CheckpointMetadata.from_bytes(self._bucket.objects[key].data, key)
        self._check_files(savepoint, _key(url), f"savepoint {url}")

    # --- HEAD ---------------------------------------------------------------------------------------------------------

    def _on_head(self, data: bytes) -> None:
        old, new = self._head, Head.from_bytes(data, HEAD_KEY)
        if old is not None:
            if new.fencing_token < old.fencing_token:
                self._fail(f"the token on HEAD went back from {old.fencing_token} to {new.fencing_token}")
            if (new.checkpoint_id or 0) < (old.checkpoint_id or 0):
                self._fail(f"HEAD went back from {old.checkpoint_id} to {new.checkpoint_id}")
        self._head = new
        if new.checkpoint_id is not None and (old is None or new.checkpoint_id != old.checkpoint_id):
            self._on_complete(new, old.checkpoint_id if old else None)
        elif old is not None and (new.path, new.metadata_sha256) != (old.path, old.metadata_sha256):
            self._fail(f"checkpoint {new.checkpoint_id} completed twice")
        for checkpoint_id in new.kept:
            if checkpoint_id not in self.completed:
                self._fail(f"HEAD retains checkpoint {checkpoint_id}, which never completed")
                return
            self._check_files(self.completed[checkpoint_id].metadata, JOB, f"retained checkpoint {checkpoint_id}")

    def _on_complete(self, head: Head, previous: int | None) -> None:
        where = f"{JOB}/{head.path}"
        data = self._bucket.get(where)
        if data is None or hashlib.sha256(data).hexdigest() != head.metadata_sha256:
            self._fail(f"HEAD names {where}, which is missing or another one")
            return
        metadata = CheckpointMetadata.from_bytes(data, where)
        number = metadata.checkpoint_id
        if number in self.completed:
            self._fail(f"checkpoint {number} completed twice")
        if previous is not None and previous not in head.kept and len(head.retained) > 1:
            self._fail(f"checkpoint {number} drops the one before it from what is retained")
        parent, lineage = metadata.parent_id, ()
        if parent is not None:
            before = self.completed.get(parent)
            if before is None:
                self._fail(f"checkpoint {number} goes on from {parent}, which never completed")
                return
            lineage = before.lineage
        restored = {s.checkpoint_id for s in self.savepoints.values()}
        if parent != previous and parent not in restored | self.asked_for:
            self._fail(f"checkpoint {number} goes on from {parent}, not from the latest, {previous}")
        files = [
            StagedFile.from_json(committable)
            for operator in metadata.operators
            for subtask in operator.subtasks
            for committable in subtask.committables
        ]
        written: list[int] = []
        for file in files:
            if not self._is_open(file):
                self._fail(f"checkpoint {number} names {file.key}, whose upload is gone")
                return
            upload = self._bucket.uploads[file.upload_id]
            rows = json.loads(b"".join(upload.parts[part.number] for part in file.parts))
            written += [record for record, _ in rows]
            self._prepared[f"{OUT}/{file.key}"] = (file.upload_id, number)
        done = _Completed(metadata, (*lineage, *written), {file.key: file for file in files})
        self.completed[number] = done
        self._check_state(done)

    def _is_open(self, file: StagedFile) -> bool:
        upload = self._bucket.uploads.get(file.upload_id)
        return upload is not None and all(part.number in upload.parts for part in file.parts)

    def _check_state(self, done: _Completed) -> None:
        """Each record up to where the sources are was counted, and written, exactly once."""
        metadata = done.metadata
        what = f"checkpoint {metadata.checkpoint_id}"
        self._check_files(metadata, JOB, what)
        numbers, count = metadata.operator("numbers"), metadata.operator("count")
        if numbers is None or count is None or self._world.broken is not None:
            self._fail(f"{what} lacks an operator")
            return
        read = numbers.coordinator_state["read"]
        expected: dict[int, list[int]] = {}
        for record in range(read * SPLIT_RECORDS):
            expected.setdefault(key_of(record), []).append(record)
        counted = read_counts((s.keyed for s in count.subtasks), self._file)
        if counted != expected:
            self._fail(f"{what} has read {read} splits, but counted {counted}")
        seen = read_seen((h for s in numbers.subtasks for h in s.operator_state), self._file)
        if sorted(seen) != list(range(read)):
            self._fail(f"{what} has read {read} splits, but its operator state has {seen}")
        if sorted(done.lineage) != list(range(read * SPLIT_RECORDS)):
            self._fail(f"{what} has read {read} splits, but the files up to it have {sorted(done.lineage)}")
        if metadata.end_of_input != (read == SPLITS):
            self._fail(f"{what}: end of input is {metadata.end_of_input} after {read} splits")

    def _file(self, path: str) -> bytes:
        return self._bucket.objects[f"{JOB}/{path}"].data

    def _check_files(self, metadata: CheckpointMetadata, prefix: str, what: str) -> None:
        for path in sorted(metadata.files()):
            if f"{prefix}/{path}" not in self._bucket.objects:
                self._fail(f"{what} names {prefix}/{path}, which does not exist")

    # --- the end ------------------------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """All input is read, and what completed checkpoints have prepared is visible; nothing else is."""
        if self._head is None or self._head.checkpoint_id is None:
            self._fail("no checkpoint completed")
            return
        last = self.completed[self._head.checkpoint_id]
        if not last.metadata.end_of_input or last.metadata.kind is not CheckpointKind.CHECKPOINT:
            self._fail(f"the last checkpoint, {self._head.checkpoint_id}, is not at the end of the input")
        visible = {key for key in self._bucket.objects if key.startswith(f"{OUT}/")}
        if missing := sorted(set(self._prepared) - visible):
            self._fail(f"{missing[0]} of completed checkpoint {self._prepared[missing[0]][1]} was never committed")
        if self._bucket.uploads:
            upload_id, upload = next(iter(self._bucket.uploads.items()))
            self._fail(f"{upload_id} of {upload.key} was neither committed nor aborted")

    def _fail(self, message: str) -> None:
        """The one who made the change is ended; the world reports it."""
        self._world.report(message)


def _key(url: str) -> str:
    return url.removeprefix(f"{URL}/")
