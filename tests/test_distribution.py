"""What is released: a wheel that works alone, with its licence, and a page that says what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

import dagster_flinkpy

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_INSTALLED_BY_USERS = {"demo", "docs", "bench", "dev"}

PROGRAM = """
import dagster_flinkpy
from dagster_flinkpy.common import Row, Types
from dagster_flinkpy.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.testing import run_local

ORDER = Types.ROW_NAMED(["customer", "amount"], [Types.STRING(), Types.DOUBLE()])


class Totals(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.DOUBLE()))

    def process_element(self, order, ctx):
        total = (self.total.value() or 0.0) + order.amount
        self.total.update(total)
        yield Row(ctx.get_current_key(), total)


env = StreamExecutionEnvironment.get_execution_environment()
orders = env.from_collection([Row("a", 1.0), Row("b", 5.0), Row("a", 2.0)], ORDER)
orders.key_by("customer").process(Totals(), ORDER).uid("totals").print()
run_local(env)
print(dagster_flinkpy.__file__)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel and a source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def test_the_version_is_said_once(built: tuple[Path, Path]) -> None:
    assert PROJECT["version"] == dagster_flinkpy.__version__
    assert f"## {PROJECT['version']}\n" in (ROOT / "docs/releases.md").read_text()
    assert all(f"dagster_flinkpy-{PROJECT['version']}" in path.name for path in built)


def test_a_wheel_has_the_library_and_its_licence_only(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = wheel.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        said = wheel.read(metadata).decode()
    info = metadata.rpartition("/")[0]
    assert {name.partition("/")[0] for name in names} == {"dagster_flinkpy", info}
    assert f"{info}/licenses/LICENSE" in names and "dagster_flinkpy/py.typed" in names
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "dagster_flinkpy").rglob("*.py")}
    assert there <= set(names)
    assert not [name for name in names if name.endswith((".pyc", ".log"))]
    assert "License-Expression: Apache-2.0" in said and "# dagster-flinkpy" in said
    wanted = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert wanted <= set(re.findall(r"^Requires-Dist: ([\w.-]+)", said, re.MULTILINE))


def test_a_source_distribution_can_be_built_and_tested(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "requirements.lock", "tests/conftest.py"} <= names


def test_a_program_runs_from_the_wheel_alone(built: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(tmp_path / "installed")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    *rows, file = done.stdout.splitlines()
    assert sorted(rows) == ["+I[a,1.0]", "+I[a,3.0]", "+I[b,5.0]"]
    assert file == str(tmp_path / "installed/dagster_flinkpy/__init__.py")


def test_the_licence_of_each_requirement_is_listed() -> None:
    page = (ROOT / "docs/releases.md").read_text().partition("## Licences")[2]
    extras = [lines for extra, lines in PROJECT["optional-dependencies"].items() if extra not in NOT_INSTALLED_BY_USERS]
    names = {Requirement(line).name for lines in [PROJECT["dependencies"], *extras] for line in lines}
    rows = re.findall(r"^\| ([^|]+) \| (?:always|extra)", page, re.MULTILINE)
    assert {name.strip() for row in rows for name in row.split(",")} == names
