"""Archives of Java classes: a server that finds one starts with a third of the work, because it parses and checks none.

Java calls it class data sharing. The first server on a machine writes the archive when it ends. Drivers of mode
``classic`` use it, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ClassArchive"]

_log = logging.getLogger(__name__)

_UNUSED_SECONDS = 30 * 24 * 3600
_QUIET = "-Xlog:cds*=off"  # Java ignores an archive that does not fit; classes that cannot be in one are many


@dataclass(frozen=True)
class ClassArchive:
    """The archive for a Java and a class path. Its name has a hash of both, so one that exists fits."""

    path: Path

    @classmethod
    def of(cls, java_home: Path, class_path: str) -> ClassArchive | None:
        """Returns the archive, which may not exist; None if this user has no folder for it.

        The folder is ``$XDG_CACHE_HOME/flinkpy``, by default ``~/.cache/flinkpy``. An archive has about 180 MB.

        Args:
            java_home: The home of the Java that runs the server.
            class_path: Its class path, as on its command line.
        """
        try:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "flinkpy")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
        except (OSError, RuntimeError):
            return None
        # Whoever can write the archive can run code in the server.
        if status.st_uid != os.getuid() or status.st_mode & 0o022 or not os.access(folder, os.W_OK):
            return None
        identity = repr([class_path, *_files(java_home, class_path)])
        return cls(folder / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa")

    @classmethod
    def of_spark(cls, java_home: Path, spark_home: Path) -> ClassArchive | None:
        """Returns the archive for the class path that Spark's launcher makes, which is also that of the server.

        Args:
            java_home: The home of the Java that runs Spark.
            spark_home: The home of Spark.
        """
        jars = spark_home / "jars"
        first = sorted(jars.glob("slf4j-api-*.jar"))
        return cls.of(java_home, os.pathsep.join(map(str, (spark_home / "conf", *first, jars / "*"))))

    def options(self, draft: Path | None = None) -> list[str]:
        """Returns Java's options: to use the archive, or to write it when the server ends.

        Args:
            draft: Where it is written if there is none. Default: nowhere.
        """
        try:
            os.utime(self.path)
        except OSError:
            return [f"-XX:ArchiveClassesAtExit={draft}", _QUIET] if draft else []
        return [f"-XX:SharedArchiveFile={self.path}", _QUIET]

    def keep(self, draft: Path) -> None:
        """Makes the archive of what a server has written, and removes archives that nobody has used for 30 days."""
        if not draft.exists():
            return
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            shutil.move(draft, part)
            part.replace(self.path)
        except OSError as error:
            _log.warning("The archive of Java classes %s was not written: %s", self.path, error)
            part.unlink(missing_ok=True)
        for other in self.path.parent.glob("spark-*.jsa*"):
            with contextlib.suppress(OSError):
                if time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                    other.unlink()

    def discard(self) -> None:
        """Removes the archive; a server that used it has crashed."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def _files(java_home: Path, class_path: str) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of the files that the archive must fit: those of Java, and all jars."""
    for entry in [str(java_home / "lib" / "modules"), *class_path.split(os.pathsep)]:
        folder, wildcard, _ = entry.partition("*")
        paths = sorted(Path(folder).glob("*.jar")) if wildcard else [Path(entry)]
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                yield str(path), status.st_size, status.st_mtime_ns
