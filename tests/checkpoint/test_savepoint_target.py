"""Where savepoints may be written, however the place is spelled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_flinkpy.checkpoint.head import HEAD_KEY, Head
from dagster_flinkpy.checkpoint.locations.savepoint_target import check_job, check_target
from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import SavepointFormatType, StreamExecutionEnvironment
from dagster_flinkpy.errors import AccessDeniedError, ConfigurationError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.s3 import S3ObjectStore

BELOW = ["shared", "exchange/edge", "requests", "chk-3", "savepoint-flights-0a", "taskowned", "anything/else"]


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> StorageLocation:
    """A folder with two jobs."""
    folder = StorageLocation(str(tmp_path)) if request.param == "local" else request.getfixturevalue("s3_location")
    for name in ("flights", "others"):
        folder.child(name).open().put(HEAD_KEY, Head(1).to_bytes())
    return folder


def everything(root: StorageLocation) -> list[str]:
    return [info.key for info in root.open().list()]


@pytest.mark.short
@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("owner", ["flights", "others"])
def test_no_savepoint_is_written_into_a_folder_of_a_job(root: StorageLocation, owner: str, below: str) -> None:
    before = everything(root)
    for url in (f"{root.url}/{owner}/{below}", f"{root.url}/{owner}/{below}/"):
        with pytest.raises(
            ConfigurationError, match=rf"it is inside .*/{owner}: the folder of a job, .* leave out the"
        ):
            check_target(replace(root, url=url), root.child("flights"))
    assert everything(root) == before


def test_a_savepoint_is_written_next_to_the_checkpoints_of_its_own_job_only(root: StorageLocation) -> None:
    check_target(root.child("flights"), root.child("flights"))
    check_target(root.child("flights"), root.child("flights"), SavepointFormatType.NATIVE)
    with pytest.raises(ConfigurationError, match="because it is the folder of a job"):
        check_target(root.child("others"), root.child("flights"))
    with pytest.raises(ConfigurationError, match="because it is the folder of a job"):
        check_target(root.child("others"))
    with pytest.raises(ConfigurationError, match=r"names files below .*/flights, so it cannot be written to .*/kept"):
        check_target(root.child("kept"), root.child("flights"), SavepointFormatType.NATIVE)


def test_other_folders_may_be_used(root: StorageLocation) -> None:
    for target in (root, root.child("kept"), root.child("kept/deeper"), root.child("flights-kept")):
        check_target(target, root.child("flights"), folders=[f"{root.url}/kept/table", f"{root.url}/keptt"])


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("chk-1/_metadata", "a savepoint or checkpoint"),
        ("_delta_log/00000000000000000000.json", "a Delta Lake table"),
        ("metadata/00000-0a.metadata.json", "an Iceberg table"),
        ("leader", "the folder of a job"),
    ],
)
def test_what_a_folder_contains_tells_whose_it_is(root: StorageLocation, key: str, what: str) -> None:
    root.child("table").open().put(key, b"")
    inside = root.child("table/chk-1/savepoints" if key.startswith("chk") else "table/savepoints")
    with pytest.raises(ConfigurationError, match=f"{what}, "):
        check_target(inside, root.child("flights"))


@pytest.mark.parametrize("target", ["table", "table/", "table/day=1/x"])
def test_no_savepoint_is_written_where_its_files_would_be_rows(root: StorageLocation, target: str) -> None:
    with pytest.raises(ConfigurationError, match="the folder of a source or sink"):
        check_target(replace(root, url=f"{root.url}/{target}"), root.child("flights"), folders=[f"{root.url}/table"])


def test_links_and_dots_lead_to_the_same_place(tmp_path: Path) -> None:
    job = StorageLocation(str(tmp_path / "flights"))
    job.open().put(HEAD_KEY, Head(1).to_bytes())
    job.open().put("shared/0.parquet", b"")
    (tmp_path / "table").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "flights" / "shared")
    (tmp_path / "job").symlink_to(tmp_path / "flights")
    (tmp_path / "rows").symlink_to(tmp_path / "table")
    for own in ("flights/", "flights/../flights", "job", "flights/shared/..", "link/.."):
        check_target(StorageLocation(str(tmp_path / own)), job, SavepointFormatType.NATIVE)
    for inside in ("link", "link/x", "job/shared", "table/../flights/shared", "rows", "table/x", "link/../../rows"):
        with pytest.raises(ConfigurationError, match="no savepoint can be written to"):
            check_target(StorageLocation(str(tmp_path / inside)), job, folders=[(tmp_path / "table").as_uri()])
        with pytest.raises(ConfigurationError, match="no savepoint can be written to"):
            check_target(StorageLocation((tmp_path / inside).as_uri()), job, folders=[str(tmp_path / "rows")])


def test_a_server_may_have_two_addresses(s3_location: StorageLocation) -> None:
    assert s3_location.endpoint_url is not None
    job = s3_location.child("flights")
    job.open().put(HEAD_KEY, Head(1).to_bytes())
    other = replace(job, endpoint_url=s3_location.endpoint_url.replace("127.0.0.1", "localhost"))
    assert other != job
    with pytest.raises(ConfigurationError, match=r"is the folder of a job.* leave out the target"):
        check_target(other, job)
    with pytest.raises(ConfigurationError, match=r"inside .*/flights"):
        check_target(other.child("shared"), job)
    with pytest.raises(ConfigurationError, match="the folder of a source or sink"):
        check_target(replace(other, url=f"{s3_location.url}/table/x"), job, folders=[f"{s3_location.url}/table"])


def test_folders_above_that_nobody_may_read_are_not_looked_at(
    s3_location: StorageLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = S3ObjectStore.head

    def denied(store: S3ObjectStore, key: str) -> object:
        if store.url != f"{s3_location.url}/kept":
            raise AccessDeniedError("403")
        return head(store, key)

    monkeypatch.setattr(S3ObjectStore, "head", denied)
    check_target(s3_location.child("kept"), s3_location.child("flights"))


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 2500 + "x", "x/.flinkpy/y", "é" * 130])
def test_names_that_no_folder_can_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"too long|is a hidden folder"):
        check_target(StorageLocation(f"{tmp_path}/{name}"), StorageLocation(str(tmp_path / "flights")))
    assert not list(tmp_path.iterdir())


def test_a_key_that_s3_would_refuse_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"too long: the store allows 1,024 bytes"):
        check_target(StorageLocation(f"s3://bucket/{'x' * 900}"), StorageLocation("s3://bucket/flights"))


@pytest.mark.parametrize("table", ["", "flights", "flights/table", "flights/shared"])
def test_the_files_of_a_job_are_not_among_the_rows_of_a_source_or_sink(root: StorageLocation, table: str) -> None:
    folder = f"{root.url}/{table}".rstrip("/")
    with pytest.raises(ConfigurationError, match=r"is in .*, which .*outside of it") as caught:
        check_job(root.child("flights"), [f"{root.url}/other", folder])
    assert folder in str(caught.value)
    check_job(root.child("flights"), [f"{root.url}/table", f"{root.url}/flights-table", f"{root.url}/fli"])


def test_a_link_into_the_folder_of_a_job_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "flights").mkdir()
    (tmp_path / "rows").symlink_to(tmp_path / "flights")
    job = StorageLocation(str(tmp_path / "flights"))
    for table in ("rows", "rows/table"):
        with pytest.raises(ConfigurationError, match=r"in the folder of the job|in .*, which a source reads"):
            check_job(job, [str(tmp_path / table)])


@pytest.mark.parametrize(("checkpoints", "table"), [("t/checkpoints", "t"), ("c", "c/job/t")])
def test_a_job_with_its_files_among_rows_writes_nothing(tmp_path: Path, checkpoints: str, table: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([(1,)], Types.ROW_NAMED(["n"], [Types.LONG()])).uid("numbers")
    stream.sink_to(ParquetSink(str(tmp_path / table))).uid("rows")
    with pytest.raises(ConfigurationError, match="which a source reads or a sink writes"):
        JobAttempt(env.get_job_graph(), JobConfig("job", StorageLocation(str(tmp_path / checkpoints))), owner="run")
    assert list(tmp_path.iterdir()) == []
