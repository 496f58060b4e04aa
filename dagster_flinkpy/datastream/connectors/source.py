"""A source of your own: an enumerator finds splits, readers read them (Flink: ``api.connector.source``).

The `SplitEnumerator` runs on the driver, once. A `SourceReader` runs in each subtask. A reader asks for splits, the
enumerator assigns them, and both may send events to each other. At a barrier, the splits of the readers, with their
positions, become operator state of the source, and what the enumerator knows becomes its position in the checkpoint.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "InputStatus",
    "JsonSerializer",
    "ReaderInfo",
    "ReaderOutput",
    "SimpleVersionedSerializer",
    "Source",
    "SourceOutput",
    "SourceReader",
    "SourceReaderContext",
    "SplitEnumerator",
    "SplitEnumeratorContext",
]


class InputStatus(Enum):
    """What a reader has after `SourceReader.poll_next` (Flink: ``InputStatus``)."""

    MORE_AVAILABLE = "more available"
    """It is called again at once."""
    NOTHING_AVAILABLE = "nothing available"
    """It is called again later: see `SourceReader.is_available` if tasks live, otherwise in the next epoch."""
    END_OF_INPUT = "end of input"
    """It is not called again. The source ends when all readers have said so."""


class SimpleVersionedSerializer(ABC):
    """Turns values into bytes of a checkpoint, and back (Flink: ``SimpleVersionedSerializer``)."""

    @abstractmethod
    def get_version(self) -> int:
        """Returns the version of what `serialize` writes. It is kept with the bytes."""

    @abstractmethod
    def serialize(self, value: Any) -> bytes:
        """Returns the bytes of a value."""

    @abstractmethod
    def deserialize(self, version: int, serialized: bytes) -> Any:
        """Returns the value of bytes that this version has written."""


class JsonSerializer(SimpleVersionedSerializer):
    """Values of JSON: dicts, lists, texts, numbers, booleans and ``None``. A tuple comes back as a list."""

    def get_version(self) -> int:
        return 1

    def serialize(self, value: Any) -> bytes:
        """Returns the text of a value.

        Raises:
            ConfigurationError: It is no value of JSON.
        """
        try:
            return json.dumps(value).encode()
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"a source keeps or sends {value!r:.100}, which is no value of JSON: {error}. For splits and the state "
                "of the enumerator, the source may return a serializer of its own from get_split_serializer() and "
                "get_enumerator_checkpoint_serializer()"
            ) from error

    def deserialize(self, version: int, serialized: bytes) -> Any:
        return json.loads(serialized)


class SourceOutput(ABC):
    """Takes records (Flink: ``SourceOutput``)."""

    @abstractmethod
    def collect(self, record: Any, timestamp: int | None = None) -> None:
        """Takes a record.

        Args:
            record: A value of the type that the source produces.
            timestamp: When it happened, in milliseconds since 1970. Default: the watermark strategy says.
        """

    @abstractmethod
    def collect_column(self, records: pa.Array, timestamps: pa.Array | None = None) -> None:
        """Takes many records at once, as a column (not in Flink). It costs far less than as many calls of `collect`.

        Args:
            records: A column of the Arrow type of the type that the source produces.
            timestamps: 64-bit integers, as many as records: when each happened. Default: the watermark strategy says.
        """


class ReaderOutput(SourceOutput):
    """Takes the records of a reader (Flink: ``ReaderOutput``).

    Records of an output of a split have watermarks of their own. The reader's watermark is the least over these.
    """

    @abstractmethod
    def create_output_for_split(self, split_id: str) -> SourceOutput:
        """Returns the output of a split. It is the same one until it is released.

        Args:
            split_id: Any name. Until it has records, the reader's watermark waits for the split.
        """

    @abstractmethod
    def release_output_for_split(self, split_id: str) -> None:
        """The split has no more records, so that the reader's watermark does not wait for it."""


class SourceReaderContext(ABC):
    """What a reader knows, and how it speaks to the enumerator (Flink: ``SourceReaderContext``)."""

    @abstractmethod
    def get_index_of_subtask(self) -> int:
        """Returns the number of the reader, from 0."""

    @abstractmethod
    def current_parallelism(self) -> int:
        """Returns the number of readers."""

    @abstractmethod
    def send_split_request(self) -> None:
        """Asks for a split: `SplitEnumerator.handle_split_request` is called."""

    @abstractmethod
    def send_source_event_to_coordinator(self, event: Any) -> None:
        """Sends an event to `SplitEnumerator.handle_source_event`.

        Args:
            event: A value of JSON.
        """


class SourceReader(ABC):
    """Reads splits, in a subtask (Flink: ``SourceReader``). All methods are called on the thread of the task."""

    def start(self) -> None:  # noqa: B027 - most of these methods need not be there
        """Is called once, after `add_splits` with the splits of the checkpoint."""

    @abstractmethod
    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Reads on, and emits a record, or several. It must not wait: a barrier passes between two calls.

        Args:
            output: Takes the records.
        """

    def is_available(self) -> Future[Any] | None:
        """Is called after `NOTHING_AVAILABLE`: returns what is done when there may be something again.

        Any thread may complete it. If tasks live, `poll_next` is then called at once, and each 20 milliseconds anyway.

        Returns:
            A future, or None if nobody can tell. Default: None.
        """
        return None

    @abstractmethod
    def add_splits(self, splits: Sequence[Any]) -> None:
        """Takes splits that the enumerator has assigned, or those of the checkpoint."""

    def pause_or_resume_splits(  # noqa: B027
        self, splits_to_pause: Sequence[str], splits_to_resume: Sequence[str]
    ) -> None:
        """Is called when splits are further in event time than the source may be, or are no longer (Flink: FLIP-217).

        See `WatermarkStrategy.with_watermark_alignment`. If the least of the splits is too far, `poll_next` is not
        called. Default: nothing, so only the reader as a whole waits.

        Args:
            splits_to_pause: Names of outputs of splits from which to emit nothing until they may go on.
            splits_to_resume: Names of those that may go on.
        """

    def notify_no_more_splits(self) -> None:  # noqa: B027
        """Is called when the enumerator assigns no further splits to this reader. It may be called again."""

    def handle_source_events(self, event: Any) -> None:  # noqa: B027
        """Takes an event of the enumerator, a value of JSON."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        """Returns the splits that are not read to their ends, each with the position behind the last emitted record."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:  # noqa: B027
        """Is called when a checkpoint is complete, if tasks live (Flink: ``CheckpointListener``)."""

    def close(self) -> None:  # noqa: B027
        """Is called when the subtask ends."""


@dataclass(frozen=True)
class ReaderInfo:
    """A reader (Flink: ``ReaderInfo``)."""

    subtask_id: int
    location: str | None = None
    """The name of its host. None if an epoch is a Spark job: then it runs somewhere else each time."""


class SplitEnumeratorContext(ABC):
    """What an enumerator knows, and how it speaks to readers (Flink: ``SplitEnumeratorContext``)."""

    @abstractmethod
    def current_parallelism(self) -> int:
        """Returns the number of readers."""

    @abstractmethod
    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        """Returns the readers that are there, by their number."""

    @abstractmethod
    def assign_splits(self, assignment: Mapping[int, Sequence[Any]]) -> None:
        """Assigns splits, by the number of the reader."""

    def assign_split(self, split: Any, subtask_id: int) -> None:
        """Assigns one split to a reader."""
        self.assign_splits({subtask_id: [split]})

    @abstractmethod
    def signal_no_more_splits(self, subtask_id: int) -> None:
        """Tells a reader that it gets no further splits. It is told again when it starts anew in this attempt."""

    @abstractmethod
    def send_event_to_source_reader(self, subtask_id: int, event: Any) -> None:
        """Sends an event to `SourceReader.handle_source_events`.

        Args:
            subtask_id: The number of the reader.
            event: A value of JSON.
        """

    @abstractmethod
    def call_async(
        self,
        callable: Callable[[], Any],
        handler: Callable[[Any, Exception | None], None],
        initial_delay: timedelta = timedelta(0),
        period: timedelta | None = None,
    ) -> None:
        """Calls something, such as a look for new splits, and a handler with its result.

        Unlike in Flink, both run like the other methods, when it is their turn: see `Source.discovery_interval`.

        Args:
            callable: What to call.
            handler: Takes the result and None, or None and the error.
            initial_delay: How long to wait before. Default: no time.
            period: How long to wait before it is called again. Default: it is called once.
        """


class SplitEnumerator(ABC):
    """Finds splits and assigns them to readers, on the driver (Flink: ``SplitEnumerator``).

    No two of its methods are called at once. They may use the context at any time.
    """

    def start(self) -> None:  # noqa: B027 - most of these methods need not be there
        """Is called once, before all others."""

    @abstractmethod
    def handle_split_request(self, subtask_id: int, requester_hostname: str | None) -> None:
        """A reader asks for a split. If an epoch is a Spark job, all readers ask before it until there are no splits.

        Args:
            subtask_id: The number of the reader.
            requester_hostname: Its host, as in `ReaderInfo`.
        """

    @abstractmethod
    def add_splits_back(self, splits: Sequence[Any], subtask_id: int) -> None:
        """Takes back splits that no reader has, because the attempt ended before they reached it.

        A reader that fails keeps its splits: it starts again from its last checkpoint, and is told anew what the
        enumerator has told it since. (In Flink the enumerator gets back what it has assigned since.)

        Args:
            splits: The splits.
            subtask_id: The number of the reader that they were assigned to.
        """

    def add_reader(self, subtask_id: int) -> None:  # noqa: B027
        """A reader has started, or has started again."""

    @abstractmethod
    def snapshot_state(self) -> Any:
        """Returns what to restore it from: above all, the splits that are not assigned."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:  # noqa: B027
        """Is called when a checkpoint is complete and its sinks have committed (Flink: ``CheckpointListener``)."""

    def handle_source_event(self, subtask_id: int, event: Any) -> None:  # noqa: B027
        """Takes an event of a reader, a value of JSON."""

    def close(self) -> None:  # noqa: B027
        """Is called when the attempt ends, or when it goes on at another parallelism, with another enumerator."""


class Source(ABC):
    """A source in Flink's shape (Flink: ``Source``).

    It is pickled into the tasks, as functions are.
    """

    discovery_interval: timedelta = timedelta(seconds=1)
    """How long an enumerator waits for its turn at most if no reader speaks to it. Default: 1 second."""

    @property
    @abstractmethod
    def produced_type(self) -> TypeInformation:
        """The type of the records."""

    @abstractmethod
    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator:
        """Returns an enumerator for a job that starts empty."""

    @abstractmethod
    def restore_enumerator(self, context: SplitEnumeratorContext, checkpoint: Any) -> SplitEnumerator:
        """Returns an enumerator from what `SplitEnumerator.snapshot_state` returned."""

    @abstractmethod
    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        """Returns a reader for a subtask."""

    def get_split_serializer(self) -> SimpleVersionedSerializer:
        """Returns how splits are stored. Default: as JSON."""
        return JsonSerializer()

    def get_enumerator_checkpoint_serializer(self) -> SimpleVersionedSerializer:
        """Returns how the state of the enumerator is stored. Default: as JSON."""
        return JsonSerializer()
