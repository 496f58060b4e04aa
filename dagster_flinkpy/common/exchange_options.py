"""How tasks exchange records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from dagster_flinkpy.errors import ConfigurationError

__all__ = ["ExchangeMode", "ExchangeOptions"]


class ExchangeMode(Enum):
    """What carries records from task to task (option ``execution.exchange``). Not in Flink."""

    AUTO = auto()
    """``PIPELINED`` if there are slots for all of them and one more, and they reach each other, otherwise
    ``SPARK``. Several may share a process."""
    PIPELINED = auto()
    """All tasks of a region live side by side, in long tasks of Spark, and send records to each other over Arrow
    Flight, epoch after epoch."""
    SPARK = auto()
    """Each epoch is a Spark job, and records go through Spark's shuffle. It works with fewer cores than tasks, and
    where tasks cannot reach each other."""


@dataclass(frozen=True)
class ExchangeOptions:
    """The options of the exchange.

    Raises:
        ConfigurationError: A duration is negative, a process has no slot, or a slot may be silent for no longer than
            its interval.
    """

    mode: ExchangeMode = ExchangeMode.AUTO
    """What carries the records. Default: AUTO."""
    buffer_timeout: timedelta | None = timedelta(milliseconds=100)
    """After how long a live task sends records that have not filled a buffer (Flink:
    ``execution.buffer-timeout.interval``). Zero: after each step; None: only full buffers. Default: 100 ms."""
    slot_request_timeout: timedelta = timedelta(minutes=5)
    """How long a job waits for slots that are missing (Flink: ``slot.request.timeout``). Default: 5 minutes."""
    task_slots: int | None = None
    """How many slots share a process, and take turns in it (Flink: ``taskmanager.numberOfTaskSlots``). Default: 1, but
    more if the job needs at least twice as many slots as there are cores, or Spark has too few slots."""
    heartbeat_interval: timedelta = timedelta(seconds=10)
    """How often driver and slots tell each other that they are there (Flink: ``heartbeat.interval``). Default: 10 s."""
    heartbeat_timeout: timedelta = timedelta(seconds=50)
    """After how long without that a slot is lost, or gives up by itself (Flink: ``heartbeat.timeout``). Default: 50
    s."""

    tls: bool = False
    """Whether connections between driver and slots, and among slots, use TLS, with a certificate that the attempt makes
    for itself (Flink: ``security.ssl.internal.enabled``). Default: False."""

    def __post_init__(self) -> None:
        for name, value in (
            ("buffer timeout", self.buffer_timeout),
            ("slot.request.timeout", self.slot_request_timeout),
        ):
            if value is not None and value < timedelta(0):
                raise ConfigurationError(f"the {name} must not be negative, not {value}")
        if self.task_slots is not None and self.task_slots < 1:
            raise ConfigurationError(f"taskmanager.numberOfTaskSlots must be at least 1, not {self.task_slots}")
        if not timedelta(0) < self.heartbeat_interval < self.heartbeat_timeout:
            raise ConfigurationError(
                f"heartbeat.interval must be above 0 and less than heartbeat.timeout, not {self.heartbeat_interval} "
                f"with a timeout of {self.heartbeat_timeout}"
            )
