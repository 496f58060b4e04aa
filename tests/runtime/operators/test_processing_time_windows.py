"""Processing-time windows: in two phases, batch by batch, in columns and record by record give the same results and
state."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import ProcessWindowFunction
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.window import SlidingProcessingTimeWindows, TumblingProcessingTimeWindows
from dagster_flinkpy.runtime.operators import operator_factory
from dagster_flinkpy.runtime.operators.operator_factory import create_window_operator
from dagster_flinkpy.runtime.operators.windows.column_windowers import AlignedWindower
from dagster_flinkpy.runtime.operators.windows.general_windower import GeneralWindower
from dagster_flinkpy.runtime.operators.windows.window_operator import WindowOperator
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, ManualClock, collect_graph, collected
from tests.runtime.operators.test_aggregate_operators import in_python, one_phase, operator_of, stamped
from tests.runtime.programs import environment

EVENT = Types.ROW_NAMED(["key", "value"], [Types.STRING(), Types.LONG()])
PER_EPOCH = 4


def general(context: Any, spec: WindowSpec) -> WindowOperator:
    """Creates an operator that takes windows of any kind."""
    return WindowOperator(context, spec, GeneralWindower)


OPERATORS: list[Callable[..., Any]] = [create_window_operator, in_python, general]


class Contents(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield repr((key, context.window().start, [each.value for each in elements]))


FOLDS = {
    "count": lambda windowed: windowed.count(),
    "sum": lambda windowed: windowed.sum("value"),
    "reduce": lambda windowed: windowed.reduce(lambda one, other: other if other.value % 2 else one),
    "process": lambda windowed: windowed.process(Contents(), Types.STRING()),
}


@dataclass(frozen=True)
class Epoch:
    """When and how an epoch runs."""

    time: int
    parallelism: int
    operator: Callable[..., Any]
    two_phases: bool = False


def run(graph: Any, epochs: list[Epoch]) -> list[list[Any]]:
    """Runs each epoch in a separate attempt, which restores the checkpoint of the one before."""
    clock, found = ManualClock(), []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for epoch in epochs:
            clock.time = epoch.time
            patch.setitem(operator_factory._OPERATORS, WindowSpec, epoch.operator)
            # Only the first operator takes what a sender has combined.
            phases = nullcontext() if epoch.operator is OPERATORS[0] and epoch.two_phases else one_phase()
            with phases, HarnessAttempt(graph, Path(folder), clock=clock, parallelism=epoch.parallelism) as attempt:
                if attempt.restored is not None:
                    attempt.commit_restored()
                attempt.run_epoch()
                found.append(collected(attempt.graph, attempt.collected))
    return found


def program(windowed_by: Any, fold: str, records: list[Any]) -> Any:
    source = CollectionSource(records, EVENT, records_per_epoch=PER_EPOCH, batch_size=3)
    events = environment(max_parallelism=16).from_source(source, WatermarkStrategy.no_watermarks(), "events")
    return FOLDS[fold](events.uid("events").key_by("key").window(windowed_by)).uid("op")


@settings(max_examples=examples(40))
@given(
    # Most clocks go on, some are set back.
    epochs=st.lists(
        st.builds(Epoch, st.integers(0, 60), st.integers(1, 3), st.sampled_from(OPERATORS), st.booleans()),
        min_size=2,
        max_size=6,
    ).flatmap(lambda each: st.sampled_from([each, sorted(each, key=lambda epoch: epoch.time)])),
    records=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-9, 9)), min_size=1, max_size=6 * PER_EPOCH),
    assigner=st.one_of(
        st.builds(TumblingProcessingTimeWindows, st.integers(1, 20)),
        st.builds(SlidingProcessingTimeWindows, st.integers(1, 20), st.integers(1, 20)),
    ),
    fold=st.sampled_from(sorted(FOLDS)),
)
def test_operators_are_equal(epochs: list[Epoch], records: list[Any], assigner: Any, fold: str) -> None:
    epochs = epochs[: -(-len(records) // PER_EPOCH)]
    graph = collect_graph(stamped(program(assigner, fold, records)))
    by_record = [Epoch(each.time, each.parallelism, general) for each in epochs]
    assert [sorted(each) for each in run(graph, epochs)] == [sorted(each) for each in run(graph, by_record)]


def test_what_runs_in_columns(tmp_path: Path) -> None:
    for fold, in_columns in (("count", True), ("reduce", False)):
        made = operator_of(program(TumblingProcessingTimeWindows(10), fold, [("a", 1)]), tmp_path / fold)
        assert type(made._windower) is AlignedWindower
        assert (made.fold is not None) is in_columns
