"""The base class of types, which convert values to and from Arrow columns (``pyflink.common.typeinfo``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Json", "TypeInformation"]


Json = dict[str, Any]


class TypeInformation(ABC):
    """The type of a value, and of the Arrow column it is stored in.

    Two types are equal if they have the same structure, which is what `to_json` returns.
    """

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of a column of these values."""

    @property
    @abstractmethod
    def arrow_name(self) -> str:
        """The name of the Arrow type, ``str(arrow_type)``, without importing PyArrow."""

    @abstractmethod
    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """Builds a column from Python values; ``None`` becomes null.

        Raises:
            TypeMismatchError: A value does not fit; the message names the field and the value.
        """

    @abstractmethod
    def from_arrow(self, column: pa.Array) -> list[Any]:
        """Returns the Python values of a column, with ``None`` for null."""

    @property
    def names_fields(self) -> bool:
        """Whether `name_fields` may change values of this type. Default: it does not."""
        return False

    def name_fields(self, value: Any) -> Any:
        """Returns the value. A `Row` without field names gets those of its type, as if written and read again."""
        return value

    @abstractmethod
    def to_json(self) -> Json:
        """Returns a description for checkpoint metadata, which `type_from_json` reads."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(repr(self))

    @abstractmethod
    def __repr__(self) -> str:
        """Returns the type as it is declared, such as ``Types.LIST(Types.INT())``."""
