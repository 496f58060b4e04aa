"""The Spark jobs on a local server: each process records its own jobs beside the server's state file.

Spark Connect does not tell a client about the jobs of others.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

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
    def announce(self, what: str, owner: str) -> Iterator[list[str]]:
        """Records a job while it runs, and yields a line for each job of others that was running when it began.

        Args:
            what: The job, for messages, e.g. ``checkpoint 7 of job 'orders'``.
            owner: Identifies whom it belongs to.
        """
        note = self._folder / f"{uuid.uuid4().hex}.json"
        others = self._others(owner)
        with contextlib.suppress(OSError):  # a job also runs without its record
            self._folder.mkdir(mode=0o700, exist_ok=True)
            draft = note.with_suffix(".draft")
            fields = {"what": what, "owner": owner, "since": time.time(), "process": asdict(ProcessId.current())}
            draft.write_text(json.dumps(fields))
            draft.replace(note)
        try:
            yield others
        finally:
            with contextlib.suppress(OSError):
                note.unlink(missing_ok=True)

    def _others(self, owner: str) -> list[str]:
        found = []
        for path in self._folder.glob("*.json"):
            try:
                note = json.loads(path.read_text())
                process, since, what = ProcessId(**note["process"]), float(note["since"]), str(note["what"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if not process.is_alive():
                path.unlink(missing_ok=True)
            elif note.get("owner") != owner:
                found.append((since, f"{what} (process {process.pid}, for {max(0.0, time.time() - since):.0f} s)"))
        return [line for _, line in sorted(found)]
