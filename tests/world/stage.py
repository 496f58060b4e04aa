"""What a world consists of: systems that a job reads or writes, and what somebody else may do to them."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.errors import FlinkPyError, HeadLostError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["EVENT", "JOB_AWAY", "MOMENTS", "Act", "Place", "Record", "Sink", "Source", "System", "Undo", "nothing"]

EVENT = Types.ROW_NAMED(["key", "time", "value"], [Types.STRING(), Types.LONG(), Types.LONG()])
Record = tuple[str, int, int]
"""Key, time and value. The values of a world differ."""

MOMENTS = (
    "before planning",
    "after planning",
    "while reading",
    "before pre-commit",
    "before _metadata",
    "before HEAD",
    "before commit",
    "within commit",
    "after commit",
    "between runs",
)
"""When somebody acts."""

Undo = Callable[[bool], Any]
"""Undoes an act, or follows the advice of the error. Its argument says whether the job has failed meanwhile. It may
return another one, for the case that undoing it disturbs the job, too."""


def nothing(failed: bool) -> None:
    """Undoes an act that stays."""


@dataclass(frozen=True)
class Act:
    """Something that somebody else does."""

    name: str
    """In the third person: ``drops the table``."""
    do: Callable[[Any], Undo | None]
    """Does it to a system, and returns what undoes it, or None if there is nothing to which it could be done now."""
    errors: tuple[type[FlinkPyError], ...] = ()
    """What the job may end with while the act stands. Never anything else."""
    then: str = ""
    """What happens, for the table in the documentation. Default: what `errors` say."""
    at: Sequence[str] = MOMENTS
    ends: bool = False
    """Whether nothing can be undone: the job has to end with an error again and again."""
    alone: bool = False
    """Whether nobody else may act in the same case, because then nothing tells what has happened."""


@dataclass(frozen=True)
class Place:
    """Where a world is."""

    folder: Path
    postgres: str = ""
    s3: StorageLocation | None = None
    """A server of S3; each system has a bucket of its own there."""


def _takes_job_away(system: System) -> Undo | None:
    job, kept = system.place.folder / "job" / "job", system.place.folder / "kept-job"
    job.rename(kept)

    def undo(failed: bool) -> None:
        shutil.rmtree(job, ignore_errors=True)  # of a run that was refused
        kept.rename(job)

    return undo


JOB_AWAY = Act("takes the folder of the job away", _takes_job_away, (HeadLostError,), at=("between runs",), alone=True)
"""For each sink: what it has written knows the job."""


@dataclass
class System(ABC):
    """A system that others use, too."""

    title: ClassVar[str]
    """For the table in the documentation."""
    needs: ClassVar[str] = ""
    """The server that it needs: a field of `Place`."""
    acts: ClassVar[Sequence[Act]]

    place: Place
    may: set[int] = field(default_factory=set)
    """Values that others have added, and that may show up once."""
    gone: set[int] = field(default_factory=set)
    """Values that others have taken away for good."""
    round: int = 0
    """The number of the round."""
    visible: Collection[int] = ()
    """The values that the job has written so far."""
    restore_from: str | None = None
    """What the next run restores, if an undo follows such advice."""

    @property
    def checkpoints(self) -> StorageLocation:
        """Where the job has its checkpoints."""
        return StorageLocation(str(self.place.folder / "job"))

    @property
    def folder(self) -> Path:
        """A folder for the system."""
        return self.place.folder / "system"

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:  # noqa: B027 - few have something to begin
        """Makes what is there before the job."""

    def close(self) -> None:  # noqa: B027 - few have something to end
        """Ends the system."""


class Source(System):
    """A system from which the job reads."""

    patient: ClassVar[bool] = False
    """Whether writers wait while what somebody has done can be undone."""

    @abstractmethod
    def put(self, records: Sequence[Record]) -> None:
        """Adds records, as a well-behaved writer."""

    @abstractmethod
    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        """Returns the records, as rows."""


class Sink(System):
    """A system into which the job writes rows of ``key``, ``time`` and ``value``."""

    hooks: ClassVar[Sequence[tuple[str, str, bool]]] = ()
    """Steps within a commit: ``module:Class``, method, and whether after it."""
    knows_the_job: ClassVar[bool] = True
    """Whether what is written tells which checkpoints of the job it has."""

    @abstractmethod
    def sink(self) -> TwoPhaseCommittingSink:
        """Returns the sink."""

    @abstractmethod
    def rows(self) -> Sequence[Record]:
        """Returns what a reader sees."""

    def values(self) -> Counter[int]:
        """Returns the values that a reader sees."""
        return Counter(value for _, _, value in self.rows())
