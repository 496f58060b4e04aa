"""Settings of a program (``pyflink.common.execution_config``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_flinkpy.errors import ConfigurationError

__all__ = ["ExecutionConfig"]


class ExecutionConfig:
    """Settings of a program that its functions may ask for, and some of Flink's that have no effect here."""

    def __init__(self) -> None:
        self._global_job_parameters: dict[str, str] = {}
        self._auto_watermark_interval = 200
        self._object_reuse = False
        self._latency_tracking_interval = 0
        self._strict = False

    def get_global_job_parameters(self) -> dict[str, str]:
        """What functions see with ``runtime_context.get_job_parameter()``."""
        return dict(self._global_job_parameters)

    def set_global_job_parameters(self, global_job_parameters_dict: Mapping[str, Any]) -> ExecutionConfig:
        """Sets what functions see with ``runtime_context.get_job_parameter()``; all values become strings."""
        self._global_job_parameters = {key: str(value) for key, value in global_job_parameters_dict.items()}
        return self

    def get_auto_watermark_interval(self) -> int:
        """What was set; 200 ms by default."""
        return self._auto_watermark_interval

    def set_auto_watermark_interval(self, interval: int) -> ExecutionConfig:
        """Accepted without effect: watermarks are made with each batch of records."""
        self._auto_watermark_interval = interval
        return self

    def get_latency_tracking_interval(self) -> int:
        """Milliseconds between two latency markers of a source; 0, the default: none are sent."""
        return self._latency_tracking_interval

    def set_latency_tracking_interval(self, interval: int) -> ExecutionConfig:
        """Sets the milliseconds between two latency markers of a source; 0: none.

        Each operator's histogram is in its metrics of the checkpoint, as ``latency_ms_p50``, ``_p95``, ``_p99`` and
        ``_max``.

        Raises:
            ConfigurationError: They are negative.
        """
        if interval < 0:
            raise ConfigurationError(f"latency tracking interval must not be negative, not {interval} ms")
        self._latency_tracking_interval = interval
        return self

    def is_strict(self) -> bool:
        """Whether what Flink lets pass, but is a mistake most of the time, is an error; False by default."""
        return self._strict

    def set_strict(self, strict: bool) -> ExecutionConfig:
        """Sets whether what Flink lets pass, but is a mistake most of the time, is an error; not in PyFlink.

        That is: a stateful operator, source or sink without a uid (`MissingUidError`, when the program is built), and a
        timer for a time that has passed (`PastTimerError`). The option is ``pipeline.strict``.
        """
        self._strict = strict
        return self

    def enable_object_reuse(self) -> ExecutionConfig:
        """Accepted without effect: records are not copied between chained functions."""
        self._object_reuse = True
        return self

    def disable_object_reuse(self) -> ExecutionConfig:
        """Accepted without effect."""
        self._object_reuse = False
        return self

    def is_object_reuse_enabled(self) -> bool:
        """What was set."""
        return self._object_reuse
