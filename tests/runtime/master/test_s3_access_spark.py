"""A job on a Spark of its own, whose keys for S3 expire again and again behind a private authority."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.spark.sessions import SparkSettings, stop_server
from dagster_flinkpy.storage import StorageLocation
from tests import servers
from tests.certificates import private_authority
from tests.runtime.kill_run import RECORDS, committed, config_of, program
from tests.storage.keys import only_keys, write_keys


@pytest.mark.system
@pytest.mark.spark
def test_a_job_goes_on_when_its_keys_expire(
    s3_location: StorageLocation, runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "credentials"
    only_keys(keys, monkeypatch)
    bundle, tls = private_authority(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    expired, used = set[str](), set[str]()

    def refuses(key: str) -> bool:
        used.add(key)
        return key in expired

    settings = SparkSettings(
        master="local[3]", conf={"spark.sql.shuffle.partitions": "2"}
    )  # its workers know the files
    with servers.guarded(str(s3_location.endpoint_url), refuses, tls) as endpoint:
        place = StorageLocation(s3_location.url, endpoint, "us-east-1", kms_key_id="alias/jobs")
        try:
            with JobAttempt(program(place), config_of(place, settings), owner="run") as attempt:
                for key in ("second", "third", "fourth"):
                    attempt.run_epoch()
                    write_keys(keys, key)
                    expired.update(used)
                while not attempt.finished:
                    attempt.run_epoch()
        finally:
            stop_server(settings)
        assert committed(place, "rows") == sorted(RECORDS)
        assert len(committed(place, "counts")) == len(RECORDS)
    assert used >= {"first", "second", "third", "fourth"}
