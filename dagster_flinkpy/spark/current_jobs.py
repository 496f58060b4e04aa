"""The Spark jobs on a local server: each process records its own jobs beside the server's state file.

Spark Connect does not tell a client about the jobs of others.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dagster_flinkpy.json_records import JsonRecord
from dagster_flinkpy.spark.processes import ProcessId

__all__ = ["CurrentJobs"]


class CurrentJobs:
    """The Spark jobs of all processes that use one server.

    Args:
        folder: The folder with one file for each job. It is created if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def announce(self, what: str, owner: str, *, slots: int = 0) -> Iterator[list[str]]:
        """Records a job while it runs, and yields a line for each job of others that was running when it began.

        Args:
            what: The job, for messages, e.g. ``checkpoint 7 of job 'orders'``.
            owner: Identifies whom it belongs to.
            slots: How many task slots it keeps all the time. Default: 0, because its tasks end soon.
        """
        note = self._folder / f"{uuid.uuid4().hex}.json"
        others = self._others(owner)
        with contextlib.suppress(OSError):  # a job also runs without its record
            self._folder.mkdir(mode=0o700, exist_ok=True)
            draft = note.with_suffix(".draft")
            draft.write_bytes(_Note(what, time.time(), ProcessId.current(), owner, slots).to_bytes())
            draft.replace(note)
        try:
            yield others
        finally:
            with contextlib.suppress(OSError):
                note.unlink(missing_ok=True)

    def kept_slots(self) -> int:
        """Returns how many task slots the jobs keep that run now."""
        return sum(note.slots for note in self._notes())

    def _others(self, owner: str) -> list[str]:
        return [note.line for note in sorted(self._notes(), key=lambda note: note.since) if note.owner != owner]

    def _notes(self) -> Iterator[_Note]:
        for path in self._folder.glob("*.json"):
            try:
                note = _Note.from_text(path.read_text())
            except (OSError, ValueError):
                continue
            if note.process.is_alive():
                yield note
            else:
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Note(JsonRecord):
    what: str
    since: float
    process: ProcessId
    owner: str | None = None
    slots: int = 0

    @property
    def line(self) -> str:
        return f"{self.what} (process {self.process.pid}, for {max(0.0, time.time() - self.since):.0f} s)"
