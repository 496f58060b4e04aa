"""Python files, archives and requirements of a program, where its functions run."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.program import python_environment
from dagster_flinkpy.datastream.program.python_dependencies import PythonArchive, PythonDependencies
from dagster_flinkpy.datastream.program.python_environment import installed, pack
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.testing import run_local
from tests.runtime.harness import collect_graph, collected


@pytest.fixture(autouse=True)
def path_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def module(folder: Path, name: str, value: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(f"VALUE = {value!r}\n")
    return folder / f"{name}.py"


def zip_of(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def wheel(folder: Path, name: str, value: str) -> Path:
    """Creates a package that pip can install without the network."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": f"VALUE = {value!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"])
    return zip_of(folder / f"{name}-1.0-py3-none-any.whl", files)


def use(dependencies: PythonDependencies, cache: Path, name: str) -> str:
    with installed(pack(dependencies), str(cache)):
        return str(__import__(name).VALUE)


# --- modules ----------------------------------------------------------------------------------------------------------


def test_files_folders_and_zips_can_be_imported(tmp_path: Path) -> None:
    file = module(tmp_path / "one", "dep_file", "a file")
    module(tmp_path / "two", "dep_folder", "a folder")
    zipped = zip_of(tmp_path / "deps.zip", {"dep_zipped.py": "VALUE = 'a zip'\n"})
    dependencies = PythonDependencies(files=(str(file), str(tmp_path / "two"), str(zipped)))
    found = [use(dependencies, tmp_path / "cache", name) for name in ("dep_file", "dep_folder", "dep_zipped")]
    assert found == ["a file", "a folder", "a zip"]


def test_nothing_stays_behind(tmp_path: Path) -> None:
    file = module(tmp_path / "one", "dep_left", "left")
    path, folder = list(sys.path), os.getcwd()
    archive = zip_of(tmp_path / "data.zip", {"x": "1"})
    dependencies = PythonDependencies(files=(str(file),), archives=(PythonArchive(str(archive), "data"),))
    assert use(dependencies, tmp_path / "cache", "dep_left") == "left"
    assert (sys.path, os.getcwd()) == (path, folder)
    assert "dep_left" not in sys.modules


def test_two_programs_with_modules_of_one_name_get_each_their_own(tmp_path: Path) -> None:
    files = [module(tmp_path / name, "dep_same", name) for name in ("first", "second")]
    both = [PythonDependencies(files=(str(file),)) for file in files]
    assert [use(each, tmp_path / "cache", "dep_same") for each in (*both, *both)] == ["first", "second"] * 2


def test_it_is_unpacked_once_for_each_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[Any] = []
    unpack = python_environment._unpack
    monkeypatch.setattr(python_environment, "_unpack", lambda *each: unpacked.append(each) or unpack(*each))
    file = module(tmp_path / "one", "dep_once", "1")
    for _ in range(2):
        use(PythonDependencies(files=(str(file),)), tmp_path / "cache", "dep_once")
    assert len(unpacked) == 1
    module(tmp_path / "one", "dep_once", "2")
    assert use(PythonDependencies(files=(str(file),)), tmp_path / "cache", "dep_once") == "2"
    assert len(unpacked) == 2


# --- archives and requirements ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_are_in_the_working_directory(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.{kind}"
    if kind == "zip":
        zip_of(path, {"in/table.csv": "1,2"})
    else:
        with tarfile.open(path, "w:gz") as archive:
            entry = tarfile.TarInfo("in/table.csv")
            entry.size = 3
            archive.addfile(entry, io.BytesIO(b"1,2"))
    with installed(pack(PythonDependencies(archives=(PythonArchive(str(path), "data"),))), str(tmp_path / "cache")):
        assert Path("data/in/table.csv").read_text() == "1,2"


@pytest.mark.system
def test_requirements_are_installed_from_a_folder(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "dep_wheel", "a wheel")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("dep_wheel==1.0\n")
    dependencies = PythonDependencies(requirements=str(requirements), requirements_cache=str(tmp_path / "wheels"))
    assert use(dependencies, tmp_path / "cache", "dep_wheel") == "a wheel"
    requirements.write_text("dep_missing==1.0\n")
    with pytest.raises(ConfigurationError, match=r"(?s)requirements could not be installed.*dep_missing"):
        use(dependencies, tmp_path / "cache", "dep_wheel")


# --- bad input --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_or_unpacked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(ConfigurationError, match=r"cannot be read: .*gone\.py: No such file"):
        pack(PythonDependencies(files=(str(tmp_path / "gone.py"),)))
    (tmp_path / "data.csv").write_text("1")
    with pytest.raises(ConfigurationError, match=r"takes a \.py, \.zip or \.whl file or a folder, not .*data\.csv"):
        pack(PythonDependencies(files=(str(tmp_path / "data.csv"),)))
    with pytest.raises(ConfigurationError, match="is one name without"):
        env.add_python_archive(str(tmp_path / "data.zip"), "../outside")
    (tmp_path / "bad.zip").write_text("no zip")
    for name, message in [("bad.zip", "'bad.zip' cannot be unpacked"), ("data.csv", "takes a .zip, .tar")]:
        dependencies = PythonDependencies(archives=(PythonArchive(str(tmp_path / name), "x"),))
        with pytest.raises(ConfigurationError, match=message), installed(pack(dependencies), str(tmp_path / "cache")):
            pass
    monkeypatch.setattr(python_environment, "MAX_BYTES", 3)
    with pytest.raises(ConfigurationError, match="can be sent with a Spark job"):
        pack(PythonDependencies(archives=(PythonArchive(str(tmp_path / "bad.zip"), "x"),)))


# --- programs ---------------------------------------------------------------------------------------------------------


def imports_inside(value: int) -> str:
    import dep_inside  # type: ignore[import-not-found]

    return f"{value} {dep_inside.VALUE} {Path('prices.zip/eur.txt').read_text()}"


def program(folder: Path) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.add_python_file(str(module(folder / "code", "dep_inside", "inside")))
    env.add_python_archive(str(zip_of(folder / "prices.zip", {"eur.txt": "1.08"})))
    numbers = env.from_collection([7], Types.LONG()).uid("numbers")
    return env, numbers.rebalance().map(imports_inside, Types.STRING()).uid("map")


def test_a_function_imports_inside_itself(tmp_path: Path) -> None:
    env, stream = program(tmp_path)
    assert run_local(env, stream) == [["7 inside 1.08"]]


@pytest.mark.spark
def test_a_function_imports_inside_itself_on_spark(tmp_path: Path, spark_settings: SparkSettings) -> None:
    _, stream = program(tmp_path)
    graph = collect_graph(stream)
    config = JobConfig(
        "job", StorageLocation(str(tmp_path / "checkpoints")), spark_settings, cache_dir=str(tmp_path / "cache")
    )
    with JobAttempt(graph, config, owner="test") as attempt:
        attempt.run_epoch()
        assert collected(attempt.graph, attempt.collected) == ["7 inside 1.08"]


def test_a_worker_whose_folder_is_gone_reads_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zip_of(tmp_path / "data.zip", {"names.txt": "ann"})
    packed = pack(PythonDependencies(archives=(PythonArchive(str(archive), "data"),)))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with installed(packed, str(tmp_path / "cache")):
        assert Path("data/names.txt").read_text() == "ann"


@pytest.mark.parametrize("name", ["../out", "link"])
def test_a_tar_file_cannot_write_elsewhere_whatever_python_has(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    path = tmp_path / "data.tar"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo(name)
        if name == "link":
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(entry)
    packed = pack(PythonDependencies(archives=(PythonArchive(str(path), "data"),)))
    with pytest.raises(ConfigurationError, match="cannot be unpacked"), installed(packed, str(tmp_path / "cache")):
        pass
    assert not (tmp_path / "out").exists()
