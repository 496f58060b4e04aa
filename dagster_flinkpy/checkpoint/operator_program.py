"""Describes an operator by its settings and a hash of the user's code, to tell two versions of a program apart.

The description is equal in all processes with the same Python version: it covers bytecode without line numbers and file
names, and nothing that depends on memory addresses or hash seeds. It covers constants of modules and classes that the
user's functions name, but not functions that they call.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import json
import logging
import re
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.operator_specs import (
    BlockingEdgeSinkSpec,
    BlockingEdgeSourceSpec,
    OperatorSpec,
    SinkSpec,
    SourceSpec,
    SparkSourceSpec,
    SparkTransformSpec,
)
from dagster_flinkpy.datastream.program.job_graph import JobEdge, JobGraph, JobVertex, PartitionerKind
from dagster_flinkpy.datastream.window import Trigger, WindowAssigner
from dagster_flinkpy.errors import FlinkPyError
from dagster_flinkpy.json_records import Json, JsonRecord
from dagster_flinkpy.storage import StorageLocation

__all__ = [
    "OperatorProgram",
    "describe_setting_change",
    "operator_code_version",
    "operator_folders",
    "operator_program",
    "taken_by",
]

_LIBRARIES = (__name__.partition(".")[0], "builtins", "abc", "typing", "pyarrow", "numpy", "pandas")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
_MEMBERS = (staticmethod, classmethod, property, functools.cached_property)
_CUT = ("numpy", "pandas", "pyarrow", "re")
"""Modules of types whose ``repr`` need not tell the whole value."""
_NOT_CODE = ("__module__", "__doc__", "__firstlineno__")
_HASH = re.compile("@[0-9a-f]{12}$")
_INPUT = "input"
"""What an operator reads: the uids of others, and what operators without a uid do in between."""
_UNKNOWN = "?"
_LONG = 10_000
"""Bytes of which there are more, such as those of an array, are hashed."""
_MANY_OPERATORS = 500
"""From so many descriptions on, an operator without a uid is described once."""
_MOST_VALUES = 200_000
"""A setting with more values than this is not compared, such as a huge table or a client with all its connections."""


@dataclass(frozen=True)
class OperatorProgram(JsonRecord, omit_defaults=True):
    """What an operator did when a checkpoint was taken."""

    kind: str
    """Kind of the operator, such as ``window``."""
    python: str
    """The Python version, such as ``3.11``. Bytecode can only be compared within one version."""
    settings: dict[str, str]
    """A short text for each setting, by name. If the text is not the whole value, ``@`` and a hash follow it. A value
    that cannot be described, such as because it is too large, is ``?``."""
    folders: tuple[str, ...] = ()
    """The URLs of the folders that a source reads or a sink writes."""
    writes_to: str = ""
    """Where a sink writes, such as the URL of a table or topic, without credentials. Empty if it does not say."""
    takes_from: str = ""
    """What only one job can read, such as a replication slot, without credentials. Empty if others can read it, too."""
    extra: Json = field(default_factory=dict)
    """Fields that this release does not know."""


def operator_program(graph: JobGraph, uid: str, *, with_modules: bool = False) -> OperatorProgram:
    """Describes what an operator does.

    Args:
        graph: The program.
        uid: Uid of the operator.
        with_modules: Whether classes count as others in another module, as they did up to release 0.1. Default: False.
    """
    vertex = graph.vertex(uid)
    values = _settings(vertex.spec)
    reads = list(_reads(graph, vertex))
    for edge, _, before in reads:
        if edge.partitioner.kind is PartitionerKind.HASH:
            name = "key selector" if len(reads) == 1 else f"key selector of {before.uid}"
            if len({e.input_index for e, _, each in reads if each is before}) > 1:
                name += f" in input {edge.input_index + 1}"
            values[name] = edge.partitioner.selector
    settings = {name: _setting(value, with_modules) for name, value in values.items()}
    if reads:
        words, what = _input(graph, vertex, [])
        settings[_INPUT] = _setting(what, with_modules, words)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    writes_to = (vertex.spec.sink.uri() or "") if isinstance(vertex.spec, SinkSpec) else ""
    return OperatorProgram(
        vertex.spec.kind, python, settings, operator_folders(vertex.spec), writes_to, taken_by(vertex.spec)
    )


def taken_by(spec: OperatorSpec) -> str:
    """Returns what only one job can read, and a source reads: what has an attribute ``takes_from``. Others: empty."""
    return str(getattr(spec.source, "takes_from", "")) if isinstance(spec, SourceSpec) else ""


def operator_folders(spec: OperatorSpec) -> tuple[str, ...]:
    """Returns the URLs of the folders that a source reads or a sink writes.

    Args:
        spec: The operator.
    """
    if isinstance(spec, SourceSpec):
        paths = spec.source.folders()
    else:
        paths = spec.sink.folders() if isinstance(spec, SinkSpec) else ()
    found: dict[str, None] = {}
    for path in paths:
        with suppress(FlinkPyError):  # what a user's sink returns may be no URL, and is only a description
            found[StorageLocation(path).url] = None
    return tuple(found)


def describe_setting_change(name: str, before: str, now: str, *, same_python: bool) -> str | None:
    """Describes how a setting of an operator has changed.

    Args:
        name: Name of the setting.
        before: Its text in the checkpoint.
        now: Its text in the program.
        same_python: Whether both were described by the same Python version.

    Returns:
        The change in words, empty if there is none; or None if it cannot be known.
    """
    if _UNKNOWN in (before, now):
        return None
    if before == now:
        return ""
    was, is_now = _HASH.sub("", before), _HASH.sub("", now)
    if was != is_now:
        return f"{name} was {was}, is now {is_now}"
    return f"{name}: the code or the settings of {is_now} changed" if same_python else None


def _settings(spec: OperatorSpec) -> dict[str, Any]:
    """Returns the settings of the user by name, without what a run adds to them."""
    if isinstance(spec, (SparkSourceSpec, SparkTransformSpec)):
        return {"function": spec.user_functions()[0]}
    if isinstance(spec, (BlockingEdgeSinkSpec, BlockingEdgeSourceSpec)):
        return {}
    return {each.name.replace("_", " "): getattr(spec, each.name) for each in fields(spec)}


def _reads(graph: JobGraph, vertex: JobVertex) -> Iterator[tuple[JobEdge, str | None, JobVertex]]:
    """Yields the edges into an operator, each with the side output and the operator that it reads.

    These are before the blocking edges that the graph may have been split at.
    """
    inputs = graph.inputs(vertex.uid)
    if isinstance(vertex.spec, SparkTransformSpec) and not inputs:
        inputs = graph.inputs(vertex.spec.source.sink_uid)
    for edge in inputs:
        before = graph.vertex(edge.source)
        ends = [edge]
        if type(before.spec) is BlockingEdgeSourceSpec:
            ends = graph.inputs(before.spec.source.sink_uid)
        for end in ends:
            yield edge, end.side_output, graph.vertex(end.source)


def _input(graph: JobGraph, vertex: JobVertex, described: list[str]) -> tuple[str, Any]:
    """Returns what an operator reads, in words and as a whole. Operators without a uid belong to the next one.

    ``described`` are the uids of those that were described so far: beyond many, none is described twice, because each
    place where streams part and are united again doubles the number of ways to the operators before it.
    """
    found = []
    for edge, side_output, before in _reads(graph, vertex):
        words, what = before.uid, None
        if not before.uid_set:
            known = len(described) >= _MANY_OPERATORS and before.uid in described
            described.append(before.uid)
            inside, what = ("", None) if known else _input(graph, before, described)
            words = before.spec.kind.replace("_", " ") + (f" of {inside}" if inside else "")
            what = (_settings(before.spec), what)
        words += "" if side_output is None else f" ({side_output})"
        found.append((edge.input_index, words, what))
    found.sort(key=lambda each: each[:2])
    return ", ".join(words for _, words, _ in found), found


def _setting(value: Any, with_modules: bool, label: str | None = None) -> str:
    """Describes a setting in one line."""
    if isinstance(value, _PLAIN):
        return repr(value)
    lines: list[str] = []
    try:
        _describe(value, _Inside(with_modules, left=[_MOST_VALUES]), lines)
        label = label or _label(value)
    except Exception:  # user code such as __repr__ runs here, and must not fail a run because of a description
        return _UNKNOWN
    return f"{label}@{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:12]}"


def _label(value: Any) -> str:
    """Names a value without its contents, which may be secret."""
    if isinstance(value, TypeInformation):
        return str(value)
    if isinstance(value, tuple) and all(isinstance(name, str) for name in value):
        return ", ".join(value)
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return value.__qualname__.rpartition("<locals>.")[2]
    cls = type(value)
    known = cls.__module__.partition(".")[0] == _LIBRARIES[0]
    if known and isinstance(value, (WindowAssigner, Trigger)):
        plain = {name.lstrip("_"): of for name, of in vars(value).items() if isinstance(of, _PLAIN)}
        return f"{cls.__name__}({', '.join(f'{name}={of!r}' for name, of in plain.items())})"
    return cls.__qualname__


class _TooLong(Exception):
    """A value contains too many other values."""


@dataclass(frozen=True)
class _Inside:
    """The position in a description of nested values."""

    with_modules: bool
    """Whether the names of classes are those with their modules."""
    ids: tuple[int, ...] = ()
    """The ids of the values that contain the current one."""
    left: list[int] | None = None
    """How many values may still be described; None for any number."""

    def step(self, values: int = 1) -> None:
        """Counts values.

        Raises:
            _TooLong: There are too many values.
        """
        if self.left is not None:
            self.left[0] -= values
            if self.left[0] < 0:
                raise _TooLong


def operator_code_version(graph: JobGraph, uid: str) -> str:
    """Returns a hash of the code and settings of an operator and of its inputs' key selectors.

    Args:
        graph: The program.
        uid: Uid of the operator.
    """
    selectors = [(edge.partitioner.kind, edge.partitioner.selector) for edge in graph.inputs(uid)]
    lines: list[str] = []
    _describe((graph.vertex(uid).spec, selectors), _Inside(with_modules=True), lines)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _describe(value: Any, inside: _Inside, lines: list[str]) -> None:
    """Adds lines that describe a value."""
    inside.step()
    if isinstance(value, bytes) and len(value) > _LONG:
        lines.append(hashlib.sha256(value).hexdigest())
        return
    if isinstance(value, _PLAIN):
        lines.append(repr(value))
        return
    if id(value) in inside.ids:
        lines.append("(recursion)")
        return
    inside = _Inside(inside.with_modules, (*inside.ids, id(value)), inside.left)
    if isinstance(value, type):
        _class(value, inside, lines)
    elif isinstance(value, StorageLocation):
        lines.append(value.url)  # endpoint and credentials are not part of the code
    elif isinstance(value, (logging.Logger, types.ModuleType)):
        lines.append(
            value.name if isinstance(value, logging.Logger) else value.__name__
        )  # their contents are not the user's
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
        if constants := _constants(value.__code__, value.__globals__):
            _describe(constants, inside, lines)
    elif isinstance(value, types.CodeType):
        _all("code", (value.co_code, value.co_names, value.co_varnames, value.co_consts), inside, lines)
    elif isinstance(value, (staticmethod, classmethod)):
        _all("method", (value.__func__,), inside, lines)
    elif isinstance(value, property):
        _all("property", (value.fget,), inside, lines)
    else:
        _instance(value, inside, lines)


def _all(what: str, values: Any, inside: _Inside, lines: list[str]) -> None:
    lines.append(f"{what} of {len(values)}")
    for value in values:
        _describe(value, inside, lines)


def _text(value: Any, inside: _Inside) -> str:
    lines: list[str] = []
    _describe(value, inside, lines)
    return " ".join(lines)


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a name that is assigned later
        return False
    return True


def _class(cls: type, inside: _Inside, lines: list[str]) -> None:
    """Describes a class: a user's class by its methods, a library's class by its name."""
    for base in cls.__mro__:
        lines.append(f"class {f'{base.__module__}.' if inside.with_modules else ''}{base.__qualname__}")
        if base.__module__.partition(".")[0] not in _LIBRARIES:
            for name, member in sorted(vars(base).items()):
                constant = _is_constant(member) and not (name.startswith("__") and not isinstance(member, _PLAIN))
                if name not in _NOT_CODE and (callable(member) or isinstance(member, _MEMBERS) or constant):
                    lines.append(name)
                    _describe(member, inside, lines)


def _instance(value: Any, inside: _Inside, lines: list[str]) -> None:
    _class(type(value), inside, lines)
    cut = type(value).__module__.partition(".")[0] in _CUT
    if is_dataclass(value):
        _describe({field.name: getattr(value, field.name) for field in fields(value)}, inside, lines)
    elif hasattr(value, "__dict__") and not cut:
        _describe({name: of for name, of in vars(value).items() if not _is_cached(type(value), name)}, inside, lines)
    elif cut and hasattr(value, "to_pylist"):  # Arrow's buffers may contain anything where there is no value
        inside.step(len(value))
        kind = value.type if hasattr(value, "type") else value.schema
        _describe([kind, value.slice(0, _MOST_VALUES).to_pylist()], inside, lines)
    elif not cut and " at 0x" not in repr(value):
        lines.append(repr(value))  # a timedelta, a range, ...
    else:
        _pickled(value, inside, lines)


def _pickled(value: Any, inside: _Inside, lines: list[str]) -> None:
    """Describes a value by what it would be pickled as."""
    if isinstance(getattr(value, "__self__", None), type):  # a method of a class, such as object.__new__
        return
    try:
        reducer: Any = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
    except Exception:  # what cannot be pickled, such as a lock, does not reach a task
        return
    if isinstance(reduced, str):
        lines.append(reduced)
        return
    _, args, *more = reduced
    _describe([args, *(list(each) if isinstance(each, Iterator) else each for each in more[:3])], inside, lines)


def _is_constant(value: Any) -> bool:
    """Returns whether a member of a class consists of plain values only."""
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(map(_is_constant, value))
    if isinstance(value, dict):
        return all(_is_constant(k) and _is_constant(v) for k, v in value.items())
    return isinstance(value, _PLAIN)


def _constants(code: types.CodeType, module: dict[str, Any]) -> dict[str, Any]:
    """Returns the constants of a module that a function may read."""
    named = {name: module[name] for name in code.co_names if name in module and not name.startswith("__")}
    fixed = (*_PLAIN, tuple, frozenset)  # a list or dict of a module may hold what the process has put into it
    found = {name: value for name, value in named.items() if isinstance(value, fixed) and _is_constant(value)}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found |= _constants(inner, module)
    return found


def _is_cached(cls: type, name: str) -> bool:
    """Returns whether an attribute is a cached property. Whether one exists depends on what the process did before."""
    return isinstance(getattr(cls, name, None), functools.cached_property)
