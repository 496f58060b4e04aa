"""With the policy of the page on clusters a job does all that it has to do on S3, and with less it does not start."""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.checkpoint.offline import trigger_savepoint
from dagster_flinkpy.checkpoint.requests import AnswerState, JobRequests, Order, RequestKind
from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import AccessDeniedError, FlinkPyError, PreconditionFailedError
from dagster_flinkpy.runtime.master.mailbox import InlineMailbox
from dagster_flinkpy.runtime.master.requests import taken_requests
from dagster_flinkpy.state_processor import dispose_job, fork_job
from dagster_flinkpy.storage import StorageLocation
from tests.connectors.lake.test_table_sources import Target, take
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

pytestmark = pytest.mark.ceph
LATER = datetime.now(timezone.utc) + timedelta(days=9)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md"


def policy() -> dict[str, Any]:
    """Returns the policy of the page."""
    [text] = re.findall(r"```json\n(.*?)```", PAGE.read_text().partition("## Permissions on S3")[2], re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


ACTIONS = sorted(action for statement in policy()["Statement"] for action in statement["Action"])
[_reading] = re.findall(r"Buckets that are only read need (.*)", PAGE.read_text())
READING = set(re.findall(r"s3:\w+", _reading))


def graph(place: StorageLocation, table: str) -> JobGraph:
    env = environment(2)
    rows = events(env, [(f"k{i}", i, 1) for i in range(40)], per_epoch=8)
    counts = rows.key_by("key").process(CountPerKey(), COUNTED).uid("count")
    counts.sink_to(ParquetSink(place.child(table))).uid("counts")
    return env.get_job_graph()


def run(place: StorageLocation, job_id: str = "job", epochs: int = 2, **options: Any) -> None:
    with HarnessAttempt(graph(place, f"rows of {job_id}"), place.child("jobs"), job_id=job_id, **options) as attempt:
        for _ in range(epochs):
            attempt.run_epoch()


def ask(place: StorageLocation) -> None:
    """Runs the job to its end, with requests."""
    orders = [Order(RequestKind.SAVEPOINT), Order(RequestKind.RESCALE, parallelism=3)]
    job = place.child("jobs").child("job")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(0))
        patch.setattr(HarnessAttempt, "_create_mailbox", lambda attempt: InlineMailbox(random.Random(1).choice))
        with HarnessAttempt(graph(place, "rows of job"), place.child("jobs")) as attempt:
            asker = JobRequests(job, "test", sleep=lambda seconds: pytest.fail("no answer"))
            asked = [asker.submit(order) for order in orders]
            list(attempt.run_epochs())
    assert [asker.wait(each).state for each in asked] == [AnswerState.DONE, AnswerState.DONE]


def live(place: StorageLocation) -> None:
    """Runs a job, requests, savepoints, a restore, a rescale, a fork, the clean-up, and loses a race for a key."""
    job = place.child("jobs").child("job")
    run(place)
    ask(place)
    savepoint = replace(place, url=trigger_savepoint(job))
    run(place, "restored", 1, restore_from=savepoint.url)
    fork_job(job, "copy")
    run(place, "copy", 1)
    dispose_savepoint(savepoint, owner="test", now_ms=0)
    dispose_job(job.parent.child("copy"))
    store = job.open()
    sweep(store, now=LATER)
    upload = store.create_upload("k")
    part = store.upload_part("k", upload, 1, b"1")
    store.put("k", b"of somebody else")
    with pytest.raises(PreconditionFailedError):
        store.complete_upload("k", upload, [part])
    store.abort_upload("k", upload)


def somebody(place: StorageLocation, actions: Iterable[str]) -> StorageLocation:
    """Returns a folder as somebody sees it who may do these actions of the page in its bucket, and nothing else.

    Args:
        place: The bucket, with the keys of somebody who may make users.
        actions: The actions.
    """
    document = policy()
    for statement in document["Statement"]:
        statement["Action"] = sorted({*statement["Action"]} & {*actions})
        statement["Resource"] = statement["Resource"].replace(":bucket", f":{urlsplit(place.url).netloc}")
    iam = boto3.client(
        "iam",
        endpoint_url=place.endpoint_url,
        region_name=place.region,
        aws_access_key_id=place.access_key_id,
        aws_secret_access_key=place.secret_access_key,
    )
    name = uuid.uuid4().hex
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="page", PolicyDocument=json.dumps(document))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return replace(place.child(name), access_key_id=key["AccessKeyId"], secret_access_key=key["SecretAccessKey"])


def test_with_the_policy_of_the_page_a_whole_job_runs(ceph: StorageLocation) -> None:
    live(somebody(ceph, ACTIONS))


@pytest.mark.parametrize("action", ACTIONS)
def test_without_an_action_of_the_page_a_job_does_not_start_and_names_it(ceph: StorageLocation, action: str) -> None:
    place = somebody(ceph, {*ACTIONS} - {action})
    with pytest.raises(AccessDeniedError, match=f"allowed to use {action}$"):
        run(place)
    there = replace(place, access_key_id=ceph.access_key_id, secret_access_key=ceph.secret_access_key)
    assert [each.key for each in there.open().list() if each.key.endswith(".parquet")] == []


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_with_the_policy_of_the_page_tables_are_written_and_read(
    ceph: StorageLocation, kind: str, tmp_path: Path
) -> None:
    target = Target(kind, tmp_path, somebody(ceph, ACTIONS).child("table"))
    target.add(1, 2)
    target.add(3)
    source = target.source()
    assert take(source, source.create_enumerator(None)) == [1, 2, 3]


def test_of_a_source_two_actions_are_enough_and_each_is_named_where_it_is_missing(ceph: StorageLocation) -> None:
    rows = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1]}), rows)
    for actions in (READING, *({action} for action in READING)):
        place = somebody(ceph, actions)
        there = replace(place, access_key_id=ceph.access_key_id, secret_access_key=ceph.secret_access_key)
        there.open().put("rows.parquet", rows.getvalue().to_pybytes())
        source = ParquetSource(place, row_type=Types.ROW_NAMED(["n"], [Types.LONG()]))
        if actions == READING:
            assert take(source, source.create_enumerator(None)) == [1]
            continue
        [missing] = READING - actions
        with pytest.raises(FlinkPyError, match=missing):
            take(source, source.create_enumerator(None))
