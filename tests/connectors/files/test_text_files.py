"""CSV and JSON lines as sources: what is read, in which parts, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import json
import math
from collections.abc import Callable
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common import Duration, Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.files import file_source, text_reader
from dagster_flinkpy.datastream.connectors.file_system import FileSource, FileSourceBuilder, StreamFormat
from dagster_flinkpy.datastream.formats.csv import CsvReaderFormat
from dagster_flinkpy.datastream.formats.json_lines import JsonLinesReaderFormat
from dagster_flinkpy.errors import ConfigurationError, InputChangedError, SourceReadError
from dagster_flinkpy.runtime.master.epochs.whole_input import StaticInput
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore

ROWS = Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()])
CSV, JSON = CsvReaderFormat.for_row_type(ROWS), JsonLinesReaderFormat.for_row_type(ROWS)
QUOTED = CsvReaderFormat.for_row_type(ROWS, newlines_in_values=True)


def files(format: StreamFormat, *paths: Path) -> FileSourceBuilder:
    return FileSource.for_record_stream_format(format, *map(str, paths))


def epoch(source: FileSource, enumerator: Any, parallelism: int = 1) -> list[Any]:
    """Reads an epoch, and takes the position through JSON."""
    rows: list[Any] = []
    for share in json.loads(json.dumps([[s.to_json() for s in each] for each in enumerator.plan_epoch(parallelism)])):
        read = [type(s).from_json(each) for each in share for s in [_SPLIT]]
        for split in read:
            for column, _ in source.read(split):
                assert column.type == source.produced_type.arrow_type
                rows += column.to_pylist()
        enumerator.on_epoch_read([split.advanced(split.offset, finished=True) for split in read])
    return rows


_SPLIT = file_source.SourceSplit("any")


def read(format: StreamFormat, path: Path, parallelism: int = 1) -> list[Any]:
    source = files(format, path).build()
    enumerator = source.create_enumerator(None)
    rows = epoch(source, enumerator, parallelism)
    assert enumerator.exhausted
    return rows


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes files of some kilobytes large ones."""
    monkeypatch.setattr(text_reader, "_BLOCK_BYTES", 61)
    monkeypatch.setattr(text_reader, "_FETCH_BYTES", 157)
    monkeypatch.setattr(text_reader, "_TAIL_BYTES", 5)
    monkeypatch.setattr(file_source, "_SPLIT_BYTES", 50)


def test_columns_of_a_csv_file_are_found_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfname,other,id\r\nx,1,1\r\n\r\n"a ""b"", c",2,2\r\n,3,3\r\n"",4,')
    assert read(CSV, tmp_path / "a.csv") == [
        {"id": 1, "name": "x"},
        {"id": 2, "name": 'a "b", c'},
        {"id": 3, "name": None},
        {"id": None, "name": ""},
    ]


def test_names_of_csv_columns_are_text(tmp_path: Path) -> None:
    """PyArrow took them for numbers, booleans and nulls, and the columns were not found."""
    names = ["null", "NA", "01", "1e3", "true", "2026-01-02", ""]
    (tmp_path / "a.csv").write_text(",".join(names[:-1]) + ',""\n1,2,3,4,5,6,7\n')
    row = Types.ROW_NAMED(names, [Types.LONG()] * len(names))
    assert read(CsvReaderFormat.for_row_type(row), tmp_path) == [dict(zip(names, range(1, 8), strict=True))]


@pytest.mark.parametrize("newlines_in_values", [False, True])
@pytest.mark.parametrize("text", ["{}\rx,1\ny,2\n", "\ufeff{}\r\nx,1\r\ny,2\r\n", "{}", "{}\r", "{}\n"])
def test_a_header_may_end_with_a_carriage_return_or_with_the_file(
    tmp_path: Path, text: str, newlines_in_values: bool
) -> None:
    """Rows up to the next line end were taken for the header, and were lost; a header alone was an error."""
    name = "a\rb" if newlines_in_values else "a"
    row = Types.ROW_NAMED(["n", name], [Types.LONG(), Types.STRING()])
    (tmp_path / "a.csv").write_bytes(text.format(f'"{name}",n').encode())
    format = CsvReaderFormat.for_row_type(row, newlines_in_values=newlines_in_values)
    rows = read(format, tmp_path)
    assert rows == ([{"n": 1, name: "x"}, {"n": 2, name: "y"}] if "x" in text else [])
    if not newlines_in_values:
        (tmp_path / "a.csv").write_bytes(text.replace("\n", "\r").format("a,n").encode())
        assert read(format, tmp_path) == rows


def test_csv_without_a_header_has_the_columns_in_their_order(tmp_path: Path) -> None:
    format = CsvReaderFormat.for_row_type(ROWS, use_header=False, column_separator=";", quote_char=None, null_value="-")
    (tmp_path / "a.csv").write_text('1;5" disk\n-;-\n')
    assert read(format, tmp_path / "a.csv") == [{"id": 1, "name": '5" disk'}, {"id": None, "name": None}]
    (tmp_path / "empty.csv").write_text("")
    assert read(CSV, tmp_path / "empty.csv") == []


def test_types_of_csv_columns(tmp_path: Path) -> None:
    kinds = {
        "flag": (Types.BOOLEAN(), "true", True),
        "small": (Types.BYTE(), "-5", -5),
        "real": (Types.FLOAT(), "1.5", 1.5),
        "sum": (Types.DECIMAL(10, 2), "1.50", Decimal("1.50")),
        "big": (Types.BIG_INT(), "123456789012345678901234567890", Decimal(123456789012345678901234567890)),
        "day": (Types.SQL_DATE(), "2024-02-29", date(2024, 2, 29)),
        "at": (Types.SQL_TIME(), "10:11:12.5", time(10, 11, 12, 500000)),
        "when": (Types.SQL_TIMESTAMP(), "2024-02-29 10:11:12.5", datetime(2024, 2, 29, 10, 11, 12, 500000)),
        "zoned": (Types.INSTANT(), "2024-02-29T10:00:00Z", datetime(2024, 2, 29, 10, tzinfo=timezone.utc)),
    }
    format = CsvReaderFormat.for_row_type(Types.ROW_NAMED(list(kinds), [kind for kind, _, _ in kinds.values()]))
    lines = [",".join(kinds), ",".join(text for _, text, _ in kinds.values()), "," * (len(kinds) - 1)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert read(format, tmp_path) == [{n: value for n, (_, _, value) in kinds.items()}, dict.fromkeys(kinds)]


def test_types_of_json_members(tmp_path: Path) -> None:
    inner = Types.ROW_NAMED(["day", "times"], [Types.SQL_DATE(), Types.LIST(Types.SQL_TIME())])
    format = JsonLinesReaderFormat.for_row_type(
        Types.ROW_NAMED(
            ["id", "sum", "when", "zoned", "inner"],
            [Types.INT(), Types.DECIMAL(10, 2), Types.SQL_TIMESTAMP(), Types.INSTANT(), inner],
        )
    )
    lines = [
        '{"id": 1, "sum": "1.50", "when": "2024-02-29T10:00:00.5", "zoned": "2024-02-29T10:00:00+01:00", "more": [], '
        '"inner": {"day": "2024-02-29", "times": ["10:11:12.5", null]}}',
        "",
        '{"inner": {"times": null}, "sum": 2.5}',
        '{"inner": null}',
    ]
    (tmp_path / "a.json").write_text("\n".join(lines))
    rows = read(format, tmp_path)
    assert rows[0] == {
        "id": 1,
        "sum": Decimal("1.50"),
        "when": datetime(2024, 2, 29, 10, 0, 0, 500000),
        "zoned": datetime(2024, 2, 29, 9, tzinfo=timezone.utc),
        "inner": {"day": date(2024, 2, 29), "times": [time(10, 11, 12, 500000), None]},
    }
    assert [row["inner"] for row in rows[1:]] == [{"day": None, "times": None}, None]
    assert rows[1]["sum"] == Decimal("2.50")


@pytest.mark.short
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("format", [CSV, JSON, QUOTED, StreamFormat.text_line_format(), StreamFormat("UTF-16")])
@pytest.mark.parametrize(
    ("suffix", "limits"),
    [
        ("", (None, None)),
        ("", (7, None)),
        ("", (None, 100)),
        ("", (40, 130)),
        (".gz", (None, 300)),
        (".zst", (27, None)),
        (".bz2", (None, 300)),
        (".GZ", (27, None)),
    ],
)
def test_each_record_is_read_once(
    tmp_path: Path, format: StreamFormat, suffix: str, parallelism: int, limits: tuple[int | None, int | None]
) -> None:
    names = ["x" * (i * 7 % 40) + ("\ny" if format is QUOTED and i % 3 == 0 else "") for i in range(60)]
    rows = [{"id": i, "name": name} for i, name in enumerate(names)]
    if isinstance(format, CsvReaderFormat):
        text = "id,name\n" + "".join(f'{row["id"]},"{row["name"]}"\n' for row in rows)
    else:
        text = "\n".join(map(json.dumps, rows))
    pack: Callable[[bytes], bytes] = {
        "": bytes,
        ".gz": gzip.compress,
        ".GZ": gzip.compress,
        ".bz2": bz2.compress,
        ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    }[suffix]
    (tmp_path / f"a{suffix}").write_bytes(pack(text.encode(format.charset_name)))
    builder = files(format, tmp_path)
    if limits[0] is not None:
        builder.set_max_records_per_epoch(limits[0])
    if limits[1] is not None:
        builder.set_max_bytes_per_epoch(limits[1])
    source = builder.build()
    enumerator, found, epochs = source.create_enumerator(None), [], []
    while not enumerator.exhausted:
        epochs.append(epoch(source, enumerator, parallelism))
        found += epochs[-1]
        enumerator = source.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))
    found = [json.loads(row) if isinstance(row, str) else row for row in found]
    assert sorted(row["id"] for row in found) == list(range(60))
    assert {row["id"]: row["name"] for row in found} == dict(enumerate(names))
    if parallelism == 1:
        assert found == rows
    most = limits[0] or 60
    assert all(len(each) <= most + (limits[0] is not None and isinstance(format, CsvReaderFormat)) for each in epochs)
    assert (len(epochs) > 2) == (limits != (None, None) and limits != (40, None))
    assert enumerator.lag().to_json() == {"files": 0, "bytes": 0}


@pytest.mark.usefixtures("small")
def test_files_on_s3_are_read_in_parts(s3_location: StorageLocation) -> None:
    store = s3_location.open()
    rows = [{"id": i, "name": "x" * (i % 20)} for i in range(40)]
    store.put("in/a.csv", b"id,name\n" + b"".join(f"{row['id']},{row['name']}\n".encode() for row in rows))
    store.put("in/b.json.gz", gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    for key, format in (("in/a.csv", CSV), ("in/b.json.gz", JSON)):
        builder = FileSource.for_record_stream_format(format, s3_location.child(key)).set_max_bytes_per_epoch(200)
        source = builder.build()
        enumerator, found = source.create_enumerator(None), []
        while not enumerator.exhausted:
            found += epoch(source, enumerator, 2)
        assert sorted(row["id"] for row in found) == list(range(40))
        assert str(s3_location.secret_access_key) not in json.dumps(enumerator.snapshot_state())
    folder = FileSource.for_record_stream_format(CSV, s3_location.child("in")).build()
    assert len(folder.create_enumerator(None).plan_epoch(1)[0]) == 2
    with pytest.raises(SourceReadError, match=r"there is no file s3://.*/gone"):
        gone = FileSource.for_record_stream_format(CSV, s3_location.child("gone")).build()
        gone.create_enumerator(None).plan_epoch(1)


def test_a_field_that_no_object_of_a_file_has_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    row_type = Types.ROW_NAMED(["id", "amount", "note"], [Types.LONG(), Types.LONG(), Types.STRING()])
    (tmp_path / "a.json").write_text('{"id": 1, "amuont": 5, "note": null}\n\n{"id": 2, "amuont": 6}\n')
    (tmp_path / "b.json").write_text('{"id": 3}\n')
    (tmp_path / "c.json").write_text("\n")
    source = FileSource.for_record_stream_format(JsonLinesReaderFormat.for_row_type(row_type), str(tmp_path)).build()
    assert [row["id"] for row in epoch(source, source.create_enumerator(None), 1)] == [1, 2, 3]
    assert [entry.getMessage().partition(f"{tmp_path}/")[2] for entry in caplog.records] == [
        "a.json has a member 'amount', so that field is null in all of its records. They have 'id', 'amuont', 'note'. "
        "If the row type has a wrong name, correct it.",
        "b.json has a member 'note', so that field is null in all of its records. They have 'id'. "
        "If the row type has a wrong name, correct it.",
    ]


def test_a_path_that_is_a_pattern_is_refused(tmp_path: Path) -> None:
    source = FileSource.for_record_stream_format(CSV, str(tmp_path / "*.csv")).build()
    (tmp_path / "a.csv").write_text("id,name\n1,ann\n")
    with pytest.raises(SourceReadError, match=r"Check the path, which may not be a pattern: name the folder\."):
        source.create_enumerator(None).plan_epoch(1)


def test_a_path_may_be_a_location(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "c d").write_text("1\n2\n")
    for path in (tmp_path / "a b", tmp_path / "a b" / "c d"):
        source = FileSource.for_record_stream_format(
            StreamFormat.text_line_format(), StorageLocation(str(path))
        ).build()
        assert epoch(source, source.create_enumerator(None)) == ["1", "2"]


def test_a_small_part_of_a_large_file_needs_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("id,name\n" + "1,aaaaaaaaaa\n" * 300_000)
    source = files(CSV, tmp_path / "a.csv").set_max_bytes_per_epoch(10_000).build()
    enumerator = source.create_enumerator(None)
    epoch(source, enumerator)
    fetched: list[int] = []
    get_range = LocalObjectStore.get_range
    monkeypatch.setattr(
        LocalObjectStore,
        "get_range",
        lambda *args: fetched.append(args[-1]) or get_range(*args),  # type: ignore[func-returns-value]
    )
    assert len(epoch(source, enumerator)) == 769
    assert sum(fetched) < 200_000


def test_what_is_not_planned_is_the_lag(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("123456789\n" * 10)
    (tmp_path / "b").write_text("123456789\n" * 5)
    source = files(StreamFormat.text_line_format(), tmp_path).set_max_bytes_per_epoch(40).build()
    enumerator, lags = source.create_enumerator(None), []
    while not enumerator.exhausted:
        epoch(source, enumerator)
        lags.append(enumerator.lag().to_json())
    assert lags == [{"files": n, "bytes": b} for n, b in ((2, 110), (2, 70), (1, 30), (0, 0))]
    assert enumerator.unread() == []


def test_the_limits_of_an_epoch_are_shared_by_subtasks(tmp_path: Path, small: None) -> None:
    (tmp_path / "a").write_text("123456789\n" * 100)
    source = files(StreamFormat.text_line_format(), tmp_path).set_max_bytes_per_epoch(60).build()
    shares = source.create_enumerator(None).plan_epoch(3)
    assert [[(s.offset, s.properties["stop"]) for s in share] for share in shares] == [
        [(0, 20)],
        [(83, 103)],
        [(166, 186)],
    ]


@pytest.mark.parametrize(
    ("format", "text", "message"),
    [
        (CSV, "id,name\n1,a\nq,b\n", r"a\.txt: line 3 \('q,b'\): .*'id' is 'q', which is no Types.LONG"),
        (CSV, "id,name\n1,a\n2\n", r"line 3 \('2'\): .*Expected 2 columns, got 1"),
        (CSV, "id,other\n1,a\n", r"its header has no column 'name', only \['id', 'other'\]"),
        (CSV, "id,name,id\n1,a,1\n", r"its header has column 'id' more than once"),
        (CSV, '"id\nx",id,name\n1,2,a\n', r"a quote in its header is not closed.*newlines_in_values=True"),
        (CSV, 'id,name\n1,a\n2,"a\nb"\n', r"line 3 .*quote is not closed.*newlines_in_values=True"),
        (CSV, 'id,name\n1,a\n2,"a\n', r"line 3 .*quote is not closed"),
        (CSV, 'id,name\n1,"""a""\\"\n2,"\\"a\\""\n', r"line 3 .*not doubled.*by Spark with escape='\"'"),
        (QUOTED, 'id,name\n1,",\n"""\n2,"a\n" \n', r"line 4 .*not doubled"),
        (QUOTED, 'id,name\n1,"a\nb"\n2,"a\n', r"line 4 .*quote is not closed"),
        (QUOTED, 'id,name\n1,"a\nb"\nx,"a"\n', r"line 4 .*'id' is 'x', which is no Types.LONG"),
        (JSON, '{"id": 1}\n{"id": "x"}\n', r"line 2 .*record.id is 'x', but must be Types.LONG"),
        (JSON, '{"id": 1}\n\n{"id":\n2}\n', r"line 3 "),
        (JSON, '{"id": 1}{"id": 2}\n', r"line 1 .*1 line\(s\), but 2 record\(s\): each line must be one JSON object"),
        (JSON, '{"id": 1}\n{"id": 300000000000000000000}\n', r"line 2 "),
        (JSON, '\n null\n{"id": 1}\n', r"line 2 \(' null'\): null is no JSON object"),  # PyArrow ended the process
        (JSON, '{"id": 1}\nnull\n', r"line 2 \('null'\): null is no JSON object"),
        (JSON, '{"id": 1}\n{"id": 2, "name": "\udcff"}\n', r"line 2 .*UTF8"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, format: StreamFormat, text: str, message: str) -> None:
    (tmp_path / "a.txt").write_text(text, errors="surrogateescape")
    with pytest.raises(InputChangedError, match=f"(?s)cannot read .*{message}"):
        read(format, tmp_path)


LOOSE = {
    Types.LONG(): [
        "0x1F",
        "0X1f",
        " 7",
        "7 ",
        "\t7",
        "1_000",
        "NaN",
        "1.0",
        "1e3",
        "+7",
        "--1",
        "9223372036854775808",
        "٣",
    ],
    Types.BYTE(): ["128", "-129"],
    Types.BOOLEAN(): ["7", "yes", " true", "t"],
    Types.DOUBLE(): ["1e400", "-1e400", "2e308", "0x1F", "1_0", " 1.5", "1,5", "1.5 "],
    Types.FLOAT(): ["1e39", "-1e39", "2e308"],
    Types.DECIMAL(9, 2): ["1.005", "12345678.00", " 1.5", "NaN", "0x1", "1_0", "1e-999999999"],
    Types.BIG_INT(): ["1.5", "0x1"],
    Types.SQL_DATE(): ["2024-13-01", "2024-02-30", "2024-1-1", " 2024-01-01", "20240101", "2024-01-01T10:00", "19000"],
    Types.SQL_TIME(): ["25:00", "10", " 10:00", "10:00Z", "10:00+01:00", "10:00:00.1234567"],
    Types.SQL_TIMESTAMP(): [
        "2024-13-01",
        " 2024-01-01",
        "1700000000",
        "2024-01-01T10:00Z",
        "2024-01-01T10:00+01:00",
        "2024-01-01T24:00",
        "2024-01-01T10:00:00.1234567",
    ],
    Types.INSTANT(): ["2024-01-01T10:00", "2024-01-01", "1700000000"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in LOOSE.items() for text in texts])
def test_what_is_not_written_strictly_is_refused(tmp_path: Path, kind: TypeInformation, text: str) -> None:
    """In a column of CSV; and as text and, if it is one, as a number of JSON lines, also as a part of a list."""
    row = Types.ROW_NAMED(["x", "v"], [Types.STRING(), kind])
    (tmp_path / "a.csv").write_text(f'x;v\n0x1F;\n 0x1F ;"{text}"\n')
    expected = r"a\.csv: line 3 .*'v' is .*which is no Types\..*correct it, or declare text"
    with pytest.raises(InputChangedError, match=expected) as caught:
        read(CsvReaderFormat.for_row_type(row, column_separator=";"), tmp_path / "a.csv")
    assert repr(text) in str(caught.value)
    listed = Types.ROW_NAMED(["v"], [Types.LIST(kind)])
    for value in [json.dumps(text), *([] if text != text.strip() or "," in text else [text])]:
        for row_type, record in ((row, f'{{"v": {value}}}'), (listed, f'{{"v": [null, {value}]}}')):
            (tmp_path / "a.json").write_text(f"{{}}\n{record}\n")
            with pytest.raises(InputChangedError, match=r"a\.json: line 2 "):
                read(JsonLinesReaderFormat.for_row_type(row_type), tmp_path / "a.json")


def test_text_of_json_that_looks_like_a_tiny_number_is_read_beside_decimals(tmp_path: Path) -> None:
    """Such as the number of an article; also if nobody reads the member."""
    row = Types.ROW_NAMED(["text", "price"], [Types.STRING(), Types.DECIMAL(9, 2)])
    texts = ["12E-4567", "steel 12E-4567 x", "3e-2024"]
    lines = [json.dumps({"text": text, "price": 1.5, "other": text}) for text in texts]
    (tmp_path / "a.json").write_text("\n\n".join(lines))
    rows = read(JsonLinesReaderFormat.for_row_type(row), tmp_path / "a.json")
    assert [(each["text"], each["price"]) for each in rows] == [(text, Decimal("1.5")) for text in texts]


def test_what_is_written_strictly_is_read(tmp_path: Path) -> None:
    texts: dict[TypeInformation, dict[str, Any]] = {
        Types.LONG(): {"-9223372036854775808": -(2**63), "007": 7, "-0": 0},
        Types.BOOLEAN(): {"true": True, "false": False, "1": True, "0": False},
        Types.DOUBLE(): {"1e3": 1000.0, "inf": math.inf, "-Infinity": -math.inf, "5": 5.0, "1e-400": 0.0},
        Types.FLOAT(): {"3.4e38": 3.3999999521443642e38, "inf": math.inf},
        Types.DECIMAL(9, 2): {"1.50000": Decimal("1.5"), "-1e3": Decimal(-1000)},
        Types.SQL_TIMESTAMP(): {"2024-01-01": datetime(2024, 1, 1)},
        Types.INSTANT(): {"2024-01-01 10:00:00.5+01:00": datetime(2024, 1, 1, 9, 0, 0, 500000, timezone.utc)},
    }
    for kind, values in texts.items():
        (tmp_path / "a.csv").write_text("v\n" + "".join(f"{text}\n" for text in values))
        format = CsvReaderFormat.for_row_type(Types.ROW_NAMED(["v"], [kind]))
        assert [row["v"] for row in read(format, tmp_path / "a.csv")] == list(values.values())


def test_a_bad_line_is_counted_from_the_beginning_of_its_file(tmp_path: Path, small: None) -> None:
    (tmp_path / "a.csv").write_text("id,name\n" + "1,aaaaaaaaaa\n" * 50 + "x,b\n" + "1,c\n" * 20)
    source = files(CSV, tmp_path).build()
    shares = source.create_enumerator(None).plan_epoch(4)
    with pytest.raises(SourceReadError, match=r"line 52 \('x,b'\)"):
        [list(source.read(split)) for share in shares for split in share]


@pytest.mark.parametrize(
    "changed",
    [
        {"null_value": "-"},
        {"column_separator": ";"},
        {"use_header": False},
        {"row_type": Types.ROW_NAMED(["n"], [Types.LONG()])},
    ],
)
def test_static_input_is_read_again_if_its_format_has_changed(tmp_path: Path, changed: dict[str, Any]) -> None:
    """The rows of the format before stayed in state, although the program reads others."""
    (tmp_path / "a.csv").write_text("n,s\n1,-\n")
    before = {"row_type": Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])}

    def static(position: Any, **options: Any) -> StaticInput:
        return StaticInput(files(CsvReaderFormat.for_row_type(**options), tmp_path).build(), position)

    first = static(None, **before)
    (planned,) = first.plan_epoch(1)
    first.on_epoch_read([split.advanced(split.properties["size"], finished=True) for split in planned])
    assert static(first.snapshot_state(), **before).plan_epoch(1) == [[]]
    assert static(first.snapshot_state(), **{**before, **changed}).plan_epoch(1) == [planned]


@pytest.mark.parametrize("name", ["a.csv.xz", "a.ZIP", "a.tar.gz", "a.tgz"])
def test_what_is_packed_otherwise_is_no_text(tmp_path: Path, name: str) -> None:
    """In a charset in which all bytes are text, records were read from it."""
    (tmp_path / name).write_bytes(bytes(range(256)))
    with pytest.raises(SourceReadError, match=rf"cannot read .*{name}: .* files are not unpacked, only \.gz, "):
        read(StreamFormat.text_line_format("ISO-8859-1"), tmp_path)


@pytest.mark.parametrize("charset", ["UTF-8", "ascii"])
def test_a_line_in_another_charset_is_an_error_that_says_what_to_do(tmp_path: Path, charset: str) -> None:
    (tmp_path / "a.txt").write_bytes("a\né\n".encode("ISO-8859-1"))
    with pytest.raises(InputChangedError, match=rf"a\.txt: line 2 .* is not in {charset}: give text_line_format\(\) "):
        read(StreamFormat.text_line_format(charset), tmp_path)


@pytest.mark.parametrize(
    "content", [gzip.compress(b"1\n" * 1000, mtime=0)[:-9], b"no gzip"], ids=["cut off", "no gzip"]
)
def test_a_damaged_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(SourceReadError, match=r"cannot read .*a\.gz"):
        read(StreamFormat.text_line_format(), tmp_path)
    limited = files(StreamFormat.text_line_format(), tmp_path).set_max_records_per_epoch(10_000).build()
    with pytest.raises(SourceReadError, match=r"cannot read .*a\.gz"):
        limited.create_enumerator(None).plan_epoch(1)


def test_a_file_that_changes_between_two_parts_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    source = (
        files(StreamFormat.text_line_format(), tmp_path)
        .monitor_continuously(Duration.of_seconds(1))
        .set_max_records_per_epoch(1)
        .build()
    )
    enumerator = source.create_enumerator(None)
    assert epoch(source, enumerator) == ["1"]
    (tmp_path / "a").write_text("1\n2\n3\n4\n")
    with pytest.raises(SourceReadError, match="changed after"):
        enumerator.plan_epoch(1)


def test_a_file_that_another_one_replaces_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(line: str) -> None:
        (tmp_path / ".new").write_text(line * 100)
        (tmp_path / ".new").rename(tmp_path / "a")

    monkeypatch.setattr(text_reader, "_FETCH_BYTES", 8)
    write("1\n")
    source = files(StreamFormat.text_line_format(), tmp_path).process_static_file_set().build()
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    rows = source.read(split)
    assert set(next(rows)[0].to_pylist()) == {"1"}
    write("2\n")
    with pytest.raises(SourceReadError, match=r"cannot read .*/a: it was changed after"):
        list(rows)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: CsvReaderFormat.for_row_type(Types.LONG()), "row_type of CsvReaderFormat"),
        (lambda: CsvReaderFormat.for_row_type(ROWS, column_separator="||"), "column_separator of CsvReaderFormat"),
        (lambda: CsvReaderFormat.for_row_type(ROWS, quote_char=","), "are both ','"),
        (lambda: CsvReaderFormat.for_row_type(ROWS, quote_char=None, newlines_in_values=True), "needs a quote_char"),
        (
            lambda: CsvReaderFormat.for_row_type(Types.ROW_NAMED(["a"], [Types.LIST(Types.INT())])),
            "read column 'a'",
        ),
        (
            lambda: JsonLinesReaderFormat.for_row_type(
                Types.ROW_NAMED(["a"], [Types.LIST(Types.MAP(Types.STRING(), Types.INT()))])
            ),
            r"cannot read column 'a\[\]' as",
        ),
        (lambda: JsonLinesReaderFormat.for_row_type(Types.ROW_NAMED(["a"], [Types.BIG_DEC()])), "DECIMAL"),
        (lambda: files(CSV, Path("x")).set_max_records_per_epoch(0), "max_records_per_epoch=0"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(declare: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declare()


@given(st.lists(st.sampled_from([b'"', b"\n", b"x", b","]), max_size=40).map(b"".join), st.booleans())
def test_a_record_ends_at_a_line_end_outside_of_quotes(data: bytes, quoted: bool) -> None:
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10 and not (quoted and data[:at].count(b'"') % 2)]
    assert text_reader.ends_of_records(data, ord('"') if quoted else None).tolist() == ends
