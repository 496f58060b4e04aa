"""The checks, one by one."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from dagster_flinkpy.doctor.finding import Finding, Verdict
from dagster_flinkpy.doctor.worker import version_of
from dagster_flinkpy.doctor.workers import look_at_workers, minor
from dagster_flinkpy.errors import FlinkPyError, JavaNotFoundError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["diagnose"]

_FREE_BYTES = 5 << 30
_SKEW_SECONDS = 60.0


def diagnose(storage: StorageLocation | None = None, *, remote: str | None = None) -> Iterator[Finding]:
    """Checks Python packages, Java, Spark and its workers, the local disk, Dagster's instance and the object store.

    Args:
        storage: Checkpoint storage to check, here and on the workers. Default: none.
        remote: URL of a Spark Connect server. Default: a local server, which is started if none is running.
    """
    broken: set[str] = set()
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("packages", lambda: [_packages()]),
        ("Spark", lambda: _spark(remote, None if "store" in broken else storage)),
        ("local disk", lambda: [_disk()]),
        ("Dagster", lambda: [_dagster()]),
    ]
    if storage is not None:
        checks.insert(1, ("store", lambda: [_store(storage)]))
    if remote is None:
        checks.insert(1, ("Java", lambda: [_java()]))
    for what, check in checks:
        try:
            for finding in check():
                if finding.verdict is Verdict.BROKEN:
                    broken.add(finding.what)
                yield finding
        except FlinkPyError as error:
            broken.add(what)
            missing = "Java" if isinstance(error, JavaNotFoundError) else what
            yield Finding(what, Verdict.BROKEN, str(error), _advice_of(missing))
        except Exception as error:
            broken.add(what)
            yield Finding(what, Verdict.BROKEN, f"{type(error).__name__}: {error}", _advice_of(what))


def _advice_of(what: str) -> str:
    return {
        "Java": "Install Java 17 or newer, or run `pip install 'dagster-flinkpy[java]'`, which includes one.",
        "Spark": "See the log that the message names. A remote server's Python needs this package in the same version.",
        "store": "Check the URL, --endpoint-url, and the credentials in boto3's usual places.",
        "Dagster": "Check dagster.yaml in DAGSTER_HOME, and that the database it names is reachable.",
    }.get(what, "")


def _packages() -> Finding:
    versions = {name: version_of(name) for name in ("dagster", "dagster-webserver", "pyspark", "pandas", "pyarrow")}
    shown = f"Python {sys.version.split()[0]}, " + ", ".join(f"{n} {v}" for n, v in versions.items() if v)
    if not (3, 5) <= tuple(map(int, str(versions["pyspark"]).split(".")[:2])) < (4, 4):
        return Finding("packages", Verdict.BROKEN, shown, "Install pyspark>=3.5,<4.4.")
    if str(versions["pandas"]).split(".")[0] >= "3":
        return Finding("packages", Verdict.BROKEN, shown, "PySpark needs pandas below 3: pip install 'pandas<3'.")
    webserver = versions["dagster-webserver"]
    if webserver and minor(webserver) != minor(str(versions["dagster"])):
        advice = "Install dagster and dagster-webserver of the same minor release."
        return Finding("packages", Verdict.WARNING, shown, advice)
    return Finding("packages", Verdict.FINE, shown)


def _java() -> Finding:
    from dagster_flinkpy.spark.java import find_java_home

    return Finding("Java", Verdict.FINE, str(find_java_home()))


def _spark(remote: str | None, storage: StorageLocation | None) -> Iterator[Finding]:
    from dagster_flinkpy.runtime.master.deployments.slot_processes import host_of_driver
    from dagster_flinkpy.spark.sessions import SparkSettings, get_session, server_log

    settings = SparkSettings() if remote is None else SparkSettings("remote", remote=remote)
    started = time.monotonic()
    session = get_session(settings)
    try:
        connected = time.monotonic()
        session.range(1, numPartitions=1).repartition(1).count()  # with a shuffle, as jobs have
        took = f"connected in {connected - started:.1f} s, first job {time.monotonic() - connected:.1f} s"
        detail = f"Spark {session.version}{_java_of(session)}, {took}"
        if (log := server_log(session)) is not None:
            detail += f"; its log is {log.path}"
        yield Finding("Spark", Verdict.FINE, detail)
        yield from look_at_workers(session, host_of_driver(settings), storage)
    finally:
        session.stop()


def _java_of(session: Any) -> str:
    """Returns the Java of Spark's driver; nothing if Spark does not say it."""
    from pyspark.errors import PySparkException

    try:
        (row,) = session.sql("SELECT reflect('java.lang.System', 'getProperty', 'java.version') AS version").collect()
    except PySparkException:
        return ""  # some clusters allow no such function
    return f" on Java {row.version}"


def _disk() -> Finding:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    detail = f"{free / (1 << 30):.0f} GiB free in {tempfile.gettempdir()}, where local copies of state are kept"
    if free < _FREE_BYTES:
        return Finding("local disk", Verdict.WARNING, detail, "Free some space, or point TMPDIR at a larger disk.")
    return Finding("local disk", Verdict.FINE, detail)


def _store(storage: StorageLocation) -> Finding:
    store = storage.open()
    exists = store.root_exists()
    store.probe()
    key = ".probe/clock"
    before = time.time()
    store.put(key, b"")
    after = time.time()
    info = store.head(key)
    store.delete_many([key])
    skew = 0.0
    if info is not None:
        at = info.last_modified.timestamp()
        skew = max(before - at - 1, at - after, 0.0)  # stores record whole seconds
    detail = f"{store.url}: writes, reads, and honours conditional writes; round trip {(after - before) * 1000:.0f} ms"
    if skew > _SKEW_SECONDS:
        advice = "The clocks differ. That is safe, but reported ages and lags are wrong by this much: set up NTP."
        return Finding("store", Verdict.WARNING, f"{detail}; its clock is {skew:.0f} s off", advice)
    if not exists:
        advice = "If it is to be another folder, delete this one, and check that one."
        return Finding("store", Verdict.WARNING, f"{detail}; there was no such folder, and now there is", advice)
    return Finding("store", Verdict.FINE, detail)


def _dagster() -> Finding:
    home = os.environ.get("DAGSTER_HOME")
    if not home:
        advice = "Set DAGSTER_HOME to a permanent directory, or else runs and sensors are lost when `dagster dev` ends."
        return Finding("Dagster", Verdict.WARNING, "DAGSTER_HOME is not set", advice)
    if not Path(home).is_dir():
        return Finding("Dagster", Verdict.BROKEN, f"DAGSTER_HOME={home} is not a directory", "Create it.")
    from dagster import DagsterInstance

    try:
        with DagsterInstance.get() as instance:
            instance.get_runs_count()
            kind = type(instance.event_log_storage).__name__
            statuses = instance.get_daemon_statuses()
            alive = [name for name, status in statuses.items() if status.healthy]
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        # SQLAlchemy 2.1 uses psycopg 3 for postgresql://, but dagster-postgres depends on psycopg2.
        detail = f"{home}/dagster.yaml names PostgreSQL, but not the driver that dagster-postgres installs: {error}"
        advice = "Write postgres_url: postgresql+psycopg2://..., or scheme: postgresql+psycopg2 under postgres_db."
        return Finding("Dagster", Verdict.BROKEN, detail, advice)
    detail = f"{home}, storage {kind}, daemons alive: {', '.join(sorted(alive)) or 'none'}"
    if "SENSOR" not in alive:
        advice = "Sensors need the daemon: start `dagster dev` or `dagster-daemon run` with this DAGSTER_HOME."
        return Finding("Dagster", Verdict.WARNING, detail, advice)
    if "Sqlite" in kind:
        advice = "SQLite is for one machine. For runs on several, set up PostgreSQL (dagster-postgres) in dagster.yaml."
        return Finding("Dagster", Verdict.WARNING, detail, advice)
    return Finding("Dagster", Verdict.FINE, detail)
