"""Windows by count give what the general operator gives, and each continues from the other's state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import ProcessWindowFunction, WindowFunction
from dagster_flinkpy.datastream.window import CountSlidingWindowAssigner, CountTumblingWindowAssigner
from tests.examples import examples
from tests.runtime.harness import collect_graph
from tests.runtime.operators.test_session_windows import FIRED, LONGS, STAMPED, InOrder, Mixed, Stamped, run
from tests.runtime.programs import environment, events


@pytest.fixture(autouse=True)
def _cells_are_numbered_anew_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.state.cell_table._SPARE_CELLS", 2)


class GeneralTumbling(CountTumblingWindowAssigner):
    """The same windows, in the operator that calls assigner and trigger for each record."""


class GeneralSliding(CountSlidingWindowAssigner):
    """As above."""


class Seen(ProcessWindowFunction):
    """Emits id and values."""

    def process(self, key, context, elements):
        values = [v for e in elements for v in (e if isinstance(e, list) else [e.value])]
        yield key, context.window().id, 0, values


class Applied(WindowFunction):
    def apply(self, key, window, inputs):
        yield key, window.id, 1, [e.value for e in inputs]


CONTENTS: dict[str, Any] = {
    "elements": lambda windowed: windowed.process(Seen(), FIRED),
    "applied": lambda windowed: windowed.apply(Applied(), FIRED),
    "aggregated": lambda windowed: windowed.aggregate(InOrder(), accumulator_type=LONGS, output_type=LONGS),
    "aggregated, with a function": lambda windowed: windowed.aggregate(InOrder(), Seen(), LONGS, FIRED),
    "reduced": lambda windowed: windowed.reduce(Mixed()),
    "summed": lambda windowed: windowed.sum("value"),
}


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 99)), max_size=30),
    per_epoch=st.integers(1, 12),
    size=st.integers(1, 4),
    slide=st.integers(0, 5),
    contents=st.sampled_from(sorted(CONTENTS)),
    turns=st.lists(st.integers(0, 1), min_size=1, max_size=4),
    rescale=st.dictionaries(st.integers(1, 4), st.integers(1, 3), max_size=1),
    live=st.booleans(),
)
def test_the_quick_way_fires_and_stores_what_the_general_one_does(
    records: list[tuple[str, int, int]],
    per_epoch: int,
    size: int,
    slide: int,
    contents: str,
    turns: list[int],
    rescale: dict[int, int],
    live: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def graph(tumbling: Any, sliding: Any) -> Any:
        source = events(environment(), records, per_epoch=per_epoch, strategy=WatermarkStrategy.no_watermarks())
        assigner = sliding(size, slide) if slide else tumbling(size)
        windowed = source.set_parallelism(1).key_by("key").window(assigner)
        return collect_graph(CONTENTS[contents](windowed).uid("window").process(Stamped(), STAMPED).uid("fired"))

    graphs = [graph(CountTumblingWindowAssigner, CountSlidingWindowAssigner), graph(GeneralTumbling, GeneralSliding)]

    def outcome(turns: list[int]) -> Any:
        fired, state = run(graphs, tmp_path_factory.mktemp("counts"), turns, rescale, live=live)
        return [sorted(each) if rescale else each for each in fired], state

    assert outcome([0, *turns]) == outcome([1])
