"""Savepoints, and checkpoints that are found by their path."""
