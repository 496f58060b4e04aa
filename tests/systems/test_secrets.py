"""Keys and passwords of stores and databases are in no metadata, event, log, error, command line or object."""

from __future__ import annotations

import io
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from click.testing import CliRunner
from dagster import DagsterInstance, Definitions

from dagster_flinkpy.cli import main
from dagster_flinkpy.common import Configuration, Row, Types
from dagster_flinkpy.connectors import DeltaSink, ParquetSink, PostgresSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.orchestration import CheckpointStorageResource, FlinkAssetChecks, SparkResource, flink_assets
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

ITEM = Types.ROW_NAMED(["id", "seen"], [Types.LONG(), Types.LONG()])
KEY, PASSWORD = (f"{kind}-{uuid.uuid4().hex}" for kind in ("key", "password"))
BACKWARDS = [KEY[::-1], PASSWORD[::-1]]  # so that what is looked for is not itself in the code of the function


def on_command_lines(item: Any) -> Row:
    """Counts the processes of the machine that show a secret to everybody, as a worker sees them."""
    lines = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    logging.getLogger("shop").warning("item %s", item)
    if item < 0:
        raise ValueError("a bad item")
    return Row(item, sum(secret[::-1] in line for secret in BACKWARDS for line in lines))


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    home = tmp_path / "home"
    home.mkdir()
    with DagsterInstance.local_temp(str(home)) as instance:
        yield instance


@pytest.fixture
def table(postgres: str) -> Iterator[str]:
    name = f"items_{uuid.uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} (id bigint, seen bigint)")
    yield name


def told(found: dict[str, bytes]) -> list[str]:
    """Returns where a secret is."""
    return [name for name, text in found.items() for secret in (KEY, PASSWORD) if secret.encode() in text]


@pytest.mark.smoke
@pytest.mark.spark
@pytest.mark.parametrize("exchange", ["pipelined", "spark"])
def test_secrets_are_nowhere(
    exchange: str,
    s3_location: StorageLocation,
    postgres: str,
    table: str,
    instance: DagsterInstance,
    spark_settings: SparkSettings,
    runtime_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: get_session(spark_settings))
    at = s3_location
    with_keys = StorageLocation(at.url, at.endpoint_url, at.region, "user", KEY)
    conninfo = f"{postgres}{'&' if '?' in postgres else '?'}password={PASSWORD}"

    def program(items: list[int]) -> StreamExecutionEnvironment:
        options = Configuration.from_dict({"execution.exchange": exchange})
        env = StreamExecutionEnvironment.get_execution_environment(options)
        looked = env.from_collection(items, Types.LONG()).uid("items").rebalance().map(on_command_lines, ITEM).uid("at")
        looked.sink_to(ParquetSink(with_keys.child("files"))).uid("files")
        looked.sink_to(DeltaSink(with_keys.child("lake"))).uid("lake")
        looked.sink_to(PostgresSink(conninfo, table, with_keys.child("staging"))).uid("rows")
        return env

    def run(name: str, items: list[int]) -> bool:
        env = program(items)
        assets = flink_assets(env, name=name, checks=FlinkAssetChecks())
        storage = CheckpointStorageResource(
            url=at.child("jobs").url,
            endpoint_url=at.endpoint_url,
            region=at.region,
            access_key_id="user",
            secret_access_key=KEY,
        )
        defs = Definitions(assets, resources={"spark": SparkResource(), "checkpoint_storage": storage})
        specs = [f"{spec.metadata} {spec.description} {spec.tags}" for spec in defs.resolve_all_asset_specs()]
        assert not told({"definitions": " ".join(specs).encode()})
        job = defs.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(instance=instance, raise_on_error=False).success

    assert run(f"shop_{exchange}", [1, 2])
    with psycopg.connect(postgres) as connection:
        assert sorted(connection.execute(f"SELECT id, seen FROM {table}")) == [(1, 0), (2, 0)]
    assert not run(f"bad_{exchange}", [-1])

    job = at.child("jobs").child(f"shop_{exchange}").url
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "user")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    said = io.StringIO()
    for command in (["job", "show"], ["checkpoints", "list"], ["leader", "show"], ["savepoint", "describe"]):
        result = CliRunner().invoke(main, [*command, job, "--endpoint-url", str(at.endpoint_url)])
        assert result.exit_code == 0, result.output
        said.write(result.output)
    store, printed = at.open(), capfd.readouterr()
    objects = {info.key: store.get(info.key)[0] for info in store.list("")}
    assert any(name.endswith("_metadata") for name in objects)
    home = {str(path): path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()}
    assert any(b"a bad item" in text for text in home.values()), "events of the runs are in the files of Dagster"
    logs = {str(path): path.read_bytes() for path in runtime_dir.rglob("*.log")}
    assert logs
    assert not told(objects)
    assert not told(home)
    assert not told(logs)
    assert not told({"commands": said.getvalue().encode(), "out": printed.out.encode(), "err": printed.err.encode()})
