"""All programs on Spark itself, in each mode: a part of ``make compatibility``, which runs it with each version."""

from __future__ import annotations

import os
from functools import partialmethod

import pytest

from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.spark.sessions import SparkSettings
from tests.pyflink.generate import EXPECTED, printed, programs
from tests.pyflink.test_programs import ONE_BY_ONE, run

MODE = os.environ.get("FLINKPY_COMPATIBILITY", "")
"""``local``, ``classic``, or the URL of a Spark Connect server; a process can have one of them."""

SHORT = {"files", "interval_join", "log_levels", "objects", "side_outputs_and_timers", "state_broadcast", "window_late"}
"""What CI runs: files, a batch job, pickled objects, a join, side outputs with timers, broadcast state and windows."""
assert programs().keys() >= SHORT

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not MODE, reason="a part of make compatibility")]


@pytest.fixture(autouse=True)
def mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets programs, which name no Spark, run in this mode."""
    fields = list(SparkSettings.__dataclass_fields__)
    defaults = list(SparkSettings.__init__.__defaults__ or ())
    assert fields[:3] == ["mode", "master", "remote"]
    chosen = ("remote", "local[*]", MODE) if MODE.startswith("sc://") else (MODE, "local[4]", None)
    monkeypatch.setattr(SparkSettings.__init__, "__defaults__", (*chosen, *defaults[3:]))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.smoke if name in SHORT else ()) for name in programs()]
)
def test_a_program_prints_what_it_prints_under_pyflink(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in ONE_BY_ONE:
        monkeypatch.setattr(CollectionSource, "__init__", partialmethod(CollectionSource.__init__, batch_size=1))
    run(programs()[name], monkeypatch)
    assert printed(capsys.readouterr().out) == (EXPECTED / f"{name}.txt").read_text()
