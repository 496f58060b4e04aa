"""The work of Dagster runs: epochs, partitions, operations on a job, and checks."""
