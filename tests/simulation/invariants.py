"""What must hold after every change of the store, whoever made it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import DEFAULT_NUM_RETAINED
from dagster_flinkpy.checkpoint.head import HEAD_KEY, Head
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER
from dagster_flinkpy.connectors.commit.staged_files import StagedFile
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from tests.simulation.edges import read_in_flight
from tests.simulation.partition_rules import expected_ends
from tests.simulation.program import (
    JOB,
    OUT,
    PARTITION_SPLITS,
    PARTITIONS,
    SPLIT_RECORDS,
    SPLITS,
    Scenario,
    count_of,
    key_of,
    ordinals,
    partition,
)
from tests.simulation.request_rules import RequestRules
from tests.simulation.savepoint_rules import SavepointRules
from tests.simulation.task_state import read_counts, read_held, read_seen
from tests.simulation.world import World

__all__ = ["Asked", "Completed", "Invariants"]

_SEGMENT = re.compile(rf"{JOB}/{EXCHANGE_FOLDER}/[^/]+/(\d+)-(\d+)/.+")
_CHECKPOINT = re.compile(rf"{JOB}/chk-(\d+)/{METADATA_NAME}")


@dataclass
class Asked:
    """What an attempt was asked to do."""

    start: int | None = 0
    """Id of the checkpoint or savepoint to start from; None for empty state, 0 for the latest checkpoint."""
    run_id: str | None = None
    """Id of the run of which the attempt is a try."""
    ends_input: bool = False
    """Whether it may end the input early, because it stops with draining."""
    offline: bool = False
    """Whether it does not know the program's settings."""
    leaves: int | None = None
    """Id of the checkpoint from which it starts and which it leaves to its owner."""


@dataclass
class Completed:
    """A checkpoint that was completed at some time."""

    metadata: CheckpointMetadata
    read: int
    """Number of splits read up to it."""
    lineage: tuple[int, ...]
    """Records in the files of this checkpoint and of those before it."""
    files: tuple[str, ...]
    """Keys of the files that it has to commit."""


_ABANDONED_MS = 3_600_000
"""The sweep deletes what an attempt has left that ended so long ago; clocks differ by less."""


@dataclass(frozen=True)
class _Prepared:
    upload_id: str
    checkpoint_id: int
    partition: str | None


@dataclass
class Invariants:
    """Watches the bucket of a world."""

    world: World
    scenario: Scenario
    completed: dict[int, Completed] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    """What attempts were asked to do, by owner of the attempt."""
    released: set[int] = field(default_factory=set)
    """Unclaimed checkpoints that an actor wanted to claim or to dispose of."""

    def __post_init__(self) -> None:
        self._bucket = self.world.bucket
        self._bucket.on_put = self._on_put
        self._bucket.on_delete = self._on_delete
        self._bucket.on_abort = self._on_abort
        self.head: Head | None = None
        self._owners: dict[int, str] = {}
        """Owners of attempts by fencing token."""
        self._expires_at = 0
        """When the lease of the newest attempt ends, by its own clock."""
        self.savepoints = SavepointRules(self._bucket, self.completed, self._owners, self._check_contents, self._fail)
        self.requests = RequestRules(self._bucket, self.completed, self._fail)
        self._prepared: dict[str, _Prepared] = {}
        """What completed checkpoints have to commit, by key."""
        self._gave_up = 0
        """Token of the newest attempt that deletes its checkpoints at its end."""

    # --- changes ------------------------------------------------------------------------------------------------------

    def _on_put(self, key: str, old: bytes | None, new: bytes) -> None:
        if key == f"{JOB}/{HEAD_KEY}" and old is not None:
            self._note_giving_up(Head.from_bytes(old, key), Head.from_bytes(new, key))
        if old == new:
            return
        self.requests.on_put(key, old, new)
        if key == f"{JOB}/{HEAD_KEY}":
            self._on_head(new)
        elif key == f"{JOB}/leader":
            record = json.loads(new)
            self._owners[record["token"]] = record["owner"]
            self._expires_at = record["expires_at"]
        elif old is not None and (_CHECKPOINT.fullmatch(key) or f"{JOB}/shared/" in key or "savepoint-" in key):
            self._fail(f"{key} was overwritten with other content")
        elif key.startswith(f"{OUT}/") and key not in self._prepared:
            self._fail(f"{key} became visible, but no completed checkpoint names it")

    def _on_delete(self, key: str) -> None:
        for checkpoint_id in self.kept:
            named = {f"{JOB}/{path}" for path in self.completed[checkpoint_id].metadata.files()}
            if key in named or key == f"{JOB}/chk-{checkpoint_id}/{METADATA_NAME}":
                self._fail(f"{key} was deleted, but retained checkpoint {checkpoint_id} names it")
        self.savepoints.on_delete(key)
        if key in (f"{JOB}/{HEAD_KEY}", f"{JOB}/leader"):
            self._fail(f"{key} was deleted")
        if key.startswith(f"{OUT}/"):
            self._on_replaced(key)
        given_up = self.world.current.process.is_slot and key not in self._bucket.acknowledged
        if (found := _SEGMENT.fullmatch(key)) and not given_up:
            token, checkpoint_id = int(found[1]), int(found[2])
            # A checkpoint that fails may hand over to the next one, which then has all before its barrier.
            newest = token == max(self._owners, default=0) and token != self._gave_up
            unfinished = newest and checkpoint_id > max(self.completed, default=0)
            if unfinished and self.world.now_ms < self._expires_at + _ABANDONED_MS:
                self._fail(f"{key} was deleted, but checkpoint {checkpoint_id} is not complete")

    def _on_replaced(self, key: str) -> None:
        """Rows may only be deleted when all newer rows of the same time partition exist."""
        old = self._prepared[key]
        newer = (
            done
            for number, done in self.completed.items()
            if number > old.checkpoint_id and old.partition is not None and done.metadata.partition == old.partition
        )
        if not any(done.files and all(file in self._bucket.objects for file in done.files) for done in newer):
            self._fail(f"{key} was deleted, but its partition was not written again")

    def _on_abort(self, key: str, upload_id: str) -> None:
        prepared = self._prepared.get(key)
        if prepared is not None and prepared.upload_id == upload_id and key not in self._bucket.objects:
            self._fail(f"{key} was aborted, but completed checkpoint {prepared.checkpoint_id} has to commit it")

    # --- what there is ------------------------------------------------------------------------------------------------

    @property
    def kept(self) -> list[int]:
        """The checkpoints to which one can go back now."""
        return sorted({*self.head.kept}) if self.head is not None else []

    @property
    def latest(self) -> Completed | None:
        """The checkpoint that HEAD names."""
        number = self.head.checkpoint_id if self.head is not None else None
        return None if number is None else self.completed[number]

    # --- HEAD ---------------------------------------------------------------------------------------------------------

    def _on_head(self, data: bytes) -> None:
        old, new = self.head, Head.from_bytes(data, HEAD_KEY)
        if old is not None:
            if new.fencing_token < old.fencing_token:
                self._fail(f"the token on HEAD went back from {old.fencing_token} to {new.fencing_token}")
            if new.checkpoint_id is None and old.checkpoint_id is not None:
                self._on_discarded(old)
            elif (new.checkpoint_id or 0) < max(self.completed, default=0) and new.checkpoint_id != old.checkpoint_id:
                self._fail(f"HEAD went back from {old.checkpoint_id} to {new.checkpoint_id}")
            if lost := {*old.unclaimed} - {*new.unclaimed} - self.released:
                self._fail(f"HEAD no longer keeps unclaimed checkpoint {min(lost)}, but nobody has given it up")
        self.head = new
        if new.checkpoint_id is not None and (old is None or new.checkpoint_id != old.checkpoint_id):
            self._on_complete(new, old or Head(0))
        elif old is not None and new.checkpoint_id is not None:
            same = replace(old, fencing_token=new.fencing_token, unclaimed=new.unclaimed)
            if new != same or not {*new.unclaimed} <= {*old.unclaimed}:
                self._fail(f"HEAD changed without a checkpoint from {old} to {new}")
        for checkpoint_id in new.kept:
            if checkpoint_id not in self.completed:
                self._fail(f"HEAD retains checkpoint {checkpoint_id}, which never completed")
                return
            self._check_files(self.completed[checkpoint_id].metadata, JOB, f"retained checkpoint {checkpoint_id}")

    def _note_giving_up(self, old: Head, new: Head) -> None:
        """Without a checkpoint to name, an attempt replaces its own HEAD only to delete all that it has written."""
        deletes = self.scenario.retention is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
        if deletes and new.checkpoint_id is None and old.fencing_token == new.fencing_token:
            self._gave_up = new.fencing_token

    def _on_discarded(self, old: Head) -> None:
        """A run deletes its checkpoints at its end only if it is told to, and if nothing else needs them."""
        assert old.checkpoint_id is not None
        latest = self.completed[old.checkpoint_id]
        if self.scenario.retention is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION:
            self._fail(f"checkpoint {old.checkpoint_id} was given up, though checkpoints are retained")
        if any(key not in self._bucket.objects for key in latest.files):
            self._fail(f"checkpoint {old.checkpoint_id} was given up before all of it was committed")
        if latest.metadata.stopped:
            self._fail(
                f"checkpoint {old.checkpoint_id} was given up, and nobody knows any more that the job is stopped"
            )

    def _on_complete(self, head: Head, old: Head) -> None:
        where = f"{JOB}/{head.path}"
        data = self._bucket.get(where)
        if data is None or hashlib.sha256(data).hexdigest() != head.metadata_sha256:
            self._fail(f"HEAD names {where}, which is missing or another one")
            return
        metadata = CheckpointMetadata.from_bytes(data, where)
        number = metadata.checkpoint_id
        if number in self.completed:
            self._fail(f"checkpoint {number} completed twice")
        parent = self._parent(metadata, old.checkpoint_id)
        if metadata.parent_id is not None and parent is None:
            return
        read = self._read(metadata, parent)
        done = Completed(metadata, read, parent.lineage if parent else (), ())
        self._prepare(done)
        self.completed[number] = done
        self.requests.on_complete(number)
        self._check_retained(head, old, done)
        self._check_end_of_input(done, parent)
        self._check_contents(metadata, read, JOB, f"checkpoint {number}")
        self._check_written(done)

    def _check_written(self, done: Completed) -> None:
        """Checks that each record is in the files once, or held back in state."""
        if self.world.broken is not None:
            return  # files may be missing
        metadata = done.metadata
        what = f"checkpoint {metadata.checkpoint_id}"
        count = metadata.operator("count")
        held = read_held((s.keyed for s in (count.subtasks if count else ())), self._file)
        in_flight = read_in_flight(metadata, self._file)
        if sorted([*done.lineage, *held, *in_flight]) != list(range(done.read * SPLIT_RECORDS)):
            self._fail(
                f"{what} has read {done.read} splits and holds {held}, with {in_flight} in flight, but the files have "
                f"{sorted(done.lineage)}"
            )
        if metadata.end_of_input and in_flight:
            self._fail(f"{what} ends the input, with {in_flight} in flight")
        if metadata.end_of_input and held:
            self._fail(f"{what} ends the input, but still holds {held}")

    def _file(self, path: str) -> bytes:
        return self._bucket.objects[f"{JOB}/{path}"].data

    def _parent(self, metadata: CheckpointMetadata, latest: int | None) -> Completed | None:
        """Returns the checkpoint from which this one continues: the latest, except for the first one of an attempt."""
        number, parent_id, asked = metadata.checkpoint_id, metadata.parent_id, self._asked(metadata)
        first = not any(d.metadata.fencing_token == metadata.fencing_token for d in self.completed.values())
        if parent_id != latest and not (first and parent_id == asked.start):
            self._fail(f"checkpoint {number} continues from {parent_id}, not from the latest, {latest}")
        before = self.completed.get(latest) if latest is not None else None
        if parent_id != latest and before is not None and asked.run_id is not None:
            owner = self._owners[before.metadata.fencing_token]
            if self.asked[owner].run_id == asked.run_id:
                self._fail(f"checkpoint {number} continues from {parent_id}, which an earlier try has restored")
        parent = None if parent_id is None else self.completed.get(parent_id)
        if parent is None and parent_id is not None:
            self._fail(f"checkpoint {number} continues from {parent_id}, which never completed")
        return parent

    def _asked(self, metadata: CheckpointMetadata) -> Asked:
        return self.asked[self._owners[metadata.fencing_token]]

    def _read(self, metadata: CheckpointMetadata, parent: Completed | None) -> int:
        if not self.scenario.partitioned:
            numbers = metadata.operator("numbers")
            read: int = numbers.coordinator_state["read"] if numbers is not None else 0
            return read
        ordinal = next((p for p in range(PARTITIONS) if partition(p).key == metadata.partition), None)
        if ordinal is not None:
            return (ordinal + 1) * PARTITION_SPLITS
        return parent.read if parent is not None else 0

    def _prepare(self, done: Completed) -> None:
        """Records what a checkpoint has to commit."""
        metadata = done.metadata
        number = metadata.checkpoint_id
        for operator in metadata.operators:
            for subtask in operator.subtasks:
                for committable in subtask.committables:
                    file = StagedFile.from_json(committable)
                    upload = self._bucket.uploads.get(file.upload_id)
                    if upload is None or any(part.number not in upload.parts for part in file.parts):
                        self._fail(f"checkpoint {number} names {file.key}, whose upload is gone")
                        return
                    rows = self._rows_of(b"".join(upload.parts[part.number] for part in file.parts))
                    if wrong := [row for row in rows if row[1] != self._count_of(*row)]:
                        self._fail(f"checkpoint {number} writes {wrong[0]}, which no uninterrupted run would")
                    done.lineage += tuple(record for record, _ in rows)
                    done.files += (f"{OUT}/{file.key}",)
                    self._prepared[f"{OUT}/{file.key}"] = _Prepared(file.upload_id, number, metadata.partition)

    def _rows_of(self, data: bytes) -> list[Any]:
        rows: list[Any] = json.loads(data)
        return rows

    def _count_of(self, record: int, count: int) -> int:
        return count if self.scenario.unaligned and self.scenario.regions > 2 else count_of(record)

    def _check_retained(self, head: Head, old: Head, done: Completed) -> None:
        asked, number = self._asked(done.metadata), done.metadata.checkpoint_id
        if number not in head.retained:
            self._fail(f"checkpoint {number} is not retained")
        previous = old.checkpoint_id
        most = self.scenario.num_retained
        if asked.offline:  # without the program, the number of retained checkpoints is unknown
            most = max(most, DEFAULT_NUM_RETAINED)
        if most > 1 and not asked.offline and previous is not None and previous not in head.kept:
            self._fail(f"checkpoint {number} drops the previous one from the retained checkpoints")
        if len({*head.retained} - {end.checkpoint_id for end in head.partitions}) > most:
            self._fail(f"with checkpoint {number} more than {most} are retained: {head.retained}")
        if asked.leaves is not None and asked.leaves not in {*head.unclaimed, *self.released}:
            self._fail(f"checkpoint {number} does not leave {asked.leaves} to its owner")
        started_from = None if asked.offline else asked.start or 0
        repeats = lambda checkpoint_id: self.completed[checkpoint_id].read == done.read  # noqa: E731
        if problem := expected_ends(head, old, done.metadata, started_from, self.scenario, repeats):
            self._fail(f"checkpoint {number}: {problem}")
        for ordinal, end in ordinals(head.partitions).items():
            completed = self.completed[end.checkpoint_id]
            if end.ordinal != ordinal and completed.metadata.partition == end.partition:
                self._fail(f"the end state of {end.partition} is said to be that of partition {end.ordinal}")
            if completed.read != (ordinal + 1) * PARTITION_SPLITS:
                self._fail(f"checkpoint {end.checkpoint_id} is not the end state of {end.partition}")

    def _check_end_of_input(self, done: Completed, parent: Completed | None) -> None:
        metadata = done.metadata
        all_read = done.read == SPLITS and not self.scenario.partitioned
        inherited = parent is not None and parent.metadata.end_of_input
        # A run that goes on with another attempt still stops, also if the asker has given up waiting for it.
        draining = {self._owners[token] for token in self.requests.draining}
        asked_to = self._asked(metadata).ends_input or self._owners[metadata.fencing_token] in draining
        drained = metadata.stopped and asked_to
        if metadata.end_of_input and not (all_read or inherited or drained):
            self._fail(f"checkpoint {metadata.checkpoint_id} ends the input after {done.read} splits")
        stopped = parent is not None and parent.metadata.stopped and not self._asked(metadata).start
        if stopped and not metadata.stopped:
            self._fail(f"checkpoint {metadata.checkpoint_id} continues a job that was stopped")
        if all_read and not metadata.end_of_input:
            self._fail(f"checkpoint {metadata.checkpoint_id} has read all, but does not end the input")

    def _check_contents(self, metadata: CheckpointMetadata, read: int, prefix: str, what: str) -> None:
        """Checks that each record up to the position of the sources is counted exactly once, in existing files."""
        self._check_files(metadata, prefix, what)
        numbers, count = metadata.operator("numbers"), metadata.operator("count")
        if numbers is None or count is None or self.world.broken is not None:
            self._fail(f"{what} lacks an operator")
            return

        def file(path: str) -> bytes:
            return self._bucket.objects[f"{prefix}/{path}"].data

        expected: dict[int, list[int]] = {}
        for record in range(read * SPLIT_RECORDS):
            expected.setdefault(key_of(record), []).append(record)
        counted = read_counts((s.keyed for s in count.subtasks), file)
        in_flight = sorted(read_in_flight(metadata, file))
        for record in in_flight:
            counted.setdefault(key_of(record), []).append(record)
        if {key: self._ordered(records) for key, records in counted.items()} != expected:
            self._fail(f"{what} has read {read} splits, but counted {counted}, with {in_flight} in flight")
        seen = read_seen((h for s in numbers.subtasks for h in s.operator_state), file)
        if sorted(seen) != list(range(read)):
            self._fail(f"{what} has read {read} splits, but its operator state has {seen}")

    def _ordered(self, records: list[int]) -> list[int]:
        """Returns records in the order of the input, if regions may lag behind others that are side by side."""
        return sorted(records) if self.scenario.unaligned and self.scenario.regions > 2 else records

    def _check_files(self, metadata: CheckpointMetadata, prefix: str, what: str) -> None:
        for path in sorted(metadata.files()):
            if f"{prefix}/{path}" not in self._bucket.objects:
                self._fail(f"{what} names {prefix}/{path}, which does not exist")

    # --- the end ------------------------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Checks that all input is read, and that exactly what completed checkpoints have prepared is visible."""
        if not self.completed:
            self._fail("no checkpoint completed")
            return
        last = self.completed[max(self.completed)].metadata
        if last.kind is not CheckpointKind.CHECKPOINT:
            self._fail(f"HEAD names {last.kind.value} {last.checkpoint_id}")
        if not last.end_of_input and not self.scenario.partitioned:
            self._fail(f"the last checkpoint, {last.checkpoint_id}, is not at the end of the input")
        newest = {done.metadata.partition: number for number, done in sorted(self.completed.items())}
        if self.scenario.partitioned and (missing := [p for p in range(PARTITIONS) if partition(p).key not in newest]):
            self._fail(f"partition {missing[0]} was never run")
        due = {
            key
            for key, prepared in self._prepared.items()
            if prepared.partition is None or newest[prepared.partition] == prepared.checkpoint_id
        }
        visible = {key for key in self._bucket.objects if key.startswith(f"{OUT}/")}
        if lost := sorted(due - visible):
            self._fail(f"{lost[0]} of completed checkpoint {self._prepared[lost[0]].checkpoint_id} was never committed")
        stale = sorted(visible - due)
        if stale and not self.world.lists_late:  # older files of a partition are found by listing it
            self._fail(f"{stale[0]} is visible, though its partition was written again")
        self.check_nothing_is_open()

    def check_nothing_is_open(self) -> None:
        """Checks that an ended job has left nothing open, because there may be no later run that cleans up.

        A task that Spark keeps running may still open something afterwards. The asset check reports that.
        """
        for upload_id, upload in self._bucket.uploads.items():
            if int(upload_id.removeprefix("upload-")) <= self._bucket.looked_at:
                self._fail(f"{upload_id} of {upload.key} was neither committed nor aborted")

    def check_swept(self) -> None:
        """Checks that only needed files are left when nothing is running."""
        needed = {f"{JOB}/{path}" for number in self.kept for path in self.completed[number].metadata.files()}
        needed |= {f"{JOB}/chk-{number}/{METADATA_NAME}" for number in self.kept}
        needed |= self.savepoints.needed()
        for key in self._bucket.objects:
            if key.startswith(f"{JOB}/savepoint-"):
                orphan = f"{'/'.join(key.split('/')[:2])}/{METADATA_NAME}" not in self._bucket.objects
            else:
                orphan = key.startswith((f"{JOB}/shared/", f"{JOB}/chk-")) and key not in needed
            if orphan:
                self._fail(f"{key} was not swept, though nothing names it")

    def _fail(self, message: str) -> None:
        """Ends the actor that made the change. The world reports the violation."""
        self.world.report(message)
