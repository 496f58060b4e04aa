"""`make test` and `make test-system` divide the folders of these tests between them, and CI runs some of each."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"


def system() -> set[str]:
    (names,) = re.findall(r"^SYSTEM := \$\(addprefix tests/,(.*)\)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(names.split())


def test_a_folder_is_that_of_a_floor_or_one_of_make_test_system() -> None:
    floors = {folder.name for folder in (ROOT / "dagster_flinkpy").iterdir() if folder.is_dir()}
    assert {file.relative_to(TESTS).parts[0] for file in TESTS.glob("*/**/test_*.py")} - floors == system()


def test_ci_runs_a_test_of_each_folder_of_make_test_system() -> None:
    marked = {
        file.relative_to(TESTS).parts[0]
        for file in TESTS.glob("*/**/test_*.py")
        if "pytest.mark.smoke" in file.read_text()
    }
    assert marked == system()


def test_what_is_tried_at_the_top_is_not_committed() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    folders = {name.split("/")[0] for name in listed if "/" in name}
    ours = {".ci", "assets", "benchmarks", "dagster_flinkpy", "docs", "examples", "resources", "tests"}
    assert folders - ours == set()
