from __future__ import annotations

import itertools
import json
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.errors import CorruptMetadataError, PathEscapesPrefixError, StateSchemaError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle, TableSnapshot, count_key_groups

HASH = "0123456789abcdef" * 4
LONG = {"type": "LONG"}


def handle(groups: list[int], clip: KeyGroupRange = KeyGroupRange(0, 99), path: str = "shared/x") -> RunHandle:  # noqa: B008
    return RunHandle(
        path=path,
        sha256=HASH,
        bytes=1000,
        rows=sum(g in clip for g in groups),
        key_groups=clip,
        rows_per_key_group=count_key_groups(np.array(groups)),
        footer_bytes=10,
        footer_sha256=HASH,
    )


def table(*runs: RunHandle, name: str = "s", value: dict[str, str] = LONG) -> TableSnapshot:
    return TableSnapshot(name, "VALUE", LONG, None, None, value, runs)


sorted_groups = st.lists(st.integers(0, 99), min_size=1, max_size=50).map(sorted)
ranges = st.tuples(st.integers(0, 99), st.integers(0, 99)).map(lambda p: KeyGroupRange(min(p), max(p)))


@given(sorted_groups, ranges, ranges)
def test_clip_counts_the_rows_of_the_intersection(groups: list[int], a: KeyGroupRange, b: KeyGroupRange) -> None:
    clipped = handle(groups).clip(a)
    clipped = clipped and clipped.clip(b)
    rows = sum(g in a and g in b for g in groups)
    assert (clipped.rows if clipped else 0) == rows
    if clipped:
        assert clipped.key_groups == a.intersection(b)
        assert clipped.is_whole == (rows == len(groups))
        assert clipped.file_rows == len(groups)


def test_counts_are_compact_for_sparse_runs() -> None:
    assert count_key_groups(np.array([3, 3, 4, 30000])) == (3, 2, 1, -29995, 1)


@given(st.lists(sorted_groups, max_size=3), st.integers(1, 5))
def test_restrict_then_concat_keeps_every_row_once(runs: list[list[int]], parallelism: int) -> None:
    snapshot = KeyedSnapshot(KeyGroupRange(0, 99), (table(*(handle(run) for run in runs)),))
    bounds = [round(i * 100 / parallelism) for i in range(parallelism + 1)]
    pieces = [snapshot.restrict(KeyGroupRange(a, b - 1)) for a, b in itertools.pairwise(bounds)]
    together = KeyedSnapshot.concat([p for p in pieces if p], snapshot.key_groups)
    assert together.rows == snapshot.rows == sum(map(len, runs))
    assert together.files() == snapshot.files()
    assert KeyedSnapshot.from_json(together.to_json()) == together


def test_restrict_to_other_key_groups_is_nothing() -> None:
    snapshot = KeyedSnapshot(KeyGroupRange(0, 9), (table(handle([1], KeyGroupRange(0, 9))),))
    assert snapshot.restrict(KeyGroupRange(10, 20)) is None
    elsewhere = snapshot.restrict(KeyGroupRange(5, 20))
    assert elsewhere is not None
    assert elsewhere.key_groups == KeyGroupRange(5, 9)
    assert elsewhere.tables[0].runs == ()  # The schema stays.


def test_concat_refuses_two_schemas_of_one_state() -> None:
    pieces = [KeyedSnapshot(KeyGroupRange(i, i), (table(value=v),)) for i, v in enumerate([LONG, {"type": "INT"}])]
    with pytest.raises(StateSchemaError, match=r"'s'.*two schemas: VALUE of Types.LONG\(\) and VALUE of Types.INT"):
        KeyedSnapshot.concat(pieces, KeyGroupRange(0, 1))


def test_concat_names_two_types_of_keys() -> None:
    tables = [replace(table(), key=key) for key in (LONG, {"type": "BOOLEAN"})]
    pieces = [KeyedSnapshot(KeyGroupRange(i, i), (each,)) for i, each in enumerate(tables)]
    with pytest.raises(StateSchemaError, match=r"keys of Types.LONG\(\) and of Types.BOOLEAN\(\)\. .*that key_type"):
        KeyedSnapshot.concat(pieces, KeyGroupRange(0, 1))


def test_bytes_of_a_clip_are_its_share() -> None:
    clipped = handle([1, 2, 3, 4]).clip(KeyGroupRange(1, 1))
    assert clipped is not None
    assert table(clipped).bytes == 250


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "shared/../../x", "", "a//b"])
def test_paths_may_not_escape(path: str) -> None:
    raw = {**handle([1]).to_json(), "path": path}
    with pytest.raises(PathEscapesPrefixError):
        RunHandle.from_json(raw)


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "../../x"},
        {"rows": -1},
        {"bytes": "many"},
        {"key_groups": [3, 1]},
        {"rows_per_key_group": []},
        {"footer_bytes": 2000},
        {"hashes": [3, 1], "key_groups": [1, 1]},
        {"hashes": [0, 2**32], "key_groups": [1, 1]},
        {"hashes": [1], "key_groups": [1, 1]},
        {"hashes": [1, 3], "key_groups": [0, 1]},
        {"path": None, "rows": None},
    ],
)
def test_broken_handles_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(CorruptMetadataError):
        RunHandle.from_json({**handle([1]).to_json(), **change})


def test_broken_snapshots_are_refused() -> None:
    good = KeyedSnapshot(KeyGroupRange(0, 9), (table(),)).to_json()
    for bad in ({}, {**good, "tables": [{}]}, {**good, "tables": [{**good["tables"][0], "kind": "SET"}]}):
        with pytest.raises(CorruptMetadataError):
            KeyedSnapshot.from_json(bad)


def test_handles_are_values() -> None:
    assert handle([1]) == replace(handle([1]))


def test_a_run_in_the_metadata_names_no_file() -> None:
    run = handle([3, 3, 5])
    data = b"the run"
    inline = replace(
        run, path="", data=data, bytes=len(data), footer_bytes=0, footer_sha256="", sha256=sha256(data).hexdigest()
    )
    raw = json.loads(json.dumps(inline.to_json()))
    assert RunHandle.from_json(raw) == inline
    assert "path" not in raw
    part = inline.clip(KeyGroupRange(4, 9))
    assert part is not None
    assert (part.rows, part.data) == (1, data)
    table = TableSnapshot("v", "VALUE", {}, None, None, {}, (run, inline))
    assert KeyedSnapshot(KeyGroupRange(0, 99), (table,)).files() == {run.path}
    with pytest.raises(CorruptMetadataError, match="not a stored RunHandle: Invalid base64"):
        RunHandle.from_json({**raw, "data": "no base64!"})


def test_handles_of_the_first_release_are_read() -> None:
    run = handle([3])
    raw = run.to_json()
    assert "tombstones" not in raw
    assert RunHandle.from_json(raw) == run
    assert RunHandle.from_json({**raw, "tombstones": 1}).tombstones == 1


def test_that_timers_have_fired_is_remembered_and_never_taken_back() -> None:
    run = handle([1, 2])
    assert "fired_before" not in run.to_json()
    fired = run.fired(0).fired(-5)
    assert fired.fired_before == 0
    assert RunHandle.from_json(json.loads(json.dumps(fired.to_json()))) == fired
    part = fired.clip(KeyGroupRange(1, 1))
    assert part is not None
    assert part.fired_before == 0
