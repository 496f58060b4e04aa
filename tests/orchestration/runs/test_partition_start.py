"""From which state a run of partitions starts: the rules alone."""

from __future__ import annotations

from datetime import datetime
from functools import partial

import pytest
from dagster import (
    DailyPartitionsDefinition,
    HourlyPartitionsDefinition,
    TimeWindowPartitionsDefinition,
    WeeklyPartitionsDefinition,
)

from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.errors import ConfigurationError, RestoreError
from dagster_flinkpy.orchestration.runs.partition_start import outdated, partition_start, renumbered, time_partitions

WEEK = DailyPartitionsDefinition("2024-03-01", end_date="2024-03-08")
KEYS = [f"2024-03-0{i}" for i in range(1, 8)]
start = partial(partition_start, assets="x", folder="s3://b/letters")


def end(ordinal: int, checkpoint_id: int) -> PartitionEnd:
    return PartitionEnd(KEYS[ordinal], ordinal, checkpoint_id, None)


def test_outdated_are_those_made_before_an_earlier_one_was_run_again() -> None:
    assert outdated([end(0, 1), end(1, 2), end(3, 4)]) == []
    assert outdated([end(0, 1), end(1, 9), end(2, 3), end(4, 5)]) == [end(2, 3), end(4, 5)]
    assert outdated([end(1, 9), end(2, 10), end(4, 5)]) == [end(4, 5)]


def test_what_begins_with_an_outdated_end_state_is_outdated_too() -> None:
    """Such as today's partition, which the schedule has run after yesterday's, and after a rerun of the day before."""
    assert outdated([end(0, 1), end(1, 4), end(2, 3), end(3, 5)]) == [end(2, 3), end(3, 5)]


def test_the_first_partition_starts_from_nothing() -> None:
    assert start((), time_partitions(WEEK, [KEYS[0]])[0], KEYS.__getitem__).checkpoint_id is None


def test_where_no_end_state_is_it_is_said_that_they_may_be_elsewhere() -> None:
    said = (
        "If the job has run before, put its checkpoints back into s3://b/letters, which has none. Otherwise first run"
    )
    with pytest.raises(RestoreError, match=said):
        start((), time_partitions(WEEK, [KEYS[1]])[0], KEYS.__getitem__)


def test_end_states_are_found_when_the_definition_begins_earlier_now() -> None:
    earlier = DailyPartitionsDefinition("2024-02-28", end_date="2024-03-08")
    kept = renumbered([end(0, 1), end(1, 2)], earlier, job_id="letters")
    assert [each.ordinal for each in kept] == [2, 3]
    key_of = earlier.get_partition_keys().__getitem__
    with pytest.raises(RestoreError, match="end state of 2024-02-28, which is not kept"):
        start(kept, time_partitions(earlier, ["2024-02-29"])[0], key_of)
    assert start(kept, time_partitions(earlier, [KEYS[2]])[0], key_of).checkpoint_id == 2


def test_a_definition_that_begins_later_goes_on_from_the_end_state_before_its_start() -> None:
    later = DailyPartitionsDefinition(KEYS[2], end_date="2024-03-08")
    kept = renumbered([end(0, 1), end(1, 2), end(6, 3)], later, job_id="letters")
    assert [each.ordinal for each in kept] == [-2, -1, 4]
    key_of = later.get_partition_keys().__getitem__
    assert start(kept, time_partitions(later, [KEYS[2]])[0], key_of).checkpoint_id == 2
    assert start(kept[:1], time_partitions(later, [KEYS[2]])[0], key_of).checkpoint_id is None
    with pytest.raises(RestoreError, match=f"No partition before it has one.*--partition-range {KEYS[2]}...{KEYS[4]}"):
        start(kept, time_partitions(later, [KEYS[5]])[0], key_of)


def test_a_definition_that_begins_amid_a_day_has_its_first_partition_on_the_next() -> None:
    amid = DailyPartitionsDefinition(datetime(2024, 3, 1, 5), end_date=datetime(2024, 3, 8))
    keys = amid.get_partition_keys()
    assert keys[0] == KEYS[1]
    assert [time_partitions(amid, [key])[0].ordinal for key in keys] == [*range(len(keys))]
    kept = renumbered([end(0, 1), end(1, 2)], amid, job_id="letters")
    assert [each.ordinal for each in kept] == [-1, 0]
    again = start(kept[1:], time_partitions(amid, [KEYS[1]])[0], keys.__getitem__)
    assert again.checkpoint_id is None, "not its own end state, which has counted its rows"


def test_partitions_before_each_are_not_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster counts those of weeks, and of most schedules, by going over all of them."""
    weeks = WeeklyPartitionsDefinition("2022-01-02", end_date="2024-01-07")
    keys, counted = weeks.get_partition_keys(), list[object]()
    for name in ("get_partition_keys", "get_num_partitions_in_window"):
        real = getattr(TimeWindowPartitionsDefinition, name)
        monkeypatch.setattr(
            TimeWindowPartitionsDefinition, name, lambda *args, real=real: counted.append(args) or real(*args)
        )
    found = time_partitions(weeks, keys[::-1])
    assert [(each.key, each.ordinal) for each in found] == [*zip(keys, range(len(keys)), strict=True)][::-1]
    assert len(counted) == 1


def test_end_states_behind_the_end_of_the_definition_have_ordinals_too() -> None:
    shorter = DailyPartitionsDefinition(KEYS[0], end_date=KEYS[2])
    assert [each.ordinal for each in renumbered([end(0, 1), end(4, 2)], shorter, job_id="letters")] == [0, 4]


@pytest.mark.parametrize(
    "other",
    [
        HourlyPartitionsDefinition("2024-03-01-00:00"),
        WeeklyPartitionsDefinition("2024-03-03"),
        DailyPartitionsDefinition("01.03.2024", fmt="%d.%m.%Y"),
    ],
    ids=["hours", "weeks", "another format"],
)
def test_a_definition_with_other_windows_is_refused(other: TimeWindowPartitionsDefinition) -> None:
    with pytest.raises(ConfigurationError, match="keeps the end state of partition '2024-03-05'"):
        renumbered([end(4, 1)], other, job_id="letters")


def test_what_is_excluded_before_it_has_run_is_skipped_and_what_has_run_is_not_excluded() -> None:
    weekend = DailyPartitionsDefinition(KEYS[0], end_date="2024-03-08", exclusions=["0 0 * * 0,6"])
    monday = time_partitions(weekend, [KEYS[3]])[0]
    kept = renumbered([end(0, 1)], weekend, job_id="letters")
    assert start(kept, monday, weekend.get_partition_keys().__getitem__).checkpoint_id == 1
    with pytest.raises(ConfigurationError, match=r"'2024-03-02'.* it is excluded now.* empty its input, and run it"):
        renumbered([end(0, 1), end(1, 2)], weekend, job_id="letters")
