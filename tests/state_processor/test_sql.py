"""SQL queries over stored state."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner

from dagster_flinkpy.cli import main
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.state_processor import SavepointReader, read_savepoint, sql, write_savepoint
from dagster_flinkpy.state_processor.sql import _PARSE, key_from_text, plan_query, query_state
from dagster_flinkpy.state_processor.stored_state import KeyedStateRows
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import environment, events
from tests.state_processor.programs import RECORDS, all_kinds

TOTALS: dict[str, int] = {}
for _key, _, _value in RECORDS:
    TOTALS[_key] = TOTALS.get(_key, 0) + _value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    with HarnessAttempt(all_kinds(), folder) as attempt:
        while not attempt.finished:
            attempt.run_epoch()
    return folder / "job"


@pytest.fixture(scope="module")
def savepoint(folder: Path) -> SavepointReader:
    return read_savepoint(str(folder))


def rows_of(savepoint: SavepointReader, query: str, **options: Any) -> list[dict[str, Any]]:
    return query_state(savepoint, query, **options).to_pylist()


def test_a_state_is_a_table(savepoint: SavepointReader) -> None:
    rows = rows_of(savepoint, "select key, value.sum as value from kinds.total")
    assert {row["key"]: row["value"] for row in rows} == TOTALS


def test_windows_have_a_start_and_an_end(tmp_path: Path) -> None:
    env = environment(2)
    keyed = events(env, [("a", 3_600_500, 1), ("b", 3_601_500, 2), ("c", 9_000_000, 3)], per_epoch=2).key_by("key")
    keyed.window(TumblingEventTimeWindows(1000)).reduce(lambda a, b: a).uid("windows")
    with HarnessAttempt(env.get_job_graph(), tmp_path) as attempt:
        attempt.run_epoch()
    savepoint = read_savepoint(str(tmp_path / "job"))
    (name,) = (each.name for each in savepoint.states if each.uid == "windows" and each.kind != "TIMER")
    hour = datetime(1970, 1, 1, 1)
    first, second, third = hour, hour + timedelta(seconds=1), hour + timedelta(seconds=2)
    assert rows_of(savepoint, f'select key, window_start, window_end from windows."{name}" order by key') == [
        {"key": "a", "window_start": first, "window_end": second},
        {"key": "b", "window_start": second, "window_end": third},
    ]
    assert rows_of(
        savepoint, f"select key from windows.\"{name}\" where window_end <= timestamp '1970-01-01 01:00:01'"
    ) == [{"key": "a"}]
    (everything, _) = rows_of(savepoint, f'from windows."{name}" order by key')
    assert everything["namespace"] == {"f0": 3_600_000, "f1": 3_601_000}
    assert (everything["window_start"], everything["window_end"]) == (first, second)


def test_names_that_differ_in_case_are_not_taken_for_each_other(tmp_path: Path) -> None:
    rows = Types.ROW_NAMED(["a", "A"], [Types.LONG(), Types.LONG()])
    data = {"key": ["k"], "value": [1], "rows": [{"a": 1, "A": 2}]}
    writer = write_savepoint()
    for uid, name, kind in (("op", "one", Types.LONG()), ("op", "ONE", Types.LONG()), ("OP", "rows", rows)):
        value = "rows" if kind is rows else "value"
        writer.with_keyed_state(uid, ValueStateDescriptor(name, kind), pa.table(data), key="key", value=value)
    savepoint = read_savepoint(writer.write(str(tmp_path / "savepoint")))
    assert rows_of(savepoint, "select value from op.one") == [{"value": 1}]
    assert rows_of(savepoint, "select r.key from op.one join OP.rows r using (key)") == [{"key": "k"}]
    with pytest.raises(ConfigurationError, match=r'tell the states .*"ONE".* apart'):
        rows_of(savepoint, "select x.value from op.one join op.ONE x using (key)")
    with pytest.raises(ConfigurationError, match="fields in 'value' of state 'rows' 'a' and 'A' apart"):
        rows_of(savepoint, 'select value."A" from OP.rows')


def test_decimals_of_more_than_38_digits_are_text(tmp_path: Path) -> None:
    writer, data = write_savepoint(), pa.table({"key": ["k"], "value": pa.array([2**200], pa.decimal256(76, 0))})
    writer.with_keyed_state("op", ValueStateDescriptor("n", Types.BIG_INT()), data, key="key", value="value")
    savepoint = read_savepoint(writer.write(str(tmp_path / "savepoint")))
    assert rows_of(savepoint, "select value from op.n") == [{"value": str(2**200)}]


def test_states_can_be_joined(savepoint: SavepointReader) -> None:
    rows = rows_of(
        savepoint,
        "select t.value.sum as value, list_sum(v.value) as of_list "
        "from kinds.total t join kinds.values v on t.key = v.key",
    )
    assert rows
    assert all(row["value"] == row["of_list"] for row in rows)


def test_columns_of_one_name_are_told_apart(savepoint: SavepointReader, folder: Path) -> None:
    """A row had the value of the last one only, which the command showed in the first column."""
    query = "select 1 as n, 2 as n, 3 as n_1, 4 as n from kinds.total limit 1"
    assert rows_of(savepoint, query) == [{"n": 1, "n_2": 2, "n_1": 3, "n_3": 4}]
    shown = CliRunner().invoke(main, ["state", "sql", str(folder), query]).output
    assert shown.split() == ["n", "n_2", "n_1", "n_3", "1", "2", "3", "4"]


def test_only_the_states_that_are_named_are_read(savepoint: SavepointReader, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    columns_of = KeyedStateRows.read_columns
    monkeypatch.setattr(
        KeyedStateRows, "read_columns", lambda self, names: read.append(self.name) or columns_of(self, names)
    )
    rows_of(savepoint, "with big as (select * from kinds.total where value.sum > 3) select count(*) from big")
    assert read == ["total"]


def test_with_keys_only_theirs_are_read(savepoint: SavepointReader, monkeypatch: pytest.MonkeyPatch) -> None:
    key = min(TOTALS)
    asked: list[Any] = []
    for_keys = KeyedStateRows.for_keys
    monkeypatch.setattr(KeyedStateRows, "for_keys", lambda self, keys: asked.append(keys) or for_keys(self, keys))
    assert rows_of(savepoint, "select key, value.sum as value from kinds.total", keys=[key]) == [
        {"key": key, "value": TOTALS[key]}
    ]
    assert asked == [[key]]


NAMES = ["key_group", "key_hash", "key", "value"]

PLANS: list[tuple[str, list[str], tuple[int | str, ...] | None]] = [
    ("select value.shop, count(*) from a.b t group by 1", ["value"], None),
    ("select count(*) from a.b", ["key_group"], None),
    ("select KEY, a.b.Value from a.b", ["key", "value"], None),
    ("select sum(x.value) from a.b x join a.c using (key)", ["key", "value"], None),
    ("select value from (select * from a.b)", NAMES, None),
    ("from a.b", NAMES, None),
    ("select t from a.b t", NAMES, None),
    ("select b from a.b", NAMES, None),
    ("select columns('v.*') from a.b", NAMES, None),
    ("select max(#1) from a.b", NAMES, None),
    ("select k from a.b t(g, h, k) where key = 1", NAMES, None),
    ("select a.b.value from a.b natural join a.c where key = 1", NAMES, None),
    ("select value from a.b where key = 42", ["key", "value"], (42,)),
    ("select value from a.b where 'x' = b.key", ["key", "value"], ("x",)),
    ("select value from a.b where a.b.key = -1 and value.n > 3", ["key", "value"], (-1,)),
    ("select value from a.b t where value.n > 3 and t.key in (1, 2)", ["key", "value"], (1, 2)),
    ("select count(*) from a.b where key = ''", ["key"], ("",)),
    # nothing is certain about the keys of these
    ("select value from a.b where key = 1 or key = 2", ["key", "value"], None),
    ("select value from a.b where not key = 1", ["key", "value"], None),
    ("select value from a.b where key not in (1)", ["key", "value"], None),
    ("select value from a.b where key in (1, value.n)", ["key", "value"], None),
    ("select value from a.b where key = 1.5", ["key", "value"], None),
    ("select value from a.b where key = null", ["key", "value"], None),
    ("select value from a.b where value.key = 1", ["key", "value"], None),
    ("select value from a.value where value.key = 1", NAMES, None),
    ("select value from a.b where key = (select max(key) from a.b)", ["key", "value"], None),
    ("select x.value from a.b x, a.b y where x.key = 1", ["key", "value"], None),
    ("select value from a.b where key = 1 union all select value from a.b", ["key", "value"], None),
    ("with t as (select value from a.b) select value from t where key = 1", ["key", "value"], None),
    ("select value from (select key + 1 as key, value from a.b) where key = 1", ["key", "value"], None),
    ("select value from a.b tablesample 50% where key = 1", NAMES, None),
]


@pytest.mark.parametrize(("query", "columns", "keys"), PLANS, ids=[query for query, *_ in PLANS])
def test_what_a_query_reads(query: str, columns: list[str], keys: Any) -> None:
    tree = json.loads(duckdb.execute(_PARSE, [query]).fetchall()[0][0])
    assert not tree["error"]
    plan = plan_query(tree)
    assert (plan.columns(NAMES), plan.keys) == (columns, keys)


@pytest.mark.parametrize(
    "query",
    [
        "select key, value.sum from kinds.total where key = '{0}' order by 1",
        "select count(*) from kinds.total where key in ('{0}', '{1}', 'nobody')",
        "select key, count(*) from kinds.values group by key order by key",
        "select t from kinds.total t order by t.key",
        "select total from kinds.total where total.key = '{1}'",
        "select key from kinds.total where key = '{0}'::text order by 1",
        "select a.key, b.value.sum from kinds.values a join kinds.total b using (key) where a.key = '{0}'",
    ],
)
def test_reading_less_gives_the_same(savepoint: SavepointReader, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    query = query.format(*sorted(TOTALS))
    found = rows_of(savepoint, query)
    assert found
    monkeypatch.setattr(sql, "plan_query", lambda tree: replace(plan_query(tree), _words=None, keys=None))
    assert found == rows_of(savepoint, query)


def test_a_key_in_a_condition_is_all_that_is_read(savepoint: SavepointReader, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    for_keys = KeyedStateRows.for_keys
    monkeypatch.setattr(KeyedStateRows, "for_keys", lambda self, keys: asked.append(keys) or for_keys(self, keys))
    key = min(TOTALS)
    assert rows_of(savepoint, f"select value.sum as n from kinds.total where key = '{key}'") == [{"n": TOTALS[key]}]
    with pytest.raises(ConfigurationError, match="the query failed"):  # DuckDB compares text and numbers, or refuses
        rows_of(savepoint, "select value from kinds.total where key = 5")
    assert asked == [(key,)]


def test_some_columns_in_any_order_are_those_of_all(savepoint: SavepointReader) -> None:
    for state in savepoint.states:
        expected = state.to_arrow()
        for names in (expected.schema.names, *([name] for name in expected.schema.names)):
            read = state.read_columns(names)
            assert read.schema == expected.select(names).schema
            assert sorted(map(repr, read.to_pylist())) == sorted(map(repr, expected.select(names).to_pylist()))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from kinds.totals", r"totals.? does not exist.*The states are: .*kinds\.total\b"),
        ("selct 1", "this is not a query: .*syntax error"),
        ("delete from kinds.total", "this is not a query: Only SELECT"),
        ("select nothing from kinds.total", "the query failed: .*nothing"),
        ("select * from read_csv('/etc/passwd')", "the query failed: .*disabled"),
    ],
)
def test_what_is_wrong_with_a_query_is_said(savepoint: SavepointReader, query: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        query_state(savepoint, query)


@pytest.mark.parametrize(
    ("text", "key_type", "key"),
    [
        ("42", Types.STRING(), "42"),
        ("42", Types.LONG(), 42),
        ("true", Types.BOOLEAN(), True),
        ('["a", 1]', Types.TUPLE([Types.STRING(), Types.LONG()]), ("a", 1)),
        ('["a", 1]', Types.ROW([Types.STRING(), Types.LONG()]), Row("a", 1)),
    ],
)
def test_keys_are_typed_as_text_or_json(text: str, key_type: TypeInformation, key: Any) -> None:
    assert key_from_text(text, key_type) == key


@pytest.mark.parametrize("text", ["a", "[1]", "{}"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(TypeMismatchError, match="is not a key of type"):
        key_from_text(text, Types.LONG())


def test_on_the_command_line(folder: Path) -> None:
    key = min(TOTALS)
    done = CliRunner().invoke(
        main,
        [
            "state",
            "sql",
            str(folder),
            "select key, value.sum as value from kinds.total",
            "--key",
            key,
            "--format",
            "json",
        ],
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {"key": key, "value": TOTALS[key]}
    shown = CliRunner().invoke(main, ["state", "sql", str(folder), "select count(*) as n from kinds.total"])
    assert shown.output.split() == ["n", str(len(TOTALS))]
