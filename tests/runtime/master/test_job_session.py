"""The Spark session of an attempt."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.errors import SparkUnavailableError
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.job_session import JobSession, SharedSession
from dagster_flinkpy.spark.sessions import SparkSettings, _state_file
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import collect_graph, collected
from tests.runtime.programs import environment, events


class FakeSession:
    release_session_on_close = True

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.stopped = False

    def stop(self) -> None:
        assert not self.release_session_on_close, "a server that is gone would be asked for minutes"
        self.stopped = True

    def addTag(self, tag: str) -> None:
        self.tags.append(tag)

    def removeTag(self, tag: str) -> None: ...
    def interruptTag(self, tag: str) -> None: ...


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> SharedSession:
    def announce(settings: Any, what: str, owner: str) -> AbstractContextManager[list[str]]:
        return nullcontext([])

    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: FakeSession())
    monkeypatch.setattr(job_session, "announce_job", announce)
    monkeypatch.setattr(job_session, "lost_server", lambda *found: SparkUnavailableError("it is gone"))
    return SharedSession(SparkSettings(), lambda line: None)


def test_another_session_is_opened_when_the_server_is_lost(shared: SharedSession) -> None:
    regions = [JobSession(shared), JobSession(shared)]
    for number, region in enumerate(regions):
        region.begin(f"region-{number}", "an epoch")
    lost, own = shared.get(), shared.get(own=True)
    with pytest.raises(SparkUnavailableError), regions[0].open() as spark:
        assert spark is lost
        raise RuntimeError("the server ended")
    found = shared.get()
    assert found is not lost and shared.get(own=True) is not own, "one server has both"
    assert [session.stopped for session in (lost, own, found)] == [True, True, False]
    shared.forget(lost)  # another region finds out later
    with regions[1].open() as spark:
        assert spark is found


def test_a_region_that_used_a_session_which_another_one_has_closed_has_lost_the_server(
    shared: SharedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = JobSession(shared)
    region.begin("region", "an epoch")
    with pytest.raises(SparkUnavailableError, match="The Spark server ended"), region.open() as spark:
        shared.forget(spark)
        monkeypatch.setattr(job_session, "lost_server", lambda *found: None)
        raise ValueError("Cannot invoke RPC: Channel closed!")
    with pytest.raises(ValueError, match="of the program"), region.open():
        raise ValueError("of the program")


class ClassicSession(FakeSession):
    """One whose driver is in this process, and which Python, or only Java, knows to have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = False
        context = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: self.ended))
        self.sparkContext = SimpleNamespace(_jsc=context)

    def stop(self) -> None:
        assert self.sparkContext._jsc is not None, "PySpark would forget the session that another job has since"
        self.sparkContext._jsc = None


@pytest.mark.parametrize("how", ["by the program", "by the cluster"])
def test_another_session_is_opened_when_that_of_this_process_was_stopped(
    shared: SharedSession, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: ClassicSession())
    monkeypatch.setattr(job_session, "lost_server", lambda *found: None)
    monkeypatch.setattr(job_session, "tagged", lambda *found: nullcontext())
    shared = SharedSession(SparkSettings(mode="classic"), lambda line: None)
    region = JobSession(shared)
    region.begin("region", "an epoch")
    with region.open() as spark:
        assert shared.get() is spark
    with pytest.raises(SparkUnavailableError, match="has called its stop"), region.open() as spark:
        if how == "by the program":
            spark.stop()
        else:
            spark.ended = True  # type: ignore[attr-defined]
        raise AttributeError("'NoneType' object has no attribute 'sc'")
    assert spark.sparkContext._jsc is None, "PySpark would give the old one to the next who asks"
    shared.get().stop()
    assert not shared.has_stopped(shared.get())


def test_jobs_of_one_name_on_one_server_are_not_interrupted_together(
    shared: SharedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = FakeSession()  # all processes have the same session on the local server
    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: one)
    for attempt in (shared, SharedSession(SparkSettings(), lambda line: None)):
        for _ in range(2):
            session = JobSession(attempt)
            session.begin("flinkpy-job-1-1-0", "checkpoint 1 of job 'job'")
            with session.open():
                pass
    assert one.tags[0] == one.tags[1] != one.tags[2] == one.tags[3]


@pytest.mark.spark
def test_a_session_that_the_server_has_closed_is_opened_again(
    tmp_path: Path, spark_settings: SparkSettings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_session, "_IDLE_SECONDS", 0.0)
    server = _state_file(spark_settings).read()
    assert server is not None
    remote = SparkSettings(mode="remote", remote=f"sc://localhost:{server.port}/;token={server.token}")
    graph = collect_graph(events(environment(1), [("a", i, i) for i in range(4)], per_epoch=2))
    exchange = ExchangeOptions(ExchangeMode.SPARK)  # live tasks keep their session
    config = JobConfig("job", StorageLocation(str(tmp_path)), remote, exchange=exchange)
    with JobAttempt(graph, config, owner="test") as attempt:
        attempt.run_epoch()
        idle: Any = attempt._spark.get()
        idle.client.release_session()  # as the server does after an hour
        attempt.run_epoch()
        assert len(collected(attempt.graph, attempt.collected)) == 2
        assert attempt.execution is not None and not attempt.execution.failures
