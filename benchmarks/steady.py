"""Records that arrive steadily at readers, or without end, and a function that notes when each has come to it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import continuous, keyed
from dagster_flinkpy.datastream import MapFunction, RuntimeContext
from dagster_flinkpy.datastream.connectors.source import (
    InputStatus,
    ReaderOutput,
    Source,
    SourceReader,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
)

__all__ = ["Flood", "Note", "Steady", "notes"]

_SOON_SECONDS = 0.0001
"""A record that is due so soon is not waited for: to wake another thread takes as long."""


class Steady(Source):
    """Records that arrive steadily, shared among the readers, and are read as they come. A record is key and number.

    A reader that starts again, after a failure or a rescale, reads what is due from then on.

    Args:
        rate: Records per second.
        began: When the first one comes, in seconds since 1970.
        keys: The number of keys. Default: 1,000.
    """

    produced_type = continuous.PAIR

    def __init__(self, rate: float, began: float, keys: int = continuous.KEYS) -> None:
        self._rate, self._began, self._keys = rate, began, keys

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator:
        return _NoSplits()

    def restore_enumerator(self, context: SplitEnumeratorContext, checkpoint: Any) -> SplitEnumerator:
        return _NoSplits()

    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        return _Reader(self._rate, self._began, self._keys, context)


class _NoSplits(SplitEnumerator):
    def handle_split_request(self, subtask_id: int, requester_hostname: str | None) -> None: ...

    def add_splits_back(self, splits: Sequence[Any], subtask_id: int) -> None: ...

    def snapshot_state(self) -> None: ...


class _Reader(SourceReader):
    def __init__(self, rate: float, began: float, keys: int, context: SourceReaderContext) -> None:
        self._rate, self._began, self._keys, self._step = rate, began, keys, context.current_parallelism()
        now = max(int((time.time() - began) * rate), 0)
        self._next = now - now % self._step + context.get_index_of_subtask()
        self._clock = ThreadPoolExecutor(1)

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        come = (time.time() - self._began) * self._rate
        while self._next < come:
            output.collect((self._next % self._keys, self._next))
            self._next += self._step
        return InputStatus.NOTHING_AVAILABLE

    def is_available(self) -> Future[None]:
        due = self._began + self._next / self._rate
        if due <= time.time() + _SOON_SECONDS:
            return _available()
        return self._clock.submit(lambda: time.sleep(max(due - time.time(), 0.0)))

    def add_splits(self, splits: Sequence[Any]) -> None: ...

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        return []

    def close(self) -> None:
        self._clock.shutdown()


class Flood(Source):
    """Events of ``benchmarks keyed``, as fast as they are taken."""

    produced_type = keyed.EVENT

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator:
        return _NoSplits()

    def restore_enumerator(self, context: SplitEnumeratorContext, checkpoint: Any) -> SplitEnumerator:
        return _NoSplits()

    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        return _FloodReader(context.get_index_of_subtask())


def _available() -> Future[None]:
    available = Future[None]()
    available.set_result(None)
    return available


class _FloodReader(SourceReader):
    def __init__(self, subtask: int) -> None:
        self._subtask, self._events = subtask, keyed.events(subtask)

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        events = next(self._events, None)
        if events is None:
            self._events = keyed.events(self._subtask)
            events = next(self._events)
        output.collect_column(events)
        return InputStatus.MORE_AVAILABLE

    def is_available(self) -> Future[None]:
        return _available()

    def add_splits(self, splits: Sequence[Any]) -> None: ...

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        return []

    def close(self) -> None: ...


class Note(MapFunction):
    """Notes when each record has come, in a file per execution, which is named by subtask and process."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def open(self, runtime_context: RuntimeContext) -> None:
        name = f"{runtime_context.get_index_of_this_subtask()}-{os.getpid()}-{time.time_ns()}"
        self._file = Path(self._folder, name).open("a")  # noqa: SIM115

    def map(self, value: Any) -> Any:
        self._file.write(f"{value[1]} {time.time()}\n")
        return value

    def close(self) -> None:
        self._file.close()


def notes(folder: Path) -> np.ndarray[Any, Any]:
    """Returns number and time of each record that was noted, in rows sorted by time.

    The last line of a process that was killed may be cut.
    """
    lines = (line for file in folder.iterdir() for line in file.read_text().splitlines(keepends=True))
    rows = np.array([line.split() for line in lines if line.endswith("\n")], np.float64).reshape(-1, 2)
    return rows[np.argsort(rows[:, 1])]
