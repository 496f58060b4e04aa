from __future__ import annotations

from pathlib import Path

import pytest
from dagster import EnvVar, build_resources
from pydantic import ValidationError

from dagster_flinkpy.common.metric_options import PrometheusOptions
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.errors import ConfigurationError, PathEscapesPrefixError
from dagster_flinkpy.orchestration import CheckpointStorageResource, FileSinkResource, SparkResource
from dagster_flinkpy.orchestration.resources import checkpoint_storage
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation


def test_spark_settings() -> None:
    assert SparkResource().settings() == SparkSettings()
    spark = SparkResource(mode="remote", remote="sc://host:15002", conf={"a": "b"})
    assert spark.settings() == SparkSettings("remote", "local[*]", "sc://host:15002", {"a": "b"})
    with pytest.raises(ConfigurationError, match="remote"):
        SparkResource(mode="remote").settings()


@pytest.mark.parametrize("mode", ["local", "classic"])
def test_the_mode_of_spark_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("SPARK_MODE", mode)
    spark = SparkResource(mode=EnvVar("SPARK_MODE"))
    assert spark.settings().mode == mode
    with build_resources({"spark": spark}) as resources:
        assert resources.spark.settings().mode == mode


def test_a_mode_that_spark_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_MODE", "cluster")
    with pytest.raises(ConfigurationError, match="'cluster' is not one of 'local', 'remote', 'classic'"):
        SparkResource(mode=EnvVar("SPARK_MODE")).settings()
    with pytest.raises(ConfigurationError, match="'cluster' is not one of 'local', 'remote', 'classic'"):
        SparkResource(mode="cluster").settings()


def test_storage_from_fields() -> None:
    storage = CheckpointStorageResource(
        url="s3://bucket/jobs",
        endpoint_url="http://host:9000",
        region="eu",
        access_key_id="k",
        secret_access_key="s",
        kms_key_id="alias/k",
        addressing_style="virtual",
    )
    expected = StorageLocation(
        "s3://bucket/jobs", "http://host:9000", "eu", "k", "s", kms_key_id="alias/k", addressing_style="virtual"
    )
    assert storage.location() == expected
    assert storage.num_retained == 3


def test_the_number_of_checkpoints_and_settings_of_spark_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEPT", "7")
    monkeypatch.setenv("KEY", "k")
    storage = CheckpointStorageResource(url="s3://bucket/jobs", num_retained=EnvVar.int("KEPT"))
    spark = SparkResource(conf={"spark.hadoop.fs.s3a.access.key": EnvVar("KEY")})
    assert spark.settings().conf == {"spark.hadoop.fs.s3a.access.key": "k"}
    with build_resources({"storage": storage, "spark": spark}) as resources:
        assert resources.storage.num_retained == 7
        assert resources.spark.settings().conf == {"spark.hadoop.fs.s3a.access.key": "k"}
    with pytest.raises(ValidationError, match="must be at least 1"):
        CheckpointStorageResource(url="s3://bucket/jobs", num_retained=0)


def test_jobs_beside_a_job_have_all_settings_of_its_storage(tmp_path: Path) -> None:
    place = StorageLocation("s3://bucket/jobs", "http://host", "eu", "k", "s", None, "alias/k", "virtual")
    assert checkpoint_storage(place.child("job").parent, 2).location() == place
    mounted = StorageLocation(str(tmp_path / "jobs"), path_on_workers="/mnt/jobs")
    assert checkpoint_storage(mounted.child("job").parent, 2).location().path_on_workers == "/mnt/jobs"
    of_a_job = StorageLocation(str(tmp_path / "jobs" / "job"), path_on_workers="/mnt/job")
    assert checkpoint_storage(of_a_job.parent, 2).location().path_on_workers is None


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
        FileSinkResource(url=EnvVar("BUCKET")).location()


def test_sinks_share_a_place(tmp_path: Path) -> None:
    tables = FileSinkResource(url=str(tmp_path))
    sink = tables.sink("rotations")
    assert isinstance(sink, ParquetSink)
    assert sink.location == tables.table("rotations") == StorageLocation(str(tmp_path / "rotations"))
    with pytest.raises(PathEscapesPrefixError):
        tables.sink("../elsewhere")


def test_metric_reporters_of_the_deployment() -> None:
    assert SparkResource().reporters() == ()
    options = {"metrics.reporter.prom.port": "9300", "metrics.reporters": "prom"}
    assert SparkResource(metric_reporters=options).reporters() == (PrometheusOptions((9300,)),)
    with pytest.raises(ConfigurationError, match=r"has 'state\.backend\.type', not 'metrics\.reporter"):
        SparkResource(metric_reporters={"state.backend.type": "rocksdb"}).reporters()


def test_a_bucket_without_its_scheme_is_refused() -> None:
    storage = CheckpointStorageResource(url="bucket/checkpoints", endpoint_url="http://host:9000")
    with pytest.raises(ConfigurationError, match=r"write 's3://bucket/checkpoints'"):
        storage.location()
