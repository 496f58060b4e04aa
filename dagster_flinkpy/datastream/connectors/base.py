"""What a source and a sink are (``pyflink.datastream.connectors.base``; Flink FLIP-27 and FLIP-143).

A source is a set of splits that can be read again from an offset. A sink writes in two phases: what a writer prepared
becomes visible only when the committer is told that the checkpoint is complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CommitRequest",
    "CommitterInitContext",
    "Sink",
    "SinkCommitter",
    "SinkWriter",
    "Source",
    "SourceSplit",
    "SplitEnumerator",
    "SplitEnumeratorContext",
    "TwoPhaseCommittingSink",
    "WriterInitContext",
]

Json = dict[str, Any]


@dataclass(frozen=True)
class SourceSplit:
    """A replayable piece of input. Everything in it is JSON, for it goes into checkpoint metadata."""

    split_id: str
    """Unique within the source, e.g. a file name."""
    properties: Json = field(default_factory=dict)
    """What the reader needs to find the input."""
    offset: int = 0
    """Records of the split that were read already."""
    finished: bool = False
    """Whether the split has been read to its end."""

    def advanced(self, offset: int, *, finished: bool) -> SourceSplit:
        """The split after reading up to ``offset``."""
        return replace(self, offset=offset, finished=finished)

    def to_json(self) -> Json:
        """For checkpoint metadata."""
        return {
            "split_id": self.split_id,
            "properties": self.properties,
            "offset": self.offset,
            "finished": self.finished,
        }

    @staticmethod
    def from_json(data: Json) -> SourceSplit:
        """What :meth:`to_json` wrote."""
        return SourceSplit(data["split_id"], data["properties"], data["offset"], data["finished"])


@dataclass(frozen=True)
class SplitEnumeratorContext:
    """Where an enumerator runs (Flink: ``SplitEnumeratorContext``)."""

    job_id: str
    attempt: int
    """Fencing token of the execution attempt."""
    spark: Callable[[], AbstractContextManager[Any]]
    """Gives the job's Spark session; what runs in it is interrupted when the checkpoint expires."""


class SplitEnumerator(ABC):
    """Finds splits and hands them out; runs on the driver (Flink: ``SplitEnumerator``, an operator coordinator)."""

    def start(self, context: SplitEnumeratorContext) -> None:  # noqa: B027 - most enumerators need neither
        """Called once, before the first epoch is planned."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:  # noqa: B027
        """Called when a checkpoint is complete and its sinks have committed (Flink: ``CheckpointListener``)."""

    @abstractmethod
    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        """The splits each subtask reads until the next barrier; empty lists where there is nothing to read.

        Raises:
            SourceReadError: The input cannot be listed.
        """

    @abstractmethod
    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        """Takes back the splits of :meth:`plan_epoch` with the offsets that were reached."""

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether the input is bounded and the splits planned so far are all of it.

        Asked after :meth:`plan_epoch`: when it is true, the epoch ends with the last watermark.
        """

    @abstractmethod
    def snapshot_state(self) -> Json:
        """State for the checkpoint, as JSON."""


class Source(ABC):
    """Where records come from."""

    @property
    @abstractmethod
    def produced_type(self) -> TypeInformation:
        """Type of the records."""

    @abstractmethod
    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        """An enumerator, fresh or from the state of :meth:`SplitEnumerator.snapshot_state`."""

    @abstractmethod
    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        """Reads a split from its offset on; runs in a subtask.

        Yields:
            A column of records (of ``produced_type.arrow_type``) and the offset after it, batch by batch.

        Raises:
            SourceReadError: The input cannot be read; the message names it.
        """

    def kinds(self) -> set[str]:
        """Dagster kinds of the asset, e.g. ``{"parquet"}``."""
        return set()


@dataclass(frozen=True)
class WriterInitContext:
    """Who is writing."""

    job_id: str
    uid: str
    """Uid of the sink's operator."""
    subtask: int
    attempt: int
    """Fencing token of the execution attempt."""
    checkpoint_id: int
    """The checkpoint whose barrier ends what is written."""
    execution: str
    """Unique for each try of the subtask, Spark's own retries and speculative copies included."""
    partition: str | None = None
    """Dagster partition of the run, where there is one."""


class SinkWriter(ABC):
    """Writes one epoch of one subtask; nothing may be visible before the commit."""

    @abstractmethod
    def write(self, column: pa.Array) -> None:
        """Takes a column of records (of the stream's type)."""

    @abstractmethod
    def prepare_commit(self) -> list[Json]:
        """Flushes and gives the committables, as JSON, for the checkpoint (Flink: ``PrecommittingSinkWriter``)."""

    @abstractmethod
    def abort(self) -> None:
        """Drops what was written."""


class Sink(ABC):
    """Where records go."""

    @abstractmethod
    def validate(self, type_info: TypeInformation | None) -> None:
        """Says at build time whether records of this type can be written; None: no type was declared.

        Raises:
            ConfigurationError: They cannot; the message says what to do.
        """

    @abstractmethod
    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> SinkWriter:
        """A writer for one subtask and epoch."""

    def kinds(self) -> set[str]:
        """Dagster kinds of the asset, e.g. ``{"parquet"}``."""
        return set()


@dataclass(frozen=True)
class CommitterInitContext:
    """Who is committing."""

    job_id: str
    uid: str
    attempt: int


@dataclass(frozen=True)
class CommitRequest:
    """One committable and where it comes from (Flink: ``Committer.CommitRequest``)."""

    checkpoint_id: int
    subtask: int
    committable: Json


class SinkCommitter(ABC):
    """Second phase; runs on the driver after the checkpoint is complete."""

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest]) -> int:
        """Makes committables visible. Idempotent: what is committed already is a normal outcome.

        Returns:
            How many of them had been committed before.

        Raises:
            CommittableLostError: One is neither committed nor staged any more; the others were tried.
            SinkCommitError: One cannot be committed, and trying again will not help.
        """

    def replace_partition(self, partition: str, checkpoint_id: int) -> int:
        """Removes what older checkpoints committed to a partition, after this one was committed; says how much.

        Called in jobs that are partitioned by time, where a partition may be run again. Idempotent.

        Args:
            partition: As in `WriterInitContext`.
            checkpoint_id: The checkpoint that holds the partition now.

        Raises:
            ConfigurationError: The sink cannot do that.
        """
        raise ConfigurationError(
            f"{type(self).__qualname__} cannot replace partition {partition!r}: it has no replace_partition method"
        )

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        """How many open transactions :meth:`abort_lingering` would abort. Default: none that anybody knows of."""
        return 0

    @abstractmethod
    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        """Aborts the open transactions of this job and uid, those of ``keep`` aside; says how many there were."""


class TwoPhaseCommittingSink(Sink):
    """A sink whose writers' committables are committed after the checkpoint."""

    @abstractmethod
    def create_committer(self, context: CommitterInitContext) -> SinkCommitter:
        """A committer for the sink."""
