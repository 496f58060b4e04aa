"""The Kinesis source: against MiniStack, and against shards in memory that are split, merged and trimmed."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.serialization import ByteArraySchema, SimpleStringSchema
from dagster_flinkpy.connectors import KinesisSource
from dagster_flinkpy.connectors.kinesis import client as kinesis_client
from dagster_flinkpy.connectors.kinesis.client import KinesisEnumerator
from dagster_flinkpy.datastream.connectors.base import SourceLag, SourceSplit
from dagster_flinkpy.datastream.formats.json import JsonRowDeserializationSchema
from dagster_flinkpy.errors import ConfigurationError, InputChangedError, InputExpiredError, SourceReadError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.testing import run_local
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import environment
from tests.storage.keys import only_keys, write_keys

HOUR = 3_600_000


@dataclass
class _Shard:
    first: int
    """The sequence number with which it begins."""
    parents: tuple[str, ...] = ()
    records: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Sequence number, time of arrival, data."""
    closed: bool = False


def client_error(code: str, message: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


@dataclass
class FakeKinesis:
    """A stream of one shard, with a clock, that keeps records for a day."""

    shards: dict[str, _Shard] = field(default_factory=lambda: {"shardId-0": _Shard(10**55)})
    now: int = 1_000_000 * HOUR
    count: int = 10**55
    page: int = 2
    deleted: bool = False
    tells_time: bool = False
    refused: ClientError | None = None
    """What each request is answered, if it is not None."""

    def make_anew(self, shards: int = 1) -> None:
        """Deletes the stream, and makes one of its name. Its sequence numbers are greater."""
        self.deleted, self.count = False, self.count + 10**6
        self.shards = {f"shardId-{number}": _Shard(self.count) for number in range(shards)}

    def put(self, *values: str, shard: int = 0) -> None:
        for value in values:
            self.count, self.now = self.count + 1, self.now + 1
            self.shards[f"shardId-{shard}"].records.append((self.count, self.now, value.encode()))

    def split(self, *old: int, into: int) -> None:
        """Closes shards, and makes others of them."""
        for name in old:
            self.shards[f"shardId-{name}"].closed = True
        for _ in range(into):
            self.shards[f"shardId-{len(self.shards)}"] = _Shard(self.count, tuple(f"shardId-{name}" for name in old))

    def pass_hours(self, hours: int) -> None:
        """Lets time pass; the retention is 24 hours."""
        self.now += hours * HOUR
        for name, shard in list(self.shards.items()):
            shard.records = [record for record in shard.records if record[1] >= self.now - 24 * HOUR]
            if shard.closed and not shard.records:
                del self.shards[name]

    # --- what boto3 has ---------------------------------------------------------------------------------------------

    def _check(self, operation: str) -> None:
        if self.deleted:
            raise client_error("ResourceNotFoundException", "Stream stream not found", operation)
        if self.refused is not None:
            raise self.refused

    def list_shards(self, **request: Any) -> Any:
        self._check("ListShards")
        names = sorted(self.shards)
        start = int(request.get("NextToken", 0))
        answer: dict[str, Any] = {"Shards": []}
        for name in names[start : start + 2]:
            parents = dict(zip(("ParentShardId", "AdjacentParentShardId"), self.shards[name].parents, strict=False))
            numbers = {"StartingSequenceNumber": str(self.shards[name].first)}
            answer["Shards"].append({"ShardId": name, "SequenceNumberRange": numbers, **parents})
        if self.tells_time:
            answer["ResponseMetadata"] = {"HTTPHeaders": {"date": formatdate(self.now // 1000, usegmt=True)}}
        return answer | ({"NextToken": str(start + 2)} if start + 2 < len(names) else {})

    def describe_stream_summary(self, **request: Any) -> Any:
        return {"StreamDescriptionSummary": {"RetentionPeriodHours": 24}}

    def get_shard_iterator(self, **request: Any) -> Any:
        self._check("GetShardIterator")
        if request["ShardId"] not in self.shards:
            raise client_error("ResourceNotFoundException", f"Shard {request['ShardId']} not found", "GetShardIterator")
        if 0 < int(request.get("StartingSequenceNumber", 0)) < self.shards[request["ShardId"]].first:
            message = "StartingSequenceNumber is invalid because it did not come from this stream"
            raise client_error("InvalidArgumentException", message, "GetShardIterator")
        after, at = int(request.get("StartingSequenceNumber", 0)), request.get("Timestamp")
        at_ms = 0 if at is None else round(at.timestamp() * 1000)
        records = self.shards[request["ShardId"]].records
        first = next((each[0] for each in records if each[0] > after and each[1] >= at_ms), self.count + 1)
        return {"ShardIterator": (request["ShardId"], first)}

    def get_records(self, ShardIterator: Any, Limit: int) -> Any:
        self._check("GetRecords")
        name, first = ShardIterator
        shard = self.shards[name]
        there = [each for each in shard.records if each[0] >= first]
        found, left = there[: self.page], there[self.page :]
        following = found[-1][0] + 1 if found else first
        return {
            "Records": [
                {
                    "SequenceNumber": str(number),
                    "ApproximateArrivalTimestamp": datetime.fromtimestamp(at / 1000, timezone.utc),
                    "Data": data,
                }
                for number, at, data in found
            ],
            "MillisBehindLatest": self.now - left[0][1] + 1 if left else 0,
            "NextShardIterator": None if shard.closed and not left else (name, following),
        }


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> FakeKinesis:
    stream = FakeKinesis()
    monkeypatch.setattr(kinesis_client, "open_client", lambda source: stream)
    return stream


def source_of(**options: Any) -> KinesisSource:
    return KinesisSource("stream", SimpleStringSchema(), **{"bounded": False, **options})


class Job:
    """Plans and reads epochs of a source."""

    def __init__(self, stream: FakeKinesis, **options: Any) -> None:
        self.stream, self.source = stream, source_of(**options)
        self.enumerator = KinesisEnumerator(self.source, None, now=lambda: stream.now)

    def restore(self, **options: Any) -> None:
        state = json.loads(json.dumps(self.enumerator.snapshot_state()))
        self.source = source_of(**options) if options else self.source
        self.enumerator = KinesisEnumerator(self.source, state, now=lambda: self.stream.now)

    def plan(self) -> list[SourceSplit]:
        return self.enumerator.plan_epoch(1)[0]

    def read(self, splits: list[SourceSplit]) -> list[str]:
        return [value for s in splits for column, *_ in self.source.read(s) for value in column.to_pylist()]

    def epoch(self) -> list[str]:
        splits = self.plan()
        found = self.read(splits)
        self.enumerator.on_epoch_read([split.advanced(1, finished=True) for split in splits])
        return found


def test_an_epoch_reads_what_has_arrived(stream: FakeKinesis) -> None:
    job = Job(stream)
    stream.put("a", "b", "c")
    assert (job.epoch(), job.epoch()) == (["a", "b", "c"], [])
    stream.put("d")
    job.restore()
    assert job.epoch() == ["d"]
    assert not job.enumerator.exhausted


def test_it_says_whether_there_is_input(stream: FakeKinesis) -> None:
    job = Job(stream)
    assert job.enumerator.has_input(1) is None, "nobody knows where it begins"

    def has_input() -> bool | None:
        job.restore()
        return job.enumerator.has_input(1)

    assert (job.epoch(), has_input()) == ([], False)
    stream.put("a")
    assert (has_input(), job.epoch(), has_input()) == (True, ["a"], False)
    stream.pass_hours(13)
    assert has_input(), "it must not be forgotten up to where it was read"
    assert (job.epoch(), has_input()) == ([], False)


def test_a_repeated_epoch_reads_the_same(stream: FakeKinesis) -> None:
    job = Job(stream)
    stream.put("a", "b", "c")
    splits = job.plan()
    stream.put("d")
    job.restore()
    assert job.plan() == splits
    assert job.read(splits) == ["a", "b", "c"]
    assert job.read([splits[0].advanced(2, finished=False)]) == ["c"]


def test_children_are_read_after_their_parents(stream: FakeKinesis) -> None:
    job = Job(stream)
    stream.put("a", "b", "c")
    stream.split(0, into=2)
    stream.put("d", shard=1)
    stream.put("e", shard=2)
    stream.split(1, 2, into=1)
    stream.put("f", shard=3)
    assert job.epoch() == ["a", "b", "c"]
    job.restore()
    assert [job.epoch() for _ in range(3)] == [["d", "e"], ["f"], []]


def test_a_child_waits_until_its_parent_is_read_not_only_planned(stream: FakeKinesis) -> None:
    job = Job(stream)
    stream.put("a")
    stream.split(0, into=1)
    stream.put("b", shard=1)
    splits = job.plan()
    assert [split.properties["shard"] for split in job.plan()] == ["shardId-0"]
    job.enumerator.on_epoch_read([split.advanced(1, finished=True) for split in splits])
    assert job.epoch() == ["b"]


def test_limits_of_an_epoch_and_the_lag(stream: FakeKinesis) -> None:
    job = Job(stream, max_records_per_epoch=2)
    stream.put("a", "b", "c")
    assert job.epoch() == ["a", "b"]
    assert job.enumerator.lag() == SourceLag(milliseconds=1)
    assert job.epoch() == ["c"]
    assert job.enumerator.lag() == SourceLag(milliseconds=0)
    job = Job(stream, max_bytes_per_epoch=3)
    stream.put("dddd", "e", "ee", "f")
    assert [job.epoch() for _ in range(4)] == [["a", "b", "c"], ["dddd"], ["e", "ee"], ["f"]]


def test_where_a_job_begins(stream: FakeKinesis) -> None:
    stream.put("a")
    stream.now += 10
    at = datetime.fromtimestamp(stream.now / 1000, timezone.utc)
    stream.put("b")
    stream.now += 10
    jobs = [Job(stream, starting=starting) for starting in ("trim_horizon", at, "latest")]
    assert [job.epoch() for job in jobs] == [["a", "b"], ["b"], []]
    stream.put("c")
    stream.split(0, into=1)
    stream.put("d", shard=1)
    assert [job.epoch() + job.epoch() for job in jobs] == [["c", "d"]] * 3


def test_a_bounded_source_reads_all_that_has_arrived_if_the_clock_of_the_driver_is_behind(stream: FakeKinesis) -> None:
    stream.tells_time = True
    stream.put("a", "b")
    enumerator = KinesisEnumerator(source_of(bounded=True), None, now=lambda: stream.now - 60_000)
    [[split]] = enumerator.plan_epoch(1)
    assert (split.properties["records"], enumerator.exhausted) == (2, True)


def test_a_bounded_source_ends_with_what_has_arrived(stream: FakeKinesis) -> None:
    job = Job(stream, bounded=True, max_records_per_epoch=2)
    stream.put("a", "b", "c")
    stream.split(0, into=1)
    stream.put("d", shard=1)
    assert (job.epoch(), job.enumerator.exhausted) == (["a", "b"], False)
    stream.put("late", shard=1)
    job.restore()
    assert (job.epoch(), job.enumerator.exhausted) == (["c"], False)
    assert (job.epoch(), job.enumerator.exhausted) == (["d"], True)
    assert job.epoch() == []


def test_an_input_that_was_read_amid_its_last_range_has_not_ended(stream: FakeKinesis) -> None:
    job = Job(stream, bounded=True)
    stream.put("a", "b", "c")
    (split,) = job.plan()
    assert job.enumerator.exhausted
    job.enumerator.on_epoch_read([split.advanced(1, finished=False)])
    assert not job.enumerator.exhausted
    job.restore()
    assert not job.enumerator.exhausted
    assert (job.epoch(), job.enumerator.exhausted) == (["b", "c"], True)


def test_records_that_may_be_gone_are_an_error_unless_the_source_goes_on(stream: FakeKinesis) -> None:
    job = Job(stream)
    stream.put("a")
    job.epoch()
    stream.put("lost")
    stream.pass_hours(25)
    stream.put("b")
    with pytest.raises(
        InputExpiredError, match=r"shardId-0 is read up to what arrived before .* may be gone.*trim_hor"
    ):
        job.epoch()
    job.restore(after_expiry="trim_horizon")
    assert (job.epoch(), job.epoch()) == (["b"], [])


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("bounded", [False, True])
def test_the_rest_of_a_range_that_is_gone_is_an_error_unless_the_source_goes_on(
    stream: FakeKinesis, splits: bool, bounded: bool
) -> None:
    """Nothing but an empty state helped, whatever the source said."""
    job = Job(stream, bounded=bounded)
    stream.put("a", "lost")
    (split,) = job.plan()
    job.enumerator.on_epoch_read([split.advanced(1, finished=False)])
    if splits:
        stream.split(0, into=1)
    stream.pass_hours(25)
    stream.put("b", shard=int(splits))
    for _ in range(2):
        with pytest.raises(InputExpiredError, match=r"no longer has the rest .* after_expiry='trim_horizon'"):
            job.plan()
        job.restore()
    job.restore(after_expiry="trim_horizon", bounded=bounded)
    assert (job.epoch(), job.epoch()) == ([] if bounded else ["b"], [])


@pytest.mark.parametrize("read", [0, 1, 2, 3])
def test_a_range_whose_first_records_are_gone_is_read_on(
    stream: FakeKinesis, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all of these were read, nothing is missing; but the job tried again for ever, whatever the source said."""
    job = Job(stream)
    stream.put("a", "b")
    stream.pass_hours(20)
    stream.put("c", "d")
    (split,) = job.plan()
    job.enumerator.on_epoch_read([split.advanced(read, finished=False)])
    stream.pass_hours(5)
    stream.put("e")
    job.restore()
    if read < 2:
        with pytest.raises(InputExpiredError, match=r"no longer has the rest .* after_expiry='trim_horizon'"):
            job.plan()
        job.restore(after_expiry="trim_horizon")
    rest = job.plan()
    with monkeypatch.context() as patch:
        patch.setattr(stream, "get_records", None)  # a shard answers five requests a second
        assert job.plan() == rest, "it is counted once"
    assert job.epoch() == ["c", "d"][max(read - 2, 0) :]
    assert job.epoch() == ["e"]


def test_a_shard_that_is_gone_before_it_was_read(stream: FakeKinesis) -> None:
    job = Job(stream)
    stream.put("a")
    job.epoch()
    stream.put("lost")
    stream.split(0, into=1)
    stream.pass_hours(25)
    stream.put("b", shard=1) if "shardId-1" in stream.shards else None
    with pytest.raises(InputExpiredError, match="shardId-0 no longer exists, and was not read to its end"):
        job.epoch()
    job.restore(after_expiry="trim_horizon")
    assert job.epoch() == ["b"]


@pytest.mark.parametrize("code", ["ExpiredIteratorException", "InvalidArgumentException"])
def test_an_iterator_that_expired_is_replaced_by_its_code_and_not_its_words(
    stream: FakeKinesis, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    real, expires = stream.get_records, [True]

    def get_records(**request: Any) -> Any:
        if expires:
            expires.clear()
            raise ClientError({"Error": {"Code": code, "Message": "not ExpiredIterator, or so"}}, "GetRecords")
        return real(**request)

    monkeypatch.setattr(stream, "get_records", get_records)
    stream.put("a")
    pages = kinesis_client.KinesisStream(source_of()).pages("shardId-0", kinesis_client.Position())
    if code == "ExpiredIteratorException":
        assert len(next(pages).records) == 1
    else:
        with pytest.raises(SourceReadError, match="not ExpiredIterator"):
            next(pages)


@pytest.mark.parametrize("options", [{}, {"after_expiry": "trim_horizon"}], ids=["fail", "trim_horizon"])
def test_a_stream_that_was_made_anew_is_refused(stream: FakeKinesis, options: dict[str, Any]) -> None:
    job = Job(stream, **options)
    stream.put("a")
    stream.split(0, into=2)
    assert (job.epoch(), job.epoch()) == (["a"], [])  # nothing of the new shards is read, so they have no position
    stream.make_anew(3)
    stream.put("b")
    job.restore()
    for _ in range(2):
        with pytest.raises(InputChangedError, match=r"shard shardId-0 .* was made anew"):
            job.plan()


def test_a_position_without_the_beginning_of_its_shard_takes_it_over(stream: FakeKinesis) -> None:
    job = Job(stream)
    stream.put("a")
    assert job.epoch() == ["a"]
    state = json.loads(json.dumps(job.enumerator.snapshot_state()))
    del state["shards"]["shardId-0"]["begins"]
    job.enumerator = KinesisEnumerator(job.source, state, now=lambda: stream.now)
    stream.put("b")
    assert job.epoch() == ["b"]
    stream.make_anew()
    with pytest.raises(InputChangedError):
        job.plan()


def test_a_quiet_job_within_the_retention_loses_nothing(stream: FakeKinesis) -> None:
    job = Job(stream)
    for _ in range(3):
        stream.pass_hours(20)
        assert job.epoch() == []
    stream.split(0, into=1)
    job.epoch()
    stream.pass_hours(20)
    stream.put("a", shard=1)
    assert job.epoch() == ["a"]


def test_records_that_expire_after_the_plan_are_an_error(stream: FakeKinesis) -> None:
    job = Job(stream)
    stream.put("a", "b", "c")
    splits = job.plan()
    first = stream.shards["shardId-0"].records[0]
    stream.shards["shardId-0"].records.remove(first)
    with pytest.raises(InputExpiredError, match=r"has 2 records .* but had 3"):
        job.read(splits)
    stream.shards["shardId-0"].records.clear()
    with pytest.raises(InputExpiredError, match="no longer has record"):
        job.read(splits)


def test_a_record_that_the_schema_does_not_take_is_named(stream: FakeKinesis) -> None:
    stream.put("{}", "x")
    source = KinesisSource("stream", JsonRowDeserializationSchema(Types.ROW_NAMED(["n"], [Types.LONG()])))
    (splits,) = KinesisEnumerator(source, None, now=lambda: stream.now).plan_epoch(1)
    with pytest.raises(SourceReadError, match=rf"record {stream.count} of shard shardId-0 cannot be read"):
        list(source.read(splits[0]))


@pytest.mark.parametrize("lenient", [True, False])
def test_aggregated_records_are_refused_whatever_the_schema_takes(stream: FakeKinesis, lenient: bool) -> None:
    """Schemas that take anything made one record of them, those that skip what they cannot read none."""
    row = JsonRowDeserializationSchema.builder().type_info(Types.ROW_NAMED(["n"], [Types.LONG()]))
    source = KinesisSource("stream", row.ignore_parse_errors().build() if lenient else ByteArraySchema())
    body = b'\x0a\x01k\x1a\x0b\x08\x00\x1a\x07{"n":1}'  # protobuf: a table of keys, and a record
    stream.put("{}", "")
    number, time, _ = stream.shards["shardId-0"].records.pop()
    data = b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body).digest()
    stream.shards["shardId-0"].records.append((number, time, data))
    (splits,) = KinesisEnumerator(source, None, now=lambda: stream.now).plan_epoch(1)
    with pytest.raises(SourceReadError, match=rf"record {number} of shard shardId-0 .* AggregationEnabled"):
        list(source.read(splits[0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": ""}, "not empty"),
        ({"schema": "text"}, "DeserializationSchema"),
        ({"starting": "now"}, "must be a time or one of"),
        ({"starting": datetime(2026, 1, 1)}, "needs a time zone"),
        ({"after_expiry": "latest"}, "must be one of"),
        ({"max_records_per_epoch": 0}, "at least 1"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        KinesisSource(**{"stream": "s", "schema": SimpleStringSchema(), **options})


# --- MiniStack --------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(ministack: StorageLocation, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    assert ministack.endpoint_url is not None
    return ministack.endpoint_url


def _real_stream(server: str, shards: int) -> tuple[KinesisSource, Callable[..., None]]:
    name = f"s{uuid.uuid4().hex[:10]}"
    source = KinesisSource(name, SimpleStringSchema(), region="us-east-1", endpoint_url=server, max_records_per_epoch=4)
    client = kinesis_client.open_client(source)
    client.create_stream(StreamName=name, ShardCount=shards)

    def put(*values: str) -> None:
        records = [{"Data": value.encode(), "PartitionKey": value} for value in values]
        client.put_records(StreamName=name, Records=records)

    return source, put


def test_a_job_that_dies_reads_each_record_once(server: str, tmp_path: Path) -> None:
    source, put = _real_stream(server, 2)
    values = [str(n) for n in range(10)]
    put(*values)
    found: list[Any] = []
    finished = False
    while not finished:
        env = environment(2)
        graph = collect_graph(env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in"))
        with HarnessAttempt(graph, tmp_path) as attempt:
            if not (finished := attempt.finished):
                attempt.run_epoch()
                found += collected(attempt.graph, attempt.collected)
    assert sorted(found) == values


def test_records_have_the_times_of_their_arrival(server: str) -> None:
    source, put = _real_stream(server, 1)
    put("a", "b")
    env = environment()
    stream = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "in").uid("in")
    (found,) = run_local(env, stream)
    assert found == ["a", "b"]


def test_the_next_attempt_has_the_keys_that_a_file_has_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_keys(tmp_path / "credentials", monkeypatch)
    source = KinesisSource("s", SimpleStringSchema(), region="us-east-1")
    for key in ("first", "second"):
        write_keys(tmp_path / "credentials", key)
        assert kinesis_client.open_client(source)._request_signer._credentials.access_key == key


def test_a_stream_that_does_not_exist_is_named(server: str) -> None:
    source = KinesisSource("no-such-stream", SimpleStringSchema(), region="us-east-1", endpoint_url=server)
    with pytest.raises(SourceReadError, match=r"'no-such-stream': .*ResourceNotFound"):
        source.create_enumerator(None).plan_epoch(1)
