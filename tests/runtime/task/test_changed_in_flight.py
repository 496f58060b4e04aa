"""Records in flight meet a program whose keys or records have changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common import Row
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.datastream.functions import KeySelector, RuntimeContext
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import RestoreError
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import EVENT, Calls, environment, events

UNALIGNED = {"checkpointing": CoordinatorConfig(unaligned=True)}
FEW, MANY = [("k0", 0, 1000)] * 10, [(f"k{i % 5}", i, i + 1000) for i in range(400)]
SWAPPED = Types.ROW_NAMED(["key", "value", "time"], [Types.STRING(), Types.LONG(), Types.LONG()])
AS_BYTES, PICKLED = (
    Types.ROW_NAMED(["key", "value", "time"], [Types.STRING(), Types.LONG(), kind])
    for kind in (Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.PICKLED_BYTE_ARRAY())
)
OUT = Types.TUPLE([Types.STRING(), Types.LONG()])


def made(row: Row, kind: TypeInformation) -> Row:
    fields = row.as_dict()
    return Row(**fields | ({"time": str(row.time).encode()} if kind in (AS_BYTES, PICKLED) else {}))


def program(key: Any, kind: TypeInformation = EVENT, parallelism: int = 2) -> JobGraph:
    """Two epochs, and two channels: one carries much more, after the other's barrier. It gives keys and times."""
    env = environment(parallelism)
    sources = [events(env, FEW, uid="few", per_epoch=5), events(env, MANY, uid="many", per_epoch=200, batch_size=20)]
    few, many = (
        each.set_parallelism(1).map(lambda row: made(row, kind), kind).set_parallelism(1).uid(f"from_{i}")
        for i, each in enumerate(sources)
    )
    rows = few.union(many).key_by(key, Types.STRING())
    keys = Calls(lambda row, context: [(context.get_current_key(), int(row.time))])
    return collect_graph(rows.process(keys, OUT).uid("keys"))


def run(graph: JobGraph, folder: Path, **options: Any) -> list[Any]:
    with HarnessAttempt(graph, folder, config=UNALIGNED, **options) as attempt:
        attempt.run_epoch()
        return collected(attempt.graph, attempt.collected)


def by_key(row: Any) -> str:
    return str(row.key)


def by_value(row: Any) -> str:
    return f"v{row.value % 3}"


def no_key_before(row: Any) -> str | None:
    """What is in flight has such values."""
    return None if 1000 < row.value < 1200 else row.key


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize(
    ("key", "kind", "why"),
    [
        (by_value, EVENT, "to which the program gives other keys"),
        ("key", SWAPPED, "with records of the type struct"),
        (no_key_before, EVENT, "to which the program gives no key: "),
    ],
)
def test_records_in_flight_are_refused_if_they_have_changed(
    tmp_path: Path, key: Any, kind: TypeInformation, why: str, parallelism: int
) -> None:
    """They would have had the old key; a field would have had the value of another one."""
    assert len(run(program("key"), tmp_path)) < 205
    with pytest.raises(RestoreError, match=f"in-flight data from operator 'from_.' to 'keys', {why}"):
        run(program(key, kind, parallelism), tmp_path)


class ByOpened(KeySelector):
    """Knows which field is the key only when it is open."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.field = "key"

    def get_key(self, value: Any) -> str:
        return str(value[self.field])


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("selector", [by_key, ByOpened()])
def test_a_selector_that_gives_the_same_keys_is_accepted(tmp_path: Path, selector: Any, parallelism: int) -> None:
    first = run(program("key"), tmp_path)
    second = run(program(selector, parallelism=parallelism), tmp_path)
    assert sorted(first + second) == sorted((key, time) for key, time, _ in FEW + MANY)


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize(("before", "now"), [(PICKLED, AS_BYTES), (AS_BYTES, PICKLED)])
def test_pickled_records_in_flight_are_not_read_as_bytes(
    tmp_path: Path, before: TypeInformation, now: TypeInformation, parallelism: int
) -> None:
    """Both have one type in Arrow: a function would have had the pickle, or bytes of a user would have been run."""
    run(program("key", before), tmp_path)
    with pytest.raises(RestoreError, match=r"in-flight data .* to 'keys', with records of .*, now .*First run the old"):
        run(program("key", now, parallelism), tmp_path)


def partitioned(how: str, parallelism: int = 2) -> JobGraph:
    env = environment(parallelism)
    sources = [events(env, FEW, uid="few", per_epoch=5), events(env, MANY, uid="many", per_epoch=200, batch_size=20)]
    few, many = (
        each.set_parallelism(1).map(lambda row: row, EVENT).set_parallelism(1).uid(f"from_{i}")
        for i, each in enumerate(sources)
    )
    rows: Any = few.union(many)
    match how:
        case "key_by":
            rows = rows.key_by("key")
        case "custom":
            rows = rows.partition_custom(lambda time, subtasks: time % subtasks, lambda row: row.time)
        case _:
            rows = getattr(rows, how)()
    return collect_graph(rows.map(lambda row: (row.key, row.time), OUT).uid("keys"))


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("now", ["broadcast", "global_", "custom", "key_by"])
def test_records_in_flight_do_not_get_to_other_subtasks_than_those_of_the_program(
    tmp_path: Path, now: str, parallelism: int
) -> None:
    """A broadcast stream would have had them in one subtask only."""
    run(partitioned("rebalance"), tmp_path)
    why = "without the keys" if now == "key_by" else f"by rebalance, now by {now.rstrip('_')}"
    with pytest.raises(RestoreError, match=f"in-flight data from operator 'from_.' to 'keys', .*sent {why}"):
        run(partitioned(now, parallelism), tmp_path)


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize(("before", "now"), [("key_by", "rebalance"), ("custom", "custom"), ("global_", "global_")])
def test_records_in_flight_are_there_where_it_makes_no_difference(
    tmp_path: Path, before: str, now: str, parallelism: int
) -> None:
    first = run(partitioned(before), tmp_path)
    second = run(partitioned(now, parallelism), tmp_path)
    assert sorted(first + second) == sorted((key, time) for key, time, _ in FEW + MANY)
