"""`Row` and `RowKind`, as in ``pyflink.common.types``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import cache, lru_cache
from itertools import repeat, starmap
from keyword import iskeyword
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, cast

__all__ = ["Row", "RowKind", "RowMaker", "columns_function", "row_class", "row_maker", "rows_of"]


class RowKind(Enum):
    """The kind of change to a table that a row describes. The value is Flink's byte for it."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return ("+I", "-U", "+U", "-D")[self.value]


class _RowType(type):
    """The metaclass of rows: calling any row class returns a row with the width and names of the values."""

    def __new__(mcs, name: str, bases: tuple[type, ...], members: dict[str, Any], *, made: bool = False) -> _RowType:
        if bases and not made:
            raise TypeError(f"class {name} cannot extend Row, whose class depends on its fields")
        return super().__new__(mcs, name, bases, members)

    def __init__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any], **_: bool) -> None:
        super().__init__(name, bases, members)

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        return "Row"  # Python's message about an unknown attribute has the other name: see _make_class().

    def __call__(cls, /, *args: Any, **kwargs: Any) -> Row:
        key: tuple[str, ...] | int
        fields: Any
        if not kwargs:
            key, fields = len(args), args
        elif args:
            raise ValueError("Row takes positional or named fields, not both")
        else:
            key, fields = tuple(kwargs), kwargs
        try:
            return _makers[key](fields)
        except KeyError:
            make = _makers[key] = _maker(key)
            return make(fields)


_REMEMBERED = 1024
_makers: dict[tuple[str, ...] | int, Callable[[Any], Row]] = {}
"""What makes a row: of a dict, by its names, or of a sequence, by its length."""


def _maker(key: tuple[str, ...] | int) -> Callable[[Any], Row]:
    if len(_makers) >= _REMEMBERED:
        _makers.clear()
    if isinstance(key, int):
        return row_class(None, key)._of
    # An item of a dict with a constant name is the fastest to read.
    items = "".join(f"fields[{name!r}], " for name in key)
    source = f"def f(fields):\n    row = create()\n    ({_targets(len(key))}) = ({items})\n    return row"
    return _compiled(source, create=row_class(key, len(key))._create)


class Row(metaclass=_RowType):
    """A list of fields, with or without names.

    ``Row("Alice", 11)`` has positions only. ``Row(name="Alice", age=11)`` also has names, in the given order. Its
    fields are read and set as ``row.name``, ``row["name"]`` or ``row[0]``. A row of names creates rows:
    ``Person = Row("name", "age"); Person("Alice", 11)``.

    ``in`` looks in the names, or in the values if the row has no names. Rows are equal if they have
    the same kind and the same values under the same names, in any order. As a key, a row with names hashes like Java's
    ``Row.withNames``, and one without names like ``Row.of``.

    Raises:
        ValueError: It is created with both positional and named fields.
        TypeError: Another class extends it; the class of a row depends on its names and kind.
    """

    # Each value has its own slot, which is the fastest to read. There is a class with slots for each number of fields,
    # and a subclass of it for each set of names and kind. A row gets other names or another kind by changing its class.
    __slots__ = ()

    _names: ClassVar[tuple[str, ...] | None]
    _row_kind: ClassVar[RowKind]
    _width: ClassVar[int]
    _slots: ClassVar[tuple[str, ...]]
    _getters: ClassVar[dict[Any, Callable[[Row], Any]]]
    _set: ClassVar[Callable[[Row, Iterable[Any]], None]]
    _create: ClassVar[Callable[[], Row]]
    _of: ClassVar[Callable[[Iterable[Any]], Row]]
    """Returns a row of this class with these values."""
    _values: tuple[Any, ...]

    if TYPE_CHECKING:  # what the metaclass takes, and what the classes of rows have

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...  # fields, which type checkers do not know

        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def _fields(self) -> list[str]:
        """The names, which PyFlink programs read and set. A row without names has no such attribute."""
        if self._names is None:
            raise AttributeError("_fields")
        return list(self._names)

    @_fields.setter
    def _fields(self, field_names: Sequence[str]) -> None:
        self.set_field_names(field_names)

    @staticmethod
    def of_kind(row_kind: RowKind, *args: Any, **kwargs: Any) -> Row:
        """Returns a row of this kind."""
        row = Row(*args, **kwargs)
        row.set_row_kind(row_kind)
        return row

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Returns the fields by name.

        Args:
            recursive: Whether nested rows, also in lists and dicts, become dicts as well.

        Raises:
            TypeError: The row has no names.
        """
        if self._names is None:
            raise TypeError(f"{self!r} has no field names, so it cannot become a dict; see set_field_names()")
        values = [_as_dict(value) for value in self._values] if recursive else self._values
        return dict(zip(self._names, values, strict=False))

    def get_row_kind(self) -> RowKind:
        """Returns the kind of the row; INSERT unless set."""
        return self._row_kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        """Sets the row's kind."""
        self.__class__ = row_class(self._names, self._width, row_kind)

    def set_field_names(self, field_names: Sequence[str]) -> None:
        """Sets the names of the fields, in order."""
        self.__class__ = row_class(tuple(field_names), self._width, self._row_kind)

    def get_fields_by_names(self, names: Sequence[str]) -> list[Any]:
        """Returns the values of these fields, or all values if the row has no field names.

        Raises:
            ValueError: The row has no field of that name.
        """
        if self._names is None:
            return list(self._values)
        return [self[name] for name in names]

    def _position(self, name: str) -> int:
        if self._names is None or name not in self._names:
            raise ValueError(f"{self!r} has no field named {name!r}")
        return self._names.index(name)

    def __call__(self, *args: Any) -> Row:
        """Returns a row of these values, whose names are the values of this row."""
        if len(args) > len(self):
            raise ValueError(f"{self!r} names {len(self)} fields, but got {len(args)} values")
        if not all(isinstance(name, str) for name in self._values):
            raise TypeError(f"{self!r} cannot create rows, because its values are not names")
        return row_class(self._values, len(args), self._row_kind)._of(args)

    def __getitem__(self, item: int | slice | str) -> Any:
        try:
            return self._getters[item](self)
        except (KeyError, TypeError):  # a slice, or none of its fields
            return list(self._values)[self._position(item) if isinstance(item, str) else item]

    def __setitem__(self, item: int | slice | str, value: Any) -> None:
        if isinstance(item, slice):
            values = list(self._values)
            values[item] = value
            self._set(values)
        else:
            setattr(self, self._slots[self._position(item) if isinstance(item, str) else item], value)

    def __java_hash_code__(self) -> int:
        """Returns the hash of the row as a key."""
        from dagster_flinkpy.key_hashes import row_hash_code

        return row_hash_code(self._row_kind.value, self._values, self._names)

    def __contains__(self, item: object) -> bool:
        return item in (self._values if self._names is None else self._names)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return self._width

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Row) or self._row_kind != other._row_kind:
            return False
        if self._names == other._names:
            return self._values == other._values
        if self._names is None or other._names is None or sorted(self._names) != sorted(other._names):
            return False
        return self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        # Rows that are equal may have their names in another order.
        return hash(self._values if self._names is None else frozenset(zip(self._names, self._values, strict=False)))

    def __repr__(self) -> str:
        if self._names is None:
            return f"<Row({', '.join(map(repr, self._values))})>"
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self._names, self._values, strict=False))})"

    def __copy__(self) -> Row:
        return type(self)._of(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return _create_row, (self._names, self._values, self._row_kind)


def rows_of(field_names: tuple[str, ...], columns: Sequence[Sequence[Any]], count: int) -> list[Row]:
    """Returns rows with these field names, from one column per field."""
    kind = row_class(field_names, len(columns))
    rows = list(starmap(kind._create, repeat((), count)))  # loops in C
    _fill_function(len(columns))(rows, *columns)
    return rows


class RowMaker:
    """Makes rows with certain names, of their values in order, or by name.

    Raises:
        TypeError: There are too few or too many values, or one has another name.
    """

    _names: ClassVar[tuple[str, ...]]
    __slots__ = ()

    if TYPE_CHECKING:  # each class has its own

        def __call__(self, *args: Any, **kwargs: Any) -> Row: ...

    def __repr__(self) -> str:
        return f"<makes Row({', '.join(self._names)})>"

    def __reduce__(self) -> tuple[Any, ...]:
        return row_maker, (self._names,)


@lru_cache(maxsize=_REMEMBERED)
def row_maker(names: tuple[str, ...]) -> RowMaker:
    """Returns what makes rows with these names. Names that are no Python names can only be given by position."""
    by_name = len(set(names)) == len(names) and all(name.isidentifier() and not iskeyword(name) for name in names)
    values = names if by_name else [f"_{i}" for i in range(len(names))]
    row = "_" * (1 + max(map(len, values), default=0))  # a name that no value has
    create, order = f"{row}_", ", ".join([*values, "/"] if values and not by_name else values)
    # Python's own check of arguments takes no time, and a class of its own saves the call of a second function.
    source = f"def f({order}):\n    {row} = {create}()\n"
    if values:
        source += f"    {', '.join(f'{row}._{i}' for i in range(len(values)))}, = {', '.join(values)},\n"
    call = _compiled(f"{source}    return {row}", **{create: row_class(names, len(names))._create})
    call.__name__ = call.__qualname__ = "row"
    members = {"__slots__": (), "__module__": __name__, "__call__": staticmethod(call), "_names": names}
    return cast("RowMaker", type("RowMaker", (RowMaker,), members)())


@lru_cache(maxsize=_REMEMBERED)
def row_class(names: tuple[str, ...] | None, width: int, row_kind: RowKind = RowKind.INSERT) -> type[Row]:
    """Returns the class of rows with these names, or none, this number of fields and this kind.

    Args:
        names: There may be more or fewer names than fields. A private name, or the name of a method of Row, does not
            become an attribute; such a field is read with ``row[name]``.
        width: Number of fields.
        row_kind: Default: INSERT.
    """
    slots = _slots_class(width)
    fields = dict(
        reversed(list(zip(names or (), slots._slots, strict=False)))
    )  # if a name repeats, the first one counts
    taken = vars(object) | vars(Row)  # not hasattr(), which would also find the methods of types, such as mro
    members = {n: vars(slots)[slot] for n, slot in fields.items() if not n.startswith("_") and n not in taken}
    members |= {"_names": names, "_row_kind": row_kind}
    members["_getters"] = slots._getters | {n: attrgetter(slot) for n, slot in fields.items()}
    # With __getattr__, which could say this too, CPython 3.11 would read each attribute six times as slowly.
    title = "Row without names" if names is None else f"Row({', '.join(map(repr, names))})"
    title = title if len(title) <= _TITLE else f"{title[: _TITLE - 4]}...)"
    return _make_class(title, slots, members)


@cache
def _slots_class(width: int) -> type[Row]:
    """Returns the class that has the slots of rows with this number of fields."""
    slots = tuple(f"_{i}" for i in range(width))
    members: dict[str, Any] = {"__slots__": slots, "_slots": slots, "_width": width}
    # From three fields on it is faster than attrgetter, with 20 fields twice as fast.
    members["_values"] = property(_compiled(f"def f(row): return ({_targets(width)})"))
    members["_getters"] = {i: attrgetter(slots[i]) for i in range(-width, width)}
    members["_set"] = _compiled(f"def f(row, values): ({_targets(width)}) = values")
    members["__iter__"] = _compiled(f"def f(row): return iter(({_targets(width)}))")
    return _make_class("Row", Row, members)


_TITLE = 50
"""How many characters of a title the message of Python 3.11 has."""

_CLASS = {"__slots__": (), "__module__": __name__, "__qualname__": "Row"}


def _make_class(title: str, base: type[Row], members: dict[str, Any]) -> type[Row]:
    """Returns a class of rows. The message about an unknown attribute begins with its title."""
    made = cast("type[Row]", _RowType(title, (base,), {**_CLASS, **members}, made=True))
    made._create = type.__call__.__get__(made)  # bypasses the metaclass, without a Python call
    if hasattr(made, "_slots"):
        source = f"def f(values):\n    row = create()\n    ({_targets(made._width)}) = values\n    return row"
        made._of = staticmethod(_compiled(source, create=made._create))
    return made


@cache
def _fill_function(width: int) -> Callable[..., None]:
    """Sets the values of many rows, given a column for each field."""
    columns = "".join(f", c{i}" for i in range(width))
    return _compiled(f"def f(rows{columns}):\n    for row, {_targets(width)} in zip(rows{columns}, strict=True): pass")


@cache
def columns_function(width: int) -> Callable[[Iterable[Row]], tuple[list[Any], ...]]:
    """Returns the values of many rows, a list for each field."""
    columns = "".join(f"[row._{i} for row in rows], " for i in range(width))  # half the time of attrgetter and map
    return _compiled(f"def f(rows): return ({columns})")


def _targets(width: int) -> str:
    return "".join(f"row._{i}, " for i in range(width))


def _compiled(source: str, **namespace: Any) -> Callable[..., Any]:
    # A statement with as many targets as there are fields stores a value in 3 ns, a call of setattr in 24.
    exec(source, namespace)
    function: Callable[..., Any] = namespace["f"]
    return function


def _create_row(names: Iterable[str] | None, values: Sequence[Any], row_kind: RowKind) -> Row:
    return row_class(None if names is None else tuple(names), len(values), row_kind)._of(values)


def _as_dict(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict(recursive=True)
    if isinstance(value, list):
        return [_as_dict(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_dict(item) for key, item in value.items()}
    return value
