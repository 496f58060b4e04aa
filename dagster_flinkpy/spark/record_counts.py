"""Counts the records that the tasks of a Spark job have read so far, if driver and workers share a machine.

Each task writes its count to a file, and the driver reads the folder of these files. The counts are for progress
messages, and keep a checkpoint from expiring while its epoch is read; files that cannot be written or read are ignored.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from contextlib import suppress

__all__ = ["RecordCounts", "TaskCount"]

_BYTES = 8


class TaskCount:
    """Counts the records that one task reads from its sources or from the previous stage.

    Args:
        folder: The driver's folder; if it is empty, nothing is recorded.
        stage: Number of the task's stage.
        name: Name of the task in the stage, for a file. A second try of the task starts again from 0.
    """

    def __init__(self, folder: str, stage: int, name: str) -> None:
        self._count = 0
        self._note: mmap.mmap | None = None
        if folder:
            with suppress(OSError):
                path = os.path.join(folder, f"{stage}-{name}")
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.write(descriptor, bytes(_BYTES))  # a mapping of what the disk has no room for would kill
                    self._note = mmap.mmap(descriptor, _BYTES)
                finally:
                    os.close(descriptor)

    def add(self, records: int) -> None:
        """Adds to the count, without a system call."""
        if self._note is not None:
            self._count += records
            self._note[:] = self._count.to_bytes(_BYTES, "little")

    def close(self) -> None:
        """Ends counting. The count stays until the driver deletes it."""
        if self._note is not None:
            self._note.close()
            self._note = None


class RecordCounts:
    """The counts of all tasks of a Spark job, for the driver; a context manager."""

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self.folder = ""
        """The folder to which tasks write their counts; empty if they do not."""

    def __enter__(self) -> RecordCounts:
        if self._shared:
            with suppress(OSError):
                self.folder = tempfile.mkdtemp(prefix="flinkpy-progress-")
        return self

    def __exit__(self, *raised: object) -> None:
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = ""

    @property
    def total(self) -> int:
        """The number of records that all tasks have read so far."""
        return sum(self.by_stage().values())

    def by_stage(self) -> dict[int, int]:
        """Returns the number of records so far by stage; empty if there are no counts."""
        found = dict[int, int]()
        if self.folder:
            with suppress(OSError):
                for entry in os.scandir(self.folder):
                    stage = int(entry.name.partition("-")[0])
                    with open(entry.path, "rb") as file:
                        found[stage] = found.get(stage, 0) + int.from_bytes(file.read(_BYTES), "little")
        return found
