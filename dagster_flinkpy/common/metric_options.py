"""Options of metric reporters (Flink: ``metrics.reporter.<name>.<option>``)."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "MetricReporterOptions",
    "PrometheusOptions",
    "PushGatewayOptions",
    "is_reporter_option",
    "metric_reporters_of",
]

_PREFIX = "metrics.reporter."
_FACTORIES = {"prom": "PrometheusReporterFactory", "promgateway": "PrometheusPushGatewayReporterFactory"}
"""The class of a reporter that names none, by the name that Flink's documentation uses."""
_MAX_PORT = 65_535


@dataclass(frozen=True)
class PrometheusOptions:
    """Lets Prometheus read the metrics of a run (Flink: ``PrometheusReporter``)."""

    ports: tuple[int, ...] = (9249,)
    """The run listens on the first of these that is free. Default: 9249."""


@dataclass(frozen=True)
class PushGatewayOptions:
    """Pushes metrics to a Prometheus Pushgateway (Flink: ``PrometheusPushGatewayReporter``)."""

    host_url: str
    """URL of the Pushgateway, such as ``http://localhost:9091``."""
    job_name: str | None = None
    """Its label ``job``. Default: the job id."""
    grouping_key: tuple[tuple[str, str], ...] = ()
    """Further labels of the group. A push replaces the metrics of its group."""
    delete_on_shutdown: bool = False
    """Whether to delete the metrics when the run ends. Default: False, because a run may be over before they are read.
    (In Flink the default is true.)"""


MetricReporterOptions = PrometheusOptions | PushGatewayOptions


def is_reporter_option(name: str) -> bool:
    """Returns whether an option is one of a metric reporter."""
    return name == "metrics.reporters" or name.startswith(_PREFIX)


def metric_reporters_of(configuration: Configuration) -> tuple[MetricReporterOptions, ...]:
    """Returns the reporters that options ask for: those that ``metrics.reporters`` lists, or else all.

    An option without effect is a `NoEffectWarning`.

    Raises:
        ConfigurationError: An option has a wrong value, or is missing.
    """
    by_name: dict[str, dict[str, str]] = {}
    for key, value in configuration.to_dict().items():
        if key.startswith(_PREFIX):
            name, _, option = key.removeprefix(_PREFIX).partition(".")
            by_name.setdefault(name, {})[option] = value
    listed = [name.strip() for name in configuration.get_string("metrics.reporters", "").split(",") if name.strip()]
    found = (_reporter(configuration, name, by_name.get(name, {})) for name in listed or by_name)
    return tuple(reporter for reporter in found if reporter is not None)


def _reporter(configuration: Configuration, name: str, options: dict[str, str]) -> MetricReporterOptions | None:
    factory = options.pop("factory.class", _FACTORIES.get(name, "")).rpartition(".")[2]
    reporter: MetricReporterOptions
    if factory == _FACTORIES["prom"]:
        reporter = PrometheusOptions(_ports(f"{_PREFIX}{name}.port", options.pop("port", "9249")))
    elif factory == _FACTORIES["promgateway"]:
        if "hostUrl" not in options:
            raise ConfigurationError(f"{_PREFIX}{name}.hostUrl is missing: the URL of the Pushgateway")
        reporter = PushGatewayOptions(
            options.pop("hostUrl"),
            options.pop("jobName", None) or None,
            _grouping_key(f"{_PREFIX}{name}.groupingKey", options.pop("groupingKey", "")),
            configuration.get_boolean(f"{_PREFIX}{name}.deleteOnShutdown", False),
        )
        options.pop("deleteOnShutdown", None)
    else:
        known = " and ".join(_FACTORIES.values())
        no_effect(f"metric reporter {name!r}", f"its factory.class is {factory!r}; there are {known}", stacklevel=5)
        return None
    for option in options:
        no_effect(f"option '{_PREFIX}{name}.{option}'", "a reporter of this class does not have it", stacklevel=5)
    return reporter


def _ports(key: str, text: str) -> tuple[int, ...]:
    ports: list[int] = []
    for part in text.split(","):
        first, _, last = (number.strip() for number in part.partition("-"))
        if not first.isdecimal() or not (last or first).isdecimal():
            raise ConfigurationError(f"{key} is {text!r}; write a port, or several: '9249', '9250-9260', '9250,9260'")
        ports += range(int(first), int(last or first) + 1)
    if not ports or max(ports) > _MAX_PORT:
        raise ConfigurationError(f"{key} is {text!r}; ports are numbers from 0 to {_MAX_PORT}, the lower one first")
    return tuple(ports)


def _grouping_key(key: str, text: str) -> tuple[tuple[str, str], ...]:
    labels = []
    for part in filter(None, (each.strip() for each in text.split(";"))):
        name, equals, value = part.partition("=")
        if not equals or not name or not value:
            raise ConfigurationError(f"{key} is {text!r}; write labels as 'name=value;name=value'")
        labels.append((name, value))
    return tuple(labels)
