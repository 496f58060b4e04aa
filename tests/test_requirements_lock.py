"""`requirements.lock` has all that pyproject.toml asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
REQUIREMENTS = [pytest.param(line, id=f"{extra}:{line}") for extra, lines in EXTRAS.items() for line in lines]
_PIN = re.compile(r"^([\w.-]+)==(\S+)((?:.*\\\n)(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def pins() -> dict[str, set[Version]]:
    """Returns the versions of each package that have hashes; other platforms may have other versions."""
    found: dict[str, set[Version]] = {}
    for name, version, _ in _PIN.findall((ROOT / "requirements.lock").read_text()):
        found.setdefault(canonicalize_name(name), set()).add(Version(version))
    return found


PINS = pins()


@pytest.mark.parametrize("line", REQUIREMENTS)
def test_what_is_required_is_locked(line: str) -> None:
    required = Requirement(line)
    versions = PINS.get(canonicalize_name(required.name), set())
    assert versions, f"run `make lock`: {required.name} is missing"
    assert all(version in required.specifier for version in versions), f"run `make lock`: {required} got {versions}"


def test_each_locked_package_has_hashes() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert {canonicalize_name(line.split("==")[0]) for line in lines if line and line[0] not in " #"} == set(PINS)
