"""How an epoch and the user's code in it reach the Python workers.

Functions of importable modules are pickled by reference, and a worker that cannot import the code location fails. So
the user's own modules (everything that is not installed) travel by value.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.epoch import Epoch

__all__ = ["dump_epoch", "load_epoch", "user_modules_by_value"]

_OWN = __name__.partition(".")[0]


def dump_epoch(epoch: Epoch) -> bytes:
    """Pickles an epoch, user modules by value."""
    import cloudpickle

    with user_modules_by_value(cloudpickle):
        try:
            data: bytes = cloudpickle.dumps(epoch, protocol=5)
        except Exception as e:
            raise ConfigurationError(f"{_unpicklable(epoch.graph)} cannot be sent to the workers: {e}") from e
    return data


def _unpicklable(graph: JobGraph) -> str:
    import cloudpickle

    for vertex in graph.vertices:
        try:
            cloudpickle.dumps(vertex)
        except Exception:
            return f"what operator {vertex.uid!r} ({vertex.name}) holds (make it in open() instead)"
    return "the program"


def load_epoch(data: bytes) -> Epoch:
    """What :func:`dump_epoch` wrote; only ever what this job's driver has sent."""
    import cloudpickle

    epoch: Epoch = cloudpickle.loads(data)
    return epoch


def _user_modules() -> list[ModuleType]:
    """All modules that are not installed; of these only what the program refers to is pickled."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name != "__main__" and name.partition(".")[0] != _OWN and _is_user_module(name, module)
    ]


def _is_user_module(name: str, module: ModuleType | None) -> bool:
    # Some modules import others when they are only looked at, so nothing is asked of them.
    about = vars(module) if isinstance(module, ModuleType) else {}
    path = about.get("__file__")
    return isinstance(path, str) and about.get("__name__") == name and not _is_installed(path)


@cache
def _is_installed(path: str) -> bool:
    folders = _installed_folders()
    return path.startswith(folders) or str(Path(path).resolve()).startswith(folders)


@cache
def _installed_folders() -> tuple[str, ...]:
    paths = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{folder}{os.sep}" for path in paths for folder in {path, path.resolve()})


@contextmanager
def user_modules_by_value(pickler: ModuleType) -> Iterator[None]:
    """What is pickled inside takes along the user's own modules.

    Args:
        pickler: ``cloudpickle``, or the copy of it that PySpark has.
    """
    registered = []
    for module in _user_modules():
        if module.__name__ not in pickler.list_registry_pickle_by_value():
            pickler.register_pickle_by_value(module)
            registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            pickler.unregister_pickle_by_value(module)
