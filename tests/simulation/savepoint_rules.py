"""What must be so of savepoints: they stay whole until their owner gives them up."""

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
    claimed_by: set[int] = field(default_factory=set)
    """Fencing tokens of the attempts that were to claim it."""


class SavepointRules:
    """Those savepoints that whoever asked for them was told of, by URL.

    Args:
        bucket: Where they are.
        completed: All checkpoints.
        check_contents: Looks whether the state in a folder is that of so many splits.
        fail: Reports what is not so.
    """

    def __init__(
        self,
        bucket: Bucket,
        completed: Mapping[int, Completed],
        check_contents: Callable[[CheckpointMetadata, int, str, str], None],
        fail: Callable[[str], None],
    ) -> None:
        self._bucket = bucket
        self._completed = completed
        self._check_contents = check_contents
        self._fail = fail
        self._known: dict[str, _Savepoint] = {}
        self._disposed: set[str] = set()

    def add(self, url: str) -> None:
        """From now on it must stay whole."""
        if url in self._disposed:
            return  # as an old one, before anybody was told of it
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
        self._check_contents(metadata, of.read, _files_of(url), f"savepoint {url}")

    def dispose(self, url: str) -> None:
        """Somebody wants it gone."""
        self._disposed.add(url)

    def claim(self, url: str, token: int) -> None:
        """An attempt is to own it, once it has a checkpoint of its own."""
        self._known[url].claimed_by.add(token)

    @property
    def there(self) -> list[str]:
        """Those that nobody has given up."""
        return sorted(url for url in self._known if not self._is_given_up(url))

    @property
    def given_up(self) -> list[str]:
        """Those that may be gone."""
        return sorted(url for url in self._known if self._is_given_up(url))

    def checkpoint_id(self, url: str) -> int:
        """Of the checkpoint that a savepoint was made of."""
        return self._known[url].metadata.checkpoint_id

    def needed(self) -> set[str]:
        """Files of the job that native savepoints name, also those that nobody was told of."""
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
        """Disposed of; or claimed, by an attempt that has a checkpoint of its own."""
        claimed_by = self._known[url].claimed_by
        return url in self._disposed or any(
            done.metadata.fencing_token in claimed_by for done in self._completed.values()
        )


def _folder(url: str) -> str:
    return url.removeprefix(f"{URL}/")


def _files_of(url: str) -> str:
    """What the paths of its files are relative to."""
    return JOB if url.endswith(_NATIVE) else _folder(url)
