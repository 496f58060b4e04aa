"""Pickles a job, including the user's code, for the Python workers.

By default, functions of importable modules are pickled by reference, and a worker that cannot import the code location
would fail. So the user's own modules (everything that is not installed) are pickled by value.
"""

from __future__ import annotations

import os
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.python_environment import installed

__all__ = ["dump_job", "load_job", "loaded_job", "user_modules_by_value"]

_OWN = __name__.partition(".")[0]


def dump_job(job: EpochJob) -> bytes:
    """Pickles a job, with user modules by value."""
    import cloudpickle

    with user_modules_by_value(cloudpickle):
        try:
            data = cloudpickle.dumps(replace(job, python=None), protocol=5)
        except Exception as e:
            raise ConfigurationError(f"{_unpicklable(job.graph)} cannot be sent to the workers: {e}") from e
    # The Python dependencies come first: they must be importable before the job is unpickled.
    return pickle.dumps((job.python, job.cache_dir, data), protocol=5)


def _unpicklable(graph: JobGraph) -> str:
    import cloudpickle

    for vertex in graph.vertices:
        try:
            cloudpickle.dumps(vertex)
        except Exception:
            return f"an object in operator {vertex.uid!r} ({vertex.name}), which open() should create instead,"
    return "the program"


def load_job(data: bytes) -> EpochJob:
    """Unpickles what :func:`dump_job` returned, without its Python dependencies.

    The data comes only from the driver of this job.
    """
    import cloudpickle

    *_, pickled = pickle.loads(data)
    job: EpochJob = cloudpickle.loads(pickled)
    return job


@contextmanager
def loaded_job(data: bytes) -> Iterator[EpochJob]:
    """Unpickles a job; inside the context, its Python dependencies can be imported and read.

    Raises:
        ConfigurationError: The dependencies cannot be unpacked or installed.
    """
    python, cache_dir, _ = pickle.loads(data)
    with installed(python, cache_dir):
        yield load_job(data)


def _user_modules() -> list[ModuleType]:
    """Returns all modules that are not installed; only those that the program refers to are pickled."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name != "__main__" and name.partition(".")[0] != _OWN and _is_user_module(name, module)
    ]


def _is_user_module(name: str, module: ModuleType | None) -> bool:
    # Reads vars() and no attributes: in some modules, reading an attribute imports other modules.
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
    # An environment may see the packages of another one (`python -m venv --system-site-packages`).
    paths |= {Path(path) for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    return tuple(f"{folder}{os.sep}" for path in paths for folder in {path, path.resolve()})


@contextmanager
def user_modules_by_value(pickler: ModuleType) -> Iterator[None]:
    """Pickles the user's own modules by value inside the context.

    Args:
        pickler: The module ``cloudpickle``, or PySpark's copy of it.
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
