"""The page on clusters lists what a job does on S3: no more, and no less."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient

from dagster_flinkpy.checkpoint.offline import trigger_savepoint
from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import UploadNotFoundError
from dagster_flinkpy.state_processor import dispose_job, fork_job
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

LATER = datetime.now(timezone.utc) + timedelta(days=9)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md"
ALLOWED_BY = {
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "ListObjectsV2": "s3:ListBucket",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListParts": "s3:ListMultipartUploadParts",
}
"""The actions of Amazon's service authorization reference for the operations of its API."""


def policy() -> dict[str, Any]:
    """Returns the policy of the page."""
    [text] = re.findall(r"```json\n(.*?)```", PAGE.read_text().partition("## Permissions on S3")[2], re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


ACTIONS = sorted(action for statement in policy()["Statement"] for action in statement["Action"])


def graph(place: StorageLocation, table: str) -> JobGraph:
    env = environment(2)
    rows = events(env, [(f"k{i}", i, 1) for i in range(40)], per_epoch=8)
    counts = rows.key_by("key").process(CountPerKey(), COUNTED).uid("count")
    counts.sink_to(ParquetSink(place.child(table))).uid("counts")
    return env.get_job_graph()


def run(place: StorageLocation, job_id: str = "job", epochs: int = 2) -> None:
    with HarnessAttempt(graph(place, f"rows of {job_id}"), place.child("jobs"), job_id=job_id) as attempt:
        for _ in range(epochs):
            attempt.run_epoch()


def live(place: StorageLocation) -> None:
    """Runs a job, a savepoint, a restore, a fork, the clean-up, and completes an upload that somebody aborted."""
    job = place.child("jobs").child("job")
    run(place)
    savepoint = replace(place, url=trigger_savepoint(job))
    run(place)
    fork_job(job, "copy")
    run(place, "copy", 1)
    dispose_savepoint(savepoint, owner="test", now_ms=0)
    dispose_job(job.parent.child("copy"))
    store = job.open()
    store.create_upload("lost")
    sweep(store, now=LATER)
    upload = store.create_upload("k")
    part = store.upload_part("k", upload, 1, b"1")
    store.abort_upload("k", upload)
    with pytest.raises(UploadNotFoundError):
        store.complete_upload("k", upload, [part])


def test_the_page_lists_the_actions_of_a_whole_job(
    s3_location: StorageLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, call = set[str](), BaseClient._make_api_call

    def record(client: BaseClient, operation: str, parameters: Any) -> Any:
        called.add(operation)
        return call(client, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    live(s3_location)
    assert sorted({ALLOWED_BY[operation] for operation in called}) == ACTIONS
