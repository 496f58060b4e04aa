"""Which checkpoints name which state files, so that a file goes when the last of them has gone. Pure rules."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dagster_flinkpy.errors import CheckpointError

__all__ = ["SharedStateEntry", "SharedStateRegistry"]

_NAME = re.compile(r"shared/\d+-(\d+)-[0-9a-f]{64}\.parquet")


@dataclass(frozen=True)
class SharedStateEntry:
    """What is known of a file."""

    created_by: int
    """The checkpoint it was written for, as its name says, or the first known one that names it."""
    last_used: int
    """The last checkpoint that names it."""


class SharedStateRegistry:
    """The state files that the checkpoints of one execution attempt share (Flink: ``SharedStateRegistryImpl``).

    As in Flink no references are counted: a file is unused when no checkpoint is retained of those from the one that
    brought it to the last one that named it. (Flink retains the newest ones only, and so asks for the last alone.) A
    task names a file that an older checkpoint has brought without writing it again; that is a *placeholder* (Flink:
    ``PlaceholderStreamStateHandle``). Flink's rule for two different files under one key does not arise: a name has the
    attempt, the checkpoint and the content in it.
    """

    def __init__(self) -> None:
        self._entries: dict[str, SharedStateEntry] = {}
        self._checkpoints: set[int] = set()

    def __contains__(self, path: str) -> bool:
        return path in self._entries

    def entry(self, path: str) -> SharedStateEntry | None:
        """What is known of a file; None if no known checkpoint names it."""
        return self._entries.get(path)

    def unknown(self, checkpoint_ids: Iterable[int]) -> list[int]:
        """Which of these checkpoints were never registered."""
        return [checkpoint_id for checkpoint_id in checkpoint_ids if checkpoint_id not in self._checkpoints]

    def register_all(self, checkpoint_id: int, files: Iterable[str], placeholders: Iterable[str] = ()) -> None:
        """Takes note of what a checkpoint names.

        Args:
            checkpoint_id: Of the checkpoint.
            files: Written for it, or for one that it was restored from.
            placeholders: Written for an earlier checkpoint.

        Raises:
            CheckpointError: No known checkpoint has brought a placeholder: it may be deleted. Nothing is registered.
        """
        files, placeholders = set(files), set(placeholders)
        if missing := sorted(path for path in placeholders if path not in self._entries):
            raise CheckpointError(
                f"checkpoint {checkpoint_id} names state file {missing[0]}, which it has not written and no retained "
                "checkpoint names, so it may be gone. Run the job again from its latest checkpoint."
            )
        for path in files | placeholders:
            known = self._entries.get(path, SharedStateEntry(_written_for(path, checkpoint_id), checkpoint_id))
            self._entries[path] = SharedStateEntry(
                min(known.created_by, checkpoint_id), max(known.last_used, checkpoint_id)
            )
        self._checkpoints.add(checkpoint_id)

    def unregister_unused(self, retained: Collection[int]) -> set[str]:
        """Forgets the files that none of these checkpoints can name, and returns them.

        Args:
            retained: Those that are kept, or under way.
        """
        unused = {
            path
            for path, entry in self._entries.items()
            if not any(entry.created_by <= checkpoint_id <= entry.last_used for checkpoint_id in retained)
        }
        for path in unused:
            del self._entries[path]
        return unused


def _written_for(path: str, checkpoint_id: int) -> int:
    """The first checkpoint that may name a file: older ones are retained that nobody has registered."""
    name = _NAME.fullmatch(path)
    return checkpoint_id if name is None else min(int(name[1]), checkpoint_id)
