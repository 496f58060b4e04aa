"""How the tasks of an attempt get to the store: by themselves, or through the driver if their workers cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_flinkpy.errors import StoreUnreachableError, message_of, shorten
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.deployments.driver_files import SentFiles, store_files
from dagster_flinkpy.runtime.master.deployments.region_job import run_region
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["WayToStore"]


class WayToStore:
    """Runs the Spark jobs of an attempt, and finds out with the first one whether workers reach the store."""

    def __init__(self, job_id: str, progress: Callable[[str], None]) -> None:
        self._job_id, self._progress = job_id, progress
        self._direct: bool | None = None
        self._told = 0

    def run(self, spark: SparkSession, job: EpochJob) -> Sequence[WireRow]:
        """Runs a Spark job, and returns the rows for the driver.

        Raises:
            FlinkPyError: It failed; see :func:`run_region`.
        """
        if self._direct is not False:
            try:
                rows = list(run_region(spark, job))
            except StoreUnreachableError as error:
                if self._direct:  # they have reached it before, so this is a failure as any other
                    raise
                self._direct = False
                self._say(f"workers have no way to the store, so all goes through the driver: {message_of(error)}")
            else:
                self._direct = True
                return rows
        sent = SentFiles(job)
        rows = list(run_region(spark, replace(job, through_driver=True), sent))
        self._tell(sent.bytes, sum(row.payload.size for row in rows if row.kind is Kind.FILE))
        return store_files(rows)

    def _tell(self, sent: int, returned: int) -> None:
        """Says what it costs: at first, and when that has doubled."""
        if sent + returned >= 2 * self._told:
            self._told = max(sent + returned, 1)
            self._say(
                f"the driver has sent {sent / 1e6:.1f} MB of state and segments to the tasks of this epoch, and stored "
                f"{returned / 1e6:.1f} MB for them; a directory that workers have mounted (path_on_workers), or a "
                "network to the store, would spare that"
            )

    def _say(self, what: str) -> None:
        self._progress(f"job {self._job_id!r}: {shorten(what, 600)}")
