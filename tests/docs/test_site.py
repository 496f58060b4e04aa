"""The site of the documentation builds without a warning, its menu has all pages, and it has all public names."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from dagster_flinkpy import connectors
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors import DataGeneratorSource
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.number_seq import NumberSequenceSource
from tests.docs import reference
from tests.e2e.chromium import CHROMIUM, open_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = (
    *("common", "connectors", "datastream", "datastream.state", "datastream.connectors.base"),
    "datastream.connectors.source",
    *("datastream.connectors.file_system", "datastream.connectors.kafka"),
    *("orchestration", "state_processor", "storage"),
)
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


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_begins_with_the_question_that_it_answers(name: str) -> None:
    heading, nothing, first, second = (DOCS / name).read_text().split("\n")[:4]
    assert heading.startswith("# ") and not nothing
    assert "?" in first + second


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("idle", "api/sources.md#idleness"),
        ("static input", "api/sources.md#static-inputs"),
        ("lookup table", "api/sources.md#static-inputs"),
        ("give a backfill a config", "how-to/backfill.md#the-config-of-a-backfill"),
        ("link assets to code", "dagster/assets.md#links-to-the-code"),
        ("supported", "quick-start.md#supported-versions"),
        ("exactly once from a plain asset", "transactions.md"),
    ],
)
def test_the_first_page_finds_what_newcomers_ask(words: str, target: str) -> None:
    rows = [row for row in (DOCS / "index.md").read_text().splitlines() if row.startswith("| ") and words in row]
    assert any(f"]({target})" in row for row in rows), rows


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
def test_the_search_works_in_a_site_that_is_read_from_disk(site: Path) -> None:
    with open_page(1400, 900) as page:
        page.context.set_offline(True)
        for start, words, found in (
            ("index.html", "idleness", "api/sources.html#idleness"),
            ("dagster/index.html", "supported versions", "quick-start.html#supported-versions"),
        ):
            page.goto((site / start).as_uri())
            box = page.get_by_role("textbox", name="Search")
            link = page.locator(f".md-search-result__link[href*='{found}']")
            while not link.count():
                box.fill("")
                box.press_sequentially(words)
                with suppress(PlaywrightTimeoutError):  # what is typed before the index is there is never searched
                    link.first.wait_for(state="attached", timeout=2000)


@pytest.mark.parametrize("package", REFERENCE)
def test_the_reference_has_what_is_public(site: Path, package: str) -> None:
    page = (site / "reference" / f"{package}.html").read_text()
    module = importlib.import_module(f"dagster_flinkpy.{package}")
    missing = [name for name in module.__all__ if f'id="dagster_flinkpy.{package}.{name}"' not in page]
    assert not missing


@pytest.mark.parametrize("path", reference.PAGES, ids=lambda path: path.stem)
def test_the_reference_has_contents(path: Path) -> None:
    page = path.read_text()
    assert page == reference.with_contents(page), "run: python -m tests.docs.reference"


@pytest.mark.parametrize(
    "function",
    [
        *(
            getattr(connectors, name)
            for name in connectors.__all__
            if name.endswith(("Source", "Sink", "ForeachEpoch"))
        ),
        CollectionSource,
        DataGeneratorSource,
        NumberSequenceSource,
        StreamExecutionEnvironment.from_spark,
    ],
    ids=lambda function: function.__name__,
)
def test_arguments_of_sources_and_sinks_are_on_their_page(function: Callable[..., Any]) -> None:
    page = "".join((DOCS / "api" / name).read_text() for name in ("sources-and-sinks.md", "sinks.md"))
    names = set(inspect.signature(function).parameters) - {"self"}
    assert names <= set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]*`", page))))


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
