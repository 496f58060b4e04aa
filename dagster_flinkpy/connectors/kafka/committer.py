"""The committer of the Kafka sink."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors.commit.checkpoint_committer import CheckpointCommitter, StagedCheckpoint
from dagster_flinkpy.connectors.commit.staged_rows import StagedRows
from dagster_flinkpy.connectors.files.parquet_table import table_schema
from dagster_flinkpy.connectors.kafka.client import new_client
from dagster_flinkpy.connectors.kafka.writer import STAGED_RECORD, produce_all, producer_settings
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitRequestState, CommitterInitContext
from dagster_flinkpy.datastream.connectors.kafka_sink import KafkaSink
from dagster_flinkpy.errors import CommitRefusedError, ConfigurationError, SinkCommitError, StorageError

__all__ = ["AppendingCommitter", "KafkaCommitter"]

_log = logging.getLogger(__name__)

_SECONDS = 60.0
_MARKS = 50
"""How many checkpoints the group remembers. Brokers take 4096 bytes of metadata by default."""
_MARK_DAYS = 6
"""Brokers forget a group that has committed nothing for 7 days (``offsets.retention.minutes``)."""
_DAY_MS = 24 * 60 * 60 * 1000
_OF_CONNECTIONS = ("security.", "sasl.", "ssl.", "socket.", "broker.address.")
"""How settings of producers begin that are those of consumers, too."""
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_HOPELESS = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
)


class KafkaCommitter(CheckpointCommitter):
    """Writes the staged records of a checkpoint in one transaction, together with a mark of the checkpoint.

    The mark is the metadata of an offset that the sink's own consumer group commits for the first partition of the
    topic. Who opens a producer fences all older ones with its transactional id, and their open transaction is
    aborted. Only then the mark is read. So whoever finds no mark, and is not fenced until its transaction commits, is
    the first one.
    """

    _client_errors = (KafkaException,)
    _never_replaces = "Kafka does not take records back"

    def __init__(self, sink: KafkaSink, context: CommitterInitContext, now: Callable[[], int] = current_millis) -> None:
        self._rows = StagedRows(sink.staging, context)
        super().__init__(context, self._rows, f"Kafka at {sink.bootstrap_servers}")
        self._sink, self._now, self._topic = sink, now, sink.schema.topic
        self._name = f"{sink.transactional_id_prefix}-{context.job_id}-{context.uid}"
        self._checked = False

    # --- commit ------------------------------------------------------------------------------------------------------

    def _signal(self, requests: Sequence[CommitRequest], error: Exception) -> None:
        """Asks to try again, with a new producer that finds out what became of the transaction."""
        checkpoint_id = requests[0].checkpoint_id
        if isinstance(error, ConfigurationError):  # there is no topic, and nothing has begun
            raise error
        if isinstance(error, SystemError):  # a callback of confluent-kafka ran after it had noted an error
            error = error.__cause__ if isinstance(error.__cause__, KafkaException) else StorageError(str(error))
        code = error.args[0].code() if isinstance(error, KafkaException) else None
        if code in _FENCED:
            for request in requests:
                request.retry_later(self._fenced(checkpoint_id, error))
        elif code in _HOPELESS:
            refused = CommitRefusedError(
                f"topic {self._topic!r} refuses the records of checkpoint {checkpoint_id} of sink "
                f"{self._context.uid!r}: {error}. They stay staged: change the topic or the permissions so that it "
                "takes them, and run again."
            )
            super()._signal(requests, refused)
        else:
            super()._signal(requests, error)

    def _fenced(self, checkpoint_id: int, error: Exception) -> SinkCommitError:
        return SinkCommitError(
            f"sink {self._context.uid!r} cannot commit checkpoint {checkpoint_id} to topic {self._topic!r}: another "
            f"producer with transactional id {self._name!r} has fenced this one. That is another attempt of job "
            f"{self._context.job_id!r}, or a job elsewhere with the same id, uid and set_transactional_id_prefix(): "
            f"give each its own prefix ({error})"
        )

    def _put(self, checkpoint: StagedCheckpoint) -> bool:
        checkpoint_id, mark = checkpoint.checkpoint_id, self._mark(checkpoint)
        self._check()
        producer = self._fencing_producer()
        _, marks = self._marks()
        if mark in marks:
            return False
        if not marks:
            self._check_age(checkpoint)
        self._rows.require(checkpoint.files, checkpoint_id)
        producer.begin_transaction()
        try:
            self._produce(producer, checkpoint)
            metadata = json.dumps([*marks[-(_MARKS - 1) :], mark], separators=(",", ":"))
            offset = TopicPartition(self._topic, 0, checkpoint_id, metadata=metadata)
            group = self._group.consumer_group_metadata()
            producer.send_offsets_to_transaction([offset], group, _SECONDS)
            producer.commit_transaction(_SECONDS)
        except (KafkaException, StorageError, SinkCommitError, SystemError):
            with suppress(KafkaException, SystemError):  # otherwise the next producer aborts it
                producer.abort_transaction(_SECONDS)
            raise
        return True

    def _mark(self, checkpoint: StagedCheckpoint) -> str:
        return f"{checkpoint.checkpoint_id}-{checkpoint.digest[:16]}"

    def _produce(self, producer: Any, checkpoint: StagedCheckpoint) -> None:
        failures: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None and not failures:
                failures.append(error)

        for file in checkpoint.files:
            rows = self._rows.read([file], table_schema(STAGED_RECORD), checkpoint.checkpoint_id)
            for batch in rows.to_batches():
                produce_all(producer, self._topic, batch.to_struct_array(), delivered)
        while producer.flush(_SECONDS) and not failures:
            pass  # librdkafka gives up when the transaction times out
        if failures:
            raise KafkaException(failures[0])

    def _check_age(self, checkpoint: StagedCheckpoint) -> None:
        """Makes sure that a mark could not have been forgotten."""
        days, checkpoint_id = (self._now() - checkpoint.staged_ms) // _DAY_MS, checkpoint.checkpoint_id
        if days >= _MARK_DAYS:
            raise CommitRefusedError(
                f"sink {self._context.uid!r} has staged the records of checkpoint {checkpoint_id} for topic "
                f"{self._topic!r} {days} days ago. Group {self._name!r} has no mark of it, but brokers forget marks "
                "after 7 days, so nobody knows whether they were written. Look into the topic. If they are there, "
                f"restore 'chk-{checkpoint_id}' to continue; if not, restore a savepoint or an older checkpoint to "
                "write them again."
            )

    # --- clients -----------------------------------------------------------------------------------------------------

    def _fencing_producer(self) -> Any:
        """Returns a new producer, which fences all others of the sink and ends what they have begun.

        Each transaction has its own. Otherwise a request to end an earlier transaction that Kafka receives late could
        end this one: brokers cannot tell the transactions of one producer apart, unless both sides know KIP-890.
        """
        settings = {**producer_settings(self._sink, self._name), "transactional.id": self._name}
        producer = new_client(Producer, settings, "KafkaSink")
        producer.init_transactions(_SECONDS)
        return producer

    @cached_property
    def _group(self) -> Any:
        shared = {name: value for name, value in self._sink.properties.items() if name.startswith(_OF_CONNECTIONS)}
        settings = {
            "bootstrap.servers": self._sink.bootstrap_servers,
            "client.id": self._name,
            "group.id": self._name,
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",  # offsets of an undecided transaction are waited for
        }
        return new_client(Consumer, {**shared, **settings}, "KafkaSink")

    def _marks(self) -> tuple[int | None, list[str]]:
        """Returns the last checkpoint that was committed, and the marks of the last ones."""
        (found,) = self._group.committed([TopicPartition(self._topic, 0)], timeout=_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        if found.offset < 0:
            return None, []
        try:
            marks = [str(mark) for mark in json.loads(found.metadata)]
        except (TypeError, ValueError) as error:
            raise SinkCommitError(
                f"group {self._name!r} has committed an offset that is no mark of a sink: {found.metadata!r:.200}. "
                "Does something else use this group? Give the sink another set_transactional_id_prefix()."
            ) from error
        return found.offset, marks

    # --- around it ---------------------------------------------------------------------------------------------------

    def last_committed(self) -> int | None:
        with self._reaching():
            return self._marks()[0]

    def _begin(self) -> None:
        if not self._checked:
            self._check()
            self._fencing_producer()  # aborts what a dead attempt has left open

    def _check(self) -> None:
        """Makes sure once that the topic exists."""
        if self._checked:
            return
        topic = self._group.list_topics(timeout=_SECONDS).topics.get(self._topic)  # a consumer creates none
        if topic is None or not topic.partitions:
            raise ConfigurationError(
                f"topic {self._topic!r} at {self._sink.bootstrap_servers} does not exist. Create it: "
                f"kafka-topics.sh --bootstrap-server {self._sink.bootstrap_servers} --create --topic {self._topic}"
            )
        self._checked = True


class AppendingCommitter(KafkaCommitter):
    """Commits the transactions of an asset. A run writes once, whatever is retried; another run adds.

    The run is part of the committables, because the next run commits what a dead one had begun to commit.
    """

    def _mark(self, checkpoint: StagedCheckpoint) -> str:
        partitions = sorted(map(str, checkpoint.by_partition))
        identity = json.dumps([checkpoint.requests[0].committable.get("run_key"), partitions])
        return f"run-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        super().commit(requests)
        if any(request.state is CommitRequestState.ALREADY_COMMITTED for request in requests):
            _log.warning(
                "the run of asset %r has written to topic %r before, so nothing is added: Kafka cannot replace records",
                *(self._context.job_id, self._topic),
            )

    def replace_partition(self, partition: str | None, checkpoint_id: int) -> int:
        """Does nothing: what is in a topic stays."""
        return 0
