"""Untrusted metadata gives a typed error. Nothing but the file itself is read, and nothing is written."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint import metadata as metadata_module
from dagster_flinkpy.checkpoint.head import HEAD_KEY, Head
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata, fetch_metadata
from dagster_flinkpy.checkpoint.savepoints.savepoint import import_savepoint, load_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.errors import CorruptMetadataError, ObjectNotFoundError
from dagster_flinkpy.storage.local import LocalObjectStore
from dagster_flinkpy.storage.object_store import ObjectStore
from tests.checkpoint.samples import metadata

KEY = f"chk-1/{METADATA_NAME}"
GOOD = metadata()


@dataclass
class Log:
    """The requests that a store has received."""

    read: list[str] = field(default_factory=list)
    bytes: int = 0
    written: list[str] = field(default_factory=list)


class RecordingStore(LocalObjectStore):
    """Logs each request with the path below the first root."""

    def __init__(self, root: str, log: Log, prefix: str = "") -> None:
        super().__init__(root)
        self.log, self.folder, self._prefix = log, root, prefix

    def child(self, prefix: str) -> ObjectStore:
        super().child(prefix)
        return RecordingStore(os.path.join(self.folder, prefix), self.log, f"{self._prefix}{prefix}/")

    def get(self, key: str) -> tuple[bytes, str]:
        self.log.read.append(self._prefix + key)
        data, etag = super().get(key)
        self.log.bytes += len(data)
        return data, etag

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.log.read.append(self._prefix + key)
        data = super().get_range(key, start, length)
        self.log.bytes += len(data)
        return data

    def put(self, key: str, *args: Any, **kwargs: Any) -> str:
        self.log.written.append(self._prefix + key)
        return super().put(key, *args, **kwargs)

    def delete_many(self, keys: Any) -> None:
        keys = list(keys)
        self.log.written += keys
        super().delete_many(keys)


def sealed(body: bytes, version: int = 1) -> bytes:
    """Returns a metadata file with the correct checksum."""
    checksum = hashlib.sha256(body).hexdigest()
    head = f'{{"format":"dagster-flinkpy checkpoint metadata","version":{version},"sha256":"{checksum}","checkpoint":'
    return head.encode() + body + b"}"


def packed(document: bytes) -> bytes:
    """Returns the compressed form of a metadata file, with the correct checksum."""
    data = gzip.compress(document, compresslevel=9, mtime=0)[10:]
    head = b"\x1f\x8b\x08\x10\x00\x00\x00\x00\x00\xffsha256:" + hashlib.sha256(data).hexdigest().encode() + b"\0"
    return head + data


def changed(change: Callable[[Any], object]) -> bytes:
    body = json.loads(json.dumps(GOOD.to_json()))
    change(body)
    return sealed(json.dumps(body).encode())


def run_of(body: Any) -> Any:
    return body["operators"][1]["subtasks"][0]["keyed"]["tables"][0]["runs"][0]


def keyed_of(body: Any) -> Any:
    return body["operators"][1]["subtasks"][0]["keyed"]


def deep(opening: bytes, closing: bytes) -> bytes:
    """Returns a document that is nested a million levels deep."""
    body = json.dumps({**GOOD.to_json(), "properties": {"deep": "HERE"}}).encode()
    return sealed(body.replace(b'"HERE"', opening * 1_000_000 + b"1" + closing * 1_000_000))


def in_flight(without: Collection[str] = (), **fields: Any) -> bytes:
    """Returns metadata without an inventory, whose first operator has not read a segment."""
    segment = {"subtask": 0, "key": "1-1/x.arrow", "bytes": 1, "rows": 1}
    output = {"edge": "up", "checkpoint_id": 1, "segments": [segment], "watermark": 1, "end_of_input": False, **fields}
    kept = {name: value for name, value in output.items() if name not in without}
    return changed(lambda body: [body.pop("inventory"), body["operators"][0].update(in_flight=[kept])])


def history(without: Collection[str] = (), **fields: Any) -> bytes:
    """Returns metadata without an inventory, whose first operator retains a segment."""
    segment = {"subtask": 0, "key": "1-1/x.arrow", "bytes": 1, "rows": 1}
    output = {"checkpoint_id": 1, "segments": [segment], "watermark": 1, "end_of_input": False, "checkpoint": 1}
    output = {**output, "written_ms": 5, "settled": True, **fields}
    kept = {"outputs": [{name: value for name, value in output.items() if name not in without}]}
    return changed(lambda body: [body.pop("inventory"), body["operators"][0].update(history=kept)])


def test_what_is_retained_is_read() -> None:
    found = CheckpointMetadata.from_bytes(history(), "chk-1")
    assert f"exchange/{found.operators[0].uid}/1-1/x.arrow" in found.files()


def test_what_is_in_flight_is_read() -> None:
    (output,) = CheckpointMetadata.from_bytes(in_flight(), "chk-1").operators[0].in_flight
    assert output["segments"][0]["key"] == "1-1/x.arrow"


BAD: dict[str, bytes] = {
    "empty": b"",
    "truncated": GOOD.to_bytes()[:-1],
    "truncated, packed": packed(GOOD.to_bytes())[:-9],
    "another version": GOOD.to_bytes().replace(b'"version":1,', b'"version":2,', 1),
    "version 0": sealed(b"{}", version=0),
    "path leads out": changed(lambda body: run_of(body).update(path="../another/job/shared/x.parquet")),
    "path leads out in the middle": changed(lambda body: run_of(body).update(path="shared/../../x.parquet")),
    "absolute path": changed(lambda body: run_of(body).update(path="/etc/passwd")),
    "path is a URL": changed(lambda body: run_of(body).update(path="s3://another/bucket")),
    "operator state of another folder": changed(
        lambda body: body["operators"][0]["subtasks"][0]["operator_state"][0].update(partitions=[{"file": "../x"}])
    ),
    "operator state by a writer of another folder": changed(
        lambda body: body["operators"][0]["subtasks"][0]["operator_state"][0].update(
            partitions=[{"file": "0" * 64, "by": "../../x"}]
        )
    ),
    "in-flight data of another folder": changed(
        lambda body: body["operators"][1]["subtasks"][0].update(channel_state=[{"file": "/etc/passwd"}])
    ),
    "duplicate uid": changed(lambda body: body["operators"].append(body["operators"][0])),
    "missing key-group range": changed(lambda body: keyed_of(body).pop("key_groups")),
    "missing key-group range of a run": changed(lambda body: run_of(body).pop("key_groups")),
    "key groups without an owner": changed(lambda body: keyed_of(body).update(key_groups=[0, 2])),
    "overlapping ranges": changed(lambda body: keyed_of(body).update(key_groups=[0, 4])),
    "overlapping runs": changed(lambda body: run_of(body).update(key_groups=[0, 7])),
    "a subtask is missing": changed(lambda body: body["operators"][1]["subtasks"].pop()),
    "no subtasks": changed(lambda body: body["operators"][1]["subtasks"].clear()),
    "a subtask twice": changed(
        lambda body: body["operators"][1]["subtasks"].append(body["operators"][1]["subtasks"][0])
    ),
    "keyed state of a subtask is missing": changed(lambda body: body["operators"][1]["subtasks"][0].pop("keyed")),
    "keyed state is missing": changed(lambda body: [s.pop("keyed") for s in body["operators"][1]["subtasks"]]),
    "an operator is missing": changed(lambda body: body["operators"].pop()),
    "a table is missing": changed(lambda body: keyed_of(body)["tables"].pop()),
    "a table twice": changed(lambda body: keyed_of(body)["tables"].append(keyed_of(body)["tables"][0])),
    "the runs of a table are missing": changed(lambda body: keyed_of(body)["tables"][0]["runs"].clear()),
    "a run twice": changed(lambda body: keyed_of(body)["tables"][0]["runs"].append(run_of(body))),
    "a run of fewer key groups": changed(lambda body: run_of(body).update(key_groups=[0, 1])),
    "a run of fewer key groups and rows": changed(lambda body: run_of(body).update(key_groups=[0, 1], rows=4)),
    "key groups narrowed": changed(lambda body: keyed_of(body).update(key_groups=[0, 1])),
    "what is in flight has no watermark": in_flight({"watermark"}),
    "what is in flight is of no epoch": in_flight(checkpoint_id=-1),
    "a segment in flight has no size": in_flight(segments=[{"subtask": 0, "key": "1-1/x.arrow", "rows": 1}]),
    "a segment in flight leads out": in_flight(edge="../../up"),
    "what is retained is of no time": history({"written_ms"}),
    "what is retained is of a text": history(checkpoint="1"),
    "what is retained may be in flight": history(settled=None),
    "what is retained has no segments": history({"segments"}),
    "what is retained has segments by name": history(segments={}),
    "a retained segment has no key": history(segments=[{"subtask": 0, "bytes": 1, "rows": 1}]),
    "a retained segment has a number": history(segments=[{"subtask": 0, "key": 1, "bytes": 1, "rows": 1}]),
    "a retained segment leads out": history(segments=[{"subtask": 0, "key": "../../x", "bytes": 1, "rows": 1}]),
    "the position of a source is missing": changed(lambda body: body["operators"][0].pop("coordinator_state")),
    "splits are missing": changed(lambda body: body["operators"][0]["subtasks"][0].pop("splits")),
    "a split twice": changed(
        lambda body: body["operators"][0]["subtasks"][1].update(splits=body["operators"][0]["subtasks"][0]["splits"])
    ),
    "operator state is missing": changed(lambda body: body["operators"][0]["subtasks"][0].pop("operator_state")),
    "an element of operator state is missing": changed(
        lambda body: body["operators"][0]["subtasks"][0]["operator_state"][0]["partitions"].pop()
    ),
    "a watermark is missing": changed(lambda body: body["operators"][1]["subtasks"][0].pop("watermark")),
    "raw keyed state of another subtask": changed(
        lambda body: body["operators"][1]["subtasks"][0].update(raw_keyed=[{"key_group": 7, "arrow": ""}])
    ),
    "an inventory that is not an object": changed(lambda body: body.update(inventory=[])),
    "an inventory without operators": changed(lambda body: body["inventory"].pop("operators")),
    "checksum wrong": GOOD.to_bytes().replace(b'"kind":"checkpoint"', b'"kind":"savepoint"', 1),
    "checksum wrong, packed": packed(GOOD.to_bytes())[:-1] + b"\xff",
    "data after the end, packed": packed(GOOD.to_bytes() + b"\n"),
    "garbage": os.urandom(5000),
    "garbage that looks right": sealed(b"{}")[:-2] + b"\0" * 5_000_000 + b"}}",
    "deep lists": deep(b"[", b"]"),
    "deep objects": deep(b'{"a":', b"}"),
    "many operators": changed(lambda body: body["operators"][1].update(parallelism=10**9, max_parallelism=10**9)),
    "a number that never ends": sealed(b'{"job_id":' + b"9" * 100_000 + b"}"),
    "not text": sealed(b'{"job_id":"\xff\xfe"}'),
}


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def store(tmp_path: Path, log: Log) -> RecordingStore:
    return RecordingStore(str(tmp_path / "job"), log)


def put(store: RecordingStore, key: str, data: bytes) -> None:
    """Writes an object as another program would."""
    LocalObjectStore(store.folder).put(key, data)


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_a_checkpoint(store: RecordingStore, log: Log, data: bytes) -> None:
    put(store, KEY, data)
    with pytest.raises(CorruptMetadataError, match=rf"(?s){KEY}.*\. Restore "):
        CompletedCheckpointStore(store).load(1)
    assert set(log.read) == {KEY}
    assert log.written == []


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_a_savepoint(store: RecordingStore, log: Log, tmp_path: Path, data: bytes) -> None:
    put(store, METADATA_NAME, data)
    (tmp_path / "x.parquet").write_bytes(b"secret")
    target = Log()
    with pytest.raises(CorruptMetadataError, match=rf"(?s){METADATA_NAME}.*\. Restore "):
        import_savepoint(store, RecordingStore(str(tmp_path / "other"), target))
    assert set(log.read) == {METADATA_NAME}
    assert log.written == target.read == target.written == []


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_the_latest_checkpoint(store: RecordingStore, log: Log, data: bytes) -> None:
    """The same holds if HEAD names it with its checksum: a new attempt takes the leadership and then stops."""
    put(store, KEY, data)
    head = Head(0, 1, KEY, hashlib.sha256(data).hexdigest(), (1,))
    put(store, HEAD_KEY, head.to_bytes())
    with pytest.raises(CorruptMetadataError, match=rf"(?s){KEY}.*\. Restore "):
        CompletedCheckpointStore(store).begin_attempt("run", 0)
    assert set(log.read) <= {KEY, HEAD_KEY, "leader"}
    assert set(log.written) <= {HEAD_KEY, "leader"}
    now = Head.from_bytes(LocalObjectStore(store.folder).get(HEAD_KEY)[0], HEAD_KEY)
    assert (now.checkpoint_id, now.metadata_sha256, now.retained) == (1, head.metadata_sha256, (1,))


def test_100_megabytes_of_garbage_are_not_read(store: RecordingStore, log: Log) -> None:
    put(store, KEY, b"")
    Path(store.folder, KEY).write_bytes(os.urandom(1 << 20) * 100)
    with pytest.raises(CorruptMetadataError, match="is not checkpoint metadata"):
        CompletedCheckpointStore(store).load(1)
    assert log.bytes <= 1 << 20


def test_a_file_that_is_too_large_is_not_parsed(store: RecordingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "MAX_FILE_BYTES", 2 << 20)
    monkeypatch.setattr(metadata_module.json, "loads", lambda *args: pytest.fail("parsed"))
    filler = json.dumps({**GOOD.to_json(), "properties": {"filler": "x" * (2 << 20)}}).encode()
    put(store, METADATA_NAME, sealed(filler))
    with pytest.raises(CorruptMetadataError, match="is larger than 2097152 bytes"):
        load_savepoint(store)


def test_a_gzip_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "MAX_DOCUMENT_BYTES", 1 << 20)
    bomb = packed(sealed(b'{"job_id":"' + b"0" * (50 << 20) + b'"}'))
    assert len(bomb) < 100_000
    with pytest.raises(CorruptMetadataError, match="decompresses to more than 1048576 bytes"):
        CheckpointMetadata.from_bytes(bomb, "bomb")


def test_two_files_in_one_are_refused() -> None:
    document = GOOD.to_bytes()
    twice = gzip.compress(document, mtime=0)[10:] + gzip.compress(document, mtime=0)
    head = b"\x1f\x8b\x08\x10\x00\x00\x00\x00\x00\xffsha256:" + hashlib.sha256(twice).hexdigest().encode() + b"\0"
    with pytest.raises(CorruptMetadataError, match="is incomplete or has extra data"):
        CheckpointMetadata.from_bytes(head + twice, "twice")
    assert zlib.decompressobj(wbits=31).decompress(packed(document)) == document


def test_metadata_of_more_than_one_request(store: RecordingStore, log: Log) -> None:
    large = json.dumps({**GOOD.to_json(), "properties": {"filler": "x" * (3 << 20)}}, separators=(",", ":")).encode()
    put(store, KEY, sealed(large))
    assert CheckpointMetadata.from_bytes(fetch_metadata(store, KEY), KEY).operators == GOOD.operators
    assert log.read == [KEY, KEY]


def test_metadata_that_is_not_there(store: RecordingStore) -> None:
    with pytest.raises(ObjectNotFoundError):
        fetch_metadata(store, KEY)
