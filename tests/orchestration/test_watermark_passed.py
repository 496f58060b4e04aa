"""Daily assets behind a job: their partitions run when event time has passed them, and again after late rows."""

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AutomationCondition,
    AutomationConditionSensorDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    HourlyPartitionsDefinition,
    MetadataValue,
    PartitionsDefinition,
    SensorResult,
    TimeWindowPartitionsDefinition,
    WeeklyPartitionsDefinition,
    asset,
    build_sensor_context,
    evaluate_automation_conditions,
)
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dagster_flinkpy.common import Duration, Row, Time, Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import automation as automation_module
from dagster_flinkpy.orchestration import flink_assets, watermark_passed
from dagster_flinkpy.runtime.master import job as job_loop
from tests.runtime.harness import run_rows

DAYS = DailyPartitionsDefinition("2024-01-01")
TABLE, OTHER, DAILY = AssetKey(["job", "table"]), AssetKey(["job", "other"]), AssetKey("daily")
NOW = datetime(2024, 1, 20, 12, tzinfo=timezone.utc)


def at(text: str) -> int:
    """Returns a time in milliseconds since 1970."""
    return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp() * 1000)


class Automation:
    """Evaluates the condition of an asset, as Dagster does at intervals, and does what it asks for."""

    def __init__(
        self,
        instance: DagsterInstance,
        condition: AutomationCondition[AssetKey] | None = None,
        partitions: PartitionsDefinition[str] | None = DAYS,
        tables: tuple[AssetKey, ...] = (TABLE,),
    ) -> None:
        self.instance, self._cursor, self.now = instance, None, NOW

        @asset(deps=list(tables), partitions_def=partitions, automation_condition=condition or watermark_passed())
        def daily() -> None: ...

        from dagster import AssetSpec

        specs = [AssetSpec(key, metadata={"flink/job_id": "job"}) for key in tables if key.path[0] == "job"]
        self._definitions = Definitions([daily, *specs])

    def watermark(self, value: Any, table: AssetKey = TABLE) -> None:
        if isinstance(value, str):
            value = MetadataValue.timestamp(at(value) / 1000)
        event = AssetMaterialization(table, metadata={"flink/watermark": value})
        self.instance.report_runless_asset_event(event)

    def late(self, start: str, end: str, table: AssetKey = TABLE) -> None:
        from dagster import TableColumn, TableRecord, TableSchema

        record = TableRecord({"from": f"{start}+00:00", "to": f"{end}+00:00", "rows": 3})
        schema = TableSchema([TableColumn(name) for name in ("from", "to", "rows")])
        metadata = {"flink/late_rows": MetadataValue.table([record], schema)}
        self.instance.report_runless_asset_event(AssetObservation(table, metadata=metadata))

    def materialized(self, *days: str) -> None:
        for day in days:
            self.instance.report_runless_asset_event(AssetMaterialization(DAILY, partition=day))

    def requested(self) -> set[str | None]:
        """Returns the partitions that an evaluation asks for."""
        found = evaluate_automation_conditions(
            self._definitions, self.instance, cursor=self._cursor, evaluation_time=self.now
        )
        self._cursor = found.cursor
        return set(found.get_requested_partitions(DAILY))


@pytest.fixture
def automation(instance: DagsterInstance) -> Automation:
    return Automation(instance)


def test_a_partition_is_requested_once_when_the_watermark_has_passed_its_end(automation: Automation) -> None:
    assert automation.requested() == set()
    automation.watermark("2024-01-02T23:59:59.998")
    assert automation.requested() == {"2024-01-01"}
    assert automation.requested() == set()
    automation.watermark("2024-01-02T23:59:59.999")
    assert automation.requested() == {"2024-01-02"}, "nothing can come any more that is before midnight"
    automation.watermark("2024-01-05T12:00:00")
    assert automation.requested() == {"2024-01-03", "2024-01-04"}
    automation.watermark("2024-01-05T13:00:00")
    assert automation.requested() == set()


def test_what_is_there_stays_at_first(automation: Automation) -> None:
    automation.watermark("2024-01-05T12:00:00")
    automation.materialized("2024-01-01", "2024-01-03")
    assert automation.requested() == {"2024-01-02", "2024-01-04"}


def test_what_was_materialized_before_its_end_is_requested_at_its_end(automation: Automation) -> None:
    automation.watermark("2024-01-02T12:00:00")
    assert automation.requested() == {"2024-01-01"}
    automation.materialized("2024-01-02")
    automation.watermark("2024-01-03T12:00:00")
    assert automation.requested() == {"2024-01-02"}


def test_late_rows_are_a_reason_to_run_again(automation: Automation) -> None:
    automation.watermark("2024-01-05T12:00:00")
    automation.late("2024-01-01T00:00:00", "2024-01-05T00:00:00")
    assert len(automation.requested()) == 4
    automation.late("2024-01-02T23:45:00", "2024-01-03T00:15:00")
    automation.late("2024-01-05T08:00:00", "2024-01-05T08:15:00")
    automation.late("2023-12-01T08:00:00", "2023-12-01T08:15:00")
    assert automation.requested() == {"2024-01-02", "2024-01-03"}, "the 5th is not complete, and there is no December"
    assert automation.requested() == set()
    automation.late("2024-01-02T23:45:00", "2024-01-03T00:00:00")
    assert automation.requested() == {"2024-01-02"}
    automation.late("2024-01-02T23:45:00", "2024-01-03T00:00:00")
    assert automation.requested() == {"2024-01-02"}, "also in the evaluation right after that of the request"
    assert automation.requested() == set()


def test_observations_without_late_rows_are_none(automation: Automation) -> None:
    automation.watermark("2024-01-05T12:00:00")
    assert len(automation.requested()) == 4
    for _ in range(150):
        automation.instance.report_runless_asset_event(AssetObservation(TABLE, metadata={"rows": 1}))
    automation.late("2024-01-02T00:00:00", "2024-01-02T00:15:00")
    assert automation.requested() == {"2024-01-02"}
    assert automation.requested() == set()


def test_all_tables_have_to_be_there(instance: DagsterInstance) -> None:
    automation = Automation(instance, tables=(TABLE, OTHER, AssetKey("a_file")))
    automation.watermark("2024-01-05T12:00:00")
    assert automation.requested() == set()
    automation.watermark("2024-01-02T12:00:00", OTHER)
    assert automation.requested() == {"2024-01-01"}
    automation.watermark(MetadataValue.text("end of input"), OTHER)
    assert automation.requested() == {"2024-01-02", "2024-01-03", "2024-01-04"}


def test_a_table_of_another_code_location_is_known_by_its_events(instance: DagsterInstance) -> None:
    elsewhere = AssetKey(["elsewhere", "table"])
    automation = Automation(instance, tables=(elsewhere,))
    assert automation.requested() == set()
    automation.watermark("2024-01-02T12:00:00", elsewhere)
    assert automation.requested() == {"2024-01-01"}


def test_partitions_begin_to_exist_by_the_clock(automation: Automation) -> None:
    """Event time may be ahead of it."""
    automation.now = datetime(2024, 1, 3, 12, tzinfo=timezone.utc)
    automation.watermark(MetadataValue.text("end of input"))
    assert automation.requested() == {"2024-01-01", "2024-01-02"}
    automation.now += timedelta(days=1)
    assert automation.requested() == {"2024-01-03"}


def test_after_the_job_was_reset_its_partitions_come_again(automation: Automation) -> None:
    automation.watermark("2024-01-05T12:00:00")
    assert len(automation.requested()) == 4
    automation.watermark("2024-01-03T12:00:00")
    assert automation.requested() == set()
    automation.watermark("2024-01-05T12:00:00")
    assert automation.requested() == {"2024-01-03", "2024-01-04"}


def test_a_partition_that_is_due_waits_for_other_conditions(instance: DagsterInstance) -> None:
    latest = AutomationCondition.in_latest_time_window(timedelta(days=7))
    automation = Automation(instance, latest & watermark_passed())
    automation.watermark("2024-01-20T00:00:00")
    assert automation.requested() == {f"2024-01-{day}" for day in range(13, 20)}


def test_hours_in_a_time_zone(instance: DagsterInstance) -> None:
    automation = Automation(
        instance, partitions=HourlyPartitionsDefinition("2024-01-01-00:00", timezone="Asia/Kolkata")
    )
    automation.watermark("2023-12-31T20:45:00")
    assert automation.requested() == {"2024-01-01-00:00", "2024-01-01-01:00"}
    automation.late("2023-12-31T18:30:00", "2023-12-31T18:45:00")
    assert automation.requested() == {"2024-01-01-00:00"}


def test_an_asset_without_time_partitions_is_refused(instance: DagsterInstance) -> None:
    with pytest.raises(Exception, match="conditions for daily") as refused:
        Automation(instance, partitions=None).requested()
    assert isinstance(refused.value.__cause__, ConfigurationError)
    assert "needs time partitions" in str(refused.value.__cause__)


DEFINITIONS = [
    DailyPartitionsDefinition("2024-03-25", end_date="2024-04-08", timezone="Europe/Berlin"),  # with a day of 23 hours
    DailyPartitionsDefinition("2024-03-25", end_date="2024-04-08", hour_offset=4),
    HourlyPartitionsDefinition("2024-03-30-00:00", end_date="2024-04-01-00:00", timezone="Asia/Kathmandu"),
    WeeklyPartitionsDefinition("2024-03-03", end_date="2024-04-28"),
]
TIMES = st.integers(at("2024-02-20") // 900_000, at("2024-05-10") // 900_000).map(lambda quarter: quarter * 900_000)


def windows_of(partitions: TimeWindowPartitionsDefinition) -> dict[str, tuple[float, float]]:
    windows = {key: partitions.time_window_for_partition_key(key) for key in partitions.get_partition_keys()}
    return {key: (window.start.timestamp(), window.end.timestamp()) for key, window in windows.items()}


@given(st.sampled_from(DEFINITIONS), TIMES, st.sampled_from([-1, 0, 1]))
def test_a_partition_is_complete_when_no_millisecond_of_it_is_left(
    partitions: TimeWindowPartitionsDefinition, near: int, more: int
) -> None:
    watermark = near + more
    complete = [end for _, end in windows_of(partitions).values() if end * 1000 - 1 <= watermark]
    assert automation_module._passed(partitions, watermark) == max(complete, default=None)


@given(st.sampled_from(DEFINITIONS), TIMES, st.integers(1, 300), TIMES)
@example(DEFINITIONS[1], at("2024-03-25T01:00:00"), 4, at("2024-04-01"))  # before the first day begins, at 4 o'clock
def test_late_rows_concern_the_complete_partitions_that_their_period_touches(
    partitions: TimeWindowPartitionsDefinition, start_ms: int, quarters: int, watermark: int
) -> None:
    passed = automation_module._passed(partitions, watermark)
    assume(passed is not None)
    assert passed is not None
    start, end = start_ms / 1000, start_ms / 1000 + quarters * 900
    touched = [
        key
        for key, (begins, ends) in windows_of(partitions).items()
        if begins < end and start < ends and ends <= passed
    ]
    assert list(automation_module._within(partitions, start, end, passed)) == touched


# --- with a job -------------------------------------------------------------------------------------------------------

ROW = Types.ROW_NAMED(["at", "n"], [Types.INSTANT(), Types.LONG()])


class Deployment:
    """A job that copies files into a table, and an asset with the sum of each day."""

    def __init__(self, path: Path, instance: DagsterInstance, resources: dict[str, Any], windows: Any = None) -> None:
        self.files, self.table, self.instance = path / "files", path / "table", instance
        self.sums: dict[str, int] = {}
        self.windows = windows
        self._number, self._cursor = 0, None

        @asset(deps=[TABLE], partitions_def=DAYS, automation_condition=watermark_passed())
        def daily(context: AssetExecutionContext) -> None:
            rows = pq.read_table(self.table)
            days = [time.strftime("%Y-%m-%d") for time in rows["at"].to_pylist()]
            numbers = rows["n"].to_pylist()
            self.sums[context.partition_key] = sum(
                n for n, d in zip(numbers, days, strict=True) if d == context.partition_key
            )

        self.sensor = AutomationConditionSensorDefinition("by_time", target=[daily], use_user_code_server=True)
        self.definitions = Definitions(
            [*flink_assets(self.program, name="job"), daily], resources=resources, sensors=[self.sensor]
        )

    def program(self) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
        by_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(10))
        source = ParquetSource(str(self.files), row_type=ROW)
        rows = env.from_source(source, by_time.with_timestamp_assigner("at"), "rows").uid("rows")
        if self.windows is not None:
            keyed = rows.key_by(lambda row: row.n % 2, Types.LONG())
            windows = keyed.window(self.windows).allowed_lateness(86_400_000)
            rows = windows.reduce(lambda a, b: Row(at=a.at, n=a.n + b.n), output_type=ROW).uid("windows")
        rows.rebalance().sink_to(ParquetSink(str(self.table))).uid("table")
        return env

    def arrive(self, **rows: int) -> None:
        """Writes a file with rows: the time, such as ``d02h05``, and the number."""
        self.files.mkdir(exist_ok=True)
        self._number += 1
        times = [datetime.strptime(f"2024-01 {name}", "%Y-%m d%dh%H").replace(tzinfo=timezone.utc) for name in rows]
        column = pa.array(times, pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"at": column, "n": list(rows.values())}), self.files / f"{self._number:02}.parquet")

    def run_job(self, **config: Any) -> bool:
        job = self.definitions.resolve_implicit_global_asset_job_def()
        keys = [AssetKey(["job", uid]) for uid in ("rows", "table")]
        ran = job.execute_in_process(
            instance=self.instance,
            asset_selection=keys,
            run_config={"ops": {"job": {"config": config}}},
            raise_on_error=False,
        )
        return ran.success

    def tick(self) -> list[str]:
        """Evaluates the sensor, runs what it asks for, and returns the partitions."""
        repository = self.definitions.get_repository_def()
        with build_sensor_context(self.instance, cursor=self._cursor, repository_def=repository) as context:
            result = self.sensor(context)
        assert isinstance(result, SensorResult)
        self._cursor = result.cursor
        job = self.definitions.resolve_implicit_global_asset_job_def()
        asked = [str(request.partition_key) for request in result.run_requests or ()]
        for key in asked:
            job.execute_in_process(instance=self.instance, asset_selection=[DAILY], partition_key=key)
        return sorted(asked)


@pytest.fixture
def deployment(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Deployment:
    monkeypatch.setattr(job_loop.JobAttempt, "_on_spark", lambda self, job: run_rows(job))
    return Deployment(tmp_path, instance, resources)


def observations(instance: DagsterInstance) -> list[str | None]:
    records = instance.fetch_observations(TABLE, limit=10).records
    found = [record.asset_observation for record in records]
    return [each.description for each in found if each and "flink/late_rows" in each.metadata]


def test_a_day_is_summed_when_it_is_complete_and_again_with_its_late_rows(deployment: Deployment) -> None:
    deployment.tick()
    deployment.arrive(d01h08=1, d01h20=2, d02h01=4)
    assert deployment.run_job()
    assert deployment.tick() == ["2024-01-01"]
    assert deployment.sums == {"2024-01-01": 3}

    deployment.arrive(d01h09=8, d02h02=16)
    assert deployment.run_job()
    assert deployment.tick() == ["2024-01-01"]
    assert deployment.sums == {"2024-01-01": 11}
    [reason] = observations(deployment.instance)
    assert reason == (
        "Checkpoint 2 has added 1 late rows, from between 2024-01-01 09:00 and 2024-01-01 09:15 UTC, whose end the "
        "watermark had passed."
    )

    deployment.arrive(d03h00=32)
    assert deployment.run_job()
    assert deployment.tick() == [], "ten minutes are missing"
    deployment.arrive(d03h01=64)
    assert deployment.run_job()
    assert deployment.tick() == ["2024-01-02"]
    assert deployment.sums["2024-01-02"] == 20
    assert deployment.run_job()
    assert deployment.tick() == []


def test_a_window_that_fires_again_is_late_and_a_window_that_fires_is_not(
    tmp_path: Path, deployment: Deployment, resources: dict[str, Any]
) -> None:
    deployment = Deployment(tmp_path, deployment.instance, resources, TumblingEventTimeWindows.of(Time.hours(1)))
    deployment.tick()
    deployment.arrive(d01h08=2, d01h20=4, d02h01=6)
    assert deployment.run_job()
    assert deployment.tick() == ["2024-01-01"]
    assert observations(deployment.instance) == []
    deployment.arrive(d01h08=8)
    assert deployment.run_job()
    [reason] = observations(deployment.instance)
    assert "1 late rows, from between 2024-01-01 08:00 and 2024-01-01 08:15 UTC" in str(reason)
    assert deployment.tick() == ["2024-01-01"]


def test_late_rows_of_a_checkpoint_whose_run_died_are_told_by_the_next_run(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.tick()
    deployment.arrive(d01h08=1, d02h01=4)
    assert deployment.run_job()
    assert deployment.tick() == ["2024-01-01"]
    deployment.arrive(d01h09=8, d02h02=16)
    with monkeypatch.context() as dying:
        for name in ("completed", "record_last", "results"):
            event = f"dagster_flinkpy.orchestration.runs.epoch_events.EpochEvents.{name}"
            dying.setattr(event, lambda *_, **__: iter(()))  # as if the process had died behind the commit
        deployment.run_job()
    assert deployment.tick() == []
    assert deployment.run_job()
    assert deployment.tick() == ["2024-01-01"]
    assert deployment.sums == {"2024-01-01": 9}
    assert deployment.run_job()
    assert len(observations(deployment.instance)) == 1, "once"
