"""The command ``flinkpy``: shows checkpoints, savepoints and the state in them, and works on savepoints.

It needs neither Spark nor Dagster, unless a program is given.
"""

from dagster_flinkpy.cli.command import main

__all__ = ["main"]
