"""Pickles programs so that the user's code keeps the names of its files."""

from __future__ import annotations

import io
from collections import ChainMap
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any

__all__ = ["dumps"]


def dumps(value: Any) -> bytes:
    """Pickles a value by ``cloudpickle``, and with its code the names of the files that it is from.

    A traceback in a worker shows these files and their lines. ``cloudpickle`` 3.1.3 names every file
    ``<dynamic-code>``, to make pickles independent of where a notebook's cells are.

    Returns:
        The pickle, for :func:`pickle.loads`.
    """
    buffer = io.BytesIO()
    _pickler()(buffer, protocol=5).dump(value)
    return buffer.getvalue()


@cache
def _pickler() -> Callable[..., Any]:
    import cloudpickle

    reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]

    def reduce_code_in_file(code: CodeType) -> tuple[Any, ...]:
        return _code_in_file, (code.co_filename, *reduce_code(code))

    table = ChainMap({CodeType: reduce_code_in_file}, cloudpickle.Pickler.dispatch_table)
    return type("CodePickler", (cloudpickle.Pickler,), {"dispatch_table": table})


def _code_in_file(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=filename)
