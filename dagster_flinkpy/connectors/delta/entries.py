"""The entries of the log of a Delta Lake table, as they are on the store."""

from __future__ import annotations

import json
import re

from dagster_flinkpy.connectors.delta.rules import check_protocol
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import ObjectStore

__all__ = ["check_log", "entries", "entry_name", "read_entry"]

_LOG = "_delta_log/"
_ENTRY = re.compile(r"_delta_log/(\d{20})\.json")


def entry_name(version: int) -> str:
    """Returns the name of the entry of a version."""
    return f"{_LOG}{version:020d}.json"


def entries(store: ObjectStore) -> list[str]:
    """Lists the entries that are there, the oldest first."""
    return sorted(info.key for info in store.list(_LOG) if _ENTRY.fullmatch(info.key))


def read_entry(what: str, store: ObjectStore, key: str) -> list[Json]:
    """Returns the actions of an entry."""
    try:
        return [json.loads(line) for line in store.get(key)[0].decode().splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigurationError(f"{key} of {what} is broken ({error}): put it back as it was") from error


def check_log(what: str, store: ObjectStore, latest: int = 0) -> None:
    """Checks a log with which delta-rs has failed. If this raises, trying again does not help."""
    there = entries(store)
    for key in reversed(there):
        protocols = [action["protocol"] for action in read_entry(what, store, key) if "protocol" in action]
        for protocol in protocols:
            features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
            check_protocol(what, protocol["minReaderVersion"], protocol["minWriterVersion"], features)
        if protocols:
            break
    versions = [int(_ENTRY.sub(r"\1", key)) for key in there]
    has_checkpoint = any(".checkpoint." in info.key for info in store.list(_LOG))
    for version in range(min(versions, default=latest) if has_checkpoint else 0, max([*versions, latest]) + 1):
        if version not in versions:
            raise ConfigurationError(f"{entry_name(version)} of {what} is missing: put it back")
