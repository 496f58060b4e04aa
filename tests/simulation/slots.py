"""Slots in processes of the world, in which the library's own task executors run live tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa

from dagster_flinkpy.checkpoint import store
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.connectors.sources.source_coordinator import SourceCoordinator
from dagster_flinkpy.errors import SlotLostError, StorageError
from dagster_flinkpy.runtime import shipping
from dagster_flinkpy.runtime.exchange import input_gate, reply_stream, result_partition, slot_link
from dagster_flinkpy.runtime.exchange.input_gate import InputGate
from dagster_flinkpy.runtime.master.deployments import job_exchange, pipelined_region
from dagster_flinkpy.runtime.master.deployments.pipelined_region import PipelinedRegion
from dagster_flinkpy.runtime.master.job_session import JobSession
from dagster_flinkpy.runtime.master.slots import slot_pool
from dagster_flinkpy.runtime.master.slots.job_slots import JobSlots
from dagster_flinkpy.runtime.operators import source_reader_operator
from dagster_flinkpy.runtime.shuffle import batch, record_writer
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow
from dagster_flinkpy.runtime.slot import deployment, pipelined_task, task_executor
from dagster_flinkpy.runtime.slot.deployment import SlotDeployment
from dagster_flinkpy.runtime.slot.pipelined_task import PipelinedTask
from dagster_flinkpy.runtime.slot.task_executor import SlotDescriptor, TaskExecutor
from dagster_flinkpy.runtime.task import acknowledgement, operator_task, stream_task
from dagster_flinkpy.state.files import operator_state, transfers
from dagster_flinkpy.state.files.cache import Run, RunCache
from dagster_flinkpy.state.files.run_file import read_run
from dagster_flinkpy.state.files.runs import RunFiles
from dagster_flinkpy.state.handles import RunHandle
from tests.simulation.network import Network, Server
from tests.simulation.threads import (
    RequestLock,
    SimulatedFuture,
    SimulatedUuid,
    simulated_queue,
    simulated_threading,
    simulated_time,
)
from tests.simulation.world import Actor, Process, World

_STUCK_MS = 8_000
"""How long nothing may happen: longer than any timer of a task, and shorter than the timeout of a checkpoint."""

_ORPHANED_SECONDS = 75
"""How long a slot may live whose driver is gone: the timeout of heartbeats, the interval at which it looks, and the
time to end."""

__all__ = ["SimulatedSlot", "exchange_options", "live_tasks"]


def exchange_options(world: World) -> ExchangeOptions:
    """Draws how live tasks exchange records."""
    timeout = world.rng.choice((timedelta(0), timedelta(milliseconds=50), timedelta(seconds=2), None))
    return ExchangeOptions(
        ExchangeMode.PIPELINED,
        buffer_timeout=timeout,
        slot_request_timeout=timedelta(seconds=100),
        task_slots=2 if world.cores.number == 1 else 1,
    )


class SimulatedSlot:
    """What Spark does with a slot: starts its process, and ends it, sooner or later."""

    def __init__(self, network: Network, descriptor: SlotDescriptor) -> None:
        self._network, self._world, self._descriptor = network, network.world, descriptor
        self._process = Process(name=f"slot {descriptor.name} {descriptor.id[:4]}", is_slot=True)
        self._killed = False
        self._actor: Actor | None = None
        driver = self._world.current.process
        driver.on_end.append(self._driver_ended)
        if self._world.rng.random() < 0.5:  # as a Spark that lives in the driver's process
            driver.on_end.append(self.end)

    def run(self) -> None:
        world = self._world
        world.sleep(world.rng.choice((0.01, 0.2, 3)))
        if world.chaos.no_slot and world.rng.random() < world.chaos.no_slot:
            world.note(f"no core is free for {self._process.name}")
            world.wait_for(lambda: self._killed, world.in_seconds(world.rng.choice((5, 50, 300))))
        if self._killed:
            raise SlotLostError("it was not needed any more")
        executor = TaskExecutor(self._descriptor)
        self._network.executors[executor] = self._process
        raised: list[Exception] = []

        def body() -> None:
            try:
                executor.run()
            except (SlotLostError, pa.ArrowException, OSError) as error:
                raised.append(error)

        actor = self._actor = world.spawn(self._process.name, body, self._process)
        world.wait_for(lambda: actor.over)
        del self._network.executors[executor]
        self._process.crash()  # a worker that is kept for the next task runs nothing of this one
        if raised:
            raise SlotLostError(str(raised[0]))

    def _driver_ended(self) -> None:
        world, ended_at = self._world, self._world.now_ms

        def check() -> None:
            world.sleep(_ORPHANED_SECONDS)
            alive = self._actor is not None and not self._actor.over
            if alive and self._process.paused_until_ms < ended_at and not world.chaos.pause:
                world.report(f"{self._process.name} lives on, though its driver is gone")

        world.spawn("check", check)

    def end(self) -> None:
        world = self._world
        if self._killed:
            return
        self._killed = True
        lives_on = world.rng.random() < world.chaos.lives_on

        def end() -> None:
            world.sleep(world.rng.choice((5, 60, 600)) if lives_on else world.rng.choice((0, 0.2, 3)))
            self._process.crash()

        world.spawn("Spark", end)


class Background:
    """Replaces a thread pool whose work runs beside that of the process. Each piece of work is an actor."""

    def __init__(self, network: Network, name: str) -> None:
        self._network, self._world, self._name = network, network.world, name

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        network, world, future = self._network, self._world, SimulatedFuture(self._world)
        network.working += 1

        def run() -> None:
            try:
                if world.rng.random() < world.chaos.slow:
                    world.sleep(world.rng.choice((0.05, 1, 10, 90)))  # longer than a checkpoint may take
                fails = world.chaos.upload_fails if self._name in ("snapshot", "upload") else 0.0
                if fails and world.rng.random() < fails:
                    world.note(f"{self._name} fails")
                    raise StorageError(f"503 SlowDown: {self._name}")
                result = work(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            finally:
                network.working -= 1

        world.spawn(f"{world.current.name}/{self._name}", run, world.current.process)
        return future


def _in_parts(
    pace: batch.Pace, records: batch.StreamBatch, function: Callable[[batch.StreamBatch], object]
) -> Iterator[int]:
    """As `Pace.process`, with functions that are slow."""
    pace.is_slow = True
    for start in range(0, len(records), 3):
        function(records.slice(start, start + 3))
        yield min(start + 3, len(records))


@contextmanager
def live_tasks(world: World) -> Iterator[Network]:
    """Makes the exchange, the slots and their tasks follow the world."""
    network, rng = Network(world), world.rng
    with ExitStack() as stack:

        def patch(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        threading, time, uuid = simulated_threading(world), simulated_time(world), SimulatedUuid(world)
        for module in (
            *(input_gate, reply_stream, slot_link, job_exchange, pipelined_region, slot_pool, task_executor),
            *(deployment, pipelined_task, operator_task, stream_task, acknowledgement, source_reader_operator),
            *(result_partition, batch),
        ):
            for name, value in (("threading", threading), ("time", time), ("uuid", uuid)):
                if hasattr(module, name):
                    patch(module, name, value)
        patch(slot_pool, "SimpleQueue", simulated_queue(world))
        patch(store, "Lock", lambda: RequestLock(world))
        patch(slot_pool, "secrets", SimpleNamespace(token_hex=lambda n: f"{rng.getrandbits(8 * n):0{2 * n}x}"))
        # The network.
        patch(task_executor, "connect", lambda location, certificate: network.connect(location))
        patch(task_executor, "calling", lambda token: token)
        patch(task_executor, "address_towards", lambda host, port: "host")
        for module in (task_executor, slot_pool):
            patch(module, "Endpoint", lambda location, token, tls, serve: Server(network, token, serve))
        patch(job_exchange, "start_on_spark", lambda job_id, shared: partial(SimulatedSlot, network))
        patch(job_exchange, "host_of_driver", lambda settings: "driver")
        patch(job_exchange, "announce_job", lambda *args, **options: nullcontext())
        patch(job_exchange, "kept_slots", lambda settings: None)
        patch(JobSession, "open", lambda session: nullcontext())
        patch(JobSlots, "look", lambda slots, spark, wait: None)
        # Programs are small, and are importable. Buffers and channels are small, too, so that they are full.
        patch(shipping, "user_modules_by_value", lambda pickler: nullcontext())
        patch(deployment, "_TIMER_SECONDS", 1.0)
        patch(deployment, "CREDIT", rng.choice((1, 2, 3)))
        patch(pipelined_task, "_ROWS_AT_ONCE", rng.choice((1, 3, 8)))
        small = rng.choice((1, 1, 1 << 20))
        patch(record_writer, "BUFFER_SIZE", small)
        patch(operator_task, "_JOINED_SIZE", small)
        patch(batch.Pace, "process", _in_parts)
        patch(slot_link, "_SEND_BYTES", rng.choice((1, 4 << 20)))
        # State is in files that are uploaded aside, and that no machine has copies of.
        patch(operator_state, "INLINE_BELOW", rng.choice((0, 20_000)))
        patch(RunFiles, "write", _writing_files(world, RunFiles.write))
        patch(transfers, "_threads", lambda purpose, process: Background(network, purpose))
        patch(RunCache, "open", lambda cache, handle, store: Run.of(read_run(handle, store)[0]).within(handle.span))
        patch(SlotDeployment, "cut", _cutting(network, SlotDeployment.cut))
        patch(InputGate, "put", _counting(network, InputGate.put))
        patch(PipelinedTask, "step", _noting(network, PipelinedTask.step))
        patch(PipelinedRegion, "_wait", _watched(network, PipelinedRegion._wait))
        patch(PipelinedRegion, "_read_on", _ending(network, PipelinedRegion._read_on))
        patch(SourceCoordinator.__init__, "__defaults__", (time.monotonic,))
        world.on_idle = lambda: _check_that_something_happens(network)
        patch(RunCache, "put", lambda cache, handle, table: Run.of(table))
        yield network


def _cutting(network: Network, real: Any) -> Any:
    def cut(deployment: SlotDeployment) -> None:
        network.cut |= {task.gate for task in deployment.tasks.values()}
        real(deployment)

    return cut


def _counting(network: Network, real: Any) -> Any:
    def put(gate: InputGate, row: WireRow) -> None:
        real(gate, row)
        channel = gate._channels[row.edge, row.channel]
        held = sum(each.kind is Kind.BUFFER for each in channel.rows)
        if held > deployment.CREDIT and gate not in network.cut:
            network.world.report(f"channel {row.edge, row.channel} holds more than it has room for")

    return put


def _noting(network: Network, real: Any) -> Any:
    def step(task: PipelinedTask) -> None:
        began = network.world.now_ms
        real(task)
        # Readers are polled again and again, but those of a slot may be slow one after another.
        if not task._readers or task._has_sources or network.world.now_ms > began:
            network.moved()

    return step


def _watched(network: Network, real: Any) -> Any:
    def wait(region: PipelinedRegion, *args: Any, seconds: float | None = None, **options: Any) -> None:
        if seconds is None or region in network.ending:  # otherwise no barrier is to come, and input need not
            network.waiting[region] = network.world.current.process
        try:
            real(region, *args, seconds=seconds, **options)
        finally:
            network.waiting.pop(region, None)

    return wait


def _ending(network: Network, real: Any) -> Any:
    def read_on(region: PipelinedRegion, *args: Any) -> None:
        network.ending.add(region)
        try:
            real(region, *args)
        finally:
            network.ending.discard(region)

    return read_on


def _check_that_something_happens(network: Network) -> None:
    """Reports tasks that wait for each other: nothing is under way, nobody is away, and an epoch does not end."""
    world = network.world
    if world.now_ms - network.moved_at < _STUCK_MS or network.working:
        return
    for region, driver in network.waiting.items():
        deployment = region._deployment
        if deployment is None or deployment.is_broken or region._interrupted or not deployment.reading:
            continue
        executors = {each._descriptor.id: (each, process) for each, process in network.executors.items()}
        found = [executors[slot.id] for slot in deployment.slots.values() if slot.id in executors]
        processes = [driver, *(process for _, process in found)]
        if len(found) < len(deployment.slots) or any(each.is_away(world.now_ms) for each in processes):
            continue
        calls = [call for call in network.calls if call.caller in processes or call.served_by in processes]
        if all(call.is_quiet for call in calls) and not any(each._mails or each._closed for each, _ in found):
            tasks = "; ".join(_described(each, deployment.id) for each, _ in found)
            world.report(f"the tasks of a region wait for each other: {dict(deployment.acknowledged)}; {tasks}")


def _described(executor: TaskExecutor, name: str) -> str:
    """Says where the tasks of a slot are."""
    deployment, lines = executor._deployments.get(name), list[str]()
    for (uid, index), task in {} if deployment is None else deployment.tasks.items():
        full = [channel for channel, each in task.partition.subpartitions.items() if not each.is_available]
        rows = {name: len(each.rows) for name, each in task.gate._channels.items() if each.rows}
        lines.append(
            f"{uid}[{index}] at {task.epoch}: has {rows}, of which {sorted(task._blocked)} are blocked, and waits for "
            f"room in {full}"
        )
    failed = "it has no tasks" if deployment is None else "failed" if deployment.failed else "runs"
    return f"slot {executor._descriptor.name} ({failed}): {', '.join(lines)}"


def _writing_files(world: World, real: Any) -> Any:
    def write(files: RunFiles, *args: Any) -> tuple[RunHandle, Run]:
        files.inline_below = world.rng.choice((0, 20_000))
        written: tuple[RunHandle, Run] = real(files, *args)
        return written

    return write
