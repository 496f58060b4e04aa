from __future__ import annotations

from collections import Counter

import pytest
from dagster import AssetKey, DefaultSensorStatus

from assets.definitions import DAILY_JOB, JOB, defs
from assets.flights_pipeline import TABLES

pytestmark = pytest.mark.smoke


def test_nothing_runs_before_it_is_switched_on() -> None:
    sensors = list(defs.get_repository_def().sensor_defs)
    assert len(sensors) == 7
    assert {sensor.default_status for sensor in sensors} == {DefaultSensorStatus.STOPPED}


def test_the_run_of_a_sensor_evaluates_the_checks() -> None:
    graph = defs.get_repository_def().asset_graph
    checked = {key.asset_key for key in graph.asset_check_keys}
    assert AssetKey([JOB, "rotations"]) in checked
    assert AssetKey([DAILY_JOB, "rotations_table"]) in checked
    evaluated = defs.resolve_job_def(f"{JOB}_checkpoint").asset_layer.asset_graph.asset_check_keys
    assert evaluated == {key for key in graph.asset_check_keys if key.asset_key.path[0] == JOB}


def test_tables_are_to_be_fresh_and_days_follow_each_other() -> None:
    graph = defs.get_repository_def().asset_graph
    for job in (JOB, DAILY_JOB):
        for table in TABLES:
            assert graph.get(AssetKey([job, f"{table}_table"])).freshness_policy is not None
        assert graph.get(AssetKey([job, "flights"])).freshness_policy is None
    for source in ("flights", "weather"):  # the other assets of a day depend on them
        key = AssetKey([DAILY_JOB, source])
        assert key in graph.get(key).parent_keys
    assert graph.get(AssetKey([JOB, "rotations"])).partitions_def is None


def test_materialize_all_is_one_step_for_a_job() -> None:
    """Each step is a process."""
    steps = {node.name for node in defs.resolve_implicit_global_asset_job_def().nodes}
    assert steps == {"flights_raw_files", JOB, DAILY_JOB}


def test_the_stream_shows_its_operators_and_the_daily_job_its_tables() -> None:
    graph = defs.get_repository_def().asset_graph
    assert Counter(key.path[0] for key in graph.get_all_asset_keys()) == {"flights_raw_files": 1, JOB: 10, DAILY_JOB: 6}
    assert len(graph.asset_check_keys) == 64
