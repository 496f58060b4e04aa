"""The interfaces of sources and sinks (``pyflink.datastream.connectors.base``; Flink: FLIP-27 and FLIP-143).

A source is a set of splits that can be read again from an offset. A sink writes in two phases: what a writer prepares
becomes visible when the committer commits it, after the checkpoint has completed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.json_records import JsonRecord

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CommitRequest",
    "CommitRequestState",
    "Committer",
    "CommitterInitContext",
    "CommittingSinkWriter",
    "DeliveryGuarantee",
    "Sink",
    "SinkWriter",
    "Source",
    "SourceLag",
    "SourceSplit",
    "SplitEnumerator",
    "SplitEnumeratorContext",
    "TwoPhaseCommittingSink",
    "WriterInitContext",
    "position_field",
]

Json = dict[str, Any]
T = TypeVar("T")


class DeliveryGuarantee(Enum):
    """How often the records of a sink arrive (Flink: ``DeliveryGuarantee``)."""

    EXACTLY_ONCE = 0
    """Once. They are written when the checkpoint is complete."""
    AT_LEAST_ONCE = 1
    """At least once. They are written at once, and again if the epoch runs again."""
    NONE = 2
    """Flink does not wait for the records at a checkpoint. Here it is the same as ``AT_LEAST_ONCE``."""


def position_field(position: Json, name: str, kind: type[T]) -> T:
    """Returns a part of a stored source position; a number is at least 0.

    Raises:
        ValueError: It is missing, has another type, or is too small.
    """
    value = position.get(name)
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        found = f"is {value!r:.100}" if name in position else "is missing"
        raise ValueError(f"{name!r} {found}, but must be of type {kind.__name__}")
    return value


_STORED: dict[str, type] = {"split_id": str, "properties": dict, "offset": int, "finished": bool}
"""The stored parts of a split, and their types."""


@dataclass(frozen=True)
class SourceSplit:
    """A replayable piece of input, in JSON, because it becomes part of checkpoint metadata."""

    split_id: str
    """Unique within the source, e.g. a file name."""
    properties: Json = field(default_factory=dict)
    """What the reader needs to find the input."""
    offset: int = 0
    """Where reading goes on, in the unit of the source: as a rule, the number of records that have been read."""
    finished: bool = False
    """Whether the split has been read to its end."""
    attachment: Any = field(default=None, compare=False)
    """What else the reader needs, as a pickled object. It reaches the reader, but is never stored."""

    def advanced(self, offset: int, *, finished: bool) -> SourceSplit:
        """Returns the split after reading up to ``offset``."""
        return replace(self, offset=offset, finished=finished)

    def to_json(self) -> Json:
        """Returns a description for checkpoint metadata."""
        return {name: getattr(self, name) for name in _STORED}

    @staticmethod
    def from_json(data: Json) -> SourceSplit:
        """Returns what `to_json` described.

        Raises:
            ValueError: The data does not describe a split.
        """
        return SourceSplit(**{name: position_field(data, name, kind) for name, kind in _STORED.items()})


@dataclass(frozen=True)
class SplitEnumeratorContext:
    """The context of an enumerator (Flink: ``SplitEnumeratorContext``)."""

    job_id: str
    fencing_token: int
    """The fencing token of the execution attempt."""
    spark: Callable[[], AbstractContextManager[Any]]
    """Returns the job's Spark session, whose work is interrupted when the checkpoint expires."""
    run_id: str | None = None
    """The run of the attempt, the same for all of its tries. None if the attempt does not belong to a run."""
    progress: Callable[[str], None] = lambda line: None
    """Receives one-line messages for people. Default: messages are dropped."""
    parallelism: int = 1
    """The number of subtasks of the source."""


@dataclass(frozen=True)
class SourceLag(JsonRecord, omit_defaults=True):
    """What exists and is read by no epoch planned so far. What a source does not count is None."""

    files: int | None = None
    """Files, with those that are read in part."""
    records: int | None = None
    """Records, where their number is known without reading them."""
    bytes: int | None = None
    """Bytes of input, as they are stored."""
    versions: int | None = None
    """Versions of a table, or other steps in which the input grows, such as materializations of an asset."""
    milliseconds: int | None = None
    """How long ago the last record came that is planned, if there are later ones; otherwise 0."""

    @staticmethod
    def from_position(position: object) -> SourceLag | None:
        """Returns the lag in a stored position, or None if there is none."""
        stored = position.get("lag") if isinstance(position, dict) else None
        if not isinstance(stored, dict):
            return None
        return SourceLag.from_json(stored)


class SplitEnumerator(ABC):
    """Finds splits and assigns them to subtasks, on the driver (Flink: ``SplitEnumerator``)."""

    def start(self, context: SplitEnumeratorContext) -> None:  # noqa: B027 - most enumerators need neither
        """Is called once, before the first epoch is planned."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:  # noqa: B027
        """Is called when a checkpoint is complete and its sinks have committed (Flink: ``CheckpointListener``)."""

    def close(self) -> None:  # noqa: B027
        """Is called when the attempt ends."""

    @abstractmethod
    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        """Returns the splits that each subtask reads until the next barrier; a list may be empty.

        Raises:
            SourceReadError: The input cannot be listed.
        """

    def plan_part(self, parallelism: int) -> list[list[SourceSplit]]:
        """Is called instead of `plan_epoch` if more may follow before the barrier, see `assigns_late`."""
        return self.plan_epoch(parallelism)

    @abstractmethod
    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        """Takes back the splits of `plan_epoch`, with the offsets that were reached.

        If the source says `Source.resumes_splits`, some may not be finished. The next `plan_epoch` assigns them again,
        from these offsets on, and until then `exhausted` is False.
        """

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether the input is bounded and the splits planned so far are all of it.

        It is called after `plan_epoch`. If true, the epoch ends with the last watermark. A source that has ended never
        starts again, so the answer is part of the state.
        """

    @property
    def assigns_late(self) -> bool:
        """Whether `plan_epoch` may be called again before the barrier, for what has come meanwhile. Default: False.

        Then tasks that live (``execution.exchange``) read input as it comes, instead of once for each periodic
        checkpoint. Before the next call, `on_epoch_read` is called with what the last one has returned, when that was
        read. A source that limits what it reads between two barriers must not say so.
        """
        return False

    def has_input(self, parallelism: int) -> bool | None:
        """Returns whether the next epoch would read something, or end the input. Nothing outside must change.

        It is called where no job runs, for example by a sensor, right after the enumerator was created: there is no
        `start`, and only `close` follows. Most can simply plan, see `plans_something`. Default: None, only a run knows.

        Raises:
            SourceReadError: The input cannot be listed.
        """
        return None

    def plans_something(self, parallelism: int) -> bool:
        """Returns `has_input` of an enumerator whose `plan_epoch` only looks."""
        return any(self.plan_epoch(parallelism)) or self.exhausted

    def unread(self) -> Sequence[str]:
        """Returns the names of input that exists and has not been assigned, for messages.

        It is called for a source that has ended. Input that arrived since then would never be read, so it is an error.

        Raises:
            SourceReadError: The input cannot be listed.
        """
        return ()

    def lag(self) -> SourceLag | None:
        """Returns what was not planned when `plan_epoch` was called last. Default: unknown.

        It becomes part of the stored position, as ``lag``, for metadata of materializations and asset checks.
        """
        return None

    @abstractmethod
    def snapshot_state(self) -> Json:
        """Returns the state of the enumerator, as JSON, for the checkpoint."""

    def on_snapshot(self, checkpoint_id: int) -> None:  # noqa: B027 - few enumerators tell others how far they are
        """Is called after `snapshot_state`, with the checkpoint that has the state. It may be called again for it."""


class Source(ABC):
    """A source of records."""

    discovery_interval: timedelta = timedelta(seconds=1)
    """How long a job that runs on waits for new input before it asks the enumerator again. Default: 1 second."""
    splits_side_by_side: bool = False
    """Whether the splits of an epoch have records of the same time, such as the partitions of a topic. Then a subtask's
    watermark is the least over its splits, and advances when all are read (Flink: ``WatermarkOutputMultiplexer``).
    Default: a later split has later records."""
    resumes_splits: bool = False
    """Whether a barrier may come amid a split, between two batches: the enumerator must take back splits that are not
    finished, whose rest is read later, perhaps by another run. Default: splits are read to their ends."""
    counts_records: bool = False
    """Whether the offset grows by one with each record: then a barrier may come amid a batch, too. Default: False."""

    @property
    @abstractmethod
    def produced_type(self) -> TypeInformation:
        """The type of the records."""

    @property
    def content_token(self) -> str | None:
        """A text that changes if equal splits no longer have equal records. Default: None, they never need to.

        A `static` source that has one is read again only if the token or its splits have changed.
        """
        return None

    @abstractmethod
    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        """Returns an enumerator, either new or restored from what `SplitEnumerator.snapshot_state` returned."""

    @abstractmethod
    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int] | tuple[pa.Array, int, pa.Array]]:
        """Reads a split from its offset on, in a subtask.

        Yields:
            Batch by batch, a column of records (of ``produced_type.arrow_type``) and the offset after it. A source that
            knows when records happened adds these times: 64-bit integers, milliseconds since 1970, as many as records.

        Raises:
            SourceReadError: The input cannot be read; the message names it.
        """

    def for_subtask(self) -> Source:
        """Returns the source that one subtask reads. It may keep something from split to split. Default: itself."""
        return self

    def continuous(self) -> Source:
        """Returns the source for a job that Dagster runs repeatedly. It never ends, unless declared bounded.

        ``env.execute()`` uses the source as it is declared. Default: the source itself.
        """
        return self

    def upstream_assets(self) -> Sequence[Sequence[str]]:
        """Returns the keys of the Dagster assets that it reads, which become upstream assets of the source."""
        return ()

    def folders(self) -> Sequence[str]:
        """Returns the paths or URLs, local or on S3, of the folders whose files it reads."""
        return []

    def uris(self) -> Sequence[str]:
        """Returns where the records come from, without credentials. Default: the folders."""
        return [each if "://" in each else Path(each).absolute().as_uri() for each in self.folders()]

    def kinds(self) -> set[str]:
        """Dagster kinds of the asset, e.g. ``{"parquet"}``."""
        return set()


@dataclass(frozen=True)
class WriterInitContext:
    """The context of a writer."""

    job_id: str
    uid: str
    """The uid of the sink's operator."""
    subtask: int
    fencing_token: int
    """The fencing token of the execution attempt."""
    checkpoint_id: int
    """The checkpoint whose barrier ends the epoch."""
    execution: str
    """Unique for each execution of the subtask, including Spark's retries and speculative copies."""
    partition: str | None = None
    """The Dagster partition of the run, if any."""


class SinkWriter(ABC):
    """Writes one epoch of one subtask (Flink: ``SinkWriter``).

    A writer that only extends this class writes at least once: what it writes is visible at once, and is written again
    if the epoch runs again. Extend `CommittingSinkWriter` for exactly once.
    """

    @abstractmethod
    def write(self, column: pa.Array) -> None:
        """Writes a column of records of the stream's type."""

    def flush(self) -> None:  # noqa: B027 - a writer that keeps nothing back has nothing to flush
        """Is called at the barrier, after the last record of the epoch. Everything must be written when it returns."""

    @abstractmethod
    def abort(self) -> None:
        """Is called if the epoch fails. Discards what was written, as far as that is possible."""


class CommittingSinkWriter(SinkWriter):
    """Writes where no reader looks, until the commit makes it visible (Flink: ``CommittingSinkWriter``)."""

    @abstractmethod
    def prepare_commit(self) -> list[Json]:
        """Is called at the barrier, after `flush`, and returns the committables for the checkpoint, as JSON.

        From then on the output must survive the death of the process.
        """


class Sink(ABC):
    """A sink of records."""

    @abstractmethod
    def validate(self, type_info: TypeInformation | None) -> None:
        """Checks that the sink can write records of a type. It is called when the program is declared.

        Raises:
            ConfigurationError: The sink cannot write them; the message says what to do.
        """

    @abstractmethod
    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> SinkWriter:
        """Returns a writer for one subtask and epoch."""

    def kinds(self) -> set[str]:
        """Dagster kinds of the asset, e.g. ``{"parquet"}``."""
        return set()

    def folders(self) -> Sequence[str]:
        """Returns the paths or URLs of the folders of the records, local or on S3: others must not write there."""
        uri = self.uri()
        return [uri] if uri is not None and uri.startswith(("s3://", "file://")) else []

    def uri(self) -> str | None:
        """Returns where the records are, without credentials, for ``dagster/uri`` of the asset. None if unknown."""
        return None


@dataclass(frozen=True)
class CommitterInitContext:
    """The context of a committer."""

    job_id: str
    uid: str
    """The uid of the sink's operator."""
    fencing_token: int
    """The fencing token of the execution attempt."""
    type_info: TypeInformation | None = None
    """The type of the records, or None if it is unknown."""
    spark: Callable[[], AbstractContextManager[Any]] | None = None
    """Returns the job's Spark session. None in a process that does not run the job."""
    ancestors: tuple[tuple[str, int], ...] = ()
    """The jobs with whose state the job has begun, as a fork or from a savepoint, and the checkpoints of these; its own
    origin comes first. Default: none."""


class CommitRequestState(Enum):
    """What became of a `CommitRequest` (Flink: ``CommitRequestState``)."""

    RECEIVED = "received"
    """Nothing was signalled. When `Committer.commit` returns, this means that it is committed."""
    ALREADY_COMMITTED = "already committed"
    RETRY = "retry"
    FAILED_WITH_KNOWN_REASON = "failed with known reason"
    FAILED_WITH_UNKNOWN_REASON = "failed with unknown reason"


@dataclass
class CommitRequest:
    """A committable and its origin, with which a committer says what became of it (Flink: ``Committer.CommitRequest``).

    If `Committer.commit` returns and has called none of the methods, the request is committed.
    """

    checkpoint_id: int
    """The checkpoint whose output it is."""
    subtask: int
    """The index of the writer's subtask."""
    committable: Json
    """What `CommittingSinkWriter.prepare_commit` returned."""
    number_of_retries: int = 0
    """How often this attempt has tried before."""
    state: CommitRequestState = field(default=CommitRequestState.RECEIVED, init=False)
    """What was signalled last."""
    error: Exception | None = field(default=None, init=False)
    """Why it is not committed, if that was signalled."""

    def retry_later(self, error: Exception | None = None) -> None:
        """Asks to commit it again after a pause. After 10 retries the job fails, and its next attempt tries again.

        Args:
            error: Why it is not committed, for the message of that failure. Flink has no such argument.
        """
        self._signal(CommitRequestState.RETRY, error)

    def update_and_retry_later(self, committable: Json, error: Exception | None = None) -> None:
        """Asks to commit another committable instead after a pause, for example what is left of this one.

        The update is not stored: another attempt gets the committable of the checkpoint.

        Args:
            committable: The other committable.
            error: As in `retry_later`.
        """
        self.committable = committable
        self._signal(CommitRequestState.RETRY, error)

    def signal_already_committed(self) -> None:
        """Says that it was committed before, for example by an attempt that died during the commit."""
        self._signal(CommitRequestState.ALREADY_COMMITTED, None)

    def signal_failed_with_known_reason(self, error: Exception) -> None:
        """Says that it can never be committed, because its output is lost. The other requests are still committed.

        Then the job fails with a `CommittableLostError`, and so does each attempt after it, until one restores a
        checkpoint or savepoint that is named explicitly. (Flink logs the error and drops the rows.)

        Args:
            error: The reason. It should say what to do.
        """
        self._signal(CommitRequestState.FAILED_WITH_KNOWN_REASON, error)

    def signal_failed_with_unknown_reason(self, error: Exception) -> None:
        """Says that it is not committed, or that nobody knows whether it is, and that a retry right now is of no use.

        The job fails with a `SinkCommitError`. The checkpoint keeps the committable, so the next attempt tries again.

        Args:
            error: The reason. It should say what to do.
        """
        self._signal(CommitRequestState.FAILED_WITH_UNKNOWN_REASON, error)

    def _signal(self, state: CommitRequestState, error: Exception | None) -> None:
        self.state, self.error = state, error


class Committer(ABC):
    """Runs the second phase, on the driver, after the checkpoint has completed (Flink: ``Committer``).

    Checkpoints are committed in their order. An attempt first commits what the checkpoint that it restores still has to
    commit.
    """

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Makes committables visible. It is idempotent: some may have been committed before.

        Args:
            requests: All requests of a checkpoint; when it is called again after a pause, those that asked for it.
        """

    def replace_partition(self, partition: str | None, checkpoint_id: int) -> int:
        """Removes what older checkpoints committed to a partition, and returns the number of removed items.

        It is called after a commit, in jobs partitioned by time, where a partition may run again. It is idempotent.

        Args:
            partition: The partition, as in `WriterInitContext`. None: all that the sink has written; this is for
                transactions of assets without partitions, and jobs do not ask for it.
            checkpoint_id: The checkpoint that holds the partition now.

        Raises:
            ConfigurationError: The sink does not support this.
        """
        raise ConfigurationError(
            f"{type(self).__qualname__} cannot replace partition {partition!r}: it has no replace_partition method"
        )

    def replace_epochs(self, checkpoint_id: int, requests: Sequence[CommitRequest], after: int, before: int) -> None:
        """As `commit`, and removes what this job and uid committed from others whose rows a checkpoint has anew.

        Args:
            checkpoint_id: The checkpoint.
            requests: Its requests, or none. If one of them is not committed, nothing is removed.
            after: The checkpoint before the first one of the others; 0 for all.
            before: The checkpoint behind the last one. What `ancestors` of the job committed goes up to theirs, too.
        """
        self.check_replaceable(after, before)

    def check_replaceable(self, after: int, before: int) -> None:
        """Checks that `replace_epochs` could remove what was committed, before operators are recomputed.

        Raises:
            ConfigurationError: It could not, and why. By default, there is no such method.
        """
        if type(self).replace_epochs is Committer.replace_epochs:
            raise ConfigurationError(f"{type(self).__qualname__} has no replace_epochs method")

    def last_committed(self) -> int | None:
        """Returns the newest checkpoint from which this job and uid committed anything, 0 if none, or None if unknown.

        It is called if the job's own record is lost, and before operators are recomputed. A committer with
        `replace_epochs` needs it: otherwise rows that a checkpoint does not know stay beside the new ones. The default
        is None.
        """
        return None

    def is_record_with_rows(self) -> bool:
        """Returns whether `last_committed` is part of the target, so that it goes back only if the rows do.

        Then a run that continues after a clean end is refused if the target was restored from a backup, also if
        `last_committed` is None; and what is open again is committed again. Default: False: others may move files away.
        """
        return False

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        """Returns the number of open transactions that `abort_lingering` would abort. Default: 0."""
        return 0

    @abstractmethod
    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        """Aborts the open transactions of this job and uid except those of ``keep``, and returns their number.

        It is called when an attempt starts, fails or ends. It must spare the transactions of newer attempts.
        """


class TwoPhaseCommittingSink(Sink):
    """A sink that commits, after the checkpoint is complete, what writers prepared (Flink 2: ``SupportsCommitter``)."""

    @abstractmethod
    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        """Returns a writer for one subtask and epoch."""

    @abstractmethod
    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Returns a committer for the sink."""

    @property
    def replaces_whole_partitions(self) -> bool | None:
        """Whether a time partition replaces all its rows, so that no two sinks of a job may have one `uri`.

        False: it cannot replace them, so the job cannot have partitions. None, the default: the committer knows.
        """
        return None

    def for_owner(self, owner: str) -> TwoPhaseCommittingSink:
        """Returns the sink with which an owner, such as an asset, replaces what it has written, and nothing of others.

        The committer of that sink has a `Committer.replace_partition`, and `WriterInitContext.job_id` is the owner.

        Args:
            owner: The owner.

        Raises:
            ConfigurationError: The sink does not support this.
        """
        raise ConfigurationError(f"{type(self).__qualname__} cannot be written in a transaction of an asset")
