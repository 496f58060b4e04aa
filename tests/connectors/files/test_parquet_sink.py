import io
import json
import random
import threading
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.connectors.commit.staged_files import StagedFileCommitter
from dagster_flinkpy.connectors.commit.table_writer import TableWriter
from dagster_flinkpy.connectors.files.table_sinks import CsvSink, JsonLinesSink, ParquetSink
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext, WriterInitContext
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    PreconditionFailedError,
    SinkCommitError,
    StorageError,
)
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.committing import commit_requests
from tests.waiting import LIMIT

ROW = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
CONTEXT = WriterInitContext("job", "table", subtask=0, fencing_token=1, checkpoint_id=1, execution="e0")
COMMITTER = CommitterInitContext("job", "table", fencing_token=1)


@pytest.fixture(params=["local", "s3"])
def location(request, tmp_path):
    if request.param == "s3":
        return request.getfixturevalue("s3_location")
    return StorageLocation(str(tmp_path / "table"))


def rows(*numbers):
    return ROW.to_arrow([(n, str(n)) for n in numbers])


def stage(location, numbers, **context):
    """Writes one epoch of one subtask up to the barrier. The committables make a round trip through metadata."""
    context = replace(CONTEXT, **context)
    writer = ParquetSink(location).create_writer(context, ROW)
    if numbers:
        writer.write(rows(*numbers))
    committables = json.loads(json.dumps(writer.prepare_commit()))
    return [CommitRequest(context.checkpoint_id, context.subtask, c) for c in committables]


def committer(location):
    return ParquetSink(location).create_committer(COMMITTER)


def commit(location, requests, **options):
    """Commits as the driver does, and returns how many were committed before."""
    return commit_requests(committer(location), requests, "table", **options)


def visible(location):
    store = location.open()
    tables = [pq.read_table(io.BytesIO(store.get(info.key)[0])) for info in store.list()]
    return sorted(n for table in tables for n in table.column("n").to_pylist())


def uploads(location):
    return [upload.key for upload in location.open().list_uploads()]


def test_the_files_of_many_partitions_are_staged_beside_each_other(tmp_path, monkeypatch):
    """One after the other, 2,000 of them take minutes, because each waits for the store twice."""
    real, both = LocalObjectStore.create_upload, threading.Barrier(2)

    def create_upload(self, key):
        both.wait(LIMIT)
        return real(self, key)

    monkeypatch.setattr(LocalObjectStore, "create_upload", create_upload)
    sink = ParquetSink(StorageLocation(str(tmp_path)), partition_by=["s"])
    writer = sink.create_writer(CONTEXT, ROW)
    writer.write(rows(1, 2))
    assert [file["key"].partition("/")[0] for file in writer.prepare_commit()] == ["s=1", "s=2"]


def test_rows_are_seen_after_the_commit_and_not_before(location):
    requests = [*stage(location, [1, 2], subtask=0), *stage(location, [3], subtask=1)]
    assert visible(location) == []
    assert [request.committable["rows"] for request in requests] == [2, 1]
    assert commit(location, requests) == 0
    assert visible(location) == [1, 2, 3]
    assert uploads(location) == []


def test_committing_again_changes_nothing(location):
    requests = [*stage(location, [1, 2]), *stage(location, [3], checkpoint_id=2)]
    commit(location, requests[:1])  # then the driver crashes
    assert commit(location, requests) == 1
    assert commit(location, requests) == 2
    assert visible(location) == [1, 2, 3]


def test_lingering_uploads_are_aborted_and_kept_ones_commit(location):
    kept = stage(location, [1])
    stage(location, [2], checkpoint_id=2)  # its checkpoint never completed
    stage(location, [3], checkpoint_id=2, execution="e1")  # a speculative copy
    stage(location, [4], uid="table-2")
    stage(location, [5], job_id="job.table")
    assert committer(location).abort_lingering(kept) == 2
    assert len(uploads(location)) == 3
    assert commit(location, kept) == 0
    assert visible(location) == [1]
    assert committer(location).abort_lingering([]) == 0


def test_a_fenced_attempt_does_not_abort_what_a_newer_one_stages(location):
    newer = stage(location, [1], fencing_token=COMMITTER.fencing_token + 1)
    stage(location, [2])
    assert committer(location).abort_lingering([]) == 1
    assert uploads(location) == [newer[0].committable["key"]]


def test_lingering_uploads_of_a_partition_are_found(location):
    stage(location, [1], partition="2013-02-01")
    assert committer(location).abort_lingering([]) == 1
    assert uploads(location) == []


def test_an_upload_of_somebody_else_with_a_like_name_is_left_alone(location):
    location.open().create_upload("job.table.parquet")
    stage(location, [1])
    assert committer(location).abort_lingering([]) == 1
    assert uploads(location) == ["job.table.parquet"]


def test_files_that_an_earlier_release_named_are_still_ours(location):
    store = location.open()
    staged = "a%2Eb.t%2Fu.0000000009.00000.1-e0.parquet"
    store.create_upload(staged)
    store.put("partition=p/a%2Eb.t%2Fu.0000000003.00000.1-e0.parquet", b"rows")
    ours = ParquetSink(location).create_committer(CommitterInitContext("a.b", "t/u", 2))
    others = ParquetSink(location).create_committer(CommitterInitContext("a", "b.t/u", 2))
    assert (others.last_committed(), others.lingering([])) == (None, 0)
    assert (ours.last_committed(), ours.lingering([])) == (3, 1)
    assert ours.replace_partition("p", 4) == 1
    assert ours.abort_lingering([]) == 1
    assert uploads(location) == []


@pytest.mark.parametrize(("mine", "other"), [("a.b", "a~b"), ("a~b", "a.b"), ("a.b", "a%2Eb"), ("a%2Eb", "a.b")])
def test_uids_that_are_written_alike(location, mine, other):
    stage(location, [1], uid=other)
    committer = ParquetSink(location).create_committer(CommitterInitContext("job", mine, 2))
    assert committer.abort_lingering([]) == 0
    assert len(uploads(location)) == 1


def test_lost_upload_is_an_error_that_names_the_file_and_the_checkpoint(location):
    lost = stage(location, [1, 2], checkpoint_id=7)
    key = lost[0].committable["key"]
    committer(location).abort_lingering([])
    with pytest.raises(CommittableLostError, match=rf"{key} of checkpoint 7.*2 rows are lost"):
        commit(location, lost)
    assert visible(location) == []


def test_a_lost_file_stops_later_checkpoints_but_not_its_neighbours(location):
    [lost, neighbour] = [*stage(location, [1]), *stage(location, [2], subtask=1)]
    later = stage(location, [3], checkpoint_id=2)
    committer(location).abort_lingering([neighbour, *later])
    with pytest.raises(SinkCommitError, match="lost"):
        commit(location, [*later, lost, neighbour])
    assert visible(location) == [2]


def test_another_object_of_that_name_is_an_error(location):
    requests = stage(location, [1])
    location.open().put(requests[0].committable["key"], b"something else")
    with pytest.raises(SinkCommitError, match="another object has this name"):
        commit(location, requests)
    assert uploads(location) == [requests[0].committable["key"]]


def test_a_file_that_is_there_byte_by_byte_counts_as_committed(location):
    """This happens after a commit to an encrypted bucket, where ETags do not identify the content of an object."""
    requests = stage(location, [1])
    commit(location, requests)
    store, key = location.open(), requests[0].committable["key"]
    data, _ = store.get(key)
    store.put(key, data)  # on S3 this changes the ETag
    assert commit(location, requests) == 1


def test_abort_drops_what_was_written(location):
    writer = TableWriter(ParquetSink(location), CONTEXT, ROW, part_bytes=100)
    writer.write(rows(*range(1000)))
    writer.prepare_commit()
    assert uploads(location)
    writer.abort()
    assert uploads(location) == []


def test_no_records_no_file(location):
    assert stage(location, []) == []
    assert uploads(location) == []


def test_large_output_goes_out_in_parts_and_row_groups(location):
    writer = TableWriter(ParquetSink(location), CONTEXT, ROW, part_bytes=5 << 20)
    numbers = pa.array(range(400_000), pa.int64())
    incompressible = random.Random(1)
    strings = pa.array([f"{incompressible.getrandbits(160):040x}" for _ in range(400_000)])
    column = pa.StructArray.from_arrays([numbers, strings], fields=list(ROW.arrow_type))
    for start in range(0, len(column), 8192):
        writer.write(column.slice(start, 8192))
    [committable] = writer.prepare_commit()
    assert len(committable["parts"]) > 1
    commit(location, [CommitRequest(1, 0, committable)])
    data, _ = location.open().get(committable["key"])
    file = pq.ParquetFile(io.BytesIO(data))
    assert len(data) == committable["bytes"]
    assert 4 <= file.num_row_groups <= 8
    assert file.read().column("n").to_pylist() == list(range(400_000))


def test_name_says_who_wrote_it_and_when(tmp_path):
    location = StorageLocation(str(tmp_path))
    [request] = stage(location, [1], job_id="a.b", uid="c/d", subtask=3, checkpoint_id=12)
    assert request.committable["key"] == "a~b.c%2Fd.0000000012.00003.1-e0.parquet"
    [request] = stage(location, [1], partition="2013-02-01|x/y")
    assert request.committable["key"] == "partition=2013-02-01%7Cx%2Fy/job.table.0000000001.00000.1-e0.parquet"


@pytest.mark.parametrize(
    ("type_info", "values", "expected"),
    [
        (Types.LONG(), [1, None], {"value": [1, None]}),
        (Types.TUPLE([Types.LONG(), Types.STRING()]), [(1, "a"), None], {"f0": [1, None], "f1": ["a", None]}),
        (Types.LIST(Types.LONG()), [[1, 2], []], {"value": [[1, 2], []]}),
    ],
)
def test_every_type_has_columns(tmp_path, type_info, values, expected):
    location = StorageLocation(str(tmp_path))
    writer = ParquetSink(location).create_writer(CONTEXT, type_info)
    writer.write(type_info.to_arrow(values))
    commit(location, [CommitRequest(1, 0, c) for c in writer.prepare_commit()])
    [info] = location.open().list()
    assert pq.read_table(tmp_path / info.key).to_pydict() == expected


@pytest.mark.parametrize("type_info", [None, Types.PICKLED_BYTE_ARRAY()])
def test_records_without_a_type_are_refused(tmp_path, type_info):
    with pytest.raises(ConfigurationError, match="declare output_type="):
        ParquetSink(str(tmp_path)).validate(type_info)


@pytest.mark.parametrize("change", [{"key": "../x.parquet"}, {"parts": None}, {"rows": "many"}])
def test_damaged_committable_is_refused(tmp_path, change):
    location = StorageLocation(str(tmp_path / "table"))
    [request] = stage(location, [1])
    damaged = replace(request, committable={**request.committable, **change})
    with pytest.raises(SinkCommitError, match="not a committable"):
        commit(location, [damaged])
    assert visible(location) == []


@pytest.mark.parametrize("change", [{"key": "../x.parquet"}, {"upload_id": None}, {"key": ["x"]}])
def test_nothing_is_aborted_if_a_committable_does_not_tell_its_upload(location, change):
    [request] = stage(location, [1])
    damaged = replace(request, committable={**request.committable, **change})
    for look in (committer(location).lingering, committer(location).abort_lingering):
        with pytest.raises(SinkCommitError, match="not a committable"):
            look([damaged])
    commit(location, [request])
    assert visible(location) == [1]


class Flaky(LocalObjectStore):
    """Fails the first completions of uploads, the last one of them only after it took effect."""

    def __init__(self, directory, failures):
        super().__init__(directory)
        self.failures = failures

    def complete_upload(self, *args, **kwargs):
        self.failures -= 1
        if self.failures == 0:
            super().complete_upload(*args, **kwargs)
        if self.failures >= 0:
            raise StorageError("503 Slow Down")
        return super().complete_upload(*args, **kwargs)


def test_commit_is_tried_again_with_growing_pauses(tmp_path):
    requests = stage(StorageLocation(str(tmp_path)), [1])
    waited = []
    assert (
        commit_requests(StagedFileCommitter(Flaky(tmp_path, 4), COMMITTER), requests, "table", wait=waited.append) == 0
    )
    assert waited == [0.1, 0.2, 0.4, 0.8]
    assert visible(StorageLocation(str(tmp_path))) == [1]


class Contended(LocalObjectStore):
    """Two attempts complete an upload at the same time: this one is refused, then the other one succeeds."""

    refused = False

    def complete_upload(self, *args, **kwargs):
        if not self.refused:
            self.refused = True
            raise PreconditionFailedError("409 ConditionalRequestConflict")
        return super().complete_upload(*args, **kwargs)


def test_commit_is_tried_again_when_another_attempt_completes_the_upload(tmp_path):
    requests = stage(StorageLocation(str(tmp_path)), [1])
    waited = []
    assert (
        commit_requests(StagedFileCommitter(Contended(tmp_path), COMMITTER), requests, "table", wait=waited.append) == 0
    )
    assert waited == [0.1]
    assert visible(StorageLocation(str(tmp_path))) == [1]


class OneLost(LocalObjectStore):
    """Cannot store the second of two files."""

    def complete_upload(self, key, *args, **kwargs):
        if ".00001." in key:
            raise StorageError("503 Slow Down")
        return super().complete_upload(key, *args, **kwargs)


def test_what_can_be_tried_again_is_told_before_what_is_lost(tmp_path):
    location = StorageLocation(str(tmp_path))
    lost, waiting = [*stage(location, [1]), *stage(location, [2], subtask=1)]
    committer(location).abort_lingering([waiting])
    with pytest.raises(SinkCommitError, match="503 Slow Down"):
        commit_requests(
            StagedFileCommitter(OneLost(tmp_path), COMMITTER), [lost, waiting], "table", wait=lambda _: None
        )


def test_commit_gives_up_after_ten_retries_and_can_be_repeated(tmp_path):
    requests = stage(StorageLocation(str(tmp_path)), [1], checkpoint_id=5)
    waited = []
    with pytest.raises(SinkCommitError, match=r"checkpoint 5 .*after 11 tries: .*503 Slow Down"):
        commit_requests(StagedFileCommitter(Flaky(tmp_path, 99), COMMITTER), requests, "table", wait=waited.append)
    assert len(waited) == 10
    assert commit(StorageLocation(str(tmp_path)), requests) == 0


@pytest.mark.parametrize("sink", [ParquetSink, CsvSink, JsonLinesSink])
def test_files_are_not_written_into_a_table_of_delta_lake(location, sink):
    """Who reads the table would not see them, and its VACUUM would delete them."""
    sink(location).create_committer(COMMITTER)
    location.open().put("_delta_log/00000000000000000000.json", b"{}")
    with pytest.raises(ConfigurationError, match=r"into a Delta Lake table: .* Use a DeltaSink, or another folder"):
        sink(location).create_committer(COMMITTER)
