"""The operators of one stage at one subtask index, with their outputs: what every kind of task has."""

from __future__ import annotations

import math
import sys
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from dagster_flinkpy.datastream.operator_specs import SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.source_operator import SourceOperator
from dagster_flinkpy.runtime.shuffle.channel_selectors import upstream_subtasks
from dagster_flinkpy.runtime.shuffle.record_writer import BufferPool, RecordWriter
from dagster_flinkpy.runtime.shuffle.wire import SEQ_BITS, Kind, RowOutput, WireRow
from dagster_flinkpy.runtime.task.latency import LatencyMarker, LatencyTimer
from dagster_flinkpy.runtime.task.operator_task import OperatorTask
from dagster_flinkpy.runtime.task.outputs import ChainingOutput, writer_output
from dagster_flinkpy.runtime.task.parent_task import ParentTask
from dagster_flinkpy.spark.record_counts import TaskCount

__all__ = ["StreamTask"]

_FRAMES = 20
"""An operator of a chain takes at most so many frames of Python's stack, without those of user functions."""


class StreamTask(ParentTask):
    """Has the operators of one stage at one subtask index (Flink: ``StreamTask``, ``OperatorChain``).

    Args:
        job: What the tasks do.
        stage: Number of the stage.
        index: Index of the subtask.
        output: Takes the rows that the task sends.
        chain: The operators, if they are only one of the chains of the stage. Default: all of the stage.
    """

    def __init__(
        self, job: EpochJob, stage: int, index: int, output: RowOutput, chain: Sequence[JobVertex] | None = None
    ) -> None:
        graph = job.graph
        vertices = graph.stage_vertices(stage) if chain is None else chain
        self._vertices = [v for v in vertices if index < v.parallelism]
        others = 0 if chain is None else graph.stage_vertices(stage).index(chain[0])
        super().__init__(index, output, TaskCount(job.counts, stage, f"{index}-{others}"), self._vertices[0].uid)
        self.job, self.stage = job, stage
        self.execution = uuid.uuid4().hex[:16]
        self._pool = BufferPool()
        self._tasks: dict[str, OperatorTask] = {}
        self._closed: set[str] = set()
        """The operators whose functions are closed, or were to be."""
        self._latency: dict[str, LatencyTimer] = {}
        self._left = set[str]()
        """The sources that have not read all that they were given last."""

    def _entered(self, tasks: Iterable[OperatorTask]) -> Iterator[OperatorTask]:
        """Yields operators, each of which is the current one until the next is asked for."""
        for task in tasks:
            self.enter(task.vertex.uid)
            yield task
            self.leave()

    # --- life --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Creates the operators and opens their functions."""
        # A chain is calls within calls, as deep as it is long.
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _FRAMES * (len(self._vertices) + 50)))
        self._connect()
        for task in self._entered(self._tasks.values()):
            task.operator.open()
            for selector in self.job.graph.selectors(self.job.graph.outputs(task.vertex.uid)):
                task.operator.open_function(selector)
        for task in self._entered(self._tasks.values()):
            task.resume()
        # Downstream operators come first: their own in-flight data precedes what upstream in-flight data produces.
        for task in self._entered(reversed(self._tasks.values())):
            task.replay()
        for task in self._entered(self._tasks.values()):
            task.on_processing_time()

    def _connect(self) -> None:
        """Creates the operators and their outputs."""
        graph = self.job.graph
        for vertex in self._vertices:
            self.enter(vertex.uid)
            self._tasks[vertex.uid] = OperatorTask(self, vertex, self.job, self.index, self.execution)
            self.leave()
        for task in self._tasks.values():
            task.context.pace.keep_together(graph.at_once(task.vertex.uid))
            for edge in graph.outputs(task.vertex.uid):
                if graph.is_chained(edge):
                    task.outputs.append(ChainingOutput(edge, self._tasks[edge.target]))
                else:
                    target = graph.vertex(edge.target)
                    senders = upstream_subtasks(edge.partitioner.kind, 0, task.vertex.parallelism, target.parallelism)
                    writer = RecordWriter(
                        edge,
                        self.index,
                        target.parallelism,
                        target.max_parallelism,
                        self._rows_out,
                        channels=task.vertex.parallelism,
                        replay=(self.job.job_id, self.job.checkpoint_id),
                        pool=self._pool,
                        together=math.ceil(graph.at_once(edge.target) / len(senders)),
                        after_static=bool(first := graph.static_inputs(edge.target)) and edge not in first,
                    )
                    task.outputs.append(writer_output(writer, self.job))

    def close_functions(self) -> None:
        """Closes the functions."""
        for task in self._entered(self._tasks.values()):
            self._closed.add(task.vertex.uid)
            task.operator.close()
            for selector in self.job.graph.selectors(self.job.graph.outputs(task.vertex.uid)):
                task.operator.call("close()", selector.close)

    def _abort(self, after: int = 0) -> None:
        """Aborts what belongs to checkpoints after this one."""
        for task in self._tasks.values():
            if task.context.checkpoint_id > after:
                with suppress(USER_EXCEPTIONS):  # the next attempt aborts what remains
                    task.operator.abort()

    # --- input -------------------------------------------------------------------------------------------------------

    def _read(self, epoch: EpochInput) -> Iterator[None]:
        """Reads what the sources read up to a barrier, and takes their snapshots. Of an open epoch, it reads a part.

        In an open epoch sources take turns: one that reads until the next part is there must not hold up the others.
        """
        sources = [(t, t.operator) for t in self._tasks.values() if isinstance(t.operator, SourceOperator)]
        self._left = {task.vertex.uid for task, _ in sources}
        for _, source in sources:
            source.aligns = epoch.open and source.may_wait(epoch)
        return self._read_all(sources, epoch, take_turns=epoch.open and len(sources) > 1)

    def _read_all(
        self, sources: Sequence[tuple[OperatorTask, SourceOperator]], epoch: EpochInput, *, take_turns: bool
    ) -> Iterator[None]:
        for task, source in sources:
            if source.waits:  # it has input, though it must not read it yet
                self.enter(task.vertex.uid)
                task.send_status(task.vertex.uid, idle=False)
                self.leave()
        reading = deque((t.vertex.uid, s, self._read_source(t, s, epoch)) for t, s in sources)
        while reading:
            uid, source, batches = reading[0]
            try:
                if not source.waits:
                    next(batches)
            except StopIteration:
                self._left.remove(uid)
                reading.popleft()
                continue
            if take_turns:
                reading.rotate(-1)
            yield
        if epoch.open:
            return
        ends = all(v.uid in epoch.ended_sources for v in self.job.graph.vertices if isinstance(v.spec, SourceSpec))
        for task in self._entered(task for task, _ in sources):
            task.trigger(epoch.checkpoint_id, aligned=ends)

    def _read_source(self, task: OperatorTask, source: SourceOperator, epoch: EpochInput) -> Iterator[None]:
        uid = task.vertex.uid
        timer = self._latency.setdefault(uid, LatencyTimer(self.job.latency_interval))
        self.enter(uid)
        if source.hear(epoch, self.job.clock.now()) and uid not in epoch.ended_sources:
            task.send_status(uid, idle=True)
        elif source.knows_idleness(epoch):
            task.send_status(uid, source.is_idle(epoch))
        for watermark in source.run(epoch):
            task.send_watermark(uid, watermark)
            now = self.job.clock.now()
            if timer.due(now):
                task.send_latency_marker(LatencyMarker(uid, self.index, now))
            self.leave()  # until it is asked again, others run, or the task waits
            yield
            self.enter(uid)
        if source.stop is None and source.is_idle_when_read(epoch):
            task.send_status(uid, idle=True)
        self.leave()

    def _take(self, row: WireRow) -> None:
        """Takes a row that is for an operator of this task."""
        task = self._tasks[self.job.graph.edges[row.edge].target]
        channel = (row.edge, row.channel)
        if row.kind is Kind.BARRIER:
            task.receive_barrier(channel, row.payload)
        elif row.kind is Kind.CANCEL_BARRIER:
            task.cancel(channel)
        else:
            task.receive(channel, row.kind, row.payload, row.seq >> SEQ_BITS)
        self.check_timeouts()

    def check_timeouts(self) -> None:
        """Makes checkpoints unaligned whose alignment takes too long."""
        if self.job.alignment_timeout is not None:
            for each in self._tasks.values():
                each.check_timeout()
