"""The Kafka sink: with a cluster in memory that has transactions, and against a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Row, Types
from dagster_flinkpy.common.serialization import ByteArraySchema, SerializationSchema, SimpleStringSchema
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.kafka import committer as kafka_committer
from dagster_flinkpy.connectors.kafka.committer import KafkaCommitter
from dagster_flinkpy.connectors.kafka.writer import KafkaStagingWriter
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    CommitterInitContext,
    DeliveryGuarantee,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSinkBuilder
from dagster_flinkpy.datastream.formats.json import JsonRowSerializationSchema
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    SinkCommitError,
    StorageError,
    TypeMismatchError,
)
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from dagster_flinkpy.testing import run_local
from tests.committing import commit_requests
from tests.connectors.kafka.fake_kafka import TOPIC, FakeCluster, FakeConsumer, FakeProducer
from tests.connectors.kafka.topics import Topic
from tests.examples import examples
from tests.runtime.harness import Crash, HarnessAttempt
from tests.runtime.programs import EVENT, environment, events

TEXT = Types.STRING()
ROW = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
CONTEXT = WriterInitContext("job", "sink", subtask=0, fencing_token=1, checkpoint_id=1, execution="e")
DAY = 24 * 60 * 60 * 1000


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()
    monkeypatch.setattr(kafka_committer, "new_client", cluster.client)
    return cluster


def builder(topic: str = TOPIC, brokers: str = "broker:9092") -> KafkaSinkBuilder:
    schema = KafkaRecordSerializationSchema.builder().set_topic(topic)
    schema.set_value_serialization_schema(SimpleStringSchema())
    return KafkaSink.builder().set_bootstrap_servers(brokers).set_record_serializer(schema.build())


def transactional(folder: Path, **of_builder: str) -> Any:
    return builder(**of_builder).set_staging(str(folder)).build()


def staged(folder: Path) -> int:
    return len(list(StorageLocation(str(folder)).open().list()))


def stage(sink: Any, *records: Any, type_info: TypeInformation = TEXT, **changes: Any) -> CommitRequest:
    context = replace(CONTEXT, **changes)
    writer = sink.create_writer(context, type_info)
    writer.write(type_info.to_arrow(records))
    [committable] = json.loads(json.dumps(writer.prepare_commit()))
    return CommitRequest(context.checkpoint_id, context.subtask, committable)


def committer(sink: Any, token: int = 1, **options: Any) -> KafkaCommitter:
    return KafkaCommitter(sink, CommitterInitContext("job", "sink", token, TEXT), **options)


def commit(by: KafkaCommitter, *requests: CommitRequest) -> int:
    # Another attempt gets requests of its own.
    fresh = [CommitRequest(r.checkpoint_id, r.subtask, r.committable) for r in requests]
    return commit_requests(by, fresh, "sink")


def values(cluster: FakeCluster) -> list[str]:
    return [value.decode() for _, value in cluster.records if value is not None]


# --- commit -----------------------------------------------------------------------------------------------------------


def test_records_are_there_after_the_commit_and_once(cluster: FakeCluster, tmp_path: Path) -> None:
    sink = transactional(tmp_path)
    requests = [stage(sink, "a", "b"), stage(sink, "c", subtask=1)]
    assert (values(cluster), staged(tmp_path)) == ([], 2)
    assert commit(committer(sink), *requests) == 0
    assert commit(committer(sink, 2), *requests) == 2
    assert (values(cluster), staged(tmp_path), cluster.transactions) == (["a", "b", "c"], 0, 1)
    assert committer(sink).last_committed() == 1


def test_a_request_that_comes_late_ends_no_later_transaction(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, begin, producers = transactional(tmp_path), FakeProducer.begin_transaction, list[FakeProducer]()

    def begun(producer: FakeProducer) -> None:
        begin(producer)
        producers.append(producer)
        for earlier in producers[:-1]:  # what it sent, and Kafka has already carried out, arrives once more
            with pytest.raises(KafkaException, match="FENCED"):
                earlier.commit_transaction(1)

    monkeypatch.setattr(FakeProducer, "begin_transaction", begun)
    by = committer(sink)
    for checkpoint_id in (1, 2, 3):
        commit(by, stage(sink, str(checkpoint_id), checkpoint_id=checkpoint_id))
    assert (values(cluster), len(producers)) == (["1", "2", "3"], 3)


def test_a_job_that_begins_anew_with_the_same_ids_adds_its_records(cluster: FakeCluster, tmp_path: Path) -> None:
    sink = transactional(tmp_path)
    commit(committer(sink), stage(sink, "a"))
    commit(committer(sink), stage(sink, "b", execution="another"))  # also checkpoint 1
    assert values(cluster) == ["a", "b"]


def test_the_group_remembers_the_last_checkpoints(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_committer, "_MARKS", 5)
    sink = transactional(tmp_path)
    by = committer(sink)
    requests = [stage(sink, str(n), checkpoint_id=n) for n in range(1, 8)]
    for request in requests:
        commit(by, request)
    assert committer(sink, 2).last_committed() == 7
    assert [commit(committer(sink, 2), request) for request in requests[2:]] == [1] * 5
    with pytest.raises(CommittableLostError, match="is missing"):  # so a zombie cannot write it again, either
        commit(committer(sink), requests[1])
    assert len(cluster.records) == 7


def test_the_marks_fit_into_the_metadata_of_an_offset(cluster: FakeCluster, tmp_path: Path) -> None:
    marks = json.dumps([f"{10**12 + n}-{'f' * 16}" for n in range(kafka_committer._MARKS)])
    cluster.offsets["flinkpy-job-sink"] = (1, marks)
    commit(committer(transactional(tmp_path)), stage(transactional(tmp_path), "a"))  # the cluster checks the size
    assert len(json.loads(cluster.offsets["flinkpy-job-sink"][1])) == kafka_committer._MARKS


@pytest.mark.parametrize("sleeps_before", ["begin_transaction", "produce", "commit_transaction"])
def test_a_zombie_that_wakes_up_during_its_commit_adds_nothing(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeps_before: str
) -> None:
    sink = transactional(tmp_path)
    request = stage(sink, "a")
    real, woke = getattr(FakeProducer, sleeps_before), []

    def sleeping(producer: FakeProducer, *args: Any, **options: Any) -> Any:
        if not woke:
            woke.append(producer)
            assert commit(committer(sink, 2), request) == 0
        return real(producer, *args, **options)

    monkeypatch.setattr(FakeProducer, sleeps_before, sleeping)
    assert commit(committer(sink), request) == 1
    assert (values(cluster), cluster.open) == (["a"], {})


def test_an_attempt_that_a_zombie_fences_tries_again(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = transactional(tmp_path)
    zombie, attempt = committer(sink), committer(sink, 2)
    commit(attempt, stage(sink, "a"))
    zombie.abort_lingering([])
    assert commit(attempt, stage(sink, "b", checkpoint_id=2)) == 0
    assert values(cluster) == ["a", "b"]


@pytest.mark.parametrize("raised", ["as it is", "in a callback"])
def test_an_attempt_that_is_fenced_again_and_again_says_by_whom(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    sink, other = transactional(tmp_path), committer(transactional(tmp_path), 2)
    real, request = FakeProducer.commit_transaction, stage(sink, "a")

    def commit_transaction(producer: FakeProducer, timeout: float) -> None:
        other._fencing_producer().init_transactions(1)
        try:
            real(producer, timeout)
        except KafkaException as error:
            if raised == "as it is":
                raise
            raise SystemError("a function returned a result with an exception set") from error

    monkeypatch.setattr(FakeProducer, "commit_transaction", commit_transaction)
    message = r"another producer with transactional id 'flinkpy-job-sink' has fenced .*another attempt of job 'job', or"
    with pytest.raises(SinkCommitError, match=message):
        commit(committer(sink), request)
    assert values(cluster) == []


def test_an_attempt_ends_the_transaction_of_a_dead_one_when_it_starts(cluster: FakeCluster, tmp_path: Path) -> None:
    sink = transactional(tmp_path)
    request = stage(sink, "a")
    with dying((FakeProducer, "send_offsets_to_transaction"), "after", [1]), pytest.raises(Crash):
        commit(committer(sink), request)
    assert len(cluster.open) == 1
    successor = committer(sink, 2)
    successor.abort_lingering([request])
    assert cluster.open == {}
    assert commit(successor, request) == 0
    assert values(cluster) == ["a"]


def test_a_commit_whose_outcome_is_unknown_is_looked_up(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, real, lost = transactional(tmp_path), FakeProducer.commit_transaction, [True]

    def commit_transaction(producer: FakeProducer, timeout: float) -> None:
        real(producer, timeout)
        if lost.pop():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))

    monkeypatch.setattr(FakeProducer, "commit_transaction", commit_transaction)
    assert commit(committer(sink), stage(sink, "a")) == 1
    assert values(cluster) == ["a"]


def test_an_old_checkpoint_without_a_mark_is_not_written_again(cluster: FakeCluster, tmp_path: Path) -> None:
    sink = transactional(tmp_path)
    request = stage(sink, "a")
    later = request.committable["staged_ms"] + 6 * DAY
    with pytest.raises(SinkCommitError, match=r"6 days ago.*nobody knows.*restore 'chk-1' to continue"):
        commit(committer(sink, now=lambda: later), request)
    assert values(cluster) == []
    commit(committer(sink), stage(sink, "b", execution="other"))  # brokers have forgotten nothing
    commit(committer(sink, now=lambda: later), request)
    assert values(cluster) == ["b", "a"]


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_staged_records_that_are_lost_or_damaged_are_an_error(
    cluster: FakeCluster, tmp_path: Path, damage: str
) -> None:
    sink = transactional(tmp_path)
    request, neighbour = stage(sink, "a"), stage(sink, "b", subtask=1)
    path = tmp_path / request.committable["key"]
    path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(CommittableLostError, match=r"(missing|changed), so its 1 rows are lost.*'chk-1' to continue"):
        commit(committer(sink), neighbour, request)
    assert (values(cluster), cluster.open) == ([], {})


@pytest.mark.parametrize("code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_records_that_kafka_refuses_stay_staged(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    sink = transactional(tmp_path)
    request = stage(sink, "a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(FakeProducer, "produce", lambda p, t, v, k, on_delivery: on_delivery(KafkaError(code), None))
        with pytest.raises(SinkCommitError, match=r"'topic' refuses the records of checkpoint 1 .*run again"):
            commit(committer(sink), request)
    assert (values(cluster), cluster.open, staged(tmp_path)) == ([], {}, 1)
    commit(committer(sink, 2), request)
    assert values(cluster) == ["a", "b"]


def test_a_group_of_somebody_else_is_found(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.offsets["mine-job-sink"] = (5, "x")
    sink = builder().set_staging(str(tmp_path)).set_transactional_id_prefix("mine").build()
    with pytest.raises(SinkCommitError, match=r"'mine-job-sink' .*no mark.*another set_transactional_id_prefix"):
        commit(committer(sink), stage(sink, "a"))


def test_a_topic_that_does_not_exist_is_an_error_at_the_start(cluster: FakeCluster, tmp_path: Path) -> None:
    sink = transactional(tmp_path, topic="other")
    with pytest.raises(ConfigurationError, match=r"'other' .* does not exist. Create it: kafka-topics"):
        committer(sink).abort_lingering([])


def test_a_cluster_that_does_not_answer_is_an_error_at_the_start(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*args: Any, **options: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(FakeConsumer, "list_topics", silent)
    monkeypatch.setattr(FakeConsumer, "committed", silent)
    for call in (lambda c: c.abort_lingering([]), lambda c: c.last_committed()):
        with pytest.raises(StorageError, match="'sink' cannot use Kafka at broker:9092"):
            call(committer(transactional(tmp_path)))


def test_what_no_checkpoint_names_is_deleted(cluster: FakeCluster, tmp_path: Path) -> None:
    sink = transactional(tmp_path)
    kept = stage(sink, "a")
    stage(sink, "b", execution="speculative")
    assert committer(sink, 2).lingering([kept]) == 1
    assert committer(sink, 2).abort_lingering([kept]) == 1
    writer = sink.create_writer(CONTEXT, TEXT)
    writer.write(TEXT.to_arrow(["c"]))
    writer.abort()
    assert staged(tmp_path) == 1


def test_time_partitions_are_refused_because_kafka_cannot_replace(cluster: FakeCluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot replace partition"):
        committer(transactional(tmp_path)).replace_partition("2026-01-01", 1)


# --- jobs that die ----------------------------------------------------------------------------------------------------

RECORDS = [(f"k{i % 3}", i, i) for i in range(9)]
STEPS: list[tuple[Any, str]] = [
    (KafkaStagingWriter, "write"),
    (KafkaStagingWriter, "prepare_commit"),
    (KafkaCommitter, "commit"),
    (KafkaCommitter, "abort_lingering"),
    *((FakeProducer, name) for name in ("init_transactions", "begin_transaction", "produce")),
    *((FakeProducer, name) for name in ("send_offsets_to_transaction", "commit_transaction")),
    (FakeConsumer, "committed"),
    (LocalObjectStore, "put"),
    (LocalObjectStore, "complete_upload"),
    (LocalObjectStore, "delete_many"),
]


@contextmanager
def dying(step: tuple[Any, str], when: str, numbers: Sequence[int]) -> Iterator[None]:
    """Makes the process die at some calls of a method, before or after they take effect."""
    owner, name = step
    real: Callable[..., Any] = getattr(owner, name)
    count = 0

    def method(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        dies = count in numbers
        if dies and when == "before":
            raise Crash
        result = real(*args, **options)
        if dies:
            raise Crash
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, method)
        yield


def run(sink: Any, folder: Path, parallelism: int) -> list[list[CommitRequest]]:
    """Runs attempts until the input is read, and returns what they have committed."""
    committed = []
    real = KafkaCommitter.commit

    def remember(committer: Any, requests: Sequence[CommitRequest]) -> None:
        committed.append([CommitRequest(r.checkpoint_id, r.subtask, r.committable) for r in requests])
        real(committer, requests)

    for _ in range(12):
        env = environment(parallelism)
        texts = events(env, RECORDS, per_epoch=3).map(lambda v: str(v.value), TEXT).uid("texts").rebalance()
        texts.sink_to(sink).uid("sink")
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(KafkaCommitter, "commit", remember)
                with HarnessAttempt(env.get_job_graph(), folder / "job") as attempt:
                    while not attempt.finished:
                        attempt.run_epoch()
                    return committed
        except Crash:
            pass
    raise AssertionError("the job does not end")


@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    step=st.sampled_from(STEPS),
    when=st.sampled_from(["before", "after"]),
    numbers=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    parallelism=st.integers(1, 2),
)
def test_every_record_is_in_the_topic_once_wherever_the_job_dies(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[Any, str],
    when: str,
    numbers: list[int],
    parallelism: int,
) -> None:
    folder, cluster = tmp_path_factory.mktemp("job"), FakeCluster()
    monkeypatch.setattr(kafka_committer, "new_client", cluster.client)
    sink = transactional(folder / "staging")
    with dying(step, when, numbers):
        committed = run(sink, folder, parallelism)
    expected = sorted(str(value) for _, _, value in RECORDS)
    assert sorted(values(cluster)) == expected
    zombie = sink.create_committer(CommitterInitContext("job", "sink", 1, TEXT))
    for requests in committed:  # an attempt that slept all the time
        zombie.commit(requests)
    assert sorted(values(cluster)) == expected
    sink.create_committer(CommitterInitContext("job", "sink", 2**62, TEXT)).abort_lingering([])
    assert (cluster.open, staged(folder / "staging")) == ({}, 0)


@pytest.mark.system
def test_a_run_that_is_killed_before_its_commit_writes_once(kafka: str, tmp_path: Path) -> None:
    topic = Topic(kafka)
    killed = _kill_run(topic, tmp_path, "KafkaCommitter.commit")
    assert (killed.returncode, topic.values()) == (-9, []), killed.stderr
    done = _kill_run(topic, tmp_path, "")
    assert (done.returncode, topic.values()) == (0, [b"0", b"1", b"2", b"3", b"4"]), done.stderr


def _kill_run(topic: Topic, folder: Path, at: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tests.connectors.kafka.kill_run",
        topic.brokers,
        topic.name,
        str(folder),
        at,
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])


# --- librdkafka -------------------------------------------------------------------------------------------------------


@pytest.fixture
def topic(kafka: str) -> Topic:
    return Topic(kafka)


def test_keys_and_values_of_fields(topic: Topic, tmp_path: Path) -> None:
    schema = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic.name)
        .set_key_serialization_schema(SimpleStringSchema(), field="s")
        .set_value_serialization_schema(JsonRowSerializationSchema.builder().with_type_info(ROW).build())
        .build()
    )
    sink = builder(topic.name, topic.brokers).set_record_serializer(schema).set_staging(str(tmp_path)).build()
    env = environment(2)
    rows = env.from_collection([Row(n, f"k{n % 2}") for n in range(4)] + [Row(9, None)], ROW)
    rows.sink_to(sink).uid("sink")
    run_local(env)
    found = topic.received()
    assert sorted((m.value(), m.key()) for m in found) == sorted(
        [(b'{"n": %d, "s": "k%d"}' % (n, n % 2), b"k%d" % (n % 2)) for n in range(4)] + [(b'{"n": 9, "s": null}', None)]
    )
    assert len({m.partition() for m in found if m.key() == b"k1"}) == 1
    assert staged(tmp_path) == 0


def test_what_is_too_large_is_an_error_before_anything_is_staged(topic: Topic, tmp_path: Path) -> None:
    sink = builder(topic.name, topic.brokers).set_staging(str(tmp_path)).set_property("message.max.bytes", "1000")
    writer = sink.build().create_writer(CONTEXT, TEXT)
    with pytest.raises(TypeMismatchError, match=r"1001 bytes, but message.max.bytes is 1000"):
        writer.write(TEXT.to_arrow(["x" * 1001]))


@pytest.mark.parametrize("guarantee", [DeliveryGuarantee.AT_LEAST_ONCE, DeliveryGuarantee.NONE])
def test_at_least_once_writes_at_the_barrier(topic: Topic, guarantee: DeliveryGuarantee) -> None:
    sink = builder(topic.name, topic.brokers).set_delivery_guarantee(guarantee).build()
    assert not isinstance(sink, TwoPhaseCommittingSink)
    writer = sink.create_writer(CONTEXT, TEXT)
    writer.write(TEXT.to_arrow(["a", None, "b"]))
    writer.flush()
    assert sorted(m.value() or b"" for m in topic.received()) == [b"", b"a", b"b"]
    writer.abort()


def test_a_direct_writer_reports_what_kafka_refuses(topic: Topic) -> None:
    sink = builder("no_such_topic", topic.brokers).set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE).build()
    writer: Any = sink.create_writer(CONTEXT, TEXT)
    writer._delivered(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), None)
    with pytest.raises(SinkCommitError, match="'sink' cannot write to topic 'no_such_topic'"):
        writer.flush()


def test_transactions_of_brokers(topic: Topic, tmp_path: Path) -> None:
    sink = transactional(tmp_path, topic=topic.name, brokers=topic.brokers)
    request = stage(sink, "a", job_id=topic.name)
    context = CommitterInitContext(topic.name, "sink", 1, TEXT)
    zombie = KafkaCommitter(sink, context)
    zombie.abort_lingering([request])
    assert commit(KafkaCommitter(sink, context), request) == 0
    assert commit(zombie, request) == 1
    assert topic.values() == [b"a"]


# --- the builder ------------------------------------------------------------------------------------------------------


class _Text(SerializationSchema):
    def serialize(self, element: Any) -> bytes:
        return str(element).encode()


def test_what_a_schema_does_not_write_is_refused_when_the_program_is_built() -> None:
    def check(schema: SerializationSchema, type_info: TypeInformation | None, field: str | None = None) -> None:
        record = KafkaRecordSerializationSchema(TOPIC, schema, field, None, None)
        builder().set_record_serializer(record).set_staging("x").build().validate(type_info)

    row = JsonRowSerializationSchema(ROW)
    builder().set_record_serializer(KafkaRecordSerializationSchema(TOPIC)).set_staging("x").build().validate(ROW)
    with pytest.raises(ConfigurationError, match=r"JSON objects, but records are .*ROW_NAMED"):
        builder().set_record_serializer(KafkaRecordSerializationSchema(TOPIC)).set_staging("x").build().validate(TEXT)
    for schema, type_info, field in [
        (SimpleStringSchema(), TEXT, None),
        (SimpleStringSchema(), None, None),
        (SimpleStringSchema(), ROW, "s"),
        (ByteArraySchema(), Types.PRIMITIVE_ARRAY(Types.BYTE()), None),
        (row, ROW, None),
        (_Text(), EVENT, None),
        (_Text(), ROW, "n"),
    ]:
        check(schema, type_info, field)
    for schema, type_info, field in [
        (SimpleStringSchema(), ROW, None),
        (SimpleStringSchema(), ROW, "n"),
        (SimpleStringSchema(), ROW, "x"),
        (ByteArraySchema(), TEXT, None),
        (row, EVENT, None),
        (row, None, None),
    ]:
        with pytest.raises(ConfigurationError, match=r"topic|have no field 'x'"):
            check(schema, type_info, field)


def test_what_cannot_work_is_refused_when_it_is_declared() -> None:
    for change, message in [
        (lambda b: b, "needs set_staging"),
        (lambda b: b.set_staging(5), "needs a path"),
        (lambda b: b.set_staging("x").set_delivery_guarantee(DeliveryGuarantee.NONE), "stages nothing"),
        (lambda b: b.set_property("transactional.id", "x"), "set_transactional_id_prefix"),
        (lambda b: b.set_property("enable.idempotence", "false"), "cannot be set"),
        (lambda b: b.set_record_serializer("x"), "KafkaRecordSerializationSchema"),
        (lambda b: b.set_delivery_guarantee("x"), "DeliveryGuarantee"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            change(builder()).build()
    with pytest.raises(ConfigurationError, match="set_bootstrap_servers"):
        KafkaSink.builder().build()
    with pytest.raises(ConfigurationError, match="set_topic"):
        KafkaRecordSerializationSchema.builder().build()
    assert builder().set_staging("x").build().uri() == "kafka://broker:9092/topic"
