"""The Spark session of an attempt, without Spark."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from dagster_flinkpy.errors import SparkUnavailableError
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.runtime.master.job_session import JobSession, SharedSession
from dagster_flinkpy.spark.sessions import SparkSettings


class FakeSession:
    def __init__(self) -> None:
        self.tags: list[str] = []

    def addTag(self, tag: str) -> None:
        self.tags.append(tag)

    def removeTag(self, tag: str) -> None: ...
    def interruptTag(self, tag: str) -> None: ...


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> SharedSession:
    def announce(settings: Any, what: str, owner: str) -> AbstractContextManager[list[str]]:
        return nullcontext([])

    monkeypatch.setattr(job_session, "get_session", lambda settings: FakeSession())
    monkeypatch.setattr(job_session, "announce_job", announce)
    monkeypatch.setattr(job_session, "lost_server", lambda *found: SparkUnavailableError("it is gone"))
    return SharedSession(SparkSettings(), lambda line: None)


def test_another_session_is_opened_when_the_server_is_lost(shared: SharedSession) -> None:
    regions = [JobSession(shared), JobSession(shared)]
    for number, region in enumerate(regions):
        region.begin(f"region-{number}", "an epoch")
    lost = shared.get()
    with pytest.raises(SparkUnavailableError), regions[0].open() as spark:
        assert spark is lost
        raise RuntimeError("the server ended")
    found = shared.get()
    assert found is not lost
    shared.forget(lost)  # another region finds out later
    with regions[1].open() as spark:
        assert spark is found


def test_jobs_of_one_name_on_one_server_are_not_interrupted_together(
    shared: SharedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = FakeSession()  # all processes have the same session on the local server
    monkeypatch.setattr(job_session, "get_session", lambda settings: one)
    for attempt in (shared, SharedSession(SparkSettings(), lambda line: None)):
        for _ in range(2):
            session = JobSession(attempt)
            session.begin("flinkpy-job-1-1-0", "checkpoint 1 of job 'job'")
            with session.open():
                pass
    assert one.tags[0] == one.tags[1] != one.tags[2] == one.tags[3]
