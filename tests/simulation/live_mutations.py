"""Breaks rules of live tasks and of their exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dagster_flinkpy.runtime.exchange.frames import opened
from dagster_flinkpy.runtime.exchange.input_gate import InputGate
from dagster_flinkpy.runtime.exchange.reply_stream import ReplyStream
from dagster_flinkpy.runtime.exchange.result_partition import PipelinedSubpartition
from dagster_flinkpy.runtime.master.commits.completion_chain import CompletionChain
from dagster_flinkpy.runtime.master.deployments import pipelined_region
from dagster_flinkpy.runtime.master.deployments.pipelined_region import PipelinedRegion
from dagster_flinkpy.runtime.master.epochs.epoch_planner import EpochPlanner
from dagster_flinkpy.runtime.master.slots.slot_pool import Slot
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow, rows_of
from dagster_flinkpy.runtime.slot.deployment import SlotDeployment
from dagster_flinkpy.runtime.slot.pipelined_task import PipelinedTask
from dagster_flinkpy.runtime.slot.task_executor import TaskExecutor
from dagster_flinkpy.runtime.task.barrier_handlers import SingleCheckpointBarrierHandler
from dagster_flinkpy.runtime.task.operator_task import OperatorTask
from dagster_flinkpy.state.files.transfers import Uploads
from tests.simulation.completion_mutations import MUTATIONS
from tests.simulation.mutations import CALM, ONE_STREAM, Wrapped, mutation

__all__ = ["ALIGNED", "LOSING", "MUTATIONS", "live_mutation"]

_QUIET = {**CALM, **dict.fromkeys(("slot_lost", "no_slot", "slow", "cut", "half_open", "stray_calls"), 0.0)}
"""Nothing fails, and nothing is slow."""
ALIGNED = {**_QUIET, **dict.fromkeys(("partitioned", "restore", "savepoint", "upkeep", "requests", "unaligned"), 0.0)}
"""Besides, runs only read, and barriers overtake nothing."""
LOSING = {**ONE_STREAM, "slot_lost": 0.002, "cut": 0.2, "restarts": 1.0}
"""Regions restart."""
_STRAY = {**ONE_STREAM, "slot_lost": 0.0, "no_slot": 0.0, "cut": 0.3, "stray_calls": 1.0, "restarts": 1.0}
"""Calls of earlier deployments are made again."""
_DECLINING = {**ALIGNED, "upload_fails": 0.3, "tolerates": 1.0}
"""Uploads fail, and tasks decline checkpoints."""
_SLOW = {**ALIGNED, "slow": 0.3, "sources": ("whole",)}
_CRASHING = {**_QUIET, "crash": 0.01, "restarts": 0.0}
_WAIT = "wait for each other"


def live_mutation(
    what: str, owner: Any, name: str, noticed: str, chaos: Mapping[str, Any]
) -> Callable[[Wrapped], Wrapped]:
    """Registers a function that replaces a method in worlds with live tasks, see :func:`mutation`."""
    return mutation(what, owner, name, noticed, live=True, **chaos)


# --- the exchange -----------------------------------------------------------------------------------------------------


@live_mutation("a buffer that is read gives no credit back", SlotDeployment, "_grant", _WAIT, ALIGNED)
def _(real: Wrapped, deployment: SlotDeployment, slot: str, channel: Any) -> None:
    pass


@live_mutation("of credits that come together one counts", SlotDeployment, "_add_credits", _WAIT, _SLOW)
def _(real: Wrapped, deployment: SlotDeployment, credits: Any) -> None:
    real(deployment, credits[:1])


@live_mutation("buffers are sent without a credit", PipelinedSubpartition, "add", "more than it has room for", ALIGNED)
def _(real: Wrapped, subpartition: PipelinedSubpartition, row: WireRow) -> None:
    subpartition._send(row)


@live_mutation("what a blocked channel holds is forgotten", InputGate, "block", f"{_WAIT}|but the files have", ALIGNED)
def _(real: Wrapped, gate: InputGate, channels: set[Any]) -> None:
    for name in channels:
        gate._channels[name].rows.clear()
    real(gate, channels)


@live_mutation("a channel that is free again is not read", InputGate, "block", _WAIT, ALIGNED)
def _(real: Wrapped, gate: InputGate, channels: set[Any]) -> None:
    ready = list(gate._ready)
    real(gate, channels)
    gate._ready.clear()
    gate._ready.extend(channel for channel in ready if not channel.blocked)
    for channel in gate._channels.values():
        channel.listed = channel in gate._ready


@live_mutation(
    "a call of another deployment is taken",
    TaskExecutor,
    "receive",
    "the files have|has counted|nothing fails any more|has room",
    _STRAY,
)
def _(real: Wrapped, executor: TaskExecutor, call: bytes, reader: Any, writer: Any) -> None:
    fields = opened(call, deployment=str, slot=str)
    deployment = next(iter(executor._deployments.values()), None)
    if fields["deployment"] in executor._deployments or deployment is None:
        real(executor, call, reader, writer)
        return
    replies = ReplyStream(writer)
    for chunk in reader:
        for row in rows_of(chunk.data) if chunk.data is not None else ():
            deployment.put(row)
    replies.end()


# --- checkpoints ------------------------------------------------------------------------------------------------------


@live_mutation(
    "an aligning gate reads on where the barrier has come",
    SingleCheckpointBarrierHandler,
    "_on_barrier",
    "but the files have",
    ALIGNED,
)
def _(real: Wrapped, handler: SingleCheckpointBarrierHandler, event: Any, actions: list[Any]) -> None:
    real(handler, event, actions)
    if handler._pending and not handler._taken:
        handler._unblock(actions)


@live_mutation(
    "what overtaken channels hold is no part of a checkpoint", OperatorTask, "handle", "but the files have", {}
)
def _(real: Wrapped, task: OperatorTask, event: Any) -> None:
    for _, in_flight in task._taken.values():
        in_flight._rows.clear()
    real(task, event)
    for _, in_flight in task._taken.values():
        in_flight._rows.clear()


class _Written:
    """A snapshot of keyed state that does not wait for its uploads."""

    def __init__(self, real: Any) -> None:
        self._real = real

    @property
    def waits_for(self) -> Any:
        return self._real.waits_for if self.has_failed else ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@live_mutation("a task acknowledges before its files are there", PipelinedTask, "acknowledge", "does not exist", _SLOW)
def _(real: Wrapped, task: PipelinedTask, ack: Any) -> None:
    real(task, replace(ack, uploads=(), keyed=ack.keyed and _Written(ack.keyed)))


@live_mutation(
    "a checkpoint that a task has declined is completed", CompletionChain, "proceed", "does not exist", _DECLINING
)
def _(real: Wrapped, chain: CompletionChain) -> Any:
    chain._declined.clear()
    return real(chain)


@live_mutation(
    "what could not be uploaded is forgotten", Uploads, "retry", "does not exist|CorruptStateError", _DECLINING
)
def _(real: Wrapped, uploads: Uploads, needed: Any) -> None:
    real(uploads, ())


@live_mutation(
    "other tasks continue from a state that is not in the store",
    EpochPlanner,
    "advance",
    "does not exist|CorruptStateError",
    {**_DECLINING, "slot_lost": 0.002, "restarts": 1.0},
)
def _(real: Wrapped, planner: EpochPlanner, checkpoint_id: int, results: Any, **options: Any) -> None:
    real(planner, checkpoint_id, replace(results, declined=None), **options)


@live_mutation(
    "an epoch that has not begun here begins with its barrier",
    OperatorTask,
    "_keeps_ahead",
    "files have|upload is gone",
    _SLOW,
)
def _(real: Wrapped, task: OperatorTask, event: Any) -> bool:
    return False


@live_mutation(
    "barriers overtake rows of a time partition",
    EpochPlanner,
    "job",
    "ends its partition, with",
    {**_QUIET, "partitioned": 1.0, "unaligned": 1.0},
)
def _(real: Wrapped, planner: EpochPlanner, *args: Any) -> Any:
    job, checkpointing = real(planner, *args), planner.config.checkpointing
    return replace(job, alignment_timeout=checkpointing.aligned_timeout if checkpointing.unaligned else None)


@live_mutation(
    "barriers overtake records behind which all input ends",
    OperatorTask,
    "trigger",
    "but the files have|in flight",
    {**_SLOW, "unaligned": 1.0, "sources": ("late",)},
)
def _(real: Wrapped, task: OperatorTask, checkpoint_id: int, *, aligned: bool) -> None:
    real(task, checkpoint_id, aligned=False)


# --- the end ----------------------------------------------------------------------------------------------------------


@live_mutation(
    "a cancelled task aborts what was acknowledged",
    PipelinedTask,
    "cancel",
    "upload is gone|has to commit it|is not complete",
    LOSING,
)
def _(real: Wrapped, task: PipelinedTask, last: int) -> None:
    real(task, 0)


@live_mutation(
    "tasks go on that have read what does not count",
    pipelined_region,
    "_continues",
    "but the files have|has counted|ends the input, with",
    LOSING,
)
def _(real: Wrapped, deployment: Any, job: Any) -> bool:
    return True


@live_mutation("rows of an earlier deployment count", PipelinedRegion, "on_rows", f"{_WAIT}|has not what", LOSING)
def _(real: Wrapped, region: PipelinedRegion, slot: Slot, deployment: str, rows: list[WireRow]) -> None:
    now = region._deployment
    real(region, slot, now.id if now is not None else deployment, [row for row in rows if row.kind is not Kind.FAILURE])


@live_mutation("a slot whose driver is gone lives on", TaskExecutor, "_watch", "though its driver is gone", _CRASHING)
def _(real: Wrapped, executor: TaskExecutor) -> None:
    pass
