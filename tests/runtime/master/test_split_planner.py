from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.connectors.files.file_source import FileEnumerator
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Source, SplitEnumeratorContext
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.datastream.connectors.number_seq import NumberSequenceSource
from dagster_flinkpy.datastream.connectors.spark import SparkSource
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.runtime.master.epochs.split_planner import SplitPlanner
from dagster_flinkpy.storage import StorageLocation
from tests.examples import examples

ROW = Types.ROW_NAMED(["n"], [Types.LONG()])
SOURCES = ["parquet", "files", "collection", "numbers", "spark"]
SPLIT = {"split_id": "a", "properties": {}, "offset": 0, "finished": False}
HOSTILE: list[Any] = [
    ["x"],
    "text",
    7,
    True,
    {"unknown": 1},
    {"last": 5, "planned": 1, "present": 1, "open": []},
    {"last": "a", "planned": "1", "present": 1, "open": []},
    {"last": "a", "planned": 1, "present": None, "open": []},
    {"last": "a", "planned": 1, "open": [], "files": "?"},
    {"last": "a", "planned": 1, "open": [], "files": "AAAA"},
    {"last": "a", "planned": 1, "open": [SPLIT], "files": ""},
    {"listed": True, "open": [SPLIT], "files": ""},
    {"listed": True, "open": [{**SPLIT, "offset": -1}], "files": ""},
    {"listed": True, "open": [[]], "files": ""},
    {"listed": "yes", "open": [], "files": ""},
    {"listed": True, "open": [], "found": 3},
    {"next": -1},
    {"next": "1"},
    {"next": True},
    {"read": 1},
    {"last": 1},
    {"last": 1, "ended": 1},
    {"after": 1, "rest": [{**SPLIT, "properties": {"end": 3}}], "ended": False},
    {"after": 1, "rest": [1], "ended": False},
]


def source_of(kind: str, folder: Path) -> Source:
    if kind == "parquet":
        return ParquetSource(str(folder), row_type=ROW)
    if kind == "files":
        return FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder)).build()
    if kind == "collection":
        return CollectionSource([1, 2, 3], Types.LONG())
    if kind == "numbers":
        return NumberSequenceSource(1, 3)
    return SparkSource(lambda spark: spark, ROW, StorageLocation(str(folder)), "in")


def planner(source: Source, position: Any) -> SplitPlanner:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in")
    context = SplitEnumeratorContext("job", 1, nullcontext)
    return SplitPlanner(env.get_job_graph(), {"in": json.loads(json.dumps(position))}, context)


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("position", HOSTILE, ids=str)
def test_a_position_of_another_source_is_refused(kind: str, position: Any, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    with pytest.raises(RestoreError, match=r"source 'in', a \w+, cannot continue from its stored position"):
        planner(source, position)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
POSITIONS = {
    "parquet": {"last": "a", "present": 1, "planned": 1, "open": [SPLIT], "files": "", "ended": False},
    "files": {"listed": True, "open": [SPLIT], "files": "", "ended": True},
    "collection": {"next": 2, "ended": False},
    "numbers": {
        "after": 3,
        "rest": [{**SPLIT, "properties": {"subtask": 0, "end": 2}, "offset": 1}],
        "ended": False,
    },
    "spark": {"read": True, "ended": False, "run": "r"},
}


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(SOURCES), data=st.data())
def test_a_damaged_position_is_refused_or_read(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    position: Any = dict(POSITIONS[kind])
    name = data.draw(st.sampled_from(sorted(position)))
    if data.draw(st.booleans()):
        position[name] = data.draw(JSON)
    else:
        del position[name]
    try:
        planner(source_of(kind, tmp_path), position)
    except RestoreError as error:
        assert "source 'in'" in str(error)


def test_an_epoch_of_a_partition_leaves_no_position(tmp_path: Path) -> None:
    for kind in SOURCES:
        planner(source_of(kind, tmp_path), {})


def test_a_source_that_has_ended_is_asked_once_for_each_barrier_what_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder was listed for each part that another source had."""
    (tmp_path / "a").write_text("1")
    asked = list[str]()
    plans = planner(source_of("files", tmp_path), {})
    monkeypatch.setattr(FileEnumerator, "unread", lambda self: asked.append("unread") or [])
    assert plans.plan_part(1, first=True, last=False).has_input
    plans.was_read(1, {})
    for _ in range(3):
        plans.plan_part(1, first=False, last=False)
    assert asked == []
    plans.plan_part(2, first=True, last=False)
    assert asked == ["unread"]
