"""Which checkpoints are in an Iceberg table, or in a branch of it.

What a snapshot has added is in its summary. Snapshots expire, so a property of the table has the latest ones, too, one
for each branch.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors.commit.checkpoint_committer import StagedCheckpoint
from dagster_flinkpy.connectors.iceberg.sink import IcebergSink
from dagster_flinkpy.connectors.lake.committer import LakeTarget
from dagster_flinkpy.datastream.connectors.base import CommitterInitContext
from dagster_flinkpy.errors import CommittableLostError, ConfigurationError, SinkCommitError
from dagster_flinkpy.json_records import JsonRecord

__all__ = ["CommitLog"]

_JOB = "flinkpy.job-id"
_UID = "flinkpy.uid"
_CHECKPOINT = "flinkpy.checkpoint-id"
_DIGEST = "flinkpy.digest"
_RECENT = 32
"""How many checkpoints the property has."""
_CLOCK_SKEW_MS = 3_600_000


@dataclass(frozen=True)
class _Committed(JsonRecord, omit_defaults=True):
    """What the property says. Earlier releases have left out some of it."""

    checkpoint: int
    recent: list[tuple[int, str, int, list[Any]]]
    """Checkpoint, digest, time and partitions of the latest commits, oldest first."""
    columns: dict[str, int] = field(default_factory=dict)
    """The ids of the columns that the latest commit has written, by their names then."""
    files: int | None = None
    """How many files were added by all commits, and not removed by any."""
    snapshot: tuple[int, int] | None = None
    """Id and time of the snapshot to which the latest commit has led, unless the branch is ``main``."""


class CommitLog(LakeTarget[Table]):
    """Which checkpoints of a job and sink are in a branch of a table."""

    def __init__(self, context: CommitterInitContext, sink: IcebergSink) -> None:
        self._context, self._sink, self._branch = context, sink, sink.branch
        names = (context.job_id, context.uid, *(() if sink.branch == MAIN_BRANCH else (sink.branch,)))
        self._ours = {_JOB: context.job_id, _UID: context.uid}
        self._name = f"flinkpy.committed.{'.'.join(map(_quoted, names))}"

    def _committed(self, table: Table) -> _Committed | None:
        text = table.properties.get(self._name)
        try:
            return None if text is None else _Committed.from_json(json.loads(text))
        except ValueError as error:
            raise SinkCommitError(
                f"property {self._name!r} of {self._sink.what} was changed, so that nobody knows what sink "
                f"{self._context.uid!r} has committed: {text:.200}. Remove it if the snapshots of the last checkpoints "
                "still exist."
            ) from error

    def columns(self, table: Table) -> dict[str, int]:
        """Returns the ids of the columns that the latest commit has written, by their names then."""
        committed = self._committed(table)
        return {} if committed is None else committed.columns

    def _recent(self, table: Table) -> list[tuple[int, str, int, list[Any]]]:
        """Returns the latest commits. There are none if the branch was rolled back or made anew since."""
        committed = self._committed(table)
        return [] if committed is None or not self._has_last_snapshot(table) else committed.recent

    def forget(self, transaction: Transaction) -> None:
        """Forgets what an earlier branch of the same name had."""
        if self._name in transaction.table_metadata.properties:
            transaction.remove_properties(self._name)

    def added_files(self, table: Table) -> int | None:
        if (committed := self._committed(table)) is not None:
            return committed.files if self._has_last_snapshot(table) else None
        history = self._history(table)
        return None if self.last(table) or (history and history[-1].sequence_number != 1) else 0

    def _history(self, table: Table, branch: str | None = None) -> list[Snapshot]:
        """Returns the snapshots of a branch, the sink's by default, newest first, without those that have expired."""
        by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
        found, snapshot = list[Snapshot](), table.snapshot_by_name(branch or self._branch)
        while snapshot is not None:
            found.append(snapshot)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else by_id.get(parent)
        return found

    def last_snapshot(self, table: Table) -> tuple[int, int] | None:
        """Returns id and time of the snapshot to which the latest commit has led, unless the branch is ``main``."""
        committed = self._committed(table)
        return None if committed is None else committed.snapshot

    def _has_last_snapshot(self, table: Table) -> bool:
        """Returns whether the branch has the snapshot of the latest commit, or has had it before it expired."""
        last = self.last_snapshot(table)
        if last is None:
            return True
        history, (snapshot_id, ms) = self._history(table), last
        if any(snapshot_id in (snapshot.snapshot_id, snapshot.parent_snapshot_id) for snapshot in history):
            return True
        if not history or history[-1].timestamp_ms < ms:
            return False
        # It may have expired. But a branch that somebody has made anew begins with a snapshot of another one.
        others = [each for ref in table.refs() if ref != self._branch for each in self._history(table, ref)]
        known = {each.snapshot_id for each in (*others, *table.metadata.snapshot_log)}
        return history[-1].snapshot_id not in known

    def start(self, table: Table) -> int | None:
        """Returns the snapshot at which a new branch begins, or None for the newest one of ``main``.

        If the job has begun with the state of another one, that is where the branch was that the other one writes to.
        What it has added after that, this job adds itself. The same holds for the job with which that one has begun.
        """
        for origin, last in self._context.ancestors:
            found = self._commits_of(table, origin)
            own = [each for each in found if each[0] == self._context.uid] or found
            branches = {branch for _, branch, _ in own}
            if len(branches) > 1:
                raise self._unknown_start(origin, last, "main", f"writes to the branches {sorted(branches)}")
            if branches or any(job == origin for _, job, _ in self._said(table, MAIN_BRANCH)):
                branch = next(iter(branches), MAIN_BRANCH)
                committed = max((number for _, each, number in found if each == branch), default=0)
                return self._start_at(table, branch, origin, last, committed)
        return None

    def _start_at(self, table: Table, branch: str, origin: str, last: int, committed: int) -> int | None:
        """Returns the snapshot of a branch before what a job has added after a checkpoint."""
        history = self._history(table, branch)
        theirs = [(each, checkpoint_id) for each, job, checkpoint_id in self._said(table, branch) if job == origin]
        newer = [snapshot for snapshot, checkpoint_id in theirs if checkpoint_id > last]
        whole = len(newer) < len(theirs) or (bool(history) and history[-1].sequence_number == 1)
        in_order = all(checkpoint_id > last for _, checkpoint_id in theirs[: len(newer)])
        if not newer and (history or branch == MAIN_BRANCH) and (whole or committed <= last):
            return None if branch == MAIN_BRANCH else history[0].snapshot_id
        if whole and in_order and newer:
            start = newer[-1].parent_snapshot_id
            if start is not None and any(each.snapshot_id == start for each in history):
                return int(start)
        raise self._unknown_start(origin, last, branch, f"has added rows to {branch!r} since then")

    def _unknown_start(self, origin: str, last: int, branch: str, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._sink.what} cannot be created: the job begins with the state of checkpoint {last} of job "
            f"{origin!r}, which {what}. No snapshot is known to have all rows up to then, and none after. Create it "
            f"yourself at a snapshot of {branch!r} without rows of later checkpoints of {origin!r}, or begin with its "
            "latest checkpoint"
        )

    def _said(self, table: Table, branch: str) -> list[tuple[Snapshot, str, int]]:
        """Returns the snapshots of a branch that jobs have added, newest first, with job and checkpoint."""
        said = [(each, each.summary.additional_properties) for each in self._history(table, branch) if each.summary]
        return [(each, summary[_JOB], int(summary[_CHECKPOINT])) for each, summary in said if _JOB in summary]

    def _commits_of(self, table: Table, job_id: str) -> list[tuple[str, str, int]]:
        """Returns sink, branch and last checkpoint of what a job has committed."""
        prefix, found = f"flinkpy.committed.{_quoted(job_id)}.", list[tuple[str, str, int]]()
        for name, text in table.properties.items():
            uid, _, branch = name.removeprefix(prefix).partition(".")
            if name.startswith(prefix):
                with suppress(ValueError):  # the other job says that somebody has changed it
                    last = _Committed.from_json(json.loads(text)).checkpoint
                    found.append((unquote(uid), unquote(branch) or MAIN_BRANCH, last))
        return found

    def _made(self, table: Table, digest: str) -> bool:
        """Returns whether a snapshot says that it was made of files with a digest."""
        summaries = (snapshot.summary for snapshot in self._history(table))
        return any(each is not None and each.additional_properties.get(_DIGEST) == digest for each in summaries)

    def has(self, table: Table, checkpoint: StagedCheckpoint) -> bool:
        recent, since, digest = self._recent(table), checkpoint.staged_ms - _CLOCK_SKEW_MS, checkpoint.digest
        if any(found == digest for _, found, _, _ in recent):
            return True
        if self._made(table, digest):
            return True
        if recent and (len(recent) < _RECENT or recent[0][2] < since):
            return False
        oldest = next(reversed(self._history(table)), None)
        # The parent does not tell whether it is the first one: who expires that sets it to null.
        if oldest is None or oldest.sequence_number == 1 or oldest.timestamp_ms < since:
            return False
        number = checkpoint.checkpoint_id
        raise CommittableLostError.of(
            number,
            f"cannot tell whether {self._sink.what} has the rows that sink {self._context.uid!r} staged for checkpoint "
            f"{number}: its snapshots of that time have expired, and its property {self._name!r} begins later. Look "
            "for them",
        )

    def latest(self, table: Table) -> tuple[int, str, int] | None:
        """Returns the checkpoint of the latest commit, its digest, and its time in milliseconds since 1970."""
        recent = self._recent(table)
        return recent[-1][:3] if recent else None

    def has_recently(self, table: Table, digest: str, ms: int) -> bool:
        """Returns whether a table has a commit, or too many later ones than ``ms``, before it, to know."""
        recent = self._recent(table)
        if any(found == digest for _, found, _, _ in recent) or self._made(table, digest):
            return True
        return len(recent) == _RECENT and recent[0][2] >= ms

    def replaced_by(self, table: Table, partition: str | None, checkpoint_id: int, since_ms: int) -> int | None:
        """Returns the checkpoint that has replaced a partition: this one, or the latest after it, or None.

        Commits before ``since_ms``, in milliseconds since 1970, are not later ones.
        """
        return max(
            (
                found
                for found, _, ms, partitions in self._recent(table)
                if partition in partitions and (found == checkpoint_id or (found > checkpoint_id and ms >= since_ms))
            ),
            default=None,
        )

    def check_reaches_back(self, table: Table, since_ms: int) -> None:
        """Checks that the property has all commits since some time."""
        recent = self._recent(table)
        if len(recent) == _RECENT and recent[0][2] >= since_ms:
            raise SinkCommitError(
                f"{self._sink.what} got {_RECENT} commits of sink {self._context.uid!r} since this attempt "
                "has begun, and not that of its last checkpoint: another attempt runs the job. Nothing was deleted."
            )

    def summary(self, checkpoint_id: int, digest: str) -> dict[str, str]:
        return {**self._ours, _CHECKPOINT: str(checkpoint_id), _DIGEST: digest}

    def properties(
        self,
        table: Table,
        checkpoint_id: int,
        digest: str,
        partitions: list[Any],
        written: dict[str, int],
        head: Snapshot | None,
        files: int,
    ) -> dict[str, str]:
        """Returns the property of the table after a commit.

        The commit has ``written`` columns with these ids, has led to the snapshot ``head`` of the branch, and has added
        so many ``files``.
        """
        recent = [*self._recent(table), (checkpoint_id, digest, current_millis(), partitions)][-_RECENT:]
        columns, added = self.columns(table) | written, self.added_files(table)
        end = None if head is None or self._branch == MAIN_BRANCH else (head.snapshot_id, head.timestamp_ms)
        found = _Committed(checkpoint_id, recent, columns, None if added is None else added + files, end)
        return {self._name: json.dumps(found.to_json())}

    def last(self, table: Table) -> int:
        if latest := self.latest(table):
            return latest[0]
        summaries = (each.summary.additional_properties for each in self._history(table) if each.summary)
        return next((int(each[_CHECKPOINT]) for each in summaries if self._ours.items() <= each.items()), 0)


def _quoted(part: str) -> str:
    return quote(part, safe="").replace(".", "%2E")
