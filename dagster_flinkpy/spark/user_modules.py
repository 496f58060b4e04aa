"""Pickles the user's own modules by value.

By default, functions of importable modules are pickled by reference, and a worker that cannot import the code location
would fail. So the user's own modules (everything that is not installed) are pickled by value.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

__all__ = ["user_modules_by_value"]

_OWN = __name__.partition(".")[0]
_lock = threading.Lock()
_registered: Counter[tuple[str, str]] = Counter()
"""How many threads pickle a module by value now, by pickler and module: regions run side by side."""

_installed: set[str] = set()
"""Names of modules that are installed, or our own. There are hundreds, and each Spark job asks for the others."""


@contextmanager
def user_modules_by_value(pickler: ModuleType) -> Iterator[None]:
    """Pickles the user's own modules by value inside the context.

    Args:
        pickler: The module ``cloudpickle``, or PySpark's copy of it.
    """
    modules = []
    with _lock:
        others = pickler.list_registry_pickle_by_value()
        for module in _user_modules():
            use = (pickler.__name__, module.__name__)
            if not _registered[use]:
                if module.__name__ in others:
                    continue  # the user has registered it
                pickler.register_pickle_by_value(module)
            _registered[use] += 1
            modules.append(module)
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                _registered[pickler.__name__, module.__name__] -= 1
                if not _registered[pickler.__name__, module.__name__]:
                    pickler.unregister_pickle_by_value(module)


def _user_modules() -> list[ModuleType]:
    """Returns all modules that are not installed; only those that the program refers to are pickled."""
    return [
        module
        for name, module in sys.modules.copy().items()  # another thread may import just now
        if name not in _installed and name != "__main__" and _is_user_module(name, module)
    ]


def _is_user_module(name: str, module: ModuleType | None) -> bool:
    # Reads vars() and no attributes: in some modules, reading an attribute imports other modules.
    about = vars(module) if isinstance(module, ModuleType) else {}
    path = about.get("__file__")
    if not isinstance(path, str) or about.get("__name__") != name:
        return False
    if name.partition(".")[0] == _OWN or _is_installed(path):
        _installed.add(name)
        return False
    return True


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
