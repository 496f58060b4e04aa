"""Sessions on the server of the tests, and their settings. `tests.systems.test_shared_server` starts other servers."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dagster_flinkpy.errors import ConfigurationError, SparkRefusedError, SparkUnavailableError
from dagster_flinkpy.spark.sessions import SparkSettings, _state_file, get_session, lost_server, open_session
from tests.systems.test_shared_server import END_TIMEOUT, client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_workers_run_the_python_of_the_session(spark: SparkSession) -> None:
    def look(batches: Any) -> Any:
        import sys

        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})

    rows = spark.range(4, numPartitions=2).mapInArrow(look, "python string").collect()
    assert [row.python for row in rows] == [sys.executable] * 4


@pytest.mark.spark
def test_shuffles_are_left_as_the_job_says(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.adaptive.enabled") == "false"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert int(spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") or 0) == 8 << 20


@pytest.mark.spark
def test_clients_of_the_local_server_share_warm_workers(spark: SparkSession, spark_settings: SparkSettings) -> None:
    def worker(batches: Any) -> Any:
        import os

        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getpid()] * batch.num_rows})

    def workers(session: SparkSession) -> set[int]:
        return {row.pid for row in session.range(4, numPartitions=2).mapInArrow(worker, "pid long").collect()}

    with open_session(spark_settings) as other:
        warm = workers(other)
    with open_session(spark_settings) as another:
        assert workers(another) & warm
    assert spark.range(3).count() == 3  # the end of the other owners did not end it


@pytest.mark.spark
def test_a_process_that_leaves_its_session_open_ends(spark_settings: SparkSettings, spark: SparkSession) -> None:
    settings = {"master": spark_settings.master, "conf": dict(spark_settings.conf)}
    process = client("end", settings, owner=os.getpid())
    process.communicate(timeout=END_TIMEOUT)
    assert process.returncode == 0


def test_a_remote_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.spark.sessions._CONNECT_TIMEOUT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    settings = SparkSettings(mode="remote", remote=f"sc://127.0.0.1:{port}/;user_id=secret")
    with pytest.raises(SparkUnavailableError, match=f"sc://127.0.0.1:{port} within") as raised:
        get_session(settings)
    assert "secret" not in str(raised.value)


@pytest.mark.spark
def test_a_remote_session_has_the_same_defaults(spark_settings: SparkSettings, spark: SparkSession) -> None:
    state = _state_file(spark_settings).read()
    assert state is not None
    remote = f"sc://localhost:{state.port}/;token={state.token}"
    with open_session(SparkSettings(mode="remote", remote=remote, conf={"spark.sql.ansi.enabled": "false"})) as session:
        assert session.conf.get("spark.sql.adaptive.enabled") == "false"
        assert session.conf.get("spark.sql.ansi.enabled") == "false"
        (policy,) = session.client.get_retry_policies()
        waits = policy.to_state()
        milliseconds = list(iter(waits.next_attempt, None))
        assert max(milliseconds) < 6_000 and sum(milliseconds) >= 600_000  # a restarted server is found soon


def test_a_client_that_closed_itself_has_lost_its_server() -> None:
    from pyspark.errors.exceptions.connect import SparkConnectException

    settings = SparkSettings(mode="remote", remote="sc://host:15002/;token=secret")
    session: Any = None  # asked for its log only if the server is local
    closed = SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={})
    assert "sc://host:15002 ended" in str(lost_server(settings, session, closed))
    other = SparkConnectException(errorClass="CONNECT_URL_NOT_SET", messageParameters={})
    assert lost_server(settings, session, other) is None


@pytest.mark.spark
def test_without_the_token_the_server_refuses(spark_settings: SparkSettings, spark: SparkSession) -> None:
    state = _state_file(spark_settings).read()
    assert state is not None
    with pytest.raises(SparkRefusedError, match="refused"):
        get_session(SparkSettings(mode="remote", remote=f"sc://localhost:{state.port}/;token=guess"))


@pytest.mark.spark
def test_a_process_has_one_kind_of_session(spark: SparkSession) -> None:
    with pytest.raises(SparkRefusedError, match="already has a Spark Connect session"):
        get_session(SparkSettings(mode="classic"))


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "yarn"},
        {"mode": "remote"},
        {"remote": "sc://host"},
        {"mode": "remote", "remote": "spark://host"},
        {"master": "spark://host:7077"},
        {"master": 7},
        {"mode": "remote", "remote": 7},
    ],
)
def test_settings_that_do_not_fit_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        SparkSettings(**fields)


def test_a_url_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        get_session(SparkSettings(mode="remote", remote="sc://host:15002/path"))
