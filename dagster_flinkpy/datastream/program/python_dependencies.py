"""Python code and data that a program's functions need on the workers (``pyflink.common`` dependency management)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PythonArchive", "PythonDependencies"]


@dataclass(frozen=True)
class PythonArchive:
    """An archive that is unpacked in the working directory of the functions."""

    path: str
    """A ``.zip``, ``.tar``, ``.tar.gz`` or ``.tgz`` file on the driver."""
    target_dir: str
    """Name of the folder it is unpacked into."""


@dataclass(frozen=True)
class PythonDependencies:
    """What is sent to the workers with each Spark job, besides the functions themselves."""

    files: tuple[str, ...] = ()
    """Modules: ``.py`` files, folders, and ``.zip`` or ``.whl`` files on the driver."""
    archives: tuple[PythonArchive, ...] = ()
    requirements: str | None = None
    """A ``requirements.txt`` on the driver, or None."""
    requirements_cache: str | None = None
    """A folder of packages on the driver to install from instead of a package index, or None."""

    def __bool__(self) -> bool:
        return bool(self.files or self.archives or self.requirements)
