from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from dagster_flinkpy.datastream.data_stream import DataStream
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, StateSchemaError, TypeMismatchError, UnsupportedKeyTypeError
from tests.runtime.harness import HarnessAttempt, collect_all, collect_graph, collected, random_order, run_job
from tests.runtime.programs import environment, events

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
COUNT = ValueStateDescriptor("count", Types.LONG())


def connected(parallelism: int, records: Any, rules: Any, *, keyed: bool = False, per_epoch: int | None = None) -> Any:
    env = environment(parallelism)
    left: DataStream = events(env, records, per_epoch=per_epoch)
    right = events(env, rules, uid="rules", per_epoch=per_epoch).set_parallelism(1)
    return (left.key_by("key") if keyed else left).connect(right.broadcast(RULES))


class Multiply(BroadcastProcessFunction):
    """Multiplies by the rule of the key, and emits its broadcast state."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        rules = ctx.get_broadcast_state(RULES)
        yield value.key, value.time, value.value * (rules.get(value.key) or 0), sorted(rules)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        state = ctx.get_broadcast_state(RULES)
        if value.value < 0:
            state.remove(value.key)
        else:
            state[value.key] = value.value


def program(parallelism: int = 2) -> JobGraph:
    # Three epochs of four records each. The rules of an epoch apply at the latest from the next one on.
    records = [(key, 100 * n, 1) for n in range(3) for key in "abcd"]
    rules = [("a", 1, 2), ("b", 1, 3), ("c", 1, 4), ("a", 1, 5)] + [("b", 2, -1)] * 4 + [("d", 3, 7)] * 4
    stream = connected(parallelism, records, rules, per_epoch=4)
    return collect_graph(stream.process(Multiply()).uid("multiply"))


@pytest.mark.parametrize("rescale_at", [{}, {1: 3}, {1: 1, 2: 4}])
def test_broadcast_state_is_the_same_everywhere_and_survives_a_rescale(
    tmp_path: Path, rescale_at: dict[int, int]
) -> None:
    got = run_job(program(), tmp_path, rescale_at=rescale_at)
    second = [r for r in got if r[1] == 100]
    assert {(k, v) for k, _, v, _ in second if k != "b"} == {("a", 5), ("c", 4), ("d", 0)}
    third = sorted(r for r in got if r[1] == 200)
    assert [(k, v) for k, _, v, _ in third if k != "d"] == [("a", 5), ("b", 0), ("c", 4)]
    assert all(set(rules) - {"d"} == {"a", "c"} for _, _, _, rules in third)


def test_all_that_a_broadcast_state_can_do(tmp_path: Path) -> None:
    class Everything(BroadcastProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
            yield "read", type(ctx.get_broadcast_state(RULES)).__name__.startswith("_ReadOnly"), ctx.timestamp()

        def process_broadcast_element(self, value: Any, ctx: Any) -> Iterable[Any]:
            state = ctx.get_broadcast_state(RULES)
            assert state.is_empty()
            state.put_all({"x": 1, "y": 2})
            state.put("z", 3)
            assert ("x" in state, state.contains("w"), state["z"], state.get("w")) == (True, False, 3, None)
            del state["x"]
            state.remove("nothing")
            yield list(state.items()), list(state.keys()), list(state.values()), list(state)
            state.clear()
            yield state.is_empty(), ctx.timestamp(), ctx.current_watermark() < 0, ctx.current_processing_time() > 0

    got = collect_all(connected(1, [("a", 7, 1)], [("r", 5, 1)]).process(Everything()), tmp_path)
    assert sorted(got, key=repr) == sorted(
        [
            ("read", True, 7),
            ([("y", 2), ("z", 3)], ["y", "z"], [2, 3], ["y", "z"]),
            (True, 5, True, True),
        ],
        key=repr,
    )


class Keyed(KeyedBroadcastProcessFunction):
    """Counts per key. A rule adds its value to the counts of all keys."""

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(COUNT)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self._count.update((self._count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(value.time + 50)
        yield ctx.get_current_key(), self._count.value()

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        def add(key: str, state: Any) -> None:
            if key == value.key:
                state.clear()
            else:
                state.update(state.value() + value.value)

        ctx.apply_to_keyed_state(COUNT, add)
        ctx.get_broadcast_state(RULES).put(value.key, value.value)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), ctx.time_domain().name, timestamp, sorted(ctx.get_broadcast_state(RULES))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_keyed_function_has_keyed_state_timers_and_goes_through_all_keys(tmp_path: Path, parallelism: int) -> None:
    keys = [f"k{i}" for i in range(20)]
    records = [(k, 0, 0) for k in keys] + [(k, 1000, 0) for k in keys] + [(k, 2000, 0) for k in keys]
    rules = [("none", 0, 0)] * 20 + [("k3", 1000, 100)] + [("none", 1000, 0)] * 19 + [("none", 2000, 0)] * 20
    stream = connected(parallelism, records, rules, keyed=True, per_epoch=20)
    got = run_job(collect_graph(stream.process(Keyed()).uid("keyed")), tmp_path, order=random_order(1))
    counts = {key: [r[1] for r in got if r[0] == key and len(r) == 2] for key in keys}
    for key, (_, second, third) in counts.items():
        # The rule comes before or after the second record of the key.
        assert (second, third) in ([(1, 2), (2, 1)] if key == "k3" else [(2, 103), (102, 103)])
    fired = [r for r in got if len(r) == 4]
    assert len(fired) == 60
    assert {r[1] for r in fired} == {"EVENT_TIME"}
    assert all(r[3] == ["k3", "none"] for r in fired if r[2] == 2050)


def test_apply_to_keyed_state_takes_an_object_and_sees_what_is_not_stored_yet(tmp_path: Path) -> None:
    class Collect:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def process(self, key: Any, state: Any) -> None:
            self.seen.append((key, state.value()))

    class Look(Keyed):
        def process_broadcast_element(self, value: Any, ctx: Any) -> Iterable[Any]:
            collect = Collect()
            ctx.apply_to_keyed_state(COUNT, collect)
            yield "seen", sorted(collect.seen)

    stream = connected(1, [("a", 0, 0), ("b", 0, 0), ("a", 0, 0)], [("r", 0, 0), ("r", 0, 0)], keyed=True, per_epoch=1)
    got = [r for r in run_job(collect_graph(stream.process(Look()).uid("look")), tmp_path) if r[0] == "seen"]
    assert got[-1] in [("seen", [("a", 1)]), ("seen", [("a", 1), ("b", 1)])]


def test_keyed_state_needs_a_key(tmp_path: Path) -> None:
    class Wrong(Keyed):
        def process_broadcast_element(self, value: Any, ctx: Any) -> None:
            self._count.update(1)

    with pytest.raises(ConfigurationError, match="'count' was used outside a record or timer"):
        collect_all(connected(1, [("a", 0, 0)], [("r", 0, 0)], keyed=True).process(Wrong()), tmp_path)


def test_only_the_broadcast_side_writes(tmp_path: Path) -> None:
    class Wrong(Multiply):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.get_broadcast_state(RULES).clear()

    with pytest.raises(ConfigurationError, match="'rules' can only be written in process_broadcast_element"):
        collect_all(connected(1, [("a", 0, 0)], []).process(Wrong()), tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("a", "text", TypeMismatchError, "operator 'wrong': operator state 'rules'.*'text'"),
        (5, 1, TypeMismatchError, "operator 'wrong': operator state 'rules'.*5"),
        ([1], 1, UnsupportedKeyTypeError, r"key \[1\] of broadcast state 'rules'"),
    ],
)
def test_wrong_entries_are_refused(tmp_path: Path, key: Any, value: Any, error: type[Exception], message: str) -> None:
    class Wrong(Multiply):
        def process_broadcast_element(self, value_: Any, ctx: Any) -> None:
            ctx.get_broadcast_state(RULES).put(key, value)

    with pytest.raises(error, match=message):
        collect_all(connected(1, [], [("r", 0, 0)]).process(Wrong()).uid("wrong"), tmp_path)


def test_wrong_programs_are_refused(tmp_path: Path) -> None:
    env = environment()
    left, right = events(env, [("a", 0, 0)]), events(env, [("r", 0, 0)], uid="rules")
    with pytest.raises(ConfigurationError, match="MapStateDescriptors"):
        right.broadcast(COUNT)
    with pytest.raises(ConfigurationError, match="keyed stream needs a KeyedBroadcastProcessFunction"):
        left.key_by("key").connect(right.broadcast(RULES)).process(Multiply())
    with pytest.raises(ConfigurationError, match="non-keyed stream needs a BroadcastProcessFunction"):
        left.connect(right.broadcast(RULES)).process(Keyed())
    limited = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
    limited.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())

    class Limited(Multiply):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.get_broadcast_state(limited)

    with pytest.raises(ConfigurationError, match="'rules' has a time to live, which only keyed state can have"):
        collect_all(left.connect(right.broadcast(RULES)).process(Limited()), tmp_path)


def test_another_type_is_refused_at_restore(tmp_path: Path) -> None:
    with HarnessAttempt(program(), tmp_path) as attempt:
        attempt.run_epoch()

    class Other(Multiply):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.get_broadcast_state(MapStateDescriptor("rules", Types.STRING(), Types.STRING()))

    stream = connected(2, [(key, 100 * n, 1) for n in range(3) for key in "abcd"], [], per_epoch=4)
    with (
        HarnessAttempt(collect_graph(stream.process(Other()).uid("multiply")), tmp_path) as attempt,
        pytest.raises(StateSchemaError, match=r"operator state 'rules' was .* and is now declared as"),
    ):
        attempt.run_epoch()


def test_rows_and_large_states(tmp_path: Path) -> None:
    row = Types.ROW_NAMED(["name", "tags"], [Types.STRING(), Types.LIST(Types.LONG())])
    large = MapStateDescriptor("large", Types.LONG(), row)

    class Fill(BroadcastProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
            state = ctx.get_broadcast_state(large)
            if state.contains(1999):
                yield state[1999].name, list(state[7].tags), sum(1 for _ in state)

        def process_broadcast_element(self, value: Any, ctx: Any) -> None:
            state = ctx.get_broadcast_state(large)
            state.put_all({i: Row(name=f"name {i}", tags=[i, i]) for i in range(2000)})

    def graph() -> JobGraph:
        stream = connected(2, [("a", 0, 0)] * 4, [("r", 0, 0)], per_epoch=2)
        return collect_graph(stream.process(Fill()).uid("fill"))

    with HarnessAttempt(graph(), tmp_path) as attempt:
        epoch = attempt.run_epoch()
        state = epoch.metadata.operator("fill")
        assert state is not None
        (path,) = state.files()
        assert (tmp_path / "job" / path).exists()  # one file, because all subtasks have the same state
        target = attempt.savepoint(str(tmp_path / "savepoints"))
    with HarnessAttempt(graph(), tmp_path, job_id="other", restore_from=target, parallelism=3) as attempt:
        attempt.commit_restored()
        attempt.run_epoch()
        got = collected(attempt.graph, attempt.collected)
    assert got == [("name 1999", [7, 7], 2000)] * 2
