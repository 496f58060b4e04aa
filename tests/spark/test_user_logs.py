"""Log records and printed lines of user functions reach the run."""

from __future__ import annotations

import io
import logging
import os
import select
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import KeyedProcessFunction, MapFunction
from dagster_flinkpy.errors import UserFunctionError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark import user_logs
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.spark.user_logs import LogEntry, LogRelay, UserLogs, log_here
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import FolderSink, environment
from tests.waiting import LIMIT

log = logging.getLogger("shop.orders")


def logs_of(current: str = "op") -> UserLogs:
    return UserLogs(lambda: (current, 1, 7))


def entries_of(logs: UserLogs) -> list[LogEntry]:
    payload = logs.payload()
    return [] if payload is None else UserLogs.parse(payload)[0]


# --- in a task --------------------------------------------------------------------------------------------------------


def test_records_and_lines_are_collected_with_where_they_come_from() -> None:
    logs = logs_of()
    with logs.captured():
        log.info("%d orders", 3)
        log.debug("not wanted")
        print("a", "b")
        print("line without end", end="")
    entries = entries_of(logs)
    assert entries == [
        LogEntry("op", 1, 7, logging.INFO, "shop.orders", "3 orders"),
        LogEntry("op", 1, 7, 0, "", "a b"),
        LogEntry("op", 1, 7, 0, "", "line without end"),
    ]
    assert logs.payload() is None, "they are sent once"
    assert str(entries[0]) == "[op, subtask 1, checkpoint 7] shop.orders: 3 orders"


def test_afterwards_the_process_logs_and_prints_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    root, out = logging.getLogger(), sys.stdout
    level, handlers = root.level, list(root.handlers)
    logs = logs_of()
    with logs.captured():
        pass
    assert (root.level, root.handlers, sys.stdout) == (level, handlers, out)
    assert logs.payload() is None


def test_the_platform_is_quiet_but_for_its_warnings() -> None:
    logs = logs_of()
    with logs.captured():
        logging.getLogger("botocore.hooks").info("nobody cares")
        logging.getLogger("botocore.hooks").warning("a retry")
    assert [entry.text for entry in entries_of(logs)] == ["a retry"]


def test_a_traceback_is_part_of_the_text() -> None:
    logs = logs_of()
    with logs.captured():
        try:
            raise ValueError("no such order")
        except ValueError:
            log.exception("failed")
    (entry,) = entries_of(logs)
    assert entry.level == logging.ERROR
    assert entry.text.startswith("failed\nTraceback")
    assert entry.text.endswith("ValueError: no such order")


def test_a_record_that_cannot_be_formatted_is_told_nevertheless() -> None:
    logs = logs_of()
    record = logging.LogRecord("shop", logging.WARNING, __file__, 1, "%d orders", ("three",), None)
    user_logs._Handler(logs).emit(record)  # pytest's own handler raises, so not through the logger
    (entry,) = entries_of(logs)
    assert "'%d orders' (could not be formatted" in entry.text


def test_what_is_beyond_the_bounds_is_counted_and_stays_in_the_worker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(user_logs, "MAX_ENTRIES", 2)
    monkeypatch.setattr(user_logs, "MAX_LINES", 3)
    monkeypatch.setattr(user_logs, "MAX_TEXT", 10)
    logs = logs_of()
    with logs.captured():
        for i in range(5):
            log.info("info %d", i)
            log.error("error %d", i)
            print("line", i)
    payload = logs.payload()
    assert payload is not None
    entries, missing = UserLogs.parse(payload)
    assert [entry.text for entry in entries if entry.level == logging.INFO] == ["info 0", "info 1"]
    assert missing == {logging.INFO: 3, logging.ERROR: 3, 0: 2}
    assert "error 4" in capsys.readouterr().err
    logs = logs_of()
    logs.add(logging.INFO, "", "0123456789abc")
    assert entries_of(logs)[0].text == "0123456789... (13 characters)"


def test_a_line_that_nobody_ends_is_taken_when_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar of progress may grow as long as the job runs."""
    monkeypatch.setattr(user_logs, "MAX_TEXT", 10)
    logs = logs_of()
    with logs.captured():
        for _ in range(3):
            print("." * 6, end="")
        assert [entry.text for entry in entries_of(logs)] == ["." * 10 + "... (12 characters)"]
    assert [entry.text for entry in entries_of(logs)] == ["." * 6]


def test_lines_of_threads_do_not_mix() -> None:
    logs, begun, ended = logs_of(), threading.Event(), threading.Event()

    def other() -> None:
        assert begun.wait(LIMIT)
        print("another line")
        ended.set()

    thread = threading.Thread(target=other)
    with logs.captured():
        thread.start()
        print("one ", end="")
        begun.set()
        assert ended.wait(LIMIT)
        print("line")
    thread.join()
    assert [entry.text for entry in entries_of(logs)] == ["another line", "one line"]


def test_what_a_forked_process_prints_and_logs_stays_in_the_worker(capfd: pytest.CaptureFixture[str]) -> None:
    logs = logs_of()
    with logs.captured():
        if not (child := os.fork()):
            try:
                print("of a child")
                log.warning("warning of a child")
                sys.stderr.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        print("of its parent")
    assert [entry.text for entry in entries_of(logs)] == ["of its parent"]
    assert capfd.readouterr().err.splitlines() == ["of a child", "warning of a child"]


def test_bytes_and_what_takes_the_descriptor_are_only_in_the_log_of_the_worker(
    capfd: pytest.CaptureFixture[str],
) -> None:
    logs = logs_of()
    with logs.captured():
        cast("io.TextIOWrapper", sys.stdout).reconfigure(encoding="utf-8", line_buffering=True)
        sys.stdout.buffer.write(b"bytes\n")
        sys.stderr.flush()
        subprocess.run(["echo", "subprocess"], stdout=sys.stdout, check=True)
        assert sys.stdout.encoding == "utf-8"
    assert logs.payload() is None
    assert capfd.readouterr().err == "bytes\nsubprocess\n"


# --- on the driver ----------------------------------------------------------------------------------------------------


def test_the_run_gets_so_many_of_each_level_and_then_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_logs, "MAX_ENTRIES", 2)
    entries = [LogEntry("op", i, 7, logging.INFO, "shop", str(i)) for i in range(4)]
    taken: list[LogEntry] = []
    relay = LogRelay(taken.append)
    relay.end(1, [*entries, LogEntry("op", 0, 7, 0, "", "line")], {logging.INFO: 10}, 7)
    assert [entry.text for entry in taken[:3]] == ["0", "1", "line"]
    assert str(taken[3]).startswith("[checkpoint 7] 12 more INFO records of user functions were left out")
    assert len(taken) == 4


def test_what_comes_amid_an_epoch_counts_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_logs, "MAX_LINES", 3)
    taken: list[LogEntry] = []
    relay, logs = LogRelay(taken.append, lambda: 0.0), logs_of()
    for _ in range(2):
        for text in "abcd":
            logs.add(user_logs.PRINTED, "", text)
        payload = logs.payload()
        assert payload is not None
        relay.hear(1, payload)
    relay.end(2, [], {}, 7)
    assert [entry.text for entry in taken] == ["a", "b", "c"]
    relay.end(1, entries_of_text("e"), {}, 7)
    assert str(taken[3]).startswith("[checkpoint 7] 6 more printed lines of user functions were left out")
    relay.end(1, entries_of_text("f"), {}, 8)
    assert [entry.text for entry in taken[4:]] == ["f"]


def test_in_a_long_epoch_they_count_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_logs, "MAX_LINES", 1)
    taken, now = list[LogEntry](), 0.0
    relay, logs = LogRelay(taken.append, lambda: now), logs_of()
    for now in (0.0, 59.0, 60.0, 119.0):
        logs.add(user_logs.PRINTED, "", str(now))
        payload = logs.payload()
        assert payload is not None
        relay.hear(1, payload)
    left_out = "1 more printed lines of user functions were left out"
    assert [entry.text.partition(";")[0] for entry in taken] == ["0.0", left_out, "60.0"]
    assert taken[1].checkpoint_id == 7


def entries_of_text(text: str) -> list[LogEntry]:
    return [LogEntry("op", 0, 7, user_logs.PRINTED, "", text)]


def test_without_a_run_they_are_logged_and_printed_here(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO):
        log_here(LogEntry("op", 0, 7, logging.WARNING, "shop.orders", "100% sure"))
        log_here(LogEntry("op", 0, 7, 0, "", "a line"))
    assert caplog.record_tuples == [
        ("shop.orders", logging.WARNING, "[op, subtask 0, checkpoint 7] shop.orders: 100% sure")
    ]
    assert capsys.readouterr().out == "a line\n"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_what_standard_output_cannot_encode_is_escaped(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", out)
    log_here(LogEntry("op", 0, 7, 0, "", "é \udcff"))
    assert out.buffer.getvalue() == b"\xc3\xa9 \\udcff\n".decode().encode(encoding)  # type: ignore[attr-defined]


def test_a_line_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions print side by side."""
    written: list[str] = []
    out = io.StringIO()
    monkeypatch.setattr(out, "write", written.append)
    monkeypatch.setattr(sys, "stdout", out)
    log_here(LogEntry("op", 0, 7, 0, "", "a line"))
    assert [each for each in written if each] == ["a line\n"]


# --- on Spark ---------------------------------------------------------------------------------------------------------


class Loud(KeyedProcessFunction):
    def __init__(self, fail_at: int | None = None) -> None:
        self.fail_at = fail_at

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        logging.getLogger("shop.orders").info("order %d", value)
        if value == self.fail_at:
            raise ValueError("a bad order")
        yield value


def double(value: int) -> tuple[int]:
    logging.getLogger("shop.double").warning("doubles %d", value)
    print(f"prints {value}")
    return (value * 2,)


class Asks(MapFunction):
    """Prints, and waits for an answer; closes with a word.

    Args:
        answer: A pipe.
    """

    def __init__(self, answer: Path) -> None:
        self._answer = answer

    def map(self, value: int) -> tuple[bool]:
        print("is anybody there?")
        answer = os.open(self._answer, os.O_RDWR)
        answered, _, _ = select.select([answer], [], [], LIMIT)
        if answered and os.read(answer, 3) == b"no ":
            raise ValueError("nobody there")
        return (bool(answered),)

    def close(self) -> None:
        print("bye", end="")


@pytest.mark.spark
@pytest.mark.parametrize("word", ["yes", "no "])
def test_they_come_from_tasks_that_live_while_a_function_takes_long(
    word: str, spark_settings: SparkSettings, tmp_path: Path
) -> None:
    env, sink, said = environment(1), FolderSink(tmp_path / "out"), list[str]()
    os.mkfifo(tmp_path / "answer")
    numbers = env.from_collection([1], Types.LONG()).uid("numbers").rebalance()
    asks = numbers.map(Asks(tmp_path / "answer"), Types.TUPLE([Types.BOOLEAN()])).uid("asks")
    asks.sink_to(sink).uid("sink")

    def hear(entry: LogEntry) -> None:
        said.append(entry.text)
        if entry.text == "is anybody there?":
            with (tmp_path / "answer").open("w") as answer:
                answer.write(word)

    exchange = ExchangeOptions(ExchangeMode.PIPELINED)
    config = JobConfig("job", StorageLocation(str(tmp_path / "checkpoints")), spark_settings, exchange=exchange)
    ends = pytest.raises(UserFunctionError, match="nobody there") if word == "no " else nullcontext()
    with ends, JobAttempt(env.get_job_graph(), config, owner="test", on_log=hear) as attempt:
        list(attempt.run_epochs())
    assert sink.rows() == ([] if word == "no " else [(True,)])
    assert said == ["is anybody there?", "bye"]


@pytest.mark.spark
@pytest.mark.parametrize("fail_at", [None, 2], ids=["success", "failure"])
def test_they_come_from_the_workers_with_their_operator(
    fail_at: int | None, spark_settings: SparkSettings, tmp_path: Path
) -> None:
    env = environment(2)
    numbers = env.from_collection([1, 2], Types.LONG()).uid("numbers")
    loud = numbers.key_by(lambda v: v, Types.LONG()).process(Loud(fail_at), Types.LONG()).uid("loud")
    loud.map(double, Types.TUPLE([Types.LONG()])).uid("double").sink_to(FolderSink(tmp_path / "out")).uid("sink")
    taken: list[LogEntry] = []
    config = JobConfig("job", StorageLocation(str(tmp_path / "checkpoints")), spark_settings)
    with JobAttempt(env.get_job_graph(), config, owner="test", on_log=taken.append) as attempt:
        if fail_at is None:
            attempt.run_epoch()
        else:
            with pytest.raises(UserFunctionError, match="a bad order"):
                attempt.run_epoch()
    told = {(entry.operator, entry.level, entry.logger, entry.text) for entry in taken if entry.checkpoint_id == 1}
    assert ("loud", logging.INFO, "shop.orders", "order 2") in told
    if fail_at is None:
        assert {each for each in told if each[0] != "loud"} == {
            ("double", logging.WARNING, "shop.double", "doubles 1"),
            ("double", logging.WARNING, "shop.double", "doubles 2"),
            ("double", 0, "", "prints 1"),
            ("double", 0, "", "prints 2"),
        }
