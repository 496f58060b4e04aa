from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.state import StateDescriptor
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.columns import NumberColumn, SharedColumn
from dagster_flinkpy.state.files import cache as cache_module
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.files.compaction import SectionRows
from dagster_flinkpy.state.files.runs import Runs
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.value_folds import PaneState, fold_values
from dagster_flinkpy.storage.local import LocalObjectStore

MAX_PARALLELISM = 16
HASHMAP = {"overlay_rows": sys.maxsize, "one_run": True}
"""The options of the backend that is called ``hashmap``."""


@pytest.fixture(scope="package", autouse=True)
def _tombstones_of_exact_tables() -> Iterator[None]:
    """Each tombstone of a table that says so hides a row."""
    append = Runs.append

    def checked(runs: Runs, delta: pa.Table | None) -> None:
        if runs._exact and delta is not None:
            assert len(runs._without_idle_tombstones(delta)) == len(delta)
        append(runs, delta)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runs, "append", checked)
        yield


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "store")


@pytest.fixture
def cache(tmp_path: Path) -> RunCache:
    return RunCache(tmp_path / "cache")


@contextmanager
def small_disk(max_bytes: int, *, look_after: int = 1) -> Iterator[None]:
    """Lets a cache keep this many bytes."""

    def usage(path: Path) -> SimpleNamespace:
        used = 0
        for each in path.glob("*.arrow"):
            with suppress(FileNotFoundError):  # another process may delete it
                used += each.stat().st_size
        return SimpleNamespace(free=2 * max_bytes - used)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_module, "_LOOK_AFTER", look_after)
        patch.setattr(cache_module.shutil, "disk_usage", usage)
        yield


MakeBackend = Callable[..., ColumnarKeyedStateBackend]


@pytest.fixture
def make_backend(store: LocalObjectStore, cache: RunCache) -> MakeBackend:
    def make(
        restored: KeyedSnapshot | None = None,
        *,
        key_type: TypeInformation | None = None,
        key_groups: KeyGroupRange = KeyGroupRange(0, MAX_PARALLELISM - 1),  # noqa: B008
        **options: Any,
    ) -> ColumnarKeyedStateBackend:
        options = {"store": store, "cache": cache, **options}
        backend = ColumnarKeyedStateBackend(
            operator="op", key_groups=key_groups, max_parallelism=MAX_PARALLELISM, restored=restored, **options
        )
        if key_type is not None:
            backend.bind_key_type(key_type)
        return backend

    return make


def touch(backend: ColumnarKeyedStateBackend, key_type: TypeInformation, keys: Sequence[Any]) -> None:
    column = key_type.to_arrow(keys)
    backend.touch_column(column, hash_keys(key_type, column))


def groups_of(key_type: TypeInformation, keys: Sequence[Any]) -> np.ndarray[Any, Any]:
    return key_groups_of_hashes(hash_keys(key_type, key_type.to_arrow(keys)), MAX_PARALLELISM)


def merge_from(sizes: list[int], base_rows: int, *, turn: bool = False, **rows: Any) -> int:
    """Returns the index of the first run to merge with all newer ones; that of the newest run means no merge."""
    first = SectionRows(sizes, base_rows, **{"tombstones": 0, "added": 0, "weights": None, **rows}).first_to_merge(
        turn=turn
    )
    return len(sizes) - 1 if first is None else first


def make_panes(
    backend: Any,
    descriptor: StateDescriptor,
    window_type: TypeInformation,
    sessions: Any = None,
    *,
    shared: bool = False,
) -> PaneState:
    """Returns the state of windows, as the operator of windows uses it."""
    table = backend.get_cells(descriptor, window_type, sessions, column=SharedColumn if shared else NumberColumn)
    return PaneState(table, fold_values(descriptor))
