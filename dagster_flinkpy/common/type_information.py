"""What a value is to the user, and the Arrow column it travels and rests in (``pyflink.common.typeinfo``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Json", "TypeInformation"]


Json = dict[str, Any]


class TypeInformation(ABC):
    """A type that knows its Arrow column.

    Equality is by structure: two type informations are equal when :meth:`to_json` is.
    """

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of a column of such values."""

    @property
    @abstractmethod
    def arrow_name(self) -> str:
        """Its name, ``str(arrow_type)``, without importing PyArrow."""

    @abstractmethod
    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """Builds a column from Python values; ``None`` becomes null.

        Raises:
            TypeMismatchError: A value does not fit; the message names the field and the value.
        """

    @abstractmethod
    def from_arrow(self, column: pa.Array) -> list[Any]:
        """The Python values of a column; null becomes ``None``."""

    def name_fields(self, value: Any) -> Any:
        """The value; a :class:`Row` without field names gets those of its type, as if it had been written and read."""
        return value

    @abstractmethod
    def to_json(self) -> Json:
        """A description that :func:`type_from_json` reads; it is part of checkpoint metadata."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.arrow_name})"
