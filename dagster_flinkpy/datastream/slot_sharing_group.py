"""Slot-sharing groups with the resources of their slots (``pyflink.datastream.slot_sharing_group``)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dagster_flinkpy.common.arguments import check_argument, check_name, check_number
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["MemorySize", "SlotSharingGroup"]


@dataclass(frozen=True, order=True)
class MemorySize:
    """A number of bytes.

    Raises:
        ConfigurationError: It is no whole number, or below 0.
    """

    bytes_size: int

    def __post_init__(self) -> None:
        check_number("MemorySize()", self.bytes_size, "bytes")
        if self.bytes_size < 0:
            raise ConfigurationError(f"MemorySize() needs 0 or more bytes, not {self.bytes_size}")

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> MemorySize:
        """Returns a size in units of 1,048,576 bytes."""
        check_number("MemorySize.of_mebi_bytes()", mebi_bytes, "mebibytes")
        return MemorySize(mebi_bytes << 20)

    def get_bytes(self) -> int:
        """Returns the bytes."""
        return self.bytes_size

    def get_kibi_bytes(self) -> int:
        """Returns the full kibibytes."""
        return self.bytes_size >> 10

    def get_mebi_bytes(self) -> int:
        """Returns the full mebibytes."""
        return self.bytes_size >> 20

    def get_gibi_bytes(self) -> int:
        """Returns the full gibibytes."""
        return self.bytes_size >> 30

    def get_tebi_bytes(self) -> int:
        """Returns the full tebibytes."""
        return self.bytes_size >> 40


@dataclass(frozen=True)
class SlotSharingGroup:
    """Operators that share task slots, and what one of these slots has.

    On a Spark cluster, cores and external resources are a Spark resource profile of the tasks. Memory has no effect,
    because all tasks of an executor share its memory; in local mode nothing has.

    Examples:
        >>> group = SlotSharingGroup.builder("model").set_cpu_cores(2).set_task_heap_memory_mb(512).build()
        >>> group.get_name(), group.get_cpu_cores(), group.get_task_heap_memory().get_mebi_bytes()
        ('model', 2.0, 512)
    """

    name: str
    cpu_cores: float | None = None
    task_heap_memory: MemorySize | None = None
    task_off_heap_memory: MemorySize | None = None
    managed_memory: MemorySize | None = None
    external_resources: tuple[tuple[str, float], ...] = ()

    def get_name(self) -> str:
        """Returns the name."""
        return self.name

    def get_cpu_cores(self) -> float | None:
        """Returns the cores of a slot; None if they are not set."""
        return self.cpu_cores

    def get_task_heap_memory(self) -> MemorySize | None:
        """Returns the heap memory of a slot; None if it is not set."""
        return self.task_heap_memory

    def get_task_off_heap_memory(self) -> MemorySize | None:
        """Returns the memory of a slot outside the heap; None if it is not set."""
        return self.task_off_heap_memory

    def get_managed_memory(self) -> MemorySize | None:
        """Returns the managed memory of a slot; None if it is not set."""
        return self.managed_memory

    def get_external_resources(self) -> dict[str, float]:
        """Returns how much a slot has of each external resource, such as ``gpu``."""
        return dict(self.external_resources)

    @property
    def has_resources(self) -> bool:
        """Whether it says what a slot has."""
        return self != SlotSharingGroup(self.name)

    @staticmethod
    def builder(name: str) -> Builder:
        """Returns a builder of a group.

        Args:
            name: The name of the group, which `slot_sharing_group()` of operators refers to.
        """
        check_name("SlotSharingGroup.builder()", name)
        return SlotSharingGroup.Builder(SlotSharingGroup(name))

    @dataclass
    class Builder:
        """Builds a `SlotSharingGroup`."""

        _group: SlotSharingGroup
        _external: dict[str, float] = field(default_factory=dict)

        def set_cpu_cores(self, cpu_cores: float) -> SlotSharingGroup.Builder:
            """Sets the cores of a slot. Spark gives whole cores to a task, so a fraction is rounded up."""
            _check_amount("set_cpu_cores()", cpu_cores)
            self._group = replace(self._group, cpu_cores=float(cpu_cores))
            return self

        def set_task_heap_memory(self, task_heap_memory: MemorySize) -> SlotSharingGroup.Builder:
            """Sets the heap memory of a slot."""
            return self._memory("task_heap_memory", task_heap_memory)

        def set_task_heap_memory_mb(self, task_heap_memory_mb: int) -> SlotSharingGroup.Builder:
            """Sets the heap memory of a slot in mebibytes."""
            return self.set_task_heap_memory(MemorySize.of_mebi_bytes(task_heap_memory_mb))

        def set_task_off_heap_memory(self, task_off_heap_memory: MemorySize) -> SlotSharingGroup.Builder:
            """Sets the memory of a slot outside the heap."""
            return self._memory("task_off_heap_memory", task_off_heap_memory)

        def set_task_off_heap_memory_mb(self, task_off_heap_memory_mb: int) -> SlotSharingGroup.Builder:
            """Sets the memory of a slot outside the heap in mebibytes."""
            return self.set_task_off_heap_memory(MemorySize.of_mebi_bytes(task_off_heap_memory_mb))

        def set_managed_memory(self, managed_memory: MemorySize) -> SlotSharingGroup.Builder:
            """Sets the managed memory of a slot."""
            return self._memory("managed_memory", managed_memory)

        def set_managed_memory_mb(self, managed_memory_mb: int) -> SlotSharingGroup.Builder:
            """Sets the managed memory of a slot in mebibytes."""
            return self.set_managed_memory(MemorySize.of_mebi_bytes(managed_memory_mb))

        def set_external_resource(self, name: str, value: float) -> SlotSharingGroup.Builder:
            """Sets how much a slot has of another resource of the executors, such as ``gpu``."""
            check_name("set_external_resource()", name)
            _check_amount("set_external_resource()", value)
            self._external[name] = float(value)
            return self

        def build(self) -> SlotSharingGroup:
            """Returns the group.

            Raises:
                ConfigurationError: It has resources, but not both cores and heap memory, as in Flink.
            """
            group = replace(self._group, external_resources=tuple(sorted(self._external.items())))
            heap = group.task_heap_memory
            if group.has_resources and (group.cpu_cores is None or heap is None or not heap.bytes_size):
                raise ConfigurationError(
                    f"slot-sharing group {group.name!r} with resources needs both set_cpu_cores() and "
                    "set_task_heap_memory(), above 0"
                )
            return group

        def _memory(self, name: str, size: MemorySize) -> SlotSharingGroup.Builder:
            check_argument(f"set_{name}()", size, MemorySize, "a MemorySize")
            changes: dict[str, Any] = {name: size}
            self._group = replace(self._group, **changes)
            return self


def _check_amount(call: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ConfigurationError(f"{call} needs a number above 0, not {value!r}")
