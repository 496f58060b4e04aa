"""Tracks which checkpoints name which state files, so that unused files can be deleted. Pure rules."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dagster_flinkpy.errors import CheckpointError

__all__ = ["SharedStateEntry", "SharedStateRegistry"]

_NAME = re.compile(r"shared/\d+-(\d+)-[0-9a-f]{64}\.parquet")


@dataclass(frozen=True)
class SharedStateEntry:
    """What is known about a file."""

    created_by: int
    """The checkpoint in the file's name, which it was written for, or else the first known one that names it."""
    last_used: int
    """The last checkpoint that names it."""


class SharedStateRegistry:
    """The state files that the checkpoints of one execution attempt share (Flink: ``SharedStateRegistryImpl``).

    As in Flink, no references are counted. A file is used from the checkpoint that it was written for to the last one
    that names it, and it is unused when none of these checkpoints is retained. (Flink retains only the newest
    checkpoints, so it only looks at the last one.) A task may name a file of an older checkpoint without writing it
    again. That is a *placeholder* (Flink: ``PlaceholderStreamStateHandle``). Flink has a rule for two different files
    under one key. It is not needed here, because a name contains the attempt, the checkpoint and the content.
    """

    def __init__(self) -> None:
        self._entries: dict[str, SharedStateEntry] = {}
        self._checkpoints: set[int] = set()

    def __contains__(self, path: str) -> bool:
        return path in self._entries

    def entry(self, path: str) -> SharedStateEntry | None:
        """Returns what is known about a file, or None if no known checkpoint names it."""
        return self._entries.get(path)

    def unknown(self, checkpoint_ids: Iterable[int]) -> list[int]:
        """Returns those checkpoints that were never registered."""
        return [checkpoint_id for checkpoint_id in checkpoint_ids if checkpoint_id not in self._checkpoints]

    def register_all(self, checkpoint_id: int, files: Iterable[str], placeholders: Iterable[str] = ()) -> None:
        """Registers the files that a checkpoint names.

        Args:
            checkpoint_id: Id of the checkpoint.
            files: Files that were written for it, or for a checkpoint that it was restored from.
            placeholders: Files that were written for an earlier checkpoint.

        Raises:
            CheckpointError: No known checkpoint names a placeholder, so it may be deleted. Nothing is registered.
        """
        files, placeholders = set(files), set(placeholders)
        if missing := sorted(path for path in placeholders if path not in self._entries):
            raise CheckpointError(
                f"checkpoint {checkpoint_id} names state file {missing[0]}, which was not written for it and which no "
                "retained checkpoint names, so it may be gone. Run the job again from its latest checkpoint."
            )
        for path in files | placeholders:
            known = self._entries.get(path, SharedStateEntry(_written_for(path, checkpoint_id), checkpoint_id))
            self._entries[path] = SharedStateEntry(
                min(known.created_by, checkpoint_id), max(known.last_used, checkpoint_id)
            )
        self._checkpoints.add(checkpoint_id)

    def unregister_unused(self, retained: Collection[int]) -> set[str]:
        """Forgets the files that no retained checkpoint can name, and returns them.

        Args:
            retained: The checkpoints that are kept or pending.
        """
        ordered = sorted(retained)  # Both files and checkpoints may be thousands.
        unused = {
            path
            for path, entry in self._entries.items()
            if bisect_left(ordered, entry.created_by) == bisect_right(ordered, entry.last_used)
        }
        for path in unused:
            del self._entries[path]
        return unused


def _written_for(path: str, checkpoint_id: int) -> int:
    """Returns the first checkpoint that may name a file; older ones may be retained without being registered."""
    name = _NAME.fullmatch(path)
    return checkpoint_id if name is None else min(int(name[1]), checkpoint_id)
