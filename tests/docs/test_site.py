"""The documentation as a site: it builds without a warning, each page is in its menu, and what is public is in it."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = ("common", "connectors", "datastream", "orchestration", "state_processor", "storage")
PAGES = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return folder


def pages_of(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    children = nav.values() if isinstance(nav, dict) else nav
    assert isinstance(children, (list, type({}.values())))
    return set().union(*(pages_of(child) for child in children))


def test_every_page_is_in_the_menu() -> None:
    assert pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]) == PAGES


@pytest.mark.parametrize("package", REFERENCE)
def test_the_reference_has_what_is_public(site: Path, package: str) -> None:
    page = (site / "reference" / f"{package}.html").read_text()
    module = importlib.import_module(f"dagster_flinkpy.{package}")
    missing = [name for name in module.__all__ if f'id="dagster_flinkpy.{package}.{name}"' not in page]
    assert not missing


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
