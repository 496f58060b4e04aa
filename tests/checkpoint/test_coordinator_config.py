from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.errors import ConfigurationError


def test_defaults_are_flinks() -> None:
    config = CoordinatorConfig()
    assert config.interval is None
    assert config.mode is CheckpointingMode.EXACTLY_ONCE
    assert config.timeout == timedelta(minutes=10)
    assert config.min_pause == timedelta(0)
    assert (config.max_concurrent, config.tolerable_failed, config.num_retained) == (1, 0, 1)
    assert CoordinatorConfig.of_program(CheckpointConfig()).num_retained == 3


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("interval", timedelta(milliseconds=9)),
        ("timeout", timedelta(0)),
        ("min_pause", timedelta(seconds=-1)),
        ("max_concurrent", 0),
        ("tolerable_failed", -1),
        ("num_retained", 0),
    ],
)
def test_values_out_of_range_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=option):
        CoordinatorConfig(**{option: value})
