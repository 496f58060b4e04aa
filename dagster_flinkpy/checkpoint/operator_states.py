"""The state of operators and their subtasks, as described in checkpoint metadata."""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_flinkpy.checkpoint.json_values import Json, extra_fields, integer, sequence, text
from dagster_flinkpy.checkpoint.operator_program import OperatorProgram
from dagster_flinkpy.state.handles import KeyedSnapshot, OperatorStateHandle
from dagster_flinkpy.state.state_files import files_of
from dagster_flinkpy.storage.object_store import check_relative

__all__ = ["EXCHANGE_FOLDER", "OperatorState", "SubtaskState"]

EXCHANGE_FOLDER = "exchange"
"""The folder of a job's blocking edges, below its prefix."""


@dataclass(frozen=True)
class SubtaskState:
    """What one subtask acknowledged (Flink: ``OperatorSubtaskState``)."""

    index: int
    keyed: KeyedSnapshot | None = None
    """Keyed state, or None."""
    operator_state: tuple[OperatorStateHandle, ...] = ()
    raw_keyed: tuple[Json, ...] = ()
    """Raw keyed state: for each key group, its number and the partition with its bytes."""
    channel_state: tuple[Json, ...] = ()
    """In-flight buffers of an unaligned checkpoint; empty for aligned ones."""
    splits: tuple[Json, ...] = ()
    """Source splits with their offsets."""
    watermark: int | None = None
    """Event time in milliseconds; None before the first watermark."""
    committables: tuple[Json, ...] = ()
    """What a sink's committer commits when the checkpoint completes."""
    metrics: dict[str, int | float] = field(default_factory=dict)
    extra: dict[str, Json] = field(default_factory=dict)
    """Fields that this release does not know."""

    @property
    def has_state(self) -> bool:
        """Whether it has anything that could be lost (Flink: ``OperatorSubtaskState.hasState``)."""
        return bool(
            self.keyed is not None
            or self.operator_state
            or self.raw_keyed
            or self.channel_state
            or self.splits
            or self.committables
        )

    @property
    def state_bytes(self) -> int:
        """Size of the keyed state, in bytes."""
        return self.keyed.bytes if self.keyed else 0

    def files(self) -> set[str]:
        """Returns the paths of the state files, relative to the prefix of the job (or of the savepoint)."""
        return (self.keyed.files() if self.keyed else set()) | self.operator_state_files()

    def operator_state_files(self) -> set[str]:
        """Returns the paths of the files of operator state, raw keyed state and in-flight data."""
        partitions = (p for handle in self.operator_state for p in handle.partitions)
        return files_of([*partitions, *self.raw_keyed, *self.channel_state])

    def to_json(self) -> dict[str, Json]:
        """Encodes it for ``_metadata``, without empty fields."""
        data: dict[str, Json] = {**self.extra, "index": self.index}
        if self.keyed is not None:
            data["keyed"] = self.keyed.to_json()
        if self.operator_state:
            data["operator_state"] = [handle.to_json() for handle in self.operator_state]
        for name in ("raw_keyed", "channel_state", "splits", "committables"):
            if values := getattr(self, name):
                data[name] = list(values)
        if self.watermark is not None:
            data["watermark"] = self.watermark
        if self.metrics:
            data["metrics"] = self.metrics
        return data

    @classmethod
    def from_json(cls, data: dict[str, Json]) -> SubtaskState:
        """Decodes what :meth:`to_json` returned."""
        return cls(
            index=integer(data["index"]),
            keyed=KeyedSnapshot.from_json(data["keyed"]) if "keyed" in data else None,
            operator_state=tuple(map(OperatorStateHandle.from_json, data.get("operator_state", []))),
            raw_keyed=sequence(data.get("raw_keyed", [])),
            channel_state=sequence(data.get("channel_state", [])),
            splits=sequence(data.get("splits", [])),
            watermark=integer(data["watermark"]) if "watermark" in data else None,
            committables=sequence(data.get("committables", [])),
            metrics=dict(data.get("metrics", {})),
            extra=extra_fields(cls, data),
        )


@dataclass(frozen=True)
class OperatorState:
    """The whole state of one operator (Flink: ``OperatorState``)."""

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    coordinator_state: Json | None = None
    """State of the operator's coordinator, such as a source's split enumerator."""
    subtasks: tuple[SubtaskState, ...] = ()
    """All subtasks in order of their index, or empty."""
    in_flight: tuple[Json, ...] = ()
    """What the operator before a blocking edge has written and this one has not read, by epoch, the oldest first."""
    program: OperatorProgram | None = None
    """What the operator did; None if unknown, as in checkpoints of older releases."""
    extra: dict[str, Json] = field(default_factory=dict)
    """Fields that this release does not know."""

    @property
    def has_state(self) -> bool:
        """Whether it has anything that could be lost."""
        subtasks = any(subtask.has_state for subtask in self.subtasks)
        return self.coordinator_state is not None or bool(self.in_flight) or subtasks

    @property
    def state_bytes(self) -> int:
        """Size of the keyed state, in bytes."""
        return sum(subtask.state_bytes for subtask in self.subtasks)

    def files(self) -> set[str]:
        """Returns the paths of the state files, relative to the prefix of the job (or of the savepoint)."""
        return {path for subtask in self.subtasks for path in subtask.files()} | self.segments()

    def segments(self) -> set[str]:
        """Returns the paths of the segments of a blocking edge that it has not read, as in :meth:`files`.

        Raises:
            PathEscapesPrefixError: A path leads outside the prefix.
        """
        return {
            check_relative(f"{EXCHANGE_FOLDER}/{output['edge']}/{segment['key']}")
            for output in self.in_flight
            for segment in output["segments"]
        }

    def to_json(self) -> dict[str, Json]:
        """Encodes it for ``_metadata``."""
        data: dict[str, Json] = {
            **self.extra,
            "uid": self.uid,
            "name": self.name,
            "parallelism": self.parallelism,
            "max_parallelism": self.max_parallelism,
            "subtasks": [subtask.to_json() for subtask in self.subtasks],
        }
        if self.coordinator_state is not None:
            data["coordinator_state"] = self.coordinator_state
        if self.in_flight:
            data["in_flight"] = list(self.in_flight)
        if self.program is not None:
            data["program"] = self.program.to_json()
        return data

    @classmethod
    def from_json(cls, data: dict[str, Json]) -> OperatorState:
        """Decodes what :meth:`to_json` returned."""
        return cls(
            uid=text(data["uid"]),
            name=text(data["name"]),
            parallelism=integer(data["parallelism"]),
            max_parallelism=integer(data["max_parallelism"]),
            coordinator_state=data.get("coordinator_state"),
            subtasks=tuple(map(SubtaskState.from_json, data["subtasks"])),
            in_flight=sequence(data.get("in_flight", [])),
            program=OperatorProgram.from_json(data["program"]) if "program" in data else None,
            extra=extra_fields(cls, data),
        )
