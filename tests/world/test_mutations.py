"""Breaks checks of the library one at a time. The world must notice each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.connectors.delta.table import DeltaTarget
from dagster_flinkpy.connectors.files.known_files import KnownFiles
from dagster_flinkpy.connectors.files.text_reader import TextFile
from dagster_flinkpy.connectors.iceberg.table import IcebergTarget
from dagster_flinkpy.connectors.postgres.session import Session
from dagster_flinkpy.runtime.master.commits.committers import Committers
from tests.world.play import Case, Deed, Promise
from tests.world.stage import Place
from tests.world.worlds import run


def _nothing(*_: Any, **__: Any) -> None:
    """Checks nothing."""


_compare = KnownFiles.compare


def _forgets(known: KnownFiles, files: Any) -> None:
    _compare(known, files)
    known._gone.clear()


MUTATIONS = {
    "files that were changed after planning are read": (
        (TextFile, "check"),
        "TextFolder",
        "overwrites the newest file with one of its size",
        "after planning",
    ),
    "files that are gone are forgotten": (
        (KnownFiles, "compare", _forgets),
        "TextFolder",
        "unmounts the folder for a while",
        "between runs",
    ),
    "columns of a Delta table are not looked at": (
        (DeltaTarget, "check"),
        "DeltaAppend",
        "overwrites the table with a column renamed",
        "before commit",
    ),
    "an Iceberg table is not looked at": (
        (IcebergTarget, "_check"),
        "IcebergAppend",
        "adds a column that is required",
        "before commit",
    ),
    "nobody asks whether targets have what was committed": (
        (Committers, "check_kept"),
        "DeltaAppend",
        "restores a backup of the folder",
        "between runs",
    ),
    "nobody asks whether targets know a job of which nothing is left": (
        (Committers, "check_new"),
        "DeltaAppend",
        "takes the folder of the job away",
        "between runs",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_world_notices_a_check_that_is_gone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, system, act, moment = MUTATIONS[name]
    case = Case(system, (Deed(act, moment),))
    run(case, Place(tmp_path))
    if len(target) == 1:
        monkeypatch.setattr(target[0], _nothing)
    else:
        monkeypatch.setattr(target[0], target[1], target[2] if len(target) > 2 else _nothing)
    with pytest.raises(Promise, match="To run it again"):
        run(case, Place(tmp_path))


def test_the_world_notices_a_sink_that_does_not_count_what_a_table_takes(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "check_taken", _nothing)
    with pytest.raises(Promise, match=r"missing: \[6,"):
        run(
            Case("PostgresTable", (Deed("adds a trigger that drops rows", "before commit"),)), Place(tmp_path, postgres)
        )
