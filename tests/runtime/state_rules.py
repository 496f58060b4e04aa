"""What always holds of the state of a job between two stimuli."""

from __future__ import annotations

from dagster_flinkpy.checkpoint.coordinator.instructions import HandOver, Instruction
from dagster_flinkpy.checkpoint.coordinator.stimuli import Stimulus
from dagster_flinkpy.runtime.master.job_state import JobState
from dagster_flinkpy.runtime.master.regions.region_epoch import Phase, RegionStage
from dagster_flinkpy.runtime.master.regions.region_state import RegionState

__all__ = ["check_after_each_stimulus", "check_region", "check_state"]


def check_state(state: JobState) -> None:
    """Raises an AssertionError that says what does not hold."""
    for region in state.regions:
        check_region(region)
    if state.failure is None:
        open_ids = {*state.coordinator.pending, *state.coordinator.incomplete}
        timed = open_ids | {*state.coordinator.collecting}
        assert state._timeouts.keys() <= timed, f"{state._timeouts} are armed, but {timed} are open"
        current = state.chain.current
        assert current is None or current.checkpoint_id in open_ids, f"{current} is completed, but not open"
        waiting = {write.checkpoint_id for write in state.chain.waiting if not isinstance(write, HandOver)}
        assert waiting <= open_ids, f"{waiting} wait to be completed, but {open_ids} are open"
    restarting = state._failover.graph.waiting
    assert not state._failover.restarting or restarting, "regions are due that do not wait for a restart"
    asked = [request for bound in state.requests.bound.values() for request in bound]
    asked += [*state.requests.waiting, *([] if state.requests.ending is None else [state.requests.ending])]
    assert all(request.request_id in state.requests.open for request in asked), "what was answered still waits"
    timer, now = state.next_timer, state._turn.now_ms
    overdue = any(at_ms <= now for at_ms in state._timeouts.values())  # they come with the next `TimePassed`
    assert overdue or timer is None or timer > now, f"the master does not wait until {timer}, which was before {now}"


def check_region(region: RegionState) -> None:
    """Raises an AssertionError that says what does not hold."""
    at_hand = [each for each in region._epochs if each.stage is RegionStage.CURRENT]
    assert len(at_hand) == (region.phase not in (Phase.IDLE, Phase.LOOKING)), f"{region.phase} with CURRENT {at_hand}"
    ids = [each.checkpoint_id for each in region._epochs]
    assert ids == sorted(ids), f"epochs are not in order: {ids}"
    acknowledged = [each for each in region._epochs if each.stage is RegionStage.ACKNOWLEDGED]
    assert all(each.checkpoint_id <= region.acknowledged for each in acknowledged), "acknowledged epochs are ahead"
    assert all(each.settled for each in acknowledged[:-1]), "only the last acknowledged epoch may be unsettled"
    if region.number in region._graph.waiting and region.executing:
        assert region.canceling, "a region that waits for its restart is at work"


def check_after_each_stimulus() -> None:
    """Has the state of each job checked from now on."""
    handle = JobState.handle

    def checked(state: JobState, stimulus: Stimulus) -> list[Instruction]:
        instructions = handle(state, stimulus)
        check_state(state)
        return instructions

    JobState.handle = checked  # type: ignore[method-assign]
