from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.decider import CheckpointRequestDecider
from dagster_flinkpy.checkpoint.coordinator.stimuli import TriggerRequested
from dagster_flinkpy.checkpoint.metadata import CheckpointKind

SAVEPOINT = TriggerRequested(9, kind=CheckpointKind.SAVEPOINT, request_id="savepoint")
FORCED = TriggerRequested(8, forced=True, request_id="forced")
EARLIER = TriggerRequested(6, request_id="earlier")
LATER = TriggerRequested(7, request_id="later")
PERIODIC = TriggerRequested(1, periodic=True, request_id="periodic")


@given(st.permutations([SAVEPOINT, FORCED, EARLIER, LATER, PERIODIC]))
def test_savepoints_then_forced_then_asked_for_then_oldest(requests: list[TriggerRequested]) -> None:
    decider = CheckpointRequestDecider(1, 0)
    for request in requests:
        assert decider.submit(request) == []
    chosen = [decider.choose(10, pending=0, triggering=False, last_completion_ms=None) for _ in requests]
    assert chosen == [SAVEPOINT, FORCED, EARLIER, LATER, PERIODIC]
    assert decider.choose(10, pending=0, triggering=False, last_completion_ms=None) is None


def test_requests_of_the_same_time_keep_their_order() -> None:
    decider = CheckpointRequestDecider(1, 0)
    requests = [TriggerRequested(1, request_id=str(number)) for number in range(5)]
    for request in requests:
        decider.submit(request)
    assert decider.abort_all() == requests
    assert decider.queued == 0
