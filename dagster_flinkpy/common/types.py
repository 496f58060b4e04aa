"""`Row` and `RowKind`, as in ``pyflink.common.types``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from itertools import repeat, starmap
from typing import Any, cast

__all__ = ["Row", "RowKind", "row_class", "rows_of"]


class RowKind(Enum):
    """What a row says about a changing table. The value is Flink's byte for it."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return ("+I", "-U", "+U", "-D")[self.value]


class Row:
    """A list of fields, with names or without.

    ``Row("Alice", 11)`` has positions only. ``Row(name="Alice", age=11)`` has names too, in the order given; its
    fields are read as ``row.name``, ``row["name"]`` or ``row[0]``. A row of names makes rows:
    ``Person = Row("name", "age"); Person("Alice", 11)``.

    ``in`` looks among the names, or among the values of a row without names. Rows are equal if names, kind and
    values are. As a key, a row with names hashes as Java's ``Row.withNames``, one without as ``Row.of``.

    Raises:
        ValueError: Made with positional and named fields at once.
    """

    __slots__ = ("_fields", "_row_kind", "_values")

    _fields: list[str] | None
    _values: list[Any] | tuple[Any, ...]
    """A tuple as long as nobody has changed a field: it is smaller, and the garbage collector passes it over."""
    _row_kind: RowKind

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError("Row takes positional or named fields, not both")
        self._fields = list(kwargs) if kwargs else None
        self._values = list(kwargs.values()) if kwargs else list(args)
        self._row_kind = RowKind.INSERT

    @staticmethod
    def of_kind(row_kind: RowKind, *args: Any, **kwargs: Any) -> Row:
        """A row of this kind."""
        row = Row(*args, **kwargs)
        row.set_row_kind(row_kind)
        return row

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """The fields by name.

        Args:
            recursive: Whether rows inside, and inside lists and dicts, become dicts too.

        Raises:
            TypeError: The row has no names.
        """
        if self._fields is None:
            raise TypeError(f"{self!r} has no field names, so it cannot become a dict; see set_field_names()")
        values = [_as_dict(value) for value in self._values] if recursive else self._values
        return dict(zip(self._fields, values, strict=False))

    def get_row_kind(self) -> RowKind:
        """The row's kind; INSERT unless set."""
        return self._row_kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        """Sets the row's kind."""
        self._become_row()
        self._row_kind = row_kind

    def set_field_names(self, field_names: Sequence[str]) -> None:
        """Names the fields, in order."""
        self._become_row()
        self._fields = list(field_names)

    def _become_row(self) -> None:
        """Leaves a class of `row_class`, whose names and kind cannot be set."""
        fields, row_kind = self._fields, self._row_kind
        self.__class__ = Row
        self._fields, self._row_kind = fields, row_kind

    def get_fields_by_names(self, names: Sequence[str]) -> list[Any]:
        """The values of these fields; all values, if the row has no names.

        Raises:
            ValueError: The row has no field of that name.
        """
        if self._fields is None:
            return list(self._values)
        return [self._values[self._position(name)] for name in names]

    def _position(self, name: str) -> int:
        if self._fields is None or name not in self._fields:
            raise ValueError(f"{self!r} has no field named {name!r}")
        return self._fields.index(name)

    def __call__(self, *args: Any) -> Row:
        """A row of these values, whose names are the values of this row."""
        if len(args) > len(self):
            raise ValueError(f"{self!r} names {len(self)} fields, but got {len(args)} values")
        return _create_row(list(self._values), args, self._row_kind)

    def __getitem__(self, item: int | slice | str) -> Any:
        return self._values[item if isinstance(item, (int, slice)) else self._position(item)]

    def __setitem__(self, item: int | slice | str, value: Any) -> None:
        if isinstance(self._values, tuple):
            self._values = list(self._values)
        self._values[item if isinstance(item, (int, slice)) else self._position(item)] = value

    def __java_hash_code__(self) -> int:
        """The hash of the row as a key."""
        from dagster_flinkpy.key_groups import row_hash_code

        return row_hash_code(self._row_kind.value, self._values, self._fields)

    def __getattr__(self, name: str) -> Any:
        # Private names are never fields: copy and pickle ask for some before the row has any.
        if name.startswith("_") or self._fields is None or name not in self._fields:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}")
        return self._values[self._fields.index(name)]

    def __contains__(self, item: object) -> bool:
        return item in (self._values if self._fields is None else self._fields)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Row)
            and self._fields == other._fields
            and self._row_kind == other._row_kind
            and list(self._values) == list(other._values)
        )

    def __hash__(self) -> int:
        return hash(tuple(self._values))

    def __repr__(self) -> str:
        if self._fields is None:
            return f"<Row({', '.join(map(repr, self._values))})>"
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self._values, strict=False))})"

    def __copy__(self) -> Row:
        row = Row.__new__(type(self))
        row._values = tuple(self._values)
        if type(self) is Row:
            row._fields, row._row_kind = self._fields, self._row_kind
        return row

    def __reduce__(self) -> tuple[Any, ...]:
        return _create_row, (self._fields, tuple(self._values), self._row_kind)


class _RowType(type):
    """The type of row classes: what calls one gets a :class:`Row`."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return Row(*args, **kwargs)


@lru_cache(maxsize=1024)
def row_class(field_names: tuple[str, ...]) -> type[Row]:
    """The class of rows with these names that come out of columns: fields are properties, which are quicker to read.

    Names and kind are the class's, so that a row is made by setting its values. Such a row equals one made with
    ``Row(...)`` and named; pickled it becomes one, and so it does when its names or kind are set.
    """

    def getter(position: int) -> Callable[[Row], Any]:
        return lambda row: row._values[position]

    public = [(i, n) for i, n in enumerate(field_names) if not n.startswith("_") and not hasattr(Row, n)]
    members: dict[str, Any] = {name: property(getter(i)) for i, name in public}
    members |= {"_fields": list(field_names), "_row_kind": RowKind.INSERT, "__slots__": (), "__module__": __name__}
    members |= {"__new__": object.__new__, "__init__": object.__init__}  # an empty row, without a call of Python's
    return cast("type[Row]", _RowType("Row", (Row,), members))


def rows_of(field_names: tuple[str, ...], values: Sequence[tuple[Any, ...]]) -> list[Row]:
    """Rows with these names, from tuples of their values."""
    rows = list(starmap(_creator(row_class(field_names)), repeat((), len(values))))
    deque(map(setattr, rows, repeat("_values"), values), maxlen=0)  # loops in C
    return rows


def _creator(row_type: type[Row]) -> Callable[[], Row]:
    """What makes empty rows, past the metaclass."""
    create: Callable[[], Row] = type.__call__.__get__(row_type)
    return create


def _create_row(fields: list[str] | None, values: Sequence[Any], row_kind: RowKind) -> Row:
    row = Row.of_kind(row_kind, *values)
    if fields is not None:
        row.set_field_names(fields)
    return row


def _as_dict(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict(recursive=True)
    if isinstance(value, list):
        return [_as_dict(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_dict(item) for key, item in value.items()}
    return value
