"""Random walks: the rules hold after every step, in whatever order answers, timeouts, declines and stops arrive."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.instructions import (
    AssignCheckpointId,
    DiscardState,
    DropSubsumed,
    EmitBarriers,
    HandOver,
    Instruction,
    NotifyAborted,
    NotifyComplete,
    ReplaceHead,
    TriggerMasterHooks,
    WriteMetadata,
)
from dagster_flinkpy.checkpoint.coordinator.messages import (
    AcknowledgeCheckpoint,
    CheckpointFailureReason,
    DeclineCheckpoint,
    Subtask,
)
from dagster_flinkpy.checkpoint.coordinator.pending import CheckpointPlan
from dagster_flinkpy.checkpoint.coordinator.stimuli import (
    Acknowledge,
    CheckpointIdAssigned,
    CommitFinished,
    Decline,
    HeadReplaced,
    JobStatusChanged,
    MasterHookFailed,
    MasterStateCollected,
    MetadataWriteFailed,
    MetadataWritten,
    PeriodicTick,
    Stimulus,
    TimerFired,
    TriggerRequested,
)
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from tests.checkpoint.samples import keyed
from tests.examples import examples

TASKS = (Subtask("a", 0), Subtask("a", 1))
HOOKS = ("hook", "other hook")
RETAINED = 2
CONCURRENT = 3


class CoordinatorWalk(RuleBasedStateMachine):
    """The environment of the coordinator: it carries out instructions late, in any order, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        config = CoordinatorConfig(
            interval=timedelta(seconds=1), max_concurrent=CONCURRENT, num_retained=RETAINED, tolerable_failed=10**6
        )
        self.coordinator = CheckpointCoordinator("j", 1, CheckpointPlan(TASKS, TASKS, TASKS, (), HOOKS), config)
        self.now = 0
        self.next_id = 1
        self.ids_wanted = 0
        self.hooked: dict[int, set[str]] = {}
        self.collecting: dict[int, set[Subtask]] = {}
        self.late: dict[int, set[Subtask]] = {}
        """The tasks that have not acknowledged those that have expired."""
        self.writing: list[int] = []
        self.replacing: list[int] = []
        self.committing: list[int] = []
        self.completed: list[int] = []
        self.ended: list[int] = []
        self.files: dict[int, set[str]] = {}
        self.deleted: set[str] = set()
        self.taken_over: set[str] = set()
        """The state that tasks continue from, though its checkpoint has failed."""
        self.send(JobStatusChanged(0, True))

    def send(self, stimulus: Stimulus) -> None:
        for instruction in self.coordinator.handle(stimulus):
            self.carry_out(instruction)

    def carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, AssignCheckpointId):
            self.ids_wanted += 1
        elif isinstance(instruction, TriggerMasterHooks):
            self.hooked[instruction.checkpoint_id] = set(HOOKS)
        elif isinstance(instruction, EmitBarriers):
            assert not self.hooked.pop(instruction.checkpoint_id)
            self.collecting[instruction.checkpoint_id] = set(TASKS)
        elif isinstance(instruction, HandOver):
            assert not self.late.pop(instruction.checkpoint_id)
        elif isinstance(instruction, WriteMetadata):
            assert not self.collecting.pop(instruction.checkpoint_id)
            self.writing.append(instruction.checkpoint_id)
        elif isinstance(instruction, ReplaceHead):
            assert not self.replacing
            assert not self.committing
            assert instruction.checkpoint_id > max(self.completed, default=0), "HEAD goes back"
            self.replacing.append(instruction.checkpoint_id)
        elif isinstance(instruction, NotifyComplete):
            assert instruction.checkpoint_id == self.completed[-1]
            self.taken_over.clear()
            self.committing.append(instruction.checkpoint_id)
        elif isinstance(instruction, NotifyAborted):
            assert instruction.checkpoint_id not in self.completed
            assert instruction.checkpoint_id not in self.ended, "aborted twice"
            self.ended.append(instruction.checkpoint_id)
            if instruction.tolerated:
                self.taken_over |= self.files.get(instruction.checkpoint_id, set())
            self.hooked.pop(instruction.checkpoint_id, None)
            missing = self.collecting.pop(instruction.checkpoint_id, None)
            expired = instruction.reason is CheckpointFailureReason.CHECKPOINT_EXPIRED
            if missing and expired and instruction.tolerated:
                self.late[instruction.checkpoint_id] = missing
        elif isinstance(instruction, DiscardState):
            self.deleted |= instruction.files
        elif isinstance(instruction, DropSubsumed):
            assert not set(instruction.checkpoint_ids) & set(self.completed[-RETAINED:])

    def tick(self) -> int:
        self.now += 1
        return self.now

    @precondition(lambda self: not self.ids_wanted and not self.hooked and len(self.coordinator.pending) <= CONCURRENT)
    @rule(what=st.sampled_from([*CheckpointKind, "forced", "periodic"]))
    def somebody_asks(self, what: CheckpointKind | str) -> None:
        if isinstance(what, CheckpointKind):
            self.send(TriggerRequested(self.tick(), kind=what))
        elif what == "forced":
            self.send(TriggerRequested(self.tick(), forced=True))
        else:
            self.send(PeriodicTick(self.tick()))

    @precondition(lambda self: self.ids_wanted)
    @rule()
    def an_id_comes(self) -> None:
        self.ids_wanted -= 1
        self.next_id += 1
        self.send(CheckpointIdAssigned(self.tick(), self.next_id - 1))

    @precondition(lambda self: self.hooked)
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def a_master_hook_answers(self, data: st.DataObject, fails: bool) -> None:
        checkpoint_id = data.draw(st.sampled_from(sorted(self.hooked)))
        identifier = data.draw(st.sampled_from(HOOKS))
        if fails:
            self.send(MasterHookFailed(self.tick(), checkpoint_id, identifier, "no"))
        else:
            self.hooked[checkpoint_id].discard(identifier)
            self.send(MasterStateCollected(self.tick(), checkpoint_id, identifier, 1))

    @precondition(lambda self: self.collecting or self.late)
    @rule(data=st.data(), everyone=st.booleans())
    def tasks_acknowledge(self, data: st.DataObject, everyone: bool) -> None:
        awaited = self.collecting | self.late
        checkpoint_id = data.draw(st.sampled_from(sorted(awaited)))
        missing = awaited[checkpoint_id]
        for task in sorted(missing) if everyone else [data.draw(st.sampled_from(sorted(missing)))]:
            missing.remove(task)
            # There are few contents, so that checkpoints often name the same files.
            snapshot = keyed(f"content-{data.draw(st.integers(0, 3))}", index=task.subtask)
            self.files.setdefault(checkpoint_id, set()).update(snapshot.files())
            self.deleted -= snapshot.files()  # written (again) before it is acknowledged
            if checkpoint_id in self.late:
                self.taken_over |= snapshot.files()
            state = SubtaskState(task.subtask, keyed=snapshot)
            message = AcknowledgeCheckpoint("j", checkpoint_id, 1, task.uid, task.subtask, state)
            self.send(Acknowledge(self.tick(), message))

    @precondition(lambda self: set(self.ended) - self.late.keys() and not self.ids_wanted)
    @rule(data=st.data())
    def a_late_acknowledgement_comes(self, data: st.DataObject) -> None:
        # An expired checkpoint whose state is still handed over takes acknowledgements: tasks_acknowledge sends those.
        checkpoint_id = data.draw(st.sampled_from([each for each in self.ended if each not in self.late]))
        snapshot = keyed(f"content-{data.draw(st.integers(0, 3))}")
        state = SubtaskState(0, keyed=snapshot)
        self.send(Acknowledge(self.tick(), AcknowledgeCheckpoint("j", checkpoint_id, 1, "a", 0, state)))

    @precondition(lambda self: self.collecting)
    @rule(data=st.data(), what=st.sampled_from([*CheckpointFailureReason, "timeout", "restart"]))
    def something_goes_wrong(self, data: st.DataObject, what: CheckpointFailureReason | str) -> None:
        checkpoint_id = data.draw(st.sampled_from(sorted(self.collecting)))
        if isinstance(what, CheckpointFailureReason):
            self.send(Decline(self.tick(), DeclineCheckpoint("j", checkpoint_id, 1, "a", 0, what, {})))
        elif what == "timeout":
            self.send(TimerFired(self.tick(), data.draw(st.integers(1, self.next_id - 1))))
        else:
            self.taken_over.clear()  # all tasks start again from the latest checkpoint
            self.late.clear()
            self.send(JobStatusChanged(self.tick(), False))
            self.send(JobStatusChanged(self.tick(), True))

    @precondition(lambda self: self.writing or self.replacing or self.committing)
    @rule(data=st.data(), outcome=st.sampled_from(["done", "done", "done", "failed", "unknown"]))
    def the_store_answers(self, data: st.DataObject, outcome: str) -> None:
        checkpoint_id = data.draw(st.sampled_from([*self.writing, *self.replacing, *self.committing]))
        if checkpoint_id in self.committing:
            self.committing.remove(checkpoint_id)
            self.send(CommitFinished(self.tick(), checkpoint_id))
            return
        was_replacing = checkpoint_id in self.replacing
        (self.replacing if was_replacing else self.writing).remove(checkpoint_id)
        if outcome != "done":
            unknown = outcome == "unknown" and not was_replacing  # else the job fails
            self.send(MetadataWriteFailed(self.tick(), checkpoint_id, unknown))
        elif was_replacing:
            self.completed.append(checkpoint_id)
            self.send(HeadReplaced(self.tick(), checkpoint_id))
        else:
            self.send(MetadataWritten(self.tick(), checkpoint_id))

    @invariant()
    def the_latest_checkpoint_is_whole(self) -> None:
        if self.completed:
            assert not self.files[self.completed[-1]] & self.deleted

    @invariant()
    def what_tasks_continue_from_is_whole(self) -> None:
        assert not self.taken_over & self.deleted

    @invariant()
    def what_is_pending_is_whole(self) -> None:
        for checkpoint_id in self.coordinator.pending:
            assert not self.files.get(checkpoint_id, set()) & self.deleted

    @invariant()
    def nothing_is_pending_that_ended(self) -> None:
        assert not set(self.coordinator.pending) & {*self.completed, *self.ended}


CoordinatorWalk.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=60)
TestCoordinatorWalk = CoordinatorWalk.TestCase
