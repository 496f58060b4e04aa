"""A write to the local store that is killed at one of its steps; the target of a process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dagster_flinkpy.storage.local import LocalObjectStore

__all__ = ["write"]


def write(root: str, action: str, step: int, said: Connection) -> None:
    """Writes ``d/k``, and kills this process before a system call.

    Args:
        root: The folder of the store.
        action: ``put``, ``create`` or ``complete`` (an upload, which is sent first, with its parts).
        step: The number of the call. If there are fewer, the process ends as usual.
        said: Takes the upload.
    """
    store = LocalObjectStore(root)
    if action == "complete":
        upload = store.create_upload("d/k")
        parts = [store.upload_part("d/k", upload, n, b"new" * 10_000) for n in (1, 2)]
        said.send((upload, parts))
    steps = 0

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def before(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return before

    for name in ("open", "mkdir", "fsync", "link", "replace", "unlink", "rmdir", "close"):
        setattr(os, name, watched(getattr(os, name)))
    if action == "put":
        store.put("d/k", b"new" * 20_000)
    elif action == "create":
        store.put("d/k", b"new" * 20_000, if_none_match=True)
    else:
        store.complete_upload("d/k", upload, parts, if_none_match=not Path(root, "d/k").exists())
    os._exit(0)  # without the steps of an orderly end
