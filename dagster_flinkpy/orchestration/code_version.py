"""The code version of an operator: a hash of the user's code and settings in it.

Equal in every process with the same Python version: bytecode without line numbers and file names, no memory addresses,
nothing that depends on hash seeds.
"""

from __future__ import annotations

import functools
import hashlib
import json
import types
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.storage import StorageLocation

__all__ = ["operator_code_version"]

_LIBRARIES = (__name__.partition(".")[0], "builtins", "abc", "typing", "pyarrow")
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
    lines: list[str] = []
    _describe((graph.vertex(uid).spec, selectors), (), lines)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _describe(value: Any, inside: tuple[int, ...], lines: list[str]) -> None:
    """Adds lines that say what a value is; ``inside`` holds the ids of the values around it."""
    if isinstance(value, _PLAIN):
        lines.append(repr(value))
        return
    if id(value) in inside:
        lines.append("(recursion)")
        return
    inside = (*inside, id(value))
    if isinstance(value, type):
        _class(value, inside, lines)
    elif isinstance(value, StorageLocation):
        lines.append(value.url)  # how it is reached, and with which credentials, is not part of the code
    elif isinstance(value, TypeInformation):
        lines.append(json.dumps(value.to_json(), sort_keys=True))
    elif isinstance(value, Enum):
        lines.append(f"{type(value).__qualname__}.{value.name}")
    elif isinstance(value, (tuple, list)):
        _all(type(value).__name__, value, inside, lines)
    elif isinstance(value, (set, frozenset)):
        lines += ("set", *sorted(_text(item, inside) for item in value))
    elif isinstance(value, dict):
        lines += ("dict", *sorted(f"{_text(k, inside)}: {_text(v, inside)}" for k, v in value.items()))
    elif isinstance(value, functools.partial):
        _all("partial", (value.func, value.args, value.keywords), inside, lines)
    elif isinstance(value, types.MethodType):
        _all("method", (value.__func__, value.__self__), inside, lines)
    elif isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        _all("function", (value.__code__, value.__defaults__, value.__kwdefaults__, cells), inside, lines)
    elif isinstance(value, types.CodeType):
        _all("code", (value.co_code, value.co_names, value.co_varnames, value.co_consts), inside, lines)
    elif isinstance(value, (staticmethod, classmethod)):
        _all("method", (value.__func__,), inside, lines)
    elif isinstance(value, property):
        _all("property", (value.fget,), inside, lines)
    else:
        _instance(value, inside, lines)


def _all(what: str, values: Any, inside: tuple[int, ...], lines: list[str]) -> None:
    lines.append(f"{what} of {len(values)}")
    for value in values:
        _describe(value, inside, lines)


def _text(value: Any, inside: tuple[int, ...]) -> str:
    lines: list[str] = []
    _describe(value, inside, lines)
    return " ".join(lines)


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a name that is assigned later
        return False
    return True


def _class(cls: type, inside: tuple[int, ...], lines: list[str]) -> None:
    """A class of the user by its methods; one of a library by its name."""
    for base in cls.__mro__:
        lines.append(f"class {base.__module__}.{base.__qualname__}")
        if base.__module__.partition(".")[0] not in _LIBRARIES:
            for name, member in sorted(vars(base).items()):
                if name not in _NOT_CODE and (callable(member) or isinstance(member, _MEMBERS)):
                    lines.append(name)
                    _describe(member, inside, lines)


def _instance(value: Any, inside: tuple[int, ...], lines: list[str]) -> None:
    _class(type(value), inside, lines)
    if is_dataclass(value):
        _describe({field.name: getattr(value, field.name) for field in fields(value)}, inside, lines)
    elif hasattr(value, "__dict__"):
        _describe({name: of for name, of in vars(value).items() if not _is_cached(type(value), name)}, inside, lines)
    elif " at 0x" not in repr(value):  # a timedelta, an Arrow type, ...
        lines.append(repr(value))


def _is_cached(cls: type, name: str) -> bool:
    """Whether an attribute is there, or not, by what the process has done before."""
    return isinstance(getattr(cls, name, None), functools.cached_property)
