from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.errors import CheckpointError, CorruptMetadataError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.handles import KeyedSnapshot
from tests.checkpoint.samples import metadata, operator
from tests.examples import examples

NAME = "s3://bucket/job/chk-1/_metadata"
FIXTURES = Path(__file__).parent.parent / "fixtures" / "metadata"

SMALL = metadata()
LARGE = metadata(2, *(operator(f"op-{i}") for i in range(40)))
FORMS = pytest.mark.parametrize("sample", [SMALL, LARGE], ids=["plain", "compressed"])


def rewritten(change: Any, sample: CheckpointMetadata = SMALL) -> bytes:
    """Returns a file whose body was changed, with the correct checksum."""
    body = json.loads(json.dumps(sample.to_json()))
    change(body)

    class Written(CheckpointMetadata):
        def to_json(self) -> Any:
            return body

    return Written(**vars(sample)).to_bytes()


@FORMS
def test_round_trip(sample: CheckpointMetadata) -> None:
    data = sample.to_bytes()
    assert CheckpointMetadata.from_bytes(data, NAME) == sample
    assert sample.to_bytes() == data


def test_master_states_are_kept() -> None:
    written = replace(SMALL, master_states={"ledger": {"position": 9}, "other": None})
    assert CheckpointMetadata.from_bytes(written.to_bytes(), NAME) == written
    assert "master_states" not in SMALL.to_json()


def test_small_is_plain_json_and_large_is_gzip() -> None:
    small = json.loads(SMALL.to_bytes())
    assert (small["version"], small["checkpoint"]) == (1, SMALL.to_json())
    packed = LARGE.to_bytes()
    unpacked = gzip.decompress(packed)
    assert len(packed) < len(unpacked) / 4
    assert json.loads(unpacked)["checkpoint"] == LARGE.to_json()


@FORMS
def test_every_truncation_is_found(sample: CheckpointMetadata) -> None:
    data = sample.to_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptMetadataError, match="chk-1/_metadata"):
            CheckpointMetadata.from_bytes(data[:length], NAME)


@FORMS
def test_every_single_bit_flip_is_found(sample: CheckpointMetadata) -> None:
    damaged = bytearray(sample.to_bytes())
    for bit in range(len(damaged) * 8):
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMetadataError, match="chk-1/_metadata"):
            CheckpointMetadata.from_bytes(bytes(damaged), NAME)
        damaged[bit // 8] ^= 1 << bit % 8


@FORMS
@settings(max_examples=examples(300))
@given(data=st.data())
def test_bit_flips_are_found(sample: CheckpointMetadata, data: st.DataObject) -> None:
    damaged = bytearray(sample.to_bytes())
    for bit in data.draw(st.sets(st.integers(0, len(damaged) * 8 - 1), min_size=1, max_size=5)):
        damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptMetadataError, match="chk-1/_metadata"):
        CheckpointMetadata.from_bytes(bytes(damaged), NAME)


@settings(max_examples=examples(200))
@given(st.binary(max_size=200), st.sampled_from([b"", b"\x1f\x8b", SMALL.to_bytes()[:60], LARGE.to_bytes()[:90]]))
def test_garbage_is_found(garbage: bytes, start: bytes) -> None:
    with pytest.raises(CorruptMetadataError, match="chk-1/_metadata"):
        CheckpointMetadata.from_bytes(start + garbage, NAME)


def test_something_appended_is_found() -> None:
    for sample in (SMALL, LARGE):
        with pytest.raises(CorruptMetadataError):
            CheckpointMetadata.from_bytes(sample.to_bytes() + b"\n", NAME)


def test_newer_version_is_refused_by_number() -> None:
    data = SMALL.to_bytes().replace(b'"version":1,', b'"version":7,', 1)
    with pytest.raises(CorruptMetadataError, match=r"format version 7, and this release reads versions up to 1\."):
        CheckpointMetadata.from_bytes(data, NAME)


def test_unknown_fields_are_kept() -> None:
    def change(body: Any) -> None:
        body["extra"] = body["added"] = {"a": [1]}
        body["operators"][1]["colour"] = "red"
        body["operators"][1]["subtasks"][0]["speed"] = 3
        body["operators"][0]["subtasks"][0]["operator_state"][0]["more"] = True
        snapshot = body["operators"][1]["subtasks"][0]["keyed"]
        for part in (snapshot, snapshot["tables"][0], snapshot["tables"][0]["runs"][0]):
            part["newer"] = {"b": None}

    read = CheckpointMetadata.from_bytes(rewritten(change), NAME)
    again = CheckpointMetadata.from_bytes(read.to_bytes(), NAME)
    assert again == read
    body = again.to_json()
    assert body["added"] == body["extra"] == {"a": [1]}
    assert body["operators"][1]["colour"] == "red"
    assert body["operators"][1]["subtasks"][0]["speed"] == 3
    assert body["operators"][0]["subtasks"][0]["operator_state"][0]["more"] is True
    snapshot = body["operators"][1]["subtasks"][0]["keyed"]
    assert (
        snapshot["newer"] == snapshot["tables"][0]["newer"] == snapshot["tables"][0]["runs"][0]["newer"] == {"b": None}
    )


def nested(body: Any) -> None:
    value: list[Any] = []
    for _ in range(500):
        value = [value]
    body["operators"] = value


BAD = {
    "duplicate uid": (lambda b: b["operators"].append(b["operators"][0]), "uid 'flights' occurs twice"),
    "no job": (lambda b: b.pop("job_id"), "missing required field `job_id`"),
    "id is text": (lambda b: b.update(checkpoint_id="1"), "Expected `int`, got `str` - at `$.checkpoint_id`"),
    "id is a bool": (lambda b: b.update(checkpoint_id=True), "Expected `int`, got `bool`"),
    "unknown kind": (lambda b: b.update(kind="copy"), "copy"),
    "operators is a number": (lambda b: b.update(operators=3), ""),
    "parallelism over maximum": (lambda b: b["operators"][1].update(parallelism=9), "parallelism 9 of at most 8"),
    "subtask over parallelism": (lambda b: b["operators"][0]["subtasks"][1].update(index=2), "a subtask 2"),
    "subtask twice": (lambda b: b["operators"][0]["subtasks"][1].update(index=0), "occurs twice"),
    "overlapping ranges": (
        lambda b: b["operators"][1]["subtasks"][1]["keyed"].update(key_groups=[3, 7]),
        "key groups 3 to 7, but with parallelism 2 and max parallelism 8 it owns 4 to 7",
    ),
    "range over maximum": (
        lambda b: b["operators"][1]["subtasks"][1]["keyed"].update(key_groups=[4, 8]),
        "max parallelism 8 it owns 4 to 7",
    ),
    "no range": (lambda b: b["operators"][1]["subtasks"][0]["keyed"].pop("key_groups"), "key_groups"),
    "a key group without an owner": (
        lambda b: b["operators"][1]["subtasks"][0]["keyed"].update(key_groups=[0, 2]),
        "key groups 0 to 2, but",
    ),
    "a run of another's key groups": (
        lambda b: b["operators"][1]["subtasks"][0]["keyed"]["tables"][0]["runs"][0].update(key_groups=[0, 4]),
        "a run of subtask 0 of operator 'count' has key groups 0 to 4",
    ),
    "a range with one end": (
        lambda b: b["operators"][1]["subtasks"][0]["keyed"].update(key_groups=[3]),
        "at least length 2",
    ),
    "more key groups than there are": (
        lambda b: b["operators"][1].update(parallelism=10**9, max_parallelism=10**9),
        "parallelism 1000000000 of at most",
    ),
    "operator state in a file of another folder": (
        lambda b: b["operators"][0]["subtasks"][0]["operator_state"][0].update(partitions=[{"file": "../../x"}]),
        "not a SHA-256 checksum",
    ),
    "raw state in a file of another folder": (
        lambda b: b["operators"][0]["subtasks"][0].update(raw_keyed=[{"key_group": 0, "file": "/etc/passwd"}]),
        "not a SHA-256 checksum",
    ),
    "path leads out": (
        lambda b: b["operators"][1]["subtasks"][0]["keyed"]["tables"][0]["runs"][0].update(path="../other/x"),
        "plain relative path",
    ),
    "absolute path": (
        lambda b: b["operators"][1]["subtasks"][0]["keyed"]["tables"][0]["runs"][0].update(path="/etc/passwd"),
        "plain relative path",
    ),
    "nested": (nested, ""),
}


@pytest.mark.parametrize(("change", "says"), BAD.values(), ids=BAD.keys())
def test_inconsistent_metadata_is_refused(change: Any, says: str) -> None:
    with pytest.raises(CorruptMetadataError) as caught:
        CheckpointMetadata.from_bytes(rewritten(change), NAME)
    assert NAME in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), b"bytes", {1, 2}], ids=["nan", "bytes", "set"])
def test_what_is_not_json_cannot_be_written(value: Any) -> None:
    with pytest.raises(CheckpointError, match="cannot be written as JSON"):
        replace(SMALL, properties={"value": value}).to_bytes()


def test_files_and_bytes() -> None:
    runs = [r for s in operator().subtasks if s.keyed for t in s.keyed.tables for r in t.runs]
    assert SMALL.files() == {r.path for r in runs}
    assert SMALL.state_bytes == sum(r.bytes for r in runs)
    found = SMALL.operator("count")
    assert found is not None
    assert found.has_state
    assert SMALL.operator("gone") is None


@pytest.mark.parametrize(
    ("state", "has"),
    [
        (SubtaskState(0, watermark=3, metrics={"a": 1}), False),
        (SubtaskState(0, splits=({},)), True),
        (SubtaskState(0, committables=({},)), True),
        (SubtaskState(0, keyed=KeyedSnapshot(KeyGroupRange(0, 1), ())), True),
    ],
)
def test_has_state(state: SubtaskState, has: bool) -> None:
    assert state.has_state is has


@pytest.mark.parametrize("name", ["plain", "compressed"])
def test_fixtures_of_the_first_release_load(name: str) -> None:
    """These files stay forever: all later releases must read them. ``runtime/test_format_v1.py`` continues jobs."""
    path = FIXTURES / "v1" / name
    assert CheckpointMetadata.from_bytes(path.read_bytes(), str(path)) == {"plain": SMALL, "compressed": LARGE}[name]
