"""Which state files of failed checkpoints can be deleted, and when (Flink: ``CheckpointsCleaner``)."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["DiscardedFiles"]


class DiscardedFiles:
    """Keeps what a later checkpoint may name, and the latest one does.

    Args:
        named: What the checkpoint names that the attempt started from. It is never deleted.
    """

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._named_by_latest = frozenset(named)
        self._garbage: set[str] = set()
        self._handed_over: dict[int, set[str]] = {}
        """Files of failed checkpoints that the next one may name, too: its tasks continue from their state."""

    def discard(self, files: Iterable[str]) -> None:
        """Takes files that no checkpoint is to name."""
        self._garbage.update(files)

    def keep(self, files: Iterable[str]) -> None:
        """Keeps files that a checkpoint may name of which nobody knows whether it is complete."""
        self._named_by_latest |= frozenset(files)

    def hand_over(self, checkpoint_id: int, files: Iterable[str]) -> None:
        """Keeps the files of a failed checkpoint until a later one is complete."""
        self._handed_over[checkpoint_id] = set(files) - self._named_by_latest

    def completed(self, checkpoint_id: int, files: Iterable[str]) -> None:
        """Takes note of what the latest checkpoint names. What failed ones before it have left is not needed."""
        self._named_by_latest = frozenset(files)
        for number in list(self._handed_over):
            if number < checkpoint_id:
                self._garbage |= self._handed_over.pop(number)
            else:
                self._handed_over[number] -= self._named_by_latest

    def give_up(self) -> None:
        """Takes note that no checkpoint will take over from failed ones."""
        self._garbage.update(*self._handed_over.values())
        self._handed_over.clear()

    def take(self) -> frozenset[str]:
        """Returns what can be deleted, and forgets it. Nobody must be writing files.

        Files are named by content, so a task may write one of the same name again.
        """
        files = frozenset(self._garbage) - self._named_by_latest - frozenset().union(*self._handed_over.values())
        self._garbage.clear()
        return files
