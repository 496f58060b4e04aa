"""Breaks rules of the runtime one at a time. The matrix must notice each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.operators import function_operators
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.task import stream_task
from dagster_flinkpy.runtime.task.operator_task import OperatorTask
from dagster_flinkpy.state import overlay_table
from tests.matrix.cases import any_order, in_order
from tests.matrix.noticed import NOTICED
from tests.matrix.programs import Leg
from tests.matrix.run import check


@contextmanager
def sources_share_one_event_time() -> Iterator[None]:
    """Watermarks of all sources are merged at every operator."""
    one = "sources"
    real_watermark, real_status = OperatorTask.send_watermark, OperatorTask.send_status

    origins = property(lambda graph: {v.uid: (one,) for v in graph.vertices})
    output, origins_of = stream_task.writer_output, JobGraph.watermark_origins

    def combining(*args: Any) -> Any:
        """Who combines records knows the sources apart."""
        with mock.patch.object(JobGraph, "watermark_origins", origins_of):
            return output(*args)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(JobGraph, "watermark_origins", origins))
        stack.enter_context(mock.patch.object(stream_task, "writer_output", combining))
        for name, real in (("send_watermark", real_watermark), ("send_status", real_status)):
            merged = lambda task, _, *what, real=real, **named: real(task, one, *what, **named)  # noqa: E731
            stack.enter_context(mock.patch.object(OperatorTask, name, merged))
        yield


@contextmanager
def what_was_in_flight_is_forgotten() -> Iterator[None]:
    with mock.patch.object(OperatorTask, "replay", lambda task: None):
        yield


@contextmanager
def state_shares_its_values() -> Iterator[None]:
    """Functions read and write the values of state themselves, not copies."""
    shared = {"copier": lambda kind: None, "taker": lambda kind: None}
    with mock.patch.multiple(overlay_table, **shared):
        yield


@contextmanager
def what_was_emitted_is_shared() -> Iterator[None]:
    """A record is sent as it is when its batch is full, with what its function has changed since."""
    with mock.patch.object(function_operators, "copied", lambda value: value):
        yield


@contextmanager
def what_was_given_is_shared() -> Iterator[None]:
    """All functions behind an operator get the same records."""
    with (
        mock.patch.object(StreamBatch, "apart", StreamBatch.copy),
        mock.patch.object(StreamBatch, "lent", lambda batch: iter(batch.values)),
    ):
        yield


# Cases in which a rule matters, so that few have to be run.
UNITED = any_order().filter(lambda case: case[1].parallelism > 1 < len(case[0].inputs) and not case[1].unaligned)
SPOILT = any_order().map(lambda case: (replace(case[0], spoils=True), case[1]))
CHANGEABLE = in_order().map(lambda case: (replace(case[0], spoils=True, legs=(Leg.CHANGEABLE,)), case[1]))
IN_FLIGHT = any_order().filter(lambda case: case[1].unaligned and case[1].parallelism > 1)

MUTATIONS: list[tuple[Callable[[], Any], st.SearchStrategy[Any]]] = [
    (sources_share_one_event_time, UNITED),
    (what_was_in_flight_is_forgotten, IN_FLIGHT),
    (state_shares_its_values, CHANGEABLE),
    (what_was_emitted_is_shared, SPOILT),
    (what_was_given_is_shared, SPOILT),
]
"""What is broken, and cases in which it matters."""


@pytest.mark.parametrize("broken", [broken for broken, _ in MUTATIONS])
def test_a_case_notices_the_broken_rule(broken: Callable[[], Any]) -> None:
    case = NOTICED[broken.__name__]
    check(*case)
    with broken(), pytest.raises(AssertionError, match="To run it again"):
        check(*case)


@pytest.mark.hypothesis
@pytest.mark.skipif("SOAK" not in os.environ, reason="a part of make soak")
@pytest.mark.parametrize(("broken", "cases"), MUTATIONS, ids=[broken.__name__ for broken, _ in MUTATIONS])
def test_every_broken_rule_is_found(broken: Callable[[], Any], cases: st.SearchStrategy[Any]) -> None:
    found = list[str]()

    @settings(
        max_examples=400,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def every_case(case: Any) -> None:
        if not found:  # a job of live tasks may fail once and not again, which is enough
            try:
                check(*case)
            except AssertionError as error:
                found.append(str(error))

    with broken():
        every_case()
    assert found and "To run it again" in found[0]
