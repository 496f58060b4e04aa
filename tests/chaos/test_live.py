"""A few of the kills of `tests.chaos.live`; ``make chaos`` does 300."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dagster_flinkpy.spark.sessions import SparkSettings, open_session
from tests.chaos.live import LiveChaos, local_server_pids

pytestmark = [pytest.mark.spark, pytest.mark.chaos]

_FAULTS = (
    "kill a slot",
    "kill all slots",
    "kill the driver",
    "kill the driver of a function that hangs",
    "cut slots",
    "cut driver",
)


@pytest.mark.smoke
def test_a_job_of_live_tasks_goes_on_whatever_is_killed(tmp_path: Path, spark_settings: SparkSettings) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    chaos = LiveChaos(tmp_path, spark_settings, lambda: local_server_pids(spark_settings), 2, tls=True)
    with open_session(spark_settings):  # it outlives the drivers
        try:
            chaos.start()
            chaos.goes_on()
            for fault in rng.sample(_FAULTS, len(_FAULTS)):
                chaos.suffer(fault, rng)
            chaos.end()
        finally:
            chaos.close()
        assert chaos.check() > 0
