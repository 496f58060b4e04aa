import base64
import json
import random
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.connectors.columns.column_casts import row_type_of
from dagster_flinkpy.connectors.commit.staged_files import file_name, partition_folder
from dagster_flinkpy.connectors.files import parquet_source
from dagster_flinkpy.connectors.files.parquet_source import row_group_ranges
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import WriterInitContext
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import ConfigurationError, SourceReadError
from dagster_flinkpy.testing import run_local
from tests.examples import examples

ROW = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])


def write(folder, name, numbers, row_group_size=10):
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"n": pa.array(numbers, pa.int64()), "s": [str(n) for n in numbers]})
    pq.write_table(table, folder / name, row_group_size=row_group_size)


def numbers(source, split):
    return [n for column, _ in source.read(split) for n in column.field("n").to_pylist()]


def names(plan):
    return [[split.split_id for split in share] for share in plan]


def read_all(enumerator, plan):
    enumerator.on_epoch_read([split.advanced(0, finished=True) for share in plan for split in share])


def restored(source, enumerator):
    return source.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))


def only_split(source):
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    return split


def test_files_go_round_robin_to_subtasks_in_name_order(tmp_path):
    for day in (3, 1, 4, 2):
        write(tmp_path, f"2013-02-0{day}.parquet", [day])
    source = ParquetSource(str(tmp_path))
    enumerator = source.create_enumerator(None)
    assert names(enumerator.plan_epoch(2)) == [
        ["2013-02-01.parquet", "2013-02-03.parquet"],
        ["2013-02-02.parquet", "2013-02-04.parquet"],
    ]
    assert enumerator.exhausted


def test_one_file_per_epoch_goes_round_the_subtasks_across_restores(tmp_path):
    for day in (1, 2, 3):
        write(tmp_path, f"{day}.parquet", [day])
    source = ParquetSource(str(tmp_path), max_files_per_epoch=1)
    enumerator = source.create_enumerator(None)
    seen, ended = [], []
    for _ in range(4):
        plan = enumerator.plan_epoch(2)
        seen.append(names(plan))
        ended.append(enumerator.exhausted)
        read_all(enumerator, plan)
        enumerator = restored(source, enumerator)
    assert seen == [[["1.parquet"], []], [[], ["2.parquet"]], [["3.parquet"], []], [[], []]]
    assert ended == [False, False, True, True]
    position = enumerator.snapshot_state()
    assert len(base64.b64decode(position.pop("files"))) == 3 * 16
    assert position == {"last": "3.parquet", "present": 3, "planned": 3, "open": [], "ended": True}


def test_a_plan_that_was_not_read_is_given_again(tmp_path):
    for day in (1, 2):
        write(tmp_path, f"{day}.parquet", [day])
    enumerator = ParquetSource(str(tmp_path), max_files_per_epoch=1).create_enumerator(None)
    first = enumerator.plan_epoch(1)
    assert enumerator.plan_epoch(1) == first


def test_a_split_read_in_part_goes_on_from_its_row_after_rescaling(tmp_path):
    write(tmp_path, "1.parquet", range(25))
    write(tmp_path, "2.parquet", range(100, 103))
    source = ParquetSource(str(tmp_path), batch_rows=4)
    enumerator = source.create_enumerator(None)
    [[first, second]] = enumerator.plan_epoch(1)
    enumerator.on_epoch_read([first.advanced(13, finished=False), second.advanced(3, finished=True)])
    plan = restored(source, enumerator).plan_epoch(3)
    assert names(plan) == [["1.parquet"], [], []]
    assert numbers(source, plan[0][0]) == list(range(13, 25))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@given(rows=st.integers(0, 40), group=st.integers(1, 15), batch=st.integers(1, 12), data=st.data())
def test_any_offset_replays_the_rest(tmp_path, rows, group, batch, data):
    write(tmp_path, "a.parquet", range(rows), row_group_size=group)
    source = ParquetSource(str(tmp_path), row_type=ROW, batch_rows=batch)
    split = only_split(source)
    offset = data.draw(st.integers(0, rows))
    read = list(source.read(split.advanced(offset, finished=False)))
    at = offset
    for column, after in read:
        assert column.type == ROW.arrow_type
        assert 0 < len(column) <= batch
        assert column.field("n").to_pylist() == list(range(at, at + len(column)))
        at += len(column)
        assert after == at
    assert at == rows


def test_type_is_taken_from_the_first_file(tmp_path):
    write(tmp_path, "1.parquet", [1])
    assert ParquetSource(str(tmp_path)).produced_type == ROW
    with pytest.raises(SourceReadError, match="pass row_type"):
        _ = ParquetSource(str(tmp_path), pattern="x/*.parquet").produced_type


def test_columns_are_chosen_and_cast_by_the_row_type(tmp_path):
    pq.write_table(pa.table({"x": [1], "n": pa.array([7], pa.int16()), "s": ["a"]}), tmp_path / "1.parquet")
    source = ParquetSource(str(tmp_path), row_type=Types.ROW_NAMED(["s", "n"], [Types.STRING(), Types.LONG()]))
    [(column, after)] = source.read(only_split(source))
    assert (column.to_pylist(), after) == ([{"s": "a", "n": 7}], 1)
    assert column.type.field("n").type == pa.int64()


def test_a_column_that_is_not_there_is_named_with_its_file(tmp_path):
    pq.write_table(pa.table({"s": ["a"]}), tmp_path / "1.parquet")
    source = ParquetSource(str(tmp_path), row_type=Types.ROW_NAMED(["nope"], [Types.LONG()]))
    with pytest.raises(SourceReadError, match=r"1\.parquet.*'nope'"):
        list(source.read(only_split(source)))


def test_a_column_that_is_there_twice_is_named_with_its_file(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2]), pa.array(["a"])], names=["n", "n", "s"])
    pq.write_table(table, tmp_path / "1.parquet")
    source = ParquetSource(str(tmp_path), row_type=ROW)
    with pytest.raises(SourceReadError, match=r"1\.parquet: it has column 'n' more than once"):
        list(source.read(only_split(source)))
    with pytest.raises(SourceReadError, match=r"1\.parquet: it has column 'n' more than once"):
        _ = ParquetSource(str(tmp_path)).produced_type
    other = ParquetSource(str(tmp_path), row_type=Types.ROW_NAMED(["s"], [Types.STRING()]))
    [(column, _)] = other.read(only_split(other))
    assert column.to_pylist() == [{"s": "a"}], "columns that are not read do not matter"


@pytest.mark.parametrize("bounded", [True, False, None])
def test_a_folder_that_is_not_there_is_named(tmp_path, bounded):
    for location in (tmp_path / "missing", tmp_path / "file"):
        (tmp_path / "file").touch()
        source = ParquetSource(str(location), row_type=ROW, bounded=bounded)
        with pytest.raises(SourceReadError, match=f"there is no folder .*/{location.name}.*make the folder"):
            source.create_enumerator(None).plan_epoch(1)


def test_a_program_that_is_declared_before_its_input_is_there_is_told_of_the_row_type(tmp_path):
    for location in (tmp_path / "missing", tmp_path):
        with pytest.raises(SourceReadError, match="row_type="):
            _ = ParquetSource(str(location)).produced_type


def test_an_input_that_ends_needs_a_file(tmp_path):
    (tmp_path / "1.csv").touch()
    for bounded in (True, None):
        with pytest.raises(SourceReadError, match=r"there is no file '\*\.parquet' in .* declare bounded=False"):
            ParquetSource(str(tmp_path), row_type=ROW, bounded=bounded).create_enumerator(None).plan_epoch(1)
    enumerator = ParquetSource(str(tmp_path), row_type=ROW, bounded=False).create_enumerator(None)
    assert names(enumerator.plan_epoch(1)) == [[]]
    write(tmp_path, "1.parquet", [1])
    assert names(enumerator.plan_epoch(1)) == [["1.parquet"]]


def test_a_bucket_that_is_not_there_is_named(s3_location):
    missing = replace(s3_location, url="s3://no-such-bucket/in")
    with pytest.raises(SourceReadError, match="no-such-bucket"):
        ParquetSource(missing, row_type=ROW, bounded=False).create_enumerator(None).plan_epoch(1)
    waiting = ParquetSource(s3_location.child("nothing-yet"), row_type=ROW, bounded=False)
    assert names(waiting.create_enumerator(None).plan_epoch(1)) == [[]]


def test_corrupt_file_is_named(tmp_path):
    write(tmp_path, "1.parquet", range(1000))
    whole = (tmp_path / "1.parquet").read_bytes()
    for damaged in (b"", b"not parquet", whole[:-20], whole[:4] + bytes(300) + whole[304:]):
        (tmp_path / "1.parquet").write_bytes(damaged)
        source = ParquetSource(str(tmp_path), row_type=ROW)
        with pytest.raises(SourceReadError, match=r"cannot read .*/1\.parquet"):
            list(source.read(only_split(source)))


def test_a_file_that_changed_after_it_was_planned_is_named(tmp_path):
    write(tmp_path, "1.parquet", [1])
    source = ParquetSource(str(tmp_path), row_type=ROW)
    split = only_split(source)
    write(tmp_path, "1.parquet", [1, 2])
    with pytest.raises(SourceReadError, match=r"1\.parquet.*changed after it was planned"):
        list(source.read(split))
    (tmp_path / "1.parquet").unlink()
    with pytest.raises(SourceReadError, match=r"1\.parquet.*deleted"):
        list(source.read(split))


def test_a_file_that_another_one_replaces_while_it_is_read_is_named(tmp_path):
    write(tmp_path, "1.parquet", [1, 2, 3, 4], row_group_size=2)
    path, source = tmp_path / "1.parquet", ParquetSource(str(tmp_path), row_type=ROW)
    size = path.stat().st_size
    rows = source.read(only_split(source))
    assert next(rows)[0].field("n").to_pylist() == [1, 2]
    write(tmp_path, ".new", [5, 6, 7, 8], row_group_size=2)
    (tmp_path / ".new").rename(path)
    assert path.stat().st_size == size
    with pytest.raises(SourceReadError, match=r"1\.parquet.*changed after it was planned"):
        next(rows)  # not only at the end: a checkpoint may come before


def test_a_file_with_a_name_before_the_last_one_read_is_refused(tmp_path):
    write(tmp_path, "1.parquet", [1])
    write(tmp_path, "3.parquet", [3])
    source = ParquetSource(str(tmp_path), bounded=False)
    enumerator = source.create_enumerator(None)
    read_all(enumerator, enumerator.plan_epoch(1))
    enumerator = restored(source, enumerator)
    write(tmp_path, "2.parquet", [2])
    with pytest.raises(SourceReadError, match=r"\('2\.parquet'\) came too late in .*'3\.parquet' was read already"):
        enumerator.plan_epoch(1)


def test_a_late_file_is_refused_though_another_one_was_deleted(tmp_path):
    write(tmp_path, "0.parquet", [0])
    write(tmp_path, "5.parquet", [5])
    enumerator = ParquetSource(str(tmp_path), bounded=False).create_enumerator(None)
    read_all(enumerator, enumerator.plan_epoch(1))
    (tmp_path / "0.parquet").unlink()
    write(tmp_path, "3.parquet", [3])
    write(tmp_path, "6.parquet", [6])
    with pytest.raises(SourceReadError, match=r"'3\.parquet'\) came too late"):
        enumerator.plan_epoch(1)
    (tmp_path / "3.parquet").rename(tmp_path / "7.parquet")
    assert names(enumerator.plan_epoch(1)) == [["6.parquet", "7.parquet"]]


def test_a_partition_that_its_job_has_run_again_is_refused(tmp_path):
    def sink_file(day, checkpoint, job="a.b", sub=""):
        context = WriterInitContext(job, "t", 0, 1, checkpoint, "x")
        write(tmp_path / partition_folder(day) / sub, f"{file_name(context)}.parquet", [checkpoint])
        return f"{partition_folder(day)}{sub}{file_name(context)}.parquet"

    source = ParquetSource(str(tmp_path), bounded=False)
    sink_file("2024-03-01", 1)
    first = sink_file("2024-03-02", 2, sub="s=x/")
    enumerator = source.create_enumerator(None)
    read_all(enumerator, enumerator.plan_epoch(1))
    enumerator = restored(source, enumerator)
    again = sink_file("2024-03-02", 4, sub="s=x/")
    for _ in range(2):  # for a moment both are there
        with pytest.raises(SourceReadError, match=r"job 'a\.b' has run .*/partition=2024-03-02 again, as '.*00004"):
            enumerator.plan_epoch(1)
        (tmp_path / first).unlink(missing_ok=True)
    (tmp_path / again).unlink()
    others = [sink_file("2024-03-02", 9, job="b", sub="s=x/"), sink_file("2024-03-03", 5)]
    both = sink_file("2024-03-03", 6)
    with pytest.raises(SourceReadError, match=r"has run .*/partition=2024-03-03 again.* when the replaced files are"):
        enumerator.plan_epoch(1)
    (tmp_path / both).unlink()
    assert names(enumerator.plan_epoch(1)) == [others]


def test_a_file_that_changed_after_it_was_read_is_refused(tmp_path):
    write(tmp_path, "1.parquet", [1])
    enumerator = ParquetSource(str(tmp_path), bounded=False).create_enumerator(None)
    read_all(enumerator, enumerator.plan_epoch(1))
    write(tmp_path, "1.parquet", [1, 2])
    with pytest.raises(SourceReadError, match=r"'1\.parquet'\) changed in .* after the source had read them"):
        enumerator.plan_epoch(1)


def test_files_that_were_read_may_be_deleted(tmp_path):
    for day in (1, 2, 3):
        write(tmp_path, f"{day}.parquet", [day])
    source = ParquetSource(str(tmp_path), max_files_per_epoch=2)
    enumerator = source.create_enumerator(None)
    read_all(enumerator, enumerator.plan_epoch(1))
    (tmp_path / "1.parquet").unlink()
    assert names(enumerator.plan_epoch(1)) == [["3.parquet"]]


def test_unbounded_source_waits_for_new_files_and_ends_at_until(tmp_path):
    write(tmp_path, "1.parquet", [1])
    enumerator = ParquetSource(str(tmp_path), bounded=False, until="2.parquet").create_enumerator(None)
    read_all(enumerator, enumerator.plan_epoch(1))
    assert not enumerator.exhausted
    assert names(enumerator.plan_epoch(1)) == [[]]
    write(tmp_path, "2.parquet", [2])
    write(tmp_path, "3.parquet", [3])
    assert names(enumerator.plan_epoch(1)) == [["2.parquet"]]
    assert enumerator.exhausted


def test_reads_from_since_to_until(tmp_path):
    for day in (1, 2, 3, 4):
        write(tmp_path, f"{day}.parquet", [day])
    enumerator = ParquetSource(str(tmp_path), since="2.parquet", until="3.parquet").create_enumerator(None)
    assert names(enumerator.plan_epoch(1)) == [["2.parquet", "3.parquet"]]
    assert enumerator.exhausted


def test_pattern_crosses_folders_and_leaves_out_hidden_files(tmp_path):
    for folder in ("", "y=1", "_temporary", "y=1/.staging"):
        write(tmp_path / folder, "a.parquet", [1])
    assert names(ParquetSource(str(tmp_path)).create_enumerator(None).plan_epoch(1)) == [["a.parquet", "y=1/a.parquet"]]
    chosen = ParquetSource(str(tmp_path), pattern="y=?/*.parquet").create_enumerator(None).plan_epoch(1)
    assert names(chosen) == [["y=1/a.parquet"]]


@pytest.mark.parametrize("option", [{"batch_rows": 0}, {"max_files_per_epoch": 0}])
def test_options_must_be_positive(tmp_path, option):
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        ParquetSource(str(tmp_path), **option)


def test_reads_from_s3(s3_location, tmp_path):
    store = s3_location.open()
    for day in (1, 2):
        write(tmp_path, f"{day}.parquet", range(day * 100, day * 100 + 50))
        store.put(f"in/{day}.parquet", (tmp_path / f"{day}.parquet").read_bytes())
    source = ParquetSource(s3_location.child("in"))
    [[first, second]] = source.create_enumerator(None).plan_epoch(1)
    assert numbers(source, first.advanced(45, finished=False)) + numbers(source, second) == [
        *range(145, 150),
        *range(200, 250),
    ]
    store.put("in/1.parquet", (tmp_path / "2.parquet").read_bytes())
    with pytest.raises(SourceReadError, match=r"in/1\.parquet.*changed"):
        numbers(source, first)


def test_row_type_of_every_kind_of_column():
    schema = pa.schema(
        [
            ("u", pa.uint16()),
            ("d", pa.dictionary(pa.int8(), pa.string())),
            ("t", pa.timestamp("ms", "UTC")),
            ("l", pa.list_(pa.struct([("x", pa.float32())]))),
            ("m", pa.map_(pa.string(), pa.decimal128(9, 2))),
            ("c", pa.time32("s")),
        ]
    )
    assert row_type_of(schema) == Types.ROW_NAMED(
        ["u", "d", "t", "l", "m", "c"],
        [
            Types.INT(),
            Types.STRING(),
            Types.SQL_TIMESTAMP(),
            Types.LIST(Types.ROW_NAMED(["x"], [Types.FLOAT()])),
            Types.MAP(Types.STRING(), Types.DECIMAL(9, 2)),
            Types.SQL_TIME(),
        ],
    )
    with pytest.raises(ConfigurationError, match=r"'i\.x' has type month_day_nano"):
        row_type_of(pa.schema([("i", pa.struct([("x", pa.month_day_nano_interval())]))]))


def test_a_position_that_has_lost_its_last_file_is_refused(tmp_path: Path) -> None:
    """Without it, the source would read all files again."""
    pq.write_table(pa.table({"n": [1]}), tmp_path / "1.parquet")
    source = ParquetSource(str(tmp_path), row_type=Types.ROW_NAMED(["n"], [Types.LONG()]), bounded=False)
    enumerator = source.create_enumerator(None)
    enumerator.plan_epoch(1)
    position = enumerator.snapshot_state()
    assert position is not None and position.pop("last") == "1.parquet"
    with pytest.raises(ValueError, match="'last' is missing"):
        source.create_enumerator(position)


# --- row groups as splits ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_splits(monkeypatch):
    monkeypatch.setattr(parquet_source, "_SPLIT_BYTES", 1)


@given(st.lists(st.integers(0, 100), max_size=30), st.floats(0, 1))
def test_ranges_have_each_row_group_once_and_are_not_too_small(rows, share):
    ranges = row_group_ranges(rows, share)
    assert [group for first, stop in ranges for group in range(first, stop)] == list(range(len(rows)))
    if len(ranges) > 1:
        assert all(sum(rows[first:stop]) >= share * sum(rows) for first, stop in ranges)
        assert all(sum(rows[first:stop]) for first, stop in ranges)


def test_a_large_file_is_read_by_all_subtasks_and_a_small_one_by_one(tmp_path, monkeypatch):
    write(tmp_path, "1.parquet", range(10_000), row_group_size=1000)
    write(tmp_path, "2.parquet", range(5), row_group_size=1)
    write(tmp_path, "3.parquet", range(10_000), row_group_size=10_000)
    size = (tmp_path / "1.parquet").stat().st_size
    monkeypatch.setattr(parquet_source, "_SPLIT_BYTES", size // 5)
    source = ParquetSource(str(tmp_path))
    plan = source.create_enumerator(None).plan_epoch(2)
    assert names(plan) == [
        ["1.parquet[0:2]", "1.parquet[4:6]", "1.parquet[8:10]", "3.parquet"],
        ["1.parquet[2:4]", "1.parquet[6:8]", "2.parquet"],
    ]
    assert numbers(source, plan[1][0]) == list(range(2000, 4000))
    assert names(source.create_enumerator(None).plan_epoch(1)) == [["1.parquet", "2.parquet", "3.parquet"]]


def test_small_files_and_one_subtask_need_no_footer(tmp_path, monkeypatch):
    write(tmp_path, "1.parquet", range(100))
    monkeypatch.setattr(parquet_source, "open_parquet", None)
    source = ParquetSource(str(tmp_path), row_type=ROW)
    assert names(source.create_enumerator(None).plan_epoch(3)) == [["1.parquet"], [], []]
    monkeypatch.setattr(parquet_source, "_SPLIT_BYTES", 1)
    assert names(source.create_enumerator(None).plan_epoch(1)) == [["1.parquet"]]


def test_a_footer_is_read_once(tmp_path, small_splits, monkeypatch):
    write(tmp_path, "1.parquet", range(40))
    footers = []
    opened = parquet_source.open_parquet
    monkeypatch.setattr(parquet_source, "open_parquet", lambda *a, **b: footers.append(len(a) < 4) or opened(*a, **b))
    source = ParquetSource(str(tmp_path), row_type=ROW)
    plan = source.create_enumerator(None).plan_epoch(2)
    assert [n for split in chain(*plan) for n in numbers(source, split)] == [
        *range(10), *range(20, 30), *range(10, 20), *range(30, 40),
    ]  # fmt: skip
    assert sum(footers) == 1
    assert len(footers) == 5


def test_a_file_counts_once_however_many_splits_it_has(tmp_path, small_splits):
    for day in (1, 2, 3):
        write(tmp_path, f"{day}.parquet", range(30))
    source = ParquetSource(str(tmp_path), max_files_per_epoch=2)
    enumerator = source.create_enumerator(None)
    plan = enumerator.plan_epoch(2)
    assert sorted(chain(*names(plan))) == [f"{day}.parquet[{i}:{i + 1}]" for day in (1, 2) for i in range(3)]
    position = enumerator.snapshot_state()
    assert (position["present"], len(base64.b64decode(position["files"]))) == (2, 2 * 16)
    enumerator.on_epoch_read([replace(plan[0][0], finished=True)])
    assert len([*chain(*restored(source, enumerator).plan_epoch(2))]) == 5  # both files are still being read
    read_all(enumerator, plan)
    assert names(enumerator.plan_epoch(1)) == [["3.parquet"]]


def test_a_damaged_footer_changes_nothing(tmp_path, small_splits):
    write(tmp_path, "1.parquet", range(30))
    (tmp_path / "2.parquet").write_bytes(b"PAR1 no PAR1")
    enumerator = ParquetSource(str(tmp_path), row_type=ROW).create_enumerator(None)
    before = enumerator.snapshot_state()
    with pytest.raises(SourceReadError, match=r"cannot read .*2\.parquet"):
        enumerator.plan_epoch(2)
    assert enumerator.snapshot_state() == before


@pytest.mark.parametrize("groups", [[2, 1], [-1, 2], "01", None])
def test_a_position_with_damaged_row_groups_is_refused(tmp_path, groups):
    properties = {"number": 0, "size": 1, "version": "v", "file": "1.parquet", "row_groups": groups}
    split = {"split_id": "1.parquet[0:1]", "properties": properties, "offset": 0, "finished": False}
    position = {"last": "1.parquet", "present": 1, "planned": 1, "open": [split], "files": "", "ended": False}
    with pytest.raises((ValueError, TypeError, KeyError)):
        ParquetSource(str(tmp_path)).create_enumerator(position)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_each_row_is_read_once_whatever_is_cut_restored_and_rescaled(small_splits, seed):
    """Files of any row groups; barriers within splits; each epoch in another process, at another parallelism."""
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        expected = []
        for name in range(choose.randint(1, 4)):
            rows = range(100 * name, 100 * name + choose.randint(0, 40))
            write(Path(folder), f"{name}.parquet", rows, choose.randint(1, 15))
            expected += rows
        limit = choose.choice([None, 1, 2])
        source = ParquetSource(folder, row_type=ROW, batch_rows=4, max_files_per_epoch=limit)
        position, seen, done = None, [], False
        if choose.random() < 0.5:  # an earlier release has dealt out the first file as a whole
            first = ParquetSource(folder, row_type=ROW, max_files_per_epoch=1).create_enumerator(None)
            [[split]] = first.plan_epoch(1)
            rows = numbers(source, split)
            cut = choose.randint(0, len(rows))
            seen += rows[:cut]
            first.on_epoch_read([split.advanced(cut, finished=False)])
            position = first.snapshot_state() | {"ended": False}
        while not done:
            enumerator = source.create_enumerator(json.loads(json.dumps(position)))
            plan = enumerator.plan_epoch(choose.randint(1, 4))
            assert limit is None or len({s.properties.get("file", s.split_id) for s in chain(*plan)}) <= limit
            for share in plan:
                read, after = [], list(share)
                for i, split in enumerate(share):
                    rest = numbers(source, split)
                    cut = choose.choice([len(rest), choose.randint(0, len(rest))])
                    read += rest[:cut]
                    after[i] = split.advanced(split.offset + cut, finished=cut == len(rest))
                    if not after[i].finished:
                        break
                assert read == sorted(read)  # a subtask reads in the order of names and rows
                seen += read
                enumerator.on_epoch_read(after)
            position = enumerator.snapshot_state()
            done = enumerator.exhausted and not position["open"]
        assert sorted(seen) == expected


def test_a_program_reads_each_row_once_at_any_parallelism(tmp_path, small_splits):
    for day in (1, 2):
        write(tmp_path, f"{day}.parquet", range(100 * day, 100 * day + 60))
    for parallelism in (1, 2, 3):
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
        source = ParquetSource(str(tmp_path), max_files_per_epoch=1)
        stream = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "days")
        (rows,) = run_local(env, stream)
        assert sorted(row.n for row in rows) == [*range(100, 160), *range(200, 260)]


@pytest.mark.parametrize(
    ("form", "fits"), [("%Y-%m-%d", True), ("%Y%m%d", False), ("%Y/%m/%d", False), ("day=%Y-%m-%d", False)]
)
def test_a_partition_without_files_tells_if_the_format_fits_no_file(form: str, fits: bool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "2026-01-01.parquet")
    row_type = Types.ROW_NAMED(["id"], [Types.LONG()])
    source = ParquetSource(str(tmp_path), row_type=row_type, partition_format=form)
    day = datetime(2026, 1, 2, tzinfo=timezone.utc)
    partition = TimePartition("2026-01-02", day, day + timedelta(days=1), 1)
    enumerator = source.for_partition(partition).create_enumerator(None)
    if fits:
        assert list(chain(*enumerator.plan_epoch(1))) == []
    else:
        with pytest.raises(SourceReadError, match=r"no file .* has a name of partition_format=.*2026-01-01.parquet"):
            enumerator.plan_epoch(1)


@pytest.mark.parametrize(
    ("form", "hours", "in_order"),
    [
        ("%Y-%m-%d", 24, True),
        ("%y/%j", 24, True),
        ("%G-W%V", 24 * 7, True),
        ("%Y-%m-%dT%H", 1, True),
        ("%d.%m.%Y", 24, False),  # the first of a month has the file of the first of the next one
        ("%Y-%-m-%-d", 24, False),  # the first has those from the tenth to the nineteenth
        ("%Y-%b-%d", 24, False),
        ("%Y-W%V", 24 * 7, False),  # the last week of a year may be the first one of the next
        ("%H", 1, False),
        ("%Y-%m-%dT%-H", 1, False),  # the second hour has the files from the tenth to the nineteenth
    ],
)
def test_a_format_is_refused_by_which_a_partition_would_read_files_of_others(
    form: str, hours: int, in_order: bool, tmp_path: Path
) -> None:
    source = ParquetSource(str(tmp_path), row_type=Types.ROW_NAMED(["id"], [Types.LONG()]), partition_format=form)
    monday = datetime(2024, 4, 1, tzinfo=timezone.utc)
    first = TimePartition("first", monday, monday + timedelta(hours=hours), 0)
    if in_order:
        source.check_partition(first)
    else:
        with pytest.raises(ConfigurationError, match="with the larger units first, and each with all of its digits"):
            source.check_partition(first)
