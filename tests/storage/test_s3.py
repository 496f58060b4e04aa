"""Faults of S3 and the network: lost responses, conflicts, truncated bodies, refusals."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ReadTimeoutError
from botocore.httpchecksum import Crc32Checksum, StreamingChecksumBody
from botocore.httpsession import URLLib3Session
from botocore.response import StreamingBody
from botocore.stub import Stubber
from mypy_boto3_s3 import S3Client

from dagster_flinkpy.errors import (
    ConditionalWritesUnsupportedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreUnreachableError,
    UploadNotFoundError,
)
from dagster_flinkpy.storage import ObjectStore, StorageLocation, UploadedPart
from dagster_flinkpy.storage.s3 import S3ObjectStore, s3_client

PART = 5 * 2**20


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr("random.uniform", lambda *_: 0)


# --- responses that get lost ------------------------------------------------------------------------------------------


@pytest.fixture
def client(s3_location: StorageLocation) -> S3Client:
    """Returns the client that the stores of ``s3_location`` share."""
    place = s3_location
    return s3_client(place.endpoint_url, place.region, place.access_key_id, place.secret_access_key)


@pytest.fixture
def store(s3_location: StorageLocation) -> ObjectStore:
    return s3_location.open()


@contextmanager
def faulty_once(client: S3Client, operation: str, meanwhile: Callable[[AWSPreparedRequest], None]) -> Iterator[None]:
    """Replaces the first request of an operation by ``meanwhile``. The client sees a timeout."""
    met = []

    def before_send(request: AWSPreparedRequest, **_: object) -> None:
        if not met:
            met.append(request)
            meanwhile(request)
            raise ReadTimeoutError(endpoint_url=request.url)

    client.meta.events.register_first(f"before-send.s3.{operation}", before_send)
    try:
        yield
    finally:
        client.meta.events.unregister(f"before-send.s3.{operation}", before_send)
    assert met


def deliver(request: AWSPreparedRequest) -> None:
    """Delivers a request to the server. Only the response is lost."""
    assert URLLib3Session().send(request).status_code == 200


def overtake(store: ObjectStore, data: bytes) -> None:
    store.put("k", data, if_none_match=True)


def test_lost_answer_to_a_create(store: ObjectStore, client: S3Client) -> None:
    with faulty_once(client, "PutObject", deliver):
        etag = store.put("k", b"ours", if_none_match=True)
    assert store.get("k") == (b"ours", etag)


def test_lost_answer_to_a_compare_and_swap(store: ObjectStore, client: S3Client) -> None:
    before = store.put("k", b"old")
    with faulty_once(client, "PutObject", deliver):
        etag = store.put("k", b"ours", if_match=before)
    assert store.get("k") == (b"ours", etag)


@pytest.mark.parametrize("theirs", [b"theirs", b"ours"])
def test_lost_create_that_another_writer_overtook(store: ObjectStore, client: S3Client, theirs: bytes) -> None:
    """Even if the other writer wrote the same bytes, this one did not create the object."""
    with (
        faulty_once(client, "PutObject", lambda _: overtake(store, theirs)),
        pytest.raises(PreconditionFailedError),
    ):
        store.put("k", b"ours", if_none_match=True)
    assert store.get("k")[0] == theirs


def test_lost_answer_to_a_create_that_was_replaced_since(store: ObjectStore, client: S3Client) -> None:
    def deliver_then_replace(request: AWSPreparedRequest) -> None:
        deliver(request)
        store.put("k", b"later")

    with faulty_once(client, "PutObject", deliver_then_replace), pytest.raises(PreconditionFailedError):
        store.put("k", b"ours", if_none_match=True)
    assert store.get("k")[0] == b"later"


@pytest.mark.parametrize("if_none_match", [True, False])
def test_lost_answer_to_a_completion(store: ObjectStore, client: S3Client, if_none_match: bool) -> None:
    upload = store.create_upload("k")
    parts = [store.upload_part("k", upload, 1, b"x" * PART), store.upload_part("k", upload, 2, b"y")]
    with faulty_once(client, "CompleteMultipartUpload", deliver):
        store.complete_upload("k", upload, parts, if_none_match=if_none_match)
    assert store.get("k")[0] == b"x" * PART + b"y"
    assert list(store.list_uploads()) == []


def test_lost_completion_that_another_writer_overtook(store: ObjectStore, client: S3Client) -> None:
    upload = store.create_upload("k")
    part = store.upload_part("k", upload, 1, b"ours")
    with (
        faulty_once(client, "CompleteMultipartUpload", lambda _: overtake(store, b"theirs")),
        pytest.raises(PreconditionFailedError),
    ):
        store.complete_upload("k", upload, [part])
    assert store.get("k")[0] == b"theirs"
    assert [found.upload_id for found in store.list_uploads()] == [upload]


_CALLS: list[Callable[[ObjectStore, str, UploadedPart], object]] = [
    lambda store, upload, part: store.put("k", b"1"),
    lambda store, upload, part: store.get("k"),
    lambda store, upload, part: store.get_range("k", 0, 1),
    lambda store, upload, part: store.head("k"),
    lambda store, upload, part: list(store.list()),
    lambda store, upload, part: list(store.list_folders()),
    lambda store, upload, part: list(store.list_uploads()),
    lambda store, upload, part: store.create_upload("k"),
    lambda store, upload, part: store.upload_part("k", upload, 2, b"1"),
    lambda store, upload, part: store.complete_upload("k", upload, [part]),
]


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("call", _CALLS, ids=map(str, range(len(_CALLS))))
def test_a_page_that_answers_in_the_place_of_the_server_says_nothing_of_objects(
    store: ObjectStore, client: S3Client, call: Callable[[ObjectStore, str, UploadedPart], object], status: int
) -> None:
    """As that of an ingress whose server is away, with 404: objects such as ``leader`` were said to be deleted."""
    page = b"<html><body>We are back soon</body></html>"
    upload = store.create_upload("k")
    part = store.upload_part("k", upload, 1, b"1")

    def answer(**_: object) -> AWSResponse:
        raw = io.BytesIO(page)
        raw.stream = lambda *_: iter([page])  # type: ignore[attr-defined]
        return AWSResponse("http://page", status, {"Content-Type": "text/html"}, raw)

    client.meta.events.register("before-send.s3", answer)
    try:
        if call is _CALLS[3] and status == 404:  # no answer to a HEAD has a body
            assert call(store, upload, part) is None
            return
        with pytest.raises(StorageError, match="is not S3"):
            call(store, upload, part)
    finally:
        client.meta.events.unregister("before-send.s3", answer)


# --- answers that a test server does not give -------------------------------------------------------------------------


@pytest.fixture
def stub() -> Iterator[Stubber]:
    """Returns a separate client with prepared answers, all of which must be used."""
    import boto3

    made = boto3.Session().client("s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="s")
    with Stubber(made) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


@pytest.fixture
def stubbed(stub: Stubber) -> S3ObjectStore:
    return S3ObjectStore(stub.client, "lake", "jobs")


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "ConcurrentModification"])
def test_conflict_is_tried_again(stub: Stubber, stubbed: S3ObjectStore, code: str) -> None:
    stub.add_client_error("put_object", code, http_status_code=409)
    stub.add_client_error("put_object", code, http_status_code=409)
    stub.add_response("put_object", {"ETag": '"e"'})
    assert stubbed.put("k", b"1", if_none_match=True) == "e"


def test_lasting_conflict_is_a_lost_race(stub: Stubber, stubbed: S3ObjectStore) -> None:
    for _ in range(5):
        stub.add_client_error("put_object", "ConditionalRequestConflict", http_status_code=409)
    stub.add_client_error("head_object", "404", http_status_code=404)
    with pytest.raises(PreconditionFailedError, match="s3://lake/jobs/k"):
        stubbed.put("k", b"1", if_none_match=True)


def body(data: bytes, length: int) -> dict[str, object]:
    there = f"bytes 0-{length - 1}/{length}"
    return {"Body": StreamingBody(io.BytesIO(data), length), "ETag": '"e"', "ContentRange": there}


def test_body_cut_off_is_read_again(stub: Stubber, stubbed: S3ObjectStore) -> None:
    stub.add_response("get_object", body(b"01", 4))
    stub.add_response("get_object", body(b"0123", 4))
    assert stubbed.get("k") == (b"0123", "e")
    stub.add_response("get_object", body(b"", 4))
    stub.add_response("get_object", body(b"0123", 4))
    assert stubbed.get_range("k", 0, 4) == b"0123"


def test_a_body_without_a_length_whose_checksum_is_wrong_is_read_again(stub: Stubber, stubbed: S3ObjectStore) -> None:
    for data in (b"01", b"0123"):
        summed = StreamingChecksumBody(io.BytesIO(data), None, Crc32Checksum(), "pmadfQ==")
        stub.add_response("get_object", {**body(data, 4), "Body": summed})
    assert stubbed.get("key")[0] == b"0123"


def test_a_range_without_a_length_that_is_cut_off_is_read_again(stub: Stubber, stubbed: S3ObjectStore) -> None:
    """It was taken for the whole range: the lines of a text file after it were lost."""
    for data in (b"", b"01", b"0123"):
        stub.add_response("get_object", {**body(data, 4), "Body": StreamingBody(io.BytesIO(data), None)})
    assert stubbed.get_range("k", 0, 4) == b"0123"


def test_body_cut_off_again_and_again(stub: Stubber, stubbed: S3ObjectStore) -> None:
    for _ in range(5):
        stub.add_response("get_object", body(b"01", 4))
    with pytest.raises(StorageError, match="s3://lake/jobs/k"):
        stubbed.get("k")


def test_denied_access_names_bucket_and_permission(stub: Stubber, stubbed: S3ObjectStore) -> None:
    asked: list[tuple[str, str, Callable[[], object]]] = [
        ("get_object", "s3:GetObject", lambda: stubbed.get("k")),
        ("get_object", "s3:GetObject", lambda: stubbed.get_range("k", 0, 1)),
        ("head_object", "s3:GetObject", lambda: stubbed.head("k")),
        ("put_object", "s3:PutObject", lambda: stubbed.put("k", b"")),
        ("delete_object", "s3:DeleteObject", lambda: stubbed.delete("k")),
        ("delete_objects", "s3:DeleteObject", lambda: stubbed.delete_many(["k"])),
        ("list_objects_v2", "s3:ListBucket", lambda: list(stubbed.list())),
        ("list_objects_v2", "s3:ListBucket", lambda: list(stubbed.list_folders())),
        ("create_multipart_upload", "s3:PutObject", lambda: stubbed.create_upload("k")),
        ("upload_part", "s3:PutObject", lambda: stubbed.upload_part("k", "u", 1, b"")),
        ("abort_multipart_upload", "s3:AbortMultipartUpload", lambda: stubbed.abort_upload("k", "u")),
        ("list_multipart_uploads", "s3:ListBucketMultipartUploads", lambda: list(stubbed.list_uploads())),
    ]
    for operation, permission, call in asked:
        stub.add_client_error(operation, "AccessDenied", http_status_code=403)
        with pytest.raises(StorageError, match=f"bucket 'lake' denies access to s3://lake/jobs/.* {permission}$"):
            call()


@pytest.mark.parametrize(
    ("code", "status", "error", "says"),
    [
        ("NoSuchBucket", 404, StorageError, "no bucket 'lake' at https://.*create it"),
        ("NotImplemented", 501, ConditionalWritesUnsupportedError, "does not implement"),
        ("SlowDown", 503, StorageError, "SlowDown"),
        ("NoSuchKey", 404, ObjectNotFoundError, "s3://lake/jobs/k"),
        ("RequestTimeTooSkewed", 403, StorageError, "s3://lake/jobs/k: the clock of .* differs from the store's"),
        ("InvalidObjectState", 403, StorageError, "s3://lake/jobs/k is archived, .* restore it"),
    ],
)
def test_other_refusals(
    stub: Stubber, stubbed: S3ObjectStore, code: str, status: int, error: type[StorageError], says: str
) -> None:
    stub.add_client_error("put_object", code, http_status_code=status)
    with pytest.raises(error, match=says) as raised:
        stubbed.put("k", b"", if_none_match=True)
    assert raised.type is error


def test_objects_that_could_not_be_deleted(stub: Stubber, stubbed: S3ObjectStore) -> None:
    stub.add_response(
        "delete_objects", {"Errors": [{"Key": "jobs/b", "Code": "AccessDenied", "Message": "locked until May"}]}
    )
    with pytest.raises(StorageError, match=r"1 of 2 .*'lake'.*'jobs/b': AccessDenied: locked until May"):
        stubbed.delete_many(["a", "b"])


def test_objects_that_a_store_fails_to_delete_are_deleted_once_more(stub: Stubber, stubbed: S3ObjectStore) -> None:
    """S3 says so of single objects in an answer that is a success, so boto3 does not send them again."""
    failed = [{"Key": f"jobs/{name}", "Code": code} for name, code in (("a", "InternalError"), ("c", "SlowDown"))]

    def asked(*names: str) -> dict[str, object]:
        keys = [{"Key": f"jobs/{name}"} for name in names]
        return {"Bucket": "lake", "Delete": {"Objects": keys, "Quiet": True}}

    stub.add_response("delete_objects", {"Errors": failed}, asked("a", "b", "c"))
    stub.add_response("delete_objects", {}, asked("a", "c"))
    stubbed.delete_many(["a", "b", "c"])
    for _ in range(5):
        stub.add_response("delete_objects", {"Errors": failed[:1]})
    with pytest.raises(StorageError, match=r"1 of 2 .*'jobs/a': InternalError: None.$"):
        stubbed.delete_many(["a", "b"])


def test_completion_under_encryption_whose_etags_are_no_md5s(stub: Stubber, stubbed: S3ObjectStore) -> None:
    stub.add_client_error("complete_multipart_upload", "NoSuchUpload", http_status_code=404)
    stub.add_response(
        "head_object", {"ETag": '"other"', "ContentLength": 1, "LastModified": datetime.now(timezone.utc)}
    )
    stub.add_client_error("list_parts", "NoSuchUpload", http_status_code=404)
    with pytest.raises(UploadNotFoundError):
        stubbed.complete_upload("k", "u", [UploadedPart(1, "not hexadecimal")])


def test_server_that_calls_a_completion_of_an_aborted_upload_an_internal_error(
    stub: Stubber, stubbed: S3ObjectStore
) -> None:
    """Ceph RGW 20 is such a server."""
    stub.add_client_error("complete_multipart_upload", "InternalError", http_status_code=500)
    stub.add_client_error("head_object", "404", http_status_code=404)
    stub.add_client_error("list_parts", "NoSuchKey", http_status_code=404)
    with pytest.raises(UploadNotFoundError, match="s3://lake/jobs/k"):
        stubbed.complete_upload("k", "u", [UploadedPart(1, "00")])


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, ministack: StorageLocation) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/none")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StorageError, match=r"credentials"):
        StorageLocation(ministack.url, ministack.endpoint_url, "us-east-1").open().get("k")


def test_credentials_of_the_environment(monkeypatch: pytest.MonkeyPatch, s3_location: StorageLocation) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    from_environment = StorageLocation(s3_location.url, s3_location.endpoint_url, "eu-west-1")
    from_environment.open().put("k", b"1")
    assert s3_location.open().get("k")[0] == b"1"


# --- no network -------------------------------------------------------------------------------------------------------


def test_that_no_network_leads_to_a_store_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    away = StorageLocation("s3://bucket", "http://127.0.0.1:1", access_key_id="a", secret_access_key="b").open()
    with pytest.raises(StoreUnreachableError, match="no network"):
        away.check_way()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:2")  # of which a request finds out whether it finds a way
    with pytest.raises(StoreUnreachableError, match="no network"):
        away.check_way()


def test_a_request_that_is_lost_does_not_say_that_no_network_leads_to_the_store() -> None:
    away = StorageLocation("s3://bucket", "http://127.0.0.1:1", access_key_id="a", secret_access_key="b").open()
    with pytest.raises(StorageError, match="cannot reach") as error:
        away.get("key")
    assert not isinstance(error.value, StoreUnreachableError)  # all would go through the driver from then on


def test_there_is_a_way_to_a_server_that_answers(s3_location: StorageLocation) -> None:
    s3_location.open().check_way()
