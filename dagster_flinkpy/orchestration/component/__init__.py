"""A pipeline as a Dagster component."""
