"""`make test` and `make test-system` divide the folders of these tests between them, and CI runs some of each."""

from __future__ import annotations

import re
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
