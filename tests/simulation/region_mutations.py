"""Breaks rules of jobs with several regions, and adds them to the others."""

from __future__ import annotations

from typing import Any

from dagster_flinkpy.runtime.master.job_master import JobMaster
from dagster_flinkpy.runtime.master.region_execution import RegionExecution
from tests.simulation.mutations import MUTATIONS, ONE_STREAM, Wrapped, mutation

__all__ = ["MUTATIONS"]

_TWO_REGIONS = {**ONE_STREAM, "regions": 1}


@mutation("a region does not wait for its input", RegionExecution, "_written", "KeyError", **_TWO_REGIONS)
def _(real: Wrapped, region: RegionExecution, epochs: Any) -> bool:
    return True


@mutation("a region reads an epoch twice", RegionExecution, "_input", "no uninterrupted run would", **_TWO_REGIONS)
def _(real: Wrapped, region: RegionExecution, checkpoint_id: int) -> Any:
    kept = [number for each in region.before for number in each._outputs]
    return real(region, min(kept, default=checkpoint_id))


@mutation(
    "the acknowledgement of a region is lost", JobMaster, "_acknowledge", "not enough values to unpack", **_TWO_REGIONS
)
def _(real: Wrapped, master: JobMaster, region: RegionExecution, checkpoint_id: int, states: Any) -> None:
    if not region.before:
        real(master, region, checkpoint_id, states)
