from __future__ import annotations

from pathlib import Path

import pytest
from dagster import EnvVar, build_resources

from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.errors import ConfigurationError, PathEscapesPrefixError
from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource, TwoPhaseCommitSinkResource
from dagster_flinkpy.runtime.spark import SparkSettings
from dagster_flinkpy.storage import StorageLocation


def test_spark_settings() -> None:
    assert SparkResource().settings() == SparkSettings()
    spark = SparkResource(mode="remote", remote="sc://host:15002", conf={"a": "b"})
    assert spark.settings() == SparkSettings("remote", "local[*]", "sc://host:15002", {"a": "b"})
    with pytest.raises(ConfigurationError, match="remote"):
        SparkResource(mode="remote").settings()


def test_storage_from_fields() -> None:
    storage = CheckpointStorageResource(
        url="s3://bucket/jobs", endpoint_url="http://host:9000", region="eu", access_key_id="k", secret_access_key="s"
    )
    assert storage.location() == StorageLocation("s3://bucket/jobs", "http://host:9000", "eu", "k", "s")
    assert storage.num_retained == 1


def test_environment_variables_work_in_a_run_and_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKET", "s3://bucket/jobs")
    monkeypatch.setenv("KEY", "k")
    monkeypatch.setenv("SECRET", "s")
    storage = CheckpointStorageResource(
        url=EnvVar("BUCKET"), access_key_id=EnvVar("KEY"), secret_access_key=EnvVar("SECRET")
    )
    expected = StorageLocation("s3://bucket/jobs", access_key_id="k", secret_access_key="s")
    assert storage.location() == expected
    with build_resources({"storage": storage}) as resources:
        assert resources.storage.location() == expected


def test_a_missing_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUCKET", raising=False)
    with pytest.raises(ConfigurationError, match=r"url .* BUCKET"):
        TwoPhaseCommitSinkResource(url=EnvVar("BUCKET")).location()


def test_sinks_share_a_place(tmp_path: Path) -> None:
    tables = TwoPhaseCommitSinkResource(url=str(tmp_path))
    sink = tables.sink("rotations")
    assert isinstance(sink, ParquetSink)
    assert sink.location == tables.table("rotations") == StorageLocation(str(tmp_path / "rotations"))
    with pytest.raises(PathEscapesPrefixError):
        tables.sink("../elsewhere")


def test_lingering_transactions_of_a_job(tmp_path: Path) -> None:
    tables = TwoPhaseCommitSinkResource(url=str(tmp_path))
    store = tables.location().open()
    mine = "rotations/a%2Eb.table.0000000001.00000.x.parquet"
    for key in (mine, "rotations/a.table.0000000001.00000.x.parquet"):
        store.upload_part(key, store.create_upload(key), 1, b"rows")
    assert [upload.key for upload in tables.lingering("a.b")] == [mine]
    assert tables.lingering("c") == []
