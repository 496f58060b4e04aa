from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import AggregateFunction, KeyedProcessFunction
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from dagster_flinkpy.errors import (
    ConfigurationError,
    CorruptStateError,
    ParallelismError,
    RestoreError,
    StateSchemaError,
    TypeMismatchError,
)
from dagster_flinkpy.state_processor import read_savepoint, write_savepoint
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import COUNTED, CountPerKey, environment, events
from tests.state_processor.programs import (
    LARGEST,
    PAIR,
    PART,
    RECENT,
    RULES,
    SEEN,
    SHARED,
    TOTAL,
    VALUES,
    AllKinds,
    all_kinds,
)

COUNT, SUM = ValueStateDescriptor("count", Types.LONG()), ValueStateDescriptor("sum", Types.LONG())
FRAME = pa.table({"user": ["a", "b", "c"], "n": [1, 2, 3], "total": [10, 20, 30]})


def counts(parallelism: int = 2, max_parallelism: int | None = 16, uid: str = "counts") -> Any:
    stream = events(environment(parallelism, max_parallelism), [("a", 1, 5), ("c", 2, 7), ("z", 3, 9)])
    return collect_graph(stream.key_by("key").process(CountPerKey(), COUNTED).uid(uid))


def run(graph: Any, folder: Path, savepoint: str, **options: Any) -> list[Any]:
    with HarnessAttempt(graph, folder, restore_from=savepoint, **options) as attempt:
        attempt.run_epoch()
        return sorted(collected(attempt.graph, attempt.collected))


def bootstrapped(folder: Path, data: Any = FRAME, **options: Any) -> str:
    writer = write_savepoint(**{"max_parallelism": 16, **options})
    writer.with_keyed_state("counts", COUNT, data, key="user", value="n")
    writer.with_keyed_state("counts", SUM, data, key="user", value="total")
    return writer.write(str(folder))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_goes_on_from_a_bootstrapped_state(tmp_path: Path, parallelism: int) -> None:
    savepoint = bootstrapped(tmp_path / "savepoint", parallelism=parallelism)
    assert run(counts(), tmp_path / "job", savepoint) == [("a", 2, 15), ("c", 4, 37), ("z", 1, 9)]


@pytest.mark.parametrize(("state_version", "total"), [(0, 3), (1, 12)])
def test_a_job_does_not_migrate_state_that_is_of_its_version(tmp_path: Path, state_version: int, total: int) -> None:
    """The program has divided by ten what it kept once."""

    def tenth(states: dict[str, pa.Table]) -> dict[str, pa.Table]:
        rows = states["sum"]
        value = pc.divide(rows.column("value"), 10)
        return {**states, "sum": rows.set_column(rows.column_names.index("value"), "value", value)}

    savepoint = bootstrapped(tmp_path / "savepoint", state_version=state_version)
    stream = events(environment(2).migrate_state("counts", 0, tenth), [("a", 1, 2)])
    graph = collect_graph(stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts"))
    assert run(graph, tmp_path / "job", savepoint) == [("a", 2, total)]


@pytest.mark.parametrize("state_version", [-1, 1.0, True])
def test_a_version_that_cannot_be(state_version: Any) -> None:
    with pytest.raises(ConfigurationError, match="versions count from 0"):
        write_savepoint(state_version=state_version)


@pytest.mark.parametrize(
    "make", [pa.Table.to_pandas, pl.from_arrow, pa.Table.to_pydict, lambda t: pa.concat_tables([t[:1], t[1:]])]
)
def test_data_of_any_kind(tmp_path: Path, make: Any) -> None:
    bootstrapped(tmp_path / "savepoint", make(FRAME))
    state = read_savepoint(str(tmp_path / "savepoint")).state("counts", "sum")
    assert {row["key"]: row["value"] for row in state.to_pylist()} == {"a": 10, "b": 20, "c": 30}


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        raise NotImplementedError


MEAN = AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()]))


class Tell(AllKinds):
    """Emits the content of its state."""

    def initialize_state(self, context: Any) -> None:
        super().initialize_state(context)
        self._restored = sorted(self._part.get()), sorted(self._shared.get()), dict(self._rules.items())

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        self._mean = runtime_context.get_aggregating_state(MEAN)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        yield {
            "total": self._total.value() and tuple(self._total.value()),
            "values": list(self._values.get()),
            "seen": dict(self._seen.items()),
            "largest": self._largest.get(),
            "recent": self._recent.value(),
            "mean": self._mean.get(),
            "operator": self._restored,
        }


def test_state_of_every_kind(tmp_path: Path) -> None:
    rows = pa.table({"k": ["b", "a", "a", "a"], "m": [1, 2, 1, 3], "v": [7, 3, None, 5]})
    one = pd.DataFrame({"k": ["a"], "c": np.array([2], dtype=np.int32), "s": [8]})
    savepoint = (
        write_savepoint(max_parallelism=16, parallelism=2)
        .with_keyed_state("kinds", VALUES, rows.filter(pa.compute.is_valid(rows["v"])), key="k", value="v")
        .with_keyed_state("kinds", SEEN, rows, key="k", map_key="m", value="v")
        .with_keyed_state("kinds", TOTAL, one, key="k", value=["c", "s"])
        .with_keyed_state("kinds", MEAN, one, key="k", value=("s", "c"))
        .with_keyed_state("kinds", LARGEST, one, key="k", value="s")
        .with_keyed_state("kinds", RECENT, {"k": ["a", "b"], "v": [1, None]}, key="k", value="v")
        .with_list_state("kinds", PART, range(5))
        .with_list_state("kinds", SHARED, pa.array(["x", "y"]), union=True)
        .with_broadcast_state("kinds", RULES, {"limit": 3})
        .write(str(tmp_path / "savepoint"))
    )
    records = [("a", 1, 1), ("b", 1, 1)]
    stream = events(environment(1), records).key_by("key").process(Tell(), Types.PICKLED_BYTE_ARRAY()).uid("kinds")
    with HarnessAttempt(collect_graph(stream), tmp_path / "job", restore_from=savepoint) as attempt:
        attempt.run_epoch()
        a, b = collected(attempt.graph, attempt.collected)
    operator = [0, 1, 2, 3, 4], ["x", "y"], {"limit": 3}
    assert a == {
        "total": (2, 8),
        "values": [3, 5],
        "seen": {2: 3, 1: None, 3: 5},
        "largest": 8,
        "recent": 1,
        "mean": 4.0,
        "operator": operator,
    }
    assert b == {
        "total": None,
        "values": [7],
        "seen": {1: 7},
        "largest": None,
        "recent": None,
        "mean": None,
        "operator": operator,
    }


def test_list_state_with_a_time_to_live_has_a_time_per_element(tmp_path: Path) -> None:
    descriptor = ListStateDescriptor("recent", Types.LONG())
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(timedelta(hours=1)).build())
    data = {"k": [1, 1, 2], "v": [3, 4, 5]}
    target = str(tmp_path / "savepoint")
    write_savepoint().with_keyed_state("op", descriptor, data, key="k", value="v").write(target)
    rows = read_savepoint(target).state("op", "recent").to_pylist()
    assert {row["key"]: (row["value"], len(set(row["expires_at"]))) for row in rows} == {1: ([3, 4], 1), 2: ([5], 1)}
    assert {len(row["value"]) - len(row["expires_at"]) for row in rows} == {0}


def test_keys_of_several_columns_are_tuples_or_rows(tmp_path: Path) -> None:
    data = {"x": [1, 1, 2], "y": ["p", "q", "p"], "v": [1, 2, 3]}
    row_type = Types.ROW_NAMED(["x", "y"], [Types.LONG(), Types.STRING()])
    target = str(tmp_path / "savepoint")
    (
        write_savepoint()
        .with_keyed_state("tuples", COUNT, data, key=["x", "y"], value="v")
        .with_keyed_state("rows", COUNT, data, key=["x", "y"], value="v", key_type=row_type)
        .write(target)
    )
    savepoint = read_savepoint(target)
    (found,) = savepoint.state("tuples", "count").for_keys([(1, "q")]).to_pylist()
    assert (found["key"], found["value"]) == ((1, "q"), 2)
    (found,) = savepoint.state("rows", "count").for_keys([Row(x=2, y="p")]).to_pylist()
    assert (found["key"], found["value"]) == (Row(x=2, y="p"), 3)


@pytest.mark.parametrize(
    ("descriptor", "data", "arguments", "error", "message"),
    [
        (COUNT, {"k": ["a", None], "v": [1, 2]}, {}, ConfigurationError, "1 rows have a null in their key"),
        (COUNT, {"k": ["a"] * 2, "v": [1, 2]}, {}, ConfigurationError, "several rows have {'key': 'a'}"),
        (
            COUNT,
            {"k": ["a"], "w": [1]},
            {},
            ConfigurationError,
            r"there is no column 'v'; the columns are \['k', 'w'\]",
        ),
        (
            COUNT,
            {"k": ["a"], "v": [1.5]},
            {},
            TypeMismatchError,
            r"column 'v': declared Types.LONG\(\), got double, such as 1.5",
        ),
        (COUNT, {"k": [b"a"], "v": [1]}, {}, TypeMismatchError, "key column 'k' is binary; pass key_type"),
        (COUNT, {"k": ["a"], "v": [1]}, {"map_key": "k"}, ConfigurationError, "no other state takes it"),
        (SEEN, {"k": ["a"], "v": [1]}, {}, ConfigurationError, "map state needs map_key"),
        (COUNT, {"k": ["a"], "v": [1]}, {"value": ["v"]}, ConfigurationError, "pass one column"),
        (TOTAL, {"k": ["a"], "v": [1]}, {"value": ["v"]}, ConfigurationError, r"has the fields \['count', 'sum'\]"),
    ],
)
def test_data_that_does_not_fit(
    descriptor: Any, data: Any, arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_savepoint().with_keyed_state("op", descriptor, data, **{"key": "k", "value": "v", **arguments})


def test_keys_of_two_types_and_states_of_one_name() -> None:
    writer = write_savepoint().with_keyed_state("op", COUNT, {"k": [1], "v": [1]}, key="k", value="v")
    with pytest.raises(StateSchemaError, match=r"keys of .*LONG.*and state 'sum' has keys of .*STRING"):
        writer.with_keyed_state("op", SUM, {"k": ["1"], "v": [1]}, key="k", value="v")
    with pytest.raises(ConfigurationError, match="operator 'op' already has a state 'count'"):
        writer.with_keyed_state("op", COUNT, {"k": [1], "v": [1]}, key="k", value="v")
    counts = ListStateDescriptor("count", Types.LONG())
    writer.with_list_state("op", counts, [1])  # of a program, too, it is another state than the keyed one
    with pytest.raises(ConfigurationError, match="operator 'op' already has a state 'count'"):
        writer.with_list_state("op", counts, [1])
    with pytest.raises(ParallelismError, match="parallelism 5 and max parallelism 4"):
        write_savepoint(parallelism=5, max_parallelism=4)


# --- out of other savepoints ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("job")
    with HarnessAttempt(all_kinds(), folder) as attempt:
        attempt.run_epoch()
        return attempt.savepoint(str(folder / "savepoints"))


def rows_of(path: str, uid: str = "kinds") -> dict[str, set[str]]:
    """Returns the rows of each state, without their place."""
    found = {}
    for state in read_savepoint(path).states:
        if state.uid == uid:
            columns = [n for n in state.schema.names if n not in ("key_group", "key_hash")]
            found[state.name] = {str(row) for row in state.to_arrow().select(columns).to_pylist()}
    return found


def test_an_operator_is_renamed_and_another_one_removed(savepoint: str, tmp_path: Path) -> None:
    writer = write_savepoint(savepoint).remove_operator("collect").change_operator_identifier("kinds", "all")
    target = writer.write(str(tmp_path / "savepoint"))
    assert read_savepoint(target).operators == ("events", "all")
    assert rows_of(target, "all") == rows_of(savepoint)
    with pytest.raises(
        ConfigurationError, match=r"there is no operator 'kinds'; the operators are \['events', 'all'\]"
    ):
        writer.remove_operator("kinds")
    with pytest.raises(ConfigurationError, match="there is already an operator 'events'"):
        writer.change_operator_identifier("all", "events")


@pytest.mark.parametrize("max_parallelism", [2, 7, 128, 1000])
def test_max_parallelism_is_changed(savepoint: str, tmp_path: Path, max_parallelism: int) -> None:
    writer = write_savepoint(savepoint).remove_operator("events").remove_operator("collect")
    target = writer.change_max_parallelism("kinds", max_parallelism).write(str(tmp_path / "savepoint"))
    assert rows_of(target) == rows_of(savepoint)
    state = read_savepoint(target).state("kinds", "total")
    (stored,) = state.for_keys(["k3"]).to_pylist()

    stream = events(environment(2, max_parallelism), [("k3", 100, 1000)]).key_by("key")
    graph = collect_graph(stream.process(Tell(), Types.PICKLED_BYTE_ARRAY()).uid("kinds"))
    (told,) = run(graph, tmp_path / "job", target, allow_pickled_state=True)
    assert told["total"] == tuple(stored["value"])


def test_max_parallelism_that_cannot_be(savepoint: str) -> None:
    for number in (1, 40_000):
        with pytest.raises(ParallelismError, match="stored with parallelism 2"):
            write_savepoint(savepoint).change_max_parallelism("kinds", number)


def test_two_savepoints_become_one(savepoint: str, tmp_path: Path) -> None:
    other = bootstrapped(tmp_path / "other")
    writer = write_savepoint(savepoint).with_operators_of(other, ["counts"])
    target = writer.with_list_state("counts", PART, [1, 2]).write(str(tmp_path / "both"))
    assert read_savepoint(target).operators == ("events", "kinds", "collect", "counts")
    assert rows_of(target) == rows_of(savepoint)
    assert rows_of(target, "counts") == {**rows_of(other, "counts"), "part": {"{'value': 1}", "{'value': 2}"}}
    with pytest.raises(ConfigurationError, match="there is already an operator 'counts'"):
        writer.with_operators_of(other)
    with pytest.raises(RestoreError, match=r"has no operator 'else'; its operators are \['counts'\]"):
        writer.with_operators_of(other, ["else"])
    with pytest.raises(ConfigurationError, match="already has a savepoint"):
        writer.write(target)


def test_new_state_beside_old(savepoint: str, tmp_path: Path) -> None:
    more = write_savepoint(savepoint).with_keyed_state("kinds", SUM, {"k": ["k1"], "v": [1]}, key="k", value="v")
    target = more.write(str(tmp_path / "savepoint"))
    assert rows_of(target) == {**rows_of(savepoint), "sum": {"{'key': 'k1', 'value': 1}"}}


def test_one_state_is_repaired_and_all_others_stay(savepoint: str, tmp_path: Path) -> None:
    largest = read_savepoint(savepoint).state("kinds", "largest").to_pandas()
    largest.loc[largest["key"] == "k3", "value"] = 1000
    writer = write_savepoint(savepoint)
    with pytest.raises(ConfigurationError, match=r"call remove_state\('kinds', 'largest'\) first"):
        writer.with_keyed_state("kinds", LARGEST, largest, key="key", value="value")
    writer.remove_state("kinds", "largest").with_keyed_state("kinds", LARGEST, largest, key="key", value="value")
    writer.remove_state("kinds", "rules").with_broadcast_state("kinds", RULES, {"limit": 8})
    target = writer.write(str(tmp_path / "repaired"))
    expected = rows_of(savepoint)
    expected["largest"] = {str(row) for row in largest[["key", "value"]].to_dict("records")}
    assert rows_of(target) == {**expected, "rules": {"{'key': 'limit', 'value': 8}"}}
    assert "_timers/event_time" in expected
    with pytest.raises(ConfigurationError, match=r"operator 'kinds' has no state 'sums'; it has: .*largest"):
        writer.remove_state("kinds", "sums")
    with HarnessAttempt(all_kinds(3), tmp_path / "job", restore_from=target, allow_pickled_state=True) as attempt:
        attempt.run_epoch()
    stored = read_savepoint(str(tmp_path / "job" / "job"))
    (of_k3,) = stored.state("kinds", "largest").for_keys(["k3"]).to_pylist()
    assert of_k3["value"] == 1000


def test_of_two_states_with_one_name_the_keyed_one_is_removed(tmp_path: Path) -> None:
    keyed, other = ValueStateDescriptor("one", Types.LONG()), ListStateDescriptor("one", Types.STRING())
    data = {"data": {"key": ["a"], "value": [1]}, "key": "key", "value": "value"}
    both = write_savepoint().with_keyed_state("op", keyed, **data).with_list_state("op", other, ["x"])
    based = write_savepoint(both.write(str(tmp_path / "both")))
    for number, writer in enumerate((both, based)):
        without = read_savepoint(writer.remove_state("op", "one").write(str(tmp_path / f"without {number}")))
        assert [(state.kind, state.to_pylist()) for state in without.states] == [("SPLIT_DISTRIBUTE", [{"value": "x"}])]
        writer.with_keyed_state("op", keyed, **data).remove_state("op", "one").remove_state("op", "one")
        assert read_savepoint(writer.write(str(tmp_path / f"none {number}"))).states == ()


def test_integers_beside_nulls_keep_their_digits_in_pandas(tmp_path: Path) -> None:
    data = pa.table({"key": ["a", "a"], "at": ["x", "y"], "value": [2**53 + 1, None]})
    state = MapStateDescriptor("map", Types.STRING(), Types.LONG())
    writer = write_savepoint().with_keyed_state("op", state, data, key="key", map_key="at", value="value")
    stored = read_savepoint(writer.write(str(tmp_path / "savepoint"))).state("op", "map")
    assert stored.to_pandas()["value"].to_list() == [2**53 + 1, None]


def test_a_stored_state_becomes_another(savepoint: str, tmp_path: Path) -> None:
    """The state is read, changed by DuckDB, and written."""
    total = read_savepoint(savepoint).state("kinds", "total").to_arrow()
    changed = duckdb.sql("select key, value.sum * 2 as n, value.sum as total from total").to_arrow_table()
    target = bootstrapped(tmp_path / "savepoint", changed.rename_columns(["user", "n", "total"]))
    read = {row["key"]: row["value"] for row in read_savepoint(target).state("counts", "count").to_pylist()}
    assert read == {row["key"]: row["value"]["sum"] * 2 for row in total.to_pylist()}


def test_a_damaged_file_is_named_and_there_is_no_savepoint(tmp_path: Path) -> None:
    first = bootstrapped(tmp_path / "one")
    damaged = next((tmp_path / "one" / "shared").glob("*.parquet"))
    damaged.write_bytes(b"else")
    with pytest.raises(CorruptStateError, match=damaged.name):
        write_savepoint(first).write(str(tmp_path / "two"))
    with pytest.raises(RestoreError, match="is not a savepoint"):
        read_savepoint(str(tmp_path / "two"))


def test_duckdb_reads_the_files(tmp_path: Path) -> None:
    n = 20_000
    data = pa.table({"user": np.arange(n), "n": np.arange(n) % 10, "total": np.arange(n)})
    bootstrapped(tmp_path / "savepoint", data, parallelism=2)
    files = f"'{tmp_path}/savepoint/shared/*.parquet'"
    counts_only = (
        f"select file_name from parquet_kv_metadata({files}) "
        "where case when key = 'flinkpy.state' then decode(value)::json->>'name' end = 'count'"
    )
    (found,) = duckdb.sql(
        f"select count(*), sum(value) from read_parquet({files}, filename = true) "
        f"where not deleted and filename in ({counts_only})"
    ).fetchall()
    assert found == (n, sum(i % 10 for i in range(n)))


def test_a_map_that_expires(tmp_path: Path) -> None:
    descriptor = MapStateDescriptor("recent", Types.LONG(), PAIR)
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(timedelta(hours=1)).build())
    data = {"k": ["a", "a"], "m": [1, 2], "c": [1, 2], "s": [3, 4]}
    target = str(tmp_path / "savepoint")
    write = write_savepoint().with_keyed_state("op", descriptor, data, key="k", map_key="m", value=["c", "s"])
    rows = read_savepoint(write.write(target)).state("op", "recent").to_pylist()
    assert [(row["map_key"], tuple(row["value"])) for row in rows] == [(1, (1, 3)), (2, (2, 4))]
    assert len({row["expires_at"] for row in rows}) == 1
