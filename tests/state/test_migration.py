"""The state of an operator is changed by a function of the program when a job is restored."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.evolution import evolution_since
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import StoredCheckpoint, open_checkpoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import Types
from dagster_flinkpy.common.time import Time
from dagster_flinkpy.datastream import KeyedProcessFunction
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from dagster_flinkpy.errors import ConfigurationError, JobGraphError, RestoreError, StateSchemaError, UserFunctionError
from dagster_flinkpy.runtime.restore_trial import OperatorTrial, try_operators
from dagster_flinkpy.state import migration
from dagster_flinkpy.state_processor import read_savepoint
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from dagster_flinkpy.testing import OperatorTestHarness
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import EVENT, environment, events

TOTAL = ValueStateDescriptor("total", Types.LONG())
EUROS = ValueStateDescriptor("euros", Types.DOUBLE())
COUNT = ValueStateDescriptor("count", Types.LONG())
BOTH = Types.ROW_NAMED(["count", "euros"], [Types.LONG(), Types.DOUBLE()])
SUMMARY = ValueStateDescriptor("summary", BOTH)
OUT = Types.TUPLE([Types.STRING(), Types.STRING()])


class Old(KeyedProcessFunction):
    """Keeps a total in cents and a number of records."""

    def open(self, context: Any) -> None:
        self.total, self.count = context.get_state(TOTAL), context.get_state(COUNT)

    def process_element(self, value: Any, context: Any) -> Any:
        self.total.update((self.total.value() or 0) + value.value)
        self.count.update((self.count.value() or 0) + 1)
        yield value.key, f"{self.count.value()} {self.total.value()}"


class New(KeyedProcessFunction):
    """Keeps both in one row, in euros."""

    def open(self, context: Any) -> None:
        self.summary = context.get_state(SUMMARY)

    def process_element(self, value: Any, context: Any) -> Any:
        count, euros = self.summary.value() or (0, 0.0)
        self.summary.update((count + 1, euros + value.value / 100))
        yield value.key, f"{count + 1} {euros + value.value / 100:.2f}"


def in_euros(states: dict[str, pa.Table]) -> dict[Any, pa.Table]:
    """Renames a state and changes its type."""
    total = states["total"]
    euros = pc.divide(total.column("value").cast(pa.float64()), 100)
    return {EUROS: pa.table({"key": total.column("key"), "value": euros}), "count": states["count"]}


def in_one_row(states: dict[str, pa.Table]) -> dict[Any, pa.Table]:
    """Joins two states."""
    rows = (
        states["count"]
        .rename_columns(["key", "count"])
        .join(states["euros"].rename_columns(["key", "euros"]), keys="key")
    )
    values = pa.StructArray.from_arrays(
        [rows.column("count").combine_chunks(), rows.column("euros").combine_chunks()], fields=list(BOTH.arrow_type)
    )
    return {SUMMARY: pa.table({"key": rows.column("key"), "value": values})}


def program(function: Any, records: list[Any], migrations: dict[int, Any], parallelism: int = 2) -> JobGraph:
    env = environment(parallelism)
    stream = events(env, records, per_epoch=len(records) // 2).key_by("key").process(function, OUT).uid("sums")
    for version, migrate in migrations.items():
        env.migrate_state("sums", version, migrate)
    return collect_graph(stream)


def run(graph: JobGraph, folder: Path, **options: Any) -> list[Any]:
    with HarnessAttempt(graph, folder, **options) as attempt:
        attempt.run_epoch()
        return [tuple(row) for row in collected(attempt.graph, attempt.collected)]


def version_of(folder: Path) -> int:
    latest = CompletedCheckpointStore(LocalObjectStore(folder / "job")).latest()
    assert latest is not None
    operator = latest.operator("sums")
    assert operator is not None
    return operator.state_version


RECORDS = [(f"k{i % 7}", i, 150) for i in range(28)]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_job_goes_on_from_state_that_was_renamed_retyped_and_joined(tmp_path: Path, parallelism: int) -> None:
    assert ("k0", "2 300") in run(program(Old(), RECORDS, {}), tmp_path)
    told: list[str] = []
    new = program(New(), RECORDS, {0: in_euros, 1: in_one_row})
    assert ("k0", "4 6.00") in run(new, tmp_path, parallelism=parallelism, on_progress=told.append)
    assert "migrating the state of operator 'sums' from version 0: 14 rows" in told
    stored = read_savepoint(str(tmp_path / "job")).states
    names = {state.name for state in stored if state.uid == "sums"}
    assert "summary" in names and not names & {"total", "count", "euros"}
    assert version_of(tmp_path) == 2
    told.clear()
    with HarnessAttempt(new, tmp_path, on_progress=told.append):
        assert not any("migrating" in line for line in told)
    with pytest.raises(RestoreError, match="has version 2, but the program only knows how to get to version 1"):
        run(program(New(), RECORDS, {0: in_euros}), tmp_path)
    with HarnessAttempt(program(New(), RECORDS, {}), tmp_path) as attempt:
        attempt.commit_restored()
    assert version_of(tmp_path) == 2, "a program without migrations takes it as it is"


def test_a_version_without_a_migration_is_named(tmp_path: Path) -> None:
    run(program(Old(), RECORDS, {}), tmp_path)
    with pytest.raises(RestoreError, match=r"has version 0, and the program has no migration from version 0"):
        run(program(New(), RECORDS, {1: in_one_row}), tmp_path)


def test_the_plan_of_a_restore_knows_the_new_types_and_writes_nothing(tmp_path: Path) -> None:
    run(program(Old(), RECORDS, {}), tmp_path)
    before = sorted(tmp_path.rglob("*"))
    stored = open_checkpoint(StorageLocation(str(tmp_path / "job")))
    new = program(New(), RECORDS, {0: in_euros, 1: in_one_row})
    assert try_operators(new, stored)["sums"] == OperatorTrial()
    assert "its state is migrated from version 0 to 2" in str(evolution_since(stored.metadata, new).changes[0])
    unused = try_operators(program(New(), RECORDS, {}), stored)["sums"].changes
    assert "state 'total' is not used: its 7 rows stay" in unused
    wrong = program(New(), RECORDS, {0: lambda states: {SUMMARY: states["total"]}})
    problem = try_operators_error(wrong, stored)
    assert "'value' of type int64, but it is declared as struct" in problem
    assert sorted(tmp_path.rglob("*")) == before


def try_operators_error(graph: JobGraph, stored: StoredCheckpoint) -> str:
    with pytest.raises(StateSchemaError) as error:
        try_operators(graph, stored)
    return str(error.value)


def test_what_a_program_declares_is_checked() -> None:
    env = environment(1)
    events(env, RECORDS).key_by("key").process(Old(), OUT).uid("sums").print()
    with pytest.raises(ConfigurationError, match="they count from 0"):
        env.migrate_state("sums", -1, in_euros)
    env.migrate_state("sums", 0, in_euros)
    with pytest.raises(ConfigurationError, match="has a migration from version 0"):
        env.migrate_state("sums", 0, in_euros)
    env.migrate_state("totals", 0, in_euros)
    with pytest.raises(JobGraphError, match=r"names operator 'totals'.*'sums'"):
        env.get_job_graph()


def harness(function: Any, **options: Any) -> OperatorTestHarness:
    return OperatorTestHarness(function, key_by="key", input_type=EVENT, output_type=OUT, **options)


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(-99, 99)), max_size=30), st.integers(1, 4))
@settings(max_examples=examples(30), deadline=None)
def test_the_harness_migrates_every_key_whatever_the_batches(records: list[tuple[str, int]], batch: int) -> None:
    with harness(Old(), parallelism=2) as old, harness(New(), parallelism=3) as new:
        for key, value in records:
            old.process_element((key, 0, value))
        snapshot = old.snapshot()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migration, "_BATCH_ROWS", batch)
            new.restore(snapshot, migrate_state=lambda states: in_one_row(_joined(in_euros(states))))
        counts, totals = Counter(key for key, _ in records), Counter[str]()
        for key, value in records:
            totals[key] += value
        for key, count in counts.items():
            summary = new.state("summary", key)
            assert (summary.count, round(100 * summary.euros)) == (count, totals[key])


def _joined(states: dict[Any, pa.Table]) -> dict[str, pa.Table]:
    return {declared if isinstance(declared, str) else declared.name: table for declared, table in states.items()}


def refused(migrate: Any) -> str:
    with harness(Old()) as old, harness(New()) as new:
        old.process_element(("a", 0, 5))
        old.process_element(("b", 0, 5))
        with pytest.raises((StateSchemaError, UserFunctionError)) as error:
            new.restore(old.snapshot(), migrate_state=migrate)
        return str(error.value)


def test_what_does_not_fit_is_refused_with_the_reason() -> None:
    def with_column(name: str, column: Any) -> Any:
        return lambda states: {
            "total": states["total"].set_column(states["total"].column_names.index(name), name, column)
        }

    assert "Keys cannot change their type: the key decides which subtask" in refused(
        with_column("key", pa.array([1, 2]))
    )
    assert "'value' of type double, but it is declared as int64" in refused(with_column("value", pa.array([1.0, 2.0])))
    assert "more than once" in refused(with_column("key", pa.array(["a", "a"])))
    assert "with a key that is null" in refused(with_column("key", pa.array(["a", None])))
    assert "must return a dict of Arrow tables" in refused(lambda states: None)
    assert "returns state 'other', which is new" in refused(lambda states: {"other": states["total"]})
    assert "without its column 'value'" in refused(lambda states: {"total": states["total"].select(["key"])})
    assert "has raised KeyError: 'totals'" in refused(lambda states: states["totals"])


def test_each_value_says_when_it_expires() -> None:
    """Otherwise the job fails when it reads the key, which may be much later."""

    def expiring(descriptor: Any, value: Any, expires: Any) -> Any:
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        columns = {"key": pa.array(["a", "b"]), "value": value, "expires_at": expires}
        return lambda states: {descriptor: pa.table(columns)}

    total = ValueStateDescriptor("total", Types.LONG())
    assert "with a null in 'expires_at'" in refused(expiring(total, pa.array([1, 2]), pa.array([None, 9])))
    for times, reason in (
        ([[9, 9], [9, 9]], "that have not one time for each element"),
        ([None, [9]], "that have not one time for each element"),
        ([[9, 9], [None]], "with a null in 'expires_at'"),
    ):
        lists = pa.array([[1, 2], [3]], Types.LIST(Types.LONG()).arrow_type)
        items = ListStateDescriptor("items", Types.LONG())
        assert reason in refused(expiring(items, lists, pa.array(times, pa.list_(pa.int64()))))


def test_keys_of_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "_BATCH_ROWS", 1)

    def renamed(states: dict[str, pa.Table]) -> dict[Any, pa.Table]:
        total = states["total"]
        return {"total": total.set_column(0, "key", pa.array(["other"] * len(total), pa.string()))}

    assert "with keys that it was not given" in refused(renamed)


class Kinds(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        lasting = ValueStateDescriptor("last", Types.LONG())
        lasting.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.last = context.get_state(lasting)
        self.items = context.get_list_state(ListStateDescriptor("items", Types.LONG()))
        self.times = context.get_map_state(MapStateDescriptor("times", Types.STRING(), Types.LONG()))

    def process_element(self, value: Any, context: Any) -> Any:
        self.last.update(value.value)
        self.items.add(value.value)
        self.times.put(f"at {value.value}", value.value)
        context.timer_service().register_event_time_timer(100)

    def on_timer(self, timestamp: int, context: Any) -> Any:
        yield context.get_current_key(), f"{self.last.value()} {list(self.items.get())} {dict(self.times.items())}"


def test_states_of_all_kinds_pass_through_and_timers_stay() -> None:
    with harness(Kinds()) as old, harness(Kinds()) as new:
        for value in (1, 2):
            old.process_element(("a", 0, value))
        new.restore(old.snapshot(), migrate_state=lambda states: states)
        new.process_watermark(100)
        assert new.output == [("a", "2 [1, 2] {'at 1': 1, 'at 2': 2}")]
