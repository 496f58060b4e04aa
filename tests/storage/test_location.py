from __future__ import annotations

import multiprocessing
import os
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.errors import ConfigurationError, PathEscapesPrefixError, RelativePathWarning
from dagster_flinkpy.storage import StorageLocation, warn_if_relative
from dagster_flinkpy.storage.s3 import s3_client


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b c%20/", "s3://bucket/a/b c%20"),
        ("/a/b", "file:///a/b"),
        ("/a/b/", "file:///a/b"),
        ("/a/b c%", "file:///a/b%20c%25"),
        ("file:///a/b%20c%25", "file:///a/b%20c%25"),
        ("file:///a/b/", "file:///a/b"),
        ("file://localhost/a", "file:///a"),
    ],
)
def test_one_place_has_one_url(given: str, kept: str) -> None:
    location = StorageLocation(given)
    assert location.url == kept
    assert StorageLocation(kept) == location
    assert location.open().url == kept


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    location = StorageLocation("state dir")
    monkeypatch.chdir("/")
    location.open().put("k", b"1")
    assert (tmp_path / "state dir" / "k").read_bytes() == b"1"


@pytest.mark.parametrize("url", ["gs://bucket/x", "s3://", "s3:///x", "file://host/x", "file://x"])
def test_urls_that_name_no_place(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"s3://bucket/prefix|file:///dir"):
        StorageLocation(url)


@pytest.mark.parametrize("url", ["a\0b", "/a\n", "s3://bucket/\x7f", "file:///a%00b", "/a/\udce4", "file:///a/%E4"])
def test_characters_that_no_name_may_have(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"control character|Unicode|UTF-8"):
        StorageLocation(url).open()


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("s3:/bucket/x", "s3://bucket/x"),
        ("s3:bucket/x", "s3://bucket/x"),
        ("s3a:/bucket/x", "s3://bucket/x"),
        ("s3a://bucket/x", "s3://bucket/x"),
        ("S3://bucket/x", "s3://bucket/x"),
        ("file:/x", "file:///x"),
        ("FILE:///x", "file:///x"),
        ("gs:/bucket/x", None),
        ("hdfs://host/x", None),
    ],
)
def test_a_misspelled_url_is_no_local_folder(url: str, meant: str | None) -> None:
    hint = f"did you mean '{meant}'" if meant else f"there is no storage for '{url.partition(':')[0]}'"
    with pytest.raises(ConfigurationError, match=hint):
        StorageLocation(url)


@pytest.mark.parametrize("path", ["/data/a:b", "a:b", "10:30/x", "./s3:/x", "C:/x"])
def test_a_path_may_have_a_colon(path: str) -> None:
    assert StorageLocation(path).url == Path(path).absolute().as_uri()


def test_a_relative_path_that_several_processes_use_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.warns(RelativePathWarning, match=f"'some/folder'.*'{tmp_path}/some/folder'"):
        warn_if_relative("some/folder", "the url")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for url in ("some/folder", "/folder", "~/folder", "s3://bucket", "file:///folder", ""):
            warn_if_relative(url, "the url")  # once, and only for relative paths


def test_an_s3_prefix_that_could_escape() -> None:
    with pytest.raises(PathEscapesPrefixError):
        StorageLocation("s3://bucket/a/../b")


def test_half_of_the_credentials() -> None:
    with pytest.raises(ConfigurationError, match="both"):
        StorageLocation("s3://bucket", access_key_id="a")


def test_the_secret_is_not_shown() -> None:
    location = StorageLocation("s3://bucket", access_key_id="visible", secret_access_key="hidden")
    assert "visible" in repr(location)
    assert "hidden" not in repr(location)
    assert pickle.loads(pickle.dumps(location)) == location


@pytest.mark.parametrize("url", ["s3://bucket/base", "/base dir"])
def test_child(url: str) -> None:
    location = StorageLocation(url)
    assert location.child("a b/c/").open().url == location.open().child("a b/c").url
    with pytest.raises(PathEscapesPrefixError):
        location.child("../x")


def test_stores_of_one_server_share_a_client_but_not_with_a_forked_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = s3_client("http://127.0.0.1:1", "us-east-1", "a", "s")
    assert s3_client("http://127.0.0.1:1", "us-east-1", "a", "s") is ours
    assert s3_client("http://127.0.0.1:1", "us-east-1", "b", "s") is not ours
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert s3_client("http://127.0.0.1:1", "us-east-1", "a", "s") is not ours


def _use_in_child(location: StorageLocation) -> None:
    location.open().put("child", b"1")


def test_a_forked_process_uses_the_store(s3_location: StorageLocation) -> None:
    s3_location.open().put("parent", b"1")
    child = multiprocessing.get_context("fork").Process(target=_use_in_child, args=(s3_location,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert [found.key for found in s3_location.open().list()] == ["child", "parent"]


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "localhost:9000",
        "127.0.0.1",
        "//host",
        "http://",
        "https://:9000",
        "ftp://host",
        "http://h:x",
        "http://[::1",
    ],
)
def test_endpoints_that_are_no_url(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"endpoint URL .* must be http://host:port"):
        StorageLocation("s3://bucket", endpoint)


@pytest.mark.parametrize("fields", [(7,), ("s3://bucket", 7), (None,)])
def test_urls_that_are_no_text(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError, match="not text"):
        StorageLocation(*fields)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "https://s3.example.org/path", "http://[::1]:9000"])
def test_endpoints(endpoint: str) -> None:
    assert StorageLocation("s3://bucket", endpoint).endpoint_url == endpoint


@pytest.mark.parametrize(
    ("name", "value"),
    [("AWS_ENDPOINT_URL", "localhost:9000"), ("AWS_PROFILE", "nobody"), ("AWS_DEFAULT_REGION", "a b")],
)
def test_an_environment_that_no_client_can_be_made_of(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=f"cannot create an S3 client: .*{name}"):
        s3_client(access_key_id=name, secret_access_key="x")


@pytest.mark.parametrize("url", ["", "  ", "file://[bad/x", "sc://[bad", "s3://", "s3:///x"])
def test_what_is_no_place_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"s3://bucket/prefix|is not a URL"):
        StorageLocation(url)


def test_workers_find_the_directory_at_their_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = StorageLocation(str(tmp_path / "driver"), path_on_workers=str(tmp_path / "workers")).child("job")
    location.open().put("a", b"1")
    monkeypatch.setattr("dagster_flinkpy.storage.location.on_worker", lambda: True)
    assert location.local_path == tmp_path / "workers" / "job"
    assert location.url == (tmp_path / "driver" / "job").as_uri()
    assert location.child("x").url == (tmp_path / "driver" / "job" / "x").as_uri()
    assert location.open().head("a") is None


def test_locations_that_are_made_of_one_with_a_path_on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    job = StorageLocation("/data/jobs/a", path_on_workers="/mnt/volume/a")
    assert job.child("b") == StorageLocation("/data/jobs/a/b")
    monkeypatch.setattr("dagster_flinkpy.storage.location.on_worker", lambda: True)
    for url, path in {
        "/data/jobs/a/savepoint-1": "/mnt/volume/a/savepoint-1",
        "/data/jobs": "/mnt/volume",
        "/data": "/mnt",
        "/data/jobs/ab": "/data/jobs/ab",
        "/elsewhere/savepoint-1": "/elsewhere/savepoint-1",
    }.items():
        assert replace(job, url=url).local_path == Path(path)
    assert pickle.loads(pickle.dumps(job.parent.child("a/b"))).local_path == Path("/mnt/volume/a/b")
    assert replace(job, url="s3://bucket/savepoint-1").local_path is None


@pytest.mark.parametrize(("url", "path"), [("s3://bucket/a", "/mnt/a"), ("/data/a", "mnt/a"), ("/data/a", "/mnt\n")])
def test_paths_on_workers_that_cannot_be_are_refused(url: str, path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"path_on_workers|control character"):
        StorageLocation(url, path_on_workers=path)
