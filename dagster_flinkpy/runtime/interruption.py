"""Interrupts what runs on Spark when its time is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["interrupted_at"]

_AGAIN_SECONDS = 1.0


@contextmanager
def interrupted_at(spark: SparkSession, tag: str, deadline: float, on_timeout: Callable[[], None]) -> Iterator[None]:
    """Interrupts the Spark jobs that are started inside, if they last too long (Flink: ``CheckpointCanceller``).

    Args:
        spark: The session.
        tag: Tells these jobs from all others.
        deadline: Until when they may last, by ``time.monotonic()``.
        on_timeout: Called before they are interrupted, in another thread.
    """
    over = threading.Event()

    def expire() -> None:
        over.wait(deadline - time.monotonic())
        while not over.is_set():
            on_timeout()
            spark.interruptTag(tag)  # again and again: the job may not have reached Spark yet
            over.wait(_AGAIN_SECONDS)

    spark.addTag(tag)
    threading.Thread(target=expire, name=f"{tag}-timeout", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        spark.removeTag(tag)
