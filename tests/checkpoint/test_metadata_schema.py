"""``docs/metadata.v1.schema.json`` describes ``_metadata``."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dagster_flinkpy.checkpoint.edge_history import EdgeHistory
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from tests.checkpoint.samples import metadata, operator

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "metadata.v1.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)
FIXTURES = ROOT / "tests" / "fixtures" / "metadata" / "v1"
FILES = [
    FIXTURES / "plain",
    FIXTURES / "compressed",
    FIXTURES / "checkpoint" / "job" / "chk-2" / "_metadata",
    FIXTURES / "savepoint" / "_metadata",
    FIXTURES / "in-flight" / "job" / "chk-2" / "_metadata",
]


def document(data: bytes) -> Any:
    return json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(FIXTURES).as_posix())
def test_what_was_written_is_valid_and_is_written_so_again(path: Path) -> None:
    """The round trip loses nothing, so the format has not changed."""
    data = path.read_bytes()
    VALIDATOR.validate(document(data))
    again = CheckpointMetadata.from_bytes(data, str(path)).to_bytes()
    written = document(again)["checkpoint"]
    inventory, before = written.pop("inventory"), document(data)["checkpoint"]
    assert before.pop("inventory", inventory) == inventory
    assert written == before
    assert inventory["operators"].keys() == {operator["uid"] for operator in written["operators"]}


def test_what_is_written_now_is_valid() -> None:
    for sample in (metadata(), metadata(2, *(operator(f"op-{i}") for i in range(40)))):
        VALIDATOR.validate(document(replace(sample, master_states={"hook": [1]}).to_bytes()))


def test_what_a_blocking_edge_retains_is_valid_and_counted() -> None:
    segment = {"subtask": 0, "key": f"1-1/{'0' * 64}.arrow", "bytes": 1, "rows": 1}
    output = {"checkpoint_id": 1, "segments": [segment], "watermark": None, "end_of_input": False}
    history = EdgeHistory().grown([output], 1, 5, timedelta(days=1), settled=True)
    written = document(metadata(2, replace(operator("edge"), history=history)).to_bytes())
    VALIDATOR.validate(written)
    parts = written["checkpoint"]["inventory"]["operators"]["edge"]
    assert (parts["retained epochs"], parts["retained segments"]) == (1, 1)


def test_unknown_fields_are_valid() -> None:
    body = document(metadata().to_bytes())
    body["checkpoint"]["added"] = body["checkpoint"]["operators"][1]["subtasks"][0]["keyed"]["added"] = 1
    VALIDATOR.validate(body)


def run_of(body: Any) -> Any:
    return body["operators"][1]["subtasks"][0]["keyed"]["tables"][0]["runs"][0]


BAD: dict[str, Callable[[Any], object]] = {
    "no job": lambda body: body.pop("job_id"),
    "kind": lambda body: body.update(kind="copy"),
    "uid": lambda body: body["operators"][0].update(uid=1),
    "parallelism": lambda body: body["operators"][0].update(parallelism=0),
    "no range": lambda body: body["operators"][1]["subtasks"][0]["keyed"].pop("key_groups"),
    "half a range": lambda body: run_of(body).update(key_groups=[0]),
    "path leads out": lambda body: run_of(body).update(path="shared/../../x"),
    "absolute path": lambda body: run_of(body).update(path="/etc/passwd"),
    "no checksum": lambda body: run_of(body).update(sha256="x"),
    "neither file nor data": lambda body: run_of(body).pop("path"),
    "hashes": lambda body: run_of(body).update(hashes=[0, 2**32]),
    "both": lambda body: run_of(body).update(data="UEFSMQ=="),
    "operator state in a file of another folder": lambda body: body["operators"][0]["subtasks"][0]["operator_state"][
        0
    ].update(partitions=[{"file": "../x"}]),
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD.keys())
def test_what_is_refused_is_not_valid(change: Callable[[Any], object]) -> None:
    body = document(metadata().to_bytes())
    change(body["checkpoint"])
    assert not VALIDATOR.is_valid(body)
