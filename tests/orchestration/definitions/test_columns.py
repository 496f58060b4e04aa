"""Column schema and column lineage of each kind of operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dagster import AssetKey

from dagster_flinkpy.common import Time, Types, WatermarkStrategy
from dagster_flinkpy.datastream import OutputTag, StreamExecutionEnvironment
from dagster_flinkpy.datastream.aggregations import Aggregation
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.orchestration import build_flink_asset_specs
from dagster_flinkpy.orchestration.dagster_internals import TableMetadataSet

ROW = Types.ROW_NAMED(["key", "at", "price"], [Types.STRING(), Types.LONG(), Types.LONG()])
BY_TIME = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
HOURS: Any = TumblingEventTimeWindows.of(Time.hours(1))
ALL = {"key", "at", "price"}
SAME = {"key": {"key"}, "at": {"at"}, "price": {"price"}}


def lineage_of(build: Callable[[Any], Any], uid: str = "made") -> dict[str, set[str]] | None:
    """Returns from which columns of asset ``rows`` the columns of an operator come."""
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env.from_source(CollectionSource([["k", 1, 2]], ROW), BY_TIME, "rows").uid("rows"))
    (spec,) = (spec for spec in build_flink_asset_specs(env, name="job") if spec.key.path[-1] == uid)
    found = TableMetadataSet.extract(spec.metadata)
    if found.column_lineage is None:
        return None
    deps = found.column_lineage.deps_by_column
    assert found.column_schema is not None
    assert list(deps) == [column.name for column in found.column_schema.columns]
    assert {dep.asset_key for each in deps.values() for dep in each} == {AssetKey(["job", "rows"])}
    return {column: {dep.column_name for dep in each} for column, each in deps.items()}


TWO = Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.LONG()])


@pytest.mark.parametrize(
    ("build", "lineage"),
    [
        (lambda rows: rows.filter(bool).uid("made"), SAME),
        (lambda rows: rows.filter_batch(lambda batch: batch).uid("made"), SAME),
        (lambda rows: rows.key_by("key").sum("price").uid("made"), SAME),
        (lambda rows: rows.key_by("key").max_by("price").uid("made"), SAME),
        (lambda rows: rows.key_by("key").window(HOURS).sum("price").uid("made"), SAME),
        (lambda rows: rows.key_by("key").count().uid("made"), {"key": {"key"}, "count": set()}),
        (
            lambda rows: rows.key_by(("key", "at")).mean("price").uid("made"),
            {"key": {"key"}, "at": {"at"}, "mean": {"price"}},
        ),
        (
            lambda rows: (
                rows.key_by("key").window(HOURS).agg(n=Aggregation.count(), total=Aggregation.sum("price")).uid("made")
            ),
            {"key": {"key"}, "window_start": set(), "window_end": set(), "n": set(), "total": {"price"}},
        ),
        (
            lambda rows: rows.key_by(lambda row: row.key, Types.STRING()).mean("price").uid("made"),
            {"key": ALL, "mean": {"price"}},
        ),
        (lambda rows: rows.map(lambda row: row, TWO).uid("made"), {"a": ALL, "b": ALL}),
        (lambda rows: rows.key_by("key").reduce(lambda a, b: a).uid("made"), dict.fromkeys(ALL, ALL)),
        (lambda rows: rows.map(str).map(str, TWO).uid("made"), None),
    ],
)
def test_lineage_is_exact_where_the_library_computes_and_otherwise_names_what_a_function_gets(
    build: Callable[[Any], Any], lineage: dict[str, set[str]] | None
) -> None:
    assert lineage_of(build) == lineage


def test_lineage_goes_through_hidden_operators() -> None:
    assert lineage_of(
        lambda rows: rows.filter(bool).map(lambda row: row.price, Types.LONG()).filter(bool).uid("made")
    ) == {"value": ALL}


def test_a_side_output_has_no_lineage() -> None:
    late = OutputTag("late", ROW)

    def build(rows: Any) -> None:
        windows = rows.key_by("key").window(HOURS).side_output_late_data(late).sum("price").uid("sums")
        windows.get_side_output(late).filter(bool).uid("made")

    assert lineage_of(build) is None


def test_wide_functions_have_columns_and_no_lineage() -> None:
    names = [f"c{n}" for n in range(40)]
    wide = Types.ROW_NAMED(names, [Types.LONG()] * len(names))
    env = StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_source(CollectionSource([[1] * 40], wide), WatermarkStrategy.no_watermarks(), "rows").uid("rows")
    rows.map(lambda row: row, wide).uid("made")
    *_, made = build_flink_asset_specs(env, name="job")
    found = TableMetadataSet.extract(made.metadata)
    assert found.column_schema is not None
    assert len(found.column_schema.columns) == 40
    assert found.column_lineage is None


def test_united_streams_give_their_columns(tmp_path: Any) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    one, two = (env.from_source(CollectionSource([["k", 1, 2]], ROW), BY_TIME, uid).uid(uid) for uid in ("one", "two"))
    one.union(two).filter(bool).uid("made")
    *_, made = build_flink_asset_specs(env, name="job")
    lineage = TableMetadataSet.extract(made.metadata).column_lineage
    assert lineage is not None
    assert [(dep.asset_key.path[-1], dep.column_name) for dep in lineage.deps_by_column["at"]] == [
        ("one", "at"),
        ("two", "at"),
    ]
