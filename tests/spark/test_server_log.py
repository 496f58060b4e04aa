from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dagster_flinkpy.spark.server import _log_signal
from dagster_flinkpy.spark.server_state import ServerLog, new_log

STACK = """\
2026-01-01 00:00:00 ERROR Executor: Exception in task 0.0
org.apache.spark.SparkException: no space left
\tat org.apache.spark.Some.method(Some.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.io.IOException: disk full
\t... 12 more
"""


def test_the_ten_newest_logs_are_kept_and_those_in_use(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"spark-{i:02}.log").touch()
        os.utime(tmp_path / f"spark-{i:02}.log", (i, i))
    (tmp_path / "spark-other.json").write_text(json.dumps({"log": str(tmp_path / "spark-00.log")}))
    (tmp_path / "spark-damaged.json").write_text("{")
    (tmp_path / "notes.log").touch()
    log = new_log(tmp_path / "spark-mine.json")
    assert log.read_bytes() == b""
    assert log.name.startswith("spark-mine.")
    kept = {path.name for path in tmp_path.glob("spark-*.log")}
    assert kept == {"spark-00.log", *(f"spark-{i:02}.log" for i in range(3, 12)), log.name}
    assert (tmp_path / "notes.log").exists()


def test_the_end_of_a_log_is_quoted_without_frames(tmp_path: Path) -> None:
    path = tmp_path / "spark.log"
    path.write_text("".join(f"line {i}\n" for i in range(100)) + STACK)
    quoted = ServerLog(path).quote()
    assert quoted.startswith(f"The end of Spark's log {path}:\n  line 83\n")
    assert quoted.endswith("\n  Caused by: java.io.IOException: disk full")
    assert "Some.scala" not in quoted
    assert "12 more" not in quoted


def test_what_was_there_before_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "spark.log"
    path.write_text("java.lang.OutOfMemoryError of another job\n")
    log = ServerLog.from_now_on(path)
    assert log.quote() == f"Spark's log is {path}"
    with path.open("a") as file:
        file.write("x" * 1_000)
    assert log.quote() == f"The end of Spark's log {path}:\n  {'x' * 300}..."


@pytest.mark.parametrize(
    "line",
    [
        "java.lang.OutOfMemoryError: Java heap space",
        "org.apache.arrow.memory.OutOfMemoryException: Failure allocating buffer.",
        "Caused by: io.netty.util.internal.OutOfDirectMemoryError: failed to allocate 629146192 byte(s)",
    ],
)
def test_lack_of_memory_is_explained(tmp_path: Path, line: str) -> None:
    path = tmp_path / "spark.log"
    path.write_text(f"{line}\n")
    assert "spark.driver.memory" in ServerLog(path).quote()


@pytest.mark.parametrize(
    "line",
    [
        'Exception in thread "main" java.lang.IllegalArgumentException: basedir must be absolute: ?/.ivy2.5.2/local',
        "Caused by: javax.security.auth.login.LoginException: java.lang.NullPointerException: invalid null input: name",
    ],
)
def test_a_user_without_a_name_is_told_to_get_one(tmp_path: Path, line: str) -> None:
    path = tmp_path / "spark.log"
    path.write_text(f"{line}\n")
    assert f"uid {os.getuid()} has none: add it to /etc/passwd" in ServerLog(path).quote()


@pytest.mark.parametrize("log", ["missing.log", "folder"])
def test_a_log_that_cannot_be_read_is_only_named(tmp_path: Path, log: str) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / log
    assert ServerLog.from_now_on(path).quote() == f"Spark's log is {path}"


@pytest.mark.parametrize(
    ("end", "says"), [("kill -9 $$", "The server was killed (SIGKILL), as the system does if "), ("exit 3", "")]
)
def test_the_log_says_that_a_server_was_killed(capfd: pytest.CaptureFixture[str], end: str, says: str) -> None:
    with subprocess.Popen(["sh", "-c", end]) as killed:
        _log_signal(killed)
    assert capfd.readouterr().err.partition("the machine")[0] == says
