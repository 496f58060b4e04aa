"""Amazon S3, and servers that speak its protocol, as an object store."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import tenacity

from dagster_flinkpy.errors import (
    AccessDeniedError,
    ConditionalWritesUnsupportedError,
    ConfigurationError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreUnreachableError,
    UploadNotFoundError,
)
from dagster_flinkpy.storage.object_store import (
    ObjectInfo,
    ObjectStore,
    UploadedPart,
    UploadInfo,
    check_prefix,
    check_relative,
)
from dagster_flinkpy.storage.origins import reads_origins
from dagster_flinkpy.storage.s3_credentials import FoundCredentials, renew_when_expired

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import (
        CompleteMultipartUploadRequestTypeDef,
        CreateMultipartUploadRequestTypeDef,
        DeleteTypeDef,
        ErrorTypeDef,
        PutObjectRequestTypeDef,
    )

__all__ = ["S3ObjectStore", "found_keys", "s3_client"]

_ATTEMPTS = 5
"""Number of tries for what boto3 does not retry: truncated bodies, and 409 (concurrent conditional requests)."""
_CONFLICTS = ("ConditionalRequestConflict", "ConcurrentModification")
"""The error codes of a 409, from Amazon and from Ceph."""
_PASSING = ("InternalError", "SlowDown", "ServiceUnavailable")
"""Error codes of single objects, in an answer for many, that trying again helps with."""
_CONNECT_SECONDS = 10
_DELETE_BATCH = 1000
_WRITE_ID = "flinkpy-write"
"""The metadata field that identifies our own write after its response was lost."""

T = TypeVar("T")


def s3_client(
    endpoint_url: str | None = None,
    region: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    addressing_style: str | None = None,
) -> S3Client:
    """Returns this process's client for a server. A fork gets its own. See ``StorageLocation`` for the arguments."""
    return _client_of_process(endpoint_url, region, access_key_id, secret_access_key, addressing_style, os.getpid())[0]


def found_keys(endpoint_url: str | None, region: str | None, addressing_style: str | None) -> dict[str, str]:
    """Returns the keys that boto3 has found for a client, named as in the environment, if there are any."""
    from botocore.exceptions import BotoCoreError

    credentials = _client_of_process(endpoint_url, region, None, None, addressing_style, os.getpid())[1]
    if credentials is None:
        return {}
    try:
        keys = credentials.get_frozen_credentials()
    except BotoCoreError as error:
        raise StorageError(f"there are no credentials for S3: {error}") from error
    found = {
        "AWS_ACCESS_KEY_ID": keys.access_key,
        "AWS_SECRET_ACCESS_KEY": keys.secret_key,
        "AWS_SESSION_TOKEN": keys.token,
    }
    return {name: value for name, value in found.items() if value is not None}


@lru_cache(maxsize=32)
def _client_of_process(
    endpoint_url: str | None,
    region: str | None,
    access_key_id: str | None,
    secret_access_key: str | None,
    addressing_style: str | None,
    _pid: int,
) -> tuple[S3Client, FoundCredentials | None]:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": 6},
        max_pool_connections=32,
        tcp_keepalive=True,
        s3={"addressing_style": cast("Any", addressing_style or ("path" if endpoint_url else "auto"))},
    )
    try:
        session = boto3.Session()  # the default session is not thread-safe
        found = session.get_credentials() if access_key_id is None else None
        credentials = None if found is None else FoundCredentials(found)
        client = (credentials.session() if credentials else session).client(
            "s3",
            endpoint_url=endpoint_url,
            region_name=region,
            aws_access_key_id=access_key_id,
            aws_secret_access_key=secret_access_key,
            config=config,
        )
    except (ValueError, BotoCoreError) as error:
        raise ConfigurationError(
            f"cannot create an S3 client: {error}. Check the endpoint and region that you passed, and those in the "
            "environment (AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3, AWS_DEFAULT_REGION, AWS_PROFILE) and in ~/.aws/config"
        ) from error
    if credentials is not None:
        renew_when_expired(client, credentials)
    return client, credentials


class S3ObjectStore(ObjectStore):
    """Objects in a bucket. ETags are S3's, without the quotes.

    If the response to a conditional ``put`` is lost, boto3 sends the request again, which then fails on our own object.
    So each ``put`` writes an id to the object's metadata. After a failed condition the object is read, and if it has
    this id, the write was a success. A completed upload is identified by its ETag, the MD5 of its parts' MD5s. (This
    does not work in buckets encrypted with SSE-KMS: there a repeated ``complete_upload`` is an error.)

    Args:
        client: A client from ``s3_client``.
        bucket: The name of the bucket, which must exist.
        prefix: The root of the store inside the bucket; '' is the whole bucket.
        kms_key_id: The KMS key that objects are encrypted with. Default: as the bucket has it.
    """

    def __init__(self, client: S3Client, bucket: str, prefix: str = "", kms_key_id: str | None = None) -> None:
        self._client = client
        self._bucket = bucket
        self._kms_key_id = kms_key_id
        self._root = f"{check_relative(prefix)}/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"

    @reads_origins
    def get(self, key: str) -> tuple[bytes, str]:
        full = self._full(key)

        def read() -> tuple[bytes, str]:
            response = self._client.get_object(Bucket=self._bucket, Key=full)
            return response["Body"].read(), _etag_of(response)

        with self._translated("s3:GetObject", key):
            return _read_whole(read)

    @reads_origins
    def get_range(self, key: str, start: int, length: int) -> bytes:
        from botocore.exceptions import IncompleteReadError

        if start < 0 or length < 0:
            raise ConfigurationError(f"range of {key!r}: start {start} and length {length} must not be negative")
        full = self._full(key)
        if length == 0:
            return b""

        def read() -> bytes:
            asked = f"bytes={start}-{start + length - 1}"
            response = self._client.get_object(Bucket=self._bucket, Key=full, Range=asked)
            found = re.match(rf"bytes {start}-(\d+)/", response.get("ContentRange", ""))
            if found is None:
                raise _ForeignAnswerError("range")
            data, expected = response["Body"].read(), int(found[1]) + 1 - start
            if len(data) != expected:  # boto3 notices only if there is a Content-Length, which proxies may drop
                raise IncompleteReadError(actual_bytes=len(data), expected_bytes=expected)
            return data

        try:
            with self._translated("s3:GetObject", key):
                return _read_whole(read)
        except _BeyondEndError:
            return b""

    def head(self, key: str) -> ObjectInfo | None:
        full = self._full(key)
        try:
            with self._translated("s3:GetObject", key):
                found = self._client.head_object(Bucket=self._bucket, Key=full)
                etag = _etag_of(found)
        except ObjectNotFoundError:
            return None
        return ObjectInfo(key, found["ContentLength"], etag, found["LastModified"])

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        full, write_id = self._full(key), uuid.uuid4().hex
        request: PutObjectRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": full,
            "Body": data,
            "Metadata": {_WRITE_ID: write_id},
        }
        if self._kms_key_id is not None:
            request["ServerSideEncryption"], request["SSEKMSKeyId"] = "aws:kms", self._kms_key_id
        if if_none_match:
            request["IfNoneMatch"] = "*"
        if if_match is not None:
            request["IfMatch"] = f'"{if_match}"'
        try:
            with self._translated("s3:PutObject", key):
                return _etag_of(_retry_conflict(lambda: self._client.put_object(**request)))
        except ObjectNotFoundError as error:
            if if_match is None:
                raise
            raise PreconditionFailedError(f"{self.url}/{key} was deleted meanwhile") from error
        except PreconditionFailedError:
            etag = self._etag_if_written_by(key, write_id)
            if etag is None:
                raise
            return etag

    def delete(self, key: str) -> None:
        full = self._full(key)
        with self._translated("s3:DeleteObject", key):
            self._client.delete_object(Bucket=self._bucket, Key=full)

    def delete_many(self, keys: Iterable[str]) -> None:
        remaining = iter(keys)
        while batch := [self._full(key) for key in islice(remaining, _DELETE_BATCH)]:
            self._delete_batch(batch)

    def _delete_batch(self, keys: Sequence[str]) -> None:
        """Deletes objects. The store may fail to delete some of them although it answers with success."""
        left, count = keys, len(keys)

        def delete() -> Sequence[ErrorTypeDef]:
            nonlocal left
            with self._translated("s3:DeleteObject", left[0].removeprefix(self._root)):
                objects: DeleteTypeDef = {"Objects": [{"Key": key} for key in left], "Quiet": True}
                errors = self._client.delete_objects(Bucket=self._bucket, Delete=objects).get("Errors", [])
            left = [error.get("Key", "") for error in errors]
            return errors

        errors = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda found: any(error.get("Code") in _PASSING for error in found)),
            wait=tenacity.wait_random_exponential(multiplier=0.5),
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            retry_error_callback=lambda last: last.outcome.result() if last.outcome is not None else (),
        )(delete)
        if errors:
            first = errors[0]
            advice = " Allow s3:DeleteObject." if first.get("Code") == "AccessDenied" else ""
            raise StorageError(
                f"{len(errors)} of {count} objects were not deleted from bucket {self._bucket!r}, the first: "
                f"{first.get('Key')!r}: {first.get('Code')}: {first.get('Message')}.{advice}"
            )

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._root + check_prefix(prefix)
        )
        with self._translated("s3:ListBucket", prefix):
            for page in pages:
                _check_names(page, "Name")
                for found in page.get("Contents", ()):
                    key = found["Key"].removeprefix(self._root)
                    yield ObjectInfo(key, found["Size"], _bare(found["ETag"]), found["LastModified"])

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._root + check_prefix(prefix), Delimiter="/"
        )
        with self._translated("s3:ListBucket", prefix):
            for page in pages:
                _check_names(page, "Name")
                for found in page.get("CommonPrefixes", ()):
                    yield found["Prefix"].removeprefix(self._root)

    def check_way(self) -> None:
        _check_way(self._client, self._bucket, os.getpid())

    def create_upload(self, key: str) -> str:
        request: CreateMultipartUploadRequestTypeDef = {"Bucket": self._bucket, "Key": self._full(key)}
        if self._kms_key_id is not None:
            request["ServerSideEncryption"], request["SSEKMSKeyId"] = "aws:kms", self._kms_key_id
        with self._translated("s3:PutObject", key):
            created = self._client.create_multipart_upload(**request)
            _check_names(created, "UploadId")
            return created["UploadId"]

    def upload_part(
        self, key: str, upload_id: str, number: int, data: bytes | bytearray, *, sha256_of_all: str | None = None
    ) -> UploadedPart:
        full = self._full(key)
        if not 1 <= number <= 10_000:
            raise ConfigurationError(f"part number {number} of {key!r} is not in 1 to 10000")
        with self._translated("s3:PutObject", key):
            response = self._client.upload_part(
                Bucket=self._bucket, Key=full, UploadId=upload_id, PartNumber=number, Body=cast("bytes", data)
            )
            return UploadedPart(number, _etag_of(response))

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = True
    ) -> None:
        if not parts:
            raise ConfigurationError(f"upload {upload_id!r} of {key!r} has no parts to complete")
        parts = sorted(parts, key=lambda part: part.number)
        request: CompleteMultipartUploadRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": self._full(key),
            "UploadId": upload_id,
            "MultipartUpload": {"Parts": [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in parts]},
        }
        if if_none_match:
            request["IfNoneMatch"] = "*"
        try:
            with self._translated("s3:PutObject", key):
                _etag_of(_retry_conflict(lambda: self._client.complete_multipart_upload(**request)))
        except StorageError:
            found = self.head(key)
            if found is not None and found.etag == _joined_etag(parts):
                self.abort_upload(key, upload_id)
                return
            self._check_upload(key, upload_id)
            raise

    def abort_upload(self, key: str, upload_id: str) -> None:
        full = self._full(key)
        try:
            with self._translated("s3:AbortMultipartUpload", key):
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=full, UploadId=upload_id)
        except UploadNotFoundError:
            return

    def list_uploads(self, prefix: str = "") -> Iterator[UploadInfo]:
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=self._root + check_prefix(prefix)
        )
        with self._translated("s3:ListBucketMultipartUploads", prefix):
            for page in pages:
                _check_names(page, "Bucket")
                for found in page.get("Uploads", ()):
                    yield UploadInfo(found["Key"].removeprefix(self._root), found["UploadId"])

    def child(self, prefix: str) -> S3ObjectStore:
        return S3ObjectStore(self._client, self._bucket, self._full(prefix.rstrip("/")), self._kms_key_id)

    def beside(self, path: str) -> S3ObjectStore:
        parent = self._root.rstrip("/").rpartition("/")[0]
        return S3ObjectStore(self._client, self._bucket, parent, self._kms_key_id).child(path)

    def _full(self, key: str) -> str:
        return self._root + check_relative(key)

    def _etag_if_written_by(self, key: str, write_id: str) -> str | None:
        try:
            with self._translated("s3:GetObject", key):
                found = self._client.head_object(Bucket=self._bucket, Key=self._full(key))
                etag = _etag_of(found)
        except ObjectNotFoundError:
            return None
        return etag if found["Metadata"].get(_WRITE_ID) == write_id else None

    def _check_upload(self, key: str, upload_id: str) -> None:
        """Checks that the upload exists. If it does not, Ceph RGW only answers 500 when it is to be completed."""
        try:
            with self._translated("s3:ListMultipartUploadParts", key):
                self._client.list_parts(Bucket=self._bucket, Key=self._full(key), UploadId=upload_id, MaxParts=1)
        except ObjectNotFoundError as error:  # Ceph's answer
            raise UploadNotFoundError(f"the upload of {self.url}/{key} was completed or aborted") from error

    @contextmanager
    def _translated(self, permission: str, key: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            yield
        except ClientError as error:
            raise self._typed(error, permission, key) from error
        except (_ForeignAnswerError, ResponseParserError) as error:
            raise self._foreign(key, error) from error
        except BotoCoreError as error:
            raise StorageError(
                f"cannot reach {self.url}/{key} at {self._client.meta.endpoint_url}: {error}. Check the endpoint URL, "
                "the network, and that credentials are configured."
            ) from error

    def _foreign(self, key: str, why: object) -> StorageError:
        return StorageError(
            f"{self.url}/{key}: what has answered at {self._client.meta.endpoint_url} is not S3 ({why}): a proxy, or a "
            "page that says that the server is down?"
        )

    def _typed(self, error: ClientError, permission: str, key: str) -> StorageError:
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        where = f"{self.url}/{key}"
        if code == "NoSuchBucket":
            return StorageError(
                f"no bucket {self._bucket!r} at {self._client.meta.endpoint_url}: create it, or correct the URL"
            )
        if code in ("NoSuchUpload", "InvalidPart"):
            return UploadNotFoundError(f"the upload of {where} was completed or aborted, or lacks a part ({code})")
        if code in _CONFLICTS or status == 412:
            return PreconditionFailedError(f"{where} exists already or was changed meanwhile ({code})")
        if status == 404 and code in ("", "404") and not error.operation_name.startswith("Head"):
            # S3 says what it does not have, except in answers to HEAD, which have no body.
            return self._foreign(key, error)
        if code == "NoSuchKey" or status == 404:
            return ObjectNotFoundError(f"no object {where}")
        if status == 416:
            return _BeyondEndError(f"the range lies beyond the end of {where}")
        if code == "RequestTimeTooSkewed":
            return StorageError(
                f"{where}: the clock of {socket.gethostname()} differs from the store's: set it ({code})"
            )
        if code == "InvalidObjectState":
            return StorageError(
                f"{where} is archived, as by a lifecycle rule ({code}): restore it, and leave what a job needs out of "
                "the rule"
            )
        if status == 403:
            return AccessDeniedError(
                f"bucket {self._bucket!r} denies access to {where} ({code}): check the credentials, and that they are "
                f"allowed to use {permission}"
            )
        if status == 501:
            return ConditionalWritesUnsupportedError(f"{where}: the store does not implement this request: {error}")
        return StorageError(f"{where}: {error}")


@lru_cache(maxsize=32)
def _check_way(client: S3Client, bucket: str, _pid: int) -> None:
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

    endpoint_url = client.meta.endpoint_url
    url = urlsplit(endpoint_url)
    host, port = url.hostname or "", url.port or (80 if url.scheme == "http" else 443)
    try:
        if url.scheme in getproxies() and not proxy_bypass(host):  # only the proxy knows
            with suppress(ClientError):
                client.head_bucket(Bucket=bucket)
        else:  # a request would only fail after half a minute of retries
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except (OSError, BotoCoreError) as error:
        if isinstance(error, OSError | ConnectionError | HTTPClientError):  # of all else, the first request tells
            raise StoreUnreachableError(f"no network from {socket.gethostname()} to {endpoint_url}: {error}") from error


class _ForeignAnswerError(Exception):
    """An answer says that all is well, but lacks what each answer of S3 has."""

    def __init__(self, lacks: str) -> None:
        super().__init__(f"its answer has no {lacks}")


class _BeyondEndError(StorageError):
    """A range starts at or after the end of its object."""


def _read_whole(read: Callable[[], T]) -> T:
    """Reads a response's body again if it is truncated: boto3 retries requests, but not bodies."""
    from botocore.exceptions import (
        FlexibleChecksumError,
        IncompleteReadError,
        ReadTimeoutError,
        ResponseStreamingError,
    )

    cut = (FlexibleChecksumError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError)
    truncated = tenacity.retry_if_exception_type(cut)
    return tenacity.Retrying(retry=truncated, stop=tenacity.stop_after_attempt(_ATTEMPTS), reraise=True)(read)


def _retry_conflict(write: Callable[[], T]) -> T:
    """Repeats a write that was refused because of a concurrent write of the same key."""
    from botocore.exceptions import ClientError

    def refused(error: BaseException) -> bool:
        return isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in _CONFLICTS

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(refused),
        wait=tenacity.wait_random_exponential(multiplier=0.05),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )(write)


def _check_names(answer: Mapping[str, Any], name: str) -> None:
    if name not in answer:
        raise _ForeignAnswerError(name)


def _etag_of(answer: Mapping[str, Any]) -> str:
    _check_names(answer, "ETag")
    return _bare(answer["ETag"])


def _bare(etag: str) -> str:
    return etag.strip('"')


def _joined_etag(parts: Sequence[UploadedPart]) -> str | None:
    """Returns the ETag that S3 gives an object made of these parts, if the ETags of parts are MD5s."""
    try:
        joined = b"".join(bytes.fromhex(part.etag) for part in parts)
    except ValueError:
        return None
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"
