"""A roll-back finds the state of one version before, is refused with what to do, and leaves the fork as it is."""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.checkpoint.forks.fork import fork_job, list_forks
from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.offline import release_leadership
from dagster_flinkpy.common import Duration, Row, Time, Types, WatermarkStrategy
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import (
    KeyedProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import CheckpointError, ConfigurationError
from dagster_flinkpy.orchestration import upgrade
from dagster_flinkpy.orchestration.program import program_attempt
from dagster_flinkpy.orchestration.upgrade import roll_back, switch_program
from tests.checkpoint.interruptions import Died
from tests.orchestration import recomputed
from tests.orchestration.recomputed import (
    RECORDS,
    ROW,
    SPARK,
    Numbers,
    Program,
    Totals,
    expected,
    files,
    job_of,
    latest,
    run,
    table,
)
from tests.orchestration.recomputed import program as with_an_edge
from tests.runtime.master.test_partitions import Letters, day
from tests.runtime.programs import environment, events

pytestmark = pytest.mark.usefixtures("in_process")


def program(folder: Path, function: Totals, *sources: str, per_epoch: int = 6) -> Program:
    """Returns a program that adds up the records of some sources, each in a table."""

    def build() -> StreamExecutionEnvironment:
        env = environment(1)
        for uid in sources or ("events",):
            read = events(env, RECORDS, uid=uid, per_epoch=per_epoch).key_by("key")
            totals = read.process(Numbers(), ROW).uid(f"{uid}-numbers").key_by("key")
            totals = totals.process(copy(function), ROW).uid(f"{uid}-totals")
            totals.sink_to(ParquetSink(str(folder / uid))).uid(f"{uid}-table")
        return env

    return build


def test_a_roll_back_that_is_refused_leaves_the_fork_as_it_is(tmp_path: Path) -> None:
    old, job = program(tmp_path, Totals()), job_of(tmp_path)
    new = program(tmp_path, Totals(), per_epoch=3)
    run(old, tmp_path, 1)
    switch_program(new, job, spark=SPARK)
    run(new, tmp_path, 1)
    kept = latest(job.parent.child("job_before"))
    for _ in range(2):
        with pytest.raises(CheckpointError, match="has not read the sources 'events' exactly as far"):
            roll_back(old, job, spark=SPARK)
        assert latest(job.parent.child("job_before")) == kept
        assert [each.job_id for each in list_forks(job)] == ["job_before"]
    run(new, tmp_path, 1)
    roll_back(old, job, spark=SPARK)
    run(old, tmp_path)
    assert table(tmp_path, "events") == expected()


@pytest.mark.system
@pytest.mark.parametrize("step", ["back", "switch"])
def test_what_a_roll_back_that_died_has_left_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    old, new, job = program(tmp_path, Totals()), program(tmp_path, Totals(1)), job_of(tmp_path)
    run(old, tmp_path, 1)
    switch_program(new, job, spark=SPARK)
    run(new, tmp_path, 1)

    def killed(*args: Any) -> None:
        raise Died

    with monkeypatch.context() as patch, suppress(Died):  # right after it has taken a savepoint of what it has read
        patch.setattr(upgrade.upgrade, "_check_waited", killed)
        patch.setattr(upgrade.upgrade, "delete_forks", lambda rows, *forks: None)
        patch.setattr("dagster_flinkpy.checkpoint.savepoints.dispose.dispose_savepoint", lambda *args, **more: None)
        roll_back(old, job, spark=SPARK)
    left = job.parent.child("job_before_back")
    assert any(folder.startswith("savepoint-") for folder in left.open().list_folders())
    for each in (job, left):
        release_leadership(each, owner="test", now_ms=current_millis())
    if step == "back":
        roll_back(old, job, spark=SPARK)
    else:
        switch_program(new, job, spark=SPARK)
    assert sorted(job.parent.open().list_folders()) == ["job/", "job_before/"]
    run(old if step == "back" else new, tmp_path)
    assert table(tmp_path, "events") == expected()


def test_a_job_with_the_name_of_what_a_roll_back_reads_on_is_not_deleted(tmp_path: Path) -> None:
    old, job = program(tmp_path, Totals()), job_of(tmp_path)
    other = job.parent.child("job_before_back")
    run(old, tmp_path, 1)
    run(program(tmp_path / "other", Totals()), tmp_path, 1, job=other)
    before = latest(other)
    fork_job(job, "job_before")
    for step in (roll_back, switch_program):
        run(old, tmp_path, 1)
        with pytest.raises(ConfigurationError, match="'job_before_back' is no fork of job 'job_before'"):
            step(old, job, spark=SPARK)
    switch_program(old, job, spark=SPARK, keep="kept")
    roll_back(old, job, spark=SPARK, kept="kept")
    assert latest(other) == before


def test_a_version_without_a_source_is_only_taken_back_before_it_has_read(tmp_path: Path) -> None:
    both, job = program(tmp_path, Totals(), "one", "other"), job_of(tmp_path)
    one = program(tmp_path, Totals(), "one")
    keep: dict[str, Any] = {"allow_non_restored_state": True}
    for read in (0, 1):
        run(both, tmp_path, 1)
        fork_job(job, f"kept-{read}")
        run(one, tmp_path, 0, **keep)
        with program_attempt(one, job, spark=SPARK, owner="test", on_progress=print, **keep) as attempt:
            attempt.commit_restored()
        run(one, tmp_path, read)
        if read:
            before = latest(job)
            with pytest.raises(CheckpointError, match="has gone on without the sources 'other' of the old program"):
                roll_back(both, job, spark=SPARK, kept=f"kept-{read}")
            assert latest(job) == before
        else:
            roll_back(both, job, spark=SPARK, kept=f"kept-{read}")
    assert table(tmp_path, "other") == expected(epochs=2)
    assert table(tmp_path, "one") == expected(epochs=3)


class AtTheEnd(KeyedProcessFunction):
    """Gives each key a row when event time ends."""

    def process_element(self, value: Any, context: Any) -> None:
        context.timer_service().register_event_time_timer(1 << 60)

    def on_timer(self, timestamp: int, context: Any) -> Any:
        yield (context.get_current_key(),)


def test_what_a_drained_job_has_fired_is_not_fired_again(tmp_path: Path) -> None:
    def build() -> StreamExecutionEnvironment:
        env = environment(1)
        ends = events(env, RECORDS, per_epoch=6).key_by("key").process(AtTheEnd(), Types.TUPLE([Types.STRING()]))
        ends.uid("end").sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
        return env

    job = job_of(tmp_path)
    run(build, tmp_path, 1)
    switch_program(build, job, spark=SPARK)
    with program_attempt(build, job, spark=SPARK, owner="test", on_progress=lambda line: None) as attempt:
        attempt.stop_with_savepoint(drain=True)
    assert sum(pq.read_table(file).num_rows for file in files(tmp_path)) == 3
    with pytest.raises(CheckpointError, match="drained"):
        roll_back(build, job, spark=SPARK)


class Later(KeyedProcessFunction):
    """Gives each record a row after a day."""

    def process_element(self, value: Any, context: Any) -> None:
        timers = context.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 86_400_000)

    def on_timer(self, timestamp: int, context: Any) -> Any:
        yield (context.get_current_key(),)


def test_timers_of_processing_time_fire_in_one_version_only(tmp_path: Path) -> None:
    def build() -> StreamExecutionEnvironment:
        env = environment(1)
        later = events(env, RECORDS, per_epoch=6).key_by("key").process(Later(), Types.TUPLE([Types.STRING()]))
        later.uid("later").sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
        return env

    job = job_of(tmp_path)
    run(build, tmp_path, 1)
    switch_program(build, job, spark=SPARK)
    roll_back(build, job, spark=SPARK)  # nothing has run
    switch_program(build, job, spark=SPARK)
    run(build, tmp_path, 1)
    with pytest.raises(CheckpointError, match="'later' of the old program have timers of processing time"):
        roll_back(build, job, spark=SPARK)


class Counts(ProcessWindowFunction):
    """Counts the records of a window."""

    def process(self, key: str, context: Any, elements: Any) -> Any:
        yield context.window().start, len([*elements])


def windows(folder: Path, out_of_order: int = 0) -> Program:
    """Returns a program that counts the records of two folders, of which one may be idle, in windows of 100 ms."""

    def build() -> StreamExecutionEnvironment:
        env, strategy = environment(1), WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(out_of_order))
        strategy = strategy.with_timestamp_assigner("time").with_idleness(Duration.of_seconds(1))
        one, other = (
            env.from_source(ParquetSource(str(folder / uid)), strategy, uid).uid(uid) for uid in ("fast", "slow")
        )
        read = one.union(other).key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(100)))
        counts = read.process(Counts(), Types.TUPLE([Types.LONG(), Types.LONG()])).uid("counts")
        counts.sink_to(ParquetSink(str(folder / "table"))).uid("table")
        return env

    return build


@pytest.mark.system
@pytest.mark.parametrize(
    ("old_delay", "new_delay", "slow", "refused"),
    [(0, 0, 50, False), (60, 0, 50, False), (70, 0, 50, True), (0, 70, 50, False), (0, 70, 110, True)],
)
def test_windows_fire_in_one_version_only(
    tmp_path: Path, old_delay: int, new_delay: int, slow: int, refused: bool
) -> None:
    """Sources may be as far as before, and event time is not: here an epoch without input lets it go on."""

    def put(uid: str, *times: int) -> None:
        (tmp_path / uid).mkdir(exist_ok=True)
        rows = pa.table({"key": ["a"] * len(times), "time": pa.array(times, pa.int64())})
        pq.write_table(rows, tmp_path / uid / f"{times[0]}.parquet")

    def counted() -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for file in files(tmp_path) for row in pq.read_table(file).to_pylist())

    job, old, new = job_of(tmp_path), windows(tmp_path, old_delay), windows(tmp_path, new_delay)
    put("fast", 10)
    put("slow", 10)
    run(old, tmp_path, 1)
    switch_program(new, job, spark=SPARK)
    put("fast", 150)
    put("slow", slow)
    run(new, tmp_path, 1)
    assert counted() == []
    put("fast", 160)
    run(new, tmp_path, 1)  # nobody waits for the slow source any more
    assert counted() == ([] if new_delay else [(0, 3)])
    if refused:
        with pytest.raises(CheckpointError, match="at another event time than job 'job' in 'counts'"):
            roll_back(old, job, spark=SPARK)
        return
    roll_back(old, job, spark=SPARK)
    put("fast", 300)
    run(old, tmp_path, 1)
    assert counted() == [(0, 3), (100, 2)]


@pytest.mark.short("6-3")
@pytest.mark.parametrize(("before", "since"), [(6, 3), (3, 6)])
def test_records_in_flight_are_neither_lost_nor_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, since: int
) -> None:
    """With unaligned barriers, sources may be as far as before, and rows are not."""

    def of(per_epoch: int) -> Program:
        def build() -> StreamExecutionEnvironment:
            monkeypatch.setattr(recomputed, "PER_EPOCH", per_epoch)
            return with_an_edge(tmp_path, unaligned=True)()

        return build

    old, new, job = of(before), of(since), job_of(tmp_path)
    run(old, tmp_path, 1)
    switch_program(new, job, spark=SPARK)
    run(new, tmp_path, 2)
    with pytest.raises(CheckpointError, match="of job 'job' has records in flight"):
        roll_back(old, job, spark=SPARK)
    run(new, tmp_path)
    roll_back(old, job, spark=SPARK)
    monkeypatch.undo()
    assert table(tmp_path) == expected()


def test_what_partitions_have_read_since_a_switch_is_in_the_next_fork(tmp_path: Path) -> None:
    def of() -> StreamExecutionEnvironment:
        env = environment(1)
        letters = env.from_source(Letters(), WatermarkStrategy.no_watermarks(), "letters").uid("letters")
        letters.sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
        return env

    def run_day(ordinal: int) -> None:
        with program_attempt(of, job_of(tmp_path), spark=SPARK, owner="test", on_progress=print) as attempt:
            attempt.run_epoch(partition=day(ordinal))

    job, fork = job_of(tmp_path), job_of(tmp_path).parent.child("job_before")
    run_day(0)
    switch_program(of, job, spark=SPARK)
    run_day(1)
    number = latest(job).checkpoint_id
    switch_program(of, job, spark=SPARK)
    assert latest(fork).ancestors == (("job", number),)
    roll_back(of, job, spark=SPARK)


class CountLetters(KeyedProcessFunction):
    """Counts letters in a state of some name."""

    def __init__(self, name: str) -> None:
        self._state = ValueStateDescriptor(name, Types.LONG())

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(self._state)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield Row(word=value.word, number=count)


def test_the_next_partition_starts_from_what_was_rolled_back(tmp_path: Path) -> None:
    numbered = Types.ROW_NAMED(["word", "number"], [Types.STRING(), Types.LONG()])

    def version(name: str) -> StreamExecutionEnvironment:
        env = environment(1)
        letters = env.from_source(Letters(), WatermarkStrategy.no_watermarks(), "letters").uid("letters")
        counts = letters.key_by("word").process(CountLetters(name), numbered).uid("counts")
        counts.sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
        return env

    old, new, job = version("count"), version("number"), job_of(tmp_path)
    new.migrate_state("counts", 0, lambda states: {ValueStateDescriptor("number", Types.LONG()): states["count"]})

    def run_day(ordinal: int) -> None:
        found = read_head(job.open())
        before = [end.checkpoint_id for end in found[0].partitions if end.ordinal == ordinal - 1] if found else []
        from_end = {"restore_from": f"chk-{before[0]}"} if before else {}
        with program_attempt(old, job, spark=SPARK, owner="test", on_progress=print, **from_end) as attempt:
            attempt.run_epoch(partition=day(ordinal))

    run_day(0)
    run_day(1)
    switch_program(new, job, spark=SPARK)
    roll_back(old, job, spark=SPARK)
    run_day(2)
    run_day(3)
    written = (tmp_path / "table" / f"partition={day(3).key}").glob("*.parquet")
    numbers = [n for file in written for n in pq.read_table(file, partitioning=None)["number"].to_pylist()]
    assert sorted(numbers) == [4, 5, 6, 7]


@pytest.mark.system
@pytest.mark.parametrize("recompute", [[], ["totals"]])
def test_a_switch_that_is_repeated_keeps_the_state_of_the_version_before(tmp_path: Path, recompute: list[str]) -> None:
    old, new = with_an_edge(tmp_path), with_an_edge(tmp_path, Totals(7))
    job, fork = job_of(tmp_path), job_of(tmp_path).parent.child("job_before")
    run(old, tmp_path, 2)
    switch_program(new, job, spark=SPARK, recompute=recompute)
    kept = latest(fork)
    for _ in range(2):
        switch_program(new, job, spark=SPARK, recompute=recompute)
        assert latest(fork) == kept
    roll_back(old, job, spark=SPARK)
    run(old, tmp_path)
    assert table(tmp_path) == expected()


def test_a_switch_is_refused_if_nobody_knows_of_which_version_the_fork_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, fork = job_of(tmp_path), job_of(tmp_path).parent.child("job_before")
    run(program(tmp_path, Totals()), tmp_path, 1)
    with monkeypatch.context() as patch:
        python = SimpleNamespace(version_info=SimpleNamespace(major=3, minor=1))
        patch.setattr("dagster_flinkpy.checkpoint.operator_program.sys", python)
        switch_program(program(tmp_path, Totals(7)), job, spark=SPARK)
    before, kept = latest(job), latest(fork)
    with pytest.raises(
        ConfigurationError, match=r"it is unknown whether .*'events-totals'.* changed since checkpoint 2"
    ):
        switch_program(program(tmp_path, Totals(9)), job, spark=SPARK)
    assert (latest(job), latest(fork)) == (before, kept)
    number = switch_program(program(tmp_path, Totals(9)), job, spark=SPARK, keep="job_seven")
    assert latest(job.parent.child("job_seven")).ancestors == (("job", number - 1),)
