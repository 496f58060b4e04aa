"""The Kafka source, against a broker of noida-db or the brokers of FLINKPY_TEST_KAFKA."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from dagster_flinkpy.common import Row, Types, WatermarkStrategy
from dagster_flinkpy.common.serialization import SimpleStringSchema
from dagster_flinkpy.connectors.kafka import reader as kafka_reader
from dagster_flinkpy.connectors.kafka.client import BEGINNING, END, PartitionLookup
from dagster_flinkpy.connectors.kafka.enumerator import KafkaEnumerator, share
from dagster_flinkpy.connectors.kafka.reader import messages_of
from dagster_flinkpy.datastream import ProcessFunction
from dagster_flinkpy.datastream.connectors.base import SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.epoch_limits import EpochLimits
from dagster_flinkpy.datastream.connectors.kafka import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaRecordDeserializationSchema,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    KafkaSourceBuilder,
    KafkaTopicPartition,
)
from dagster_flinkpy.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from dagster_flinkpy.errors import ConfigurationError, InputExpiredError, SourceReadError
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.testing import run_local
from tests.connectors.kafka.fake_topics import FakePartition, FakeTopics
from tests.connectors.kafka.topics import Topic, committed
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import environment
from tests.waiting import LIMIT, until

TP = KafkaTopicPartition
LATEST, EARLIEST = KafkaOffsetsInitializer.latest(), KafkaOffsetsInitializer.earliest()


@pytest.fixture
def topic(kafka: str) -> Topic:
    return Topic(kafka)


def builder(topic: Topic) -> KafkaSourceBuilder:
    return (
        KafkaSource.builder()
        .set_bootstrap_servers(topic.brokers)
        .set_topics(topic.name)
        .set_value_only_deserializer(SimpleStringSchema())
    )


def ranges(planned: list[list[SourceSplit]]) -> dict[int, tuple[int, int]]:
    """Returns the planned range of each partition."""
    splits = [split for share in planned for split in share]
    return {s.properties["partition"]: (s.offset, s.properties["end"]) for s in splits}


def plan(enumerator: SplitEnumerator) -> dict[int, tuple[int, int]]:
    """Plans an epoch, and reads it."""
    planned = enumerator.plan_epoch(1)
    enumerator.on_epoch_read([split.advanced(split.properties["end"], finished=True) for split in planned[0]])
    return ranges(planned)


def restored(source: KafkaSource, enumerator: SplitEnumerator, **options: Any) -> KafkaEnumerator:
    return KafkaEnumerator(source, json.loads(json.dumps(enumerator.snapshot_state())), **options)


def read(source: KafkaSource, split: SourceSplit) -> list[Any]:
    kind = source.produced_type
    return [record for column, *_ in source.read(split) for record in kind.from_arrow(column)]


# --- planning ---------------------------------------------------------------------------------------------------------


def test_an_epoch_reads_what_is_there_and_the_next_one_what_has_come(topic: Topic) -> None:
    topic.send(b"a", b"b")
    topic.send(b"c", partition=1)
    source = builder(topic).build()
    enumerator = source.create_enumerator(None)
    assert plan(enumerator) == {0: (0, 2), 1: (0, 1)}
    assert plan(enumerator) == {}
    topic.send(b"d")
    assert plan(restored(source, enumerator)) == {0: (2, 3)}
    assert not enumerator.exhausted


def test_it_says_whether_there_is_input(topic: Topic) -> None:
    source = builder(topic).build()
    enumerator = source.create_enumerator(None)
    assert plan(enumerator) == {}
    assert not restored(source, enumerator).has_input(1)
    topic.send(b"a")
    assert restored(source, enumerator).has_input(1)
    assert plan(enumerator) == {0: (0, 1)}
    assert not restored(source, enumerator).has_input(1)


def test_what_was_planned_and_not_read_stays_as_it_was_planned(topic: Topic) -> None:
    topic.send(b"a", b"b")
    source = builder(topic).build()
    enumerator = source.create_enumerator(None)
    (split,) = enumerator.plan_epoch(1)[0]
    topic.send(b"c")
    assert ranges(enumerator.plan_epoch(1)) == ranges(restored(source, enumerator).plan_epoch(1)) == {0: (0, 2)}
    assert read(source, split) == read(source, split) == ["a", "b"]
    enumerator.on_epoch_read([split.advanced(1, finished=False)])
    assert plan(restored(source, enumerator)) == {0: (1, 2)}


def test_an_input_that_was_read_amid_its_last_range_has_not_ended(topic: Topic) -> None:
    topic.send(b"a", b"b")
    source = builder(topic).set_bounded(LATEST).build()
    enumerator = source.create_enumerator(None)
    (split,) = enumerator.plan_epoch(1)[0]
    assert enumerator.exhausted
    enumerator.on_epoch_read([split.advanced(1, finished=False)])
    assert not enumerator.exhausted
    again = restored(source, enumerator)
    assert not again.exhausted
    assert plan(again) == {0: (1, 2)}
    assert again.exhausted


def test_the_partitions_of_a_topic_are_dealt_to_subtasks(topic: Topic) -> None:
    for partition in range(4):
        topic.send(b"x", partition=partition)
    enumerator = builder(topic).build().create_enumerator(None)
    assert [len(share) for share in enumerator.plan_epoch(4)] == [1, 1, 1, 1]


def test_a_limit_of_records_is_shared_by_the_partitions(topic: Topic) -> None:
    topic.send(*[b"x"] * 10)
    topic.send(b"x", b"x", partition=1)
    enumerator = builder(topic).set_max_records_per_epoch(6).build().create_enumerator(None)
    assert plan(enumerator) == {0: (0, 4), 1: (0, 2)}
    assert plan(enumerator) == {0: (4, 10)}


def test_a_limit_of_bytes_is_about_right(topic: Topic) -> None:
    topic.send(*[b"x" * 100] * 20)
    topic.send(b"y" * 900, key=b"k" * 100, partition=1)
    enumerator = builder(topic).set_max_bytes_per_epoch(2000).build().create_enumerator(None)
    assert plan(enumerator) == {0: (0, 10), 1: (0, 1)}
    assert plan(enumerator) == {0: (10, 20)}


@pytest.mark.parametrize(
    ("limit", "wanted", "found"),
    [(5, [1, 10], [1, 4]), (9, [3, 3, 3], [3, 3, 3]), (1, [5, 5], [1]), (2, [9, 9, 9], [1, 1]), (0, [1], [])],
)
def test_share(limit: int, wanted: list[int], found: list[int]) -> None:
    assert list(share(limit, {TP("t", n): amount for n, amount in enumerate(wanted)}).values()) == found


def test_new_partitions_are_found_and_read_from_their_beginning(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    real, known, now = PartitionLookup.partitions, {0, 1}, [0.0]
    monkeypatch.setattr(
        PartitionLookup, "partitions", lambda self: {each for each in real(self) if each.partition in known}
    )
    topic.send(b"a")
    source = builder(topic).set_starting_offsets(LATEST).set_property("partition.discovery.interval.ms", 1000).build()
    enumerator = KafkaEnumerator(source, None, clock=lambda: now[0])
    assert plan(enumerator) == {}
    topic.send(b"b", partition=2)
    known.add(2)
    now[0] = 0.9
    assert plan(enumerator) == {}
    assert plan(restored(source, enumerator, clock=lambda: now[0])) == {2: (0, 1)}  # an attempt looks at its start
    now[0] = 1
    assert plan(enumerator) == {2: (0, 1)}
    known.remove(0)
    now[0] = 2
    with pytest.raises(SourceReadError, match="0 no longer exists"):
        plan(enumerator)


def test_topics_by_pattern_and_single_partitions(topic: Topic) -> None:
    topic.send(b"a")
    topic.send(b"b", partition=3)
    source = builder(topic).set_topics().set_topic_pattern(f"{topic.name[:-1]}.").build()
    assert plan(source.create_enumerator(None)) == {0: (0, 1), 3: (0, 1)}
    source = builder(topic).set_topics().set_partitions({TP(topic.name, 3)}).build()
    assert plan(source.create_enumerator(None)) == {3: (0, 1)}
    source = builder(topic).set_topics().set_partitions({TP(topic.name, 99)}).build()
    with pytest.raises(SourceReadError, match=r"-99 .*does not exist"):
        plan(source.create_enumerator(None))


def test_a_topic_that_does_not_exist_is_named(kafka: str, topic: Topic) -> None:
    source = builder(topic).set_topics("no_such_topic").build()
    with pytest.raises(SourceReadError, match=r"'no_such_topic' .* cannot be read.*Create it first"):
        plan(source.create_enumerator(None))


# --- where it starts and ends -----------------------------------------------------------------------------------------


def test_starting_offsets(topic: Topic, kafka: str) -> None:
    topic.send(b"a", b"b", b"c")
    given = {TP(topic.name, 0): 1}

    def first(initializer: KafkaOffsetsInitializer) -> Any:
        source = builder(topic).set_group_id(f"g{topic.name}").set_starting_offsets(initializer).build()
        return plan(source.create_enumerator(None)).get(0)

    assert first(EARLIEST) == (0, 3)
    assert first(LATEST) is None
    assert first(KafkaOffsetsInitializer.timestamp(int(time.time() * 1000) + 10**9)) is None
    assert first(KafkaOffsetsInitializer.offsets(given)) == (1, 3)
    with pytest.raises(SourceReadError, match=r"no offset for partition .*-1: none was given"):
        first(KafkaOffsetsInitializer.offsets(given, KafkaOffsetResetStrategy.NONE))
    with pytest.raises(SourceReadError, match=r"group 'g.*' has committed none.*KafkaOffsetResetStrategy"):
        first(KafkaOffsetsInitializer.committed_offsets())
    assert first(KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.EARLIEST)) == (0, 3)
    assert first(KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.LATEST)) is None


def test_the_group_gets_the_offsets_of_completed_checkpoints(topic: Topic, kafka: str) -> None:
    topic.send(b"a", b"b", b"c")
    group = f"g{topic.name}"
    source = builder(topic).set_group_id(group).set_max_records_per_epoch(1).build()
    enumerator = source.create_enumerator(None)
    for checkpoint in (1, 2, 3):
        plan(enumerator)
        enumerator.snapshot_state()
        enumerator.on_snapshot(checkpoint)
    enumerator.notify_checkpoint_complete(2)
    until(lambda: committed(kafka, group, topic.name, [0]) == [2], "the offset is not committed")
    starts = KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.EARLIEST)
    assert plan(builder(topic).set_group_id(group).set_starting_offsets(starts).build().create_enumerator(None)) == {
        0: (2, 3)
    }


def test_a_bounded_source_ends_where_the_topic_ended(topic: Topic) -> None:
    topic.send(b"a", b"b")
    source = builder(topic).set_bounded(LATEST).set_max_records_per_epoch(1).build()
    enumerator = source.create_enumerator(None)
    assert (plan(enumerator), enumerator.exhausted) == ({0: (0, 1)}, False)
    topic.send(b"c")
    enumerator = restored(source, enumerator)
    assert (plan(enumerator), enumerator.exhausted) == ({0: (1, 2)}, True)
    assert (plan(enumerator), enumerator.unread()) == ({}, [])


@pytest.mark.parametrize("by", ["topics", "partitions", "pattern"])
def test_a_bounded_source_reads_the_topics_that_it_names_now(topic: Topic, kafka: str, by: str) -> None:
    """A new one was never read, and nobody said so; one that was left out was read on."""
    other, third = Topic(kafka), Topic(kafka)
    for each in (topic, other, third):
        each.send(b"a", b"b")

    def source(*topics: Topic) -> KafkaSource:
        given = builder(topic).set_bounded(LATEST)
        if by == "topics":
            return given.set_topics(*(each.name for each in topics)).build()
        given._source.topics = ()
        if by == "pattern":
            return given.set_topic_pattern("|".join(each.name for each in topics)).build()
        return given.set_partitions({TP(each.name, 0) for each in topics}).build()

    def read_by(enumerator: KafkaEnumerator) -> set[tuple[str, int, int]]:
        (splits,) = enumerator.plan_epoch(1)
        enumerator.on_epoch_read([each.advanced(each.properties["end"], finished=True) for each in splits])
        return {(each.properties["topic"], each.offset, each.properties["end"]) for each in splits}

    first = source(topic, other)
    first.limits = EpochLimits(2)
    enumerator = KafkaEnumerator(first, None)
    assert read_by(enumerator) == {(topic.name, 0, 1), (other.name, 0, 1)}
    third.send(b"c")
    enumerator = restored(source(other, third), restored(source(other, third), enumerator))  # one run read nothing
    assert read_by(enumerator) == {(other.name, 1, 2), (third.name, 0, 3)}
    assert enumerator.exhausted and not enumerator.unread()
    # Its end has been told, so nothing can follow.
    name = f"{topic.name}-0" if by == "partitions" else topic.name
    assert restored(source(topic, other), enumerator).unread() == [name]


def test_a_pattern_that_stays_finds_no_new_topics_in_a_bounded_input(topic: Topic, kafka: str) -> None:
    """Also if the position is of an earlier release, which has not stored the pattern."""
    topic.send(b"a", b"b")
    given = builder(topic).set_topics().set_topic_pattern(f"{topic.name}(-more)?").set_bounded(LATEST).build()
    given.limits = EpochLimits(1)
    enumerator = KafkaEnumerator(given, None)
    plan(enumerator)
    before = {name: value for name, value in enumerator.snapshot_state().items() if name != "pattern"}
    more = Topic(kafka, name=f"{topic.name}-more")
    more.send(b"c")
    for position in (enumerator.snapshot_state(), before):
        again = KafkaEnumerator(given, position)
        assert {each.properties["topic"] for splits in again.plan_epoch(1) for each in splits} == {topic.name}
        assert again.unread() == []


def test_a_bounded_source_without_records_ends_at_once(topic: Topic) -> None:
    enumerator = builder(topic).set_bounded(LATEST).build().create_enumerator(None)
    assert (plan(enumerator), enumerator.exhausted) == ({}, True)


@pytest.mark.parametrize(
    ("position", "oldest", "message"), [(2, 5, "from 2 up to 4 are gone, because"), (9, 0, "ends at 6 already")]
)
def test_a_position_that_is_gone_is_an_error_unless_the_source_says_where_to_go_on(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, position: int, oldest: int, message: str
) -> None:
    real = PartitionLookup.offsets

    def offsets(self: PartitionLookup, partitions: Any, when: int) -> dict[KafkaTopicPartition, int]:
        known = {BEGINNING: oldest, END: 6}
        return {each: known[when] if each.partition == 0 else n for each, n in real(self, partitions, when).items()}

    monkeypatch.setattr(PartitionLookup, "offsets", offsets)
    starts = KafkaOffsetsInitializer.offsets({TP(topic.name, 0): position})
    with pytest.raises(InputExpiredError, match=message):
        plan(builder(topic).set_starting_offsets(starts).build().create_enumerator(None))
    for reset, found in (("earliest", {0: (oldest, 6)}), ("latest", {})):
        source = builder(topic).set_starting_offsets(starts).set_property("auto.offset.reset", reset).build()
        assert plan(source.create_enumerator(None)) == found


@pytest.mark.parametrize(
    ("act", "message", "earliest", "latest"),
    [
        (lambda log: log.expire(5), "from 3 up to 4 are gone, because .* set_property", {0: (5, 12)}, {}),
        (lambda log: log.truncate(6), "it ends at 6 already, so .* set_property", {0: (3, 6)}, {}),
    ],
)
def test_a_range_that_is_gone_since_a_part_of_it_was_read_is_as_any_position(
    act: Any, message: str, earliest: Any, latest: Any
) -> None:
    """Nothing but an empty state helped, whatever the source said, and a truncated one was tried again for ever."""
    topics = FakeTopics({"t": [FakePartition()]})
    log = topics.topics["t"][0]

    def source(**properties: str) -> KafkaSource:
        made = KafkaSource.builder().set_bootstrap_servers("b").set_topics("t").set_properties(properties)
        return made.set_value_only_deserializer(SimpleStringSchema()).build()

    with topics.serving():
        for _ in range(9):
            log.append(b"x")
        enumerator = source().create_enumerator(None)
        [[split]] = enumerator.plan_epoch(1)
        enumerator.on_epoch_read([split.advanced(3, finished=False)])
        log.expire(3)
        assert ranges(enumerator.plan_epoch(1)) == {0: (3, 9)}
        log.append(b"y")
        log.append(b"y")
        log.append(b"y")
        act(log)
        for again in (enumerator, restored(source(), enumerator)):
            with pytest.raises(InputExpiredError, match=message):
                again.plan_epoch(1)
        for reset, found in (("earliest", earliest), ("latest", latest)):
            goes_on = restored(source(**{"auto.offset.reset": reset}), enumerator)
            assert plan(goes_on) == found
            assert plan(goes_on) == {}


def test_a_bounded_range_that_is_gone_since_a_part_of_it_was_read_is_as_any_position() -> None:
    """All of it was planned, so nobody looked whether it is still there."""
    topics = FakeTopics({"t": [FakePartition(end=9)]})

    def source(**properties: str) -> KafkaSource:
        made = KafkaSource.builder().set_bootstrap_servers("b").set_topics("t").set_properties(properties)
        made = made.set_bounded(KafkaOffsetsInitializer.latest())
        return made.set_value_only_deserializer(SimpleStringSchema()).build()

    with topics.serving():
        enumerator = source().create_enumerator(None)
        [[split]] = enumerator.plan_epoch(1)
        enumerator.on_epoch_read([split.advanced(3, finished=False)])
        topics.topics["t"][0].expire(5)
        with pytest.raises(InputExpiredError, match=r"from 3 up to 4 are gone, because .* set_property"):
            restored(source(), enumerator).plan_epoch(1)
        goes_on = restored(source(**{"auto.offset.reset": "earliest"}), enumerator)
        assert (plan(goes_on), plan(goes_on), goes_on.exhausted) == ({0: (5, 9)}, {}, True)


@pytest.mark.parametrize("part", [0, 1])
def test_what_was_read_of_an_open_transaction_is_not_gone_when_only_committed_records_are_read(
    kafka: str, topic: Topic, part: int
) -> None:
    topic.send(b"a", b"b")
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic.name, "log_level": 2})
    producer.init_transactions(LIMIT)
    producer.begin_transaction()
    producer.produce(topic.name, b"c", partition=0)
    assert producer.flush(LIMIT) == 0
    source = builder(topic).set_property("isolation.level", "read_uncommitted").build()
    enumerator = source.create_enumerator(None)
    ((split,),) = enumerator.plan_epoch(1)
    enumerator.on_epoch_read([split.advanced(3 - part, finished=not part)])
    source = builder(topic).set_property("auto.offset.reset", "earliest").build()
    again = restored(source, enumerator)
    assert ranges(again.plan_epoch(1)) == ({0: (2, 3)} if part else {})
    producer.commit_transaction(LIMIT)
    topic.send(b"d")
    again = restored(source, again)
    assert [value for split in again.plan_epoch(1)[0] for value in read(source, split)] == (["c"] if part else ["d"])


def test_a_topic_that_was_made_anew_is_refused_however_many_records_it_has(caplog: pytest.LogCaptureFixture) -> None:
    """Records of the new topic were never read up to the number of those in the old one."""
    topics = FakeTopics({"t": [FakePartition()]})

    def append(count: int) -> None:
        for _ in range(count):
            topics.topics["t"][0].append(b"x")

    def source(**properties: str) -> KafkaSource:
        made = KafkaSource.builder().set_bootstrap_servers("b").set_topics("t").set_properties(properties)
        return made.set_value_only_deserializer(SimpleStringSchema()).set_max_records_per_epoch(2).build()

    with topics.serving():
        append(5)
        enumerator = source().create_enumerator(None)
        assert plan(enumerator) == {0: (0, 2)}
        enumerator.plan_epoch(1)  # and is not read
        topics.make_anew("t", [FakePartition()])
        append(9)
        for anew in (enumerator, restored(source(), enumerator)):
            anew._looked = None
            with pytest.raises(InputExpiredError, match=r"'t' was deleted and made anew.* set_property"):
                plan(anew)
        assert plan(restored(source(**{"auto.offset.reset": "earliest"}), enumerator)) == {0: (0, 2)}
        assert plan(restored(source(**{"auto.offset.reset": "latest"}), enumerator)) == {}
        topics.cluster_id = "mirror"
        mirrored = restored(source(), enumerator)
        assert plan(mirrored) == {0: (2, 4)}
        assert "topic t is one of cluster mirror now, no longer of cluster" in caplog.text
        topics.make_anew("t", [FakePartition()])
        append(9)
        with pytest.raises(InputExpiredError, match="made anew"):
            plan(restored(source(), mirrored))


@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_of_a_pattern_that_is_not_shown_for_a_while_goes_on(restarts: bool) -> None:
    """Brokers leave out topics of which they do not let the client know."""
    topics = FakeTopics({"ta": [FakePartition(end=3)], "tb": [FakePartition(end=5)]})
    made = KafkaSource.builder().set_bootstrap_servers("b").set_topic_pattern("t.")
    source = made.set_value_only_deserializer(SimpleStringSchema()).build()

    def look(enumerator: SplitEnumerator) -> set[tuple[str, int, int]]:
        enumerator = restored(source, enumerator) if restarts else enumerator
        assert isinstance(enumerator, KafkaEnumerator)
        enumerator._looked = None
        (splits,) = enumerator.plan_epoch(1)
        enumerator.on_epoch_read([split.advanced(split.properties["end"], finished=True) for split in splits])
        after.append(enumerator)
        return {(split.properties["topic"], split.offset, split.properties["end"]) for split in splits}

    with topics.serving():
        after = [source.create_enumerator(None)]
        assert look(after[-1]) == {("ta", 0, 3), ("tb", 0, 5)}
        hidden = topics.topics.pop("ta")
        topics.topics["tb"][0].end = 6
        assert look(after[-1]) == {("tb", 5, 6)}
        hidden[0].end = 4
        topics.topics["ta"] = hidden
        assert look(after[-1]) == {("ta", 3, 4)}
        del topics.topics["ta"]
        assert look(after[-1]) == set()
        topics.make_anew("ta", [FakePartition(end=9)])
        assert look(after[-1]) == {("ta", 0, 9)}, "it is another topic"


@pytest.mark.parametrize("pattern", ["t.", "tb"])
def test_a_topic_that_is_gone_since_a_part_of_a_range_was_read_holds_up_no_others(pattern: str) -> None:
    """The job tried to read the rest again and again."""
    topics = FakeTopics({"ta": [FakePartition(end=3)], "tb": [FakePartition(end=5)]})

    def source(pattern: str) -> KafkaSource:
        made = KafkaSource.builder().set_bootstrap_servers("b").set_topic_pattern(pattern)
        return made.set_value_only_deserializer(SimpleStringSchema()).build()

    with topics.serving():
        enumerator = source("t.").create_enumerator(None)
        (splits,) = enumerator.plan_epoch(1)
        enumerator.on_epoch_read([split.advanced(1, finished=False) for split in splits])
        hidden = topics.topics.pop("ta")
        again = restored(source(pattern), enumerator)
        [split] = again.plan_epoch(1)[0]
        assert (split.properties["topic"], split.offset, split.properties["end"]) == ("tb", 1, 5)
        again.on_epoch_read([split.advanced(5, finished=True)])
        topics.topics["ta"] = hidden
        assert plan(restored(source(pattern), again)) == ({0: (1, 3)} if pattern == "t." else {})


@pytest.mark.parametrize("unknown", ["ids", "controller", "description", "position"])
def test_ids_of_topics_that_nobody_knows_are_none(unknown: str) -> None:
    topics = FakeTopics({"t": [FakePartition(end=3)]})
    source = KafkaSource.builder().set_bootstrap_servers("b").set_topics("t")
    source = source.set_value_only_deserializer(SimpleStringSchema()).build()
    with topics.serving():
        enumerator = source.create_enumerator(None)
        plan(enumerator)
        position = enumerator.snapshot_state()
        if unknown == "position":  # of an earlier release
            del position["ids"], position["cluster"]
        topics.make_anew("t", [FakePartition(end=5)])
        topics.tells_ids, topics.has_controller = unknown != "ids", unknown != "controller"
        topics.describes = unknown != "description"
        again = KafkaEnumerator(source, position)
        assert plan(again) == {0: (3, 5)}
        assert bool(again.snapshot_state()["ids"])


# --- reading ----------------------------------------------------------------------------------------------------------


def test_records_that_expire_between_planning_and_reading_are_an_error(topic: Topic) -> None:
    topic.send(b"a")
    split = SourceSplit("x", {"topic": topic.name, "partition": 0, "end": 9}, 5)
    with pytest.raises(InputExpiredError, match="no longer has offset 5"):
        read(builder(topic).build(), split)


class _Message:
    def __init__(self, offset: int, error: int | None = None) -> None:
        self._offset, self._error = offset, None if error is None else KafkaError(error)

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error


class _Scripted:
    """A consumer that returns what a test says."""

    def __init__(self, *polls: list[_Message]) -> None:
        self._polls = list(polls)

    def assign(self, partitions: Any) -> None:
        pass

    def consume(self, count: int, timeout: float) -> list[_Message]:
        return self._polls.pop(0)


EOF = KafkaError._PARTITION_EOF


@pytest.mark.parametrize(
    "polls",
    [
        [[_Message(1)], [_Message(4, EOF)]],  # the last ones are markers of transactions
        [[_Message(1), _Message(7)]],  # they were compacted, and later ones have come
        [[], [_Message(0, KafkaError._ALL_BROKERS_DOWN)], [_Message(1), _Message(2, EOF)], [_Message(5, EOF)]],
    ],
)
def test_missing_offsets_are_not_waited_for(polls: Any) -> None:
    batches = list(messages_of(_Scripted(*polls), TP("t", 0), 0, 4, 100))
    assert [message.offset() for batch in batches for message in batch] == [1]


def test_a_broker_that_falls_silent_or_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_reader, "_SILENT_SECONDS", 0)
    with pytest.raises(SourceReadError, match="nothing of partition t-0 from offset 2 on"):
        list(messages_of(_Scripted([_Message(1)], []), TP("t", 0), 0, 4, 100))
    refused = [_Message(0, KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    with pytest.raises(SourceReadError, match="t-0 cannot be read from offset 0"):
        list(messages_of(_Scripted(refused), TP("t", 0), 0, 4, 100))


def test_one_consumer_reads_range_after_range(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each consumer makes connections of its own, and a topic may have hundreds of partitions."""
    for partition in range(4):
        topic.send(b"a", b"b", partition=partition)
    real, made = kafka_reader.consumer_of, []

    def consumer_of(*arguments: Any) -> Any:
        made.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(kafka_reader, "consumer_of", consumer_of)
    source = builder(topic).build()
    splits = source.create_enumerator(None).plan_epoch(1)[0]
    assert [read(source, split) for split in splits] == [["a", "b"]] * 4
    assert len(made) == 1
    pairs = zip(source.read(splits[0]), source.read(splits[1]), strict=True)  # at once
    assert [end for pair in pairs for _, end, *_ in pair] == [2, 2]
    assert len(made) == 2
    with pytest.raises(InputExpiredError):
        read(source, SourceSplit("gone", {**splits[0].properties, "end": 9}, 7))
    assert read(source, splits[2]) == ["a", "b"]


def test_sources_that_are_unpickled_for_each_epoch_leave_few_consumers(topic: Topic) -> None:
    """Python's collector comes late: after 100 epochs there were 100, with 400 threads and their connections."""
    topic.send(b"a")
    sources = [builder(topic).build() for _ in range(8)]
    (split,) = sources[0].create_enumerator(None).plan_epoch(1)[0]
    assert [read(source, split) for source in [*sources, *sources]] == [["a"]] * 16
    assert set(kafka_reader._IDLE) == set(sources[4:])


def test_values_keys_and_headers_as_columns(topic: Topic) -> None:
    kind = Types.ROW_NAMED(["n"], [Types.LONG()])
    topic.send(b'{"n": 1}', key=b"k", timestamp=5, headers=[("h", b"1"), ("h", None)])
    topic.send(None, key=b"k", timestamp=6)
    source = (
        builder(topic)
        .set_deserializer(
            KafkaRecordDeserializationSchema.columns(JsonRowDeserializationSchema(kind), SimpleStringSchema())
        )
        .build()
    )
    (split,) = source.create_enumerator(None).plan_epoch(1)[0]
    headers = [Row(key="h", value=b"1"), Row(key="h", value=None)]
    assert read(source, split) == [
        Row(topic=topic.name, partition=0, offset=0, timestamp=5, key="k", value=Row(n=1), headers=headers),
        Row(topic=topic.name, partition=0, offset=1, timestamp=6, key="k", value=None, headers=[]),
    ]
    values = builder(topic).set_value_only_deserializer(JsonRowDeserializationSchema(kind)).build()
    assert read(values, split) == [Row(n=1)]  # without the tombstone


def test_a_record_that_the_schema_does_not_take_is_named(topic: Topic) -> None:
    topic.send(b"a", b"\xff")
    source = builder(topic).build()
    (split,) = source.create_enumerator(None).plan_epoch(1)[0]
    with pytest.raises(SourceReadError, match=f"value of the record at offset 1 of partition {topic.name}-0"):
        read(source, split)


# --- programs ---------------------------------------------------------------------------------------------------------


class Late(ProcessFunction):
    """Tells records that are behind the watermark, with the watermark."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark() >= ctx.timestamp()


def test_the_watermark_is_the_least_over_the_partitions(topic: Topic) -> None:
    """One subtask reads two partitions one after the other, and no record of the second one is late."""
    for partition in (0, 1):
        for hour in range(3):
            topic.send(b"%d" % hour, partition=partition, timestamp=1000 + hour)
    env = environment()
    source = builder(topic).set_bounded(LATEST).set_max_records_per_epoch(4).build()
    stream = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "in").uid("in")
    (found,) = run_local(env, stream.process(Late()).uid("late"))
    assert sorted(found) == [(str(hour), 1000 + hour, False) for hour in range(3) for _ in (0, 1)]


def test_a_job_that_dies_reads_each_record_once(topic: Topic, tmp_path: Path) -> None:
    topic.send(*[b"%d" % n for n in range(5)])
    topic.send(*[b"%d" % n for n in range(5, 9)], partition=1)
    source = builder(topic).set_bounded(LATEST).set_max_records_per_epoch(4).build()
    found: list[Any] = []
    finished, attempts = False, 0
    while not finished:
        env = environment(2)
        graph = collect_graph(env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in"))
        attempts += 1
        with HarnessAttempt(graph, tmp_path) as attempt:
            if not (finished := attempt.finished):
                attempt.run_epoch()
                found += collected(attempt.graph, attempt.collected)
        topic.send(b"later")
    assert sorted(found) == [str(n) for n in range(9)]
    assert attempts == 4


# --- the builder ------------------------------------------------------------------------------------------------------


def test_what_cannot_work_is_refused_when_it_is_declared() -> None:
    def complete() -> KafkaSourceBuilder:
        return KafkaSource.builder().set_bootstrap_servers("h:1").set_value_only_deserializer(SimpleStringSchema())

    for change, message in [
        (lambda b: b, "one of set_topics"),
        (lambda b: b.set_topics("a").set_topic_pattern("b"), "one of set_topics"),
        (lambda b: b.set_topic_pattern("("), "is no pattern"),
        (lambda b: b.set_property("enable.auto.commit", "true"), "cannot be set"),
        (lambda b: b.set_property("group.id", "x"), r"set_group_id\(\)"),
        (lambda b: b.set_property("key.deserializer", "x"), "Java class"),
        (lambda b: b.set_property("auto.offset.reset", "x"), "earliest, latest or none"),
        (lambda b: b.set_properties({"partition.discovery.interval.ms": "x"}), "number of milliseconds"),
        (lambda b: b.set_property("commit.offsets.on.checkpoint", "x"), "true or false"),
        (lambda b: b.set_max_records_per_epoch(0), "at least 1"),
        (lambda b: b.set_max_bytes_per_epoch("1"), "whole number"),
        (lambda b: b.set_value_only_deserializer("x"), "DeserializationSchema"),
        (lambda b: b.set_topics("a").set_bounded(EARLIEST), "read nothing"),
        (lambda b: b.set_topics("a").set_bounded("x"), "KafkaOffsetsInitializer"),
        (lambda b: b.set_topics("a").set_starting_offsets(KafkaOffsetsInitializer.committed_offsets()), "group"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            change(complete()).build()
    with pytest.raises(ConfigurationError, match="set_bootstrap_servers"):
        KafkaSource.builder().build()
    with pytest.raises(ConfigurationError, match="set_value_only_deserializer"):
        KafkaSource.builder().set_bootstrap_servers("h:1").set_topics("a").build()


def test_properties_are_those_of_librdkafka(topic: Topic) -> None:
    source = builder(topic).set_property("no.such", "x").build()
    with pytest.raises(ConfigurationError, match=r'No such configuration property: "no.such".*names .* of librdkafka'):
        source.create_enumerator(None).plan_epoch(1)


def test_a_timestamp_as_the_start(topic: Topic) -> None:
    topic.send(b"a", timestamp=1000)
    topic.send(b"b", timestamp=2000)
    source = builder(topic).set_starting_offsets(KafkaOffsetsInitializer.timestamp(1500)).build()
    assert plan(source.create_enumerator(None)) == {0: (1, 2)}


@pytest.mark.spark
def test_from_kafka_to_kafka_on_spark(
    topic: Topic, kafka: str, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A running count of words, whose first attempt ends after one of two epochs."""
    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: get_session(spark_settings))
    target = Topic(kafka)
    topic.send(b"a", b"b", b"a")
    topic.send(b"b", b"a", partition=1)
    source = builder(topic).set_bounded(LATEST).set_max_records_per_epoch(3).build()
    counted = Types.ROW_NAMED(["word", "count"], [Types.STRING(), Types.LONG()])
    schema = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(target.name)
        .set_key_serialization_schema(SimpleStringSchema(), field="word")
        .set_value_serialization_schema(JsonRowSerializationSchema.builder().with_type_info(counted).build())
    )
    sink = KafkaSink.builder().set_bootstrap_servers(kafka).set_record_serializer(schema.build())
    sink.set_staging(str(tmp_path / "staging"))
    finished = False
    while not finished:
        env = environment(2)
        words = env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words")
        pairs = words.map(lambda word: Row(word, 1), counted).uid("pairs")
        pairs.key_by("word").sum("count").uid("counts").sink_to(sink.build()).uid("sink")
        config = JobConfig("job", StorageLocation(str(tmp_path / "job")))
        with JobAttempt(env.get_job_graph(), config, owner="test") as attempt:
            attempt.run_epoch()
            finished = attempt.finished
    found = [(message.key(), message.value()) for message in target.received()]
    assert sorted(found) == [
        *((b"a", b'{"word": "a", "count": %d}' % n) for n in (1, 2, 3)),
        *((b"b", b'{"word": "b", "count": %d}' % n) for n in (1, 2)),
    ]
