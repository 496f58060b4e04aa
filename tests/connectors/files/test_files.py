from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone, tzinfo
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_flinkpy.common import Duration, Encoder, Types
from dagster_flinkpy.connectors.commit.staged_files import file_name, partition_folder
from dagster_flinkpy.connectors.files import file_sink, text_reader
from dagster_flinkpy.datastream.connectors.base import CommitRequest, Committer, CommitterInitContext, WriterInitContext
from dagster_flinkpy.datastream.connectors.file_system import (
    BucketAssigner,
    FileSink,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)
from dagster_flinkpy.errors import ConfigurationError, InputChangedError, SourceReadError
from dagster_flinkpy.runtime.master.commits.commit_retries import commit_requests

FORMAT = StreamFormat.text_line_format()


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


def read_epoch(source: FileSource, enumerator, parallelism: int = 1) -> list[str]:
    lines = []
    for share in enumerator.plan_epoch(parallelism):
        read = []
        for split in share:
            for column, offset in source.read(split):
                lines += column.to_pylist()
                split = split.advanced(offset, finished=False)
            read.append(split.advanced(split.offset, finished=True))
        enumerator.on_epoch_read(read)
    return lines


def test_all_line_ends_are_known_and_a_last_line_needs_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("ä\r\nb\rc\n\nd".encode())
    source = FileSource.for_record_stream_format(FORMAT, str(tmp_path / "a")).build()
    enumerator = source.create_enumerator(None)
    assert read_epoch(source, enumerator) == ["ä", "b", "c", "", "d"]
    assert enumerator.exhausted


def test_a_split_is_read_on_from_an_offset(tmp_path: Path) -> None:
    write(tmp_path, a="\n".join(map(str, range(20_000))))
    source = FileSource.for_record_stream_format(FORMAT, str(tmp_path)).build()
    ((split,),) = source.create_enumerator(None).plan_epoch(1)
    begin = len("\n".join(map(str, range(9_000)))) + 1
    batches = list(source.read(split.advanced(begin, finished=False)))
    assert [line for column, _ in batches for line in column.to_pylist()] == [str(i) for i in range(9_000, 20_000)]
    assert batches[-1][1] == (tmp_path / "a").stat().st_size


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_small_file_is_looked_up_once_when_it_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look is a request to the store, which takes as long as the one for the content."""
    content = b"1\n2\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    source = FileSource.for_record_stream_format(FORMAT, str(tmp_path)).build()
    ((split,),) = source.create_enumerator(None).plan_epoch(1)
    looked, check = [], text_reader.check_unchanged
    monkeypatch.setattr(text_reader, "check_unchanged", lambda *file: looked.append(file) or check(*file))
    assert [line for column, _ in source.read(split) for line in column.to_pylist()] == ["1", "2"]
    assert len(looked) == 1
    (tmp_path / name).unlink()
    with pytest.raises(InputChangedError, match="it was deleted after it was planned"):
        list(source.read(split))


def test_folders_and_files_are_read_and_hidden_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    write(tmp_path / "in", a="1", b="2", _temporary="no", **{".hidden": "no"})
    write(tmp_path / "in" / "deep", c="3")
    write(tmp_path, other="4")
    source = FileSource.for_record_stream_format(FORMAT, str(tmp_path / "in"), str(tmp_path / "other")).build()
    shares = source.create_enumerator(None).plan_epoch(2)
    assert [len(share) for share in shares] == [2, 2]
    assert sorted(read_epoch(source, source.create_enumerator(None), 3)) == ["1", "2", "3", "4"]


def test_a_source_that_monitors_a_folder_reads_what_arrives_once(tmp_path: Path) -> None:
    write(tmp_path, b="1")
    source = (
        FileSource.for_record_stream_format(FORMAT, str(tmp_path)).monitor_continuously(Duration.of_seconds(1)).build()
    )
    enumerator = source.create_enumerator(None)
    assert read_epoch(source, enumerator) == ["1"]
    write(tmp_path, a="2")
    restored = source.create_enumerator(enumerator.snapshot_state())
    assert read_epoch(source, restored) == ["2"]
    assert read_epoch(source, restored) == []
    assert not restored.exhausted


def test_a_static_set_of_files_is_listed_once(tmp_path: Path) -> None:
    write(tmp_path, a="1")
    source = FileSource.for_record_stream_format(FORMAT, str(tmp_path)).process_static_file_set().build()
    enumerator = source.create_enumerator(None)
    enumerator.plan_epoch(1)  # the epoch fails before it is read
    write(tmp_path, b="2")
    assert read_epoch(source, source.create_enumerator(enumerator.snapshot_state())) == ["1"]


def monitor(*paths: Path) -> FileSource:
    files = FileSource.for_record_stream_format(FORMAT, *map(str, paths))
    return files.monitor_continuously(Duration.of_seconds(1)).build()


def test_a_folder_may_be_monitored_before_the_first_file(tmp_path: Path) -> None:
    source = monitor(tmp_path)
    enumerator = source.create_enumerator(None)
    assert read_epoch(source, enumerator) == []
    write(tmp_path, a="1")
    assert read_epoch(source, enumerator) == ["1"]
    with pytest.raises(SourceReadError, match="missing"):
        monitor(tmp_path / "missing").create_enumerator(None).plan_epoch(1)


def test_a_partition_that_its_job_has_run_again_is_refused(tmp_path: Path) -> None:
    """Its rows were read in addition to those that they replace."""

    def sink_file(day: str, checkpoint: int, job: str = "a.b", sub: str = "s=x") -> Path:
        name = file_name(WriterInitContext(job, "t", 0, 1, checkpoint, "x"))
        path = tmp_path / partition_folder(day) / sub / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{day} {checkpoint}")
        return path

    source = monitor(tmp_path)
    first = sink_file("1", 1)
    sink_file("2", 2)
    enumerator = source.create_enumerator(None)
    assert read_epoch(source, enumerator) == ["1 1", "2 2"]
    position = enumerator.snapshot_state()
    before = {name: value for name, value in position.items() if name != "runs"}  # of an earlier release
    both, again = sink_file("3", 7), sink_file("1", 8, sub="s=y")
    for known in (before, position):
        for _ in range(2):
            with pytest.raises(SourceReadError, match=r"job 'a\.b' has run .*/partition=1 again, as '.*00008"):
                source.create_enumerator(known).plan_epoch(1)
            if known is position:
                first.unlink(missing_ok=True)
    again.unlink()
    later = sink_file("3", 9)
    enumerator = source.create_enumerator(position)
    with pytest.raises(SourceReadError, match=r"has run .*/partition=3 again.* when the replaced files are gone"):
        enumerator.plan_epoch(1)
    both.unlink()
    sink_file("1", 4, job="b")
    assert later.exists() and read_epoch(source, enumerator) == ["1 4", "3 9"]


def test_a_file_that_grows_after_it_was_read_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, a="1\n")
    source = monitor(tmp_path / "a", tmp_path)
    enumerator = source.create_enumerator(None)
    assert read_epoch(source, enumerator) == ["1"]
    write(tmp_path, a="1\n2\n")
    with pytest.raises(SourceReadError, match=r"1 file\(s\) .*/a'\) changed after the source had read them"):
        enumerator.plan_epoch(1)


def test_a_file_that_changes_before_it_is_read_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, a="1\n")
    source = monitor(tmp_path)
    ((split,),) = source.create_enumerator(None).plan_epoch(1)
    write(tmp_path, a="1\n2\n")
    with pytest.raises(SourceReadError, match=r"/a: it was changed after it was planned"):
        list(source.read(split))


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_no_line_is_of_a_file_that_takes_the_place_of_one_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It was noticed at the end of the file only, after checkpoints with lines of the other one."""
    for size in ("_FETCH_BYTES", "_BLOCK_BYTES"):
        monkeypatch.setattr(text_reader, size, 1000)
    pack = gzip.compress if name == "a.gz" else bytes
    lines = [f"{random.Random(n).getrandbits(64):020}" for n in range(20_000)]
    (tmp_path / name).write_bytes(pack("".join(f"{line}\n" for line in lines).encode()))
    source = monitor(tmp_path)
    ((split,),) = source.create_enumerator(None).plan_epoch(1)
    rows = source.read(split)
    found = next(rows)[0].to_pylist()
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes())
    with pytest.raises(SourceReadError, match="it was changed after it was planned"):
        for column, _ in rows:
            found += column.to_pylist()
    assert 0 < len(found) < len(lines) / 2
    assert found == lines[: len(found)]


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_path_without_files_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    source = FileSource.for_record_stream_format(FORMAT, str(tmp_path / name)).build()
    with pytest.raises(SourceReadError, match=name):
        source.create_enumerator(None).plan_epoch(1)


def test_bytes_that_are_no_text_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\xff\xfe\xfd")
    source = FileSource.for_record_stream_format(FORMAT, str(tmp_path)).build()
    with pytest.raises(SourceReadError, match="broken"):
        read_epoch(source, source.create_enumerator(None))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown charset 'klingon'"):
        StreamFormat.text_line_format("klingon")
    with pytest.raises(ConfigurationError, match="part_size"):
        RollingPolicy.default_rolling_policy(part_size=0)
    with pytest.raises(ConfigurationError, match="yyyy"):
        BucketAssigner.date_time_bucket_assigner("EEE yyyy")
    for pattern in ("'day=yyyy", "yyyy[-MM]", "yyyy''MM"):  # in Java the last two are `2026-01` and `2026'01`
        with pytest.raises(ConfigurationError, match="single quotes"):
            BucketAssigner.date_time_bucket_assigner(pattern)
    for prefix in ("_part", ".part"):
        with pytest.raises(ConfigurationError, match="readers ignore files that begin with"):
            sink_into(Path("table"), prefix=prefix).validate(Types.STRING())


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: FileSource.for_record_stream_format(FORMAT, ""), "as path needs text that is not empty, not ''"),
        (lambda: FileSource.for_record_stream_format(FORMAT, ["/in"]), r"as path needs text .* not \['/in'\]"),
        (lambda: FileSource.for_record_stream_format("x", "/in"), "needs a StreamFormat"),
        (lambda: FileSource.for_record_stream_format(FORMAT, "/in").monitor_continuously(5), "needs a Duration"),
        (lambda: sink_into(Path("table"), prefix=None), r"with_part_prefix\(\) needs text, not None"),
        (lambda: OutputFileConfig.builder().with_part_suffix(5), r"with_part_suffix\(\) needs text, not 5"),
        (lambda: sink_into(Path("table"), policy="128 mb"), r"with_rolling_policy\(\) needs a RollingPolicy"),
        (lambda: RollingPolicy.default_rolling_policy("128 mb"), "part_size of .* needs a whole number of bytes"),
        (lambda: BucketAssigner.date_time_bucket_assigner(None), "needs text such as 'yyyy-MM-dd'"),
        (lambda: BucketAssigner.date_time_bucket_assigner(timezone_id=1), "timezone_id of .* needs text"),
    ],
)
def test_wrong_arguments_are_refused_when_they_are_declared(declare: Callable[[], object], said: str) -> None:
    """An empty path was the working directory; others failed in a task, or were names such as `part-None`."""
    with pytest.raises(ConfigurationError, match=said):
        declare()


def context(subtask: int = 0, checkpoint: int = 1) -> WriterInitContext:
    return WriterInitContext("job", "sink", subtask, 1, checkpoint, f"try{subtask}")


def sink_into(folder: Path, policy: RollingPolicy | None = None, prefix: str = "pre") -> FileSink:
    return (
        FileSink.for_row_format(str(folder), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_output_file_config(OutputFileConfig.builder().with_part_prefix(prefix).with_part_suffix(".txt").build())
        .with_rolling_policy(policy or RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )


def commit(committer: Committer, requests: list[CommitRequest]) -> int:
    return commit_requests(committer, requests, "sink")


def visible(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("pre-*.txt") if p.is_file())


def test_files_are_visible_after_the_commit_only_and_once(tmp_path: Path) -> None:
    sink = sink_into(tmp_path)
    writer = sink.create_writer(context(), Types.STRING())
    writer.write(pa.array(["a", "ü"]))
    committables = writer.prepare_commit()
    assert visible(tmp_path) == []
    requests = [CommitRequest(1, 0, c) for c in committables]
    committer = sink.create_committer(CommitterInitContext("job", "sink", 1))
    assert commit(committer, requests) == 0
    assert [p.read_text() for p in visible(tmp_path)] == ["a\nü\n"]
    assert commit(committer, requests) == 1
    assert len(visible(tmp_path)) == 1


def test_a_record_is_in_the_folder_of_the_hour_of_its_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All records of a checkpoint were in the folder of the first one."""
    hours = iter([9, 10, 10, 12])

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime(2026, 1, 2, next(hours), tzinfo=timezone.utc)

    monkeypatch.setattr(file_sink, "datetime", Clock)
    sink = replace(sink_into(tmp_path), bucket_assigner=BucketAssigner.date_time_bucket_assigner("HH", "UTC"))
    writer = sink.create_writer(context(), Types.STRING())
    for record in "abcd":
        writer.write(pa.array([record]))
    requests = [CommitRequest(1, 0, c) for c in writer.prepare_commit()]
    commit(sink.create_committer(CommitterInitContext("job", "sink", 1)), requests)
    assert {path.parent.name: path.read_text() for path in visible(tmp_path)} == {
        "09": "a\n",
        "10": "b\nc\n",
        "12": "d\n",
    }


@pytest.mark.parametrize("charset", ["UTF-16", "UTF-32", "UTF-16LE"])
def test_each_file_has_one_byte_order_mark(tmp_path: Path, charset: str) -> None:
    """Each record had one, which readers took for its first character."""
    policy = RollingPolicy.default_rolling_policy(part_size=20)
    sink = replace(sink_into(tmp_path, policy), encoder=Encoder.simple_string_encoder(charset))
    writer = sink.create_writer(context(), Types.STRING())
    lines = ["ä", "b", "\ufeffc", "d", "e", "f", "g", "h"]
    writer.write(pa.array(lines))
    requests = [CommitRequest(1, 0, c) for c in writer.prepare_commit()]
    commit(sink.create_committer(CommitterInitContext("job", "sink", 1)), requests)
    assert len(requests) > 1
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(charset), str(tmp_path)).build()
    assert read_epoch(source, source.create_enumerator(None)) == lines


@pytest.mark.parametrize("path", ["file:/tmp/table", "s3:/bucket/table", "hdfs:/table"])
def test_a_url_with_one_slash_is_no_relative_path(path: str) -> None:
    """Files went into a folder of that name in the working directory."""
    with pytest.raises(ConfigurationError, match=f"'{path}' must be s3://bucket/prefix, file:///dir or a path"):
        FileSink.for_row_format(path, Encoder.simple_string_encoder())
    with pytest.raises(ConfigurationError, match="file:///dir"):
        FileSource.for_record_stream_format(FORMAT, path)


@pytest.mark.parametrize("prefix", ["pre", "pre-v1.2"])
def test_epochs_that_are_read_again_replace_their_files(tmp_path: Path, prefix: str) -> None:
    sink = sink_into(tmp_path, prefix=prefix)
    committer = sink.create_committer(CommitterInitContext("job", "sink", 1))
    for checkpoint in (1, 2, 3):
        writer = sink.create_writer(context(checkpoint=checkpoint), Types.STRING())
        writer.write(pa.array([f"{checkpoint}"]))
        requests = [CommitRequest(checkpoint, 0, each) for each in writer.prepare_commit()]
        if checkpoint < 3:
            commit(committer, requests)
    commit_requests(committer, requests, "sink", replaced=(1, 3))
    assert [path.read_text() for path in visible(tmp_path)] == ["1\n", "3\n"]
    (tmp_path / "theirs.txt").write_text("")
    with pytest.raises(ConfigurationError, match=r"files of others, such as theirs\.txt"):
        committer.check_replaceable(1, 3)


def test_a_full_file_is_followed_by_another(tmp_path: Path) -> None:
    sink = sink_into(tmp_path, RollingPolicy.default_rolling_policy(part_size=4))
    writer = sink.create_writer(context(), Types.INT())
    writer.write(pa.array([1, 2, 3, 4, 5], type=pa.int32()))
    committables = writer.prepare_commit()
    assert [c["rows"] for c in committables] == [2, 2, 1]
    commit(
        sink.create_committer(CommitterInitContext("job", "sink", 1)), [CommitRequest(1, 0, c) for c in committables]
    )
    assert [p.read_text() for p in visible(tmp_path)] == ["1\n2\n", "3\n4\n", "5\n"]


def test_what_dead_attempts_left_is_aborted_and_what_others_write_is_not(tmp_path: Path) -> None:
    sink = sink_into(tmp_path)
    kept, dead, foreign = (
        sink.create_writer(c, Types.STRING())
        for c in (context(0), context(1), WriterInitContext("job", "sink2", 0, 1, 1, "try"))
    )
    files = []
    for writer in (kept, dead, foreign):
        writer.write(pa.array(["x"]))
        files.append(writer.prepare_commit()[0])
    committer = sink.create_committer(CommitterInitContext("job", "sink", 2))
    assert committer.abort_lingering([CommitRequest(1, 0, files[0])]) == 1
    assert commit(committer, [CommitRequest(1, 0, files[0])]) == 0
    other = sink.create_committer(CommitterInitContext("job", "sink2", 2))
    assert commit(other, [CommitRequest(1, 0, files[2])]) == 0


def test_an_aborted_writer_leaves_nothing(tmp_path: Path) -> None:
    sink = sink_into(tmp_path)
    writer = sink.create_writer(context(), Types.STRING())
    writer.write(pa.array(["x"]))
    writer.prepare_commit()
    writer.abort()
    assert sink.create_committer(CommitterInitContext("job", "sink", 2)).abort_lingering([]) == 0


def test_a_writer_without_records_writes_no_file(tmp_path: Path) -> None:
    assert sink_into(tmp_path).create_writer(context(), Types.STRING()).prepare_commit() == []


def test_buckets_are_named_by_the_time() -> None:
    at = datetime(2020, 1, 2, 23, 30, tzinfo=timezone.utc)
    assert BucketAssigner.date_time_bucket_assigner(timezone_id="Europe/Berlin").bucket_id(at) == "2020-01-03--00"
    assert BucketAssigner.date_time_bucket_assigner("yyyy/MM-dd HHmmss", "UTC").bucket_id(at) == "2020/01-02 233000"
    assert BucketAssigner.date_time_bucket_assigner("'dt='yyyy-MM-dd/HH'h'", "UTC").bucket_id(at) == "dt=2020-01-02/23h"
    assert BucketAssigner.date_time_bucket_assigner("'100%m 'HH%", "UTC").bucket_id(at) == "100%m 23%"
    assert BucketAssigner.base_path_bucket_assigner().bucket_id(at) == ""
