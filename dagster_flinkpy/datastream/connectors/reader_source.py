"""What a job has of a source in Flink's shape, which is declared in ``source``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.connectors import base
from dagster_flinkpy.datastream.connectors.source import Source
from dagster_flinkpy.registry import call_registered

__all__ = ["ReaderSource"]


@dataclass(frozen=True)
class ReaderSource(base.Source):
    """A source that has readers. Its operator polls one."""

    source: Source

    @property
    def discovery_interval(self) -> timedelta:  # type: ignore[override]
        """As the source says."""
        return self.source.discovery_interval

    @property
    def produced_type(self) -> TypeInformation:
        return self.source.produced_type

    def create_enumerator(self, restored: base.Json | None) -> base.SplitEnumerator:
        return call_registered("source_coordinator", self.source, restored)

    def read(self, split: base.SourceSplit) -> Iterator[Any]:
        raise AssertionError("its operator has a reader")
