from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.time_domain import TimeDomain
from dagster_flinkpy.errors import ConfigurationError, RestoreError, TypeMismatchError
from dagster_flinkpy.state_processor import read_savepoint
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt
from tests.state_processor.programs import RECORDS, all_kinds

VALUES: dict[str, list[int]] = {}
for key, _, value in RECORDS[:40]:  # what two epochs read
    VALUES.setdefault(key, []).append(value)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Returns the folder of a job with one checkpoint after two epochs, and a savepoint of it."""
    folder = tmp_path_factory.mktemp("job")
    with HarnessAttempt(all_kinds(), folder) as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
        return folder / "job", attempt.savepoint(str(folder / "savepoints"))


@pytest.fixture(params=["job", "checkpoint", "metadata", "savepoint"])
def path(request: pytest.FixtureRequest, job: tuple[Path, str]) -> str:
    folder, savepoint = job
    return {
        "job": str(folder),
        "checkpoint": str(folder / "chk-2"),
        "metadata": str(folder / "chk-2" / "_metadata"),
        "savepoint": savepoint,
    }[request.param]


def by_key(rows: list[dict[str, Any]], *columns: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["key"], []).append(
            row[columns[0]] if len(columns) == 1 else tuple(row[c] for c in columns)
        )
    return {key: sorted(values) for key, values in found.items()}


def test_states_of_all_kinds(path: str) -> None:
    savepoint = read_savepoint(path)
    assert savepoint.operators == ("events", "kinds", "collect")
    assert {state.name: (state.uid, state.kind) for state in savepoint.states} == {
        "total": ("kinds", "VALUE"),
        "values": ("kinds", "LIST"),
        "seen": ("kinds", "MAP"),
        "largest": ("kinds", "REDUCING"),
        "any": ("kinds", "LIST"),
        "recent": ("kinds", "VALUE"),
        "_timers/event_time": ("kinds", "TIMER"),
        "part": ("kinds", "SPLIT_DISTRIBUTE"),
        "shared": ("kinds", "UNION"),
        "rules": ("kinds", "BROADCAST"),
    }

    def rows(name: str) -> list[dict[str, Any]]:
        state = savepoint.state("kinds", name)
        assert state.to_arrow().schema == state.schema
        return state.to_pylist()

    assert {row["key"]: sorted(row["value"]) for row in rows("values")} == VALUES
    assert by_key(rows("seen"), "map_key", "value") == {
        key: sorted({value % 3: value for value in values}.items()) for key, values in VALUES.items()
    }
    assert by_key(rows("largest"), "value") == {key: [max(values)] for key, values in VALUES.items()}
    (total,) = (row["value"] for row in rows("total") if row["key"] == "k3")
    assert isinstance(total, Row)
    assert total.as_dict() == {"count": len(VALUES["k3"]), "sum": sum(VALUES["k3"])}
    assert all(row["expires_at"] > 1_600_000_000_000 for row in rows("recent"))
    timers = savepoint.timers("kinds", TimeDomain.EVENT_TIME).to_pylist()
    assert by_key(timers, "time") == {key: [1_000_000 + value for value in values] for key, values in VALUES.items()}
    assert [row["value"] for row in rows("part")] == [0, 1, 10, 11]
    assert [row["value"] for row in rows("shared")] == ["subtask 0", "subtask 1"]
    assert rows("rules") == [{"key": "limit", "value": 7}]


def test_some_keys(path: str) -> None:
    total = read_savepoint(path).state("kinds", "seen")
    some = total.for_keys(["k3", "k5", "nobody"])
    rows = some.to_pylist()
    assert {row["key"] for row in rows} == {"k3", "k5"}
    assert len(rows) == 6
    assert some.for_keys(pa.array(["k1"])).to_arrow()["key"].unique().to_pylist() == ["k1"]
    assert total.for_keys([]).to_arrow().equals(total.schema.empty_table())
    with pytest.raises(TypeMismatchError, match="declared STRING"):
        total.for_keys([3])
    with pytest.raises(TypeMismatchError, match="the keys of the state are string, not large_string"):
        total.for_keys(pa.array(["k1"], pa.large_string()))
    chunks = pa.chunked_array([["k1"], ["k2"]])
    assert len(total.for_keys(chunks).to_arrow()) == 6
    assert len(total.for_keys(chunks.slice(0, 0)).to_arrow()) == 0
    with pytest.raises(ConfigurationError, match=r"state 'part' of operator 'kinds' is operator state, which has no"):
        read_savepoint(path).state("kinds", "part").for_keys(["k1"])


def test_only_subtasks_that_own_a_key_are_read(job: tuple[Path, str]) -> None:
    total = read_savepoint(job[1]).state("kinds", "total")
    assert total.subtasks == (0, 1)
    assert {len(total.for_keys([key]).subtasks) for key in VALUES} == {1}


def test_nothing_is_unpickled_unless_asked(job: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    state = read_savepoint(job[1]).state("kinds", "any").for_keys(["k2"])
    monkeypatch.setattr(pickle, "loads", lambda data: pytest.fail("unpickled"))
    (plain,) = state.to_pylist()
    assert all(isinstance(value, bytes) for value in plain["value"])
    monkeypatch.undo()
    (row,) = state.to_pylist(allow_pickled_state=True)
    assert sorted(each["value"] for each in row["value"]) == VALUES["k2"]


def test_data_frames(job: tuple[Path, str]) -> None:
    total = read_savepoint(job[1]).state("kinds", "total")
    sums = {key: sum(values) for key, values in VALUES.items()}
    frame = total.to_pandas()
    assert {row.key: row.value["sum"] for row in frame.itertuples()} == sums
    polars = total.to_polars().with_columns(pl.col("value").struct.field("sum"))
    assert dict(polars.select("key", "sum").iter_rows()) == sums


def test_duckdb_reads_rows(job: tuple[Path, str]) -> None:
    rows = read_savepoint(job[1]).state("kinds", "total").to_arrow()
    with duckdb.connect() as connection:
        found = connection.register("total", rows).sql("select key, value.sum from total").fetchall()
    assert dict(found) == {key: sum(values) for key, values in VALUES.items()}


def test_what_is_not_there(job: tuple[Path, str], tmp_path: Path) -> None:
    savepoint = read_savepoint(StorageLocation(job[1]))
    with pytest.raises(RestoreError, match="no operator has uid 'else'; the uids are: collect, events, kinds"):
        savepoint.state("else", "total")
    with pytest.raises(RestoreError, match=r"operator 'kinds' has no state 'else'; it has: .*total"):
        savepoint.state("kinds", "else")
    with pytest.raises(RestoreError, match="has no state '_timers/processing_time'"):
        savepoint.timers("kinds", TimeDomain.PROCESSING_TIME)
    with pytest.raises(RestoreError, match="is not a savepoint"):
        read_savepoint(str(tmp_path))
