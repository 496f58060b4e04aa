from __future__ import annotations

from collections.abc import Mapping

import pytest

from dagster_flinkpy.checkpoint.reports.event_time_holders import event_times
from dagster_flinkpy.checkpoint.reports.execution_report import InputReport, VertexReport
from dagster_flinkpy.checkpoint.reports.job_metrics import OperatorMetrics
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK

# fast ---> keyed --.
# slow ------------ join ---> blocking edge ---> sink
EDGES = {
    "fast": (),
    "slow": (),
    "keyed": ("fast",),
    "join": ("keyed", "slow"),
    "join.exchange": ("join",),
    "sink": ("join.exchange",),
}


def holders(
    watermarks: Mapping[str, tuple[int | None, int | None]], edges: Mapping[str, tuple[str, ...]] = EDGES
) -> dict[str, str | None]:
    """Returns what each operator waits for, given the watermarks of its input and output."""
    vertices = [
        VertexReport(
            uid, uid, 0, 1, "RUNNING", {}, 0, 0, (), tuple(InputReport(each, "hash", False) for each in before)
        )
        for uid, before in edges.items()
    ]
    names = ("currentInputWatermark", "currentOutputWatermark")
    metrics = [
        OperatorMetrics(uid, uid, {n: w for n, w in zip(names, watermarks[uid], strict=True) if w is not None}, (), {})
        for uid in edges
    ]
    return {uid: each.held_by for uid, each in event_times(vertices, metrics).items()}


def test_everybody_behind_two_inputs_waits_for_the_slower_one() -> None:
    behind = dict.fromkeys(("join", "join.exchange", "sink"), (5, 5))
    assert holders({"fast": (None, 90), "slow": (None, 5), "keyed": (90, 90), **behind}) == {
        "fast": None,
        "slow": None,
        "keyed": "fast",
        **dict.fromkeys(behind, "slow"),
    }


def test_an_input_without_any_watermark_holds_back_those_that_have_some() -> None:
    behind = dict.fromkeys(("join", "join.exchange", "sink"), (None, None))
    found = holders({"fast": (None, 90), "slow": (None, None), "keyed": (90, 90), **behind})
    assert [found[uid] for uid in behind] == ["slow"] * 3


@pytest.mark.parametrize("slow", [None, 5, MAX_WATERMARK])
def test_nobody_waits_for_an_input_that_is_idle_or_has_ended(slow: int | None) -> None:
    behind = dict.fromkeys(("join", "join.exchange", "sink"), (90, 90))
    found = holders({"fast": (None, 90), "slow": (None, slow), "keyed": (90, 90), **behind})
    assert [found[uid] for uid in behind] == ["fast"] * 3


def test_nobody_waits_if_nothing_has_event_time_or_all_has_ended() -> None:
    assert set(holders(dict.fromkeys(EDGES, (None, None))).values()) == {None}
    sources = dict.fromkeys(("fast", "slow"), (None, MAX_WATERMARK))
    found = holders({**dict.fromkeys(EDGES, (MAX_WATERMARK, MAX_WATERMARK)), **sources})
    assert set(found.values()) == {None}


def test_an_operator_that_assigns_timestamps_is_where_they_come_from() -> None:
    edges = {"source": (), "times": ("source",), "window": ("times",)}
    assert holders({"source": (None, None), "times": (None, 7), "window": (7, 7)}, edges)["window"] == "times"
    assert holders({"source": (None, 3), "times": (3, 7), "window": (7, 7)}, edges)["window"] == "times"


def test_a_graph_of_many_ways_is_walked_once() -> None:
    edges: dict[str, tuple[str, ...]] = {"0": ()}
    for number in range(1, 60):  # two ways through each operator
        edges[f"a{number}"] = edges[f"b{number}"] = (str(number - 1),)
        edges[str(number)] = (f"a{number}", f"b{number}")
    assert set(holders(dict.fromkeys(edges, (None, None)), edges).values()) == {None}
