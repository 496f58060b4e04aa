"""Ends a run that is terminated, on its page or by ``dagster/max_runtime``, without losing completed work."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from dagster import AssetExecutionContext, DagsterEventType

from dagster_flinkpy.errors import add_note

__all__ = ["ended_with_run", "interrupts_passed_to"]

_LOOK_SECONDS, _LOOKS = 60.0, 5
"""How often the step looks whether Dagster calls its run ended, and how often in a row before it ends, too."""
_CLEAN = "The job has ended after its last checkpoint, from which the next run continues."


@contextmanager
def ended_with_run(context: AssetExecutionContext) -> Iterator[None]:
    """Ends the step that runs inside if its run ends without telling it.

    That is so if the process of the run dies that has started that of the step, and if Dagster has called the run ended
    without telling its process, as when somebody forces the termination of a run whose code server has died, or has
    deleted the run. Nobody could end the step on a page any more, and the next run of the job would wait for it.

    Args:
        context: Context of the step.
    """
    run, ended = multiprocessing.parent_process(), threading.Event()
    own = _has_own_process(context)
    if run is not None and own:
        threading.Thread(target=_end_after, args=(run.join,), name="end of the run", daemon=True).start()
    if own or threading.current_thread() is threading.main_thread():  # otherwise no signal ends the step alone
        pid = run.pid if run is not None and run.pid is not None and own else os.getpid()
        threading.Thread(target=_end_when_over, args=(context, pid, ended), name="end in Dagster", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _end_after(wait: Callable[[], object]) -> None:
    """Ends this process, as Dagster does, when another one has died."""
    wait()
    os.kill(os.getpid(), signal.SIGTERM)


def _end_when_over(context: AssetExecutionContext, pid: int, ended: threading.Event) -> None:
    """Ends a process, as Dagster does, if Dagster has called its run ended, or deleted it, without telling it."""
    over = 0
    while not ended.wait(_LOOK_SECONDS):
        with suppress(Exception):  # Dagster's database is away
            run = context.instance.get_run_by_id(context.run.run_id)
            over = over + 1 if run is None or run.is_finished else 0
        if over >= _LOOKS:
            os.kill(pid, signal.SIGTERM)
            return


def _has_own_process(context: AssetExecutionContext) -> bool:
    started = context.instance.get_records_for_run(context.run.run_id, of_type=DagsterEventType.STEP_WORKER_STARTED)
    steps = [record.event_log_entry.step_key for record in started.records]
    return context.op_execution_context.get_step_execution_context().step.key in steps


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_passed_to(terminate: Callable[[BaseException], object]) -> Iterator[None]:
    """Passes the first interrupt to a function, instead of raising it wherever this thread happens to be.

    Dagster terminates a run with a signal, and its handler raises ``DagsterExecutionInterruptedError`` in the main
    thread. That could be in the middle of a decision about a checkpoint. A second interrupt is raised at once. Outside
    the main thread, where there are no signals, this context does nothing.

    The step fails with the interrupt, as Dagster's own steps do: if it succeeded, Dagster would not execute it again
    when the run is executed again from its failure, and a backfill would take its partitions for complete.

    Args:
        terminate: Takes what the handler in force would raise. It is called in a signal handler, so it must not wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    raising = {number: handler for number, handler in found.items() if callable(handler)}

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        try:
            raising[signal.Signals(number)](number, frame)
        except BaseException as error:
            add_note(error, _CLEAN)
            terminate(error)

    def restore() -> None:
        for number, handler in raising.items():
            signal.signal(number, handler)

    for number in raising:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
