"""Pickles the user's own modules by value.

By default, functions of importable modules are pickled by reference, and a worker that cannot import the code location
would fail. So the user's own modules (everything that is not installed) are pickled by value.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

__all__ = ["user_modules_by_value"]

_OWN = __name__.partition(".")[0]


@dataclass
class _Uses:
    """Who pickles by one pickler now: regions run side by side."""

    count: int = 0
    modules: list[ModuleType] = field(default_factory=list)
    """What was registered for them."""


_lock = threading.Lock()
_uses: dict[str, _Uses] = defaultdict(_Uses)
"""By the name of the pickler."""

_looked_at: set[str] = set()
"""Names of modules. There are thousands, and each epoch asks which are the user's."""

_of_the_user: list[str] = []
"""Those that are the user's."""


@contextmanager
def user_modules_by_value(pickler: ModuleType) -> Iterator[None]:
    """Pickles the user's own modules by value inside the context.

    Args:
        pickler: The module ``cloudpickle``, or PySpark's copy of it.
    """
    with _lock:
        uses = _uses[pickler.__name__]
        registered = pickler.list_registry_pickle_by_value()  # by others, or by the user
        for module in _user_modules():
            if module.__name__ not in registered:
                pickler.register_pickle_by_value(module)
                uses.modules.append(module)
        uses.count += 1
    try:
        yield
    finally:
        with _lock:
            uses.count -= 1
            while uses.modules and not uses.count:
                pickler.unregister_pickle_by_value(uses.modules.pop())


def _user_modules() -> list[ModuleType]:
    """Returns all modules that are not installed; only those that the program refers to are pickled."""
    for name in () if _looked_at.issuperset(sys.modules) else list(sys.modules):  # a copy: another thread may import
        if name not in _looked_at and (module := sys.modules.get(name)) is not None:  # or else it may come yet
            _looked_at.add(name)
            if _is_user_module(name, module):
                _of_the_user.append(name)
    return [module for name in _of_the_user if isinstance(module := sys.modules.get(name), ModuleType)]


def _is_user_module(name: str, module: ModuleType) -> bool:
    # Reads vars() and no attributes: in some modules, reading an attribute imports other modules.
    about = vars(module) if isinstance(module, ModuleType) else {}
    path = about.get("__file__")
    named = about.get("__name__") == name != "__main__"
    return named and isinstance(path, str) and name.partition(".")[0] != _OWN and not _is_installed(path)


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
