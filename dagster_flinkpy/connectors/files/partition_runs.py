"""Which run of a Dagster partition a source of files has read: one that runs again replaces its files."""

from __future__ import annotations

from dagster_flinkpy.connectors.commit.staged_files import partition_of, written_by
from dagster_flinkpy.connectors.sources.known_files import hashed, packed, unpacked
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.errors import InputChangedError

__all__ = ["PartitionRuns"]

_MOST = 10_000


class PartitionRuns:
    """The runs of Dagster partitions whose files a source has read: of each sink, one in each folder of a partition.

    A run replaces the files of the one before. The last 10,000 are remembered, each in 21 bytes of a position.
    """

    def __init__(self) -> None:
        self._runs: dict[bytes, bytes] = {}

    def copy(self) -> PartitionRuns:
        """Returns them in an object of their own."""
        found = PartitionRuns()
        found._runs = dict(self._runs)
        return found

    def note(self, name: str) -> None:
        """Takes note of a file that was read, by its URL."""
        if (run := _run_of(name)) is not None:
            self._runs.setdefault(*run[:2])

    def add(self, name: str) -> None:
        """Takes note of a file before it is read.

        Raises:
            InputChangedError: It is of another run than files that were read, or that are to be read with it.
        """
        if (run := _run_of(name)) is None:
            return
        partition, checkpoint, job_id, folder = run
        if self._runs.setdefault(partition, checkpoint) != checkpoint:
            raise InputChangedError(
                f"job {job_id!r} has run {folder} again, as {name!r} shows: its rows would be read in addition to "
                "those that they replace. If none of them was read yet, run again when the replaced files are gone. Or "
                "else move the new files away to leave them out; or start from a checkpoint before it, or from empty "
                "state"
            )
        while len(self._runs) > _MOST:
            del self._runs[next(iter(self._runs))]

    def to_json(self) -> dict[str, str]:
        """Returns them as a part of a position."""
        return {"runs": packed(self._runs, self._runs)} if self._runs else {}

    @staticmethod
    def from_json(position: Json) -> PartitionRuns:
        """Takes them from a position, which may have none."""
        found = PartitionRuns()
        found._runs = unpacked(position, "runs")
        return found


def _run_of(name: str) -> tuple[bytes, bytes, str, str] | None:
    """Returns what stands for sink and partition of a file, for its run, and their job and folder, if it has any."""
    folder, written = partition_of(name), written_by(name)
    if folder is None or written is None:
        return None
    job_id, uid, checkpoint = written
    return hashed(f"{folder}\n{job_id}\n{uid}"), hashed(str(checkpoint)), job_id, folder
