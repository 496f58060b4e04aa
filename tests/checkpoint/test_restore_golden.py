"""Compares rescaling with Flink's own results, from ``rescale.json``."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.restore import reassign_key_groups, repartition_operator_state
from dagster_flinkpy.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from dagster_flinkpy.state.handles import DistributionMode, KeyedSnapshot, OperatorStateHandle

pytestmark = pytest.mark.golden

GOLDEN = Path(os.environ.get("FLINK_GOLDEN_DIR") or Path(__file__).parent.parent / "golden")


@cache
def cases(part: str) -> list[dict[str, Any]]:
    return json.loads((GOLDEN / "rescale.json").read_text(encoding="utf-8"))[part]


def identities(part: str) -> list[str]:
    return [case["id"] for case in cases(part)]


@pytest.mark.parametrize("case", cases("keyedState"), ids=identities("keyedState"))
def test_keyed_state(case: dict[str, Any]) -> None:
    maximum, new_parallelism = case["maxParallelism"], case["newParallelism"]
    old = [KeyedSnapshot(KeyGroupRange(*i["range"]), ()) if i["hasState"] else None for i in case["input"]]
    for entry in case["input"]:
        own = compute_key_group_range_for_operator_index(maximum, case["oldParallelism"], entry["subtask"])
        assert [own.start, own.end] == entry["range"]

    new = reassign_key_groups(old, maximum, new_parallelism)

    assert len(new) == len(case["output"]) == new_parallelism
    for parts, expected in zip(new, case["output"], strict=True):
        own = compute_key_group_range_for_operator_index(maximum, new_parallelism, expected["subtask"])
        assert [own.start, own.end] == expected["range"]
        assert [(index, [part.key_groups.start, part.key_groups.end]) for index, part in parts] == [
            (handle["oldSubtask"], handle["intersection"]) for handle in expected["handles"]
        ]
        if case["handleType"] == "KeyGroupsStateHandle":
            assert all(handle["handleRange"] == handle["intersection"] for handle in expected["handles"])


@pytest.mark.parametrize("case", cases("operatorState"), ids=identities("operatorState"))
def test_operator_state(case: dict[str, Any]) -> None:
    """Uses the indexes of Flink's offsets as partitions, to compare the result with ``offsetIndexes``."""
    old = [
        entry["states"]
        and [
            OperatorStateHandle(s["name"], DistributionMode(s["mode"]), tuple(range(len(s["offsets"]))))
            for s in entry["states"]
        ]
        for entry in case["input"]
    ]

    new = repartition_operator_state(old, case["newParallelism"], split_name_order=case["splitNameOrder"])

    assert len(new) == len(case["output"])
    for subtask, expected in zip(new, case["output"], strict=True):
        by_old: dict[int, list[tuple[str, str, list[int]]]] = defaultdict(list)
        for index, handle in subtask:
            by_old[index].append((handle.name, handle.mode.value, list(handle.partitions)))
        assert {index: sorted(states) for index, states in by_old.items()} == {
            handle["oldSubtask"]: sorted((s["name"], s["mode"], s["offsetIndexes"]) for s in handle["states"])
            for handle in expected["handles"]
        }
