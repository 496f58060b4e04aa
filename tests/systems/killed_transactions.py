"""Transactions of processes that kill themselves at a step.

The argument is a JSON list with kind, url, conninfo, schema and step of each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from deltalake import DeltaTable

from dagster_flinkpy.connectors.iceberg.committer import IcebergCommitter
from dagster_flinkpy.connectors.postgres.session import Session
from dagster_flinkpy.orchestration.outputs.output_transaction import Output
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.orchestration.outputs.targets import Delta, Files, Iceberg, Postgres, Target, write


def kill(*args: Any, **options: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def method(*args: Any, **options: Any) -> Any:
        real(*args, **options)
        kill()

    setattr(owner, name, method)


def run(kind: str, url: str, conninfo: str, schema: str, step: str) -> None:
    location = StorageLocation(url)
    target: Target
    if kind == "postgres":
        target = Postgres(location, conninfo, schema)
    else:
        made: dict[str, type[Target]] = {"files": Files, "delta": Delta, "iceberg": Iceberg}
        target = made[kind](location)
    transaction = target.begin()
    for n in range(100, 103):
        write(transaction, [n])
    if step == "staged":
        kill()
    elif step == "prepared":
        Output.finish = kill  # type: ignore[method-assign]
    elif step == "committed":
        Output.drop = kill  # type: ignore[method-assign]
    elif kind == "files":
        kill_after(LocalObjectStore, "complete_upload")
    elif kind == "delta":
        DeltaTable.create_write_transaction = kill
    elif kind == "iceberg":
        IcebergCommitter._swap = kill  # type: ignore[method-assign]
    else:
        kill_after(Session, "register")
    transaction.commit()


for arguments in json.loads(sys.argv[1]):
    child = os.fork()  # the libraries are imported once
    if not child:
        run(*arguments)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(f"not killed: {arguments}")
