"""The subtasks of a region that live in one slot, with their connections to each other and to other slots."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.errors import CheckpointError, SlotLostError, SlotProtocolError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.exchange.input_gate import InputGate
from dagster_flinkpy.runtime.exchange.places import CREDIT, Places, chains_of, input_channels, output_channels
from dagster_flinkpy.runtime.exchange.result_partition import PipelinedSubpartition, ResultPartition
from dagster_flinkpy.runtime.exchange.slot_link import SlotLink
from dagster_flinkpy.runtime.failure import error_to_json, outside_error
from dagster_flinkpy.runtime.shuffle.wire import NO_EDGE, Kind, WireRow
from dagster_flinkpy.runtime.slot.pipelined_task import PipelinedTask
from dagster_flinkpy.runtime.task.breadcrumb import end_forked_process

__all__ = ["SlotDeployment", "Turns"]

_TIMER_SECONDS = 0.02
"""How often timers of processing time are looked at while nothing else happens."""

_TURN_SECONDS, _LONGEST_SECONDS = 0.1, 1.0
"""How much more time than others a task may have had before it waits for them, and the most that it waits for each."""


class Turns:
    """Shares the time of a slot: a task waits while others have something to do that have had less time than it.

    So a function that takes long for each record does not hold up the other pipelines in its slot, and the sender
    before it fills its buffers in between. Time in which a task had nothing to do is not made up for.
    """

    def __init__(self) -> None:
        self._least, self._least_of_round = 0.0, math.inf

    @property
    def any_ready(self) -> bool:
        """Whether a task had something to do in this round, even if its turn is in the next one."""
        return self._least_of_round < math.inf

    def next_round(self) -> None:
        """Begins another round of steps."""
        if self.any_ready:
            self._least, self._least_of_round = self._least_of_round, math.inf

    def has_turn(self, task: PipelinedTask) -> bool:
        """Whether a task that has something to do may do it in this round."""
        task.seconds_had = max(task.seconds_had, self._least)
        if task.seconds_had <= self._least + _TURN_SECONDS:
            return True
        self._least_of_round = min(self._least_of_round, task.seconds_had)
        return False

    def took(self, task: PipelinedTask, seconds: float) -> None:
        """Counts a step."""
        task.seconds_had = min(task.seconds_had + seconds, self._least + _LONGEST_SECONDS)
        self._least_of_round = min(self._least_of_round, task.seconds_had)


class SlotDeployment:
    """Runs the subtasks of a region in one slot (Flink: what a ``TaskExecutor`` has of a job).

    Only the thread of the slot uses it, unless a method says otherwise.

    Args:
        deployment: Its id.
        load: Returns what the tasks do. It is called for each number of a subtask, because the functions of two
            subtasks share no objects.
        places: Which slot has which subtask.
        slot: The name of this slot.
        link: Returns the link to another slot, by its name, for this deployment.
        to_driver: Takes rows for the driver.
        later: Calls a function later on the thread of the slot. Any thread may call it.
        wake: Wakes the thread of the slot. Any thread may call it.
    """

    def __init__(
        self,
        deployment: str,
        load: Callable[[], EpochJob],
        places: Places,
        slot: str,
        *,
        link: Callable[[str, SlotDeployment], SlotLink],
        to_driver: Callable[[WireRow], None],
        later: Callable[[Callable[[], None]], None],
        wake: Callable[[], None],
    ) -> None:
        self.id, self._places, self._slot = deployment, places, slot
        jobs = {index: load() for index in sorted({index for (_, index), name in places.items() if name == slot})}
        job = self.job = next(iter(jobs.values()))
        self._link, self._to_driver, self._later, self._wake = link, to_driver, later, wake
        self._pid = os.getpid()
        self.failed = False
        """Whether a task has failed: nothing is run until the driver cancels all."""
        self.current: PipelinedTask | None = None
        """The task that is running, or the last one."""
        self.links: dict[str, SlotLink] = {}
        self.credits: dict[str, dict[tuple[int, int, int], int]] = {}
        """By slot of the senders, the credits that are to be sent."""
        self.tasks: dict[tuple[str, int], PipelinedTask] = {}
        """By the first operator of the chain, and index."""
        self._heads: dict[str, str] = {}
        """The first operator of the chain that an operator is in."""
        stages = range(job.graph.number_of_stages)
        chains = [(stage, chain) for stage in stages for chain in chains_of(job.graph, stage)]
        for _, chain in chains:
            self._heads.update((vertex.uid, chain[0].uid) for vertex in chain)
        for stage, chain in chains:
            head = chain[0]
            here = (index for index in range(head.parallelism) if places[head.uid, index] == slot)
            self.tasks.update(((head.uid, index), self._create(jobs[index], stage, chain, index)) for index in here)
        self._flush_after = job.buffer_timeout
        self._flushed = self._timers_at = time.monotonic()
        self._with_timers: list[PipelinedTask] = []
        """The tasks that are looked at now and then, once they are open: time alone may give them something to do."""

    def _create(self, job: EpochJob, stage: int, chain: Sequence[JobVertex], index: int) -> PipelinedTask:
        graph = job.graph
        chain = [graph.vertex(vertex.uid) for vertex in chain]
        subpartitions: dict[tuple[int, int], PipelinedSubpartition] = {}
        for edge, target in output_channels(graph, chain, index):
            there = self._places[edge.target, target]
            if there == self._slot:
                send: Callable[[WireRow], None] = partial(self._pass_on, (self._heads[edge.target], target))
            else:
                if there not in self.links:
                    self.links[there] = self._link(there, self)
                send = self.links[there].add
            subpartitions[edge.id, target] = PipelinedSubpartition(send, CREDIT)
        grants: dict[tuple[int, int], Callable[[], None]] = {}
        for edge, sender in input_channels(graph, chain, index):
            there = self._places[edge.source, sender]
            here = partial(self._grant_here, (self._heads[edge.source], sender), edge.id, index)
            elsewhere = partial(self._grant, there, (edge.id, sender, index))
            grants[edge.id, sender] = here if there == self._slot else elsewhere
        return PipelinedTask(
            job,
            stage,
            chain,
            index,
            ResultPartition(subpartitions, self._to_driver),
            InputGate(grants, self._wake, CREDIT),
            later=self._later,
            on_error=self.fail,
        )

    def _pass_on(self, task: tuple[str, int], row: WireRow) -> None:
        self.tasks[task].gate.put(row)

    def _grant_here(self, task: tuple[str, int], edge: int, target: int) -> None:
        self.tasks[task].partition.add_credit(edge, target, 1)

    def _grant(self, slot: str, channel: tuple[int, int, int]) -> None:
        credits = self.credits.setdefault(slot, {})
        credits[channel] = credits.get(channel, 0) + 1

    # --- life --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connects to the other slots, and opens the functions."""
        try:
            for link in self.links.values():
                link.open()
            for link in self.links.values():
                link.await_answer()
        except SlotLostError as error:
            self.fail(error)
        self.in_all(PipelinedTask.open)
        self._with_timers = [] if self.failed else [task for task in self.tasks.values() if task.heeds_time]

    def finish(self) -> None:
        """Closes the functions at the end of the job. Those of other tasks are closed, too, if one raises."""
        for task in self.tasks.values():
            if self.failed:
                task.cancel(sys.maxsize)
            else:
                self._in(task, PipelinedTask.finish)
        self.cut()

    def cancel(self, last: int | None = None) -> None:
        """Gives up what all tasks have begun.

        Args:
            last: The last checkpoint that all tasks of the region have acknowledged. Default: unknown, because the
                driver is gone; then everything is left to the next attempt.
        """
        self.cut()
        for task in self.tasks.values():
            task.cancel(sys.maxsize if last is None else last)

    def cut(self) -> None:
        """Runs nothing any more, and ends the connections to other slots. Any thread may call it."""
        self.failed = True
        for task in self.tasks.values():
            task.is_cut = True
        for link in self.links.values():
            link.cancel()

    def in_all(self, action: Callable[[PipelinedTask], object]) -> None:
        """Does something in all tasks, unless one fails."""
        for task in self.tasks.values():
            if not self.failed:
                self._in(task, action)

    def take_event(self, uid: str, subtask: int, event: Any) -> None:
        """Gives a subtask an event of its coordinator, unless a task has failed."""
        if not self.failed:
            self._in(self.tasks[self._heads[uid], subtask], lambda task: task.take_event(uid, event))

    def _in(self, task: PipelinedTask, action: Callable[[PipelinedTask], object]) -> None:
        self.current = task
        task.resume()
        try:
            action(task)
            task.pause()
        except BaseException as error:
            if os.getpid() != self._pid:
                end_forked_process(task.current, error)
            if not isinstance(error, Exception):
                raise
            self.fail(error)
        if os.getpid() != self._pid:
            end_forked_process(task.current)

    def fail(self, error: BaseException, task: PipelinedTask | None = None) -> None:
        """Tells the driver of an error, of the running task by default, and stops all tasks of this slot."""
        if self.failed:
            return
        self.failed = True
        task = task or self.current or next(iter(self.tasks.values()))
        ours = outside_error(error, f"subtask {task.index} of operator {task.current!r}")
        payload = pa.py_buffer(error_to_json(ours, task.current, task.index))
        self._to_driver(WireRow(task.index, NO_EDGE, task.index, 0, Kind.FAILURE, payload))

    # --- steps -------------------------------------------------------------------------------------------------------

    def steps(self, turns: Turns) -> Iterator[None]:
        """Runs a step of each task whose turn it is. Yields after each: others may wait for its credits."""
        for task in self.tasks.values():
            if not self.failed and task.is_available and turns.has_turn(task):
                began = time.monotonic()
                self._in(task, PipelinedTask.step)
                turns.took(task, time.monotonic() - began)
                self._flush_links()
                yield

    def _flush_links(self) -> None:
        try:
            for link in self.links.values() if not self.failed else ():  # they may not be open
                link.flush()
        except SlotLostError as error:
            self.fail(error)

    def rest(self, worked: bool) -> float | None:
        """Does what is due between two rounds of steps.

        Returns:
            After how many seconds it is to be called again at the latest; None if only something from outside matters.
        """
        for task in self.tasks.values() if not worked else ():
            if task.holds and not self.failed:
                self._in(task, PipelinedTask.process_held)
        now, waits = time.monotonic(), list[float]()
        unsent = [task for task in self.tasks.values() if task.unsent]
        if not unsent:
            self._flushed = now
        elif self._flush_after is not None:
            left = self._flushed + self._flush_after - now
            if left <= 0:
                self._flushed = now
                for task in unsent:
                    if not self.failed:
                        self._in(task, PipelinedTask.flush)
            else:
                waits.append(left)
        if self._with_timers:
            if now >= self._timers_at + _TIMER_SECONDS:
                self._timers_at = now
                for task in self._with_timers:
                    if not self.failed:
                        self._in(task, PipelinedTask.on_processing_time)
            waits.append(_TIMER_SECONDS)
        self._flush_links()
        waits += [link.ask_at - now for link in self.links.values()]
        return None if self.failed else min(waits, default=None)

    # --- from other threads ------------------------------------------------------------------------------------------

    def put(self, row: WireRow) -> None:
        """Takes a row of another slot. Any thread may call it.

        Raises:
            CheckpointError: No task here has the channel.
        """
        edges = self.job.graph.edges
        edge = edges[row.edge] if 0 <= row.edge < len(edges) else None
        task = None if edge is None else self.tasks.get((self._heads[edge.target], row.target))
        if task is None:
            raise CheckpointError(f"slot {self._slot} received data for subtask {row.target} of edge {row.edge}")
        task.gate.put(row)

    def add_credits(self, credits: npt.NDArray[np.int32]) -> None:
        """Takes credits of another slot. Any thread may call it."""
        self._later(partial(self._add_credits, credits))

    def _add_credits(self, credits: npt.NDArray[np.int32]) -> None:
        if self.failed:
            return
        edges = self.job.graph.edges
        try:
            for edge, sender, target, buffers in credits.tolist():
                self.tasks[self._heads[edges[edge].source], sender].partition.add_credit(edge, target, buffers)
        except SlotLostError as error:  # what has waited for credits is sent
            self.fail(error)
        except LookupError:
            self.fail(SlotProtocolError(f"slot {self._slot} received credits for a channel that it does not have"))

    def on_lost_link(self, error: SlotLostError) -> None:
        """Takes the loss of a connection. Any thread may call it."""
        self._later(partial(self.fail, error))
