"""Fixtures for every test folder."""

from __future__ import annotations

import gc
import os
import re
import sqlite3
import sys
import uuid
from collections.abc import Generator, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from sqlalchemy import event
from sqlalchemy.engine import Engine

from dagster_flinkpy.checkpoint import requests
from dagster_flinkpy.spark.server_state import RUNTIME_DIR_VARIABLE
from dagster_flinkpy.spark.sessions import SparkSettings, get_session, open_session, stop_server
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.s3 import s3_client
from tests import servers
from tests.examples import examples

if TYPE_CHECKING:
    from alembic.config import Config
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

LONGEST = (
    "e2e/test_dagster_dev.py",
    "docs/test_snippets.py",  # and all that use the Spark server of the session
    "systems/test_backfills.py",
    "chaos/test_chaos.py",
    "simulation/test_simulation.py",
    "systems/test_job_spark.py",
    "benchmarks/test_nexmark.py",
    "world/test_world.py",
    "systems/test_shared_server.py",
    "soak/test_soak.py",
    "orchestration/runs/test_partitioned_run.py",
    "runtime/task/test_event_time_in_job.py",
    "storage/test_conformance.py",
    "matrix/test_matrix.py",
    "orchestration/outputs/test_output_transaction.py",
    "systems/test_exclusive_run.py",
    "runtime/slot/test_reader_sources.py",
    "systems/test_shop_example.py",
    "orchestration/runs/test_selection.py",
)
"""Files that take longest, which begin first: otherwise one process would run one of them when the others are done."""

_LIBRARY = Path(__file__).parents[1] / "dagster_flinkpy"

_OF_SPARK = re.compile(r"\b(spark_settings|one_server)\b|\bspark: (\"?SparkSession|Any)\b")
"""What files contain whose tests use the Spark server of the session; see `pytest_collection_modifyitems`."""

settings.register_profile("any machine", deadline=None, max_examples=examples(100))
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Keeps Python's garbage collection from looking at what is imported and collected; hardly any of it is garbage."""
    gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escapes what is no text, such as half an emoji that a test has logged: processes send each other text only."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Gives files side by side to the processes, but those that use the Spark server of the session to one of them."""
    from xdist.scheduler import LoadFileScheduling

    of_spark = cache(lambda file: _OF_SPARK.search((config.rootpath / file).read_text()) is not None)

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "the Spark server" if of_spark(file) else file

    return Files(config, log)


def _is_of_the_whole(item: pytest.Item, met: dict[str, set[Any]]) -> bool:
    """Tells whether only `make test-system` runs a test: by its folder, or as a case that `short` leaves out.

    Args:
        item: The test.
        met: What was met of each function: the ids of its cases, or the values of each argument with their places.
    """
    folder, *rest = item.path.relative_to(Path(__file__).parent).parts
    if rest and not (_LIBRARY / folder).is_dir():
        return True
    short, call = item.get_closest_marker("short"), getattr(item, "callspec", None)
    if short is None or call is None:
        return False
    known = met.setdefault(item.nodeid.partition("[")[0], set())
    new = {call.id} & set(short.args) if short.args else set(enumerate(call._idlist)) - known
    known |= new
    return not new


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests of the whole. Puts the files that take longest first; tests of a file keep their order."""
    met = dict[str, set[Any]]()
    for item in items:
        if _is_of_the_whole(item, met):
            item.add_marker("system")
    if config.option.markexpr.endswith("not system"):
        named = {item.nodeid.partition("[")[0]: set(mark.args) for item in items for mark in item.iter_markers("short")}
        assert all(ids <= met[function] for function, ids in named.items()), "`short` names cases"
    files = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    assert all(file.exists() for file in files), "LONGEST names files"
    items.sort(key=lambda item: files.get(item.path, len(files)))
    of_spark = {item.path for item in items if "spark_settings" in getattr(item, "fixturenames", ())}
    unseen = [path for path in of_spark if not _OF_SPARK.search(path.read_text())]
    assert not unseen, f"_OF_SPARK does not find {unseen}: another process would start a second server"


def pytest_collection_finish() -> None:
    """Takes the collected tests out of Python's garbage collection: they stay to the end, and are many to look at.

    What tests make is looked at less often than by default: most of it is gone before.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def nothing_has_to_outlive_the_machine() -> Iterator[None]:
    """Lets files of the local store and of SQLite reach the disk when the system likes, as those of PostgreSQL do here.

    Nothing is lost by it if a process is killed. A busy disk takes milliseconds for each of many thousand calls.
    """

    def no_sync(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", no_sync)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
    event.remove(Engine, "connect", no_sync)


@pytest.fixture(scope="session", autouse=True)
def migrations_are_read_once() -> Iterator[None]:
    """Keeps what Alembic reads for each new Dagster instance: 60 files of Python, which are run."""
    from alembic.script import ScriptDirectory

    read, kept = ScriptDirectory.from_config, dict[str | None, ScriptDirectory]()

    def from_config(config: Config) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in kept:
            kept[place] = read(config)
        return kept[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", from_config)
        yield


@pytest.fixture(scope="session", autouse=True)
def submodules_are_looked_up() -> Iterator[None]:
    """Lets cloudpickle look up the modules inside of packages that a function names.

    It compares the names of all modules, for each package of each function. A process of tests has seven thousand.
    """
    from cloudpickle import cloudpickle

    def named_in(code: CodeType, prefix: str) -> Iterator[ModuleType]:
        for name in dict.fromkeys(code.co_names):
            if (module := sys.modules.get(f"{prefix}.{name}")) is not None:
                yield module
                yield from named_in(code, f"{prefix}.{name}")

    def find(code: CodeType, top_level_dependencies: Iterable[Any]) -> list[ModuleType]:
        packages = [each for each in top_level_dependencies if isinstance(each, ModuleType) and each.__package__]
        return [module for package in packages for module in named_in(code, package.__name__)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cloudpickle, "_find_imported_submodules", find)
        yield


@pytest.fixture(scope="session", autouse=True)
def answers_are_looked_for_often() -> Iterator[None]:
    """Lets whoever has asked a run look for its answer ten times a second; others look once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "_LOOK_SECONDS", 0.1)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> Iterator[None]:
    """Starts each Java of the tests for a short life, also those of other processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", servers.QUICK_JAVA)
        yield


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageLocation]:
    """Starts an S3 server with an empty bucket for the session."""
    with servers.ministack(tmp_path_factory.mktemp("ministack")) as endpoint:
        yield fresh_bucket(endpoint, "test", "test")


@pytest.fixture
def s3_location(ministack: StorageLocation) -> StorageLocation:
    """Returns a separate prefix on MiniStack for each test."""
    return ministack.child(uuid.uuid4().hex)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Starts PostgreSQL for the session, and returns how to connect."""
    with servers.postgres() as conninfo:
        yield conninfo


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Starts a broker of Kafka for the session, or uses FLINKPY_TEST_KAFKA, and returns how to connect."""
    with servers.kafka(tmp_path_factory.mktemp("kafka")) as brokers:
        yield brokers


def fresh_bucket(endpoint: str, access_key: str, secret_key: str) -> StorageLocation:
    bucket = f"flinkpy-{uuid.uuid4().hex}"
    s3_client(endpoint, "us-east-1", access_key, secret_key).create_bucket(Bucket=bucket)
    return StorageLocation(f"s3://{bucket}", endpoint, "us-east-1", access_key, secret_key)


@pytest.fixture(autouse=True)
def no_server_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of tests without Spark run in this process; for them no server is to start."""
    if request.node.get_closest_marker("spark") is None:
        monkeypatch.setattr("dagster_flinkpy.runtime.master.local_executor.start_server", lambda: None)


@pytest.fixture(scope="session")
def runtime_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNTIME_DIR_VARIABLE, str(directory))
        yield directory


@pytest.fixture(scope="session")
def spark_settings(runtime_dir: Path) -> Iterator[SparkSettings]:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    settings = SparkSettings(master="local[3]", conf=conf)  # two for tasks that live, and one for Spark jobs
    yield settings
    stop_server(settings)


@pytest.fixture(scope="session")
def spark(spark_settings: SparkSettings) -> Iterator[SparkSession]:
    with open_session(spark_settings) as session:
        yield session


@pytest.fixture
def one_server(spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives programs that name no Spark the server of the session: the start of another one takes seconds.

    Their DataFrames have the session that all share, because it has warm workers.
    """

    def shared(settings: SparkSettings | None = None, *, own: bool = False) -> SparkSession:
        return get_session(spark_settings)

    for module in ("spark.sessions", "runtime.master.job_session"):
        monkeypatch.setattr(f"dagster_flinkpy.{module}.get_session", shared)
    monkeypatch.setattr("dagster_flinkpy.runtime.master.local_executor.start_server", lambda: None)
