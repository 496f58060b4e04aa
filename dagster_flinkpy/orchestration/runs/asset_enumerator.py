"""Finds the materializations that an `AssetSource` reads."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, AssetRecordsFilter, DagsterInstance, EventLogRecord

from dagster_flinkpy.connectors.sources.split_enumerators import OpenSplits, Quantity, SplitMeter
from dagster_flinkpy.datastream.connectors.base import (
    Json,
    SourceLag,
    SourceSplit,
    SplitEnumerator,
    position_field,
)
from dagster_flinkpy.datastream.connectors.epoch_limits import EpochLimits
from dagster_flinkpy.errors import SourceReadError
from dagster_flinkpy.orchestration.dagster_internals import extract_data_version_from_entry
from dagster_flinkpy.orchestration.runs.job_run import UNCHANGED_TAG

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.asset_source import AssetSource

__all__ = ["MaterializationEnumerator", "assets_from"]

_log = logging.getLogger(__name__)
_PAGE = 1000
_WINDOW = 1000
"""Events are numbered before they are committed, so one may appear behind newer ones. So many numbers are looked at
again."""

_instance: ContextVar[DagsterInstance | None] = ContextVar("instance", default=None)
"""The instance of the run that this thread works for. The lanes of an attempt have the context of its run."""


@contextmanager
def assets_from(instance: DagsterInstance) -> Iterator[None]:
    """Lets the sources of attempts that run inside find assets in an instance, instead of that of ``DAGSTER_HOME``.

    Args:
        instance: The instance.
    """
    before = _instance.get()
    _instance.set(instance)
    try:
        yield
    finally:
        _instance.set(before)


class MaterializationEnumerator(SplitEnumerator):
    """Assigns each new materialization, as described at `AssetSource`.

    State: the asset; the number of the newest event that was seen, the numbers and times of it and of others shortly
    before it, the data version of each partition that was assigned, and the splits that are not read yet.

    Numbers tell what is new, as long as the log is the same. If it has none of the events that were seen, the asset was
    wiped, or the job has moved to another instance, where numbers begin anew: then what is younger is new.

    Args:
        source: The source.
        restored: State of an earlier enumerator.
    """

    def __init__(self, source: AssetSource, restored: Json | None) -> None:
        self._source, self._key = source, AssetKey(list(source.asset_key))
        self._after: int | None = None
        self._seen: dict[int, float | None] = {}
        """Seconds since 1970 by number. An older version has kept no times."""
        self._partitions: dict[str, str | None] = {}
        self._open = OpenSplits(EpochLimits(), _NoMeter(), asset=list, run_id=str, metadata=dict)
        self._ended = self._warned = False
        self._left = 0
        """How many materializations were not planned."""
        if restored is not None:
            if (asset := restored.get("asset", [*source.asset_key])) != [*source.asset_key]:
                raise ValueError(f"it is of asset {asset}, but the source reads {[*source.asset_key]}")
            self._after = position_field(restored, "after", int) if restored.get("after") is not None else None
            seen = position_field(restored, "seen", list)
            self._seen = dict(zip(seen, restored.get("times") or [None] * len(seen), strict=True))
            self._partitions = position_field(restored, "partitions", dict)
            self._ended = position_field(restored, "ended", bool)
            self._open.restore(restored)

    def has_input(self, parallelism: int) -> bool:
        return self.plans_something(parallelism)

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        if not self._ended:
            records, same_log = self._look()
            if not records and not self._seen:
                self._warn_if_only_observed()
            chosen = sorted(self._chosen(records), key=lambda record: record.storage_id)
            now = chosen[: self._room(len(chosen))]
            for record in now:
                self._assign(record)
            self._left = len(chosen) - len(now)
            if self._left:  # the others stay unseen
                last = now[-1].storage_id if now else -1
                records = [record for record in records if record.storage_id <= last]
            if records and not same_log:
                self._seen = {}
            self._advance(records)
            self._ended = self._source.bounded is not False and not self._left
        return self._open.shares(parallelism)

    def _warn_if_only_observed(self) -> None:
        if not self._warned and self._events_of.fetch_observations(self._key, limit=1).records:
            _log.warning(
                f"Asset {self._key.to_user_string()} was observed, but never materialized. AssetSource reads its "
                "materializations, so it reads nothing."
            )
        self._warned = True

    def _room(self, wanted: int) -> int:
        """Returns how many more materializations the next epoch may read."""
        limit = self._source.max_materializations_per_epoch
        return wanted if limit is None else max(limit - len(self._open), 0)

    def _new(self) -> list[EventLogRecord]:
        """Returns the materializations that were not seen, oldest first."""
        return self._look()[0]

    def _look(self) -> tuple[list[EventLogRecord], bool]:
        """Returns the materializations that were not seen, oldest first, and whether the log has some of those seen."""
        if self._after is None:
            return self._find(), True
        found = self._find(after_storage_id=max(self._after - _WINDOW, 0))
        new = [record for record in found if not self._was_seen(record)]
        times = [time for time in self._seen.values() if time is not None]
        if times and len(new) == len(found):  # none of them is there
            return self._find(after_timestamp=max(times)), False
        return new, True

    @property
    def _events_of(self) -> DagsterInstance:
        return _instance.get() or DagsterInstance.get()

    def _was_seen(self, record: EventLogRecord) -> bool:
        number = record.storage_id
        return number in self._seen and self._seen[number] in (None, record.timestamp)

    def _find(self, **after: float) -> list[EventLogRecord]:
        chosen, instance = AssetRecordsFilter(self._key, **after), self._events_of  # type: ignore[arg-type]
        cursor, found = None, list[EventLogRecord]()
        while True:
            page = instance.fetch_materializations(chosen, limit=_PAGE, cursor=cursor, ascending=True)
            found += [record for record in page.records if not _is_repeated(record)]
            cursor = page.cursor
            if not page.has_more:
                return found

    def _chosen(self, records: Sequence[EventLogRecord]) -> list[EventLogRecord]:
        """Returns those that are read: of a partition only the newest; of what was there at the start, too."""
        latest = {record.partition_key: record for record in records}
        if self._after is None:
            return list(latest.values())
        return [r for r in records if r.partition_key is None or latest[r.partition_key] is r]

    def _assign(self, record: EventLogRecord) -> None:
        partition, version = record.partition_key, _version(record)
        if partition is not None and partition in self._partitions:
            if _is_same(self._partitions[partition], version):
                return
            raise SourceReadError(
                f"partition {partition!r} of asset {self._key.to_user_string()} was materialized again, in run "
                f"{record.run_id}, after the source had read it. Its new rows would count in addition to the old ones. "
                "To read it again, start from a checkpoint before it, or from empty state; or materialize it with the "
                f"data version {self._partitions[partition]!r} if its rows are the same."
            )
        event = record.asset_materialization
        properties: Json = {
            "asset": list(self._source.asset_key),
            "partition": partition,
            "run_id": record.run_id,
            "data_version": version,
            "timestamp": record.timestamp,
            "metadata": {} if event is None else _metadata(event.metadata),
        }
        name = "/".join(self._source.asset_key)
        self._open.open(f"{name}[{partition or record.run_id}]@{record.storage_id}", properties)
        if partition is not None:
            self._partitions[partition] = version

    def _advance(self, records: Sequence[EventLogRecord]) -> None:
        self._seen.update((record.storage_id, record.timestamp) for record in records)
        self._after = max(self._seen, default=self._after or 0)
        self._seen = {number: time for number, time in self._seen.items() if number > self._after - _WINDOW}

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        read = {s.properties["partition"]: s.properties["data_version"] for s in splits}
        if read.keys() - {None}:
            for record in self._new():
                partition = record.partition_key
                if partition is not None and partition in read and not _is_same(read[partition], _version(record)):
                    raise SourceReadError(
                        f"partition {partition!r} of asset {self._key.to_user_string()} was materialized again, in run "
                        f"{record.run_id}, while the source read it. Nothing of the epoch is visible; the next attempt "
                        "reads the new rows."
                    )
        self._open.take_back(splits)

    @property
    def exhausted(self) -> bool:
        return self._ended

    def unread(self) -> Sequence[str]:
        known = self._partitions
        return [
            f"run {r.run_id}"
            for r in self._new()
            if r.partition_key is None or not _is_same(known.get(r.partition_key), _version(r))
        ]

    def lag(self) -> SourceLag:
        return SourceLag(versions=self._left)

    def snapshot_state(self) -> Json:
        return {
            "asset": [*self._source.asset_key],
            "after": self._after,
            "seen": sorted(self._seen),
            "times": [self._seen[number] for number in sorted(self._seen)],
            "partitions": self._partitions,
            **self._open.to_json(),
            "ended": self._ended,
        }


class _NoMeter(SplitMeter):
    """A materialization is read as a whole."""

    def amount(self, split: SourceSplit) -> Quantity:
        return Quantity()

    def advance(self, split: SourceSplit, offset: int, most: Quantity, least: int) -> tuple[int | None, Quantity]:
        return None, Quantity()


def _is_same(read: str | None, version: str | None) -> bool:
    """Returns whether two materializations of a partition have the same rows, as far as data versions tell."""
    return read is not None and read == version


def _is_repeated(record: EventLogRecord) -> bool:
    """Returns whether a materialization says that a table of a job has not changed."""
    event = record.asset_materialization
    return event is not None and UNCHANGED_TAG in (event.tags or {})


def _version(record: EventLogRecord) -> str | None:
    version = extract_data_version_from_entry(record.event_log_entry)
    return None if version is None else version.value


def _metadata(given: Any) -> Json:
    """Returns the metadata that JSON can contain."""
    found: Json = {}
    for name, entry in given.items():
        value = getattr(entry, "value", None)
        try:
            found[name] = json.loads(json.dumps(value, allow_nan=False))
        except Exception:  # a table of Dagster raises nothing more exact
            continue
    return found
