from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.checkpointing.state_backend_type import StateBackendType
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
        ("managed_memory", 0),
    ],
)
def test_values_out_of_range_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=option.replace("_", ".")):
        CoordinatorConfig(**{option: value})


def test_a_limit_of_memory_that_cannot_act_is_refused() -> None:
    declared = CheckpointConfig(managed_memory=1 << 20)
    assert CoordinatorConfig.of_program(declared).managed_memory == 1 << 20
    declared.state_backend = StateBackendType.HASHMAP
    with pytest.raises(ConfigurationError, match="hashmap holds all state in memory"):
        CoordinatorConfig.of_program(declared)
