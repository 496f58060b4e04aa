"""SQL queries over stored state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_flinkpy.cli import main
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.state_processor import SavepointReader, read_savepoint
from dagster_flinkpy.state_processor.sql import key_from_text, query_state
from dagster_flinkpy.state_processor.stored_state import KeyedStateRows
from tests.runtime.harness import HarnessAttempt
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


def test_states_can_be_joined(savepoint: SavepointReader) -> None:
    rows = rows_of(
        savepoint,
        "select t.value.sum as value, list_sum(v.value) as of_list "
        "from kinds.total t join kinds.values v on t.key = v.key",
    )
    assert rows
    assert all(row["value"] == row["of_list"] for row in rows)


def test_only_the_states_that_are_named_are_read(savepoint: SavepointReader, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    to_arrow = KeyedStateRows.to_arrow
    monkeypatch.setattr(KeyedStateRows, "to_arrow", lambda self: read.append(self.name) or to_arrow(self))
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


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from kinds.totals", r"kinds\.totals. does not exist.*The states are: .*kinds\.total\b"),
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
