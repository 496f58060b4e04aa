"""Tests functions and programs without Spark: a harness for operators, and runs of whole programs in this process."""

from dagster_flinkpy.testing.local_run import run_local
from dagster_flinkpy.testing.operator_test_harness import HarnessSnapshot, OperatorTestHarness

__all__ = ["HarnessSnapshot", "OperatorTestHarness", "run_local"]
