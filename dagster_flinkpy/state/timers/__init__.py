"""Timers: keyed state in order of time."""
