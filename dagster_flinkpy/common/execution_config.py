"""Settings of a program (``pyflink.common.execution_config``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.common.exchange_options import ExchangeOptions
from dagster_flinkpy.common.former_names import missing_method
from dagster_flinkpy.common.metric_options import MetricReporterOptions
from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["ExecutionConfig"]


class ExecutionConfig:
    """Settings of a program that its functions can read, and some of Flink's that have no effect."""

    def __init__(self) -> None:
        self._global_job_parameters: dict[str, str] = {}
        self._auto_watermark_interval = 200
        self._object_reuse = False
        self._latency_tracking_interval = 0
        self._strict = False
        self._require_all_slots = False
        self.exchange = ExchangeOptions()
        """How tasks exchange records: the options ``execution.exchange``, ``execution.buffer-timeout.interval`` and
        ``slot.request.timeout``."""
        self.failover_options = Configuration()
        """The options ``restart-strategy.*`` and ``jobmanager.execution.failover-strategy`` of the program."""
        self.metric_reporters: tuple[MetricReporterOptions, ...] = ()
        """Set by the options ``metrics.reporter.*``. Not in PyFlink."""

    if not TYPE_CHECKING:  # type checkers report a missing attribute themselves

        def __getattr__(self, name: str) -> Any:
            raise missing_method(self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionConfig) and vars(self) == vars(other)

    def __hash__(self) -> int:
        values = {**vars(self), "_global_job_parameters": frozenset(self._global_job_parameters.items())}
        return hash(frozenset(values.items()))

    def get_global_job_parameters(self) -> dict[str, str]:
        """Returns the parameters that functions read with ``runtime_context.get_job_parameter()``."""
        return dict(self._global_job_parameters)

    def set_global_job_parameters(self, global_job_parameters_dict: Mapping[str, Any]) -> ExecutionConfig:
        """Sets what functions see with ``runtime_context.get_job_parameter()``; all values become strings."""
        self._global_job_parameters = {key: str(value) for key, value in global_job_parameters_dict.items()}
        return self

    def get_auto_watermark_interval(self) -> int:
        """Returns the interval that was set; 200 ms by default."""
        return self._auto_watermark_interval

    def set_auto_watermark_interval(self, interval: int) -> ExecutionConfig:
        """Has no effect: watermarks are generated with each batch of records."""
        no_effect("set_auto_watermark_interval()", "watermarks are generated with each batch of records")
        self._auto_watermark_interval = interval
        return self

    def get_latency_tracking_interval(self) -> int:
        """Returns the milliseconds between two latency markers of a source, or 0 (the default) if none are sent."""
        return self._latency_tracking_interval

    def set_latency_tracking_interval(self, interval: int) -> ExecutionConfig:
        """Sets the milliseconds between two latency markers of a source; with 0 none are sent.

        The metrics of a checkpoint have each operator's latency, and the job's from source to commit.

        Raises:
            ConfigurationError: The interval is negative.
        """
        if interval < 0:
            raise ConfigurationError(f"latency tracking interval must not be negative, not {interval} ms")
        self._latency_tracking_interval = interval
        return self

    def is_strict(self) -> bool:
        """Returns whether likely mistakes that Flink accepts are errors; False by default."""
        return self._strict

    def set_strict(self, strict: bool) -> ExecutionConfig:
        """Sets whether likely mistakes that Flink accepts are errors. Not in PyFlink.

        These mistakes are a stateful operator, source or sink without a uid (`MissingUidError`, when the program is
        built), and a timer for a time in the past (`PastTimerError`). The option is ``pipeline.strict``.
        """
        self._strict = strict
        return self

    def is_require_all_slots(self) -> bool:
        """Returns whether a run needs slots for all subtasks at once; False by default."""
        return self._require_all_slots

    def set_require_all_slots(self, require_all_slots: bool) -> ExecutionConfig:
        """Sets whether a run fails if Spark cannot run all subtasks at once. Not in PyFlink.

        Flink's streaming jobs always need all of their slots. Here subtasks that find no slot wait for one. If
        all slots are required and there are fewer, a run raises a `NoResourceAvailableError` before it reads or writes
        anything. The option is ``execution.require-all-slots``. Without effect with ``execution.local``.
        """
        self._require_all_slots = require_all_slots
        return self

    def enable_object_reuse(self) -> ExecutionConfig:
        """Has no effect: a mutable value that a function emits is always copied."""
        no_effect("enable_object_reuse()", "a mutable value that a function emits is always copied")
        self._object_reuse = True
        return self

    def disable_object_reuse(self) -> ExecutionConfig:
        """Keeps the default: a mutable value that a function emits is always copied."""
        self._object_reuse = False
        return self

    def is_object_reuse_enabled(self) -> bool:
        """Returns what was set."""
        return self._object_reuse
