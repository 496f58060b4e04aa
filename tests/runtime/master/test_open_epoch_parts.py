"""What the sources are given of an open epoch, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.stimuli import Stimulus
from dagster_flinkpy.datastream.connectors.base import SplitEnumeratorContext
from dagster_flinkpy.errors import SourceReadError
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.master.epochs.open_epoch import OpenEpoch
from dagster_flinkpy.runtime.master.epochs.split_planner import SplitPlanner
from dagster_flinkpy.runtime.master.regions.region_runner import InputEnded, JobRunner
from dagster_flinkpy.runtime.master.watchdog import Watchdog
from tests.runtime.master.test_open_epochs import World, program

NOBODY: Any = None


class Region:
    """The lane of a region, and its source."""

    def __init__(self, watchdog: Watchdog) -> None:
        self.world, self.told = World(), list[Stimulus]()
        graph = program(self.world, parallelism=1)
        self.splits = SplitPlanner(graph, {}, SplitEnumeratorContext("job", 1, NOBODY))
        planner: Any = SimpleNamespace(splits=self.splits, number=0)
        others = (watchdog, NOBODY, NOBODY, NOBODY, NOBODY, NOBODY, lambda: 7, self.told.append)
        self.runner = JobRunner(planner, NOBODY, *others)

    def position(self, checkpoint_id: int) -> int:
        return int(self.splits.take_states(checkpoint_id)["numbers"]["next"])


@pytest.fixture
def region() -> Iterator[Region]:
    watchdog = Watchdog(timedelta(seconds=60))
    yield Region(watchdog)
    watchdog.close()


def ids(part: EpochInput | None) -> list[str]:
    assert part is not None
    return [split.split_id for splits in part.splits.values() for split in splits]


def rest(epoch: OpenEpoch) -> None:
    """Gives out an epoch to its end, as a region does."""
    while not epoch.complete:
        epoch.next()


def test_parts_come_one_after_the_other(region: Region) -> None:
    epoch = region.runner.open(1)
    region.world.records = [0]
    assert ids(epoch.next()) == ["0-1"]
    assert region.world.taken == [], "the sources are reading it"
    assert epoch.next() is None
    assert region.world.taken == ["0-1"]
    region.world.records = [0, 1, 2]
    assert ids(epoch.next()) == ["1-3"]
    region.runner.close(None)
    last = epoch.next()
    assert last is not None and not last.open
    epoch.finish()
    assert (ids(epoch.read), epoch.read.open, region.position(1)) == (["0-1", "1-3"], False, 3)


def test_all_subtasks_hear_how_far_those_with_input_are_in_event_time(region: Region) -> None:
    epoch, reached = region.runner.open(1), {("numbers", 0): 5}
    region.world.records = [0]
    first = epoch.next()
    assert first is not None
    assert first.watermarks == {}
    told = epoch.next(watermarks=reached)
    assert told is not None
    assert (told.open, told.has_input, told.watermarks) == (True, False, {"numbers": 5})
    assert epoch.next(watermarks=reached) is None, "they have heard it"
    region.world.records = [0, 1]
    more = epoch.next()
    assert more is not None
    assert more.watermarks == {"numbers": 5}
    assert epoch.read.watermarks == {}, "another try reads it all as one part"


def test_an_epoch_that_is_complete_is_the_same_in_each_try(region: Region) -> None:
    epoch = region.runner.open(1)
    region.world.records = [0]
    epoch.next()
    region.runner.close(2)
    rest(epoch)
    epoch.finish()
    region.world.records = [0, 1]
    assert epoch.following is not None
    assert ids(epoch.following.next()) == ["1-2"], "the sources read on behind the barrier"
    region.world.records = [0, 1, 2]
    again = region.runner.open(1)  # a task has failed before all have acknowledged
    region.runner.close(None)
    assert ids(again.begin()) == ["0-1"]
    assert again.complete
    again.finish()
    assert region.position(1) == 1, "a run that begins there reads what the next epoch was given"
    following = region.runner.open(2)
    assert ids(following.begin()) == []
    assert ids(following.next()) == ["1-2"]
    assert ids(following.next()) == ["2-3"]


def test_sources_hear_of_checkpoints_between_two_parts(region: Region) -> None:
    epoch = region.runner.open(2)
    region.splits.news.append(1)
    region.runner.tell_news()
    region.world.records = [0]
    epoch.next()
    region.splits.news.append(2)
    region.runner.tell_news()
    assert region.world.taken == ["checkpoint 1"], "the sources are reading what is assigned"
    epoch.next()
    assert region.world.taken == ["checkpoint 1", "0-1", "checkpoint 2"]


def test_sources_hear_of_no_checkpoint_before_what_a_look_has_found_is_read(region: Region) -> None:
    region.world.records = [0]
    assert region.splits.look()
    epoch = region.runner.open(2)
    region.splits.news.append(1)
    epoch.next()
    assert region.world.taken == []
    epoch.next()
    assert region.world.taken == ["0-1", "checkpoint 1"]


def test_an_epoch_that_an_enumerator_has_broken_fails_once(region: Region) -> None:
    """Its lane tells the news afterwards. A second failure gave up the checkpoint before, which might complete."""
    epoch, region.world.broken = region.runner.open(2), True
    with pytest.raises(SourceReadError):
        epoch.next()
    region.splits.news.append(1)
    region.runner.tell_news()
    assert region.world.taken == []


def test_the_end_of_input_is_told_again_to_who_could_not_act_on_it(region: Region) -> None:
    epoch = region.runner.open(1)
    region.runner.close(2)
    rest(epoch)
    epoch.finish()
    region.world.ended = True
    assert epoch.following is not None
    assert epoch.following.next() is not None
    assert epoch.following.next() is None
    assert [type(each) for each in region.told] == [InputEnded]
    assert region.runner.open(2).next() is None
    assert [type(each) for each in region.told] == [InputEnded] * 2


def test_nothing_is_assigned_after_an_error(region: Region) -> None:
    epoch = region.runner.open(1)
    region.world.broken = True
    for _ in range(2):
        with pytest.raises(Exception, match="cannot be listed"):
            epoch.next()
    with pytest.raises(Exception, match="cannot be listed"):
        epoch.finish()
    assert region.world.looks == 1
