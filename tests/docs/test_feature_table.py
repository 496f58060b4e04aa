"""Each row of the table of features names a test that exists."""

import ast
import re

import pytest

from tests.docs.test_snippets import PAGES, ROOT

pytestmark = pytest.mark.smoke

ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in PAGES["comparison-dagster"].read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| | ", "| ---"))
]


def test_the_table_has_the_features_that_teams_ask_for() -> None:
    assert {
        "code references",
        "descriptions",
        "column schema",
        "column lineage",
        "row counts",
        "checks",
        "freshness",
        "owners, tags, group, metadata",
        "automation conditions",
        "backfill policies",
        "partitions",
        "component and scaffold",
        "retries",
        "going on after a failure",
        "incremental state",
        "logs of the workers",
        "observability of a run at work",
    } <= {row[0] for row in ROWS}


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0]) for row in ROWS])
def test_a_row_is_shown_by_a_test(row: list[str]) -> None:
    assert len(row) == 5, "a feature, three libraries, a test"
    assert all(row)
    found = re.fullmatch(r"`(?P<file>tests/[\w/]+\.py)::(?P<name>test_\w+)`", row[-1])
    assert found is not None, f"name a test, such as `tests/x.py::test_y`, not {row[-1]}"
    tree = ast.parse((ROOT / found["file"]).read_text())
    assert found["name"] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
