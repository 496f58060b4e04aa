"""Which operators are one live task."""

from __future__ import annotations

from dagster_flinkpy.common import Types
from dagster_flinkpy.runtime.exchange.places import chains_of
from tests.runtime.harness import collect_graph
from tests.runtime.programs import environment, events


def test_operators_of_a_stage_that_nothing_chains_are_tasks_of_their_own() -> None:
    env = environment(2)
    left, right = (
        events(env, [("a", 0, 1)], uid=uid).rebalance().map(lambda v: v.key, Types.STRING()).uid(f"map-{uid}")
        for uid in ("left", "right")
    )
    both = left.map(lambda key: key, Types.STRING()).uid("again")
    graph = collect_graph(both.union(right).key_by(lambda key: key).reduce(lambda a, b: a).uid("joined"))
    uids = [[[vertex.uid for vertex in chain] for chain in chains_of(graph, stage)] for stage in (0, 1)]
    assert uids == [[["left"], ["right"]], [["map-left", "again"], ["map-right"]]]


def test_a_chain_that_splits_and_meets_again_is_one_task() -> None:
    source = events(environment(1), [("a", 0, 1)])
    keys = [source.map(lambda v: v.key, Types.STRING()).uid(f"map-{number}") for number in range(2)]
    graph = collect_graph(keys[0].union(keys[1]).map(lambda key: key, Types.STRING()).uid("last"))
    [chain] = chains_of(graph, 0)
    assert [vertex.uid for vertex in chain][:4] == ["events", "map-0", "map-1", "last"]
