"""What is registered as text exists, and points upwards only where a declaration leads to what executes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

import dagster_flinkpy
from dagster_flinkpy import registry
from dagster_flinkpy.registry import resolve

ROOT = Path(dagster_flinkpy.__file__).parent
REGISTERED = dict(registry._registered)
UPWARDS = {("datastream", "connectors"), ("datastream", "runtime"), ("connectors", "orchestration")}
"""From the package of a declaration to that of what executes it, on a higher floor."""


def floors() -> dict[str, int]:
    """Returns the floor of each package, from the first contract of import-linter."""
    contracts = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.split(r" *[|:] *", layer) for layer in reversed(contracts[0]["layers"])]
    return {package: floor for floor, packages in enumerate(layers) for package in packages}


def texts() -> Iterator[tuple[Path, str]]:
    """Yields the texts of each module but the one that registers, as patterns: what is formatted is a group."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())) if path != ROOT / "__init__.py" else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path, re.escape(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (re.escape(str(p.value)) if isinstance(p, ast.Constant) else r"(\w*?)" for p in node.values)
                yield path, "".join(parts)


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def uses() -> set[tuple[str, str]]:
    """Returns the registered names with the packages that ask for them. Formatted parts are texts of the package."""
    found = list(texts())
    known = {(package_of(path), text) for path, text in found}
    asking = {path for path in ROOT.rglob("*.py") if "dagster_flinkpy.registry import" in path.read_text()}
    return {
        (name, package_of(path))
        for path, text in found
        for name in REGISTERED
        if path in asking or text == name  # one that is handed on
        if (match := re.fullmatch(text, name)) and all((package_of(path), part) in known for part in match.groups())
    }


@pytest.mark.parametrize("name", sorted(REGISTERED))
def test_what_is_registered_exists(name: str) -> None:
    assert callable(resolve(name))


def test_everything_that_is_registered_is_asked_for() -> None:
    assert {name for name, _ in uses()} == set(REGISTERED)


def test_only_declarations_lead_upwards() -> None:
    floor = floors()
    edges = {(package, REGISTERED[name].split(".")[1]) for name, package in uses()}
    assert {edge for edge in edges if floor[edge[1]] > floor[edge[0]]} == UPWARDS


def test_no_other_text_names_code() -> None:
    named = [(path.name, text) for path, text in texts() if re.match(r"dagster_flinkpy\\\.[\w\\.]+:[A-Za-z]", text)]
    assert named == [], "register() it"
