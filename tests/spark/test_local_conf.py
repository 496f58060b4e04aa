from __future__ import annotations

import os
from pathlib import Path

import pytest

from dagster_flinkpy.spark import local_conf
from dagster_flinkpy.spark.local_conf import available_cores, local_master

QUOTAS = {
    "none": ({}, 8),
    "cgroups 2, no limit": ({"cpu.max": "max 100000\n"}, 8),
    "cgroups 2": ({"cpu.max": "250000 100000\n"}, 3),
    "cgroups 2, less than a core": ({"cpu.max": "50000 100000\n"}, 1),
    "more than there are": ({"cpu.max": "1600000 100000\n"}, 8),
    "cgroups 1, no limit": ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    "cgroups 1": ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
}


@pytest.mark.parametrize(("files", "count"), QUOTAS.values(), ids=QUOTAS)
def test_cores_are_those_of_the_container(
    files: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cores(tmp_path) == count


@pytest.mark.parametrize(
    ("master", "on_server", "in_process"),
    [
        ("local", "local[1,4]", "local[1,4]"),
        ("local[3]", "local[3,4]", "local[3,4]"),
        ("local[3,1]", "local[3,1]", "local[3,1]"),
        ("local[*]", "local[8,4]", "local[*,4]"),
        ("local[*,1]", "local[8,1]", "local[*,1]"),
        ("local[many]", "local[many]", "local[many]"),
    ],
)
def test_a_shared_server_has_more_slots_than_cores_unless_the_master_says_how_many(
    master: str, on_server: str, in_process: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_conf, "available_cores", lambda: 2)
    assert local_master(master, shared=True) == on_server
    assert local_master(master, shared=False) == in_process
