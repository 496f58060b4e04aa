"""What must hold for savepoints: they stay complete until their owner gives them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata
from tests.simulation.bucket import URL, Bucket
from tests.simulation.program import JOB

if TYPE_CHECKING:
    from tests.simulation.invariants import Completed

__all__ = ["SavepointRules"]

_NATIVE = "-native"


@dataclass
class _Savepoint:
    metadata: CheckpointMetadata
    claimed_by: set[str] = field(default_factory=set)
    """Owners of the attempts that were asked to claim it."""


class SavepointRules:
    """The savepoints that were reported to whoever requested them, by URL.

    Args:
        bucket: The bucket with the savepoints.
        completed: All completed checkpoints.
        owners: Owners of attempts by fencing token. An attempt that restarts in its run has several tokens.
        check_contents: Checks that the state in a folder is that of a number of splits.
        fail: Reports a violation.
    """

    def __init__(
        self,
        bucket: Bucket,
        completed: Mapping[int, Completed],
        owners: Mapping[int, str],
        check_contents: Callable[[CheckpointMetadata, int, str, str], None],
        fail: Callable[[str], None],
    ) -> None:
        self._bucket = bucket
        self._completed, self._owners = completed, owners
        self._check_contents = check_contents
        self._fail = fail
        self._known: dict[str, _Savepoint] = {}
        self._disposed: set[str] = set()

    def add(self, url: str, *, drained: bool = False) -> None:
        """Adds a savepoint, which must stay complete from now on.

        Args:
            url: The savepoint.
            drained: Whether it is of a job that was stopped with draining. Default: False.
        """
        if url in self._disposed:
            return  # swept as an old one before it was reported
        key = f"{_folder(url)}/{METADATA_NAME}"
        data = self._bucket.get(key)
        if data is None:
            self._fail(f"savepoint {url} is gone")
            return
        metadata = CheckpointMetadata.from_bytes(data, key)
        self._known[url] = _Savepoint(metadata)
        if any(s.committables for operator in metadata.operators for s in operator.subtasks):
            self._fail(f"savepoint {url} has something to commit")
        of = self._completed[metadata.checkpoint_id]
        if drained and not of.metadata.end_of_input:
            self._fail(f"savepoint {url} was taken with draining, but does not end the input")
        self._check_contents(metadata, of.read, _files_of(url), f"savepoint {url}")

    def dispose(self, url: str) -> None:
        """Records that an actor wants to delete a savepoint."""
        self._disposed.add(url)

    def claim(self, url: str, owner: str) -> None:
        """Records that an attempt will own a savepoint when it has completed its own checkpoint."""
        self._known[url].claimed_by.add(owner)

    @property
    def there(self) -> list[str]:
        """Returns the savepoints that nobody has given up."""
        return sorted(url for url in self._known if not self._is_given_up(url))

    @property
    def given_up(self) -> list[str]:
        """Returns the savepoints that may have been deleted."""
        return sorted(url for url in self._known if self._is_given_up(url))

    def checkpoint_id(self, url: str) -> int:
        """Returns the id of the checkpoint from which a savepoint was made."""
        return self._known[url].metadata.checkpoint_id

    def needed(self) -> set[str]:
        """Returns the job's files that native savepoints name, including savepoints that were not reported."""
        return {
            f"{JOB}/{path}"
            for key, found in self._bucket.objects.items()
            if key.endswith(f"{_NATIVE}/{METADATA_NAME}")
            for path in CheckpointMetadata.from_bytes(found.data, key).files()
        }

    def on_delete(self, key: str) -> None:
        for url in self.there:
            named = {f"{_files_of(url)}/{path}" for path in self._known[url].metadata.files()}
            if key in named or key == f"{_folder(url)}/{METADATA_NAME}":
                self._fail(f"{key} of savepoint {url} was deleted")

    def _is_given_up(self, url: str) -> bool:
        """Returns whether it was disposed of, or claimed by an attempt that has completed its own checkpoint."""
        claimed_by = self._known[url].claimed_by
        return url in self._disposed or any(
            self._owners.get(done.metadata.fencing_token) in claimed_by for done in self._completed.values()
        )


def _folder(url: str) -> str:
    return url.removeprefix(f"{URL}/")


def _files_of(url: str) -> str:
    """Returns the folder to which the paths of its files are relative."""
    return JOB if url.endswith(_NATIVE) else _folder(url)
