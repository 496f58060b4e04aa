from __future__ import annotations

from datetime import timedelta

import pytest

from dagster_flinkpy.common import Configuration, ExecutionConfig
from dagster_flinkpy.common.configuration import parse_duration, parse_memory_size
from dagster_flinkpy.common.restart_strategies import restart_strategy_of
from dagster_flinkpy.common.serialization import ByteArraySchema, SimpleStringSchema
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError


def test_options_are_read_with_a_type() -> None:
    options = Configuration.from_dict({"a": "1"}).set_boolean("b", True).set_float("c", 2).set_integer("d", 3)
    assert options.get_integer("a", 0) == 1
    assert options.get_string("b", "") == "true"
    assert options.get_boolean("b", False) is True
    assert options.get_float("c", 0.0) == 2.0
    assert (options.get_integer("x", 7), options.get_boolean("x", False), options.get_float("x", 1.5)) == (
        7,
        False,
        1.5,
    )
    assert options.key_set() == {"a", "b", "c", "d"}
    assert options.remove_config("a") and not options.remove_config("a")
    assert not options.contains_key("a")


def test_options_are_copied_and_joined() -> None:
    first = Configuration().set_string("a", "1")
    second = Configuration(first).add_all(Configuration.from_dict({"b": "2"}), "in.")
    assert first.to_dict() == {"a": "1"}
    assert second.to_dict() == {"a": "1", "in.b": "2"}
    target = {"z": "0"}
    second.add_all_to_dict(target)
    assert target == {"z": "0", "a": "1", "in.b": "2"}
    assert Configuration(first) == first and hash(Configuration(first)) == hash(first)


@pytest.mark.parametrize("method", ["get_integer", "get_boolean", "get_float"])
def test_values_that_do_not_fit_are_named(method: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'a'.*'?x"):
        getattr(Configuration.from_dict({"a": "x"}), method)("a", 0)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        *[("10 s", 10_000), ("500ms", 500), ("3min", 180_000), ("1 h", 3_600_000), ("2d", 172_800_000), ("250", 250)],
        *[("1 second", 1000), ("10 seconds", 10_000), ("5 minutes", 300_000), ("1 day", 86_400_000), ("7 millis", 7)],
    ],
)
def test_durations_are_written_as_in_flink(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("execution.checkpointing.interval", "soon"),
        ("restart-strategy.fixed-delay.delay", "soon"),
        ("taskmanager.memory.managed.size", "much"),
    ],
)
def test_an_option_that_is_no_duration_or_size_is_named(option: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option '{option}'.*'{value}'"):
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({option: value}))
        options = env.get_config().failover_options.set_string("restart-strategy.type", "fixed-delay")
        restart_strategy_of(options, checkpointing=True)


@pytest.mark.parametrize("text", ["", "ten s", "1 week", "-1 s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("3b", 3), ("64kb", 64 << 10), ("512 MB", 512 << 20), (" 2g ", 2 << 30), ("1 tebibytes", 1 << 40)],
)
def test_amounts_of_memory_are_written_as_in_flink(text: str, size: int) -> None:
    assert parse_memory_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "1 pb", "-1 mb", "1.5 gb"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not an amount of memory"):
        parse_memory_size(text)


def test_job_parameters_become_strings() -> None:
    config = ExecutionConfig().set_global_job_parameters({"limit": 3}).enable_object_reuse()
    assert config.get_global_job_parameters() == {"limit": "3"}
    assert config.is_object_reuse_enabled()
    assert config.set_auto_watermark_interval(50).get_auto_watermark_interval() == 50
    assert config.get_latency_tracking_interval() == 0
    assert config.set_latency_tracking_interval(50).get_latency_tracking_interval() == 50
    with pytest.raises(ConfigurationError, match="must not be negative, not -1 ms"):
        config.set_latency_tracking_interval(-1)


def test_schemas_read_what_they_write() -> None:
    latin = SimpleStringSchema("ISO-8859-1")
    assert latin.serialize("ü") == b"\xfc"
    assert latin.deserialize(b"\xfc") == "ü"
    assert ByteArraySchema().deserialize(ByteArraySchema().serialize(b"x")) == b"x"


def test_text_of_a_configuration_is_that_of_flink() -> None:
    assert str(Configuration().set_string("a", "b").set_integer("c", 1)) == "{a=b, c=1}"
