"""The code version of an operator: a hash of the user's code and settings in it.

Equal in every process with the same Python version: bytecode without line numbers and file names, no memory addresses,
nothing that depends on hash seeds.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.storage import StorageLocation

__all__ = ["operator_code_version"]

_OURS = __name__.partition(".")[0]
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
_MEMBERS = (staticmethod, classmethod, property, *_PLAIN)
_NOT_CODE = ("__module__", "__doc__", "__firstlineno__")


def operator_code_version(graph: JobGraph, uid: str) -> str:
    """Changes when the code or settings of an operator do, those of its input's key selectors included.

    Args:
        graph: The program.
        uid: Of the operator.
    """
    selectors = [(edge.partitioner.kind, edge.partitioner.selector) for edge in graph.inputs(uid)]
    description = "\n".join(_describe((graph.vertex(uid).spec, selectors), ()))
    return hashlib.sha256(description.encode()).hexdigest()[:12]


def _describe(value: Any, inside: tuple[int, ...]) -> Iterator[str]:
    """Lines that say what a value is; ``inside`` holds the ids of the values around it."""
    if isinstance(value, _PLAIN):
        yield repr(value)
        return
    if id(value) in inside:
        yield "(recursion)"
        return
    inside = (*inside, id(value))
    if isinstance(value, type):
        yield from _class(value, inside)
    elif isinstance(value, StorageLocation):
        yield value.url  # how it is reached, and with which credentials, is not part of the code
    elif isinstance(value, Enum):
        yield f"{type(value).__qualname__}.{value.name}"
    elif isinstance(value, (tuple, list)):
        yield from _all(type(value).__name__, value, inside)
    elif isinstance(value, (set, frozenset)):
        yield from ("set", *sorted(_text(item, inside) for item in value))
    elif isinstance(value, dict):
        yield from ("dict", *sorted(f"{_text(k, inside)}: {_text(v, inside)}" for k, v in value.items()))
    elif isinstance(value, functools.partial):
        yield from _all("partial", (value.func, value.args, value.keywords), inside)
    elif isinstance(value, types.MethodType):
        yield from _all("method", (value.__func__, value.__self__), inside)
    elif isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        yield from _all("function", (value.__code__, value.__defaults__, value.__kwdefaults__, cells), inside)
    elif isinstance(value, types.CodeType):
        yield from _all("code", (value.co_code, value.co_names, value.co_varnames, value.co_consts), inside)
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _all("method", (value.__func__,), inside)
    elif isinstance(value, property):
        yield from _all("property", (value.fget,), inside)
    else:
        yield from _instance(value, inside)


def _all(what: str, values: Any, inside: tuple[int, ...]) -> Iterator[str]:
    yield f"{what} of {len(values)}"
    for value in values:
        yield from _describe(value, inside)


def _text(value: Any, inside: tuple[int, ...]) -> str:
    return " ".join(_describe(value, inside))


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a name that is assigned later
        return False
    return True


def _class(cls: type, inside: tuple[int, ...]) -> Iterator[str]:
    """A class of the user by its methods; one of a library by its name."""
    for base in cls.__mro__:
        yield f"class {base.__module__}.{base.__qualname__}"
        if base.__module__.partition(".")[0] not in (_OURS, "builtins", "abc", "typing"):
            for name, member in sorted(vars(base).items()):
                if name not in _NOT_CODE and (callable(member) or isinstance(member, _MEMBERS)):
                    yield name
                    yield from _describe(member, inside)


def _instance(value: Any, inside: tuple[int, ...]) -> Iterator[str]:
    yield from _class(type(value), inside)
    if is_dataclass(value):
        yield from _describe({field.name: getattr(value, field.name) for field in fields(value)}, inside)
    elif hasattr(value, "__dict__"):
        yield from _describe(vars(value), inside)
    elif " at 0x" not in repr(value):  # a timedelta, an Arrow type, ...
        yield repr(value)
