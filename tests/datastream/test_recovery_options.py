from __future__ import annotations

from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.datastream import (
    ExternalizedCheckpointRetention,
    MasterTriggerRestoreHook,
    RecoveryClaimMode,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.checkpointing.state_backend_type import StateBackendType
from dagster_flinkpy.errors import ConfigurationError


class Hook(MasterTriggerRestoreHook):
    def __init__(self, identifier: str) -> None:
        self._identifier = identifier

    def get_identifier(self) -> str:
        return self._identifier

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int) -> Any:
        return None

    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: Any) -> None:
        return


def configured(**options: str) -> StreamExecutionEnvironment:
    configuration = Configuration()
    for name, value in options.items():
        configuration.set_string(name.replace("__", ".").replace("_", "-"), value)
    return StreamExecutionEnvironment.get_execution_environment(configuration)


def test_defaults() -> None:
    config = StreamExecutionEnvironment.get_execution_environment().get_checkpoint_config()
    assert config.get_externalized_checkpoint_retention() is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    assert config.is_externalized_checkpoints_enabled()
    assert CoordinatorConfig.of_program(config).claim_mode is RecoveryClaimMode.NO_CLAIM


@pytest.mark.parametrize("name", ["claim", "CLAIM", " Claim "])
def test_claim_mode(name: str) -> None:
    env = configured(execution__state_recovery__claim_mode=name)
    assert CoordinatorConfig.of_program(env.get_checkpoint_config()).claim_mode is RecoveryClaimMode.CLAIM


def test_what_to_restore() -> None:
    env = configured(
        execution__state_recovery__path="s3://b/savepoint-x", execution__state_recovery__ignore_unclaimed_state="true"
    )
    settings = env._program.settings(None)
    assert (settings.savepoint_path, settings.allow_non_restored_state) == ("s3://b/savepoint-x", True)


@pytest.mark.parametrize(
    ("text", "allowed"), [("TRUE", True), ("false", False), ("totals", ("totals",)), ("a; b.c;", ("a", "b.c"))]
)
def test_whose_state_may_stay_behind(text: str, allowed: object) -> None:
    env = configured(execution__state_recovery__ignore_unclaimed_state=text)
    assert env._program.settings(None).allow_non_restored_state == allowed


def test_retention() -> None:
    env = configured(execution__checkpointing__externalized_checkpoint_retention="no-externalized-checkpoints")
    policy = CoordinatorConfig.of_program(env.get_checkpoint_config())
    assert policy.retention is ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
    assert not env.get_checkpoint_config().is_externalized_checkpoints_enabled()


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="must be one of: claim, no_claim, legacy"):
        configured(execution__state_recovery__claim_mode="both")


def test_master_hooks_have_identifiers_of_their_own() -> None:
    config = StreamExecutionEnvironment.get_execution_environment().get_checkpoint_config()
    hooks = Hook("ledger"), Hook("topic")
    for hook in hooks:
        config.add_master_hook(hook)
    assert CoordinatorConfig.of_program(config).master_hooks == [*hooks]
    with pytest.raises(ConfigurationError, match="'ledger'"):
        CoordinatorConfig.of_program(config.add_master_hook(Hook("ledger")))


def test_state_backend() -> None:
    columnar = CoordinatorConfig.of_program(configured().get_checkpoint_config())
    assert columnar.state_backend is StateBackendType.COLUMNAR
    hashmap = CoordinatorConfig.of_program(configured(state__backend__type="hashmap").get_checkpoint_config())
    assert hashmap.state_backend is StateBackendType.HASHMAP
    with pytest.raises(ConfigurationError, match=r"'state.backend.type' is .* must be one of: columnar, hashmap"):
        configured(state__backend__type="rocksdb")
