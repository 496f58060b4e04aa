"""Calls an asynchronous function for many records at once (Flink: ``AsyncWaitOperator``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

from dagster_flinkpy.datastream.operator_specs import AsyncWaitSpec
from dagster_flinkpy.errors import TypeMismatchError, shorten
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.function_operators import Collector, FunctionOperator
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch

__all__ = ["AsyncWaitOperator"]

_PATIENCE = 1.0
"""How many seconds a call that is cancelled is waited for. A function may catch that, and go on."""


class AsyncWaitOperator(FunctionOperator):
    """Waits for the calls of a batch before the next batch, watermark or barrier, so none is in a snapshot.

    The event loop has a thread of its own: the task's thread may be one whose loop runs already, as in a notebook.
    """

    def __init__(self, context: OperatorContext, spec: AsyncWaitSpec) -> None:
        super().__init__(context, spec)
        self._spec = spec
        predicate = spec.retry_strategy.get_retry_predicate()
        self._retry_result, self._retry_exception = predicate.result_predicate(), predicate.exception_predicate()
        self._collector = Collector(context)

    def open(self) -> None:
        self._loop = asyncio.new_event_loop()
        name = f"asynchronous calls of {self.context.vertex.uid}"
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        super().open()

    def process(self, input_index: int, batch: StreamBatch) -> None:
        collect, timestamps = self._collector.collect, batch.timestamps.tolist()
        for i, records in asyncio.run_coroutine_threadsafe(self._call_all(batch.values), self._loop).result():
            collect(records, timestamps[i])
        self._collector.flush()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._stop()

    def abort(self) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _call_all(self, values: Sequence[Any]) -> list[tuple[int, list[Any]]]:
        """Returns the index and the results of each record, in the order in which they are emitted."""
        results: list[tuple[int, list[Any]]] = []
        left = iter(enumerate(values))
        callers = [asyncio.create_task(self._call(left, results)) for _ in range(min(self._spec.capacity, len(values)))]
        try:
            await asyncio.gather(*callers)
        except BaseException:
            await _cancelled(callers)
            raise
        return sorted(results, key=lambda result: result[0]) if self._spec.ordered else results

    async def _call(self, left: Iterator[tuple[int, Any]], results: list[tuple[int, list[Any]]]) -> None:
        """Takes one record after the other, and calls the function."""
        seconds = self._spec.timeout_ms / 1000 or None
        for i, value in left:
            outcome = asyncio.create_task(self._outcome(value))
            try:
                in_time, _ = await asyncio.wait([outcome], timeout=seconds)
                if not in_time:
                    outcome.cancel()
                    await asyncio.wait([outcome], timeout=_PATIENCE)
            except asyncio.CancelledError:
                await _cancelled([outcome])
                raise
            method = "async_invoke()" if in_time else "timeout()"
            try:
                # What a call that is cancelled returns or raises does not count.
                returned, error = outcome.result() if in_time else (self.function.timeout(value), None)
                if error is not None:
                    raise error
                results.append((i, self._records(returned, method)))
            except USER_EXCEPTIONS as e:
                raise self.user_error(e, method, value=value) from e

    async def _outcome(self, value: Any) -> tuple[Any, BaseException | None]:
        """Returns what the function returned or raised, so that no error of its can end the loop."""
        try:
            return await self._attempts(value), None
        except USER_EXCEPTIONS as e:
            return None, e

    async def _attempts(self, value: Any) -> Any:
        strategy, attempts = self._spec.retry_strategy, 0
        while True:
            attempts += 1
            try:
                returned = await self.function.async_invoke(value)
                again = self._retry_result is not None and self._retry_result(returned)
            except Exception as e:
                if self._retry_exception is None or not self._retry_exception(e) or not strategy.can_retry(attempts):
                    raise
            else:
                if not again or not strategy.can_retry(attempts):
                    return returned
            await asyncio.sleep(strategy.get_backoff_time_millis(attempts) / 1000)

    def _records(self, returned: Any, method: str) -> list[Any]:
        if isinstance(returned, list):
            return returned
        raise TypeMismatchError(
            f"{method} of operator {self.context.vertex.uid!r} returned {shorten(repr(returned), 200)}, of type "
            f"{type(returned).__name__}: it must return a list of records, which may be empty"
        )


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    for task in (await asyncio.wait(tasks, timeout=_PATIENCE))[0] if tasks else ():
        with suppress(BaseException):
            task.result()  # otherwise asyncio reports that nobody has asked


async def _cancel_others() -> None:
    """Ends what user functions have left running in the loop."""
    await _cancelled(asyncio.all_tasks() - {asyncio.current_task()})
    await asyncio.get_running_loop().shutdown_asyncgens()
