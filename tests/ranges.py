"""A source in Flink's shape, for tests: ranges of numbers, which files hold back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream.connectors.source import (
    InputStatus,
    ReaderOutput,
    Source,
    SourceReader,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
)

__all__ = ["SIZE", "Ranges"]

SIZE = 10
"""How many numbers a range has."""


class _Enumerator(SplitEnumerator):
    def __init__(self, context: SplitEnumeratorContext, folder: Path, left: list[dict[str, int]]) -> None:
        self._context, self._folder, self._left = context, folder, left

    def _note(self, what: str) -> None:
        with (self._folder / "enumerator").open("a") as file:
            file.write(f"{what}\n")

    def start(self) -> None:
        self._note(f"start {self._context.current_parallelism()}")

    def add_reader(self, subtask_id: int) -> None:
        self._note(f"reader {subtask_id}")

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None) -> None:
        if self._left:
            self._context.assign_split(self._left.pop(0), subtask_id)
        else:
            self._context.signal_no_more_splits(subtask_id)

    def handle_source_event(self, subtask_id: int, event: Any) -> None:
        self._note(f"read {event['read']}")
        self._context.send_event_to_source_reader(subtask_id, {"thanks": event["read"]})

    def add_splits_back(self, splits: Sequence[Any], subtask_id: int) -> None:
        self._note(f"back {len(splits)}")
        self._left = [*splits, *self._left]

    def snapshot_state(self) -> Any:
        return self._left

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._note(f"complete {checkpoint_id}")

    def close(self) -> None:
        self._note("close")


class _Reader(SourceReader):
    def __init__(self, context: SourceReaderContext, folder: Path) -> None:
        self._context, self._folder = context, folder
        self._splits: list[dict[str, int]] = []
        self._no_more = False

    def start(self) -> None:
        if not self._splits:
            self._context.send_split_request()

    def add_splits(self, splits: Sequence[Any]) -> None:
        self._splits += splits

    def notify_no_more_splits(self) -> None:
        self._no_more = True

    def handle_source_events(self, event: Any) -> None:
        (self._folder / f"thanks-{event['thanks']}").touch()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        if not self._splits:
            return InputStatus.END_OF_INPUT if self._no_more else self._nothing()
        split = self._splits[0]
        if (self._folder / f"hold-{split['next']}").exists():
            return self._nothing()
        output.collect(split["next"], split["next"])
        split["next"] += 1
        if split["next"] == split["end"]:
            self._splits.pop(0)
            self._context.send_source_event_to_coordinator({"read": split["end"]})
            if not self._splits:
                self._context.send_split_request()
        return InputStatus.MORE_AVAILABLE

    def _nothing(self) -> InputStatus:
        with (self._folder / f"reader-{self._context.get_index_of_subtask()}-nothing").open("a") as file:
            file.write("\n")
        return InputStatus.NOTHING_AVAILABLE

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        return self._splits

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        (self._folder / f"reader-{self._context.get_index_of_subtask()}-complete-{checkpoint_id}").touch()

    def close(self) -> None:
        (self._folder / f"reader-{self._context.get_index_of_subtask()}-closed").touch()


class Ranges(Source):
    """Ten numbers in each of some ranges. A file ``hold-N`` holds back the number N and those after it."""

    produced_type = Types.LONG()

    def __init__(self, folder: Path, ranges: int) -> None:
        self._folder, self._ranges = folder, ranges

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator:
        ranges = [{"next": SIZE * i, "end": SIZE * (i + 1)} for i in range(self._ranges)]
        return _Enumerator(context, self._folder, ranges)

    def restore_enumerator(self, context: SplitEnumeratorContext, checkpoint: Any) -> SplitEnumerator:
        return _Enumerator(context, self._folder, checkpoint)

    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        return _Reader(context, self._folder)
