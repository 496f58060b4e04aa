"""A job that runs on: it waits for input, and reads what comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.common import Duration, Types, WatermarkStrategy
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.datastream.data_stream import DataStream
from dagster_flinkpy.errors import SourceReadError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master import job as job_module
from dagster_flinkpy.runtime.master.epochs.split_planner import SplitPlanner
from dagster_flinkpy.runtime.master.mailbox import InlineMailbox, Mailbox
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import environment, events

CHECKPOINT = Order(RequestKind.CHECKPOINT)
DONE = Order(RequestKind.STOP)


class Waiting(HarnessAttempt):
    """An attempt with a clock that only waiting advances. A script says what happens at each time, in seconds."""

    def __init__(self, stream: DataStream, folder: Path, script: dict[float, Callable[[], object]], **options: Any):
        # Near the clock of the store, which says when an answer was written.
        self.start = self.now_ms = current_millis()
        self.script, self.jobs, self.waits = dict(script), 0, 0
        super().__init__(collect_graph(stream), folder, **options)

    def _create_mailbox(self) -> Mailbox:
        return InlineMailbox(now=lambda: self.now_ms, wait=self._wait)

    def _wait(self, seconds: float) -> None:
        self.waits += 1
        self.now_ms += max(round(seconds * 1000), 1)
        for at in sorted(self.script):
            if self.now_ms >= self.start + at * 1000:
                self.script.pop(at)()

    def _on_spark(self, job: EpochJob) -> list[WireRow]:
        self.jobs += 1
        return super()._on_spark(job)

    def records(self, **options: Any) -> list[list[Any]]:
        """Runs on, and returns the records of each epoch."""
        return [
            sorted(collected(self.graph, self.collected), key=str) if self.collected else []
            for _ in self.run_epochs(continuous=True, **options)
        ]


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Waiting]:
    def build(stream: DataStream, script: dict[float, Callable[[], object]], **options: Any) -> Waiting:
        attempt = Waiting(stream, tmp_path / "checkpoints", script, **options)
        monkeypatch.setattr(job_module, "_now", lambda: attempt.now_ms)
        return attempt

    return build


def lines(folder: Path) -> DataStream:
    folder.mkdir(exist_ok=True)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder))
    source.monitor_continuously(Duration.of_seconds(5))
    env = environment(2)
    return env.from_source(source.build(), WatermarkStrategy.no_watermarks(), "lines").uid("lines")


def asks(folder: Path, order: Order, ids: list[str] | None = None) -> Callable[[], None]:
    def ask() -> None:
        asker = JobRequests(StorageLocation(str(folder / "checkpoints" / "job")), "asker")
        request_id = asker.submit(order)
        if ids is not None:
            ids.append(request_id)

    return ask


def test_a_job_waits_for_input_and_takes_no_checkpoint_for_nothing(tmp_path: Path, waiting: Any) -> None:
    inbox = tmp_path / "in"
    script = {
        12.0: lambda: (inbox / "a").write_text("1\n2\n"),
        31.0: lambda: (inbox / "b").write_text("3\n"),
        60.0: asks(tmp_path, DONE),
    }
    with waiting(lines(inbox), script) as attempt:
        assert attempt.records() == [["1", "2"], ["3"], []]  # the last one is that of the stop
        assert attempt.jobs == 2
        assert attempt.finished and attempt.stopped_with
        # It looks for input every 5 seconds, and for requests every 2 seconds.
        assert attempt.waits < 60


def test_epochs_without_input_are_told_once(tmp_path: Path) -> None:
    """A job with a checkpoint each second would fill its log with them, and Dagster's database."""
    inbox, said = tmp_path / "in", list[str]()
    graph = collect_graph(lines(inbox))
    with HarnessAttempt(graph, tmp_path / "checkpoints", on_progress=said.append) as attempt:
        for name in ("a", None, None, None, "b", None, None):
            if name is not None:
                (inbox / name).write_text("1\n")
            attempt.run_epoch()
    told = [line.rpartition(": ")[2].rpartition("/")[2] for line in said if line.startswith("checkpoint ")]
    assert told == ["a", "nothing to read", "b", "nothing to read"]


def test_what_barriers_have_overtaken_does_not_wait_for_input(tmp_path: Path, waiting: Any) -> None:
    inbox = tmp_path / "in"
    script = {12.0: lambda: (inbox / "a").write_text("1\n2\n"), 60.0: asks(tmp_path, DONE)}
    stream = lines(inbox).map(lambda v: v, Types.STRING()).uid("first").blocking()
    stream = stream.map(lambda v: v, Types.STRING()).uid("second").blocking()
    config = {"checkpointing": CoordinatorConfig(unaligned=True)}
    with waiting(stream.map(lambda v: v, Types.STRING()).uid("third"), script, config=config) as attempt:
        assert attempt.records() == [[], [], ["1", "2"], []]
        assert attempt.jobs == 9
        assert attempt.finished


def test_a_job_that_waits_takes_a_checkpoint_on_request(tmp_path: Path, waiting: Any) -> None:
    ids: list[str] = []
    script = {3.0: asks(tmp_path, CHECKPOINT, ids), 20.0: asks(tmp_path, DONE)}
    with waiting(lines(tmp_path / "in"), script) as attempt:
        assert attempt.records() == [[], []]
        answer = JobRequests(StorageLocation(str(tmp_path / "checkpoints" / "job")), "asker").answer(ids[0])
        assert answer is not None and answer.checkpoint_id == 1


def test_a_job_that_waits_is_rescaled(tmp_path: Path, waiting: Any) -> None:
    inbox = tmp_path / "in"
    script = {
        3.0: lambda: (inbox / "a").write_text("1\n2\n"),
        20.0: asks(tmp_path, Order(RequestKind.RESCALE, parallelism=3)),
        30.0: lambda: (inbox / "b").write_text("3\n"),
        60.0: asks(tmp_path, DONE),
    }
    with waiting(lines(inbox), script) as attempt:
        assert [each for each in attempt.records() if each] == [["1", "2"], ["3"]]
        assert attempt.graph.vertex("lines").parallelism == 3


def test_with_an_interval_there_is_a_checkpoint_per_interval(tmp_path: Path, waiting: Any) -> None:
    config = {"checkpointing": CoordinatorConfig(interval=timedelta(seconds=10), min_pause=timedelta(seconds=10))}
    script = {12.0: lambda: (tmp_path / "in" / "a").write_text("1\n"), 35.0: asks(tmp_path, DONE)}
    with waiting(lines(tmp_path / "in"), script, config=config) as attempt:
        assert attempt.records() == [[], ["1"], [], []]
        assert attempt.jobs == 3


@pytest.mark.parametrize("records", [[], [("a", 1, 1), ("b", 2, 2), ("c", 3, 3)]])
def test_a_job_ends_with_its_input(records: Sequence[tuple[str, int, int]], waiting: Any) -> None:
    with waiting(events(environment(2), records, per_epoch=2), {}) as attempt:
        assert sum(len(each) for each in attempt.records()) == len(records)
        assert attempt.finished and attempt.waits == 0


def test_what_was_found_is_read_although_the_caller_has_enough(
    tmp_path: Path, waiting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its position would otherwise be lost between two epochs."""
    inbox = tmp_path / "in"
    inbox.mkdir()
    (inbox / "a").write_text("1\n")
    look, ids = SplitPlanner.look, list[str]()

    def stopped_meanwhile(splits: SplitPlanner) -> bool:
        found = look(splits)
        if found and not ids:
            asks(tmp_path, DONE, ids)()
            attempt.now_ms += 10_000
        return found

    monkeypatch.setattr(SplitPlanner, "look", stopped_meanwhile)
    with waiting(lines(inbox), {}) as attempt:
        assert attempt.records()[0] == ["1"]
        assert attempt.finished


def test_input_that_cannot_be_listed_ends_the_run(tmp_path: Path, waiting: Any) -> None:
    inbox = tmp_path / "in"
    (tmp_path / "in").mkdir()
    (inbox / "a").write_text("1\n")
    script = {12.0: lambda: (inbox / "a").write_text("another\n")}
    with pytest.raises(SourceReadError, match="changed"), waiting(lines(inbox), script) as attempt:
        attempt.records()
    assert attempt.jobs == 1
