"""`make test` and `make test-system` divide the folders of these tests between them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_folder_is_that_of_a_floor_or_one_of_make_test_system() -> None:
    (system,) = re.findall(r"^SYSTEM := \$\(addprefix tests/,(.*)\)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    floors = {folder.name for folder in (ROOT / "dagster_flinkpy").iterdir() if folder.is_dir()}
    tests = ROOT / "tests"
    assert {file.relative_to(tests).parts[0] for file in tests.glob("*/**/test_*.py")} - floors == set(system.split())
