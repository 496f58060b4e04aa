"""Sensors: the periodic trigger, restarts, job status and upkeep."""
