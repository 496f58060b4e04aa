from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.decider import CheckpointRequestDecider
from dagster_flinkpy.checkpoint.coordinator.stimuli import TriggerRequested

ASKED = [TriggerRequested(now_ms, request_id=str(now_ms)) for now_ms in (9, 8, 7)]
PERIODIC = TriggerRequested(1, periodic=True, request_id="periodic")


@given(st.integers(0, len(ASKED)))
def test_the_periodic_request_is_the_last_and_others_keep_their_order(position: int) -> None:
    decider = CheckpointRequestDecider(1, 0)
    for request in [*ASKED[:position], PERIODIC, *ASKED[position:]]:
        assert decider.submit(request) is None
    chosen = [decider.choose(10, pending=0, triggering=False, last_completion_ms=None) for _ in range(decider.queued)]
    assert chosen == [*ASKED, PERIODIC]
    assert decider.choose(10, pending=0, triggering=False, last_completion_ms=None) is None


def test_all_requests_are_aborted() -> None:
    decider = CheckpointRequestDecider(1, 0)
    for request in (PERIODIC, *ASKED):
        decider.submit(request)
    assert decider.abort_all() == [*ASKED, PERIODIC]
    assert decider.queued == 0
