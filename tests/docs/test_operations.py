"""The tables of the documentation are complete: errors, permissions, options of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from dagster import Config

from dagster_flinkpy import errors
from dagster_flinkpy.datastream.program.program_options import OPTIONS
from dagster_flinkpy.orchestration import run_config
from dagster_flinkpy.orchestration.failure import as_failure
from dagster_flinkpy.storage import s3

pytestmark = pytest.mark.smoke

DOCS = Path(__file__).parents[2] / "docs"


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    """Returns the table below a heading: first cell without code marks -> the other cells."""
    text = (DOCS / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in rows}


def test_the_failure_table_has_every_error() -> None:
    table = rows_of("operations.md", "What each error means")
    assert table.keys() == set(errors.__all__)


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n != "FlinkPyError" and not n.endswith("Warning")])
def test_the_failure_table_knows_what_is_tried_again(name: str) -> None:
    tried = as_failure(getattr(errors, name)("what happened")).allow_retries
    assert rows_of("operations.md", "What each error means")[name][-1] == ("yes" if tried else "no")


def test_the_policy_allows_what_the_store_asks_for() -> None:
    page = (DOCS / "how-to" / "cluster.md").read_text()
    policy = json.loads(page.split("```json\n")[1].split("```")[0])
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    asked = set(re.findall(r'"(s3:\w+)"', Path(s3.__file__).read_text()))
    assert allowed == asked | {"s3:AbortMultipartUpload"}


def test_the_pages_on_dagster_have_every_option_of_a_run_and_of_a_job() -> None:
    page = "".join((DOCS / "dagster" / name).read_text() for name in ("runs.md", "jobs.md"))
    for name in run_config.__all__:
        config = getattr(run_config, name)
        assert issubclass(config, Config)
        missing = [field for field in config.model_fields if f"`{field}`" not in page]
        assert not missing, name


def test_the_page_on_the_environment_has_every_option_of_a_program() -> None:
    page = (DOCS / "api" / "environment.md").read_text()
    assert not [option for option in sorted(OPTIONS) if f"`{option}`" not in page]


def test_the_floors_have_every_module() -> None:
    library = Path(errors.__file__).parent
    modules = {f"{path.name}/" for path in library.iterdir() if (path / "__init__.py").exists()}
    modules |= {path.name for path in library.glob("[a-z]*.py")}
    text = (DOCS.parent / "CONTRIBUTING.md").read_text()
    assert not [name for name in sorted(modules) if f"`{name}`" not in text]
