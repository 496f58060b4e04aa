"""The output of a reader: the watermark is the least over its splits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.runtime.operators.source_reader_operator import BatchingOutput
from tests.examples import examples


def output() -> BatchingOutput:
    vertex = SimpleNamespace(uid="source", output_type=Types.LONG())
    operator: Any = SimpleNamespace(context=SimpleNamespace(vertex=vertex, watermark=MIN_WATERMARK))
    return BatchingOutput(operator, WatermarkStrategy.for_monotonous_timestamps())


SPLITS = ("a", "b", "c")
ACTS = st.one_of(
    st.tuples(st.just("collect"), st.sampled_from([None, *SPLITS]), st.integers(0, 50)),
    st.tuples(st.just("column"), st.sampled_from([None, *SPLITS]), st.integers(0, 50)),
    st.tuples(st.just("release"), st.sampled_from(SPLITS), st.just(0)),
    st.tuples(st.just("create"), st.sampled_from(SPLITS), st.just(0)),
    st.tuples(st.just("take"), st.none(), st.just(0)),
)


@settings(max_examples=examples(300), deadline=None)
@given(acts=st.lists(ACTS, max_size=30))
def test_the_watermark_is_that_of_the_split_that_is_behind_the_others(acts: list[Any]) -> None:
    made = output()
    newest: dict[str | None, int | None] = {}
    emitted, taken = list[tuple[int, int]](), list[tuple[int, int]]()

    def take() -> None:
        for batch in made.take():
            taken.extend(zip(batch.column.to_pylist(), batch.timestamps.tolist(), strict=True))
        assert made.size == 0
        times = [MIN_WATERMARK if time is None else time - 1 for time in newest.values()]
        assert made.watermark == min(times, default=MIN_WATERMARK)

    for number, (act, split, time) in enumerate(acts):
        if act == "take":
            take()
        elif act == "release":
            made.release_output_for_split(split)
            newest.pop(split, None)
        elif act == "create":
            made.create_output_for_split(split)
            newest.setdefault(split, None)
        else:
            target = made if split is None else made.create_output_for_split(split)
            if act == "collect":
                target.collect(number, time)
            else:
                target.collect_column(pa.array([number]), pa.array([time]))
            newest[split] = max(time, newest.get(split) or 0)
            emitted.append((number, time))
    take()
    assert sorted(taken) == emitted, "each record is emitted once, also of a split that was released"
