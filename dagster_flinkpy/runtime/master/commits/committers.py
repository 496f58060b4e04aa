"""The committers of a job's sinks: the second phase of their commits, on the driver (Flink: ``CommitterOperator``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ParamSpec, TypeVar
from urllib.parse import urlsplit

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.recomputation import REPLACES, TO_REPLACE, Recomputation, ReplacedRows
from dagster_flinkpy.connectors.commit.checkpoint_committer import CheckpointCommitter
from dagster_flinkpy.connectors.commit.staged_files import StagedFileCommitter
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    TwoPhaseCommittingSink,
)
from dagster_flinkpy.datastream.operator_specs import SinkSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.program.partitioned_program import replaces_no_partition
from dagster_flinkpy.errors import (
    CommitRefusedError,
    CommittableLostError,
    ConfigurationError,
    HeadLostError,
    RestoreError,
    SinkCommitError,
)
from dagster_flinkpy.runtime.failure import raised_on_driver
from dagster_flinkpy.runtime.master.commits.commit_retries import commit_requests
from dagster_flinkpy.runtime.master.job_session import JobSession
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["Committers"]

P = ParamSpec("P")
T = TypeVar("T")


class Committers:
    """One committer for each sink that has something to commit."""

    def __init__(
        self,
        graph: JobGraph,
        job_id: str,
        fencing_token: int,
        watchdog: Watchdog,
        session: JobSession | None = None,
        ancestors: tuple[tuple[str, int], ...] = (),
    ) -> None:
        if session is not None:
            session.begin(f"flinkpy-{job_id}-{fencing_token}-commits", f"the commits of job {job_id!r}")
        spark = None if session is None else partial(session.open, own=True)
        self._watchdog, self._job_id = watchdog, job_id
        self._sinks = {v.uid for v in graph.vertices if isinstance(v.spec, SinkSpec)}
        self._targets = {v.uid: v.spec.sink.uri() or "" for v in graph.vertices if isinstance(v.spec, SinkSpec)}
        self._committers: dict[str, Committer] = {
            v.uid: v.spec.sink.create_committer(
                CommitterInitContext(job_id, v.uid, fencing_token, v.output_type, spark, ancestors)
            )
            for v in graph.vertices
            if isinstance(v.spec, SinkSpec) and isinstance(v.spec.sink, TwoPhaseCommittingSink)
        }

    @property
    def uids(self) -> tuple[str, ...]:
        """Uids of the sinks."""
        return tuple(self._committers)

    def __iter__(self) -> Iterator[Committer]:
        return iter(self._committers.values())

    def check_replaceable(self, recomputation: Recomputation) -> None:
        """Checks that sinks can replace the rows of the epochs that are read again.

        Raises:
            ConfigurationError: One cannot, or has rows that the checkpoint does not know. The message names it.
        """
        for uid in recomputation.sinks:
            self._check_replaces(uid, recomputation.replaced)
        for uid in recomputation.new_sinks:
            if uid in self._committers and (last := self._last_committed(uid)):
                raise ConfigurationError(
                    f"nothing before sink {uid!r} can be recomputed: it has rows of this job up to checkpoint {last}, "
                    "but was left out of the program since, so the latest checkpoint does not know it. Switch to the "
                    "program without recomputing first, and then again with it"
                )

    def _check_replaces(self, uid: str, rows: ReplacedRows) -> None:
        try:
            if (committer := self._committers.get(uid)) is None:
                raise ConfigurationError("they were visible at once")
            what = f"checking whether sink {uid!r} can replace its rows"
            self._run(uid, what, committer.check_replaceable, rows.after, rows.before)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"nothing before sink {uid!r} can be recomputed: it cannot replace the rows that it has written. "
                f"{error}. Or write all rows to another place, with a sink of another uid"
            ) from error

    def check_to_replace(self, restored: CheckpointMetadata | None) -> CheckpointMetadata | None:
        """Checks that sinks can replace what a restored checkpoint still has to replace, and returns the checkpoint.

        Raises:
            ConfigurationError: A sink cannot.
            RestoreError: It has done so already, and written more since.
        """
        asked = None if restored is None else ReplacedRows.of(restored, TO_REPLACE)
        for uid, rows in (asked or {}).items():
            if restored is None or rows.job_id != self._job_id or uid not in self._sinks:
                continue
            self._check_replaces(uid, rows)
            if (last := self._last_committed(uid) or 0) > restored.checkpoint_id:
                raise RestoreError(
                    f"checkpoint {restored.checkpoint_id} is from the middle of a recomputation, and sink {uid!r} has "
                    f"written rows up to checkpoint {last} since: all rows would be written again beside them. "
                    "Continue from the latest checkpoint, and switch again with recompute if you need to"
                )
        return restored

    def check_partitioned(self) -> None:
        """Checks that all sinks can replace a partition; otherwise no attempt could commit a completed checkpoint.

        Raises:
            ConfigurationError: A sink cannot. The message names it.
        """
        for uid, committer in self._committers.items():
            if type(committer).replace_partition is Committer.replace_partition:
                raise replaces_no_partition(uid, type(committer).__qualname__)

    def check_targets(self, metadata: CheckpointMetadata) -> None:
        """Checks that sinks write where their rows of a checkpoint belong, which may still be to commit.

        Where rows are staged in the target itself, they would not be found. A server may have another address.

        Raises:
            RestoreError: One writes to another table or topic now.
        """
        for uid in self._committers:
            stored, target = metadata.operator(uid), self._targets[uid]
            if stored is None or stored.program is None or not any(each.committables for each in stored.subtasks):
                continue
            before, folders = stored.program.writes_to, stored.program.folders
            elsewhere = urlsplit(before).path != urlsplit(target).path
            if before and target and elsewhere and before.partition("#")[0] not in folders:
                raise RestoreError(
                    f"what sink {uid!r} has written to {before} up to checkpoint {metadata.checkpoint_id} is not known "
                    f"to be committed, and the program writes to {target} now. Run the program that writes there once "
                    "more, which commits it. Or give the new sink another uid, and leave the old one's rows behind "
                    "with allow_non_restored_state"
                )

    def moved(self, metadata: CheckpointMetadata) -> list[str]:
        """Returns what to say of sinks that write elsewhere than up to a checkpoint of the job."""
        said: list[str] = []
        for uid, target in self._targets.items():
            stored = metadata.operator(uid)
            before = stored.program.writes_to if stored is not None and stored.program is not None else ""
            if before and target and _place(before) != _place(target):
                said.append(
                    f"Sink {uid!r} wrote to {before} up to checkpoint {metadata.checkpoint_id}, and writes to {target} "
                    "from now on. If another deployment, such as a test, still writes there, both share these "
                    "checkpoints, and each misses the input that the other one reads: give each its own folder of "
                    "checkpoints."
                )
        return said

    def commit(self, metadata: CheckpointMetadata) -> int:
        """Commits a completed checkpoint.

        A checkpoint of a time partition replaces what older checkpoints have committed to that partition, and one of
        operators that are recomputed what was committed of the same epochs.

        Returns:
            How many of its committables had already been committed.

        Raises:
            CommittableLostError: A committable is gone; all others are committed.
            CommitRefusedError: The table of a sink does not take its rows; all other sinks have committed.
            SinkCommitError: A committable cannot be committed.
            CheckpointTimeoutError: A commit hangs.
        """
        before, failed = 0, dict[str, SinkCommitError]()
        replaced = ReplacedRows.of(metadata, REPLACES) or {}
        for uid, committer in self._committers.items():
            requests, rows = _requests(metadata, uid), replaced.get(uid)
            span = None if rows is None or rows.job_id != self._job_id else (rows.after, rows.before)
            what = f"committing sink {uid!r}"
            try:
                if requests:
                    before += self._run(uid, what, commit_requests, committer, requests, uid, replaced=span)
                elif span is not None:
                    self._run(uid, what, committer.replace_epochs, metadata.checkpoint_id, [], *span)
            except (CommitRefusedError, CommittableLostError) as e:
                failed[uid] = e
            except ConfigurationError as e:
                if span is None:
                    raise
                # Others have changed what is to be replaced.
                failed[uid] = CommitRefusedError.of(uid, metadata.checkpoint_id, e, owned=False)
        done = {uid: committer for uid, committer in self._committers.items() if uid not in failed}
        if metadata.partition is not None:
            for uid, committer in done.items():
                what = f"replacing partition {metadata.partition} in sink {uid!r}"
                self._run(uid, what, committer.replace_partition, metadata.partition, metadata.checkpoint_id)
        for error in failed.values():
            raise error
        return before

    def last_committed(self) -> int | None:
        """Returns the newest checkpoint of which a sink still has committed output, or None if no sink knows."""
        found = [self._last_committed(uid) for uid in self._committers]
        return max((last for last in found if last is not None), default=None)

    def _last_committed(self, uid: str) -> int | None:
        what = f"reading what sink {uid!r} has committed"
        return self._run(uid, what, self._committers[uid].last_committed)

    def check_new(self, folder: str) -> None:
        """Checks that no sink knows the job, of which there was nothing in the store.

        Raises:
            HeadLostError: One does.
        """
        for uid in self._committers:
            if last := self._last_committed(uid):
                raise HeadLostError(
                    f"there was nothing in {folder}, but sink {uid!r} has committed checkpoint {last} of this job: the "
                    "folder was moved, deleted or not mounted, or the job has another checkpoint directory now. "
                    "Starting from nothing would commit rows again that are already committed. Put the folder back "
                    "in the place of this one, or give the run a savepoint with restore_from. To begin anew, use "
                    "start_empty; in a script, another name in env.execute()."
                )

    def check_not_ahead(self, known: int, latest: CheckpointMetadata, folder: str) -> None:
        """Checks that no target has rows of a checkpoint that the folder of the job has never begun.

        Files in folders of partitions are not looked for, because all of them would have to be listed.

        Args:
            known: The id of the last checkpoint that was begun there.
            latest: The last one that was completed.
            folder: The folder of the job.

        Raises:
            HeadLostError: One has.
        """
        for uid, committer in self._committers.items():
            ahead: int | None = None
            if isinstance(committer, StagedFileCommitter):
                what = f"looking for what sink {uid!r} has committed"
                ahead = self._run(uid, what, committer.committed_after, known)
            elif committer.is_record_with_rows():
                ahead = self._last_committed(uid)
            if ahead is not None and ahead > known:
                raise HeadLostError(
                    f"sink {uid!r} has committed checkpoint {ahead} of this job, but {folder} has only begun those up "
                    f"to {known}: the folder was restored from a backup, or the job has gone on in another one. This "
                    "run would commit rows again. Put the newer folder back, or use it. Or give the run a savepoint "
                    f"with restore_from, or 'chk-{latest.checkpoint_id}' to go on from there nevertheless; first "
                    "remove the rows of later checkpoints, which would be written again."
                )

    def check_kept(self, metadata: CheckpointMetadata) -> None:
        """Checks that targets still have what a checkpoint, or one before it, is known to have committed.

        One that has lost only the last commit, such as a standby that took over, is told to commit again.

        Raises:
            CommitRefusedError: One has only what older checkpoints have committed.
        """
        commits, before = metadata.commits, metadata.commits_before
        for uid, committer in self._committers.items():
            number, requests = commits.get(uid), _requests(metadata, uid)
            if number is None or not committer.is_record_with_rows():
                continue
            last = self._last_committed(uid)
            has_earlier = (last or 0) >= before.get(uid, 0)
            if requests and has_earlier and self._lingering(uid, []) > self._lingering(uid, requests):
                self._run(uid, f"committing sink {uid!r} again", commit_requests, committer, requests, uid)
                last = self._last_committed(uid)
            if (last or 0) < number:
                there, kept = f"only what was committed up to checkpoint {last}", f", or 'chk-{last}' if it is kept,"
                if not last:
                    there, kept = "nothing of it", " or an older checkpoint"
                raise CommitRefusedError(
                    f"sink {uid!r} has committed checkpoint {number}, but its target has {there} on record: it, or the "
                    "record, was dropped, made anew or restored from a backup, or the sink writes elsewhere now. Put "
                    f"it back as it was, and run again. Or restore a savepoint{kept} to write the rows again, or "
                    f"'chk-{metadata.checkpoint_id}' to continue with those that are there."
                )

    def last_of_each(self) -> dict[str, int]:
        """Returns the newest checkpoint that targets have, by uid, of those that know one."""
        return {uid: last for uid in self._committers if (last := self._last_committed(uid))}

    def lingering(self, latest: CheckpointMetadata | None) -> dict[str, int]:
        """Returns the number of open transactions that the latest checkpoint does not name, by uid."""
        return {uid: self._lingering(uid, _requests(latest, uid) if latest else []) for uid in self._committers}

    def _lingering(self, uid: str, keep: list[CommitRequest]) -> int:
        what = f"listing the open transactions of sink {uid!r}"
        return self._run(uid, what, self._committers[uid].lingering, keep)

    def abort_lingering(self, latest: CheckpointMetadata | None, known: Mapping[str, int]) -> int:
        """Aborts those that the latest checkpoint does not name; returns how many. Sinks may have what is known."""
        aborted = 0
        for uid, committer in self._committers.items():
            kept = _requests(latest, uid) if latest else []
            what = f"aborting the open transactions of sink {uid!r}"
            if latest is not None and isinstance(committer, CheckpointCommitter):
                self._run(uid, what, committer.check_committed, max(latest.checkpoint_id, known.get(uid, 0)))
            aborted += self._run(uid, what, committer.abort_lingering, kept)
        return aborted

    def _run(self, uid: str, what: str, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a step of a committer, which may be a user's."""
        with raised_on_driver(f"the committer of sink {uid!r}", SinkCommitError):
            return self._watchdog.run(what, step, *args, **kwargs)


def _place(url: str) -> str:
    """Returns what tells a target from others. A server may have another address."""
    return url.rstrip("/") if url.startswith(("s3://", "file://")) else urlsplit(url).path


def _requests(metadata: CheckpointMetadata, uid: str) -> list[CommitRequest]:
    operator = metadata.operator(uid)
    return [
        CommitRequest(metadata.checkpoint_id, s.index, c)
        for s in (operator.subtasks if operator else ())
        for c in s.committables
    ]
