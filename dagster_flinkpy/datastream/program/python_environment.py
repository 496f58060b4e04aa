"""Brings a program's Python files, archives and requirements to the process that runs its functions.

The driver packs them into the Spark job. A worker unpacks them once, in a folder named after their content.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dagster_flinkpy.datastream.program.python_dependencies import PythonDependencies
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.file_lock import LockTimeoutError, file_lock

__all__ = ["MAX_BYTES", "PackedPython", "installed", "pack"]

MAX_BYTES = 64 << 20
"""The maximum total size of the files that are sent with a Spark job, in bytes."""

_INSTALL_SECONDS = 600.0


@dataclass(frozen=True)
class PackedPython:
    """Python dependencies as bytes."""

    files: tuple[tuple[str, bytes], ...]
    """Name and content: a module, or a zip of modules."""
    archives: tuple[tuple[str, str, bytes], ...]
    """Target folder, name and content."""
    requirements: bytes
    packages: bytes
    """A zip of packages to install from; empty for the package index."""

    @property
    def digest(self) -> str:
        """A hash that identifies the content."""
        seen = hashlib.sha256(repr(sys.version_info[:2]).encode())
        for part in (*(p for f in self.files for p in f), *(p for a in self.archives for p in a)):
            seen.update(b"\0" + (part.encode() if isinstance(part, str) else part))
        for data in (self.requirements, self.packages):
            seen.update(b"\1" + data)
        return seen.hexdigest()[:32]


def pack(dependencies: PythonDependencies) -> PackedPython | None:
    """Reads the files of dependencies; runs on the driver.

    Returns:
        The packed dependencies, or None if there are none.

    Raises:
        ConfigurationError: A file is missing or of an unknown kind, or the files are too large together.
    """
    if not dependencies:
        return None
    packed = PackedPython(
        tuple(_module(Path(path)) for path in dependencies.files),
        tuple((each.target_dir, Path(each.path).name, _read(Path(each.path))) for each in dependencies.archives),
        _read(Path(dependencies.requirements)) if dependencies.requirements else b"",
        _zipped(Path(dependencies.requirements_cache)) if dependencies.requirements_cache else b"",
    )
    total = sum(len(data) for _, data in packed.files) + sum(len(data) for *_, data in packed.archives)
    total += len(packed.packages)
    if total > MAX_BYTES:
        raise ConfigurationError(
            f"the Python files and archives of the program have {total >> 20} MiB, but at most {MAX_BYTES >> 20} MiB "
            "can be sent with a Spark job: install them in the workers' environment instead"
        )
    return packed


def _module(path: Path) -> tuple[str, bytes]:
    if path.is_dir():
        return f"{path.name}.zip", _zipped(path)
    if path.suffix in (".py", ".zip", ".whl", ".egg"):
        return path.name, _read(path)
    _read(path)
    raise ConfigurationError(f"add_python_file() takes a .py, .zip or .whl file or a folder, not {str(path)!r}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise ConfigurationError(f"a Python dependency cannot be read: {path}: {e.strerror}") from e


def _zipped(folder: Path) -> bytes:
    if not folder.is_dir():
        raise ConfigurationError(f"a Python dependency is not a folder: {folder}")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            parts = path.relative_to(folder).parts
            if path.is_file() and "__pycache__" not in parts and not any(part.startswith(".") for part in parts):
                # Entries get a fixed time, so that equal files have an equal digest.
                archive.writestr(zipfile.ZipInfo("/".join(parts)), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return data.getvalue()


@contextmanager
def installed(packed: PackedPython | None, cache_dir: str) -> Iterator[None]:
    """Makes dependencies importable inside the context, and the folder of their archives the working directory.

    Afterwards, modules that were imported from them are removed, because a Spark worker runs several programs.

    Args:
        packed: The packed dependencies, or None.
        cache_dir: The folder to unpack them to. They stay there for the next task.

    Raises:
        ConfigurationError: The requirements cannot be installed, or an archive cannot be unpacked.
    """
    if packed is None:
        yield
        return
    root = _unpacked(packed, Path(cache_dir))
    paths = [str(path) for path in sorted((root / "files").iterdir())] + [str(root / "packages")]
    before, folder = list(sys.path), ""
    sys.path[:0] = paths
    if packed.archives:
        with suppress(FileNotFoundError):  # somebody has deleted the folder that the worker was started in
            folder = os.getcwd()
        os.chdir(root / "archives")
    del packed  # the context may be open for long
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if folder:
            os.chdir(folder)
        sys.path[:] = before
        prefix = f"{root}{os.sep}"
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(prefix):
                del sys.modules[name]


def _unpacked(packed: PackedPython, cache: Path) -> Path:
    target = cache / "python" / packed.digest
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file_lock(target.with_suffix(".lock"), timeout=_INSTALL_SECONDS):
            if not target.is_dir():
                part = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
                try:
                    _unpack(packed, part)
                    part.rename(target)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
    except LockTimeoutError as e:
        raise ConfigurationError(f"the program's Python dependencies could not be unpacked: {e}") from e
    return target


def _unpack(packed: PackedPython, folder: Path) -> None:
    for i, (name, data) in enumerate(packed.files):
        # Each file has its own entry on the path, in the order in which it was added.
        place = folder / "files" / f"{i:03}" if name.endswith(".py") else folder / "files"
        place.mkdir(parents=True, exist_ok=True)
        (place / (name if name.endswith(".py") else f"{i:03}-{name}")).write_bytes(data)
    (folder / "files").mkdir(parents=True, exist_ok=True)
    (folder / "archives").mkdir()
    for target, name, data in packed.archives:
        _extract(name, data, folder / "archives" / target)
    (folder / "packages").mkdir()
    if packed.requirements:
        _install(packed, folder)


def _extract(name: str, data: bytes, target: Path) -> None:
    target.mkdir(parents=True)
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                archive.extractall(target)
        elif name.endswith((".tar", ".tar.gz", ".tgz")):
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                _extract_tar(tar, target)
        else:
            raise ConfigurationError(f"add_python_archive() takes a .zip, .tar, .tar.gz or .tgz file, not {name!r}")
    except (zipfile.BadZipFile, tarfile.TarError) as e:
        raise ConfigurationError(f"archive {name!r} cannot be unpacked: {e}") from e


def _extract_tar(tar: tarfile.TarFile, target: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        tar.extractall(target, filter="data")
        return
    for member in tar.getmembers():  # Python before 3.11.4, such as that of Debian 12
        inside = (target / member.name).resolve().is_relative_to(target.resolve())
        if not inside or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is outside of it, or neither a file nor a folder")
    tar.extractall(target)


def _install(packed: PackedPython, folder: Path) -> None:
    (folder / "requirements.txt").write_bytes(packed.requirements)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--target", str(folder / "packages"), "-r", str(folder / "requirements.txt")]
    if packed.packages:
        with zipfile.ZipFile(io.BytesIO(packed.packages)) as archive:
            archive.extractall(folder / "index")
        command += ["--no-index", "--find-links", str(folder / "index")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise ConfigurationError(f"the program's requirements could not be installed on a worker:\n{last}")
