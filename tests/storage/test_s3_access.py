"""S3 as companies have it: keys that expire, private authorities, KMS keys, virtual hosts."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.errors import ConfigurationError, StorageError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.s3 import found_keys, s3_client
from tests import servers
from tests.certificates import private_authority
from tests.storage.keys import only_keys, write_keys

PART = 5 * 2**20


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    only_keys(tmp_path / "credentials", monkeypatch)
    return tmp_path / "credentials"


CALLS: list[Callable[[Any], object]] = [
    lambda store: store.get("k"),
    lambda store: store.get_range("k", 0, 1),
    lambda store: store.head("k"),
    lambda store: store.put("k", b"2"),
    lambda store: store.put("new", b"1", if_none_match=True),
    lambda store: store.delete("k"),
    lambda store: store.delete_many(["k"]),
    lambda store: list(store.list()),
    lambda store: store.create_upload("k"),
    lambda store: list(store.list_uploads()),
]


@pytest.mark.parametrize("call", CALLS)
def test_keys_that_expire_are_read_again(
    call: Callable[[Any], object], keys: Path, s3_location: StorageLocation
) -> None:
    expired = set[str]()
    with servers.guarded(str(s3_location.endpoint_url), expired.__contains__) as endpoint:
        store = StorageLocation(s3_location.url, endpoint, "us-east-1").open()
        store.put("k", b"1")
        write_keys(keys, "second")
        expired.add("first")
        call(store)


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_keys_that_were_replaced_are_read_again(code: str, keys: Path, s3_location: StorageLocation) -> None:
    replaced = set[str]()
    with servers.guarded(str(s3_location.endpoint_url), replaced.__contains__, code=code) as endpoint:
        store = StorageLocation(s3_location.url, endpoint, "us-east-1").open()
        store.put("k", b"1")
        write_keys(keys, "second")
        replaced.add("first")
        assert store.get("k")[0] == b"1"


def test_an_upload_goes_on_with_other_keys_than_it_has_begun_with(keys: Path, s3_location: StorageLocation) -> None:
    expired = set[str]()
    with servers.guarded(str(s3_location.endpoint_url), expired.__contains__) as endpoint:
        store = StorageLocation(s3_location.url, endpoint, "us-east-1").open()
        upload = store.create_upload("k")
        parts = []
        for number, key in enumerate(("second", "third"), 1):
            expired.add({"second": "first"}.get(key, "second"))
            write_keys(keys, key)
            parts.append(store.upload_part("k", upload, number, bytes(PART)))
        write_keys(keys, "fourth")
        expired.add("third")
        store.complete_upload("k", upload, parts)
        assert len(store.get("k")[0]) == 2 * PART
        others = {"AWS_ACCESS_KEY_ID": "fourth", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t-fourth"}
        assert found_keys(endpoint, "us-east-1", None) == others, "for clients that are not boto3's"


def test_expired_keys_that_nobody_renews_are_an_error_until_somebody_does(
    keys: Path, s3_location: StorageLocation
) -> None:
    expired, asked = {"first"}, list[str]()

    def refuses(key: str) -> bool:
        asked.append(key)
        return key in expired

    with servers.guarded(str(s3_location.endpoint_url), refuses) as endpoint:
        store = StorageLocation(s3_location.url, endpoint, "us-east-1").open()
        with pytest.raises(StorageError, match="ExpiredToken"):
            store.put("k", b"1")
        assert asked == ["first"], "the same keys would be refused again"
        write_keys(keys, "second")
        store.put("k", b"1")
        expired.add("second")
        write_keys(keys, "first")
        with pytest.raises(StorageError, match="ExpiredToken"):
            store.put("k", b"2")
        assert asked[1:] == ["first", "second", "second", "first"]


def test_keys_that_are_given_stay(keys: Path, s3_location: StorageLocation) -> None:
    with servers.guarded(str(s3_location.endpoint_url), {"given"}.__contains__) as endpoint:
        store = StorageLocation(s3_location.url, endpoint, "us-east-1", "given", "s").open()
        with pytest.raises(StorageError, match="ExpiredToken"):
            store.put("k", b"1")


def test_a_role_with_a_token_file_gets_new_keys_of_a_new_token(
    keys: Path, s3_location: StorageLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pods have it on EKS. MiniStack gives out keys for any token."""
    used, expired = list[str](), set[str]()

    def refuses(key: str) -> bool:
        used.append(key)
        return key in expired

    keys.unlink()
    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::000000000000:role/jobs")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", str(s3_location.endpoint_url))
    with servers.guarded(str(s3_location.endpoint_url), refuses) as endpoint:
        store = StorageLocation(s3_location.url, endpoint, "us-east-1").open()
        store.put("k", b"1")
        expired.update(used)
        token.write_text("second")
        assert store.get("k")[0] == b"1"
    assert len(set(used)) == 2


# --- encryption -------------------------------------------------------------------------------------------------------


def test_all_that_is_written_has_the_kms_key(s3_location: StorageLocation) -> None:
    place = replace(s3_location, kms_key_id="alias/jobs")
    for name, store in {"a": place.open(), "b": place.child("c").open(), "c": place.open().beside("d")}.items():
        etag = store.put(name, b"1")
        store.put(name, b"2", if_match=etag)
        store.put(f"{name}-new", b"1", if_none_match=True)
        upload = store.create_upload(f"{name}-parts")
        store.complete_upload(f"{name}-parts", upload, [store.upload_part(f"{name}-parts", upload, 1, b"1")])
    client = s3_client(place.endpoint_url, place.region, place.access_key_id, place.secret_access_key)
    bucket, _, prefix = place.url.removeprefix("s3://").partition("/")
    found = client.list_objects_v2(Bucket=bucket)["Contents"]
    names = [each["Key"] for each in found if each["Key"].startswith((prefix, "d/"))]
    assert len(names) == 9
    for name in names:
        told = client.head_object(Bucket=bucket, Key=name)
        assert (told["ServerSideEncryption"], told["SSEKMSKeyId"]) == ("aws:kms", "alias/jobs"), name


@pytest.mark.parametrize("given", [{"kms_key_id": "k"}, {"addressing_style": "path"}])
def test_settings_of_s3_for_a_local_directory(given: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="are for S3"):
        StorageLocation(str(tmp_path), **given)  # type: ignore[arg-type]


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("style", "host"), [("virtual", "{}.s3.test"), ("path", "s3.test"), (None, "s3.test")])
def test_addressing_style(
    style: str | None, host: str, s3_location: StorageLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up, find = list[str](), socket.getaddrinfo

    def getaddrinfo(name: str, *more: Any, **options: Any) -> Any:
        looked_up.append(name)
        return find("127.0.0.1" if name.endswith("s3.test") else name, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    endpoint = str(s3_location.endpoint_url).replace("127.0.0.1", "s3.test")
    place = replace(s3_location, endpoint_url=endpoint, addressing_style=style)
    place.open().put("k", b"1")
    assert s3_location.open().get("k")[0] == b"1"
    assert set(looked_up) == {host.format(place.url.split("/")[2])}


def test_an_addressing_style_that_there_is_not() -> None:
    with pytest.raises(ConfigurationError, match="'path' or 'virtual', not 'host'"):
        StorageLocation("s3://bucket", addressing_style="host")


def test_an_authority_of_the_company(
    s3_location: StorageLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    bundle, tls = private_authority(tmp_path)
    with servers.guarded(str(s3_location.endpoint_url), lambda _: False, tls) as endpoint:
        place = replace(s3_location, endpoint_url=endpoint)
        with pytest.raises(StorageError, match="CERTIFICATE_VERIFY_FAILED"):
            place.open().put("k", b"1")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
        known = replace(place, region="eu-west-1")  # a client that is not made yet
        known.open().put("k", b"1")
        assert s3_location.open().get("k")[0] == b"1"
