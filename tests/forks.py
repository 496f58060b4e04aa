"""Processes that tests kill. They are forked from one that has loaded what they need; Python has one such process."""

from __future__ import annotations

import multiprocessing

__all__ = ["processes"]

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    ["tests.chaos.sink_job", "tests.storage.killed_writes", "tests.runtime.kill_run", "pyspark.sql.connect.session"]
)
