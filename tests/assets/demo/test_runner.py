from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
CHECKS = """{ assetNodes(group: {groupName: "flights", repositoryName: "__repository__",
                            repositoryLocationName: "flights"}) {
  assetKey { path } assetChecksOrError { ... on AssetChecks { checks {
    name executionForLatestMaterialization { status evaluation { success } } } } } } }"""


def checks_on_the_page(variables: dict[str, str]) -> dict[tuple[str, str], Any]:
    """Asks as the page of the checks does, with the code location that the page loads."""
    command = [Path(sys.executable).with_name("dagster-graphql"), "-w", "workspace.yaml", "-t", CHECKS]
    answer = subprocess.run(command, cwd=ROOT, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout
    [line] = [each for each in answer.splitlines() if each.startswith('{"data"')]  # the code server prints, too
    nodes = json.loads(line)["data"]["assetNodes"]
    return {
        (node["assetKey"]["path"][-1], check["name"]): check["executionForLatestMaterialization"]
        for node in nodes
        for check in node["assetChecksOrError"].get("checks", [])
    }


@pytest.mark.spark
def test_two_days(tmp_path: Path) -> None:
    """Runs the demo on its first two days."""
    variables = {**os.environ, "FLINKPY_HOME": str(tmp_path), "FLINKPY_DAYS": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "assets.demo"], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 lost, 0 duplicated" in done.stdout
    assert " 2 of 2 days: parallelism 3" in done.stdout
    assert (tmp_path / "dagster_home/history/runs.db").exists()
    checks = checks_on_the_page({**variables, "DAGSTER_HOME": str(tmp_path / "dagster_home")})
    assert len(checks) > 20
    not_passed = {key: found for key, found in checks.items() if not found or not found["evaluation"]["success"]}
    assert not_passed == {}
