"""Records that are stored as JSON: dataclasses, whose types are checked when they are read.

msgspec checks the types and names the field that is wrong. The text itself is read and written by the standard library:
msgspec takes no lone surrogates, which names of files may have, and makes JSON of much that is not, such as sets.
"""

from __future__ import annotations

import base64
import gc
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "MAX_LONG",
    "MAX_TIMESTAMP_MS",
    "ArrayRecord",
    "Count",
    "Id",
    "Json",
    "JsonRecord",
    "Millis",
    "load_object",
    "without_collector",
]

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys."""
MAX_LONG = 2**63 - 1
"""The greatest number that a field can hold."""
MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The end of the year 9999, in milliseconds since 1970: no ``datetime`` is later."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_LONG)]
Id = Annotated[int, msgspec.Meta(ge=1, le=MAX_LONG)]
"""The number of a checkpoint or of an attempt."""
Millis = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_MS)]

_preparing = threading.Lock()


def load_object(data: bytes | str) -> dict[str, Json]:
    """Parses a JSON object.

    Raises:
        ValueError: The data is not JSON, too deeply nested, or not an object.
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if type(value) is not dict:
        raise ValueError("it is not a JSON object")
    return value


@contextmanager
def without_collector() -> Iterator[None]:
    """Pauses the collector of reference cycles, which would look at a large tree of records again and again.

    A tree of records has no cycles. Without the pause, time would grow faster than the tree.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class ArrayRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A small record that is stored as a list of its fields."""


class JsonRecord:
    """Base of dataclasses that are stored as JSON objects.

    Fields that a class does not know are ignored, or kept in its field ``extra`` if it has one.
    """

    _omits_defaults: ClassVar[bool] = False
    _error: ClassVar[type[Exception] | None] = None
    _form: ClassVar[_Form | None] = None
    _prepared: ClassVar[bool] = False

    def __init_subclass__(cls, *, omit_defaults: bool = False, error: type[Exception] | None = None) -> None:
        """Declares a record.

        Args:
            omit_defaults: Whether fields with their default value are not stored. Default: False.
            error: What :meth:`from_json` raises. Default: ``ValueError``.
        """
        cls._form, cls._prepared = None, False
        cls._omits_defaults, cls._error = cls._omits_defaults or omit_defaults, error or cls._error

    def to_json(self) -> dict[str, Json]:
        """Returns a JSON object that :meth:`from_json` reads."""
        form = self._form or _form_of(type(self))
        data = dict(self.extra) if form.keeps_unknown else {}  # type: ignore[attr-defined]
        for value, (name, default, encode) in zip(form.values(self), form.fields, strict=False):
            if value is not default and (default is None or default is MISSING or value != default):
                data[name] = value if encode is None or value is None else encode(value)
        return data

    def to_bytes(self) -> bytes:
        """Returns the JSON object as text."""
        return json.dumps(self.to_json()).encode()

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Reads what :meth:`to_json` returned.

        Raises:
            ValueError: It is something else, or whatever the class raises instead. The message names the field.
        """
        if not cls._prepared:
            _prepare(cls)
        try:
            record = msgspec.convert(data, cls)
        except ValueError as error:
            if cls._error is None:
                raise
            raise cls._error(f"not a stored {cls.__name__}: {error}") from error
        _keep_unknown(record, data, cls._form or _form_of(cls))
        return record

    @classmethod
    def from_text(cls, data: bytes | str) -> Self:
        """Reads what :meth:`to_bytes` returned.

        Raises:
            ValueError: It is no JSON object, or see :meth:`from_json`.
        """
        return cls.from_json(load_object(data))


def _prepare(cls: type[JsonRecord]) -> None:
    """Has msgspec look at the fields of a class.

    It does so when it first reads a record. While one thread does, another one finds half of them, and the process
    crashes (msgspec 0.22).
    """
    with _preparing:
        msgspec.json.Decoder(cls)
        cls._prepared = True


@dataclass(frozen=True)
class _Form:
    """How a class is stored."""

    values: Callable[[Any], tuple[Any, ...]]
    """Returns the value of each field, and one value more."""
    fields: tuple[tuple[str, Any, Callable[[Any], Json] | None], ...]
    """The name of each field, the value with which it is omitted, and what makes JSON of it."""
    known: frozenset[str]
    keeps_unknown: bool
    inner: tuple[tuple[str, _Form, bool], ...]
    """The fields with records that keep what they do not know, and whether there are several in one."""


def _form_of(cls: Any) -> _Form:
    hints = {name: _plain(hint) for name, hint in get_type_hints(cls).items()}
    stored, inner = [], []
    for field in fields(cls):
        if field.name != "extra":
            default = field.default if field.default_factory is MISSING else field.default_factory()
            encode = _encoder(hints[field.name])
            stored.append((field.name, default if cls._omits_defaults else MISSING, encode))
            of = _record_of(hints[field.name])
            if of is not None and ((form := _form_of(of)).keeps_unknown or form.inner):
                inner.append((field.name, form, get_origin(hints[field.name]) is tuple))
    names = [name for name, _, _ in stored]
    values = attrgetter(*names, names[0])  # one more, so that it never returns a bare value
    cls._form = form = _Form(values, tuple(stored), frozenset(names), "extra" in hints, tuple(inner))
    return form


def _plain(hint: Any) -> Any:
    """Returns a type without None."""
    others = [each for each in get_args(hint) if each is not NoneType]
    return others[0] if NoneType in get_args(hint) and len(others) == 1 else hint


def _record_of(hint: Any) -> type[JsonRecord] | None:
    inside = get_args(hint)[0] if get_origin(hint) is tuple else hint
    return inside if isinstance(inside, type) and issubclass(inside, JsonRecord) else None


def _encoder(hint: Any) -> Callable[[Any], Json] | None:
    """Returns what makes JSON of a value of a type that is not None, or None if the value is JSON already."""
    if get_origin(hint) is tuple:
        each = _encoder(get_args(hint)[0])
        return list if each is None else lambda values: [each(value) for value in values]
    if not isinstance(hint, type):
        return None
    if issubclass(hint, JsonRecord):
        return hint.to_json
    if issubclass(hint, ArrayRecord):
        return _as_list
    if issubclass(hint, Enum):
        return attrgetter("value")
    return (lambda value: base64.b64encode(value).decode()) if hint is bytes else None


def _as_list(record: ArrayRecord) -> list[Json]:
    return list(msgspec.structs.astuple(record))


def _keep_unknown(record: Any, data: dict[str, Json], form: _Form) -> None:
    if form.keeps_unknown and not data.keys() <= form.known:
        unknown = {name: value for name, value in data.items() if name not in form.known}
        object.__setattr__(record, "extra", unknown)
    for name, of, several in form.inner:
        values, raws = getattr(record, name), data.get(name)
        if raws is not None:
            for each, raw in zip(values, raws, strict=True) if several else ((values, raws),):
                _keep_unknown(each, raw, of)
