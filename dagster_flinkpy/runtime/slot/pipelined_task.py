"""A task that lives: it reads as soon as something comes, epoch after epoch, until it is cancelled or all input ends.

It never waits. The slot runs it a step at a time when it has input and room for output (Flink: the default action of
``MailboxProcessor``).
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import Any

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob, Reached
from dagster_flinkpy.runtime.exchange.input_gate import InputGate
from dagster_flinkpy.runtime.exchange.result_partition import ResultPartition
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.source_operator import SourceOperator
from dagster_flinkpy.runtime.operators.source_reader_operator import SourceReaderOperator
from dagster_flinkpy.runtime.shuffle.wire import NO_EDGE, Kind
from dagster_flinkpy.runtime.task.acknowledgement import Acknowledgement
from dagster_flinkpy.runtime.task.operator_task import OperatorTask
from dagster_flinkpy.runtime.task.stream_task import StreamTask

__all__ = ["PipelinedTask"]

_ROWS_AT_ONCE, _SECONDS_AT_ONCE = 8, 0.1
"""How many rows a step takes before other tasks of the slot have their turn, and after what time it takes no more."""


class PipelinedTask(StreamTask):
    """Runs the operators of one chain at one subtask index.

    Args:
        job: What the tasks do, and its first epoch.
        stage: Number of the stage.
        chain: The operators.
        index: Index of the subtask.
        partition: Takes what it sends.
        gate: Has what others have sent to it.
        later: Calls a function later on the thread of the slot. Any thread may call it.
        on_error: Takes an error of the asynchronous part of a snapshot, and the task, unless that declines the
            checkpoint; called on the thread of the slot.
    """

    def __init__(
        self,
        job: EpochJob,
        stage: int,
        chain: Sequence[JobVertex],
        index: int,
        partition: ResultPartition,
        gate: InputGate,
        *,
        later: Callable[[Callable[[], None]], None],
        on_error: Callable[[BaseException, PipelinedTask], None],
    ) -> None:
        super().__init__(job, stage, index, partition, chain)
        self.partition, self.gate = partition, gate
        self._later, self._on_error = later, on_error
        self._to_read: deque[EpochInput] = deque()
        self._reading: Iterator[None] | None = None
        self._begun = job.checkpoint_id
        """The checkpoint of the last epoch that has begun, or of the one with which the task is made."""
        self._open = False
        """Whether the part that is read, or was read last, is of an open epoch."""
        self._channels: dict[str, set[tuple[int, int]]] = {}
        """The channels of its gate, by the operator that receives from them."""
        for channel in gate.channels:
            self._channels.setdefault(job.graph.edges[channel[0]].target, set()).add(channel)
        self._blocked: set[tuple[int, int]] = set()
        self.seconds_had = 0.0
        """How much time of the slot it has had; see `Turns`."""
        self._was_available = True
        self._usage, self._looks = 0.0, 0
        """The sum over how full its gate was whenever it was looked at."""
        self.unsent = False
        """Whether there may be records that wait until a buffer is full."""
        self._selects = False
        """Whether a function of it selects its inputs."""
        self._asks = False
        """Whether it has not asked for the next part of the epoch that is open."""
        self._readers: dict[str, SourceReaderOperator] = {}
        """The operators of its sources that read on until the next part of an epoch is there, by uid."""
        self._reads_on = False
        """Whether all of its sources are such."""
        self._aligned: dict[str, SourceOperator] = {}
        """The operators of its sources that wait for others in event time, by uid."""
        self._told: dict[str, tuple[Reached, float]] = {}
        """What the driver was last told of these, and when it is to be told more."""
        self._given = self._taken = 0
        """The epoch of which sources were last given a part, and of which they have last begun one."""

    def open(self) -> None:
        self.unsent = True
        super().open()
        for task in self._tasks.values():
            if isinstance(task.operator, SourceOperator):
                task.context.pace.waits = lambda: not self.partition.is_available
            if isinstance(task.operator, SourceReaderOperator):
                self._readers[task.vertex.uid] = task.operator
                task.operator.is_called = lambda: bool(self._to_read)
                task.operator.on_available = lambda: self._later(self._poll_again)
        sources = {uid: t.operator for uid, t in self._tasks.items() if isinstance(t.operator, SourceOperator)}
        self._aligned = {uid: source for uid, source in sources.items() if source.alignment is not None}
        self._reads_on = bool(sources) and self._readers.keys() >= sources.keys()
        self._selects = any(task.selects for task in self._tasks.values())
        self._block()  # static inputs come first

    @property
    def epoch(self) -> int:
        """The checkpoint that its first operator works towards."""
        return next(iter(self._tasks.values())).context.checkpoint_id if self._tasks else self.job.checkpoint_id

    def begin(self, epoch: EpochInput) -> None:
        """Lets the sources read an epoch, or a part of an open one."""
        self.unsent = True
        if self.stage == 0:  # others take none out
            self._to_read.append(epoch)
        self._poll_again()
        self.stop_reading(stops=False)
        new, self._begun = epoch.checkpoint_id != self._begun, epoch.checkpoint_id
        if epoch.open and self._reads_on and epoch.checkpoint_id == self._given:
            self.send_event({})  # at once: its output may be full until others, which wait for it to ask, have more
        self._given = epoch.checkpoint_id
        if new:
            for task in self._entered(self._tasks.values()):
                task.add_epoch(epoch)
            self._block()  # barriers may have come before the epoch

    def stop_reading(self, *, stops: bool) -> None:
        """Lets the sources stop amid what they are reading, behind a batch or a part of a slow one; or not."""
        for task in self._tasks.values():
            if isinstance(task.operator, SourceOperator):
                task.operator.stops = stops

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Says how far sources may be in event time."""
        for uid, source in self._aligned.items():
            source.max_watermark = limits.get(uid, MAX_WATERMARK)
        self._poll_again()
        self._tell_watermarks()

    @property
    def heeds_time(self) -> bool:
        """Whether :meth:`on_processing_time` is to be called now and then. It is known once the task is open."""
        by_time = any(task.operator.heeds_time for task in self._tasks.values())
        return by_time or bool(self._readers) or self._selects or self.job.alignment_timeout is not None

    @property
    def is_available(self) -> bool:
        """Whether a step would do something."""
        if not self.partition.is_available:
            return False
        return self._has_sources if self.stage == 0 else self.gate.is_available or self._amid_batch is not None

    @property
    def _has_sources(self) -> bool:
        if self._reading is None or not (self._readers or self._aligned):
            return self._reading is not None or bool(self._to_read)
        sources = ((self._readers.get(uid) or self._aligned.get(uid)) for uid in self._left)
        return not all(source is not None and source.waits for source in sources)

    def resume(self) -> None:
        """The thread of the slot comes to the task, whatever for."""
        self.times.resume(back_pressured=not self._was_available)

    def pause(self) -> None:
        """The thread of the slot leaves the task."""
        self._was_available = self.partition.is_available
        self.times.pause()

    def step(self) -> None:
        """Reads a batch of a source, or takes a few rows of the gate."""
        self.unsent = True
        if self.stage == 0:
            self._step_of_source()
        else:
            self._usage, self._looks = self._usage + self.gate.usage, self._looks + 1
            until = time.monotonic() + _SECONDS_AT_ONCE
            for _ in range(_ROWS_AT_ONCE):
                if time.monotonic() > until or not self.partition.is_available:
                    break
                if (task := self._amid_batch) is not None:
                    for each in self._entered([task]):
                        each.process_part()
                    continue
                if (row := self.gate.poll()) is None:
                    break
                self._take(row)
                may_unblock = self._blocked and row.kind is not Kind.BUFFER
                if self._selects or may_unblock or row.kind is Kind.BARRIER or self.job.alignment_timeout is not None:
                    self._block()
            if self._amid_batch is None:
                if not self.gate.is_available:
                    self.process_held()  # the other tasks of the slot may have work for long
                self.gate.grant()

    @property
    def _amid_batch(self) -> OperatorTask | None:
        """The operator that has processed only parts of a batch."""
        return next((task for task in self._tasks.values() if task.parts is not None), None)

    def _poll_again(self) -> None:
        for reader in self._readers.values():
            reader.rests = False

    def _step_of_source(self) -> None:
        if self._reading is None:
            epoch = self._to_read.popleft()
            self._reading, self._open = self._read(epoch), epoch.open
            has_asked = self._reads_on and epoch.checkpoint_id == self._taken  # see begin()
            self._asks, self._taken = epoch.open and not has_asked, epoch.checkpoint_id
            self._ask()
        try:
            next(self._reading)
        except StopIteration:
            self._reading = None
        self._tell_watermarks()
        self._ask()
        for uid, reader in self._readers.items() if self._open else ():
            for message in reader.take_messages():
                self.send_event({"uid": uid, "subtask": self.index, **message})

    def _tell_watermarks(self) -> None:
        """Tells the driver how far sources are that wait for others: now and then, and when one waits, or is idle."""
        told, now = dict[str, Reached](), time.monotonic()
        now_ms = None if self._has_sources else self.job.clock.now()
        for uid, source in self._aligned.items() if self._open else ():
            reached = source.reached(reads=uid in self._left, now_ms=now_ms)
            before, due = self._told.get(uid, (None, now))
            changes = before is None or reached[1:] != before[1:] or MAX_WATERMARK in (reached[0], before[0])
            if reached != before and (changes or now >= due):
                assert source.alignment is not None
                self._told[uid] = reached, now + source.alignment.update_interval.millis / 1000
                told[uid] = reached
        if told:
            self.send_event({"aligned": told})

    def _ask(self) -> None:
        """Asks for the next part of the epoch once sources have read this one. Readers need not have, they read on."""
        if self._asks and self._left <= self._readers.keys():
            self._asks = False
            sources = {uid: t.operator for uid, t in self._tasks.items() if isinstance(t.operator, SourceOperator)}
            stops = {uid: astuple(each.stop) for uid, each in sources.items() if each.stop is not None}
            watermarks = {uid: each.watermark for uid, each in sources.items() if uid not in self._readers}
            self.send_event({"stops": stops, "watermarks": watermarks} if watermarks else {})

    def send_event(self, message: dict[str, Any]) -> None:
        """Tells the driver what an operator says to its coordinator, or a source to its enumerator.

        Args:
            message: Without content, all sources have read their part of the epoch, and ask for the next one.
        """
        payload = json.dumps(message).encode() if message else b""
        self._rows_out.add(self.index, NO_EDGE, self.index, 0, Kind.OPERATOR_EVENT, payload)

    def take_event(self, uid: str, event: Any) -> None:
        """Gives an operator an event of its coordinator."""
        self.unsent = True
        for task in self._entered([self._tasks[uid]]):
            task.events.take(event)

    def take_queue_metrics(self, uid: str) -> dict[str, float]:
        if self.stage == 0 or uid != self._vertices[0].uid:
            return {}
        usage = self._usage / self._looks if self._looks else self.gate.usage
        self._usage, self._looks = 0.0, 0
        return {"in_pool_usage": round(usage, 3)}

    def _block(self) -> None:
        blocked = {channel for task in self._tasks.values() for channel in task.blocked}
        # Operators that receive from others wait for each other at a barrier. One that goes on might fill a channel
        # that is read only when another one has passed the barrier, too, and a full channel stops the whole task.
        reached = {uid: self._tasks[uid].context.checkpoint_id for uid in self._channels}
        first = min(reached.values(), default=0)
        blocked.update(*(self._channels[uid] for uid, checkpoint_id in reached.items() if checkpoint_id > first))
        if blocked != self._blocked:
            self._blocked = blocked
            self.gate.block(blocked)

    def check_timeouts(self) -> None:
        super().check_timeouts()
        if self._blocked or self._selects:
            self._block()

    @property
    def holds(self) -> bool:
        """Whether small buffers wait for others."""
        return self._amid_batch is None and any(task.holds for task in self._tasks.values())

    def process_held(self) -> None:
        """Processes small buffers that wait for others, because no others are there."""
        for task in self._entered(task for task in self._tasks.values() if task.holds):
            task.process_held()
            self.unsent = True

    def on_processing_time(self) -> None:
        """Fires the timers that are due, and makes checkpoints unaligned whose alignment takes too long."""
        self.unsent = True
        for task in self._entered(self._tasks.values()):
            task.on_processing_time()
            if not (self._open and not self._has_sources):
                continue
            if isinstance(source := task.operator, SourceOperator) and source.becomes_idle(self.job.clock.now()):
                task.send_status(task.vertex.uid, idle=True)
        self._tell_watermarks()
        self.check_timeouts()
        self._poll_again()

    def flush(self) -> None:
        """Sends the records that wait for a full buffer, but for those whose receivers are full."""
        self.unsent = False
        for task in self._tasks.values():
            for output in task.outputs:
                if not output.flush_to_room(self.partition.has_room):
                    self.unsent = True

    def notify(self, news: str, checkpoint_id: int) -> None:
        """Tells functions how a checkpoint has ended."""
        for task in self._entered(self._tasks.values()):
            task.context.state.notify(news, checkpoint_id)

    def cancel(self, last: int) -> None:
        """Gives up what was begun, and closes the functions.

        Args:
            last: The last checkpoint that all tasks of the region have acknowledged. What was prepared up to its
                barrier belongs to the driver.
        """
        self._reading = None
        self._abort(after=last)
        for task in self._tasks.values():
            if task.vertex.uid not in self._closed:
                self._closed.add(task.vertex.uid)
                with suppress(USER_EXCEPTIONS):  # the error that has led here is the one to report
                    task.operator.close()
        self.count.close()
        self._breadcrumb.clear()

    def finish(self) -> None:
        """Closes the functions at the end of the job."""
        self.close_functions()
        self.count.close()
        self._breadcrumb.clear()

    # --- acknowledgements --------------------------------------------------------------------------------------------

    def acknowledge(self, ack: Acknowledgement) -> None:
        if not (left := ack.left):
            self._acknowledge(ack)
            return
        # A future keeps its callbacks, and the acknowledgement its futures: one that knew it would keep it in memory.
        waiting = [ack]
        left[0].add_done_callback(lambda _: self._later(lambda: self.acknowledge(waiting.pop())))

    def _acknowledge(self, ack: Acknowledgement) -> None:
        error = ack.error
        if error is not None and not self.job.declines:
            self._set_current(ack.uid)
            self._on_error(error, self)
            return
        self._rows_out.add(self.index, NO_EDGE, self.index, 0, Kind.ACK, ack.to_json(error))
