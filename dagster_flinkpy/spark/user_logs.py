"""Sends what user functions log and print in a Python worker to the run.

Log records and printed lines are sent to the driver with the acknowledgements, within the bounds below. Entries beyond
them are only counted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import TextIOBase
from typing import Any

__all__ = ["LogEntry", "LogRelay", "UserLogs", "log_here", "print_line"]

MAX_ENTRIES = 100
"""The maximum number of log records per level, both those that a task sends at a time and those of an epoch that the
driver passes on."""

MAX_LINES = 1_000
"""The same of printed lines."""

MAX_TEXT = 4_000
"""The maximum number of characters of one message or line."""

_QUIET = ("asyncio", "boto3", "botocore", "dagster_flinkpy", "grpc", "py4j", "pyspark", "s3transfer", "urllib3")
"""Loggers of the platform. Their records below WARNING are only in the worker's own log."""

_COUNTED_SECONDS = 60.0
"""How long entries count for these limits amid an epoch: that of a script may take hours."""

PRINTED = 0
"""The level of a printed line."""


@dataclass(frozen=True)
class LogEntry:
    """A log record, or a printed line, of a user function."""

    operator: str
    """Uid of the operator."""
    subtask: int
    """Index of the subtask."""
    checkpoint_id: int
    """The checkpoint whose epoch it belongs to; of tasks that live, the first one that they have read."""
    level: int
    """The level, as in :mod:`logging`; 0 for a printed line."""
    logger: str
    """Name of the logger; empty for a printed line."""
    text: str
    """The message, with the traceback if there is one."""

    def __str__(self) -> str:
        if not self.operator:
            return f"[checkpoint {self.checkpoint_id}] {self.text}"
        name = "" if self.logger in ("", "root") else f"{self.logger}: "
        return f"[{self.operator}, subtask {self.subtask}, checkpoint {self.checkpoint_id}] {name}{self.text}"


@dataclass
class _Counts:
    since: float
    seen: Counter[int] = field(default_factory=Counter)
    """How many entries of each level there were."""
    left_out: Counter[int] = field(default_factory=Counter)


class LogRelay:
    """Passes a limited number of entries of each level to the run, in each epoch of a region, or minute of a long one.

    Args:
        on_log: Takes them.
        clock: Returns monotonic time in seconds.
    """

    def __init__(self, on_log: Callable[[LogEntry], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._on_log, self._clock = on_log, clock
        self._counts = defaultdict[int, _Counts](lambda: _Counts(clock()))
        self._lock = threading.RLock()

    def hear(self, region: int, payload: bytes) -> None:
        """Takes what :meth:`UserLogs.payload` returned, while the epoch goes on. Any thread may call it."""
        entries, missing = UserLogs.parse(payload)
        with self._lock:
            if entries and self._clock() >= self._counts[region].since + _COUNTED_SECONDS:
                self.end(region, [], {}, entries[0].checkpoint_id)
            self._take(region, entries, missing)

    def end(self, region: int, entries: Iterable[LogEntry], missing: Mapping[int, int], checkpoint_id: int) -> None:
        """Takes the last entries of an epoch, and passes on how many were left out.

        Args:
            region: The region.
            entries: What its tasks have sent.
            missing: How many they have not sent, by level.
            checkpoint_id: The checkpoint of the epoch.
        """
        left_out = "were left out; Spark's log has those that workers did not send"
        with self._lock:
            self._take(region, entries, missing)
            for level, count in sorted(self._counts.pop(region).left_out.items()):
                what = "printed lines" if level == PRINTED else f"{logging.getLevelName(level)} records"
                text = f"{count} more {what} of user functions {left_out}"
                self._on_log(LogEntry("", 0, checkpoint_id, level or logging.INFO, "", text))

    def _take(self, region: int, entries: Iterable[LogEntry], missing: Mapping[int, int]) -> None:
        counts = self._counts[region]
        counts.left_out.update(missing)
        for entry in entries:
            counts.seen[entry.level] += 1
            if counts.seen[entry.level] > (MAX_LINES if entry.level == PRINTED else MAX_ENTRIES):
                counts.left_out[entry.level] += 1
            else:
                self._on_log(entry)


def log_here(entry: LogEntry) -> None:
    """Logs an entry in this process, by the logger of the same name; prints printed lines."""
    if entry.level == PRINTED:
        print_line(entry.text)
    else:
        logging.getLogger(entry.logger).log(entry.level, "%s", entry)


def print_line(text: str) -> None:
    """Prints a line, or several. What standard output cannot encode is escaped: it is no reason to end the job."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    print(f"{text}\n", end="", flush=True)  # at once: the lines of another thread are not to come between


class UserLogs:
    """Collects what the user functions of one task log and print.

    Args:
        where: Returns the uid of the operator that is running, the index of the subtask, and the checkpoint that the
            task works towards.
    """

    def __init__(self, where: Callable[[], tuple[str, int, int]]) -> None:
        self._where, self._pid = where, os.getpid()
        self._lines = _Lines(self)
        self._entries: list[LogEntry] = []
        self._seen: Counter[int] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Collects what is logged at INFO or above, and what is printed, inside the context."""
        root, handler, stdout = logging.getLogger(), _Handler(self), sys.stdout
        level = root.level
        root.addHandler(handler)
        if root.getEffectiveLevel() > logging.INFO:
            root.setLevel(logging.INFO)
        sys.stdout = self._lines
        try:
            yield
        finally:
            sys.stdout = stdout
            self.end_lines()
            root.setLevel(level)
            root.removeHandler(handler)

    def end_lines(self) -> None:
        """Takes lines that nobody has ended."""
        self._lines.end()

    def add(self, level: int, logger: str, text: str) -> bool:
        """Takes an entry; returns whether it will reach the driver. What a forked process has, nobody would send."""
        if os.getpid() != self._pid:
            return False
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]}... ({len(text)} characters)"
        entry = LogEntry(*self._where(), level, logger, text)
        with self._lock:
            self._seen[level] += 1
            if self._seen[level] > (MAX_LINES if level == PRINTED else MAX_ENTRIES):
                return False
            self._entries.append(entry)
        return True

    def payload(self) -> bytes | None:
        """Returns the entries since the last call as bytes, or None if there are none. Any thread may call it."""
        with self._lock:
            entries, self._entries = self._entries, []
            seen, self._seen = self._seen, Counter()
        if not seen:
            return None
        dropped = seen - Counter(entry.level for entry in entries)
        return json.dumps({"entries": [asdict(entry) for entry in entries], "dropped": list(dropped.items())}).encode()

    @staticmethod
    def parse(payload: bytes) -> tuple[list[LogEntry], dict[int, int]]:
        """Reads what :meth:`payload` returned.

        Returns:
            The entries, and how many are missing, by level.
        """
        data: dict[str, Any] = json.loads(payload)
        return [LogEntry(**entry) for entry in data["entries"]], dict(data["dropped"])


class _Handler(logging.Handler):
    def __init__(self, logs: UserLogs) -> None:
        super().__init__(logging.INFO)
        self._logs = logs

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.split(".")[0] in _QUIET and record.levelno < logging.WARNING:
            return
        try:
            text = self.format(record)
        except Exception as e:
            text = f"{record.msg!r} (could not be formatted: {type(e).__name__}: {e})"
        if not self._logs.add(record.levelno, record.name, text):
            print(text, file=sys.stderr)


class _Lines(TextIOBase):
    """Standard output of a task. Bytes, and what has its descriptor, are only in the worker's own log."""

    encoding = "utf-8"

    def __init__(self, logs: UserLogs) -> None:
        self._logs = logs
        self._begun: dict[int, str] = {}
        """By thread, a line that it has begun."""

    @property
    def buffer(self) -> Any:
        return sys.stderr.buffer

    def fileno(self) -> int:
        return sys.stderr.fileno()

    def writable(self) -> bool:
        return True

    def reconfigure(self, **options: Any) -> None:
        """Nothing is encoded here, nor waits for more."""

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        *lines, rest = (self._begun.pop(thread, "") + text).split("\n")
        if len(rest) > MAX_TEXT:  # as a bar of progress, which may never end its line
            lines.append(rest)
        elif rest:
            self._begun[thread] = rest
        for line in lines:
            self._add(line)
        return len(text)

    def end(self) -> None:
        """Sends lines that nobody has ended."""
        while self._begun:
            self._add(self._begun.popitem()[1])

    def _add(self, line: str) -> None:
        if not self._logs.add(PRINTED, "", line):
            print(line, file=sys.stderr)
