"""Transactions of plain assets whose processes are killed, in targets of each kind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner

from dagster_flinkpy.cli import main
from tests.orchestration.outputs.targets import Postgres
from tests.orchestration.outputs.test_sink_resources import Deployment, numbers

PROGRAM = Path(__file__).with_name("killed_transactions.py")


def killed(runs: list[tuple[Deployment, str]]) -> None:
    """Runs a transaction in a process for each, which kills itself at a step."""
    arguments = []
    for deployment, step in runs:
        target = deployment.target
        database = [target.conninfo, target.schema] if isinstance(target, Postgres) else ["", ""]
        arguments.append([deployment.kind, deployment.url, *database, step])
    command = [sys.executable, str(PROGRAM), json.dumps(arguments)]
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.smoke
def test_killed_runs(tmp_path: Path, postgres: str) -> None:
    steps, kinds = ("staged", "prepared", "amid the commit", "committed"), ("files", "delta", "iceberg", "postgres")
    runs = [(Deployment(kind, tmp_path / kind / step, postgres), step) for kind in kinds for step in steps]
    for deployment, _ in runs:
        deployment.target.put({None: [1]})
    killed(runs)

    @dg.asset
    def a(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, context.run.tags["table"]) as transaction:
            transaction.write(numbers(2))

    before, after = [("a", None, 1)], [("a", None, n) for n in range(100, 103)]
    for deployment, step in runs:
        if step == "committed":
            assert deployment.rows() == after
        elif (deployment.kind, step) != ("files", "amid the commit"):
            assert deployment.rows() == before
        [left] = deployment.tables.lingering(deployment.instance)
        assert (left.asset, left.table, left.is_committing) == ("a", deployment.target.output().table, step != "staged")
        listed = CliRunner().invoke(main, ["transactions", "list", deployment.url]).output
        assert ("the next run over these partitions finishes it" in listed) == left.is_committing
        if deployment.kind != "delta":  # another run ends it
            assert deployment.run(a, tags={"table": deployment.table}).success
            assert deployment.rows() == [("a", None, 2)]
        else:
            [ended] = deployment.tables.end_lingering(deployment.instance)
            assert ended == left
            assert deployment.rows() == (before if step == "staged" else after)
        assert deployment.tables.lingering(deployment.instance) == []
        assert deployment.target.staged() == 0
