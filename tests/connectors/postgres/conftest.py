from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connectors.postgres.sinks import Database


@pytest.fixture
def database(postgres: str, tmp_path: Path) -> Iterator[Database]:
    database = Database(postgres, tmp_path / "staging")
    yield database
    for (gid,) in database.sql("SELECT gid FROM pg_prepared_xacts"):
        database.sql(f"ROLLBACK PREPARED '{gid}'")
    database.sql("DROP SCHEMA {} CASCADE")
