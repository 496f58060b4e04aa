"""The user's code behind an asset: the program, and the functions of its operators, with their docstrings."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any

from dagster import BetaWarning, CodeReferencesMetadataValue, LocalFileCodeReference, UrlCodeReference

from dagster_flinkpy.datastream.program.job_graph import JobGraph, JobVertex
from dagster_flinkpy.orchestration.dagster_internals import CodeReferencesMetadataSet
from dagster_flinkpy.orchestration.flink_job import Environment

__all__ = ["code_references", "docstring", "place_of_program", "program_docstring", "user_functions"]

Place = tuple[str, int]
"""An absolute path of a file, and a line."""

_LIBRARY = __name__.partition(".")[0]
_NOT_THE_USERS = {_LIBRARY, "dagster", "numpy", "pandas", "pyarrow", "pyspark", *sys.stdlib_module_names} - {"__main__"}


def user_functions(vertex: JobVertex) -> Iterator[Any]:
    """Yields the functions and classes of an operator that the user has written, without those of libraries."""
    for function in vertex.spec.user_functions():
        code = _code_of(function)
        module = getattr(code, "__module__", None)
        if module is not None and module.partition(".")[0] not in _NOT_THE_USERS:
            yield code


def docstring(code: Any) -> str | None:
    """Returns the first paragraph of the docstring of a function or class; None if the user has not written any."""
    text = code.__doc__
    is_made = isinstance(code, type) and is_dataclass(code) and str(text).startswith(f"{code.__name__}(")
    if not text or is_made:  # by ``dataclass``
        return None
    return inspect.cleandoc(text).partition("\n\n")[0]


def program_docstring(program: Environment) -> str | None:
    """Returns the first paragraph of the docstring of the function that builds a program."""
    return docstring(_code_of(program)) if callable(program) else None


def code_references(vertices: Iterable[JobVertex]) -> CodeReferencesMetadataSet:
    """Returns where operators are declared in the program, and where their functions are defined."""
    places = dict[Place, str]()
    for vertex in vertices:
        if (declared := _existing(vertex.declared_at)) is not None:
            places.setdefault(declared, f"{vertex.uid if vertex.uid_set else vertex.name} in the program")
        for code in user_functions(vertex):
            if (place := _place(code)) is not None:
                places.setdefault(place, code.__qualname__.replace("<locals>.", ""))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)
        found: list[LocalFileCodeReference | UrlCodeReference] = [
            LocalFileCodeReference(file_path=file, line_number=n, label=what) for (file, n), what in places.items()
        ]
        references = CodeReferencesMetadataValue(code_references=found) if found else None
    return CodeReferencesMetadataSet(code_references=references)


def place_of_program(program: Environment, graph: JobGraph) -> Place | None:
    """Returns where a program is: the function that builds it, or else its first operator. None if that is unknown."""
    place = _place(_code_of(program)) if callable(program) else None
    return place or next((found for v in graph.vertices if (found := _existing(v.declared_at))), None)


def _code_of(function: Any) -> Any:
    """Returns the function or class behind what a user has passed: a function, a partial one, or an instance."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif type(function).__module__ == f"{_LIBRARY}.datastream.adapters" and hasattr(function, "function"):
            function = function.function
        else:
            break
    if function is None:
        return None
    function = inspect.unwrap(function)
    return function if inspect.isroutine(function) else type(function)


@functools.lru_cache(None)
def _place(code: Any) -> Place | None:
    """Returns where a function or class is defined; None if there is no file."""
    try:
        file = inspect.getsourcefile(code)
        line = code.__code__.co_firstlineno if inspect.isfunction(code) else inspect.getsourcelines(code)[1]
    except (OSError, TypeError):  # typed into a console, or not written in Python
        return None
    return None if file is None else _existing((file, line))


def _existing(place: Place | None) -> Place | None:
    return (os.path.abspath(place[0]), place[1]) if place is not None and os.path.isfile(place[0]) else None
