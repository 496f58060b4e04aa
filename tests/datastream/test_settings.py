"""Each setting of a program acts, as a test shows, or warns once that it has no effect."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common import Configuration, Duration, Encoder, ExecutionConfig, Time, Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode
from dagster_flinkpy.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.connectors.file_system import FileSink, RollingPolicy
from dagster_flinkpy.datastream.connectors.number_seq import NumberSequenceSource
from dagster_flinkpy.datastream.program.program_options import OPTIONS
from dagster_flinkpy.datastream.state_ttl import StateTtlConfig
from dagster_flinkpy.datastream.streams.operator_settings import DataStreamSink, StreamSettings
from dagster_flinkpy.errors import ConfigurationError, NoEffectWarning
from dagster_flinkpy.orchestration.flink_job import flink_job

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs" / "api"
LONG = Types.LONG()

SETTERS = re.compile(r"(add|cleanup|configure|disable|enable|force|set|slot|start|with)(_|$)|uid$|name$")
CLASSES = (
    StreamExecutionEnvironment,
    CheckpointConfig,
    ExecutionConfig,
    StreamSettings,
    DataStreamSink,
    StateTtlConfig.Builder,
    FileSink.RowFormatBuilder,
)
SETTINGS = sorted(
    {f"{c.__qualname__}.{name}" for c in CLASSES for name, _ in inspect.getmembers(c, inspect.isfunction)
     if SETTERS.match(name)}
)  # fmt: skip

ENVIRONMENT, HERE = "datastream/test_environment.py", "datastream/test_settings.py"
RECOVERY = "datastream/test_recovery_options.py"
CHECKPOINTS = "runtime/master/test_job_checkpoints.py"
MASTER = "runtime/master/test_job_master.py"
PYTHON = "datastream/test_python_environment.py"
TOLERATED = "runtime/master/test_tolerated_failures.py"
TTL = "state/test_ttl.py"
PROGRAM = "orchestration/test_flink_job.py::test_a_run_takes_checkpoints_as_the_program_says"
FILES = "connectors/files/test_files.py"

ACTS = {
    "StreamExecutionEnvironment.add_python_archive": f"{PYTHON}::test_archives_are_in_the_working_directory",
    "StreamExecutionEnvironment.add_python_file": f"{PYTHON}::test_files_folders_and_zips_can_be_imported",
    "StreamExecutionEnvironment.configure": f"{HERE}::test_options_act",
    "StreamExecutionEnvironment.enable_checkpointing": (
        "orchestration/sensors/test_checkpoint_sensor.py::test_takes_the_interval_of_the_program"
    ),
    "StreamExecutionEnvironment.set_max_parallelism": f"{HERE}::test_parallelism_and_names_are_those_of_the_graph",
    "StreamExecutionEnvironment.set_parallelism": (
        f"{ENVIRONMENT}::test_operators_have_the_parallelism_the_environment_had_when_they_were_declared"
    ),
    "StreamExecutionEnvironment.set_python_requirements": f"{PYTHON}::test_requirements_are_installed_from_a_folder",
    "StreamExecutionEnvironment.set_runtime_mode": f"{HERE}::test_batch_mode",
    "CheckpointConfig.add_master_hook": f"{CHECKPOINTS}::test_a_master_hook_is_called_at_checkpoints_and_restores",
    "CheckpointConfig.disable_unaligned_checkpoints": f"{HERE}::test_what_is_turned_off_again",
    "CheckpointConfig.enable_unaligned_checkpoints": (
        "runtime/task/test_barriers_in_job.py::test_in_flight_data_is_kept_with_the_checkpoint_and_comes_first"
    ),
    "CheckpointConfig.set_aligned_checkpoint_timeout": (
        "runtime/task/test_barriers_in_job.py::test_alignment_goes_over_to_unaligned_when_it_takes_too_long"
    ),
    "CheckpointConfig.set_checkpoint_interval": (
        "runtime/master/test_periodic_trigger.py::test_checkpoints_are_taken_at_the_interval"
    ),
    "CheckpointConfig.set_checkpoint_storage_dir": (
        "runtime/master/test_local_executor.py::test_execute_runs_all_parts_and_goes_on_where_it_ended"
    ),
    "CheckpointConfig.set_checkpoint_timeout": PROGRAM,
    "CheckpointConfig.set_checkpointing_mode": PROGRAM,
    "CheckpointConfig.set_externalized_checkpoint_retention": (
        f"{CHECKPOINTS}::test_what_becomes_of_checkpoints_when_a_run_ends"
    ),
    "CheckpointConfig.set_max_concurrent_checkpoints": (
        f"{MASTER}::test_the_region_runs_ahead_by_as_many_checkpoints_as_may_be_pending"
    ),
    "CheckpointConfig.set_min_pause_between_checkpoints": (
        "orchestration/sensors/test_checkpoint_sensor.py::test_takes_the_pause_of_the_program"
    ),
    "CheckpointConfig.set_fail_on_checkpointing_errors": f"{TOLERATED}::test_what_the_program_says",
    "CheckpointConfig.set_tolerable_checkpoint_failure_number": f"{TOLERATED}::test_what_the_program_says",
    "CheckpointConfig.set_recovery_claim_mode": f"{CHECKPOINTS}::test_a_checkpoint_that_is_claimed_is_subsumed",
    "ExecutionConfig.disable_object_reuse": f"{HERE}::test_what_is_turned_off_again",
    "ExecutionConfig.set_global_job_parameters": (
        "runtime/operators/test_user_metrics.py::test_functions_know_their_task_and_the_parameters_of_the_job"
    ),
    "ExecutionConfig.set_latency_tracking_interval": (
        PROGRAM
    ),
    "StreamExecutionEnvironment.set_buffer_timeout": (
        "runtime/slot/test_buffer_timeout.py::test_a_record_is_sent_before_its_buffer_is_full"
    ),
    "ExecutionConfig.set_require_all_slots": "runtime/master/test_job_slots.py::test_env_execute_requires_the_slots",
    "ExecutionConfig.set_strict": (
        "runtime/operators/test_processing_time.py::"
        "test_a_timer_in_the_past_fires_at_once_or_is_refused_by_a_strict_program"
    ),
    "StreamSettings.force_non_parallel": f"{HERE}::test_parallelism_and_names_are_those_of_the_graph",
    "StreamSettings.name": f"{HERE}::test_parallelism_and_names_are_those_of_the_graph",
    "StreamSettings.set_description": f"{HERE}::test_a_description_is_that_of_the_asset",
    "StreamSettings.set_max_parallelism": f"{HERE}::test_parallelism_and_names_are_those_of_the_graph",
    "StreamSettings.set_parallelism": f"{HERE}::test_parallelism_and_names_are_those_of_the_graph",
    "StreamSettings.slot_sharing_group": "runtime/master/test_job_slots.py::test_a_group_needs_its_highest_parallelism",
    "StreamSettings.uid": f"{HERE}::test_parallelism_and_names_are_those_of_the_graph",
    "StateTtlConfig.Builder.cleanup_full_snapshot": f"{TTL}::test_a_full_snapshot_leaves_out_what_has_expired",
    "StateTtlConfig.Builder.set_state_visibility": f"{TTL}::test_expired_state_can_be_read_once_where_that_is_wanted",
    "StateTtlConfig.Builder.set_ttl": f"{TTL}::test_the_configuration_has_pyflinks_defaults_and_names",
    "StateTtlConfig.Builder.set_ttl_time_characteristic": (
        f"{TTL}::test_the_configuration_has_pyflinks_defaults_and_names"
    ),
    "StateTtlConfig.Builder.set_update_type": f"{TTL}::test_state_expires_when_its_time_has_come",
    "FileSink.RowFormatBuilder.with_bucket_assigner": f"{FILES}::test_buckets_are_named_by_the_time",
    "FileSink.RowFormatBuilder.with_output_file_config": (
        f"{FILES}::test_files_are_visible_after_the_commit_only_and_once"
    ),
    "FileSink.RowFormatBuilder.with_rolling_policy": f"{FILES}::test_a_full_file_is_followed_by_another",
}  # fmt: skip
"""The settings that act, each with a test that shows it."""


def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


def stream() -> Any:
    return env().from_collection([1], LONG)


def sink() -> Any:
    return FileSink.for_row_format("/tmp/out", Encoder("UTF-8"))


def chained_in_another_group() -> None:
    program = env()
    mapped = program.from_collection([1], LONG).uid("a").map(lambda v: v, LONG).uid("b").set_parallelism(1)
    mapped.slot_sharing_group("g")
    program.get_job_graph()


WITHOUT_EFFECT: dict[str, Callable[[], object]] = {
    "StreamExecutionEnvironment.add_jars": lambda: env().add_jars("file:///a.jar"),
    "StreamExecutionEnvironment.disable_operator_chaining": lambda: env().disable_operator_chaining(),
    "ExecutionConfig.enable_object_reuse": lambda: ExecutionConfig().enable_object_reuse(),
    "ExecutionConfig.set_auto_watermark_interval": lambda: ExecutionConfig().set_auto_watermark_interval(5),
    "StreamSettings.disable_chaining": lambda: stream().disable_chaining(),
    "StreamSettings.set_buffer_timeout": lambda: stream().set_buffer_timeout(5),
    "StreamSettings.start_new_chain": lambda: stream().start_new_chain(),
    "StateTtlConfig.Builder.cleanup_in_rocksdb_compact_filter": (
        lambda: StateTtlConfig.new_builder(Time.days(1)).cleanup_in_rocksdb_compact_filter(5)
    ),
    "StateTtlConfig.Builder.cleanup_incrementally": (
        lambda: StateTtlConfig.new_builder(Time.days(1)).cleanup_incrementally(5, True)
    ),
    "StateTtlConfig.Builder.disable_cleanup_in_background": (
        lambda: StateTtlConfig.new_builder(Time.days(1)).disable_cleanup_in_background()
    ),
    "FileSink.RowFormatBuilder.with_bucket_check_interval": lambda: sink().with_bucket_check_interval(5),
    "RuntimeExecutionMode.AUTOMATIC": lambda: env().set_runtime_mode(RuntimeExecutionMode.AUTOMATIC),
    "RollingPolicy.rollover_interval": lambda: RollingPolicy.default_rolling_policy(rollover_interval=5),
    "RollingPolicy.inactivity_interval": lambda: RollingPolicy.default_rolling_policy(inactivity_interval=5),
    "StreamSettings.slot_sharing_group": chained_in_another_group,
}
"""The settings that warn, each with a call."""


@pytest.fixture(autouse=True)
def first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.common.no_effect._warned_of", set())


def test_each_setting_acts_or_warns() -> None:
    inherited = {f"DataStreamSink.{name.rpartition('.')[2]}" for name in SETTINGS if name.startswith("StreamSettings.")}
    assert {*SETTINGS} - inherited == {*ACTS, *WITHOUT_EFFECT} & {*SETTINGS}
    both = {*ACTS} & {*WITHOUT_EFFECT}
    assert both == {"StreamSettings.slot_sharing_group"}, "it acts, unless the operator is chained to another group"


@pytest.mark.parametrize("setting", ACTS)
def test_a_test_shows_that_it_acts(setting: str) -> None:
    path, _, name = ACTS[setting].partition("::")
    tree = ast.parse((TESTS / path).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("setting", WITHOUT_EFFECT)
def test_it_warns_once(setting: str) -> None:
    name = setting.rpartition(".")[2]
    with pytest.warns(NoEffectWarning, match=rf"{name}.* has no effect: \S") as told:
        WITHOUT_EFFECT[setting]()
    assert [Path(each.filename).name for each in told] == [Path(__file__).name], "it points at the caller"
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoEffectWarning)
        WITHOUT_EFFECT[setting]()


@pytest.mark.parametrize("setting", WITHOUT_EFFECT)
def test_the_page_for_users_of_pyflink_has_it(setting: str) -> None:
    page = (DOCS / "from-pyflink.md").read_text()
    table = page.split("### Settings without effect")[1].split("###")[0]
    assert f"`{setting}`" in table or f"`{setting.rpartition('.')[2]}`" in table


# --- options ----------------------------------------------------------------------------------------------------------

VALUES: dict[str, tuple[str, Callable[[StreamExecutionEnvironment], object], object]] = {
    "parallelism.default": ("3", lambda e: e.get_parallelism(), 3),
    "pipeline.max-parallelism": ("64", lambda e: e.get_max_parallelism(), 64),
    "pipeline.name": ("orders", lambda e: e._program.settings(None).job_name, "orders"),
    "pipeline.global-job-parameters": (
        'city: Rome , say:\'it\'\'s a, b:c\',none:,quoted:"a ""b"""',
        lambda e: e.get_config().get_global_job_parameters(),
        {"city": "Rome", "say": "it's a, b:c", "none": "", "quoted": 'a "b"'},
    ),
    "pipeline.strict": ("true", lambda e: e.get_config().is_strict(), True),
    "metrics.latency.interval": ("2 s", lambda e: e.get_config().get_latency_tracking_interval(), 2000),
    "execution.require-all-slots": ("true", lambda e: e.get_config().is_require_all_slots(), True),
    "execution.runtime-mode": ("batch", lambda e: e._program.runtime_mode, RuntimeExecutionMode.BATCH),
    "execution.local": ("true", lambda e: e._program.settings(None).local, True),
    "table.exec.mini-batch.enabled": ("true", lambda e: e._program.mini_batch, True),
    "state.backend.type": ("hashmap", lambda e: e.get_checkpoint_config().state_backend.name, "HASHMAP"),
    "taskmanager.memory.managed.size": ("64 mb", lambda e: e.get_checkpoint_config().managed_memory, 64 << 20),
    "execution.checkpointing.interval": ("1 min", lambda e: e.get_checkpoint_interval(), 60_000),
    "execution.checkpointing.dir": ("/c", lambda e: e._program.settings(None).checkpoint_dir, "/c"),
    "execution.checkpointing.mode": ("at-least-once", lambda e: e.get_checkpointing_mode().name, "AT_LEAST_ONCE"),
    "execution.checkpointing.timeout": ("5 s", lambda e: e.get_checkpoint_config().get_checkpoint_timeout(), 5000),
    "execution.checkpointing.min-pause": (
        "3s",
        lambda e: e.get_checkpoint_config().get_min_pause_between_checkpoints(),
        3000,
    ),
    "execution.checkpointing.max-concurrent-checkpoints": (
        "2",
        lambda e: e.get_checkpoint_config().get_max_concurrent_checkpoints(),
        2,
    ),
    "execution.checkpointing.tolerable-failed-checkpoints": (
        "2",
        lambda e: e.get_checkpoint_config().get_tolerable_checkpoint_failure_number(),
        2,
    ),
    "execution.checkpointing.unaligned.enabled": (
        "true",
        lambda e: e.get_checkpoint_config().is_unaligned_checkpoints_enabled(),
        True,
    ),
    "execution.checkpointing.aligned-checkpoint-timeout": (
        "1 s",
        lambda e: e.get_checkpoint_config().get_aligned_checkpoint_timeout(),
        Duration.of_seconds(1),
    ),
    "execution.checkpointing.externalized-checkpoint-retention": (
        "DELETE_ON_CANCELLATION",
        lambda e: e.get_checkpoint_config().get_externalized_checkpoint_retention().name,
        "DELETE_ON_CANCELLATION",
    ),
    "execution.exchange": ("spark", lambda e: e.get_config().exchange.mode, ExchangeMode.SPARK),
    "execution.buffer-timeout.interval": (
        "5 ms",
        lambda e: e.get_config().exchange.buffer_timeout,
        timedelta(milliseconds=5),
    ),
    "slot.request.timeout": ("9 s", lambda e: e.get_config().exchange.slot_request_timeout, timedelta(seconds=9)),
    "taskmanager.numberOfTaskSlots": ("4", lambda e: e.get_config().exchange.task_slots, 4),
    "heartbeat.interval": ("3 s", lambda e: e.get_config().exchange.heartbeat_interval, timedelta(seconds=3)),
    "heartbeat.timeout": ("30 s", lambda e: e.get_config().exchange.heartbeat_timeout, timedelta(seconds=30)),
    "security.ssl.internal.enabled": ("true", lambda e: e.get_config().exchange.tls, True),
    "execution.state-recovery.claim-mode": ("claim", lambda e: e.get_checkpoint_config().claim_mode.name, "CLAIM"),
    "execution.state-recovery.path": ("/s", lambda e: e._program.settings(None).savepoint_path, "/s"),
    "execution.state-recovery.ignore-unclaimed-state": (
        "true",
        lambda e: e._program.settings(None).allow_non_restored_state,
        True,
    ),
}


def test_a_buffer_timeout_is_set_for_the_program() -> None:
    assert env().set_buffer_timeout(5).get_config().exchange.buffer_timeout == timedelta(milliseconds=5)
    assert env().set_buffer_timeout(-1).get_config().exchange.buffer_timeout is None
    with pytest.raises(ConfigurationError, match="the buffer timeout is -1, or at least 0, not -2 ms"):
        env().set_buffer_timeout(-2)


def configured(**options: str) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(options))


@pytest.mark.parametrize("name", OPTIONS)
def test_options_act(name: str) -> None:
    value, read, expected = VALUES[name]
    assert read(env()) != expected
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoEffectWarning)
        assert read(configured(**{name: value})) == expected


UNKNOWN = {
    "execution.checkpointing.intervall": "did you mean 'execution.checkpointing.interval'",
    "taskmanager.memory.process.size": "this library does not have it$",
    "pipeline.auto-generate-uids": "this library does not have it$",
}


@pytest.mark.parametrize("text", ["a", "a:1,b", "{a: 1, b: 2}", "a:'1", "a:'1'2", ":1", "a:1,,b:2"])
def test_what_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'pipeline\.global-job-parameters' is no map: .*; write it like"):
        configured(**{"pipeline.global-job-parameters": text})


def test_the_name_that_is_given_comes_first() -> None:
    assert configured(**{"pipeline.name": "orders"})._program.settings("other").job_name == "other"


@pytest.mark.parametrize(("name", "because"), UNKNOWN.items(), ids=UNKNOWN)
def test_an_option_that_nobody_reads_warns_once(name: str, because: str) -> None:
    with pytest.warns(NoEffectWarning, match=f"{name}.*{because}") as told:
        configured(**{name: "1"})
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoEffectWarning)
        configured(**{name: "1"})


def test_a_bad_value_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be one of: exactly_once, at_least_once"):
        configured(**{"execution.checkpointing.mode": "once"})
    with pytest.raises(ConfigurationError, match="must be one of: streaming, batch"):
        configured(**{"execution.runtime-mode": "micro-batch"})


# --- what the settings do ---------------------------------------------------------------------------------------------


def test_what_is_turned_off_again() -> None:
    config = CheckpointConfig().enable_unaligned_checkpoints().disable_unaligned_checkpoints()
    assert not config.is_unaligned_checkpoints_enabled()
    assert not ExecutionConfig().enable_object_reuse().disable_object_reuse().is_object_reuse_enabled()


def test_parallelism_and_names_are_those_of_the_graph() -> None:
    program = env().set_parallelism(2).set_max_parallelism(64)
    first = program.from_source(NumberSequenceSource(1, 3), WatermarkStrategy.no_watermarks(), "first").uid("a")
    first.name("First").map(lambda v: v).uid("b").set_parallelism(3).set_max_parallelism(9).map(lambda v: v).uid("c")
    first.map(lambda v: v).uid("d").force_non_parallel()
    found = {v.uid: (v.name, v.parallelism, v.max_parallelism) for v in program.get_job_graph().vertices}
    assert found == {"a": ("First", 2, 64), "b": ("Map", 3, 9), "c": ("Map", 2, 64), "d": ("Map", 1, 1)}


def test_a_description_is_that_of_the_asset() -> None:
    from dagster import AssetKey

    from dagster_flinkpy.orchestration import flink_assets

    program = env()
    numbers = program.from_collection([1], LONG).uid("numbers").set_description("What was counted")
    numbers.map(lambda v: v, LONG).uid("same")
    (assets,) = flink_assets(program, name="job")
    assert assets.specs_by_key[AssetKey(["job", "numbers"])].description == "What was counted"


def test_batch_mode() -> None:
    program = env().set_runtime_mode(RuntimeExecutionMode.BATCH)
    keyed = program.from_collection([1, 2, 3, 4], LONG).uid("numbers").key_by(lambda v: v % 2, LONG)
    streams = [
        keyed.reduce(lambda a, b: a + b).uid("reduce"),
        keyed.sum().uid("sum"),
        keyed.max().uid("max"),
    ]
    results = program._program.run_local([s._upstream for s in streams], "job")
    assert [sorted(records) for records in results] == [[4, 6], [4, 6], [3, 4]]


def test_what_only_a_script_follows_warns_in_dagster() -> None:
    options = {
        "pipeline.name": "orders",
        "execution.checkpointing.dir": "/c",
        "execution.local": "true",
        "execution.state-recovery.path": "/s",
        "execution.state-recovery.ignore-unclaimed-state": "true",
    }
    program = configured(**options)
    program.from_collection([1], LONG).uid("numbers")
    table = (DOCS / "from-pyflink.md").read_text().split("### Settings without effect")[1].split("###")[0]
    with pytest.warns(NoEffectWarning) as told:
        flink_job(program, "job")
    for name in options:
        assert any(name in str(each.message) for each in told)
        assert f"`{name}`" in table
