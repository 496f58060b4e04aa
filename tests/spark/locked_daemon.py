"""A Python daemon of Spark whose workers have no network, and see the store's directory at another path.

Spark starts it as ``spark.python.daemon.module``. Spark itself talks to it over a Unix socket.
"""

from __future__ import annotations

import ctypes
import os
import subprocess

DIRECTORY, MOUNTED = "LOCKED_DIRECTORY", "LOCKED_MOUNTED"
"""Environment variables: the directory of the driver, and where workers find it."""
_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000


def lock() -> None:
    """Moves this process into a network without interfaces, where the directory is mounted elsewhere."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS | _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    directory, mounted = os.environ[DIRECTORY], os.environ[MOUNTED]
    for command in (
        ["--make-rprivate", "/"],
        ["--bind", directory, mounted],
        ["-t", "tmpfs", "nothing", directory],
    ):
        subprocess.run(["mount", *command], check=True)


if __name__ == "__main__":
    lock()
    import runpy

    runpy.run_module("dagster_flinkpy.runtime.worker_daemon", run_name="__main__")
