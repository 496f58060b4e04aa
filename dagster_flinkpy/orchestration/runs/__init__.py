"""Runs the steps of Dagster runs."""
