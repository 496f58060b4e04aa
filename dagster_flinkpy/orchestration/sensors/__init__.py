"""Sensors for periodic checkpoints, restarts, job status and upkeep."""
