"""Automation by event time: a partition is materialized when the watermark of a job has passed its end."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from dagster import (
    AssetKey,
    AssetRecordsFilter,
    AutomationCondition,
    AutomationContext,
    AutomationResult,
    DagsterInstance,
    EventLogRecord,
    TableMetadataValue,
    TimestampMetadataValue,
    TimeWindow,
    TimeWindowPartitionsDefinition,
)

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.runs.changed_tables import metadata_of, newest_events
from dagster_flinkpy.orchestration.runs.report import END_OF_INPUT

__all__ = ["watermark_passed"]

_PAGE = 100


def watermark_passed() -> AutomationCondition[AssetKey]:
    """Returns a condition for assets that read a job's tables by time partition.

    A partition is materialized

    - when the watermark of all tables that the asset depends on has passed the partition's end, and
    - again, when a later checkpoint has added late rows to it. The table has an observation that says which rows.

    It waits while a run is working on the partition. At the first evaluation, partitions that have been materialized
    already stay as they are. Failed runs are not repeated: give them a retry policy. The watermark is that of the last
    event of each table; tables of jobs with partitions are left out, and so are assets that are of no job.

    Dagster has to evaluate it where the code is, not in its daemon, which would ignore it: define an
    ``AutomationConditionSensorDefinition`` with ``use_user_code_server=True`` for the asset.

    Examples:
        .. code-block:: python

            import dagster as dg
            from dagster_flinkpy.orchestration import watermark_passed

            @dg.asset(
                deps=[["orders", "by_hour"]],
                partitions_def=dg.DailyPartitionsDefinition("2024-01-01"),
                automation_condition=watermark_passed(),
            )
            def daily_report(context) -> None: ...

            by_event_time = dg.AutomationConditionSensorDefinition(
                "by_event_time", target=dg.AssetSelection.assets(daily_report), use_user_code_server=True
            )
    """
    due: AutomationCondition[AssetKey] = _EventTimePassed() | _LateRows()
    return (due & ~AutomationCondition.in_progress()).with_label("watermark_passed")


class _Due(AutomationCondition[AssetKey]):
    """True for partitions from when they are due until they are requested.

    Its cursor has what the subclass has seen, and the partitions that are due. (Dagster's own ``since()`` would drop a
    partition that is due again in the evaluation in which it learns of the request before.)
    """

    def evaluate(self, context: AutomationContext[AssetKey]) -> AutomationResult[AssetKey]:
        """Returns the partitions that are due, as far as they are candidates.

        Raises:
            ConfigurationError: The asset has no time partitions.
        """
        key, view, partitions = context.key, context.asset_graph_view, context.partitions_def
        if not isinstance(partitions, TimeWindowPartitionsDefinition):
            raise ConfigurationError(
                f"asset {key.to_user_string()} has the condition watermark_passed(), so it needs time partitions, such "
                "as DailyPartitionsDefinition"
            )
        cursor = None if context.cursor is None else json.loads(context.cursor)
        tables = _tables(context)
        passed = _passed(partitions, _watermark(view.instance, tables))
        seen, found = self._newly_due(context, tables, partitions, passed, None if cursor is None else cursor["seen"])
        due = set[str]() if cursor is None else {each for each in cursor["due"] if partitions.has_partition_key(each)}
        if requested := context.get_previous_requested_subset(key):
            due -= set(requested.expensively_compute_partition_keys())
        if found:
            context.log.info(f"{key.to_user_string()}: {self.description}: {', '.join(sorted(found))}")
        due |= set(found)
        subset = view.get_subset_from_partition_keys(key, partitions, due).compute_intersection(
            context.candidate_subset
        )
        return AutomationResult(context, subset, cursor=json.dumps({"seen": seen, "due": sorted(due)}))

    @abstractmethod
    def _newly_due(
        self,
        context: AutomationContext[AssetKey],
        tables: Sequence[AssetKey],
        partitions: TimeWindowPartitionsDefinition,
        passed: float | None,
        seen: Any,
    ) -> tuple[Any, Sequence[str]]:
        """Returns what has been seen now, and the partitions that are due since then.

        Args:
            context: The context.
            tables: The tables that the asset depends on.
            partitions: The partitions of the asset.
            passed: The end of the last partition that the watermark has passed, in seconds since 1970; or None.
            seen: What it returned last time; None at the first time.
        """


class _EventTimePassed(_Due):
    @property
    def name(self) -> str:
        return "event_time_passed"

    @property
    def description(self) -> str:
        return "The watermark has passed the end of the partition"

    def _newly_due(
        self,
        context: AutomationContext[AssetKey],
        tables: Sequence[AssetKey],
        partitions: TimeWindowPartitionsDefinition,
        passed: float | None,
        seen: Any,
    ) -> tuple[Any, Sequence[str]]:
        if passed is None:
            return None, ()
        if seen is not None:
            return passed, _keys(partitions, seen, passed)
        there = context.asset_graph_view.instance.get_materialized_partitions(context.key)
        every = _keys(partitions, partitions.start.timestamp(), passed)
        return passed, [key for key in every if key not in there]


class _LateRows(_Due):
    @property
    def name(self) -> str:
        return "late_rows"

    @property
    def description(self) -> str:
        return "Rows have come after the watermark had passed the end of the partition"

    def _newly_due(
        self,
        context: AutomationContext[AssetKey],
        tables: Sequence[AssetKey],
        partitions: TimeWindowPartitionsDefinition,
        passed: float | None,
        seen: Any,
    ) -> tuple[Any, Sequence[str]]:
        events, found = dict[str, int](), set[str]()
        for table in tables:
            name, instance = table.to_user_string(), context.asset_graph_view.instance
            if seen is None or name not in seen:
                newest = instance.fetch_observations(table, limit=1).records
                events[name] = newest[0].storage_id if newest else 0
                continue
            events[name] = seen[name]
            for record in _observations_after(instance, table, seen[name]):
                events[name] = max(events[name], record.storage_id)
                if passed is not None:
                    found.update(key for period in _late(record) for key in _within(partitions, *period, passed))
        return events, sorted(found)


def _tables(context: AutomationContext[AssetKey]) -> list[AssetKey]:
    """Returns the assets of jobs without partitions that an asset depends on."""
    graph, instance = context.asset_graph, context.asset_graph_view.instance
    return [
        key
        for key in sorted(graph.get(context.key).parent_keys)
        if graph.get(key).partitions_def is None
        and ("flink/job_id" in graph.get(key).metadata or _newest_watermark(instance, key) is not None)
    ]


def _watermark(instance: DagsterInstance, tables: Sequence[AssetKey]) -> float | None:
    """Returns the least watermark of tables, in milliseconds since 1970; None if one has none, or there is no table."""
    found = [_newest_watermark(instance, key) for key in tables]
    known = [each for each in found if each is not None]
    return min(known) if known and len(known) == len(found) else None


def _newest_watermark(instance: DagsterInstance, key: AssetKey) -> float | None:
    """Returns the watermark in the newest event of a table that has one."""
    for record in newest_events(instance, key):
        value = metadata_of(record).get("flink/watermark")
        if isinstance(value, TimestampMetadataValue):
            return round(value.value * 1000)
        if value is not None and value.value == END_OF_INPUT:
            return float("inf")
    return None


def _observations_after(instance: DagsterInstance, key: AssetKey, storage_id: int) -> Iterator[EventLogRecord]:
    chosen, cursor, more = AssetRecordsFilter(key, after_storage_id=storage_id), None, True
    while more:
        page = instance.fetch_observations(chosen, limit=_PAGE, cursor=cursor, ascending=True)
        yield from page.records
        cursor, more = page.cursor, page.has_more


def _late(record: EventLogRecord) -> Iterator[tuple[float, float]]:
    """Yields the periods of late rows that an observation names, in seconds since 1970."""
    table = metadata_of(record).get("flink/late_rows")
    for row in table.records if isinstance(table, TableMetadataValue) else ():
        start, end = (datetime.fromisoformat(str(row.data[name])).timestamp() for name in ("from", "to"))
        yield start, end


def _passed(partitions: TimeWindowPartitionsDefinition, watermark_ms: float | None) -> float | None:
    """Returns the end of the last partition that exists and that a watermark has passed, in seconds; or None."""
    last = partitions.get_last_partition_window()
    if last is None or watermark_ms is None:
        return None
    # A watermark of t says that all records up to t have come, that of t too.
    until = min((watermark_ms + 1) / 1000, last.end.timestamp())
    if until <= partitions.start.timestamp():
        return None
    window = partitions.get_prev_partition_window(datetime.fromtimestamp(until, timezone.utc))
    return None if window is None else window.end.timestamp()


def _within(partitions: TimeWindowPartitionsDefinition, start: float, end: float, passed: float) -> Sequence[str]:
    """Returns the partitions of a period that the watermark has passed."""
    there = partitions.get_first_partition_window()
    if there is None:
        return ()
    start, end = max(start, there.start.timestamp()), min(end, passed)
    if start >= end:
        return ()
    first = partitions.get_partition_key_for_timestamp(start)
    return _keys(partitions, partitions.start_time_for_partition_key(first).timestamp(), end)


def _keys(partitions: TimeWindowPartitionsDefinition, start: float, end: float) -> Sequence[str]:
    """Returns the partitions that begin at a time or later, and before another one."""
    if start >= end:
        return ()
    window = TimeWindow(datetime.fromtimestamp(start, timezone.utc), datetime.fromtimestamp(end, timezone.utc))
    keys: Sequence[str] = partitions.get_partition_keys_in_time_window(window)
    return keys
