from __future__ import annotations

import pytest

from dagster_flinkpy.common import no_effect
from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.common.metric_options import PrometheusOptions, PushGatewayOptions, metric_reporters_of
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError, NoEffectWarning

FLINKS = "org.apache.flink.metrics.prometheus."


@pytest.fixture(autouse=True)
def not_warned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_effect, "_warned_of", set())


def reporters(**options: str) -> tuple[object, ...]:
    return metric_reporters_of(Configuration.from_dict({f"metrics.{k}": v for k, v in options.items()}))


@pytest.mark.parametrize(
    ("port", "ports"),
    [("9249", (9249,)), ("9250-9253", (9250, 9251, 9252, 9253)), ("9250, 9260-9261", (9250, 9260, 9261)), ("0", (0,))],
)
def test_ports_of_prometheus(port: str, ports: tuple[int, ...]) -> None:
    assert reporters(**{"reporter.prom.port": port}) == (PrometheusOptions(ports),)


def test_reporters_by_their_class_and_by_the_list() -> None:
    options = {
        "reporter.mine.factory.class": FLINKS + "PrometheusReporterFactory",
        "reporter.push.factory.class": FLINKS + "PrometheusPushGatewayReporterFactory",
        "reporter.push.hostUrl": "http://gateway:9091",
        "reporter.push.jobName": "orders",
        "reporter.push.groupingKey": "team=shop;site=eu",
        "reporter.push.deleteOnShutdown": "true",
    }
    push = PushGatewayOptions("http://gateway:9091", "orders", (("team", "shop"), ("site", "eu")), True)
    assert reporters(**options) == (PrometheusOptions(), push)
    assert reporters(**options, reporters="push") == (push,)
    assert reporters(reporters="prom") == (PrometheusOptions(),)
    assert reporters() == ()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("prom.port", "many", "write a port"),
        ("prom.port", "9260-9250", "the lower one first"),
        ("prom.port", "70000", "0 to 65535"),
        ("promgateway.jobName", "x", "hostUrl is missing"),
        ("promgateway.groupingKey", "team", "hostUrl is missing"),
    ],
)
def test_bad_values_are_refused(option: str, value: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        reporters(**{f"reporter.{option}": value})


@pytest.mark.parametrize(("option", "value"), [("groupingKey", "team"), ("deleteOnShutdown", "yes")])
def test_bad_values_of_a_push_gateway_are_refused(option: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=option):
        reporters(**{"reporter.promgateway.hostUrl": "http://g", f"reporter.promgateway.{option}": value})


@pytest.mark.parametrize(
    "option", ["reporter.prom.filterLabelValueCharacters", "reporter.jmx.factory.class", "reporter.jmx.port"]
)
def test_what_has_no_effect_warns(option: str) -> None:
    name = option.split(".")[1]
    with pytest.warns(NoEffectWarning, match=f"{name}.* has no effect"):
        reporters(**{option: "org.apache.flink.metrics.jmx.JMXReporterFactory"})


def test_a_program_has_them() -> None:
    env = StreamExecutionEnvironment.get_execution_environment(
        Configuration.from_dict({"metrics.reporter.prom.port": "9250"})
    )
    env.configure(Configuration.from_dict({"parallelism.default": "2"}))
    assert env.get_config().metric_reporters == (PrometheusOptions((9250,)),)
    assert env._program.settings(None).config.metric_reporters == (PrometheusOptions((9250,)),)
