"""Checks whether a machine, or a Spark cluster, can run jobs, and says how to fix what is missing."""

from dagster_flinkpy.doctor.diagnosis import diagnose
from dagster_flinkpy.doctor.finding import Finding, Verdict

__all__ = ["Finding", "Verdict", "diagnose"]
