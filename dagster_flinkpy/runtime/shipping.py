"""How an epoch and the user's code in it reach the Python workers.

Functions of importable modules are pickled by reference, and a worker that cannot import the code location fails. So
the user's own modules (everything that is not installed) travel by value.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.runtime.epoch import Epoch

__all__ = ["dump_epoch", "load_epoch"]

_OWN = __name__.partition(".")[0]


def dump_epoch(epoch: Epoch) -> bytes:
    """Pickles an epoch, user modules by value."""
    import cloudpickle

    with _by_value(_user_modules(epoch.graph)):
        data: bytes = cloudpickle.dumps(epoch, protocol=5)
    return data


def load_epoch(data: bytes) -> Epoch:
    """What :func:`dump_epoch` wrote; only ever what this job's driver has sent."""
    import cloudpickle

    epoch: Epoch = cloudpickle.loads(data)
    return epoch


def _user_modules(graph: JobGraph) -> list[ModuleType]:
    """The modules of the user's functions, and all others of the packages they are in."""
    roots: set[str] = set()
    selectors = [e.partitioner.selector for e in graph.edges]
    for function in [*selectors, *(f for v in graph.vertices for f in v.spec.user_functions())]:
        roots.update(_module_roots(function))
    return [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in roots and _is_user_module(module)
    ]


def _module_roots(function: Any) -> Iterator[str]:
    for thing in (function, type(function)):
        module = getattr(thing, "__module__", None)
        if isinstance(module, str):
            yield module.partition(".")[0]


def _is_user_module(module: ModuleType | None) -> bool:
    path = getattr(module, "__file__", None)
    if module is None or path is None or module.__name__ == "__main__" or module.__name__.partition(".")[0] == _OWN:
        return False
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    parents = {str(parent) for parent in Path(path).resolve().parents}
    return not any(str(Path(folder).resolve()) in parents for folder in installed)


@contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    import cloudpickle

    registered = []
    for module in modules:
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)
