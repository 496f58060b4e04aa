from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.errors import ConditionalWritesUnsupportedError, PathEscapesPrefixError, StorageError
from dagster_flinkpy.storage import ObjectStore, StorageLocation, UploadedPart, check_relative
from dagster_flinkpy.storage.local import LocalObjectStore
from tests import servers

segments = st.text(st.characters(codec="utf-8", exclude_characters="/\\", exclude_categories=["Cc"]), min_size=1)
plain = st.lists(segments.filter(lambda s: s not in (".", "..")), min_size=1).map("/".join)


@given(plain)
def test_plain_paths_are_kept(path: str) -> None:
    assert check_relative(path) == path


@given(st.lists(st.sampled_from(["a", "b c", "", ".", "..", "\\", "\n"]), min_size=1).map("/".join))
def test_what_passes_stays_below_its_prefix(path: str) -> None:
    try:
        check_relative(path)
    except PathEscapesPrefixError:
        return
    assert Path("/top/base", path).resolve().relative_to("/top/base").as_posix() == path


@pytest.mark.parametrize(
    "path", ["", "/", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "..", "a\\..\\b", "a\0", "a\ud800"]
)
def test_paths_that_could_escape(path: str) -> None:
    with pytest.raises(PathEscapesPrefixError, match="relative path"):
        check_relative(path)


# --- the probe --------------------------------------------------------------------------------------------------------


class IgnoresIfNoneMatch(LocalObjectStore):
    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        return super().put(key, data, if_match=if_match)


class IgnoresIfMatch(LocalObjectStore):
    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        return super().put(key, data, if_none_match=if_none_match)


class RefusesEveryIfMatch(LocalObjectStore):
    """Refuses every If-Match, like Ceph 16 with a quoted ETag."""

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        return super().put(key, data, if_none_match=if_none_match, if_match=if_match and f'"{if_match}"')


class IgnoresIfNoneMatchOfUploads(LocalObjectStore):
    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = True
    ) -> str:
        return super().complete_upload(key, upload_id, parts, if_none_match=False)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (IgnoresIfNoneMatch, "PUT If-None-Match of an existing key was not refused"),
        (IgnoresIfMatch, "PUT If-Match with an old ETag was not refused"),
        (RefusesEveryIfMatch, "PUT If-Match with the current ETag was refused"),
        (IgnoresIfNoneMatchOfUploads, "CompleteMultipartUpload If-None-Match of an existing key was not refused"),
    ],
)
def test_probe_names_the_condition_that_is_not_honoured(
    tmp_path: Path, kind: type[LocalObjectStore], named: str
) -> None:
    store: ObjectStore = kind(tmp_path)
    with pytest.raises(ConditionalWritesUnsupportedError, match=named):
        store.probe()
    assert list(store.list()) == []
    assert list(store.list_uploads()) == []


def test_probe_refuses_a_real_server_that_ignores_conditions(tmp_path: Path) -> None:
    (tmp_path / "data" / "bucket").mkdir(parents=True)
    with servers.rclone_s3(tmp_path / "data", "access", "secret") as endpoint:
        store = StorageLocation("s3://bucket/jobs", endpoint, "us-east-1", "access", "secret").open()
        with pytest.raises(ConditionalWritesUnsupportedError, match=r"s3://bucket/jobs .* If-None-Match"):
            store.probe()
        assert list(store.list()) == []


def test_probe_of_a_missing_bucket(ministack: StorageLocation) -> None:
    location = StorageLocation(
        "s3://no-such-bucket", ministack.endpoint_url, "us-east-1", ministack.access_key_id, ministack.secret_access_key
    )
    with pytest.raises(StorageError, match=r"no bucket 'no-such-bucket' at http.*create it"):
        location.open().probe()


def test_probe_of_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(StorageError, match=r"cannot write in .*/file: it is a file"):
        StorageLocation(str(tmp_path / "file" / "below")).open().probe()


def test_probe_of_a_file_instead_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(StorageError, match="cannot write"):
        StorageLocation(str(tmp_path / "file")).open().probe()


def test_probe_of_an_unreachable_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    location = StorageLocation("s3://b", f"http://127.0.0.1:{servers.free_port()}", "us-east-1", "a", "s")
    with pytest.raises(StorageError, match=r"cannot reach s3://b/.* at http://127.0.0.1:.*Check the endpoint"):
        location.open().probe()
